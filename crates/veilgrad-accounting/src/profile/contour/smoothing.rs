//! Contours where characteristic functions hardly decay: few rounds, or rates so small that hardly anybody is
//! ever sampled.

use super::inversion::{CHORD_DEVIATIONS, Contour};
use crate::Composition;
use crate::cumulant::{Cumulant, Jet, Smoothing, payoff};
use crate::number::{bisect, grow};
use crate::pair::Direction;

/// What counts as infinite in all rounds together, as a part of delta.
const TRUNCATED_SHARE: f64 = 1e-6;
/// About how far smoothing moves the lower bound of epsilon, relatively; the upper one moves by less than a
/// hundredth of that. First for a rough idea, then for bounds: the finest that there is work for.
const ROUGH: f64 = 1e-1;
const FINE: [f64; 3] = [5e-5, 5e-4, 5e-3];

/// A contour near the epsilon of a delta, and that epsilon, about.
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
        let contour = near(composition, direction, tail, epsilon, slope, ROUGH)?;
        (epsilon, slope) = meets(&contour, delta, epsilon, slope)?;
    }
    let finest = |close| near(composition, direction, tail, epsilon, slope, close);
    Some((FINE.into_iter().find_map(finest)?, epsilon))
}

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
        let contour = near(composition, direction, tail(delta), epsilon, slope, ROUGH)?;
        delta = contour.upper(epsilon).min(1.0);
        slope = slope_at(&contour, epsilon, slope);
    }
    FINE.into_iter()
        .find_map(|close| near(composition, direction, tail(delta), epsilon, slope, close))
}

fn near(
    composition: &Composition,
    direction: Direction,
    tail: f64,
    epsilon: f64,
    slope: f64,
    close: f64,
) -> Option<Contour> {
    // Read at a distance of CHORD_DEVIATIONS deviations, a chord is off by the square of that.
    let steep = CHORD_DEVIATIONS * (1.0 + slope);
    let variance = close * (1.0 + slope * epsilon) / (steep * steep);
    let smoothing = Smoothing { tail, variance };
    let mut cumulant = Cumulant::smoothed(composition, direction, smoothing);
    let tilt = cumulant.best_slope(epsilon, payoff);
    Contour::new(composition, direction, &mut cumulant, tilt, smoothing)
}

/// Where the upper bound falls to `delta`, about, and how steep its log is there.
fn meets(contour: &Contour, delta: f64, guess: f64, slope: f64) -> Option<(f64, f64)> {
    let above = |epsilon: f64| contour.upper(epsilon) > delta;
    let (_, high) = bisect(grow(guess.max(1.0 / slope), 1.5, above), 20, above);
    high.is_finite().then(|| (high, slope_at(contour, high, slope)))
}

fn slope_at(contour: &Contour, epsilon: f64, slope: f64) -> f64 {
    let step = 0.1 / (1.0 + slope);
    let log = |epsilon: f64| contour.upper(epsilon).ln();
    let found = (log(epsilon) - log(epsilon + step)) / step;
    if found.is_finite() && found > 0.0 { found } else { slope }
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

    /// Smoothing that is far too strong makes bounds wide, and never wrong.
    #[test]
    fn what_smoothing_costs_is_counted() {
        for adjacency in [Adjacency::AddRemove, Adjacency::ReplaceOne] {
            let rounds = rounds(0.02, 0.8, 300, adjacency);
            for direction in [Direction::Remove, Direction::Add] {
                for epsilon in [0.5, 2.0, 4.0] {
                    let exact = delta_with(&rounds, direction, epsilon, Smoothing::default());
                    assert!(exact.upper - exact.lower < 1e-8 * exact.upper);
                    for (part, variance) in
                        [(1e-6, 1e-8), (0.0, 1e-4), (0.0, 1e-3), (0.1, 0.0), (0.5, 1e-6)]
                    {
                        let smoothing = Smoothing { tail: part * exact.upper / 300.0, variance };
                        let found = delta_with(&rounds, direction, epsilon, smoothing);
                        let what = format!("{adjacency} {direction:?} {epsilon} {smoothing:?}");
                        assert!(found.lower <= exact.upper, "{what}: {found:?} {exact:?}");
                        assert!(found.upper >= exact.lower, "{what}: {found:?} {exact:?}");
                        let width = (found.upper - found.lower) / exact.upper;
                        // As wide as they must be, and not wider than was planned.
                        let (least, most) = match (part, variance) {
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
    /// program, good to 1e-8.
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
