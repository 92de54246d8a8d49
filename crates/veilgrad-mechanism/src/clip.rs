//! The clipping factor of a record, and the certificate of its exact integer norm.

use veilgrad_events::{ClipNorm, IntegerGrid, WeightBound};

/// How a record is scaled.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum ClipRule {
    /// Clip, by `min(1, S / norm)`: records longer than `S` are shortened, others stay.
    Shorten,
    /// Normalise, by `S / norm`: every record gets norm `S`; a zero record stays zero.
    Normalise,
}

/// Margin for rounding between the factor and the integers: the product `x_j c` may round up by a relative 2^-24, so
/// a factor smaller by 2^-23 keeps the norm below `S_int`. (Privacy follows from the certificate; this margin only
/// keeps it from failing.)
const MARGIN: f64 = 1.0 - 1.0 / (1u64 << 23) as f64 - 1.0 / (1u64 << 40) as f64;

/// The clipping factor from real coordinates to grid units, for a record whose group has this squared norm over
/// `dimension` coordinates (after joint scaling). Rounding to integers may add up to `slack` to its norm.
pub(crate) fn factor(
    rule: ClipRule,
    clip: ClipNorm,
    grid: IntegerGrid,
    squared_norm: f64,
    dimension: usize,
    slack: f64,
) -> f64 {
    let s_int = f64::from(grid.s_int());
    let rounding = (dimension as f64 + 8.0) * f64::EPSILON;
    let norm_up = squared_norm.sqrt() * (1.0 + rounding);
    let room = if slack < s_int { s_int - slack } else { 0.0 };
    let fit = room / norm_up * MARGIN;
    let factor = match rule {
        ClipRule::Shorten => fit.min(s_int / clip.get()),
        ClipRule::Normalise => fit,
    };
    // For a zero record `fit` is infinite; any finite factor keeps it zero.
    factor.min(f64::from(f32::MAX))
}

/// `weight / bound`, clamped to [0, 1]; 0 for a weight that is not finite.
pub(crate) fn relative_weight(weight: f64, bound: WeightBound) -> f64 {
    let relative = if weight.is_finite() { weight / bound.get() } else { 0.0 };
    if relative > 0.0 { relative.min(1.0) } else { 0.0 }
}

/// Rounds down to f32: the largest f32 that is at most `value`, for `0 <= value <= f32::MAX`.
#[must_use]
pub fn round_down(value: f64) -> f32 {
    let nearest = value as f32;
    if f64::from(nearest) > value { nearest.next_down() } else { nearest }
}

/// The certificate: whether an exact squared norm is at most the squared sensitivity.
pub(crate) fn certified(grid: IntegerGrid, squared_norm: u128) -> bool {
    squared_norm <= u128::from(grid.s_int()) * u128::from(grid.s_int())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_down_never_rounds_up() {
        for value in [0.0, 1.0, 1.0 + 1e-9, 0.1, 1e-46, 1e-40, f64::from(f32::MAX)] {
            let down = round_down(value);
            assert!(f64::from(down) <= value);
            assert!(f64::from(down.next_up()) > value);
        }
    }

    #[test]
    fn weights_are_clamped_and_those_that_are_not_finite_count_nothing() {
        let bound = WeightBound::new(4.0).unwrap();
        for (weight, expected) in [
            (2.0, 0.5),
            (9.0, 1.0),
            (f64::MAX, 1.0),
            (-1.0, 0.0),
            (f64::NAN, 0.0),
            (f64::INFINITY, 0.0),
        ] {
            assert_eq!(relative_weight(weight, bound), expected);
        }
    }

    #[test]
    fn a_factor_with_slack_leaves_room_for_rounding() {
        let (grid, clip) = (IntegerGrid::new(1 << 20, 1).unwrap(), ClipNorm::new(2.0).unwrap());
        let s_int = f64::from(grid.s_int());
        let factor =
            |squared, slack| super::factor(ClipRule::Shorten, clip, grid, squared, 3, slack);
        // Short records keep their norm, long ones are clipped to the bound minus the slack.
        assert_eq!(factor(1.0, 5.0), s_int / 2.0);
        let long = factor(1e6, 1000.0);
        assert!(long * 1e3 <= s_int - 1000.0 && long * 1e3 > (s_int - 1000.0) * (1.0 - 1e-6));
        assert_eq!(factor(1e6, s_int), 0.0);
        assert_eq!(factor(1e6, f64::NAN), 0.0);
    }

    #[test]
    fn a_certificate_needs_a_norm_within_the_sensitivity() {
        let grid = IntegerGrid::new(3, 1).unwrap();
        assert!(certified(grid, 9));
        assert!(!certified(grid, 10));
    }

    #[test]
    fn every_small_vector_is_certified_exactly_when_it_is_not_longer_than_the_sensitivity() {
        for s in 1u32..=24 {
            let grid = IntegerGrid::new(s, 1).unwrap();
            let within = s as i64 + 2;
            for (a, b) in (-within..=within).flat_map(|a| (0..=within).map(move |b| (a, b))) {
                let squares = (a * a + b * b) as u128;
                // In f64: the square root of an integer below 2^53 does not round across an integer.
                let short = (squares as f64).sqrt() <= f64::from(s);
                assert_eq!(certified(grid, squares), short, "({a}, {b}) against {s}");
            }
        }
        // The largest sensitivity, one more, and squares that overflow 64 bits.
        let grid = IntegerGrid::new(IntegerGrid::MAX_SENSITIVITY, 27).unwrap();
        assert!(certified(grid, 1 << 54) && !certified(grid, (1 << 54) + 1));
        assert!(!certified(grid, 1 << 64) && !certified(grid, (1 << 64) + 1));
        assert!(!certified(grid, u128::MAX));
    }
}
