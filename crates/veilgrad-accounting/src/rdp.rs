//! Rényi differential privacy of a composition, at any real order, and its epsilon.

use veilgrad_events::{Delta, Epsilon};

use crate::cumulant::{Cumulant, Jet, cumulant_step_by_step, ratio_slope};
use crate::pair::Direction;
use crate::{Composition, Step, Unsupported};

const LOWEST_TILT: f64 = 1e-3;
/// Above this value a step's cumulant is computed by the quick quadrature, whose error bound of 1e-12 then adds at most
/// 1e-6 of it.
const QUICK: f64 = 1e-6;
/// Tolerance for the log of `order - 1`: epsilon is then within 1e-9 of the best order's, even where moments grow
/// fastest (its second derivative there is below 1e4).
const CLOSE_TILT: f64 = 1e-7;

/// The Rényi divergence of a composition at order `alpha > 1`, rounded up; infinite where it cannot be
/// computed.
///
/// # Guarantee
/// An upper bound on the divergence in both directions. For Poisson samples, removing a record has the larger one
/// (Mironov, Talwar, Zhang 2019); the other dominating pairs are symmetric.
pub fn divergence(composition: &Composition, alpha: f64) -> f64 {
    if alpha.is_nan() || alpha <= 1.0 {
        return f64::INFINITY;
    }
    let tilt = alpha - 1.0;
    let value = match composition.has_surrogates() {
        true => cumulant_step_by_step(composition, Direction::Remove, tilt).value,
        false => Cumulant::new(composition, Direction::Remove).at(tilt).value,
    };
    value / tilt
}

/// The same for one step, in a few microseconds where its divergence is not tiny. Meters call it for every new step.
pub(crate) fn step_divergence(step: Step, alpha: f64) -> f64 {
    let composition = Composition::of_step(step);
    if alpha > 1.0 {
        let quick = cumulant_step_by_step(&composition, Direction::Remove, alpha - 1.0).value;
        if quick > QUICK {
            return quick / (alpha - 1.0);
        }
    }
    divergence(&composition, alpha)
}

/// An epsilon and the order that gave it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RdpEpsilon {
    /// The bound.
    pub epsilon: Epsilon,
    /// The order at which it holds.
    pub order: f64,
}

/// The epsilon that `K(tilt)`, `tilt = order - 1`, gives for `delta` (Canonne, Kamath, Steinke 2020,
/// proposition 12), rounded up.
fn epsilon_at(k: f64, tilt: f64, delta: f64) -> f64 {
    // Delta at epsilon 0 is the total variation, which is at most sqrt(1 - e^-r) (Bretagnolle, Huber).
    if delta * delta * (1.0 - 1e-14) > -libm::expm1(-k / tilt) {
        return 0.0;
    }
    let rest = conversion(tilt).value - delta.ln();
    let epsilon = (k + rest) / tilt + 1e-15 * ((k + rest.abs()) / tilt);
    if epsilon.is_nan() { f64::INFINITY } else { epsilon }
}

/// `tilt log(1 - 1/order) - log(order)` with `order = 1 + tilt`: the term that the conversion to (epsilon, delta) adds
/// to K.
pub(crate) fn conversion(tilt: f64) -> Jet {
    let order = 1.0 + tilt;
    Jet {
        value: -tilt * libm::log1p(1.0 / tilt) - libm::log1p(tilt),
        first: -libm::log1p(1.0 / tilt),
        second: 1.0 / tilt - 1.0 / order,
    }
}

/// The RDP epsilon: the smallest over all real orders.
///
/// # Guarantee
/// Any order gives a valid bound; the search only looks for the best one. `epsilon(order)` falls and then
/// rises, because `K` and the conversion term are convex. A negative bound is reported as 0.
///
/// # Errors
/// When no order gives a finite bound.
pub fn epsilon(composition: &Composition, delta: Delta) -> Result<RdpEpsilon, Unsupported> {
    let composition = composition.above();
    if let Some(sample) = composition.sample() {
        // The best order for a sample of the steps, then one Newton step with all of them.
        let mut tilt = epsilon(sample, delta)?.order - 1.0;
        let (mut best, mut order) = (f64::INFINITY, f64::NAN);
        for _ in 0..2 {
            let k = cumulant_step_by_step(composition, Direction::Remove, tilt);
            let bound = epsilon_at(k.value, tilt, delta.get());
            if bound < best {
                (best, order) = (bound, 1.0 + tilt);
            }
            let conversion = conversion(tilt);
            let extra = Jet { value: conversion.value - delta.get().ln(), ..conversion };
            let step = ratio_slope(tilt, k, extra) / (tilt * (k.second + extra.second));
            tilt -= if step.is_finite() { step.clamp(-tilt, 0.5 * tilt) } else { 0.0 };
        }
        return finish(best, order);
    }
    let mut cumulant = Cumulant::new(composition, Direction::Remove);
    let (mut best, mut order) = (f64::INFINITY, f64::NAN);
    let mut try_tilt = |tilt: f64, k: f64| {
        let bound = epsilon_at(k, tilt, delta.get());
        if bound < best {
            (best, order) = (bound, 1.0 + tilt);
        }
    };
    // Divergence increases with the order, so the lowest order is the best one to show that epsilon is 0.
    try_tilt(LOWEST_TILT, cumulant.at(LOWEST_TILT).value);
    cumulant.increasing_root(CLOSE_TILT, |tilt, k| {
        try_tilt(tilt, k.value);
        let conversion = conversion(tilt);
        let extra = Jet { value: conversion.value - delta.get().ln(), ..conversion };
        ratio_slope(tilt, k, extra)
    });
    finish(best, order)
}

/// The smallest epsilon over these orders: what libraries with a fixed grid of orders report.
///
/// # Errors
/// When no order above 1 gives a finite bound.
pub fn epsilon_on_orders(
    composition: &Composition,
    delta: Delta,
    orders: &[f64],
) -> Result<RdpEpsilon, Unsupported> {
    let mut cumulant = Cumulant::new(composition, Direction::Remove);
    let (mut best, mut best_order) = (f64::INFINITY, f64::NAN);
    for order in orders.iter().copied().filter(|order| *order > 1.0) {
        let tilt = order - 1.0;
        let value = match composition.has_surrogates() {
            true => cumulant_step_by_step(composition, Direction::Remove, tilt).value,
            false => cumulant.at(tilt).value,
        };
        let bound = epsilon_at(value, tilt, delta.get());
        if bound < best {
            (best, best_order) = (bound, order);
        }
    }
    finish(best, best_order)
}

/// The orders that TensorFlow Privacy's `compute_dp_sgd_privacy` tries.
pub fn tensorflow_privacy_orders() -> Vec<f64> {
    let low = [1.25, 1.5, 1.75, 2.0, 2.25, 2.5, 3.0, 3.5, 4.0, 4.5];
    let high = [128.0, 256.0, 512.0];
    low.into_iter().chain((5..64).map(f64::from)).chain(high).collect()
}

/// The orders that Opacus tries: 1.1 to 10.9 in tenths, then 12 to 63.
pub fn opacus_orders() -> Vec<f64> {
    (1..100).map(|x| 1.0 + f64::from(x) / 10.0).chain((12..64).map(f64::from)).collect()
}

/// The orders that dp_accounting tries.
pub fn dp_accounting_orders() -> Vec<f64> {
    let low = (1..100).map(|x| 1.0 + f64::from(x) / 10.0);
    let high = [128.0, 256.0, 512.0, 1024.0];
    low.chain((11..64).map(f64::from)).chain(high).collect()
}

fn finish(bound: f64, order: f64) -> Result<RdpEpsilon, Unsupported> {
    let epsilon = Epsilon::new(bound.max(0.0))
        .map_err(|_| Unsupported::new("no order has a finite Rényi divergence"))?;
    Ok(RdpEpsilon { epsilon, order })
}

/// The smallest delta over all orders at `epsilon`; at most 1.
pub fn delta(composition: &Composition, epsilon: Epsilon) -> f64 {
    if composition.steps().is_empty() {
        return 0.0;
    }
    let mut cumulant = Cumulant::new(composition, Direction::Remove);
    let tilt = cumulant.best_slope(epsilon.get(), conversion);
    // An upper bound must not underflow to 0.
    let delta = delta_of(cumulant.at(tilt).value, tilt, epsilon.get()).max(f64::MIN_POSITIVE);
    delta.min(total_variation(composition))
}

/// An upper bound on the total variation distance of the composition's dominating pair, in both directions: on delta at
/// epsilon 0.
///
/// # Guarantee
/// By the inequalities of Pinsker and of Bretagnolle and Huber. Both need the divergence at order 1, which the one at
/// an order just above 1 bounds from above.
pub fn total_variation(composition: &Composition) -> f64 {
    if composition.steps().is_empty() {
        return 0.0;
    }
    let divergence = divergence(composition.above(), 1.0 + LOWEST_TILT).max(f64::MIN_POSITIVE);
    let bound = (0.5 * divergence).min(-libm::expm1(-divergence)).sqrt() * (1.0 + 1e-14);
    if bound.is_nan() { 1.0 } else { bound.min(1.0) }
}

/// The delta that `K(tilt) = value` gives at `epsilon`, rounded up.
fn delta_of(value: f64, tilt: f64, epsilon: f64) -> f64 {
    let exponent = value + conversion(tilt).value - tilt * epsilon;
    let delta = (exponent + 1e-14 * exponent.abs()).exp() * (1.0 + 1e-14);
    if delta.is_nan() { 1.0 } else { delta.min(1.0) }
}

/// A quick upper bound on delta: the Rényi bound at orders `1 + 2^k` for k from -2 to 11, computed as needed and cached.
pub(crate) struct Orders {
    cumulant: Cumulant,
    values: Vec<f64>,
}

impl Orders {
    pub(crate) fn new(composition: &Composition, direction: Direction) -> Self {
        Self { cumulant: Cumulant::new(composition, direction), values: Vec::new() }
    }

    /// Whether the bound at one of these orders is at most `delta` at `epsilon`.
    pub(crate) fn prove(&mut self, epsilon: f64, delta: f64) -> bool {
        let mut last = f64::INFINITY;
        for (index, power) in (-2..12).enumerate() {
            let tilt = f64::from(power).exp2();
            let value = match self.values.get(index) {
                Some(value) => *value,
                None => {
                    let value = self.cumulant.at(tilt).value;
                    self.values.push(value);
                    value
                }
            };
            let found = delta_of(value, tilt, epsilon);
            // The bound is convex in the order: once it rises it does not fall again.
            if found <= delta || found > last {
                return found <= delta;
            }
            last = found;
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Sampled;

    #[test]
    fn the_quick_divergence_of_a_step_is_never_below_the_exact_one_and_close() {
        for q in [1e-9, 1e-4, 0.01, 0.3, 0.99] {
            for z in [0.005, 0.3, 1.0, 8.0, 100.0] {
                for sampled in [Sampled::Poisson(q), Sampled::PoissonReplaced(q)] {
                    for order in [1.1, 2.0, 7.5, 64.0] {
                        let step = Step { sampled, z };
                        let exact = divergence(&Composition::of_step(step), order);
                        let found = step_divergence(step, order);
                        let what = format!("{step:?} {order}: {found} {exact}");
                        assert!(found >= exact * (1.0 - 1e-11), "{what}");
                        assert!(found <= exact * (1.0 + 1e-5), "{what}");
                    }
                }
            }
        }
    }
}
