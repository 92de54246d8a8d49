//! Certified bounds of the privacy profile: closed forms where there are any, else the contour, else,
//! or where that is not tight, the lattice.

use std::borrow::Cow;

use veilgrad_events::{Delta, Epsilon};

use crate::contour::{Contour, Interval, payoff};
use crate::cumulant::{Aid, Cumulant, Jet, SMALLEST};
use crate::lattice::{LONGEST, Lattice, SKETCHED, Target};
use crate::limit::{beyond_transforms, ever_sampled, without_tiny_noise};
use crate::number::bracket_root;
use crate::output::{Direction, step_delta};
use crate::work::{self, Allowance};
use crate::{Composition, Sampled, Step, Unsupported, aided, gaussian, rdp};

/// The contour's answer is taken where its bounds are this close, relatively.
const CLOSE: f64 = 1e-4;
/// The same for the other methods. The upper bound of a contour with an aid is far closer to the truth than its
/// lower one.
const AIDED_CLOSE: f64 = 3e-4;
/// How close points of whole profiles have to be where there are thousands of distinct steps.
const MANY_CLOSE: f64 = 2e-3;
/// With fewer rounds than this lattices are tried before aids.
const FEW_ROUNDS: f64 = 200.0;
/// Lattices are refined until their bounds of epsilon are this close, relatively.
const LATTICE_CLOSE: f64 = 4e-5;
/// The same for points of whole profiles, and the most lattices of one.
const SKETCH_CLOSE: f64 = 5e-4;
pub(crate) const MOST_LATTICES: usize = 8;

/// How close the bounds of a lattice have to be, and how long it may get.
const FINE: (f64, usize) = (LATTICE_CLOSE, LONGEST);

/// Epsilons above this are worth no transform: Rényi's bound will do.
const ABSURD: f64 = 1e6;
/// How a bound was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// The profile of one step, or of the Gaussian.
    ClosedForm,
    /// Inversion of the Laplace transform of the profile.
    Contour,
    /// Connect-the-dots on a lattice, composed by Fourier transform.
    Lattice,
}

/// Certified bounds of a number.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bounds {
    /// Never above the truth.
    pub lower: f64,
    /// Never below the truth.
    pub upper: f64,
    /// How the upper bound was found.
    pub method: Method,
}

/// Where there is no work left.
const UNKNOWN: Bounds = Bounds { lower: 0.0, upper: f64::INFINITY, method: Method::Contour };

impl Bounds {
    /// How far the bounds are apart; an infinite one is no number away.
    fn width(&self) -> f64 {
        if self.upper.is_finite() { self.upper - self.lower } else { f64::NAN }
    }

    /// The better of two, of which both hold, on either side.
    fn and(self, other: Self) -> Self {
        let method = if self.upper <= other.upper { self.method } else { other.method };
        Self { lower: self.lower.max(other.lower), upper: self.upper.min(other.upper), method }
    }

    /// The larger of two, of which both must hold.
    fn or(self, other: Self) -> Self {
        let method = if self.upper >= other.upper { self.method } else { other.method };
        Self { lower: self.lower.max(other.lower), upper: self.upper.max(other.upper), method }
    }
}

/// Bounds of the smallest epsilon for `delta`.
///
/// # Guarantee
/// The upper bound is never below, the lower one never above the smallest epsilon of the composition's
/// dominating pair: discretisation, truncation, wrap-around and rounding are all counted.
///
/// # Errors
/// When no finite epsilon can be certified.
pub fn epsilon(composition: &Composition, delta: Delta) -> Result<Bounds, Unsupported> {
    if let Some((above, below)) = composition.enclosing() {
        let lower = match composition.attained() {
            true => epsilon(below, delta).map_or(0.0, |found| found.lower),
            false => 0.0,
        };
        return epsilon(above, delta).map(|found| Bounds { lower, ..found });
    }
    let _allowance = Allowance::for_steps(work::QUESTION, composition);
    // Deltas at zero add up.
    let at_zero = |direction: Direction| -> f64 {
        let of = |(step, n): &(Step, u64)| *n as f64 * step_delta(*step, direction, 0.0).upper;
        composition.steps().iter().map(of).sum::<f64>() * (1.0 + 1e-12)
    };
    if at_zero(Direction::Remove).max(at_zero(Direction::Add)).min(ever_sampled(composition))
        <= delta.get()
    {
        return Ok(Bounds { lower: 0.0, upper: 0.0, method: Method::ClosedForm });
    }
    if let Some((rest, sampled)) = without_tiny_noise(composition) {
        let left = Delta::new((delta.get() - sampled) * (1.0 - 1e-12)).map_err(|_| {
            Unsupported::new(format!(
                "rounds with a noise multiplier below {SMALLEST} sample a record with probability \
                 {sampled}, which is not below delta"
            ))
        })?;
        return epsilon(&rest, left).map(|bounds| Bounds { lower: 0.0, ..bounds });
    }
    if closed_form(composition, Direction::Remove).is_none() {
        beyond_transforms(composition)?;
    }
    let mut bounds = epsilon_towards(composition, Direction::Remove, delta.get());
    // Addition counts only where it may cost more.
    if bounds.upper.is_finite()
        && !Addition::default().settled(composition, bounds.lower, delta.get())
    {
        bounds = bounds.or(epsilon_towards(composition, Direction::Add, delta.get()));
    }
    if Epsilon::new(bounds.upper).is_err() {
        return Err(Unsupported::new("no finite epsilon can be certified for this delta"));
    }
    Ok(bounds)
}

/// Bounds of the smallest delta at `epsilon`. The upper bound is at most 1, which needs no noise.
///
/// # Guarantee
/// As for [`epsilon`].
#[must_use]
pub fn delta(composition: &Composition, epsilon: Epsilon) -> Bounds {
    if let Some((above, below)) = composition.enclosing() {
        let lower = delta(below, epsilon).lower;
        return Bounds { lower, ..delta(above, epsilon) };
    }
    let _allowance = Allowance::for_steps(work::QUESTION, composition);
    let trivial =
        Bounds { lower: 0.0, upper: ever_sampled(composition), method: Method::ClosedForm };
    if let Some((rest, sampled)) = without_tiny_noise(composition) {
        let bounds = delta(&rest, epsilon);
        return Bounds { upper: bounds.upper + sampled, ..bounds }.and(trivial);
    }
    let epsilon = epsilon.get();
    let closed = closed_form(composition, Direction::Remove).is_some();
    if !closed && (epsilon > ABSURD || beyond_transforms(composition).is_err()) {
        return trivial;
    }
    let mut bounds = delta_towards(composition, Direction::Remove, epsilon, FINE).0;
    if !Addition::default().settled(composition, epsilon, bounds.lower) {
        bounds = bounds.or(delta_towards(composition, Direction::Add, epsilon, FINE).0);
    }
    // Never nothing: the exponential of a large exponent is.
    let upper = bounds.upper.max(trivial.upper.min(f64::MIN_POSITIVE));
    Bounds { lower: bounds.lower.max(0.0), upper, ..bounds }.and(trivial)
}

/// Whether addition provably costs at most some delta at some epsilon: by its largest loss, or by its Rényi
/// divergence at some order. Both take little time, and mostly removal is what counts.
#[derive(Default)]
struct Addition {
    orders: Option<rdp::Orders>,
}

impl Addition {
    fn settled(&mut self, composition: &Composition, epsilon: f64, delta: f64) -> bool {
        let largest = |(step, count): &(Step, u64)| match step.sampled {
            Sampled::Poisson(q) => -libm::log1p(-q) * *count as f64 * (1.0 + 1e-14),
            _ => f64::INFINITY,
        };
        let steps = composition.steps();
        if composition.is_symmetric()
            || steps.iter().map(largest).sum::<f64>() * (1.0 + 1e-12) <= epsilon
        {
            return true;
        }
        let orders = || rdp::Orders::new(composition, Direction::Add);
        self.orders.get_or_insert_with(orders).show(epsilon, delta)
    }
}

/// Upper bounds of delta at many epsilons; neighbouring ones share a transform.
pub(crate) struct Deltas<'a> {
    /// Without rounds of tiny noise, whose chance to sample a record adds to delta.
    composition: Cow<'a, Composition>,
    sampled: f64,
    /// At least every delta.
    ever_sampled: f64,
    remove: Known,
    add: Known,
    addition: Addition,
    absurd: bool,
    /// What transforms may still cost.
    work: u64,
}

/// The transforms of one direction that were made so far.
struct Known {
    transforms: Vec<Transform>,
    lattices: usize,
    most_lattices: usize,
}

impl<'a> Deltas<'a> {
    /// With at most so many lattices in either direction, and so much work.
    pub(crate) fn new(composition: &'a Composition, most_lattices: usize, work: u64) -> Self {
        let composition = composition.above();
        let ever_sampled = ever_sampled(composition);
        let (composition, sampled) = match without_tiny_noise(composition) {
            Some((rest, sampled)) => (Cow::Owned(rest), sampled),
            None => (Cow::Borrowed(composition), 0.0),
        };
        let absurd = closed_form(&composition, Direction::Remove).is_none()
            && (beyond_transforms(&composition).is_err()
                || Delta::new(0.5).is_ok_and(|delta| is_absurd(&composition, delta)));
        let known = || Known { transforms: Vec::new(), lattices: 0, most_lattices };
        let work = work::for_steps(work, &composition);
        let (remove, add, addition) = (known(), known(), Addition::default());
        Self { composition, sampled, ever_sampled, remove, add, addition, absurd, work }
    }

    pub(crate) fn at(&mut self, epsilon: f64) -> f64 {
        if self.absurd {
            return self.ever_sampled;
        }
        let before = work::spent();
        let _allowance = Allowance::open(self.work);
        let composition = &*self.composition;
        let remove = self.remove.at(composition, Direction::Remove, epsilon);
        // At epsilon 0 both directions have the total variation distance.
        let settled = epsilon == 0.0 || self.addition.settled(composition, epsilon, remove.lower);
        let add = match settled {
            true => remove,
            false => self.add.at(composition, Direction::Add, epsilon),
        };
        self.work = self.work.saturating_sub(work::spent() - before);
        (remove.upper.max(add.upper) + self.sampled).min(self.ever_sampled)
    }
}

impl Known {
    /// From the transforms that there are if one of them is close, or if there are enough; else from one
    /// more.
    fn at(&mut self, composition: &Composition, direction: Direction, epsilon: f64) -> Interval {
        let mut best = Interval { lower: 0.0, upper: f64::INFINITY };
        let mut close: f64 = 0.0;
        for transform in &self.transforms {
            let delta = transform.delta(epsilon);
            best.lower = best.lower.max(delta.lower);
            best.upper = best.upper.min(delta.upper);
            close = close.max(transform.close());
        }
        // Of thousands of distinct steps a further transform takes long.
        close = close.max(if composition.sample().is_some() { MANY_CLOSE } else { 0.0 });
        // An infinite bound is close to nothing.
        let known = best.upper - best.lower <= close * best.upper;
        let enough = known || self.lattices >= self.most_lattices;
        if (best.upper.is_finite() && enough) || work::left() == 0 {
            return best;
        }
        let sketch = (SKETCH_CLOSE, SKETCHED);
        let (bounds, found) = delta_towards(composition, direction, epsilon, sketch);
        let from_above = matches!(found, Some(Transform::FromAbove(_)));
        self.lattices += usize::from(bounds.method == Method::Lattice || from_above);
        self.transforms.extend(found);
        Interval { lower: best.lower.max(bounds.lower), upper: best.upper.min(bounds.upper) }
    }
}

/// What profiles are read from.
enum Transform {
    Contour(Contour),
    Aided(Contour),
    Lattice(Lattice),
    /// Of steps that cost at least as much: no lower bound.
    FromAbove(Box<Self>),
}

impl Transform {
    fn delta(&self, epsilon: f64) -> Interval {
        match self {
            Self::Contour(contour) | Self::Aided(contour) => contour.delta(epsilon),
            Self::Lattice(lattice) => lattice.delta(epsilon),
            Self::FromAbove(other) => Interval { lower: 0.0, ..other.delta(epsilon) },
        }
    }

    fn into_upper_bound(self) -> Self {
        Self::FromAbove(Box::new(self))
    }

    const fn method(&self) -> Method {
        match self {
            Self::Contour(_) | Self::Aided(_) => Method::Contour,
            Self::Lattice(_) => Method::Lattice,
            Self::FromAbove(other) => other.method(),
        }
    }

    /// How close bounds of delta are, relatively, where a transform is good.
    const fn close(&self) -> f64 {
        match self {
            Self::Contour(_) => CLOSE,
            Self::Aided(_) | Self::Lattice(_) => 5e-3,
            Self::FromAbove(other) => other.close(),
        }
    }
}

/// A profile in closed form.
fn closed_form(
    composition: &Composition,
    direction: Direction,
) -> Option<impl Fn(f64) -> Interval> {
    let mu = composition.mu();
    let step = match composition.steps() {
        [(step, 1)] => Some(*step),
        _ if mu.is_some() => None,
        _ => return None,
    };
    Some(move |epsilon: f64| match (mu, step) {
        (Some(mu), _) => gaussian::delta(mu, epsilon),
        (None, Some(step)) => step_delta(step, direction, epsilon),
        (None, None) => Interval { lower: 0.0, upper: f64::INFINITY },
    })
}

/// Bounds of delta at `epsilon`, and what they were read from, unless they have a closed form.
fn delta_towards(
    composition: &Composition,
    direction: Direction,
    epsilon: f64,
    (close, longest): (f64, usize),
) -> (Bounds, Option<Transform>) {
    if let Some(delta) = closed_form(composition, direction) {
        let Interval { lower, upper } = delta(epsilon);
        return (Bounds { lower, upper, method: Method::ClosedForm }, None);
    }
    if work::left() == 0 {
        return (UNKNOWN, None);
    }
    let mut cumulant = Cumulant::new(composition, direction);
    let tilt = match composition.sample() {
        Some(sample) => Cumulant::new(sample, direction).best_slope(epsilon, payoff),
        None => cumulant.best_slope(epsilon, payoff),
    };
    let contour = match rarely_sampled(composition) {
        true => None,
        false => Contour::new(composition, direction, &mut cumulant, tilt, Aid::default()),
    };
    let by_contour = contour.as_ref().map(|contour| contour.delta(epsilon));
    let by_contour = by_contour.unwrap_or(Interval { lower: 0.0, upper: f64::INFINITY });
    let Interval { lower, upper } = by_contour;
    if upper.is_finite() && upper - lower <= CLOSE * upper {
        return (Bounds { lower, upper, method: Method::Contour }, contour.map(Transform::Contour));
    }
    let mut best = Bounds { lower, upper, method: Method::Contour };
    if composition.sample().is_some() {
        let (found, transform) =
            delta_towards(composition.coarse(), direction, epsilon, (close, longest));
        return (
            best.and(Bounds { lower: 0.0, ..found }),
            transform.map(Transform::into_upper_bound),
        );
    }
    let aided = || aided::for_epsilon(composition, direction, epsilon).map(Transform::Aided);
    let lattice = || {
        let target = Target::Epsilon(epsilon);
        Lattice::new(composition, direction, target, close, longest).map(Transform::Lattice)
    };
    // With few rounds transforms decay slowly, and lattices are close enough.
    let few: [&dyn Fn() -> Option<Transform>; 1] = [&lattice];
    let many: [&dyn Fn() -> Option<Transform>; 2] = [&aided, &lattice];
    let attempts = if composition.rounds() < FEW_ROUNDS { &few[..] } else { &many };
    let mut transform = None;
    for (index, attempt) in attempts.iter().enumerate() {
        let _part = part_for_attempt(index + 1 == attempts.len());
        if let Some(found) = attempt() {
            let Interval { lower, upper } = found.delta(epsilon);
            let bounds = Bounds { lower, upper, method: found.method() };
            if bounds.upper <= best.upper {
                transform = Some(found);
            }
            best = best.and(bounds);
        }
        if best.width() <= transform.as_ref().map_or(0.0, Transform::close) * best.upper {
            break;
        }
    }
    (best, transform)
}

fn epsilon_towards(composition: &Composition, direction: Direction, delta: f64) -> Bounds {
    if let Some(profile) = closed_form(composition, direction) {
        let (lower, upper) = solve(&profile, delta, 0.0, 1.0).unwrap_or((0.0, f64::INFINITY));
        return Bounds { lower, upper, method: Method::ClosedForm };
    }
    if work::left() == 0 {
        return UNKNOWN;
    }
    let by_contour = contour_epsilon(composition, direction, delta);
    let (lower, upper) = by_contour.unwrap_or((0.0, f64::INFINITY));
    if upper.is_finite() && upper - lower <= CLOSE * upper.max(0.01) {
        return Bounds { lower, upper, method: Method::Contour };
    }
    let mut best = Bounds { lower, upper, method: Method::Contour };
    if composition.sample().is_some() {
        let found = epsilon_towards(composition.coarse(), direction, delta);
        let lower = match composition.attained() && found.upper.is_finite() {
            true => epsilon_towards(composition.coarse_below(), direction, delta).lower,
            false => 0.0,
        };
        return best.and(Bounds { lower, ..found });
    }
    if Delta::new(delta).is_ok_and(|delta| is_absurd(composition, delta)) {
        return best;
    }
    // With few rounds transforms decay so slowly that lattices are quicker, if they are close.
    let mut attempts = [
        (Method::Contour, aided_epsilon as fn(&Composition, Direction, f64) -> Option<(f64, f64)>),
        (Method::Lattice, lattice_epsilon),
    ];
    if composition.rounds() < FEW_ROUNDS {
        attempts.reverse();
    }
    for (index, (method, attempt)) in attempts.into_iter().enumerate() {
        let _part = part_for_attempt(index + 1 == attempts.len());
        if let Some((lower, upper)) = attempt(composition, direction, delta) {
            best = best.and(Bounds { lower, upper, method });
        }
        if best.width() <= AIDED_CLOSE * best.upper.max(0.01) {
            break;
        }
    }
    best
}

/// Half of what is left, unless it is the last attempt.
fn part_for_attempt(last: bool) -> Allowance {
    Allowance::open(if last { work::left() } else { work::left() / 2 })
}

/// Whether epsilon is so large that nobody needs it closely: Rényi's bound will do.
fn is_absurd(composition: &Composition, delta: Delta) -> bool {
    // Only which method is tried depends on it, so a sample of thousands of distinct steps will do.
    let typical = composition.sample().unwrap_or(composition);
    rdp::epsilon(typical, delta).is_ok_and(|found| found.epsilon.get() > ABSURD)
}

fn aided_epsilon(
    composition: &Composition,
    direction: Direction,
    delta: f64,
) -> Option<(f64, f64)> {
    let (contour, guess) = aided::for_delta(composition, direction, delta)?;
    solve(&|epsilon| contour.delta(epsilon), delta, guess, 1e-3 * guess)
}

fn lattice_epsilon(
    composition: &Composition,
    direction: Direction,
    delta: f64,
) -> Option<(f64, f64)> {
    let lattice =
        Lattice::new(composition, direction, Target::Delta(delta), LATTICE_CLOSE, LONGEST)?;
    solve(&|epsilon| lattice.delta(epsilon), delta, lattice.epsilon, 1.0 / lattice.tilt)
}

/// Whether a record takes part so rarely that contours are not worth a try: characteristic functions hardly
/// decay.
fn rarely_sampled(composition: &Composition) -> bool {
    let part = |(step, count): &(Step, u64)| match step.sampled {
        Sampled::Always => f64::INFINITY,
        Sampled::Poisson(q) | Sampled::PoissonReplaced(q) | Sampled::FixedReplaced(q) => {
            q * *count as f64
        }
    };
    composition.steps().iter().map(part).sum::<f64>() < 0.3
}

fn contour_epsilon(
    composition: &Composition,
    direction: Direction,
    delta: f64,
) -> Option<(f64, f64)> {
    if rarely_sampled(composition) {
        return None;
    }
    let extra = |tilt: f64| {
        let payoff = payoff(tilt);
        Jet { value: payoff.value - delta.ln(), ..payoff }
    };
    let mut search = Cumulant::new(composition.sample().unwrap_or(composition), direction);
    let tilt = search.best_ratio(extra);
    let guess = (search.at(tilt).value + extra(tilt).value) / tilt;
    let mut cumulant = Cumulant::new(composition, direction);
    let contour = Contour::new(composition, direction, &mut cumulant, tilt, Aid::default())?;
    solve(&|epsilon| contour.delta(epsilon), delta, guess, 1.0 / tilt)
}

/// Bounds of the epsilon at which a profile falls below `delta`, from a guess and a scale of how fast
/// it falls: the largest epsilon found where its lower bound is above, and the smallest where its upper
/// bound is not.
fn solve(
    profile: &dyn Fn(f64) -> Interval,
    delta: f64,
    guess: f64,
    scale: f64,
) -> Option<(f64, f64)> {
    let log_ratio = |value: f64| (value.max(1e-320) / delta).ln();
    let upper_at = |epsilon: f64| log_ratio(profile(epsilon).upper);
    let lower_at = |epsilon: f64| log_ratio(profile(epsilon).lower);
    // Errors grow with the distance from the guess, so both searches begin there.
    let guess = guess.max(0.0);
    let (mut left, mut right) = (guess, guess);
    let mut stride = 1e-3 * scale;
    while !(upper_at(right) <= 0.0) {
        if !(stride < 1e16 * (scale + guess)) {
            return None;
        }
        (left, right) = (right, right + stride);
        stride *= 2.0;
    }
    stride = 1e-3 * scale;
    while left > 0.0 && upper_at(left) <= 0.0 {
        (left, right) = ((left - stride).max(0.0), left);
        stride *= 2.0;
    }
    let upper =
        if upper_at(left) <= 0.0 { left } else { bracket_root(upper_at, left, right, 1e-13).1 };
    let (mut left, mut right) = (upper, upper);
    stride = 1e-10 * (scale + upper);
    while left > 0.0 && !(lower_at(left) > 0.0) {
        (left, right) = ((left - stride).max(0.0), left);
        stride *= 4.0;
    }
    let lower =
        if lower_at(left) > 0.0 { bracket_root(lower_at, left, right, 1e-13).0 } else { 0.0 };
    Some((lower, upper))
}

#[cfg(test)]
mod tests {
    use super::*;
    use veilgrad_events::{Adjacency, ClipNorm, FixedBatch, NoiseStd, Round, Rounds, SampleRate};
    use veilgrad_events::{Sampling, SumQuery};

    fn rounds(sampling: Sampling, z: f64, count: u64) -> Rounds {
        let query = SumQuery::new("g", ClipNorm::new(1.0).unwrap(), NoiseStd::new(z).unwrap());
        Rounds { count, round: Round::new(sampling, vec![query]).unwrap() }
    }

    /// Two methods that share nothing but the pair of distributions: their intervals overlap.
    #[test]
    fn contour_and_lattice_enclose_the_same_number() {
        let poisson = |q: f64| Sampling::Poisson { rate: SampleRate::new(q).unwrap() };
        let fixed = |n: u64, b: u64| Sampling::Fixed(FixedBatch::new(n, b).unwrap());
        for (sampling, z, count) in [
            (poisson(0.02), 0.8, 300),
            (poisson(0.3), 3.0, 60),
            (poisson(0.001), 0.6, 4000),
            (poisson(0.7), 1.0, 20),
            (fixed(1000, 20), 2.0, 300),
            (fixed(10, 3), 6.0, 60),
            (fixed(10_000, 9000), 8.0, 30),
        ] {
            for adjacency in [Adjacency::AddRemove, Adjacency::ReplaceOne] {
                let lines = [rounds(sampling, z, count), rounds(Sampling::All {}, 40.0, 2)];
                let composition = Composition::fold(&lines, adjacency).unwrap();
                for direction in [Direction::Remove, Direction::Add] {
                    for delta in [1e-3, 1e-6] {
                        let (lower, upper) =
                            contour_epsilon(&composition, direction, delta).unwrap();
                        let other = lattice_epsilon(&composition, direction, delta).unwrap();
                        let other = Interval { lower: other.0, upper: other.1 };
                        let what = format!("{sampling:?} {z} {adjacency} {direction:?} {delta}");
                        assert!(upper >= other.lower, "{what}: {upper} {other:?}");
                        assert!(lower <= other.upper, "{what}: {lower} {other:?}");
                        assert!(upper - lower < 1e-6 * upper, "{what}: {lower} {upper}");
                        // And the lattice is not far off, up or down.
                        let close = other.upper < upper * 1.002 && other.lower > lower * 0.4;
                        assert!(close, "{what}: {upper} {other:?}");
                    }
                }
            }
        }
    }

    /// Where a method has to leave something out, what it leaves out is counted: intervals that are forced
    /// to be wide still enclose the number.
    #[test]
    fn what_is_left_out_is_counted() {
        let lines = [rounds(Sampling::Poisson { rate: SampleRate::new(0.02).unwrap() }, 0.8, 300)];
        let composition = Composition::fold(&lines, Adjacency::AddRemove).unwrap();
        for direction in [Direction::Remove, Direction::Add] {
            for epsilon in [0.5, 2.0, 4.0] {
                let mut cumulant = Cumulant::new(&composition, direction);
                let tilt = cumulant.best_slope(epsilon, payoff);
                let exact =
                    Contour::new(&composition, direction, &mut cumulant, tilt, Aid::default())
                        .unwrap();
                let exact = exact.delta(epsilon);
                let value = 0.5 * (exact.lower + exact.upper);
                let mut widths = Vec::new();
                for (frequencies, shorter) in
                    [(16, 1.0), (30, 1.0), (60, 1.0), (4000, 0.3), (4000, 0.5), (4000, 0.8)]
                {
                    let rough = Contour::rough(
                        &composition,
                        direction,
                        &mut cumulant,
                        tilt,
                        frequencies,
                        shorter,
                    );
                    let rough = rough.unwrap().delta(epsilon);
                    assert!(
                        rough.lower <= value && value <= rough.upper,
                        "{direction:?} {epsilon} {frequencies} {shorter}: {rough:?} {exact:?}"
                    );
                    widths.push((rough.upper - rough.lower) / value);
                }
                // They are wide indeed, or nothing was tried.
                assert!(widths.iter().any(|width| *width > 1e-3), "{widths:?}");
            }
        }
    }
}
