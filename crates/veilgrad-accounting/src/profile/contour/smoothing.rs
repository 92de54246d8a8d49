//! Smoothed contours, for characteristic functions that hardly decay: those of few rounds, or of sampling rates so small
//! that a record is hardly ever sampled.

use super::inversion::{CHORD_DEVIATIONS, Contour};
use crate::Composition;
use crate::cumulant::{Cumulant, Jet, Smoothing, payoff};
use crate::number::{bisect, grow};
use crate::pair::Direction;

/// Losses that count as infinite have at most this share of delta as their probability in all rounds together.
const TRUNCATED_SHARE: f64 = 1e-6;
/// The approximate relative shift of the lower bound on epsilon by smoothing; the upper bound shifts by less than a hundredth
/// of that. ROUGH is for locating epsilon. For the bounds, the first of FINE that the work allowance permits is used.
const ROUGH: f64 = 1e-1;
const FINE: [f64; 3] = [5e-5, 5e-4, 5e-3];

/// A contour for the epsilon at `delta`, and an estimate of that epsilon.
pub(crate) fn for_delta(
    composition: &Composition,
    direction: Direction,
    delta: f64,
) -> Option<(Contour, f64)> {
    let tail = delta * TRUNCATED_SHARE / composition.rounds();
    let mut cumulant =
        Cumulant::smoothed(composition, direction, Smoothing { tail, variance: 0.0 });
    let extra = |tilt: f64| {
        let payoff = payoff(tilt);
        Jet { value: payoff.value - delta.ln(), ..payoff }
    };
    let tilt = cumulant.best_ratio(extra);
    let mut epsilon = ((cumulant.at(tilt).value + extra(tilt).value) / tilt).max(0.0);
    let mut slope = tilt;
    for _ in 0..2 {
        let contour = contour_near(composition, direction, tail, epsilon, slope, ROUGH)?;
        (epsilon, slope) = crossing(&contour, delta, epsilon, slope)?;
    }
    let with_shift = |shift| contour_near(composition, direction, tail, epsilon, slope, shift);
    Some((FINE.into_iter().find_map(with_shift)?, epsilon))
}

/// A contour for delta at `epsilon`.
pub(crate) fn for_epsilon(
    composition: &Composition,
    direction: Direction,
    epsilon: f64,
) -> Option<Contour> {
    let mut cumulant = Cumulant::new(composition, direction);
    let tilt = cumulant.best_slope(epsilon, payoff);
    let bound = cumulant.at(tilt).value + payoff(tilt).value - tilt * epsilon;
    let (mut delta, mut slope) = (bound.exp().min(1.0), tilt);
    let tail = |delta: f64| (delta * TRUNCATED_SHARE / composition.rounds()).max(1e-290);
    for _ in 0..2 {
        let contour = contour_near(composition, direction, tail(delta), epsilon, slope, ROUGH)?;
        delta = contour.upper(epsilon).min(1.0);
        slope = slope_at(&contour, epsilon, slope);
    }
    FINE.into_iter()
        .find_map(|shift| contour_near(composition, direction, tail(delta), epsilon, slope, shift))
}

/// A contour for epsilons near `epsilon`, where the log of delta has about this slope; `shift` is the relative shift of
/// epsilon that smoothing may cause.
fn contour_near(
    composition: &Composition,
    direction: Direction,
    tail: f64,
    epsilon: f64,
    slope: f64,
    shift: f64,
) -> Option<Contour> {
    // The error of a chord grows with the square of its length, which is CHORD_DEVIATIONS standard deviations.
    let steepness = CHORD_DEVIATIONS * (1.0 + slope);
    let variance = shift * (1.0 + slope * epsilon) / (steepness * steepness);
    let smoothing = Smoothing { tail, variance };
    let mut cumulant = Cumulant::smoothed(composition, direction, smoothing);
    let tilt = cumulant.best_slope(epsilon, payoff);
    Contour::new(composition, direction, &mut cumulant, tilt, smoothing)
}

/// The approximate epsilon at which the upper bound falls to `delta`, and minus the slope of its log there.
fn crossing(contour: &Contour, delta: f64, guess: f64, slope: f64) -> Option<(f64, f64)> {
    let is_left = |epsilon: f64| contour.upper(epsilon) > delta;
    let (_, high) = bisect(grow(guess.max(1.0 / slope), 1.5, is_left), 20, is_left);
    high.is_finite().then(|| (high, slope_at(contour, high, slope)))
}

/// Minus the slope of the log of the upper bound, by a difference; `fallback` if that is not positive and finite.
fn slope_at(contour: &Contour, epsilon: f64, fallback: f64) -> f64 {
    let step = 0.1 / (1.0 + fallback);
    let log = |epsilon: f64| contour.upper(epsilon).ln();
    let found = (log(epsilon) - log(epsilon + step)) / step;
    if found.is_finite() && found > 0.0 { found } else { fallback }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Interval;
    use crate::profile::certified::DeltaBounds;
    use veilgrad_events::{Adjacency, NoiseMultiplier, SampleRate};

    fn rounds(q: f64, z: f64, count: u64, adjacency: Adjacency) -> Composition {
        let (rate, noise) = (SampleRate::new(q).unwrap(), NoiseMultiplier::new(z).unwrap());
        Composition::poisson(rate, noise, count, adjacency).unwrap()
    }

    fn delta_with(
        rounds: &Composition,
        direction: Direction,
        epsilon: f64,
        smoothing: Smoothing,
    ) -> Interval {
        let mut cumulant = Cumulant::smoothed(rounds, direction, smoothing);
        let tilt = cumulant.best_slope(epsilon, payoff);
        let contour = Contour::new(rounds, direction, &mut cumulant, tilt, smoothing);
        contour.unwrap().delta(epsilon)
    }

    #[test]
    fn too_much_smoothing_makes_bounds_wide_and_never_wrong() {
        for adjacency in [Adjacency::AddRemove, Adjacency::ReplaceOne] {
            let rounds = rounds(0.02, 0.8, 300, adjacency);
            for direction in [Direction::Remove, Direction::Add] {
                for epsilon in [0.5, 2.0, 4.0] {
                    let exact = delta_with(&rounds, direction, epsilon, Smoothing::default());
                    assert!(exact.upper - exact.lower < 1e-8 * exact.upper);
                    for (share, variance) in
                        [(1e-6, 1e-8), (0.0, 1e-4), (0.0, 1e-3), (0.1, 0.0), (0.5, 1e-6)]
                    {
                        let smoothing = Smoothing { tail: share * exact.upper / 300.0, variance };
                        let found = delta_with(&rounds, direction, epsilon, smoothing);
                        let what = format!("{adjacency} {direction:?} {epsilon} {smoothing:?}");
                        assert!(found.lower <= exact.upper, "{what}: {found:?} {exact:?}");
                        assert!(found.upper >= exact.lower, "{what}: {found:?} {exact:?}");
                        let width = (found.upper - found.lower) / exact.upper;
                        // At least as wide as the smoothing requires, and not much wider.
                        let (least, most) = match (share, variance) {
                            (_, 1e-8) => (0.0, 1e-2),
                            (_, 1e-4 | 1e-3) => (1e-4, 50.0),
                            _ => (0.0, 2.0),
                        };
                        assert!(least <= width && width <= most, "{what}: {width}");
                    }
                }
            }
        }
    }

    /// At tiny sampling rates the smoothed contour encloses the true epsilon; reference values are from an independent
    /// program, accurate to 1e-8.
    #[test]
    fn rarely_sampled_rounds_are_enclosed_closely() {
        for (q, z, count, delta, exact) in [
            (1e-6, 0.4, 1_000_000, 1e-9, 3.818_689_69),
            (1e-6, 1.0, 1_000_000, 1e-8, 0.005_247_6),
            (1e-5, 1.0, 10_000_000, 1e-8, 0.196_42),
        ] {
            let rounds = rounds(q, z, count, Adjacency::AddRemove);
            let (contour, guess) = for_delta(&rounds, Direction::Remove, delta).unwrap();
            assert!((guess / exact - 1.0).abs() < 0.01, "{q} {z}: {guess} {exact}");
            let found = contour.delta(exact);
            assert!((found.upper / delta - 1.0).abs() < 3e-3, "{q} {z}: {found:?}");
            assert!((found.lower / delta - 1.0).abs() < 3e-3, "{q} {z}: {found:?}");
            assert!(found.lower <= found.upper, "{q} {z}: {found:?}");
        }
    }
}
