//! The privacy profile from losses on a lattice: tilted, composed by Fourier transform, with every
//! numerical error counted.
//!
//! From above by connect-the-dots, from below by merging outputs; both are off by the square of the
//! lattice's step, so that lattices are refined until the two agree.

mod convolution;
mod discretisation;
mod intensity;
mod inversion;
mod rare;
mod spectrum;

pub(crate) use convolution::ProfileQuestion;
pub(crate) use rare::lattice as of_rare;

use crate::cumulant::payoff;
use crate::number::{bisect, grow};
use crate::pair::{Direction, step_delta};
use crate::profile::certified::DeltaBounds;
use crate::{Composition, Interval, work};

use convolution::{LossDistributions, Split, TRANSFORM, TRUNCATED_SHARE, Window};
use discretisation::Rounded;
use inversion::ComposedLoss;

/// The longest Fourier transform, in lattice points.
pub(crate) const LONGEST: usize = 1 << 20;
/// The longest one for the points of a whole profile, which need not be as close.
pub(crate) const SKETCHED: usize = 1 << 15;
const SHORTEST: usize = 1 << 12;
/// The grid on which tilt and window are chosen: its step, and its density. Away from the bulk, points are spaced by
/// their distance from it divided by the density.
const SKETCH: (f64, i64) = (1e-10, 10);
/// The density of grids that are composed: far from the bulk, spacings are 1/512 of the distance from it.
const DENSITY: i64 = 512;
/// The log of the probability that may wrap around on either side, as a part of delta, about: 8e-10.
const WRAPPED: f64 = -21.0;

/// The composed losses of a composition in one direction, good near the question that they were made for.
pub(crate) struct Lattice {
    upper: ComposedLoss,
    lower: ComposedLoss,
    /// The tilt, and about where the profile meets the question.
    pub(crate) tilt: f64,
    pub(crate) epsilon: f64,
}

impl Lattice {
    /// Fine enough for bounds of epsilon that are this close, relatively, or as fine as lattices get; `None`
    /// where nothing can be certified.
    pub(crate) fn new(
        composition: &Composition,
        direction: Direction,
        question: ProfileQuestion,
        close: f64,
        longest: usize,
    ) -> Option<Self> {
        // Every distinct step is transformed on its own.
        let share = (4 * LONGEST / composition.steps().len().max(1)).next_power_of_two();
        let longest = longest.min(share).max(4 * SHORTEST);
        // Both bounds are transformed forth and back.
        let is_affordable = |points: usize| {
            let points = points as u64 * composition.steps().len() as u64;
            2 * TRANSFORM * points <= work::left()
        };
        if !is_affordable(SHORTEST) {
            return None;
        }
        let mut plan = Plan::new(composition, direction, question, None)?;
        let mut points = SHORTEST;
        let mut last = f64::INFINITY;
        let mut lower: Option<ComposedLoss> = None;
        loop {
            let mut lattice = plan.lattice(composition, direction, points);
            let mut epsilon = plan.epsilon;
            if let ProfileQuestion::Delta(delta) = question {
                epsilon = lattice.meets(delta, epsilon);
            }
            // Merged cells may fit a coarser grid better.
            if let Some(lower) = lower.take()
                && lower.delta(epsilon).lower > lattice.lower.delta(epsilon).lower
            {
                lattice.lower = lower;
            }
            let near = lattice.delta(epsilon);
            let off = (near.upper / near.lower).ln() / (1.0 + plan.tilt * epsilon);
            let known = near.upper.is_finite();
            // Where the plan was for about this epsilon, finer lattices either help or are not needed.
            let planned = known && (epsilon - plan.epsilon).abs() <= 0.02 * epsilon;
            let last_one = 2 * points > longest || !is_affordable(2 * points);
            let enough = off <= close || (planned && off > 0.8 * last) || last_one;
            if enough && (planned || points > SHORTEST || !is_affordable(2 * points)) {
                return known.then_some(Self { epsilon, ..lattice });
            }
            last = if planned { off } else { f64::INFINITY };
            lower = Some(lattice.lower);
            if known && !planned {
                plan = Plan::new(composition, direction, question, Some(epsilon)).unwrap_or(plan);
            }
            plan.epsilon = epsilon;
            // Errors fall with the square of the length.
            let growth =
                if off.is_nan() { 16.0 } else { (1.5 * off / close).sqrt().clamp(2.0, 16.0) };
            points = ((points as f64 * growth) as usize).next_power_of_two().min(longest);
            while points > SHORTEST && !is_affordable(points) {
                points /= 2;
            }
        }
    }

    fn meets(&self, delta: f64, guess: f64) -> f64 {
        let above = |epsilon: f64| self.delta(epsilon).upper > delta;
        let (_, high) = grow(guess.max(1.0 / self.tilt), 1.5, above);
        bisect((0.0, high), 30, above).1
    }
}

impl DeltaBounds for Lattice {
    fn delta(&self, epsilon: f64) -> Interval {
        Interval { lower: self.lower.delta(epsilon).lower, upper: self.upper.delta(epsilon).upper }
    }
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
    fn new(
        composition: &Composition,
        direction: Direction,
        question: ProfileQuestion,
        known: Option<f64>,
    ) -> Option<Self> {
        let rounds = composition.rounds();
        let one_at_a_time = |epsilon: f64| -> f64 {
            let steps = composition.steps().iter();
            steps.map(|(step, n)| *n as f64 * step_delta(*step, direction, epsilon).upper).sum()
        };
        let (about, least) = match question {
            // One large loss at a time costs this.
            ProfileQuestion::Delta(delta) => {
                (delta, known.unwrap_or_else(|| falls_to(one_at_a_time, delta)))
            }
            // About what all steps cost one at a time.
            ProfileQuestion::Epsilon(epsilon) => (one_at_a_time(epsilon).min(1.0), epsilon),
        };
        let tail = (about * TRUNCATED_SHARE / rounds).max(1e-290);
        let mut sketch = LossDistributions::new(composition, direction, SKETCH, tail, Rounded::Up);
        let sought = match (question, known) {
            (ProfileQuestion::Delta(_), Some(epsilon)) => ProfileQuestion::Epsilon(epsilon),
            _ => question,
        };
        sketch.split = sketch.find_split(least, about);
        let tilt = sketch.best_tilt(sought);
        // About the expected number of large losses under the tilted distribution.
        if sketch.split.is_some() && sketch.parts(tilt).1 > 1.0 {
            sketch.split = None;
        }
        let tilt = if sketch.split.is_some() { tilt } else { sketch.best_tilt(sought) };
        let value = sketch.cumulant(tilt);
        let epsilon = match sought {
            ProfileQuestion::Delta(delta) => (value + payoff(tilt).value - delta.ln()) / tilt,
            ProfileQuestion::Epsilon(epsilon) => epsilon,
        };
        let window = sketch.window(tilt, value, WRAPPED + payoff(tilt).value)?;
        Some(Self { tail, tilt, epsilon: epsilon.max(0.0), window, split: sketch.split })
    }

    fn lattice(&self, composition: &Composition, direction: Direction, points: usize) -> Lattice {
        // Room for what moving losses to the lattice does to the window.
        let step = (self.window.high - self.window.low) / (points as f64 - 8.0) * 1.001;
        let grid = (step, DENSITY);
        let losses = |rounded| {
            let losses = LossDistributions::new(composition, direction, grid, self.tail, rounded);
            LossDistributions { split: self.split, ..losses }
        };
        let compose = |losses: LossDistributions| losses.compose(self.tilt, &self.window, points);
        Lattice {
            upper: compose(losses(Rounded::Up)),
            lower: compose(losses(Rounded::Down)),
            tilt: self.tilt,
            epsilon: self.epsilon,
        }
    }
}

/// Where a falling profile is `delta`, about; 0 if it is not larger there.
fn falls_to(profile: impl Fn(f64) -> f64, delta: f64) -> f64 {
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

    /// The profile, good to 1e-9, by a method that shares nothing with this one.
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

    /// A lattice after a plan was changed; it must enclose the profile at all these epsilons, and its bounds must
    /// differ by more than this factor at one of them, or nothing was tried.
    fn encloses(change: impl Fn(&mut Plan), points: usize, wide: f64) {
        let question = ProfileQuestion::Delta(DELTA);
        let mut plan = Plan::new(&rounds(), Direction::Remove, question, None).unwrap();
        change(&mut plan);
        let lattice = plan.lattice(&rounds(), Direction::Remove, points);
        let mut widest: f64 = 1.0;
        for i in 0..60 {
            let epsilon = 0.05 * f64::from(i);
            let (found, exact) = (lattice.delta(epsilon), exact(epsilon));
            assert!(found.lower <= exact && exact <= found.upper, "{epsilon}: {found:?} {exact}");
            widest = widest.max(found.upper / exact).max(exact / found.lower.max(1e-300));
        }
        assert!(widest > wide, "{widest}");
    }

    #[test]
    fn losses_beyond_the_last_cell_are_counted() {
        encloses(|plan| plan.tail = 30.0 * DELTA / 300.0, 1 << 16, 1.05);
    }

    #[test]
    fn sums_above_and_below_the_window_are_counted() {
        for (low, high) in [(0.0, 0.4), (0.0, 0.6), (0.35, 0.0), (0.45, 0.0)] {
            let narrower = |plan: &mut Plan| {
                let width = plan.window.high - plan.window.low;
                plan.window.low += low * width;
                plan.window.high -= high * width;
            };
            encloses(narrower, 1 << 16, 1.01);
        }
        // And beyond the end of a window all of it is above.
        encloses(|plan| plan.window.high = 2.0, 1 << 16, 1.01);
    }

    /// With hardly any tilt deltas are as small as the rounding of transforms.
    #[test]
    fn the_rounding_of_transforms_is_counted() {
        let shallow = |plan: &mut Plan| {
            plan.tilt = 1e-3;
            plan.window = Window { low: -8.0, high: 16.0, tilt_below: -8.0, tilt_above: 4.0 };
            plan.tail = 1e-25;
        };
        let question = ProfileQuestion::Delta(DELTA);
        let mut plan = Plan::new(&rounds(), Direction::Remove, question, None).unwrap();
        shallow(&mut plan);
        let lattice = plan.lattice(&rounds(), Direction::Remove, 1 << 14);
        let mut wide = 0;
        for i in 0..80 {
            let epsilon = 4.0 + 0.05 * f64::from(i);
            let (found, exact) = (lattice.delta(epsilon), exact(epsilon));
            assert!(found.lower <= exact && exact <= found.upper, "{epsilon}: {found:?} {exact}");
            wide += i32::from(found.upper > 2.0 * exact);
        }
        assert!(wide > 10, "{wide}");
    }

    /// Sums without a large loss are counted, however much they cost.
    #[test]
    fn sums_without_a_large_loss_are_counted() {
        for loss in [0.05, 0.2, 1.0] {
            let split = |plan: &mut Plan| plan.split = Some(Split { loss, tilt: 4.0 });
            encloses(split, 1 << 16, 1.0001);
        }
    }
}
