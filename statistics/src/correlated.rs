//! Tests whether noise that is correlated between rounds has the law of its event.
//!
//! Rounds without records release noise alone. In units of the noise of its event, the noise `e` of a coordinate must be `C^-1`
//! times independent standard normal numbers, where `C` is the matrix of the strategy in the event: so `C e` must be independent
//! and standard normal, for all coordinates, groups, rounds and segments.

use std::num::NonZeroU64;

use veilgrad_events::{
    Adjacency, BandedStrategy, BudgetShare, ClipNorm, MemoryLedger, NoiseMultiplier, RecordUnit,
    Run, RunHeader, SampleRate,
};
use veilgrad_mechanism::{
    Allocation, CorrelatedNoise, CyclicSampler, Group, RoundPlan, Sample, Structure,
};

use crate::Check;

type Error = Box<dyn std::error::Error>;

/// The numbers of a segment, by group, round and coordinate.
pub type Numbers = [Vec<Vec<f64>>; 2];

const BANDS: usize = 4;
/// The rounds of a segment with large groups: three turns of every group of records.
const ROUNDS: usize = 3 * BANDS;
/// The largest distance between two rounds whose covariance is tested.
const FARTHEST: usize = BANDS + 2;

/// A plan with two groups of this size, whose clip norms and noise multipliers differ.
fn plan(coordinates: usize) -> Result<RoundPlan, Error> {
    let structure = Structure::new([("one", coordinates), ("two", coordinates)])?;
    let one = Group::new("one", ["one"], ClipNorm::new(0.3)?).share(BudgetShare::new(0.8)?);
    let two = Group::new("two", ["two"], ClipNorm::new(2.0)?);
    let allocation = Allocation::Proportional(NoiseMultiplier::new(1.3)?);
    let plan = RoundPlan::new(structure, vec![one, two], allocation)?;
    Ok(plan.correlated(BandedStrategy::new(12, vec![4096, 2048, 1536, 1280])?)?)
}

/// The noise of one segment of so many rounds, in units of `e` above, and the entries of the strategy.
fn segment(plan: &RoundPlan, rounds: usize, threads: usize) -> Result<(Numbers, Vec<f64>), Error> {
    let groups = NonZeroU64::new(BANDS as u64).ok_or("no bands")?;
    let mut sampler = CyclicSampler::new(SampleRate::new(0.5)?, groups, 0);
    let round = plan.round(&sampler)?;
    let header = RunHeader::new(RecordUnit::Example, Adjacency::AddRemove);
    let mut run = Run::open(MemoryLedger::new(), header)?;
    let mut source = CorrelatedNoise::new(plan, rounds as u64)?;
    let mut numbers = Numbers::default();
    let mut entries = Vec::new();
    for permit in run.reserve(&round, rounds as u64)? {
        let sample = Sample::draw(permit, &mut sampler, 0)?;
        let noise = source.draw(&sample, threads)?;
        let estimates = sample.begin(plan).release(sample, noise)?;
        for (numbers, query) in numbers.iter_mut().zip(round.queries()) {
            let strategy = query.strategy().ok_or("the noise is not correlated")?;
            let one = f64::from(1u32 << strategy.precision());
            entries = strategy.entries().iter().map(|m| f64::from(*m) / one).collect();
            let norm = entries.iter().map(|c| c * c).sum::<f64>().sqrt();
            // The noise of the event is that of `C e`, divided by the norm of a column of `C`.
            let unit = query.noise().get() * norm;
            let vector = estimates.vector(query.group()).ok_or("no such vector")?;
            numbers.push(vector.iter().map(|value| value / unit).collect());
        }
    }
    Ok((numbers, entries))
}

/// `C e` for one coordinate in all rounds.
fn independent(rounds: &[Vec<f64>], entries: &[f64]) -> Vec<Vec<f64>> {
    let of = |t: usize| {
        let mut sums = vec![0.0; rounds[t].len()];
        for (c, earlier) in entries.iter().zip(rounds[..=t].iter().rev()) {
            sums.iter_mut().zip(earlier).for_each(|(sum, e)| *sum += c * e);
        }
        sums
    };
    (0..rounds.len()).map(of).collect()
}

/// `C^-1 C^-T`: the covariance of `e` between rounds.
fn covariance(entries: &[f64]) -> Vec<Vec<f64>> {
    let mut d: Vec<f64> = Vec::new();
    for t in 0..ROUNDS {
        let earlier: f64 = (1..entries.len().min(t + 1)).map(|j| entries[j] * d[t - j]).sum();
        d.push(if t == 0 { 1.0 } else { -earlier });
    }
    let entry = |s: usize, t: usize| (0..=s.min(t)).map(|i| d[s - i] * d[t - i]).sum();
    (0..ROUNDS).map(|s| (0..ROUNDS).map(|t| entry(s, t)).collect()).collect()
}

/// The sum of the products of rounds `t` of one group and `t - lag` of a group, and what it should be, for all coordinates of
/// all segments.
#[derive(Clone, Copy, Default)]
struct Products {
    sum: f64,
    mean: f64,
    variance: f64,
}

impl Products {
    fn add(
        &mut self,
        one: &[Vec<f64>],
        other: &[Vec<f64>],
        lag: isize,
        law: &[Vec<f64>],
        same: bool,
    ) {
        let pairs: Vec<(usize, usize)> = (0..ROUNDS)
            .filter_map(|t| Some((t, t.checked_add_signed(-lag)?)))
            .filter(|(_, earlier)| *earlier < ROUNDS)
            .collect();
        let coordinates = one[0].len() as f64;
        for (t, earlier) in &pairs {
            self.sum += dot(&one[*t], &other[*earlier]);
            self.mean += if same { coordinates * law[*t][*earlier] } else { 0.0 };
            // Of four normal numbers with mean zero.
            for (s, earlier_still) in &pairs {
                let straight = law[*t][*s] * law[*earlier][*earlier_still];
                let crossed = if same { law[*t][*earlier_still] * law[*earlier][*s] } else { 0.0 };
                self.variance += coordinates * (straight + crossed);
            }
        }
    }

    fn check(self, name: String) -> Check {
        Check::by_deviations(name, (self.sum - self.mean) / self.variance.sqrt())
    }
}

fn dot(one: &[f64], other: &[f64]) -> f64 {
    one.iter().zip(other).map(|(one, other)| one * other).sum()
}

/// Coordinates of a group that is large enough for two threads: sixteen blocks and part of another.
const LARGE: usize = (16 << 12) + 100;

/// Tests the noise of two groups of 65,636 coordinates, drawn on this many threads. For `e` and for `C e`: the covariances of
/// rounds up to `b + 2` apart, in each group against that of the strategy and between the groups, where they are zero. For
/// `C e`: correlations between coordinates at the distances of chunks, blocks and threads' shares. `change` alters the noise of
/// a segment, so that a test can simulate wrong noise.
///
/// # Errors
/// When a round cannot be charged, drawn or released.
pub fn law(
    segments: u64,
    threads: usize,
    change: impl Fn(&mut Numbers),
) -> Result<Vec<Check>, Error> {
    let plan = plan(LARGE)?;
    let lags = || -(FARTHEST as isize)..=FARTHEST as isize;
    let mut within = [[[Products::default(); FARTHEST + 1]; 2]; 2];
    let mut between = vec![[Products::default(); 2]; lags().count()];
    // Chunks, blocks, and the shares of two threads: 65 chunks in the recursion, 9 blocks in the noise.
    let distances = [1, 512, 4096, 65 << 9, 9 << 12];
    let mut apart = [[0.0; 5]; 2];
    for _ in 0..segments {
        let (mut noise, entries) = segment(&plan, ROUNDS, threads)?;
        change(&mut noise);
        let whitened = noise.each_ref().map(|rounds| independent(rounds, &entries));
        let identity = |s| (0..ROUNDS).map(|t| if s == t { 1.0 } else { 0.0 }).collect();
        let laws = [covariance(&entries), (0..ROUNDS).map(identity).collect()];
        for (which, (numbers, law)) in [&noise, &whitened].into_iter().zip(&laws).enumerate() {
            for (group, rounds) in numbers.iter().enumerate() {
                for (lag, products) in within[which][group].iter_mut().enumerate() {
                    products.add(rounds, rounds, lag as isize, law, true);
                }
            }
            for (lag, products) in lags().zip(&mut between) {
                products[which].add(&numbers[0], &numbers[1], lag, law, false);
            }
        }
        for (sums, rounds) in apart.iter_mut().zip(&whitened) {
            for (sum, distance) in sums.iter_mut().zip(distances) {
                *sum += rounds.iter().map(|row| dot(row, &row[distance..])).sum::<f64>();
            }
        }
    }
    let name = |what: String| format!("correlated noise on {threads} threads: {what}");
    let mut checks = Vec::new();
    for (which, what) in ["noise", "independent noise"].into_iter().enumerate() {
        for (group, all) in within[which].iter().enumerate() {
            for (lag, products) in all.iter().enumerate() {
                let what = format!("{what} of group {group}, rounds {lag} apart");
                checks.push(products.check(name(what)));
            }
        }
        for (lag, products) in lags().zip(&between) {
            checks.push(products[which].check(name(format!("{what} of both groups, lag {lag}"))));
        }
    }
    for (group, sums) in apart.iter().enumerate() {
        for (sum, distance) in sums.iter().zip(distances) {
            let count = (segments as usize * ROUNDS * (LARGE - distance)) as f64;
            let what = format!("group {group}, coordinates {distance} apart");
            checks.push(Check::by_deviations(name(what), sum / count.sqrt()));
        }
    }
    Ok(checks)
}

/// Coordinates of each group of the small plan.
const SMALL: usize = 3;

/// Tests every coordinate of two groups of 3 in many segments of 6 rounds. The 36 numbers of `C e`: means, variances,
/// correlations of each pair within a segment, and of each number with itself in the next segment. `change` alters the noise of
/// a segment, so that a test can simulate wrong noise.
///
/// # Errors
/// When a round cannot be charged, drawn or released.
pub fn law_of_coordinates(
    segments: u64,
    change: impl Fn(&mut Numbers),
) -> Result<Vec<Check>, Error> {
    let plan = plan(SMALL)?;
    let rounds = BANDS + 2;
    let size = 2 * rounds * SMALL;
    let (mut sums, mut lagged) = (vec![0.0; size], vec![0.0; size]);
    let mut products = vec![0.0; size * size];
    let mut before = vec![0.0; size];
    for _ in 0..segments {
        let (mut noise, entries) = segment(&plan, rounds, 1)?;
        change(&mut noise);
        let groups = noise.iter().flat_map(|all| independent(all, &entries));
        let values: Vec<f64> = groups.flatten().collect();
        for (i, value) in values.iter().enumerate() {
            sums[i] += value;
            lagged[i] += value * before[i];
            for (j, other) in values[..=i].iter().enumerate() {
                products[i * size + j] += value * other;
            }
        }
        before = values;
    }
    let n = segments as f64;
    let named = |i: usize| {
        let (group, round, coordinate) = (i / (rounds * SMALL), i / SMALL % rounds, i % SMALL);
        format!("correlated noise: group {group}, round {round}, coordinate {coordinate}")
    };
    let mut checks = Vec::new();
    for i in 0..size {
        let what = named(i);
        let variance = (products[i * size + i] - n) / (2.0 * n).sqrt();
        checks.push(Check::by_deviations(format!("{what}: mean"), sums[i] / n.sqrt()));
        checks.push(Check::by_deviations(format!("{what}: variance"), variance));
        checks.push(Check::by_deviations(format!("{what}: next segment"), lagged[i] / n.sqrt()));
        for j in 0..i {
            let found = products[i * size + j] / n.sqrt();
            checks.push(Check::by_deviations(format!("{what} and {}", named(j)), found));
        }
    }
    Ok(checks)
}
