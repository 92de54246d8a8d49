//! The grids of orders that other libraries try.

/// The orders that TensorFlow Privacy's `compute_dp_sgd_privacy` tries.
#[must_use]
pub fn tensorflow_privacy_orders() -> Vec<f64> {
    let low = [1.25, 1.5, 1.75, 2.0, 2.25, 2.5, 3.0, 3.5, 4.0, 4.5];
    let high = [128.0, 256.0, 512.0];
    low.into_iter().chain((5..64).map(f64::from)).chain(high).collect()
}

/// The orders that Opacus tries: 1.1 to 10.9 in tenths, then 12 to 63.
#[must_use]
pub fn opacus_orders() -> Vec<f64> {
    (1..100).map(|x| 1.0 + f64::from(x) / 10.0).chain((12..64).map(f64::from)).collect()
}

/// The orders that dp_accounting tries.
#[must_use]
pub fn dp_accounting_orders() -> Vec<f64> {
    let low = (1..100).map(|x| 1.0 + f64::from(x) / 10.0);
    let high = [128.0, 256.0, 512.0, 1024.0];
    low.chain((11..64).map(f64::from)).chain(high).collect()
}
