//! Division of power series, and products of vectors.

/// Divides a power series by `1 + d_1 x + d_2 x^2 + ...`.
pub(super) fn divide(series: &mut [f64], divisor: &[f64]) {
    let mut rest = series;
    while let Some((value, later)) = std::mem::take(&mut rest).split_first_mut() {
        // Every coefficient is final when it is reached: its part of the later ones is subtracted then.
        for (later, divisor) in later.iter_mut().zip(divisor) {
            *later -= divisor * *value;
        }
        rest = later;
    }
}

/// The sum of the products of corresponding numbers.
pub(super) fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}
