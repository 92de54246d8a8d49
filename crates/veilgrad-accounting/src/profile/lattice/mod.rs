//! The privacy profile from privacy loss distributions on a lattice, tilted and composed by Fourier transform, with bounds
//! on every numerical error.
//!
//! Upper bounds come from connect-the-dots, lower bounds from merged outputs. The error of both is of second order in the
//! step of the lattice, which is refined until the bounds agree.

mod allocation;
mod convolution;
mod discretisation;
mod dominating;
mod grid;
mod intensity;
mod inversion;
mod rare;
mod spectrum;

pub(crate) use convolution::ProfileQuestion;
pub(crate) use rare::lattice as rare_lattice;

use crate::composition::grouping::MOST_EPOCHS;
use crate::cumulant::payoff;
use crate::number::{bisect, grow};
use crate::pair::Direction;
use crate::profile::certified::DeltaBounds;
use crate::{Composition, Interval, Step, work};

use allocation::EpochLaw;
use convolution::{LossDistributions, Split, TRANSFORM, TRUNCATED_SHARE, Window};
use dominating::DominatingPair;
use grid::Rounded;
use inversion::ComposedLoss;

/// The longest Fourier transform, in lattice points.
pub(crate) const LONGEST: usize = 1 << 20;
/// The longest one for the points of a whole profile, whose bounds may be wider.
pub(crate) const SKETCHED: usize = 1 << 15;
const SHORTEST: usize = 1 << 12;
/// The grid on which tilt and window are chosen: its step and its density. Away from the bulk of the losses, the spacing of
/// points is their distance from the bulk divided by the density.
const SKETCH: (f64, i64) = (1e-10, 10);
/// The density of the grids that are composed.
const DENSITY: i64 = 512;
/// The log of the probability that may wrap around on either side, as a share of delta: about 8e-10.
const WRAPPED: f64 = -21.0;

/// The distribution of the total loss in one direction, on a lattice. Its bounds are tight near the epsilon or delta that the
/// lattice was made for.
pub(crate) struct Lattice {
    upper: ComposedLoss,
    lower: ComposedLoss,
    /// The tilt, and the approximate epsilon that the lattice was made for.
    pub(crate) tilt: f64,
    pub(crate) epsilon: f64,
    /// Whether the lattice is that of steps that cost more, so that only its upper bounds hold.
    is_only_above: bool,
}

impl Lattice {
    /// Refines lattices of up to `longest` points until the relative gap between the bounds on epsilon is at most
    /// `tolerance`, or the work allowance is used up; `None` if no upper bound is finite.
    pub(crate) fn new(
        composition: &Composition,
        direction: Direction,
        question: ProfileQuestion,
        tolerance: f64,
        longest: usize,
    ) -> Option<Self> {
        // Laws of more than two epochs take at most three quarters of the work, and are those of fewer epochs if there are too
        // many.
        let work_of_laws = |rounds: &[u64]| -> u64 {
            rounds.iter().fold(0, |sum: u64, t| sum.saturating_add(EpochLaw::work_of_both(*t)))
        };
        let fits = |rounds: &[u64]| {
            let is_affordable = work_of_laws(rounds) <= work::left() / 4 * 3;
            rounds.len() <= 2 || (rounds.len() <= MOST_EPOCHS && is_affordable)
        };
        let epochs: Vec<u64> =
            composition.steps().iter().filter_map(|(step, _)| step.epoch_rounds()).collect();
        let grouped = match fits(&epochs) {
            true => None,
            false => Some(composition.with_fewer_epochs(fits)?),
        };
        let is_only_above = grouped.is_some();
        let composition = grouped.as_ref().unwrap_or(composition);
        // Every distinct step has its own transform.
        let share = (4 * LONGEST / composition.steps().len().max(1)).next_power_of_two();
        let longest = longest.min(share).max(4 * SHORTEST);
        // Both bounds need a forward and an inverse transform.
        let is_affordable = |points: usize| {
            let points = points as u64 * composition.steps().len() as u64;
            2 * TRANSFORM * points <= work::left()
        };
        if !is_affordable(SHORTEST) {
            return None;
        }
        let pairs = pairs(composition, direction, question);
        let mut plan = Plan::new(&pairs, question, None)?;
        let mut points = SHORTEST;
        let mut last_gap = f64::INFINITY;
        let mut coarser_lower: Option<ComposedLoss> = None;
        loop {
            let mut lattice = plan.lattice(&pairs, points);
            let mut epsilon = plan.epsilon;
            if let ProfileQuestion::Delta(delta) = question {
                epsilon = lattice.crossing(delta, epsilon);
            }
            // Merged cells sometimes fit a coarser grid better.
            if let Some(lower) = coarser_lower.take()
                && lower.delta(epsilon).lower > lattice.lower.delta(epsilon).lower
            {
                lattice.lower = lower;
            }
            let bounds = lattice.bounds(epsilon);
            // The relative gap between the bounds on epsilon, approximately.
            let gap = (bounds.upper / bounds.lower).ln() / (1.0 + plan.tilt * epsilon);
            let is_finite = bounds.upper.is_finite();
            let as_planned = is_finite && (epsilon - plan.epsilon).abs() <= 0.02 * epsilon;
            let is_finest = 2 * points > longest || !is_affordable(2 * points);
            // If a lattice as planned is not much tighter than the one before, a finer one will not help.
            let is_done = gap <= tolerance || (as_planned && gap > 0.8 * last_gap) || is_finest;
            if is_done && (as_planned || points > SHORTEST || !is_affordable(2 * points)) {
                return is_finite.then_some(Self { epsilon, is_only_above, ..lattice });
            }
            last_gap = if as_planned { gap } else { f64::INFINITY };
            coarser_lower = Some(lattice.lower);
            if is_finite && !as_planned {
                plan = Plan::new(&pairs, question, Some(epsilon)).unwrap_or(plan);
            }
            plan.epsilon = epsilon;
            // The gap shrinks with the square of the number of points.
            let growth =
                if gap.is_nan() { 16.0 } else { (1.5 * gap / tolerance).sqrt().clamp(2.0, 16.0) };
            points = ((points as f64 * growth) as usize).next_power_of_two().min(longest);
            while points > SHORTEST && !is_affordable(points) {
                points /= 2;
            }
        }
    }

    /// Bounds on delta of the steps of which this is the lattice.
    fn bounds(&self, epsilon: f64) -> Interval {
        Interval { lower: self.lower.delta(epsilon).lower, upper: self.upper.delta(epsilon).upper }
    }

    /// The approximate epsilon at which the upper bound falls to `delta`.
    fn crossing(&self, delta: f64, guess: f64) -> f64 {
        let is_left = |epsilon: f64| self.delta(epsilon).upper > delta;
        let (_, high) = grow(guess.max(1.0 / self.tilt), 1.5, is_left);
        bisect((0.0, high), 30, is_left).1
    }
}

impl DeltaBounds for Lattice {
    fn delta(&self, epsilon: f64) -> Interval {
        let bounds = self.bounds(epsilon);
        if self.is_only_above { Interval { lower: 0.0, ..bounds } } else { bounds }
    }
}

/// Extreme outputs that laws of epochs leave out, where delta is not known.
const TINY: f64 = 1e-30;

/// The dominating pairs of all steps, with their counts.
fn pairs(
    composition: &Composition,
    direction: Direction,
    question: ProfileQuestion,
) -> Vec<(DominatingPair, f64)> {
    let tail = match question {
        // The epochs of all steps share a small part of delta.
        ProfileQuestion::Delta(delta) => {
            (delta * TRUNCATED_SHARE / composition.rounds()).max(1e-290)
        }
        ProfileQuestion::Epsilon(_) => TINY,
    };
    let pair =
        |(step, count): &(Step, u64)| (DominatingPair::new(*step, direction, tail), *count as f64);
    composition.steps().iter().map(pair).collect()
}

/// Parameters of a lattice: tilt, window, split and truncated tail. They decide how tight the bounds are, never whether
/// they hold.
struct Plan {
    /// The probability, per round, of losses that count as infinite.
    tail: f64,
    tilt: f64,
    epsilon: f64,
    window: Window,
    split: Option<Split>,
}

impl Plan {
    /// `known` is a better estimate of the epsilon at a delta, if there is one.
    fn new(
        pairs: &[(DominatingPair, f64)],
        question: ProfileQuestion,
        known: Option<f64>,
    ) -> Option<Self> {
        let rounds: f64 = pairs.iter().map(|(_, n)| n).sum();
        // Delta if only one step had a large loss: a rough estimate.
        let sum_of_deltas =
            |epsilon: f64| -> f64 { pairs.iter().map(|(pair, n)| n * pair.delta(epsilon)).sum() };
        let (rough_delta, rough_epsilon) = match question {
            ProfileQuestion::Delta(delta) => {
                (delta, known.unwrap_or_else(|| crossing(sum_of_deltas, delta)))
            }
            ProfileQuestion::Epsilon(epsilon) => (sum_of_deltas(epsilon).min(1.0), epsilon),
        };
        let tail = (rough_delta * TRUNCATED_SHARE / rounds).max(1e-290);
        let mut sketch = LossDistributions::new(pairs, SKETCH, tail, Rounded::Up);
        let question = match (question, known) {
            (ProfileQuestion::Delta(_), Some(epsilon)) => ProfileQuestion::Epsilon(epsilon),
            _ => question,
        };
        sketch.split = sketch.find_split(rough_epsilon, rough_delta);
        let tilt = sketch.best_tilt(question);
        // `split_cumulant(tilt).1` is about the expected number of large losses under the tilted distribution.
        if sketch.split.is_some() && sketch.split_cumulant(tilt).1 > 1.0 {
            sketch.split = None;
        }
        let tilt = if sketch.split.is_some() { tilt } else { sketch.best_tilt(question) };
        let value = sketch.cumulant(tilt);
        let epsilon = match question {
            ProfileQuestion::Delta(delta) => (value + payoff(tilt).value - delta.ln()) / tilt,
            ProfileQuestion::Epsilon(epsilon) => epsilon,
        };
        let window = sketch.window(tilt, value, WRAPPED + payoff(tilt).value)?;
        Some(Self { tail, tilt, epsilon: epsilon.max(0.0), window, split: sketch.split })
    }

    fn lattice(&self, pairs: &[(DominatingPair, f64)], points: usize) -> Lattice {
        // Moving losses to the lattice widens the window slightly.
        let step = (self.window.high - self.window.low) / (points as f64 - 8.0) * 1.001;
        let grid = (step, DENSITY);
        let losses = |rounded| {
            let losses = LossDistributions::new(pairs, grid, self.tail, rounded);
            LossDistributions { split: self.split, ..losses }
        };
        let compose = |losses: LossDistributions| losses.compose(self.tilt, &self.window, points);
        Lattice {
            upper: compose(losses(Rounded::Up)),
            lower: compose(losses(Rounded::Down)),
            tilt: self.tilt,
            epsilon: self.epsilon,
            is_only_above: false,
        }
    }
}

/// The approximate epsilon at which a decreasing profile falls to `delta`; 0 if it starts below.
fn crossing(profile: impl Fn(f64) -> f64, delta: f64) -> f64 {
    let mut high = 1e-9;
    while profile(high) > delta && high < 1e6 {
        high *= 4.0;
    }
    let low = if high > 1e-9 { 0.25 * high } else { 0.0 };
    bisect((low, high), 12, |epsilon| profile(epsilon) > delta).0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cumulant::{Cumulant, Smoothing, payoff};
    use crate::profile::contour::Contour;
    use veilgrad_events::{Adjacency, NoiseMultiplier, SampleRate};

    const DELTA: f64 = 1e-6;

    fn rounds() -> Composition {
        let (rate, noise) = (SampleRate::new(0.02).unwrap(), NoiseMultiplier::new(0.8).unwrap());
        Composition::poisson(rate, noise, 300, Adjacency::AddRemove).unwrap()
    }

    /// The profile, accurate to 1e-8, by a method that shares no code with the lattice.
    fn exact(epsilon: f64) -> f64 {
        let mut cumulant = Cumulant::new(&rounds(), Direction::Remove);
        let tilt = cumulant.best_slope(epsilon, payoff);
        let none = Smoothing::default();
        let contour =
            Contour::new(&rounds(), Direction::Remove, &mut cumulant, tilt, none).unwrap();
        let Interval { lower, upper } = contour.delta(epsilon);
        assert!(upper - lower < 1e-8 * upper);
        0.5 * (lower + upper)
    }

    /// Checks that the lattice of a changed plan encloses the profile, and that one of its bounds differs from the profile by
    /// more than a factor of `least_width`: otherwise the change had no effect and the check is void.
    fn check_enclosure(change: impl Fn(&mut Plan), points: usize, least_width: f64) {
        let question = ProfileQuestion::Delta(DELTA);
        let pairs = pairs(&rounds(), Direction::Remove, question);
        let mut plan = Plan::new(&pairs, question, None).unwrap();
        change(&mut plan);
        let lattice = plan.lattice(&pairs, points);
        let mut widest: f64 = 1.0;
        for i in 0..60 {
            let epsilon = 0.05 * f64::from(i);
            let (found, exact) = (lattice.delta(epsilon), exact(epsilon));
            assert!(found.lower <= exact && exact <= found.upper, "{epsilon}: {found:?} {exact}");
            widest = widest.max(found.upper / exact).max(exact / found.lower.max(1e-300));
        }
        assert!(widest > least_width, "{widest}");
    }

    #[test]
    fn bounds_hold_with_a_large_truncated_tail() {
        check_enclosure(|plan| plan.tail = 30.0 * DELTA / 300.0, 1 << 16, 1.05);
    }

    #[test]
    fn bounds_hold_with_a_window_that_is_too_narrow() {
        for (low, high) in [(0.0, 0.4), (0.0, 0.6), (0.35, 0.0), (0.45, 0.0)] {
            let narrower = |plan: &mut Plan| {
                let width = plan.window.high - plan.window.low;
                plan.window.low += low * width;
                plan.window.high -= high * width;
            };
            check_enclosure(narrower, 1 << 16, 1.01);
        }
        // Some epsilons lie beyond the end of this window.
        check_enclosure(|plan| plan.window.high = 2.0, 1 << 16, 1.01);
    }

    /// When the tilt is nearly 0, deltas are as small as the rounding errors of the transforms.
    #[test]
    fn bounds_hold_where_rounding_errors_exceed_delta() {
        let shallow = |plan: &mut Plan| {
            plan.tilt = 1e-3;
            plan.window = Window { low: -8.0, high: 16.0, tilt_below: -8.0, tilt_above: 4.0 };
            plan.tail = 1e-25;
        };
        let question = ProfileQuestion::Delta(DELTA);
        let pairs = pairs(&rounds(), Direction::Remove, question);
        let mut plan = Plan::new(&pairs, question, None).unwrap();
        shallow(&mut plan);
        let lattice = plan.lattice(&pairs, 1 << 14);
        let mut wide = 0;
        for i in 0..80 {
            let epsilon = 4.0 + 0.05 * f64::from(i);
            let (found, exact) = (lattice.delta(epsilon), exact(epsilon));
            assert!(found.lower <= exact && exact <= found.upper, "{epsilon}: {found:?} {exact}");
            wide += i32::from(found.upper > 2.0 * exact);
        }
        assert!(wide > 10, "{wide}");
    }

    #[test]
    fn bounds_hold_wherever_large_losses_are_split_off() {
        for loss in [0.05, 0.2, 1.0] {
            let split = |plan: &mut Plan| plan.split = Some(Split { loss, tilt: 4.0 });
            check_enclosure(split, 1 << 16, 1.0001);
        }
    }
}
