//! The lattice for thousands of distinct rounds that rarely sample a record.
//!
//! The loss of such a round is 0 except for a measure of small mass. The measures of all rounds are added up. To first order
//! the composition is the exponential of that sum (docs/accounting.md, "Rare and distinct rounds"), so that all rounds need
//! only one Fourier transform.

use std::collections::BTreeMap;

use super::convolution::{LossDistributions, ProfileQuestion};
use super::intensity::Intensity;
use super::{LONGEST, Lattice, WRAPPED, crossing};
use crate::cumulant::payoff;
use crate::number::UNIT;
use crate::pair::{Direction, Loss, Pair, step_delta};
use crate::{Composition, Interval, Sampled, Step, work};

/// Work for the profile of a round at one loss.
const PROFILE: u64 = 12;
/// Losses count as infinite from the point on at which the profiles of all rounds sum to this share of delta.
const TRUNCATED: f64 = 1e-5;
/// The planned excess of chords above profiles, relative to them: the first number times tilt times epsilon, but at most the
/// second.
const CHORD: (f64, f64) = (2.5e-4, 2e-3);
/// For the upper bound, the largest index of the first point after 0; for the lower bound, the index below which losses are
/// merged.
const FARTHEST: f64 = 300.0;
const MERGED: i64 = 100;
/// The number of lattice points below epsilon, and the largest number below the largest finite loss.
const POINTS: f64 = 2700.0;
const LONGEST_LOSS: f64 = 1e5;
/// Rounds that together have at most the first number (times the looseness of chords) as their share of the cost are cheap: the
/// excess of their chords may be larger by the second number.
const CHEAP: (f64, f64) = (0.003, 4.0);
/// Grid and points are planned from a sample of about this many distinct rounds.
const SAMPLE: usize = 4096;
/// A limit on losses, below the overflow of `e^loss`.
const MOST_LOSS: f64 = 600.0;
/// The spacing of points is at most their loss divided by this, for chords within CHORD.
const POINT_DENSITY: f64 = 150.0;

/// The lattice points at which profiles of rounds are computed; the first is 0.
struct Points {
    grid: f64,
    indices: Vec<i64>,
    losses: Vec<Loss>,
    /// `e^{width} - 1` and `1 - e^{-width}` of the cells between them.
    growth: Vec<(f64, f64)>,
    /// The position in `indices` of the first point from MERGED on.
    merged: usize,
    /// The position of the first point from half of epsilon on, but not before `merged`.
    halfway: usize,
    /// Pairs of losses in one round are kept on the lattice, at twice the larger loss, up to this index of the larger loss.
    last_pair: i64,
    /// A profile is cut off where it falls below this.
    negligible: f64,
    /// How fast the log of delta falls with epsilon, roughly.
    tilt: f64,
}

impl Points {
    /// `looseness` is a factor on the tolerance of chords.
    fn new(plan: &Plan, looseness: f64) -> Self {
        let wider = looseness.sqrt();
        let (density, widest) =
            ((POINT_DENSITY / wider) as i64, (wider * plan.width / plan.grid) as i64);
        let last = (plan.last / plan.grid).ceil() as i64;
        let at_epsilon = (plan.epsilon / plan.grid) as i64;
        let (mut indices, mut index) = (vec![0], plan.near);
        while index < last {
            indices.push(index);
            // Few points where the lower bound merges losses.
            let stride = match index < MERGED {
                true => (index / 4).min(MERGED - index),
                // Loose chords are for profiles at many epsilons, so cells keep growing beyond this one.
                false if looseness > 1.0 && index > at_epsilon => index / density,
                false => (index / density).min(widest),
            };
            index += stride.max(1);
        }
        indices.push(last.max(index));
        let growth = indices.windows(2).map(|pair| match pair {
            [low, high] => {
                let width = (high - low) as f64 * plan.grid;
                (libm::expm1(width), -libm::expm1(-width))
            }
            _ => (f64::NAN, f64::NAN),
        });
        let growth = growth.collect();
        let merged = indices.partition_point(|index| *index < MERGED);
        let Plan { grid, negligible, tilt, .. } = *plan;
        let halfway = indices.partition_point(|index| 2 * *index < at_epsilon).max(merged);
        let losses = indices.iter().map(|index| Loss::from(*index as f64 * grid)).collect();
        Self {
            grid,
            indices,
            losses,
            growth,
            merged,
            halfway,
            last_pair: at_epsilon,
            negligible,
            tilt,
        }
    }
}

/// The profile of a round at a point, and `e^loss` times the probability under the other distribution of losses above it.
type ProfileAndSlope = (Interval, Interval);

/// The measures of the upper and the lower bound, summed up over rounds.
struct Sums<'a> {
    points: &'a Points,
    /// Masses at the points, and at the point before 0.
    upper: Vec<f64>,
    before: f64,
    /// Sums of the logs of the masses at 0.
    upper_rest: f64,
    infinite: f64,
    lower: Vec<f64>,
    lower_rest: f64,
    offset: f64,
    /// Pairs of losses in one round, by the point of the larger one, and those above the last pair.
    twice: Vec<f64>,
    twice_apart: f64,
}

impl<'a> Sums<'a> {
    fn new(points: &'a Points) -> Self {
        Self {
            points,
            upper: vec![0.0; points.indices.len()],
            before: 0.0,
            upper_rest: 0.0,
            infinite: 0.0,
            lower: vec![0.0; points.indices.len()],
            lower_rest: 0.0,
            offset: 0.0,
            twice: vec![0.0; points.indices.len()],
            twice_apart: 0.0,
        }
    }

    /// Adds `count` equal rounds; `profile` is a reused allocation. `None` if they sample a record too often for this lattice.
    fn add(
        &mut self,
        step: Step,
        direction: Direction,
        count: f64,
        profile: &mut Vec<ProfileAndSlope>,
    ) -> Option<()> {
        let pair = Pair::of_profile(step, direction);
        profile.clear();
        for loss in &self.points.losses {
            let found = pair.profile_and_slope(loss);
            profile.push(found);
            if !(count * found.0.upper > self.points.negligible) {
                break;
            }
        }
        work::spend(PROFILE * profile.len() as u64);
        self.add_below(profile, step, count);
        self.add_above(profile, step, count)
    }

    /// Adds rounds to the upper bound: chords between points. Losses below the point before 0 are moved up to it, and the
    /// profile at the last point counts as the probability of an infinite loss.
    fn add_above(&mut self, profile: &mut [ProfileAndSlope], step: Step, count: f64) -> Option<()> {
        let beyond = profile.last()?.0.upper;
        if let Some((found, _)) = profile.last_mut() {
            *found = Interval { lower: beyond, upper: beyond };
        }
        let [(zero, _), (one, _), ..] = *profile else {
            self.infinite += count * beyond;
            return Some(());
        };
        let (growth, fall) = *self.points.growth.first()?;
        // The profile at the point -t before 0 is 1 - e^-t plus this times the profile at t.
        let mirrored = match step.sampled {
            Sampled::Poisson(q) if -q / (1.0 - q) > -fall => 0.0,
            Sampled::PoissonReplaced(_) | Sampled::FixedReplaced(_) => 1.0 - fall,
            _ => return None,
        };
        // The mass at 0: 1 minus the masses that chords move to the points before and after.
        let rest =
            |zero: f64, one: f64| 1.0 - (zero - mirrored * one) / fall - (zero - one) / growth;
        let (least, most) = (rest(zero.upper, one.lower), rest(zero.lower, one.upper));
        if !(least > 0.5) {
            return None;
        }
        // The exponential of all masses contains pairs of a loss before 0 and one after, which sum to 0: these need not be added.
        let before = ((zero.lower - mirrored * one.upper) / fall - zero.upper).max(0.0);
        let after = chord_mass(profile, &self.points.growth, 1, |found| (found.lower, found.upper));
        let pairs = before * after?.max(0.0) / (most * most) * (1.0 - 1e-9);
        let weight = count * (1.0 + pairs) / (least - 1e-14);
        self.upper_rest += count * ((most + 1e-14).ln().min(0.0) - libm::log1p(pairs));
        self.infinite += weight * beyond;
        self.before += weight * ((zero.upper - mirrored * one.lower) / fall - zero.lower).max(0.0);
        for (j, sum) in self.upper.iter_mut().enumerate().take(profile.len()).skip(1) {
            let mass =
                chord_mass(profile, &self.points.growth, j, |found| (found.upper, found.lower));
            *sum += weight * mass?.max(0.0);
        }
        Some(())
    }

    /// Adds rounds to the lower bound: losses below the point `merged` are merged into one. From there on masses come from
    /// chords, scaled down by their relative excess above the profile, up to some last point. The rest of the mass is at the
    /// merged loss.
    fn add_below(&mut self, profile: &mut [ProfileAndSlope], step: Step, count: f64) {
        let Points { merged, halfway, ref growth, ref indices, last_pair, .. } = *self.points;
        let reference = profile.get(halfway).or(profile.last()).map_or(0.0, |(at, _)| at.upper);
        // The end of the last cell, and the relative excess of chords up to there: together they should cost little.
        let (mut last, mut chord, mut cost) = (merged, 0.0, f64::INFINITY);
        let mut largest: f64 = 0.0;
        for (cell, (number, (growth, fall))) in
            profile.windows(2).zip(growth.iter().enumerate()).skip(merged)
        {
            let [(_, low), (end, high)] = cell else { break };
            // A chord exceeds the tangents at its ends by at most a quarter of the width times the difference of their slopes.
            let excess =
                (low.upper - high.lower * (1.0 - fall)) * growth / (3.99 * end.lower.max(0.0));
            if !(excess < 0.5) {
                break;
            }
            largest = largest.max(excess);
            let cost_up_to_here = largest * reference + end.upper;
            if cost_up_to_here < cost {
                (last, chord, cost) = (number + 1, largest, cost_up_to_here);
            }
        }
        let (Some((first, slope)), Some((end, _))) = (profile.get(merged), profile.get(last))
        else {
            return;
        };
        if last == merged {
            return;
        }
        let (first, slope, end) = (*first, *slope, end.upper);
        let loss = indices.get(merged).map_or(f64::NAN, |index| *index as f64 * self.points.grid);
        // Upper and lower bounds on the probabilities of losses from there on, under P and under Q.
        let (most, least) = (first.upper + slope.upper, slope.lower * (-loss).exp());
        let most_other = slope.upper * (-loss).exp() * (1.0 + 1e-14);
        let offset = libm::log1p(-most) - libm::log1p(-least) - 1e-15;
        // For a symmetric pair, the lowest losses may be left out instead, which leaves a merged loss of 0.
        let is_symmetric = !matches!(step.sampled, Sampled::Poisson(_));
        let leaves_out = is_symmetric && most_other < -offset * self.points.tilt;
        let (offset, left_out) = if leaves_out { (0.0, most_other) } else { (offset, 0.0) };
        let mut total = 0.0;
        let at_end = profile.get(last).copied();
        if let Some((found, _)) = profile.get_mut(last) {
            *found = Interval { lower: end, upper: end };
        }
        let mut masses = Vec::with_capacity(last + 1 - merged);
        for j in merged..=last {
            let kept = profile.get(..=last).unwrap_or_default();
            let mass = match j == merged {
                true => {
                    let next = kept.get(j + 1).zip(growth.get(j));
                    next.map(|((next, _), (growth, _))| {
                        slope.lower - (first.upper - next.lower) / growth
                    })
                }
                false => chord_mass(kept, growth, j, |found| (found.lower, found.upper)),
            };
            let mass = mass.unwrap_or(0.0).max(0.0) * (1.0 - chord);
            total += mass;
            masses.push(mass);
        }
        if let Some((slot, found)) = profile.get_mut(last).zip(at_end) {
            *slot = found;
        }
        let not_merged = (total + left_out) * (1.0 + 1e-12);
        let rest = 1.0 - not_merged;
        if !(rest > 0.5) || !offset.is_finite() {
            return;
        }
        self.lower_rest += count * libm::log1p(-not_merged);
        self.offset += count * offset;
        let mut cumulative = 0.0;
        let sums = self.lower.iter_mut().zip(&mut self.twice).skip(merged);
        for (((sum, twice), index), mass) in sums.zip(indices.iter().skip(merged)).zip(masses) {
            let mass = mass / rest;
            cumulative += mass;
            *sum += count * mass;
            let twice = if *index > last_pair { &mut self.twice_apart } else { twice };
            *twice += count * mass * cumulative;
        }
    }

    /// The intensities of the upper and the lower bound of the rounds of all `sums`, which share a grid and its first point
    /// after 0. `terms` is the number of rounds, for rounding errors.
    fn finish(sums: [Self; 2], terms: usize) -> [Intensity; 2] {
        let total = |value: fn(&Self) -> f64| sums.iter().map(value).sum::<f64>();
        let points = sums.iter().map(|sums| sums.points.indices.len()).sum::<usize>();
        let slack = (4.0 * (terms + points) as f64 + 64.0) * UNIT;
        let atoms = |masses: fn(&Self) -> &[f64], factor: f64| {
            let mut joined: BTreeMap<i64, f64> = BTreeMap::new();
            for sums in &sums {
                for (index, mass) in sums.points.indices.iter().zip(masses(sums)) {
                    *joined.entry(*index).or_default() += mass * factor;
                }
            }
            joined.into_iter().filter(|(_, mass)| *mass > 0.0).collect::<Vec<_>>()
        };
        let mut above = atoms(|sums| &sums.upper, 1.0 + slack);
        let before = total(|sums| sums.before);
        let [Self { points, .. }, _] = &sums;
        if before > 0.0 {
            above.insert(0, (-points.indices.get(1).copied().unwrap_or(1), before * (1.0 + slack)));
        }
        let mut upper = Intensity {
            atoms: above,
            log_rest: total(|sums| sums.upper_rest) * (1.0 - slack),
            infinite: 0.0,
            offset: 0.0,
            twice: Vec::new(),
            twice_apart: 0.0,
        };
        // The mass of the finite losses of all rounds.
        let finite = upper.moment(points.grid, 0.0) * (1.0 + slack) + upper.log_rest;
        let infinite = libm::expm1(total(|sums| sums.infinite) * (1.0 + slack));
        upper.infinite = finite.exp() * infinite * (1.0 + 1e-12);
        let mut lower = Intensity {
            atoms: atoms(|sums| &sums.lower, 1.0 - slack),
            log_rest: total(|sums| sums.lower_rest) * (1.0 + slack),
            infinite: 0.0,
            offset: total(|sums| sums.offset) * (1.0 + slack),
            twice_apart: 0.0,
            twice: atoms(|sums| &sums.twice, (1.0 + slack) * (1.0 + 1e-9))
                .into_iter()
                .map(|(index, mass)| (2 * index, mass))
                .collect(),
        };
        let finite = lower.moment(points.grid, 0.0) + lower.log_rest;
        let twice_apart = total(|sums| sums.twice_apart);
        lower.twice_apart = finite.exp() * twice_apart * (1.0 + slack) * (1.0 + 1e-9);
        [upper, lower]
    }
}

/// The mass that chords of a profile put at point j: a difference over the cell before minus a difference over the cell after.
/// `bounds` returns the bound on a profile value that is used with a plus sign, and that used with a minus sign.
fn chord_mass(
    profile: &[ProfileAndSlope],
    growth: &[(f64, f64)],
    j: usize,
    bounds: impl Fn(Interval) -> (f64, f64),
) -> Option<f64> {
    let (here, (_, fall)) = (bounds(profile.get(j)?.0).1, growth.get(j - 1)?);
    let from_before = (bounds(profile.get(j - 1)?.0).0 - here) / fall;
    let Some((after, _)) = profile.get(j + 1) else { return Some(from_before) };
    Some(from_before - (here - bounds(*after).0) / growth.get(j)?.0)
}

/// Parameters of the points. They decide how tight bounds are, never whether they hold.
struct Plan {
    epsilon: f64,
    grid: f64,
    /// The index of the first point after 0.
    near: i64,
    /// The width of a cell at which a chord of a profile as steep as near epsilon is within tolerance.
    width: f64,
    /// The largest finite loss.
    last: f64,
    negligible: f64,
    tilt: f64,
    /// Epsilon and half of it, each with the sum of the profiles of all rounds there.
    totals: [(f64, f64); 2],
    /// Rounds whose [`share`](Self::share) is at most this are cheap.
    cheap: f64,
}

impl Plan {
    fn new(
        composition: &Composition,
        direction: Direction,
        question: ProfileQuestion,
        looseness: f64,
    ) -> Option<Self> {
        // A sample is enough for a plan.
        let every = composition.steps().len() / SAMPLE + 1;
        let steps = || {
            let steps = composition.steps().iter().step_by(every);
            steps.map(|(step, n)| (*step, *n as f64 * every as f64))
        };
        let sum_of_profiles = |loss: f64| -> f64 {
            work::spend(PROFILE * (composition.steps().len() / every) as u64);
            if loss > MOST_LOSS {
                return 0.0;
            }
            steps().map(|(step, n)| n * step_delta(step, direction, loss).upper.max(0.0)).sum()
        };
        let (epsilon, delta) = match question {
            ProfileQuestion::Delta(delta) => (crossing(sum_of_profiles, delta), delta),
            ProfileQuestion::Epsilon(epsilon) => (epsilon, sum_of_profiles(epsilon)),
        };
        let (mut total_at_zero, mut squares) = (0.0, 0.0);
        for (step, n) in steps() {
            let at_zero = step_delta(step, direction, 0.0).upper;
            total_at_zero += n * at_zero;
            squares += n * at_zero * at_zero;
        }
        // For epsilons near 0, the grid is that of the epsilon at which profiles have fallen to a hundredth.
        let hundredth = 0.01 * total_at_zero;
        let epsilon =
            if delta > hundredth { crossing(sum_of_profiles, hundredth) } else { epsilon };
        let last = crossing(sum_of_profiles, TRUNCATED * delta.min(hundredth)) * 1.05;
        // The slope of the log of profiles near epsilon.
        let tilt = (sum_of_profiles(0.95 * epsilon) / sum_of_profiles(1.05 * epsilon)).ln()
            / (0.1 * epsilon);
        // A compromise (docs/accounting.md): a near first point adds pairs of losses in one round, a far one adds variance.
        let near = libm::cbrt(2.0 * squares / (tilt * tilt * total_at_zero));
        let grid = (epsilon / POINTS).max(last / LONGEST_LOSS * looseness.sqrt());
        let near = (near / grid).round().clamp(1.0, FARTHEST) as i64;
        let chord = (CHORD.0 * tilt * epsilon).min(CHORD.1);
        let width = (2.0 * chord / (tilt * (1.0 + tilt))).sqrt();
        let is_valid = grid > 0.0 && last > epsilon;
        let totals = [epsilon, 0.5 * epsilon].map(|loss| (loss, sum_of_profiles(loss)));
        let negligible = TRUNCATED * delta / composition.steps().len() as f64;
        let mut plan =
            Self { epsilon, grid, near, width, last, negligible, tilt, totals, cheap: 0.0 };
        let share = |(step, n): &(Step, u64)| plan.share(*step, direction, *n as f64);
        let mut shares: Vec<f64> = composition.steps().iter().step_by(every).map(share).collect();
        shares.sort_by(f64::total_cmp);
        let most = (CHEAP.0 * looseness).min(0.1) * shares.iter().sum::<f64>();
        let mut sum = 0.0;
        let is_cheap = |share: &f64| {
            sum += share;
            sum <= most
        };
        plan.cheap = shares.into_iter().take_while(is_cheap).last().unwrap_or(0.0);
        is_valid.then_some(plan)
    }

    /// The estimated share of rounds in the cost: their share of profiles at the losses of `totals`.
    fn share(&self, step: Step, direction: Direction, count: f64) -> f64 {
        work::spend(2 * PROFILE);
        let at = |(loss, total): &(f64, f64)| step_delta(step, direction, *loss).upper / total;
        count * self.totals.iter().map(at).sum::<f64>()
    }

    /// The loss distributions of the upper and the lower bound, from every `every`-th distinct round (counted `every` times).
    fn losses(
        &self,
        composition: &Composition,
        direction: Direction,
        looseness: f64,
        every: usize,
    ) -> Option<[LossDistributions; 2]> {
        let points = [1.0, CHEAP.1].map(|factor| Points::new(self, looseness * factor));
        let (mut all_sums, mut profile) = (points.each_ref().map(Sums::new), Vec::new());
        let [expensive, cheap] = &mut all_sums;
        for (step, count) in composition.steps().iter().step_by(every) {
            if work::left() == 0 {
                return None;
            }
            let count = *count as f64;
            let is_cheap = self.share(*step, direction, count) <= self.cheap;
            let sums = if is_cheap { &mut *cheap } else { &mut *expensive };
            sums.add(*step, direction, count * every as f64, &mut profile)?;
        }
        Some(Sums::finish(all_sums, composition.steps().len()).map(|intensity| LossDistributions {
            grid: self.grid,
            steps: Vec::new(),
            intensity: Some(intensity),
            split: None,
        }))
    }
}

/// The lattice for a question; `looseness` is a factor on the tolerance of chords, 1 for tight bounds. `None` where this method
/// does not apply.
pub(crate) fn lattice(
    composition: &Composition,
    direction: Direction,
    question: ProfileQuestion,
    looseness: f64,
) -> Option<Lattice> {
    // When a record is added, large losses are negative.
    if direction == Direction::Add && !composition.is_symmetric() {
        return None;
    }
    if !composition.steps().iter().all(|(step, _)| step.has_two_parameters()) {
        return None;
    }
    let plan = Plan::new(composition, direction, question, looseness)?;
    let every = composition.steps().len() / SAMPLE + 1;
    let [sketch, _] = plan.losses(composition, direction, 50.0, every)?;
    let tilt = sketch.best_tilt(match question {
        ProfileQuestion::Epsilon(_) => ProfileQuestion::Epsilon(plan.epsilon),
        ProfileQuestion::Delta(_) => question,
    });
    let [upper, lower] = plan.losses(composition, direction, looseness, 1)?;
    let window = upper.window(tilt, upper.cumulant(tilt), WRAPPED + payoff(tilt).value)?;
    let points = ((window.high - window.low) / plan.grid + 16.0).max(64.0);
    if !(points < LONGEST as f64) {
        return None;
    }
    let points = (points as usize).next_power_of_two();
    let compose = |losses: LossDistributions| losses.compose(tilt, &window, points);
    let (upper, lower) = (compose(upper), compose(lower));
    Some(Lattice { upper, lower, tilt, epsilon: plan.epsilon, is_only_above: false })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::certified::DeltaBounds;
    use veilgrad_events::{
        Adjacency, ClipNorm, FixedBatch, NoiseStd, Round, Rounds, SampleRate, Sampling, SumQuery,
    };

    fn composition(rows: &[(Sampling, f64, u64)], adjacency: Adjacency) -> Composition {
        let line = |(sampling, z, count): &(Sampling, f64, u64)| {
            let query = SumQuery::new("g", ClipNorm::new(1.0).unwrap(), NoiseStd::new(*z).unwrap());
            Rounds { count: *count, round: Round::new(*sampling, vec![query]).unwrap() }
        };
        Composition::fold(&rows.iter().map(line).collect::<Vec<_>>(), adjacency).unwrap()
    }

    fn poisson(q: f64) -> Sampling {
        Sampling::Poisson { rate: SampleRate::new(q).unwrap() }
    }

    /// A single round has a profile in closed form. The rates here are high: pairs of losses in one round, which only the
    /// exponential has, would dominate delta at large epsilons if they were not subtracted.
    #[test]
    fn one_round_is_enclosed_also_where_only_two_losses_of_it_would_cost() {
        let fixed = Sampling::Fixed(FixedBatch::new(100, 2).unwrap());
        for (sampling, adjacency) in [
            (poisson(0.02), Adjacency::AddRemove),
            (poisson(0.02), Adjacency::ReplaceOne),
            (fixed, Adjacency::ReplaceOne),
        ] {
            for (z, looseness) in [(0.1, 1.0), (0.1, 100.0), (0.3, 1.0), (0.3, 100.0), (1.0, 1.0)] {
                let one = composition(&[(sampling, z, 1)], adjacency);
                let step = one.steps()[0].0;
                let question = ProfileQuestion::Delta(1e-6);
                let Some(found) = lattice(&one, Direction::Remove, question, looseness) else {
                    panic!("{sampling:?} {z}");
                };
                let mut tight = 0;
                for i in 1..120 {
                    let epsilon = found.epsilon * f64::from(i) / 50.0;
                    let (exact, bounds) =
                        (step_delta(step, Direction::Remove, epsilon), found.delta(epsilon));
                    let what =
                        format!("{sampling:?} {z} {looseness} {epsilon} {exact:?} {bounds:?}");
                    assert!(bounds.lower <= exact.upper && exact.lower <= bounds.upper, "{what}");
                    tight += i32::from(bounds.lower > 0.5 * exact.upper);
                }
                assert!(tight > 10, "{sampling:?} {z} {looseness} {tight}");
            }
        }
    }

    /// A lower profile at every loss, also at negative ones, is what makes the lower bound hold in any composition.
    #[test]
    fn the_measure_of_the_lower_bound_is_nowhere_above_the_profile() {
        let (mut merged, mut left_out) = (0, 0);
        for (q, z) in [(0.02, 0.1), (0.02, 0.3), (1e-3, 0.2), (1e-4, 0.5), (0.02, 1.0)] {
            let one = composition(&[(poisson(q), z, 1)], Adjacency::ReplaceOne);
            let step = one.steps()[0].0;
            let question = ProfileQuestion::Delta(1e-6);
            let plan = Plan::new(&one, Direction::Remove, question, 1.0).unwrap();
            for looseness in [1.0, CHEAP.1] {
                let points = Points::new(&plan, looseness);
                let mut sums = Sums::new(&points);
                sums.add(step, Direction::Remove, 1.0, &mut Vec::new()).unwrap();
                assert!(sums.lower_rest < 0.0, "{q} {z}: nothing was added");
                let rest = sums.lower_rest.exp();
                *if sums.offset < 0.0 { &mut merged } else { &mut left_out } += 1;
                for i in -200..=200 {
                    let x = 0.02 * f64::from(i) * plan.epsilon;
                    let exact = match x < 0.0 {
                        true => {
                            let mirrored = step_delta(step, Direction::Remove, -x).upper;
                            -x.exp_m1() + x.exp() * mirrored
                        }
                        false => step_delta(step, Direction::Remove, x).upper,
                    };
                    let value = |loss: f64| (-(x - loss).exp_m1()).max(0.0);
                    let atoms = points.losses.iter().zip(&sums.lower);
                    let found = atoms.map(|(loss, mass)| rest * mass * value(loss.value));
                    let found = found.sum::<f64>() + rest * value(sums.offset);
                    assert!(found <= exact + 1e-14, "{q} {z} {looseness} {x}: {found} {exact}");
                }
            }
        }
        assert!(merged > 0 && left_out > 0, "{merged} {left_out}");
    }

    /// The exponential of the measure of the upper bound has at least the mass of the round at every point.
    #[test]
    fn the_exponential_of_the_measure_of_the_upper_bound_is_nowhere_below_the_round() {
        for (q, z, adjacency) in [
            (0.02, 0.3, Adjacency::ReplaceOne),
            (1e-3, 0.7, Adjacency::ReplaceOne),
            (1e-5, 0.4, Adjacency::ReplaceOne),
            (1e-3, 0.7, Adjacency::AddRemove),
        ] {
            let one = composition(&[(poisson(q), z, 1)], adjacency);
            let step = one.steps()[0].0;
            let question = ProfileQuestion::Delta(1e-6);
            let plan = Plan::new(&one, Direction::Remove, question, 1.0).unwrap();
            let points = Points::new(&plan, 1.0);
            let mut sums = Sums::new(&points);
            sums.add(step, Direction::Remove, 1.0, &mut Vec::new()).unwrap();
            let rest = sums.upper_rest.exp();
            let at = |j: usize| step_delta(step, Direction::Remove, points.losses[j].value).upper;
            let (growth, fall) = points.growth[0];
            let mirrored = if adjacency == Adjacency::ReplaceOne { 1.0 - fall } else { 0.0 };
            let before = (at(0) - mirrored * at(1)) / fall - at(0);
            let at_zero = 1.0 - (at(0) - mirrored * at(1)) / fall - (at(0) - at(1)) / growth;
            let pairs = sums.before * sums.upper[1];
            // Up to second order; the rest of the exponential is not negative.
            let found = [rest * (1.0 + pairs), rest * sums.before, rest * sums.upper[1]];
            let after = (at(0) - at(1)) / fall - (at(1) - at(2)) / points.growth[1].0;
            for (found, exact) in found.into_iter().zip([at_zero, before, after]) {
                assert!(found >= exact * (1.0 - 1e-9), "{q} {z} {adjacency}: {found} {exact}");
            }
            // The mass at 0 is lower than that of the round alone.
            let third_order = 2.0 * pairs * (sums.before + sums.upper[1]);
            assert!(rest * (1.0 + pairs) <= at_zero * (1.0 + third_order) + 1e-9, "{q} {z}");
        }
    }

    /// The reference is the lattice that composes the rounds one by one.
    #[test]
    fn random_rounds_are_enclosed_as_by_the_lattice_of_all_of_them() {
        let mut state = 7_u64;
        let mut uniform = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 11) as f64 / (1_u64 << 53) as f64
        };
        let mut close = 0;
        for case in 0..6 {
            let adjacency = [Adjacency::AddRemove, Adjacency::ReplaceOne][case % 2];
            let top = [1e-4, 1e-3, 1e-2][case % 3];
            let mut row = || {
                let (q, z) = (top * 1e-3_f64.powf(uniform()), 0.1 * 20_f64.powf(uniform()));
                (poisson(q), z, 1 + (3.0 * uniform()) as u64)
            };
            let rows: Vec<_> = (0..8).map(|_| row()).collect();
            let few = composition(&rows, adjacency);
            for delta in [1e-4, 1e-7] {
                let question = ProfileQuestion::Delta(delta);
                let found = lattice(&few, Direction::Remove, question, 1.0);
                let exact = Lattice::new(&few, Direction::Remove, question, 1e-5, 1 << 17);
                let (Some(found), Some(exact)) = (found, exact) else { continue };
                for i in 1..60 {
                    let epsilon = found.epsilon * f64::from(i) / 30.0;
                    let (bounds, exact) = (found.delta(epsilon), exact.delta(epsilon));
                    let what = format!("{rows:?} {epsilon} {exact:?} {bounds:?}");
                    assert!(bounds.lower <= exact.upper && exact.lower <= bounds.upper, "{what}");
                    close += i32::from(bounds.width() < 0.02 * exact.upper);
                }
            }
        }
        assert!(close > 50, "{close}");
    }
}
