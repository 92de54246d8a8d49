//! The cumulant generating function `K(t) = log E e^{t L}` of the privacy loss L of a composition, with derivatives, at
//! real tilts t.

mod closed_bound;
mod group_bound;
mod jet;
mod moments;
mod panels;
pub(crate) mod quadrature;
mod trapezoid;
pub(crate) mod truncation;

pub(crate) use jet::{Jet, payoff};
pub(crate) use moments::{Moments, Scratch, moments};
pub(crate) use quadrature::LEAST_NOISE;

use closed_bound::ClosedBound;
use group_bound::GroupBound;
use jet::gaussian_jet;
use moments::quick_jet;
use panels::Panels;
use trapezoid::Nodes;
use truncation::Truncated;

use crate::number::UNIT;
use crate::pair::{Direction, Pair};
use crate::{Composition, Sampled, Step};

/// Tolerance for the log of a tilt that affects only work and tightness, not soundness.
const ROUGH_TILT: f64 = 0.01;

/// Changes to the loss that make its transform decay faster, at the cost of some epsilon; none by default.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Smoothing {
    /// The largest losses, of about this probability in one round, count as infinite. The rest has small moments, so that
    /// tilts may be large.
    pub(crate) tail: f64,
    /// 1/z^2 of one additional round without sampling, which smooths the loss.
    pub(crate) variance: f64,
}

/// The cumulant of a composition in one direction. With thousands of distinct steps, an upper bound from grouped steps.
/// Caches its quadrature nodes.
pub(crate) struct Cumulant {
    steps: Vec<(StepCumulant, f64)>,
}

impl Cumulant {
    pub(crate) fn new(composition: &Composition, direction: Direction) -> Self {
        Self::smoothed(composition, direction, Smoothing::default())
    }

    /// The cumulant of the finite losses after truncation and smoothing.
    pub(crate) fn smoothed(
        composition: &Composition,
        direction: Direction,
        smoothing: Smoothing,
    ) -> Self {
        let cumulant = |(step, count): &(Step, u64)| {
            (StepCumulant::new(*step, direction, smoothing.tail), *count as f64)
        };
        let mut steps: Vec<_> = composition.coarse().steps().iter().map(cumulant).collect();
        if smoothing.variance > 0.0 {
            steps.push((StepCumulant::Gaussian(smoothing.variance.sqrt().recip()), 1.0));
        }
        Self { steps }
    }

    /// `K(tilt)`, rounded up, and its derivatives, for `tilt > 0`; infinite where it cannot be computed.
    pub(crate) fn at(&mut self, tilt: f64) -> Jet {
        let mut sum = Jet::default();
        for (step, count) in &mut self.steps {
            sum.add_scaled(*count, step.at(tilt));
        }
        sum.value *= 1.0 + 4.0 * UNIT * self.steps.len() as f64;
        if sum.value.is_nan() {
            sum.value = f64::INFINITY;
        }
        sum
    }

    /// The tilt that minimises `psi(tilt)/tilt`, where `psi = K + extra` is convex. Any tilt gives a sound bound; this finds
    /// a tight one.
    pub(crate) fn best_ratio(&mut self, extra: impl Fn(f64) -> Jet) -> f64 {
        self.increasing_root(ROUGH_TILT, |tilt, k| ratio_slope(tilt, k, extra(tilt)))
    }

    /// The tilt at which `K'(tilt) + extra'(tilt)` passes `slope`.
    pub(crate) fn best_slope(&mut self, slope: f64, extra: impl Fn(f64) -> Jet) -> f64 {
        self.increasing_root(ROUGH_TILT, |tilt, k| k.first + extra(tilt).first - slope)
    }

    /// The tilt at which `f(tilt, K(tilt))`, which increases, passes zero; `tolerance` is that of the log of the tilt.
    ///
    /// K can grow by hundreds of orders of magnitude between two tilts, so secant steps are taken only while they at least
    /// halve the bracket.
    pub(crate) fn increasing_root(
        &mut self,
        tolerance: f64,
        mut f: impl FnMut(f64, Jet) -> f64,
    ) -> f64 {
        const LARGEST: f64 = 40.0;
        let mut value_at = |log_tilt: f64| {
            let tilt = log_tilt.exp();
            let value = f(tilt, self.at(tilt));
            // A tilt at which K cannot be computed is too large.
            if value.is_nan() { f64::INFINITY } else { value }
        };
        let (mut low, mut high) = (1.0, 1.0);
        let mut at_low = value_at(low);
        let mut at_high = at_low;
        while at_low > 0.0 && low > -LARGEST {
            (high, at_high) = (low, at_low);
            low -= 1.0 + (1.0 - low) / 2.0;
            at_low = value_at(low);
        }
        while at_high <= 0.0 && high < LARGEST {
            (low, at_low) = (high, at_high);
            high += 1.0;
            at_high = value_at(high);
        }
        let mut halve = false;
        while high - low > tolerance {
            let before = high - low;
            let secant = low - at_low * before / (at_high - at_low);
            // Slightly into the larger part, so that both ends of the bracket move.
            let room = 0.3 * tolerance;
            let secant = if secant - low < high - secant { secant + room } else { secant - room };
            let usable = !halve && at_high.is_finite() && secant > low && secant < high;
            let middle = if usable { secant } else { 0.5 * (low + high) };
            let value = value_at(middle);
            if value > 0.0 {
                (high, at_high) = (middle, value);
            } else {
                (low, at_low) = (middle, value);
            }
            halve = high - low > 0.5 * before;
        }
        (0.5 * (low + high)).exp()
    }
}

/// `tilt psi' - psi` for `psi = K + extra`: increasing, and zero where `psi(tilt)/tilt` is smallest.
pub(crate) fn ratio_slope(tilt: f64, k: Jet, extra: Jet) -> f64 {
    tilt * (k.first + extra.first) - (k.value + extra.value)
}

enum StepCumulant {
    /// The Gaussian: tilt (tilt + 1) / (2 z^2).
    Gaussian(f64),
    /// For noise so small that quadrature needs too many nodes.
    ClosedBound(ClosedBound),
    Analytic(Nodes),
    Fixed(Panels),
    Truncated(Truncated),
    /// The log of a weighted sum of moments, and the weight of rounds without a loss.
    Mixture(Vec<(f64, Self)>, f64),
    Group(GroupBound),
}

impl StepCumulant {
    fn new(step: Step, direction: Direction, tail: f64) -> Self {
        match step.sampled {
            Sampled::Truncated(sample) => {
                let part = |(weight, step)| (weight, Self::new(step, direction, tail));
                return Self::Mixture(sample.parts(step.z).map(part).collect(), sample.absent);
            }
            Sampled::PoissonGroup { rate, records } => {
                return Self::Group(GroupBound::new(rate, records, step.z));
            }
            // Moments are jointly convex in both distributions, so an epoch has at most those of a round without sampling.
            Sampled::Allocated(_) => return Self::Gaussian(step.z),
            _ => {}
        }
        if step.z < LEAST_NOISE {
            return Self::ClosedBound(ClosedBound::new(step, direction));
        }
        if let Sampled::FixedReplaced(q) = step.sampled {
            return Self::Fixed(Panels::new(q, step.z));
        }
        match Pair::analytic(step, direction) {
            Some(pair) => match Truncated::new(pair, tail) {
                Some(truncated) => Self::Truncated(truncated),
                None => Self::Analytic(Nodes::new(pair, ClosedBound::new(step, direction))),
            },
            None => Self::Gaussian(step.z),
        }
    }

    fn at(&mut self, tilt: f64) -> Jet {
        match self {
            Self::Gaussian(z) => gaussian_jet(*z, tilt),
            Self::ClosedBound(bound) => bound.at(tilt),
            Self::Analytic(nodes) => nodes.at(tilt),
            Self::Fixed(panels) => panels.at(tilt),
            Self::Truncated(pair) => pair.jet(tilt),
            Self::Mixture(parts, rest) => mixed(parts, *rest, tilt),
            Self::Group(bound) => bound.at(tilt),
        }
    }
}

/// The cumulant of a mixture, from those of its parts.
fn mixed(parts: &mut [(f64, StepCumulant)], rest: f64, tilt: f64) -> Jet {
    let jets: Vec<(f64, Jet)> = parts.iter_mut().map(|(w, part)| (*w, part.at(tilt))).collect();
    let top = jets.iter().map(|(_, jet)| jet.value).fold(0.0, f64::max);
    if !top.is_finite() {
        return Jet { value: f64::INFINITY, first: f64::INFINITY, second: f64::INFINITY };
    }
    // Without cancellation where all moments are close to 1: the weights sum to 1, rounded up.
    let weights = rest + jets.iter().map(|(weight, _)| weight).sum::<f64>();
    let (mut excess, mut total) = ((weights - 1.0).max(0.0), rest * (-top).exp());
    let (mut first, mut second) = (0.0, 0.0);
    for (weight, jet) in &jets {
        excess += weight * libm::expm1(jet.value);
        let mass = weight * (jet.value - top).exp();
        total += mass;
        first += mass * jet.first;
        second += mass * (jet.second + jet.first * jet.first);
    }
    let value = if top < 1.0 { libm::log1p(excess) } else { top + total.ln() };
    let rounding = 32.0 * UNIT * if top < 1.0 { value + UNIT } else { 1.0 + top };
    Jet::of_moments(value + rounding, total, first, second)
}

/// An upper bound on `K(tilt)` and approximate derivatives, in one pass over all distinct steps without grouping them.
pub(crate) fn cumulant_step_by_step(
    composition: &Composition,
    direction: Direction,
    tilt: f64,
) -> Jet {
    let mut scratch = Scratch::default();
    let (mut sum, mut size) = (Jet::default(), 0.0);
    for (step, count) in composition.steps() {
        let jet = cumulant_of_step(*step, direction, tilt, &mut scratch);
        sum.add_scaled(*count as f64, jet);
        size += *count as f64 * jet.value.abs();
    }
    sum.value += size * UNIT * (4.0 + composition.steps().len() as f64);
    if sum.value.is_nan() {
        sum.value = f64::INFINITY;
    }
    sum
}

/// The same for one step.
pub(crate) fn cumulant_of_step(
    step: Step,
    direction: Direction,
    tilt: f64,
    scratch: &mut Scratch,
) -> Jet {
    let quick =
        if step.z >= LEAST_NOISE { quick_jet(step, direction, tilt, scratch) } else { None };
    quick.unwrap_or_else(|| Cumulant::new(&Composition::of_step(step), direction).at(tilt))
}
