//! The profile in one direction: which method is tried, and the bounds on epsilon and delta that it gives.

use veilgrad_events::Delta;

use super::certified::{Certified, DeltaBounds, Method};
use super::closed_form::ClosedForm;
use super::contour::{Contour, interpolation, smoothing};
use super::lattice::{LONGEST, Lattice, ProfileQuestion, rare_lattice};
use crate::cumulant::{Cumulant, Jet, Smoothing, payoff};
use crate::number::bracket_root;
use crate::pair::Direction;
use crate::work::{self, Allowance};
use crate::{Composition, Interval, Sampled, Step, rdp};

/// The relative gap between the bounds of a contour at which no other method is tried.
const CONTOUR_GAP: f64 = 1e-4;
/// The same for thousands of distinct steps: other methods, which group them, are hardly ever tighter.
const MANY_STEPS_GAP: f64 = 0.03;
/// The same for the last methods that are tried. The upper bound of a smoothed contour is far closer to the truth than its
/// lower bound.
const LAST_GAP: f64 = 3e-4;
/// Tolerance of interpolated log transforms: the first number times tilt times epsilon for bounds on epsilon, which are then
/// within about a thousandth; the second number for bounds on delta.
const INTERPOLATED: (f64, f64) = (3e-4, 1e-3);
/// With fewer rounds than this, lattices are tried before smoothed contours.
const FEW_ROUNDS: f64 = 200.0;
/// Lattices are refined until the relative gap between their bounds on epsilon is at most this.
const LATTICE_GAP: f64 = 4e-5;
/// The relative gap to which a lattice is refined, and its largest number of points.
pub(crate) const FINE: (f64, usize) = (LATTICE_GAP, LONGEST);

/// How much looser chords may be on the lattice of rare steps, for the points of a whole profile.
const RARE_SKETCH: f64 = 30.0;

/// Above this epsilon no profile is computed from transforms.
pub(crate) const MOST_EPSILON: f64 = 1e6;
/// Where the RDP bound on epsilon is above this, only a contour and that bound are computed if a contour may do: nobody needs more
/// digits of such an epsilon, and searches on lattices for it took 30 s.
const MOST_LATTICE_EPSILON: f64 = 1e4;

/// A transform of the total privacy loss. It bounds delta at every epsilon, tightly near the one that it was computed for.
pub(crate) enum Transform {
    Contour(Contour),
    Smoothed(Contour),
    Lattice(Box<Lattice>),
    /// The transform of a composition that costs at least as much: only its upper bounds hold.
    UpperOnly(Box<Self>),
}

impl DeltaBounds for Transform {
    fn delta(&self, epsilon: f64) -> Interval {
        match self {
            Self::Contour(contour) | Self::Smoothed(contour) => contour.delta(epsilon),
            Self::Lattice(lattice) => lattice.delta(epsilon),
            Self::UpperOnly(other) => Interval { lower: 0.0, ..other.delta(epsilon) },
        }
    }
}

impl Transform {
    const fn method(&self) -> Method {
        match self {
            Self::Contour(_) | Self::Smoothed(_) => Method::Contour,
            Self::Lattice(_) => Method::Lattice,
            Self::UpperOnly(other) => other.method(),
        }
    }

    /// The relative gap between bounds on delta up to which a transform is reused at another epsilon.
    pub(crate) const fn usable_gap(&self) -> f64 {
        match self {
            Self::Contour(_) => CONTOUR_GAP,
            Self::Smoothed(_) | Self::Lattice(_) => 5e-3,
            Self::UpperOnly(other) => other.usable_gap(),
        }
    }
}

const UNKNOWN: Certified = Certified { bounds: Interval::UNKNOWN, method: Method::Contour };

/// Bounds on delta at `epsilon`, and the transform that gave them, if any. Lattices are refined to a relative gap of
/// `lattice_gap`, with at most `longest` points.
pub(crate) fn delta_towards(
    composition: &Composition,
    direction: Direction,
    epsilon: f64,
    (lattice_gap, longest): (f64, usize),
) -> (Certified, Option<Transform>) {
    if let Some(profile) = ClosedForm::new(composition, direction) {
        let bounds = profile.delta(epsilon);
        return (Certified { bounds, method: Method::ClosedForm }, None);
    }
    if work::left() == 0 {
        return (UNKNOWN, None);
    }
    let contour = match rarely_sampled(composition) {
        true => None,
        false => {
            let mut cumulant = Cumulant::new(composition, direction);
            let tilt = match composition.sample() {
                Some(sample) => Cumulant::new(sample, direction).best_slope(epsilon, payoff),
                None => cumulant.best_slope(epsilon, payoff),
            };
            first_contour(composition, direction, &mut cumulant, tilt, INTERPOLATED.1)
        }
    };
    let bounds = contour.as_ref().map_or(Interval::UNKNOWN, |contour| contour.delta(epsilon));
    let mut best = Certified { bounds, method: Method::Contour };
    if bounds.width() <= contour_gap(composition) * bounds.upper {
        return (best, contour.map(Transform::Contour));
    }
    if composition.sample().is_some() {
        let looseness = if lattice_gap > LATTICE_GAP { RARE_SKETCH } else { 1.0 };
        let question = ProfileQuestion::Epsilon(epsilon);
        if let Some(lattice) = lattice_if_rare(composition, direction, question, looseness) {
            let found = Certified { bounds: lattice.delta(epsilon), method: Method::Lattice };
            if found.bounds.upper.is_finite() {
                return (best.and(found), Some(Transform::Lattice(Box::new(lattice))));
            }
        }
        let accuracy = (lattice_gap, longest);
        let (found, transform) = coarse_delta(composition, direction, epsilon, accuracy);
        return (best.and(found), transform);
    }
    let smoothed =
        || smoothing::for_epsilon(composition, direction, epsilon).map(Transform::Smoothed);
    let lattice = || {
        let question = ProfileQuestion::Epsilon(epsilon);
        let found = Lattice::new(composition, direction, question, lattice_gap, longest);
        found.map(|lattice| Transform::Lattice(Box::new(lattice)))
    };
    // The characteristic function of few rounds decays slowly, and their lattice is tight enough.
    let both: [&dyn Fn() -> Option<Transform>; 2] = [&smoothed, &lattice];
    let only_lattice = composition.needs_lattices() || composition.rounds() < FEW_ROUNDS;
    let attempts = if only_lattice { &both[1..] } else { &both };
    let mut transform = None;
    for (index, attempt) in attempts.iter().enumerate() {
        let _allowance = allowance_for_attempt(index + 1 == attempts.len());
        if let Some(found) = attempt() {
            let certified = Certified { bounds: found.delta(epsilon), method: found.method() };
            if certified.bounds.upper <= best.bounds.upper {
                transform = Some(found);
            }
            best = best.and(certified);
        }
        let gap = transform.as_ref().map_or(0.0, Transform::usable_gap);
        if best.bounds.width() <= gap * best.bounds.upper {
            break;
        }
    }
    (best, transform)
}

/// The upper bound of [`delta_towards`] from a few groups of steps that cost at least as much; the lower bound is 0.
pub(crate) fn coarse_delta(
    composition: &Composition,
    direction: Direction,
    epsilon: f64,
    accuracy: (f64, usize),
) -> (Certified, Option<Transform>) {
    let coarse = composition.coarse();
    let _allowance = Allowance::for_steps(work::QUESTION / 4, coarse.steps().len());
    let (found, transform) = delta_towards(coarse, direction, epsilon, accuracy);
    (found.with_lower(0.0), transform.map(|found| Transform::UpperOnly(Box::new(found))))
}

/// Bounds on the smallest epsilon for `delta`.
pub(crate) fn epsilon_towards(
    composition: &Composition,
    direction: Direction,
    delta: f64,
) -> Certified {
    if let Some(profile) = ClosedForm::new(composition, direction) {
        let bounds = solve(&profile, delta, 0.0, 1.0).unwrap_or(Interval::UNKNOWN);
        return Certified { bounds, method: Method::ClosedForm };
    }
    if work::left() == 0 {
        return UNKNOWN;
    }
    let bounds = contour_epsilon(composition, direction, delta).unwrap_or(Interval::UNKNOWN);
    let mut best = Certified { bounds, method: Method::Contour };
    if bounds.width() <= contour_gap(composition) * bounds.upper.max(0.01) {
        return best;
    }
    if composition.sample().is_some() {
        if let Some(bounds) = rare_epsilon(composition, direction, delta) {
            best = best.and(Certified { bounds, method: Method::Lattice });
            if best.bounds.width() <= MANY_STEPS_GAP * best.bounds.upper.max(0.01) {
                return best;
            }
        }
        let coarse = composition.coarse();
        let _allowance = Allowance::for_steps(work::QUESTION, coarse.steps().len());
        let found = epsilon_towards(coarse, direction, delta);
        let lower = match composition.attained() && found.bounds.upper.is_finite() {
            true => epsilon_towards(composition.coarse_below(), direction, delta).bounds.lower,
            false => 0.0,
        };
        return best.and(found.with_lower(lower));
    }
    // Without a contour the RDP bound may be many times too large.
    let most = if composition.needs_lattices() { MOST_EPSILON } else { MOST_LATTICE_EPSILON };
    if Delta::new(delta).is_ok_and(|delta| rdp_exceeds(composition, delta, most)) {
        return best;
    }
    // The characteristic function of few rounds decays so slowly that their lattice is quicker.
    type EpsilonBounds = fn(&Composition, Direction, f64) -> Option<Interval>;
    let only_lattice: [(Method, EpsilonBounds); 1] = [(Method::Lattice, lattice_epsilon)];
    let mut attempts: [(Method, EpsilonBounds); 2] =
        [(Method::Contour, smoothed_epsilon), (Method::Lattice, lattice_epsilon)];
    if composition.rounds() < FEW_ROUNDS {
        attempts.reverse();
    }
    let attempts = if composition.needs_lattices() { &only_lattice[..] } else { &attempts };
    for (index, (method, attempt)) in attempts.iter().copied().enumerate() {
        let _allowance = allowance_for_attempt(index + 1 == attempts.len());
        if let Some(bounds) = attempt(composition, direction, delta) {
            best = best.and(Certified { bounds, method });
        }
        if best.bounds.width() <= LAST_GAP * best.bounds.upper.max(0.01) {
            break;
        }
    }
    best
}

/// The relative gap between the bounds of a contour at which no other method is tried.
fn contour_gap(composition: &Composition) -> f64 {
    if composition.sample().is_some() { MANY_STEPS_GAP } else { CONTOUR_GAP }
}

/// Half of the remaining work; all of it for the last attempt.
fn allowance_for_attempt(last: bool) -> Allowance {
    Allowance::open(if last { work::left() } else { work::left() / 2 })
}

/// The contour without smoothing. For thousands of distinct steps it takes at most half of the remaining work, so that other
/// methods can be tried if it fails.
fn first_contour(
    composition: &Composition,
    direction: Direction,
    cumulant: &mut Cumulant,
    tilt: f64,
    tolerance: f64,
) -> Option<Contour> {
    let _allowance = allowance_for_attempt(composition.sample().is_none());
    match composition.sample() {
        Some(sample) => interpolation::contour(composition, sample, direction, tilt, tolerance),
        None => Contour::new(composition, direction, cumulant, tilt, Smoothing::default()),
    }
}

/// Whether the RDP bound on epsilon is above `most`.
pub(crate) fn rdp_exceeds(composition: &Composition, delta: Delta, most: f64) -> bool {
    // Only the choice of the method depends on this, so a sample of thousands of distinct steps is enough.
    let typical = composition.sample().unwrap_or(composition);
    rdp::epsilon(typical, delta).is_ok_and(|found| found.epsilon.get() > most)
}

fn smoothed_epsilon(
    composition: &Composition,
    direction: Direction,
    delta: f64,
) -> Option<Interval> {
    let (contour, guess) = smoothing::for_delta(composition, direction, delta)?;
    solve(&contour, delta, guess, 1e-3 * guess)
}

fn lattice_epsilon(
    composition: &Composition,
    direction: Direction,
    delta: f64,
) -> Option<Interval> {
    let lattice =
        Lattice::new(composition, direction, ProfileQuestion::Delta(delta), LATTICE_GAP, LONGEST)?;
    solve(&lattice, delta, lattice.epsilon, 1.0 / lattice.tilt)
}

fn rare_epsilon(composition: &Composition, direction: Direction, delta: f64) -> Option<Interval> {
    let lattice = lattice_if_rare(composition, direction, ProfileQuestion::Delta(delta), 1.0)?;
    solve(&lattice, delta, lattice.epsilon, 1.0 / lattice.tilt)
}

/// The lattice for thousands of distinct steps; `None` unless they rarely sample a record.
fn lattice_if_rare(
    composition: &Composition,
    direction: Direction,
    question: ProfileQuestion,
    looseness: f64,
) -> Option<Lattice> {
    match rarely_sampled(composition) {
        true => rare_lattice(composition, direction, question, looseness),
        false => None,
    }
}

/// Whether a record is sampled so rarely that characteristic functions hardly decay, so that no contour is tried.
fn rarely_sampled(composition: &Composition) -> bool {
    let expected = |(step, count): &(Step, u64)| match step.sampled {
        Sampled::Always => f64::INFINITY,
        _ => step.rate() * *count as f64,
    };
    composition.steps().iter().map(expected).sum::<f64>() < 0.3
}

fn contour_epsilon(
    composition: &Composition,
    direction: Direction,
    delta: f64,
) -> Option<Interval> {
    if rarely_sampled(composition) {
        return None;
    }
    let extra = |tilt: f64, looseness: f64| {
        let payoff = payoff(tilt);
        Jet { value: payoff.value - delta.ln() - looseness, ..payoff }
    };
    let mut search = Cumulant::new(composition.sample().unwrap_or(composition), direction);
    let mut tilt = search.best_ratio(|tilt| extra(tilt, 0.0));
    let mut looseness = 0.0;
    if composition.sample().is_some() {
        // The Chernoff bound exceeds delta by about the deviation of the loss. That matters where losses are large: errors of
        // interpolated transforms grow away from the guess. One Newton step corrects the tilt.
        let k = search.at(tilt);
        looseness = libm::log1p(k.second.max(0.0).sqrt());
        let curvature = k.second + payoff(tilt).second;
        let shift = looseness / (tilt * tilt * curvature);
        tilt *= 1.0 - if shift < 0.5 { shift } else { 0.5 };
    }
    let guess = (search.at(tilt).value + extra(tilt, looseness).value) / tilt;
    let mut cumulant = Cumulant::new(composition, direction);
    // The slope of log delta in epsilon is about minus the tilt.
    let tolerance = INTERPOLATED.0 * (tilt * guess).max(0.5);
    let contour = first_contour(composition, direction, &mut cumulant, tilt, tolerance)?;
    solve(&contour, delta, guess, 1.0 / tilt)
}

/// Bounds on the epsilon at which a profile falls to `delta`: the largest epsilon found where the lower bound on the profile is
/// above `delta`, and the smallest found where the upper bound is not. `scale` is the scale on which the profile falls.
fn solve(profile: &dyn DeltaBounds, delta: f64, guess: f64, scale: f64) -> Option<Interval> {
    let log_ratio = |value: f64| (value.max(1e-320) / delta).ln();
    // `max` in `log_ratio` would turn NaN into a small upper bound.
    let upper_at = |epsilon: f64| match profile.delta(epsilon).upper {
        upper if upper.is_nan() => f64::INFINITY,
        upper => log_ratio(upper),
    };
    let lower_at = |epsilon: f64| log_ratio(profile.delta(epsilon).lower);
    // The bounds are tightest at the guess, so the search begins there.
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
    Some(Interval { lower, upper })
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

    /// The two methods share only the pair of distributions; their intervals must overlap.
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
                        let Interval { lower, upper } =
                            contour_epsilon(&composition, direction, delta).unwrap();
                        let other = lattice_epsilon(&composition, direction, delta).unwrap();
                        let what = format!("{sampling:?} {z} {adjacency} {direction:?} {delta}");
                        assert!(upper >= other.lower, "{what}: {upper} {other:?}");
                        assert!(lower <= other.upper, "{what}: {lower} {other:?}");
                        assert!(upper - lower < 1e-6 * upper, "{what}: {lower} {upper}");
                        // The lattice is reasonably tight.
                        let is_tight = other.upper < upper * 1.002 && other.lower > lower * 0.4;
                        assert!(is_tight, "{what}: {upper} {other:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn bounds_hold_with_too_few_frequencies_or_too_short_a_period() {
        let lines = [rounds(Sampling::Poisson { rate: SampleRate::new(0.02).unwrap() }, 0.8, 300)];
        let composition = Composition::fold(&lines, Adjacency::AddRemove).unwrap();
        for direction in [Direction::Remove, Direction::Add] {
            for epsilon in [0.5, 2.0, 4.0] {
                let mut cumulant = Cumulant::new(&composition, direction);
                let tilt = cumulant.best_slope(epsilon, payoff);
                let none = Smoothing::default();
                let exact =
                    Contour::new(&composition, direction, &mut cumulant, tilt, none).unwrap();
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
                // Otherwise the error bounds were not put to the test.
                assert!(widths.iter().any(|width| *width > 1e-3), "{widths:?}");
            }
        }
    }
}
