//! Sums and exponentials in a fixed order of operations that the compiler can vectorise.

/// Numbers per step; each lane is a sum of its own.
pub(super) const LANES: usize = 16;

/// The sum of a function of numbers: lane i of every step is added to sum i, then halves of the sums are added up. The
/// order depends on the number of numbers alone.
#[inline(always)]
pub(super) fn sum(numbers: &[f32], value: impl Fn(f32) -> f32) -> f32 {
    let mut lanes = [0f32; LANES];
    let (steps, rest) = numbers.as_chunks::<LANES>();
    for step in steps {
        for (lane, x) in lanes.iter_mut().zip(step) {
            *lane += value(*x);
        }
    }
    for (lane, x) in lanes.iter_mut().zip(rest) {
        *lane += value(*x);
    }
    total(lanes)
}

/// The sum of a function of pairs, in the order of [`sum`].
#[inline(always)]
pub(super) fn sum_of_pairs(a: &[f32], b: &[f32], value: impl Fn(f32, f32) -> f32) -> f32 {
    let mut lanes = [0f32; LANES];
    let ((a_steps, a_rest), (b_steps, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    for (a, b) in a_steps.iter().zip(b_steps) {
        for ((lane, a), b) in lanes.iter_mut().zip(a).zip(b) {
            *lane += value(*a, *b);
        }
    }
    for ((lane, a), b) in lanes.iter_mut().zip(a_rest).zip(b_rest) {
        *lane += value(*a, *b);
    }
    total(lanes)
}

#[inline(always)]
fn total(mut lanes: [f32; LANES]) -> f32 {
    let mut half = LANES / 2;
    while half > 0 {
        let (left, right) = lanes.split_at_mut(half);
        for (left, right) in left.iter_mut().zip(right) {
            *left += *right;
        }
        half /= 2;
    }
    lanes[0]
}

/// The largest number; NaN is ignored.
#[inline(always)]
pub(super) fn largest(numbers: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let (steps, rest) = numbers.as_chunks::<LANES>();
    for step in steps {
        for (lane, &x) in lanes.iter_mut().zip(step) {
            *lane = if x > *lane { x } else { *lane };
        }
    }
    for (lane, &x) in lanes.iter_mut().zip(rest) {
        *lane = if x > *lane { x } else { *lane };
    }
    lanes.into_iter().fold(f32::NEG_INFINITY, |most, x| if x > most { x } else { most })
}

/// `exp(x)` for `x <= 0`, with a relative error below 2^-22; below -87 it is `exp(-87)`. NaN stays NaN.
///
/// `x = n ln 2 + r` with `|r| <= ln(2) / 2`: the Taylor polynomial of degree 7 of `exp(r)`, whose remainder is below
/// 2^-27, times 2^n.
#[inline(always)]
pub(super) fn exp_of_negative(x: f32) -> f32 {
    // 1.5 * 2^23: after adding it, the last bits of a number are its nearest integer.
    const ROUND: f32 = 12_582_912.0;
    // ln 2, with a first part of few enough bits that its products with n are exact.
    const LN_2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];
    let x = if x < -87.0 { -87.0 } else { x };
    let rounded = x.mul_add(std::f32::consts::LOG2_E, ROUND);
    let n = rounded - ROUND;
    let r = n.mul_add(-LN_2[1], n.mul_add(-LN_2[0], x));
    let mut sum = 1.0 / 5040.0;
    for coefficient in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        sum = r.mul_add(sum, coefficient);
    }
    let exponent = rounded.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(127);
    sum * f32::from_bits(exponent << 23)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exponential_is_within_its_error_bound() {
        let mut x = -90.0f32;
        while x <= 0.0 {
            let expected = f64::from(x.max(-87.0)).exp();
            let error = (f64::from(exp_of_negative(x)) / expected - 1.0).abs();
            assert!(error < 2f64.powi(-22), "{x}: {error}");
            x += 1.7e-4;
        }
        assert_eq!(exp_of_negative(0.0), 1.0);
        assert_eq!(exp_of_negative(-0.0), 1.0);
        assert!(exp_of_negative(f32::NAN).is_nan());
        assert!(exp_of_negative(f32::NEG_INFINITY) < 2e-38);
    }

    #[test]
    fn sums_and_the_largest_number_cover_every_element() {
        for count in 1..70 {
            let numbers: Vec<f32> = (0..count).map(|i| (i * 37 % 71) as f32 - 30.0).collect();
            assert_eq!(sum(&numbers, |x| x), numbers.iter().sum::<f32>());
            let squares: f32 = numbers.iter().map(|x| x * x).sum();
            assert_eq!(sum_of_pairs(&numbers, &numbers, |a, b| a * b), squares);
            assert_eq!(largest(&numbers), numbers.iter().copied().fold(f32::MIN, f32::max));
        }
    }
}
