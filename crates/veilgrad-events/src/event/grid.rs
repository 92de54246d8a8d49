//! The integer grid of an exact Gaussian sum.

use serde::{Deserialize, Serialize};

use super::unit::NoiseMultiplier;

/// The grid of one exact Gaussian sum: every record contributes an integer vector of norm at most
/// `S_int`, and the noise is `floor(2^k Z)` with `Z` standard normal.
///
/// # Guarantee
/// The realised noise multiplier is the rational `2^k / S_int`. It is never below the requested one. For every
/// requested multiplier in `[2^-27, 2^24]` it exceeds it by a relative `2^-25` at most, because `S_int >= 2^26` there.
///
/// # Example
/// ```
/// use veilgrad_events::{IntegerGrid, NoiseMultiplier};
///
/// let grid = IntegerGrid::for_multiplier(NoiseMultiplier::new(1.1)?)?;
/// assert!(grid.noise_multiplier() >= 1.1); // never below the requested one
/// assert!(grid.noise_multiplier() < 1.1 * (1.0 + 1e-7));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "RawGrid")]
pub struct IntegerGrid {
    s_int: u32,
    k: u8,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawGrid {
    s_int: u32,
    k: u8,
}

/// No integer grid exists for these parameters.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum GridError {
    /// The sensitivity is 0 or above 2^27.
    #[error("integer sensitivity {0} is not between 1 and 2^27")]
    Sensitivity(u32),
    /// The noise exponent is out of range.
    #[error("noise exponent {0} is not at most 50")]
    Exponent(u8),
    /// The noise multiplier cannot be realised.
    #[error("noise multiplier {0} is not between 2^-27 and 2^50")]
    Multiplier(f64),
}

impl IntegerGrid {
    /// The largest integer sensitivity; the sum of fifteen records still fits an `i32`.
    pub const MAX_SENSITIVITY: u32 = 1 << 27;
    /// The largest noise exponent; noise of this scale stays far from overflowing 64 bits.
    pub const MAX_EXPONENT: u8 = 50;

    /// A grid from its two integers.
    ///
    /// # Errors
    /// When `s_int` is not in `1..=2^27` or `k` is above 50.
    pub fn new(s_int: u32, k: u8) -> Result<Self, GridError> {
        if s_int == 0 || s_int > Self::MAX_SENSITIVITY {
            return Err(GridError::Sensitivity(s_int));
        }
        if k > Self::MAX_EXPONENT {
            return Err(GridError::Exponent(k));
        }
        Ok(Self { s_int, k })
    }

    /// The finest grid whose realised noise multiplier is at least `z`: the largest `k` for which
    /// `S_int = floor(2^k / z)` is at most `2^27`.
    ///
    /// # Errors
    /// When `z` is below `2^-27` or above `2^50`.
    pub fn for_multiplier(z: NoiseMultiplier) -> Result<Self, GridError> {
        let z = z.get();
        // From the finest grid down: at most 51 exact comparisons per group.
        for k in (0..=Self::MAX_EXPONENT).rev() {
            let quotient = power_of_two(k) / z;
            if quotient >= f64::from(Self::MAX_SENSITIVITY) + 1.0 {
                continue;
            }
            // The division rounds, so the candidate may be too large, but by one at most.
            let candidate = quotient as u32;
            let s_int = if has_enough_noise(candidate, k, z) { candidate } else { candidate - 1 };
            if let Ok(grid) = Self::new(s_int, k) {
                return Ok(grid);
            }
        }
        Err(GridError::Multiplier(z))
    }

    /// `S_int`: the bound on the norm of one record's integer vector.
    #[must_use]
    pub const fn s_int(self) -> u32 {
        self.s_int
    }

    /// `k`: the noise has standard deviation `2^k` in grid units.
    #[must_use]
    pub const fn k(self) -> u8 {
        self.k
    }

    /// The realised noise multiplier `2^k / S_int`, rounded to the nearest f64.
    #[must_use]
    pub fn noise_multiplier(self) -> f64 {
        power_of_two(self.k) / f64::from(self.s_int)
    }
}

/// `2^k`, exactly.
pub(super) const fn power_of_two(k: u8) -> f64 {
    (1u64 << k) as f64
}

/// Whether `2^k / s >= z`, without rounding: `s * z <= 2^k` with `z = mantissa * 2^exponent`.
fn has_enough_noise(s: u32, k: u8, z: f64) -> bool {
    const MANTISSA_BITS: u32 = 52;
    let bits = z.to_bits();
    let biased = ((bits >> MANTISSA_BITS) & 0x7ff) as i32;
    let fraction = bits & ((1 << MANTISSA_BITS) - 1);
    let (mantissa, exponent) = if biased == 0 {
        (fraction, -1074)
    } else {
        (fraction | (1 << MANTISSA_BITS), biased - 1075)
    };
    let product = u128::from(s) * u128::from(mantissa);
    // product * 2^exponent <= 2^k  <=>  product <= 2^(k - exponent).
    let shift = i32::from(k) - exponent;
    match u32::try_from(shift) {
        Ok(shift) if shift >= 128 => true,
        Ok(shift) => product <= 1u128 << shift,
        Err(_) => product == 0,
    }
}

impl TryFrom<RawGrid> for IntegerGrid {
    type Error = GridError;
    fn try_from(raw: RawGrid) -> Result<Self, GridError> {
        Self::new(raw.s_int, raw.k)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn grid(z: f64) -> IntegerGrid {
        IntegerGrid::for_multiplier(NoiseMultiplier::new(z).unwrap()).unwrap()
    }

    #[test]
    fn powers_of_two_are_realised_exactly() {
        assert_eq!(grid(1.0), IntegerGrid { s_int: 1 << 27, k: 27 });
        assert_eq!(grid(0.5), IntegerGrid { s_int: 1 << 27, k: 26 });
        assert_eq!(grid(2f64.powi(-27)), IntegerGrid { s_int: 1 << 27, k: 0 });
        assert_eq!(grid(2f64.powi(50)), IntegerGrid { s_int: 1, k: 50 });
    }

    #[test]
    fn multipliers_without_a_grid_are_refused_by_name() {
        for z in [2f64.powi(-28), 1e-300, 2f64.powi(51), 1e300] {
            let error = IntegerGrid::for_multiplier(NoiseMultiplier::new(z).unwrap()).unwrap_err();
            assert_eq!(error, GridError::Multiplier(z));
        }
        assert!(serde_json::from_str::<IntegerGrid>(r#"{"s_int":134217729,"k":3}"#).is_err());
        assert!(serde_json::from_str::<IntegerGrid>(r#"{"s_int":1,"k":51}"#).is_err());
        assert!(serde_json::from_str::<IntegerGrid>(r#"{"s_int":0,"k":5}"#).is_err());
    }

    /// Whether `2^k / s_int >= z` for `z >= 2^-27`, in integers: `z` is scaled by 2^77 and rounded up.
    /// The product fits 128 bits because `s_int z <= 2^50`.
    fn is_multiplier_at_least(grid: IntegerGrid, z: f64) -> bool {
        let scaled = (z * 2f64.powi(77)) as u128;
        assert!(scaled as f64 == z * 2f64.powi(77) || z < 1.0);
        // Scaling may drop the last bits of z; rounding up makes the check stricter.
        let scaled = scaled + u128::from(scaled as f64 != z * 2f64.powi(77));
        u128::from(grid.s_int) * scaled <= 1u128 << (u32::from(grid.k) + 77)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]
        #[test]
        fn the_realised_multiplier_is_never_below_the_target(e in -26.9f64..24.0) {
            let z = e.exp2();
            let grid = grid(z);
            prop_assert!(is_multiplier_at_least(grid, z), "{z} {grid:?}");
            prop_assert!(grid.s_int >= 1 << 26, "{z} {grid:?}");
            prop_assert!(grid.noise_multiplier() <= z * (1.0 + 2f64.powi(-25)), "{z} {grid:?}");
        }

        #[test]
        fn multipliers_near_a_division_tie_are_on_the_safe_side(s in 1u32..(1 << 27), ulps in -3i64..4) {
            let z = f64::from_bits((2f64.powi(27) / f64::from(s)).to_bits().wrapping_add_signed(ulps));
            let grid = grid(z);
            prop_assert!(is_multiplier_at_least(grid, z), "{z} {grid:?}");
        }
    }

    /// Whether `s * mantissa * 2^exponent <= 2^k`, from the bit length of the product instead of a shift.
    fn has_enough_noise_by_bit_length(s: u32, k: u8, mantissa: u64, exponent: i32) -> bool {
        let product = u128::from(s) * u128::from(mantissa);
        let Some(log2) = product.checked_ilog2() else { return true };
        // 2^(log2 + exponent) <= product * 2^exponent, with equality only for powers of two.
        let log2 = i64::from(log2) + i64::from(exponent);
        log2 < i64::from(k) || log2 == i64::from(k) && product.is_power_of_two()
    }

    #[test]
    fn a_product_is_compared_exactly_for_every_small_number_and_at_every_extreme() {
        for (s, k) in (0..70).flat_map(|s| (0..=12).map(move |k| (s, k))) {
            for (mantissa, exponent) in (1u64..130).flat_map(|m| (-12..=6).map(move |e| (m, e))) {
                let z = mantissa as f64 * 2f64.powi(exponent);
                let expected = has_enough_noise_by_bit_length(s, k, mantissa, exponent);
                assert_eq!(has_enough_noise(s, k, z), expected, "{s} {k} {z}");
            }
        }
        // Every f64 exponent, subnormals included, with the shortest and the longest mantissas.
        let sensitivities = [0, 1, 2, 3, (1 << 27) - 1, 1 << 27, u32::MAX];
        for k in 0..=IntegerGrid::MAX_EXPONENT {
            for biased in 0u64..0x7ff {
                for fraction in [0, 1, 2, (1 << 51) - 1, 1 << 51, (1 << 52) - 2, (1 << 52) - 1] {
                    let z = f64::from_bits(biased << 52 | fraction);
                    let hidden = u64::from(biased > 0) << 52;
                    let exponent = biased.max(1) as i32 - 1075;
                    for s in sensitivities {
                        let mantissa = fraction | hidden;
                        let expected = has_enough_noise_by_bit_length(s, k, mantissa, exponent);
                        assert_eq!(has_enough_noise(s, k, z), expected, "{s} {k} {z:e}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_grid_is_the_finest_that_keeps_the_multiplier_near_every_small_fraction() {
        let add_ulps = |z: f64, ulps| f64::from_bits(z.to_bits().wrapping_add_signed(ulps));
        for (s, k) in (1u32..400).flat_map(|s| [0, 1, 26, 27, 28, 50].map(|k| (s, k))) {
            for ulps in -2..=2 {
                let z = add_ulps(power_of_two(k) / f64::from(s), ulps);
                let Ok(grid) = IntegerGrid::for_multiplier(NoiseMultiplier::new(z).unwrap()) else {
                    assert!(z < 2f64.powi(-27) || z > 2f64.powi(50), "{z} has no grid");
                    continue;
                };
                assert!(
                    has_enough_noise(grid.s_int, grid.k, z),
                    "{z}: {grid:?} has too little noise"
                );
                assert!(
                    !has_enough_noise(grid.s_int + 1, grid.k, z),
                    "{z}: {grid:?} is not the finest"
                );
                let is_finer_grid_possible = grid.k < IntegerGrid::MAX_EXPONENT
                    && !has_enough_noise(IntegerGrid::MAX_SENSITIVITY + 1, grid.k + 1, z);
                assert!(!is_finer_grid_possible, "{z}: {grid:?} is not the finest");
            }
        }
    }
}
