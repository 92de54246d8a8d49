//! Thousands of distinct rounds that rarely sample a record: their losses as one measure on a lattice.
//!
//! The loss of such a round is 0 but for a measure of small mass. The measures of all rounds are added up. To first order the
//! composition is the exponential of the sum (docs/accounting.md, "Rare and distinct rounds"), so one Fourier transform
//! serves all rounds.

use super::convolution::{LossDistributions, ProfileQuestion};
use super::intensity::Intensity;
use super::{LONGEST, Lattice, WRAPPED, falls_to};
use crate::cumulant::payoff;
use crate::number::UNIT;
use crate::pair::{Direction, Loss, Pair, step_delta};
use crate::{Composition, Interval, Sampled, Step, work};

/// Units of work for the profile of a round at one loss.
const PROFILE: u64 = 12;
/// Losses count as infinite from where the profiles of all rounds sum to this share of delta.
const TRUNCATED: f64 = 1e-5;
/// How far chords may lie above profiles, relatively: the first number times tilt and epsilon, at most the second.
const CHORD: (f64, f64) = (2.5e-4, 2e-3);
/// The largest index of the first point after 0 (upper bound), and the index below which losses are merged (lower bound).
const FARTHEST: f64 = 200.0;
const MERGED: i64 = 90;
/// Lattice points below epsilon, and the most below the largest finite loss.
const POINTS: f64 = 1800.0;
const LONGEST_LOSS: f64 = 1e5;
/// Grid and points are planned from about this many rounds.
const SAMPLE: usize = 4096;
/// `e^loss` overflows beyond.
const MOST_LOSS: f64 = 600.0;
/// Neighbouring points are at most loss / PART apart where chords must be as close as CHORD.
const PART: f64 = 110.0;

/// The points of the lattice at which profiles of rounds are computed, the first being 0.
struct Points {
    grid: f64,
    /// How far chords may be above profiles.
    chord: f64,
    indices: Vec<i64>,
    /// The losses there.
    losses: Vec<Loss>,
    /// `e^{width} - 1` and `1 - e^{-width}` of the cells between them.
    growth: Vec<(f64, f64)>,
    /// The place of the first point from MERGED on.
    merged: usize,
    /// The last point whose double is on the lattice where two losses in one round are.
    half: i64,
    /// Profiles below this cost next to nothing.
    negligible: f64,
}

impl Points {
    /// Chords may be farther from profiles than planned, by this factor.
    fn new(plan: &Plan, looser: f64) -> Self {
        let wider = looser.sqrt();
        let (part, widest) = ((PART / wider) as i64, (wider * plan.width / plan.grid) as i64);
        let last = (plan.last / plan.grid).ceil() as i64;
        let at_epsilon = (plan.epsilon / plan.grid) as i64;
        let (mut indices, mut index) = (vec![0], plan.near);
        while index < last {
            indices.push(index);
            // Few where bounds from below merge losses.
            let stride = match index < MERGED {
                true => (index / 4).min(MERGED - index),
                // Sketches are for many epsilons, and cells grow beyond this one.
                false if looser > 1.0 && index > at_epsilon => index / part,
                false => (index / part).min(widest),
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
        let Plan { grid, negligible, .. } = *plan;
        let chord = looser * plan.chord;
        let losses = indices.iter().map(|index| Loss::from(*index as f64 * grid)).collect();
        Self { grid, chord, indices, losses, growth, merged, half: at_epsilon, negligible }
    }
}

/// The profile of a round at a point, and `e^loss` times the other's probability of losses from there on.
type AtPoint = (Interval, Interval);

/// Both bounds, as they are summed up over rounds.
struct Sums<'a> {
    points: &'a Points,
    /// Masses at the points, and at the one before 0.
    upper: Vec<f64>,
    before: f64,
    upper_rest: f64,
    infinite: f64,
    lower: Vec<f64>,
    lower_rest: f64,
    offset: f64,
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

    /// Adds rounds that are alike; `profile` is scratch. `None` if they are not rare enough for this lattice.
    fn add(
        &mut self,
        step: Step,
        direction: Direction,
        count: f64,
        profile: &mut Vec<AtPoint>,
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
        self.add_below(profile, count);
        self.add_above(profile, step, count)
    }

    /// From above: chords between points. All losses below the point before 0 count as there, and what the profile is at the
    /// last point as infinite.
    fn add_above(&mut self, profile: &mut [AtPoint], step: Step, count: f64) -> Option<()> {
        let beyond = profile.last()?.0.upper;
        if let Some((found, _)) = profile.last_mut() {
            *found = Interval { lower: beyond, upper: beyond };
        }
        let [(zero, _), (one, _), ..] = *profile else {
            self.infinite += count * beyond;
            return Some(());
        };
        let (growth, fall) = *self.points.growth.first()?;
        // What losses below the point before 0 cost the other way.
        let mirrored = match step.sampled {
            Sampled::Poisson(q) if -q / (1.0 - q) > -fall => 0.0,
            Sampled::PoissonReplaced(_) | Sampled::FixedReplaced(_) => 1.0 - fall,
            _ => return None,
        };
        // One less what moves from 0 to the point before it and to the one after.
        let rest =
            |zero: f64, one: f64| 1.0 - (zero - mirrored * one) / fall - (zero - one) / growth;
        let (least, most) = (rest(zero.upper, one.lower), rest(zero.lower, one.upper));
        if !(least > 0.5) {
            return None;
        }
        let weight = count / (least - 1e-14);
        self.upper_rest += count * (most + 1e-14).ln().min(0.0);
        self.infinite += weight * beyond;
        self.before += weight * ((zero.upper - mirrored * one.lower) / fall - zero.lower).max(0.0);
        for (j, sum) in self.upper.iter_mut().enumerate().take(profile.len()).skip(1) {
            let mass = into(profile, &self.points.growth, j, |found| (found.upper, found.lower));
            *sum += weight * mass?.max(0.0);
        }
        Some(())
    }

    /// From below: losses before a point are merged to one, chords from there on up to where they are too far above the
    /// profile, a little less than their mass, and the rest where the merged losses are.
    fn add_below(&mut self, profile: &mut [AtPoint], count: f64) {
        let Points { merged, chord, ref growth, ref indices, half, .. } = *self.points;
        let cells = profile.windows(2).zip(growth).skip(merged);
        let close = cells.take_while(|(cell, (growth, fall))| match cell {
            // A chord is above two tangents by at most a quarter of the width times the difference of their slopes.
            [(_, low), (end, high)] => {
                (low.upper - high.lower * (1.0 - fall)) * growth <= 3.99 * chord * end.lower
            }
            _ => false,
        });
        let last = merged + close.count();
        let (Some((first, slope)), Some((end, _))) = (profile.get(merged), profile.get(last))
        else {
            return;
        };
        if last == merged {
            return;
        }
        let (first, slope, end) = (*first, *slope, end.upper);
        let loss = indices.get(merged).map_or(f64::NAN, |index| *index as f64 * self.points.grid);
        // The probabilities of losses from there on.
        let (most, least) = (first.upper + slope.upper, slope.lower * (-loss).exp());
        let offset = libm::log1p(-most) - libm::log1p(-least) - 1e-15;
        let mut total = 0.0;
        let at_end = profile.get(last).copied();
        if let Some((found, _)) = profile.get_mut(last) {
            *found = Interval { lower: end, upper: end };
        }
        let mut masses = Vec::with_capacity(last + 1 - merged);
        for j in merged..=last {
            let part = profile.get(..=last).unwrap_or_default();
            let mass = match j == merged {
                true => {
                    let next = part.get(j + 1).zip(growth.get(j));
                    next.map(|((next, _), (growth, _))| {
                        slope.lower - (first.upper - next.lower) / growth
                    })
                }
                false => into(part, growth, j, |found| (found.lower, found.upper)),
            };
            let mass = mass.unwrap_or(0.0).max(0.0) * (1.0 - chord);
            total += mass;
            masses.push(mass);
        }
        if let Some((slot, found)) = profile.get_mut(last).zip(at_end) {
            *slot = found;
        }
        let rest = 1.0 - total * (1.0 + 1e-12);
        if !(rest > 0.5) || !offset.is_finite() {
            return;
        }
        self.lower_rest += count * libm::log1p(-total * (1.0 + 1e-12));
        self.offset += count * offset;
        let mut so_far = 0.0;
        let sums = self.lower.iter_mut().zip(&mut self.twice).skip(merged);
        for (((sum, twice), index), mass) in sums.zip(indices.iter().skip(merged)).zip(masses) {
            let mass = mass / rest;
            so_far += mass;
            *sum += count * mass;
            let twice = if *index > half { &mut self.twice_apart } else { twice };
            *twice += count * mass * so_far;
        }
    }

    /// Both intensities; sums of so many terms are rounded.
    fn finish(self, terms: usize) -> [Intensity; 2] {
        let points = self.points;
        let slack = (4.0 * (terms + points.indices.len()) as f64 + 64.0) * UNIT;
        let atoms = |sums: Vec<f64>, factor: f64| {
            let atoms =
                points.indices.iter().zip(sums).map(|(index, mass)| (*index, mass * factor));
            atoms.filter(|(_, mass)| *mass > 0.0).collect::<Vec<_>>()
        };
        let mut above = atoms(self.upper, 1.0 + slack);
        if self.before > 0.0 {
            above.insert(
                0,
                (-points.indices.get(1).copied().unwrap_or(1), self.before * (1.0 + slack)),
            );
        }
        let mut upper = Intensity {
            atoms: above,
            log_rest: self.upper_rest * (1.0 - slack),
            infinite: 0.0,
            offset: 0.0,
            twice: Vec::new(),
            twice_apart: 0.0,
        };
        // In a part of the finite ones, all others added.
        let others = upper.moment(points.grid, 0.0) * (1.0 + slack) + upper.log_rest;
        upper.infinite = others.exp() * libm::expm1(self.infinite * (1.0 + slack)) * (1.0 + 1e-12);
        let mut lower = Intensity {
            atoms: atoms(self.lower, 1.0 - slack),
            log_rest: self.lower_rest * (1.0 + slack),
            infinite: 0.0,
            offset: self.offset * (1.0 + slack),
            twice_apart: 0.0,
            twice: atoms(self.twice, (1.0 + slack) * (1.0 + 1e-9))
                .into_iter()
                .map(|(index, mass)| (2 * index, mass))
                .collect(),
        };
        let others = lower.moment(points.grid, 0.0) + lower.log_rest;
        lower.twice_apart = others.exp() * self.twice_apart * (1.0 + slack) * (1.0 + 1e-9);
        [upper, lower]
    }
}

/// The mass that chords of a profile put at a point: what moves into it from the cell before, less what moves out of it into
/// the cell after; `bounds` says which bound of a profile makes it larger, and which smaller.
fn into(
    profile: &[AtPoint],
    growth: &[(f64, f64)],
    j: usize,
    bounds: impl Fn(Interval) -> (f64, f64),
) -> Option<f64> {
    let (here, (_, fall)) = (bounds(profile.get(j)?.0).1, growth.get(j - 1)?);
    let from_before = (bounds(profile.get(j - 1)?.0).0 - here) / fall;
    let Some((after, _)) = profile.get(j + 1) else { return Some(from_before) };
    Some(from_before - (here - bounds(*after).0) / growth.get(j)?.0)
}

/// Where points lie. It decides how tight bounds are, never whether they hold.
struct Plan {
    epsilon: f64,
    grid: f64,
    /// The first point after 0.
    near: i64,
    chord: f64,
    /// How wide cells may be that chords are close to profiles where those fall as fast as near epsilon.
    width: f64,
    last: f64,
    negligible: f64,
}

impl Plan {
    fn new(
        composition: &Composition,
        direction: Direction,
        question: ProfileQuestion,
        looser: f64,
    ) -> Option<Self> {
        // Plans only have to be typical.
        let every = composition.steps().len() / SAMPLE + 1;
        let steps = || {
            let steps = composition.steps().iter().step_by(every);
            steps.map(|(step, n)| (*step, *n as f64 * every as f64))
        };
        let all = |loss: f64| -> f64 {
            work::spend(PROFILE * (composition.steps().len() / every) as u64);
            if loss > MOST_LOSS {
                return 0.0;
            }
            steps().map(|(step, n)| n * step_delta(step, direction, loss).upper.max(0.0)).sum()
        };
        let (epsilon, delta) = match question {
            ProfileQuestion::Delta(delta) => (falls_to(all, delta), delta),
            ProfileQuestion::Epsilon(epsilon) => (epsilon, all(epsilon)),
        };
        let (mut once, mut squares) = (0.0, 0.0);
        for (step, n) in steps() {
            let at_zero = step_delta(step, direction, 0.0).upper;
            (once, squares) = (once + n * at_zero, squares + n * at_zero * at_zero);
        }
        // Near 0 points are as close as where a hundredth is left.
        let epsilon = if delta > 0.01 * once { falls_to(all, 0.01 * once) } else { epsilon };
        let last = falls_to(all, TRUNCATED * delta.min(0.01 * once)) * 1.05;
        // About how fast profiles fall.
        let tilt = (all(0.95 * epsilon) / all(1.05 * epsilon)).ln() / (0.1 * epsilon);
        // Losses near 0 are moved to either side: that doubles some, and adds variance.
        let near = libm::cbrt(4.0 * squares / (tilt * tilt * once));
        let grid = (epsilon / POINTS).max(last / LONGEST_LOSS * looser.sqrt());
        let near = (near / grid).round().clamp(1.0, FARTHEST) as i64;
        let chord = (CHORD.0 * tilt * epsilon).min(CHORD.1);
        let width = (2.0 * chord / (tilt * (1.0 + tilt))).sqrt();
        let negligible = TRUNCATED * delta / composition.steps().len() as f64;
        let sound = grid > 0.0 && last > epsilon;
        sound.then_some(Self { epsilon, grid, near, chord, width, last, negligible })
    }

    /// Of every so many rounds, as if there were as many of each, or of all.
    fn losses(
        &self,
        composition: &Composition,
        direction: Direction,
        looser: f64,
        every: usize,
    ) -> Option<[LossDistributions; 2]> {
        let points = Points::new(self, looser);
        let (mut sums, mut profile) = (Sums::new(&points), Vec::new());
        for (step, count) in composition.steps().iter().step_by(every) {
            if work::left() == 0 {
                return None;
            }
            sums.add(*step, direction, *count as f64 * every as f64, &mut profile)?;
        }
        Some(sums.finish(composition.steps().len()).map(|intensity| LossDistributions {
            grid: self.grid,
            steps: Vec::new(),
            intensity: Some(intensity),
            split: None,
        }))
    }
}

/// The lattice of all rounds near a question, with chords this much looser than for close bounds; `None` where this does not apply.
pub(crate) fn lattice(
    composition: &Composition,
    direction: Direction,
    question: ProfileQuestion,
    looser: f64,
) -> Option<Lattice> {
    // Adding a record has large losses below 0 alone.
    if direction == Direction::Add && !composition.is_symmetric() {
        return None;
    }
    let plan = Plan::new(composition, direction, question, looser)?;
    let every = composition.steps().len() / SAMPLE + 1;
    let [sketch, _] = plan.losses(composition, direction, 50.0, every)?;
    let tilt = sketch.best_tilt(match question {
        ProfileQuestion::Epsilon(_) => ProfileQuestion::Epsilon(plan.epsilon),
        ProfileQuestion::Delta(_) => question,
    });
    let [upper, lower] = plan.losses(composition, direction, looser, 1)?;
    let window = upper.window(tilt, upper.cumulant(tilt), WRAPPED + payoff(tilt).value)?;
    let points = ((window.high - window.low) / plan.grid + 16.0).max(64.0);
    if !(points < LONGEST as f64) {
        return None;
    }
    let points = (points as usize).next_power_of_two();
    let compose = |losses: LossDistributions| losses.compose(tilt, &window, points);
    let (upper, lower) = (compose(upper), compose(lower));
    Some(Lattice { upper, lower, tilt, epsilon: plan.epsilon })
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

    /// A round by itself has a profile in closed form. Rates are so high that two losses in one round, which the exponential
    /// has, would cost far more than the round wherever one loss alone is not enough.
    #[test]
    fn one_round_is_enclosed_also_where_only_two_losses_of_it_would_cost() {
        let fixed = Sampling::Fixed(FixedBatch::new(100, 2).unwrap());
        for (sampling, adjacency) in [
            (poisson(0.02), Adjacency::AddRemove),
            (poisson(0.02), Adjacency::ReplaceOne),
            (fixed, Adjacency::ReplaceOne),
        ] {
            for (z, looser) in [(0.1, 1.0), (0.1, 100.0), (0.3, 1.0), (0.3, 100.0), (1.0, 1.0)] {
                let one = composition(&[(sampling, z, 1)], adjacency);
                let step = one.steps()[0].0;
                let question = ProfileQuestion::Delta(1e-6);
                let Some(found) = lattice(&one, Direction::Remove, question, looser) else {
                    panic!("{sampling:?} {z}");
                };
                let mut known = 0;
                for i in 1..120 {
                    let epsilon = found.epsilon * f64::from(i) / 50.0;
                    let (exact, bounds) =
                        (step_delta(step, Direction::Remove, epsilon), found.delta(epsilon));
                    let what = format!("{sampling:?} {z} {looser} {epsilon} {exact:?} {bounds:?}");
                    assert!(bounds.lower <= exact.upper && exact.lower <= bounds.upper, "{what}");
                    known += i32::from(bounds.lower > 0.5 * exact.upper);
                }
                assert!(known > 10, "{sampling:?} {z} {looser} {known}");
            }
        }
    }

    /// And so are random rounds, by the lattice that composes them one by one.
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
