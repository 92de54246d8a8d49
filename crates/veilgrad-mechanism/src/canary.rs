//! Canaries: artificial records in extra coordinates, for auditing the privacy of a run.

use veilgrad_events::{ClipNorm, IntegerGrid, SampleRate, Sampling};
use veilgrad_random::{RandomError, RoundKey, subset};

use crate::outer::RecordVector;
use crate::partial::PartialSum;
use crate::planned::lane_name;
use crate::sum_error::SumError;
use crate::{ClippedSum, Estimates, Released};

/// The norm of a canary's vector, in clip norms. Above 1, so that an audit detects missing clipping.
const CANARY_NORM: f64 = 2.0;

/// Canaries for a privacy audit: an extra vector of a group (the lane) with one coordinate for each canary.
///
/// Canary i is an additional record. It is twice the clip norm in coordinate i of the lane and zero elsewhere. A fair
/// coin from the cryptographic generator decides whether it is in the data. It goes through the same sampler, clipping,
/// certificate, sum, noise and release as every record. Real records are zero in the lane, so their contributions and
/// the privacy cost of the round do not change.
///
/// # Guarantee
/// The coins are independent of everything else, so comparing guesses with the coins reveals nothing about a real
/// record beyond the releases. The canaries measure how much sampler, clipping, sum and noise, as they ran, reveal
/// about a record. The code that computes gradients is *not* tested: canaries do not go through it.
///
/// # Example
/// A training loop with canaries, which add three steps:
/// ```
/// use veilgrad_events::{
///     Adjacency, ClipNorm, MemoryLedger, NoiseMultiplier, RecordUnit, Run, RunHeader, SampleRate,
/// };
/// use veilgrad_mechanism::{
///     Allocation, CanaryLane, Group, Noise, PoissonSampler, RoundPlan, Sample, Sampler, Structure,
/// };
///
/// let mut lane = CanaryLane::new(100)?;
/// // 1. The lane is one more vector of the group.
/// let structure = Structure::new([("weight".to_owned(), 3), lane.vector("gradient")])?;
/// let vectors = ["weight".to_owned(), lane.vector("gradient").0];
/// let group = Group::new("gradient", vectors, ClipNorm::new(1.0)?);
/// let noise = Allocation::Proportional(NoiseMultiplier::new(1.0)?);
/// let plan = RoundPlan::new(structure, vec![group], noise)?;
///
/// let header = RunHeader::new(RecordUnit::Example, Adjacency::AddRemove);
/// let mut run = Run::open(MemoryLedger::new(), header)?;
/// let mut sampler = PoissonSampler::new(SampleRate::new(0.25)?);
/// let records = 1000;
/// for permit in run.reserve(&plan.round(&sampler)?, 10)? {
///     // 2. Canaries are numbered after the real records.
///     let sample = Sample::draw(permit, &mut sampler, records + lane.count())?;
///     let mut sum = sample.begin(&plan);
///     for id in sample.ids() {
///         match id.checked_sub(records) {
///             Some(canary) => sum.add_canary(&lane, canary)?,
///             None => sum.add(&[&[0.3, -0.1, 2.0], lane.zeros()])?, // this record's gradient
///         }
///     }
///     let released = sum.release(sample, Noise::draw(&plan)?)?;
///     // 3. Update the score of each canary from the release.
///     lane.observe(&released, sampler.policy());
/// }
/// assert_eq!((lane.scores().len(), lane.included().len()), (100, 100));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
/// `veilgrad_accounting::audit::RunAudit` turns scores and coins into a lower bound on epsilon.
pub struct CanaryLane {
    included: Vec<bool>,
    scores: Vec<f64>,
    zeros: Vec<f32>,
}

impl CanaryLane {
    /// A lane of `count` canaries; tosses a coin for each.
    ///
    /// # Errors
    /// When the operating system has no randomness.
    pub fn new(count: usize) -> Result<Self, RandomError> {
        let mut included = vec![false; count];
        if let Ok(half) = SampleRate::new(0.5) {
            let heads = subset::Poisson::new(half).draw(&RoundKey::from_os()?, count as u64)?;
            for canary in heads.into_iter().filter_map(|canary| usize::try_from(canary).ok()) {
                if let Some(is_in) = included.get_mut(canary) {
                    *is_in = true;
                }
            }
        }
        Ok(Self { included, scores: vec![0.0; count], zeros: vec![0.0; count] })
    }

    /// The number of canaries, which are additional records.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.included.len() as u64
    }

    /// The name and the length of the lane in a group. Each group of gradients may have a lane.
    #[must_use]
    pub fn vector(&self, group: &str) -> (String, usize) {
        (lane_name(group), self.included.len())
    }

    /// The vector of a real record in the lane: zeros.
    #[must_use]
    pub fn zeros(&self) -> &[f32] {
        &self.zeros
    }

    /// Adds to each canary's score the log-likelihood ratio of a release: with the canary in the data against without
    /// it, for a sample drawn by this policy.
    pub fn observe(&mut self, released: &Released<Estimates>, sampling: Sampling) {
        let lanes = released.lanes(self.included.len());
        let rate = participation_rate(sampling);
        // In units of the clip norm, each group's lane measures with variance 1/mu^2 whether the canary was sampled;
        // together they are one measurement with variance 1/total.
        let squared_mu = |grid: IntegerGrid| {
            let mu = f64::from(grid.s_int()) * (-f64::from(grid.k())).exp2();
            mu * mu
        };
        let total: f64 = lanes.iter().map(|(grid, _)| squared_mu(*grid)).sum();
        for (canary, score) in self.scores.iter_mut().enumerate() {
            let weighted_value = |(grid, sums): &(IntegerGrid, &[i64])| {
                let sum = sums.get(canary).map_or(0.0, |sum| *sum as f64 + 0.5);
                squared_mu(*grid) * sum / f64::from(grid.s_int())
            };
            let exponent = lanes.iter().map(weighted_value).sum::<f64>() - 0.5 * total;
            *score += log_mixture(rate, exponent);
        }
    }

    /// The score of each canary: the log-likelihood ratio of being in the data.
    #[must_use]
    pub fn scores(&self) -> &[f64] {
        &self.scores
    }

    /// The coins: which canaries are in the data. Secret until the run is over.
    #[must_use]
    pub fn included(&self) -> &[bool] {
        &self.included
    }

    /// Coins and scores as bytes, for a checkpoint. Anyone who reads the coins during a run can identify the included
    /// canaries, but learns nothing about real records.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let pairs = self.included.iter().zip(&self.scores);
        let bytes = |(is_in, score): (&bool, &f64)| {
            std::iter::once(u8::from(*is_in)).chain(score.to_le_bytes())
        };
        pairs.flat_map(bytes).collect()
    }

    /// Reads what [`to_bytes`](Self::to_bytes) wrote; `None` if the bytes are not a valid lane of `count` canaries.
    #[must_use]
    pub fn from_bytes(bytes: &[u8], count: usize) -> Option<Self> {
        let (pairs, rest) = bytes.as_chunks::<9>();
        if !rest.is_empty() || pairs.len() != count {
            return None;
        }
        let pair = |[is_in, score @ ..]: &[u8; 9]| {
            let score = Some(f64::from_le_bytes(*score)).filter(|score| score.is_finite())?;
            (*is_in <= 1).then_some((*is_in == 1, score))
        };
        let (included, scores) = pairs.iter().map(pair).collect::<Option<(Vec<_>, Vec<_>)>>()?;
        Some(Self { included, scores, zeros: vec![0.0; count] })
    }
}

/// The probability that a record is in a sample.
fn participation_rate(sampling: Sampling) -> f64 {
    match sampling {
        Sampling::Poisson { rate } => rate.get(),
        Sampling::TruncatedPoisson(truncated) => truncated.rate().get(),
        Sampling::Fixed(batch) | Sampling::Shuffle(batch) => {
            batch.batch() as f64 / batch.records() as f64
        }
        Sampling::Allocation { rounds_per_epoch } => 1.0 / rounds_per_epoch.get() as f64,
        Sampling::CyclicPoisson { rate, groups, .. } => rate.get() / groups.get() as f64,
        _ => 1.0,
    }
}

/// `ln(1 - q + q e^x)`, without overflow.
fn log_mixture(q: f64, x: f64) -> f64 {
    if x > 0.0 {
        return x + (q + (1.0 - q) * (-x).exp()).ln();
    }
    (1.0 - q + q * x.exp()).ln()
}

impl ClippedSum {
    /// Adds a canary if its coin includes it in the data. Without a lane in the plan it contributes zero.
    ///
    /// # Errors
    /// As for [`ClippedSum::add`].
    pub fn add_canary(&mut self, lane: &CanaryLane, canary: u64) -> Result<(), SumError> {
        self.records.add_canary(lane, canary)
    }
}

impl PartialSum {
    /// Adds a canary if its coin includes it in the data, with clipping and certificate like any record. Without a lane
    /// in the plan it contributes zero.
    ///
    /// # Errors
    /// As for [`PartialSum::add`].
    pub fn add_canary(&mut self, lane: &CanaryLane, canary: u64) -> Result<(), SumError> {
        let canary = usize::try_from(canary).unwrap_or(usize::MAX);
        if lane.included.get(canary) != Some(&true) {
            return Ok(());
        }
        let mut lanes: Vec<(usize, Vec<f32>)> = Vec::new();
        for (index, _, member) in self.plan.lanes() {
            let clip = self.plan.clip(index).map_or(0.0, ClipNorm::get);
            let mut values = lane.zeros.clone();
            if let Some(value) = values.get_mut(canary) {
                *value = (CANARY_NORM * clip) as f32;
            }
            lanes.push((member.vector, values));
        }
        let zeros = vec![0.0; self.lengths().flatten().max().unwrap_or(0)];
        let zeros = |length: usize| zeros.get(..length).unwrap_or_default();
        let vector = |(index, [left, right]): (usize, [usize; 2])| {
            let own = lanes.iter().find(|(lane, _)| *lane == index);
            match (own, right) {
                (Some((_, values)), _) => RecordVector::Values(values),
                (None, 0) => RecordVector::Values(zeros(left)),
                (None, right) => RecordVector::Outer(zeros(left), zeros(right)),
            }
        };
        let record: Vec<RecordVector<'_>> = self.lengths().enumerate().map(vector).collect();
        // The largest weight, so that an audit detects weights above their bound.
        self.add_weighted(&record, f64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coins_are_fair_and_not_the_same_twice() {
        let lanes = [CanaryLane::new(100_000).unwrap(), CanaryLane::new(100_000).unwrap()];
        for lane in &lanes {
            let heads = lane.included().iter().filter(|is_in| **is_in).count() as f64;
            // Seven standard deviations: false alarm 3e-12.
            assert!((heads - 50_000.0).abs() < 7.0 * 158.2, "{heads}");
        }
        assert_ne!(lanes[0].included(), lanes[1].included());
    }

    #[test]
    fn a_lane_goes_on_from_its_bytes_and_from_no_others() {
        let mut lane = CanaryLane::new(50).unwrap();
        lane.scores[7] = -1.25;
        let bytes = lane.to_bytes();
        let again = CanaryLane::from_bytes(&bytes, 50).unwrap();
        assert_eq!((again.scores(), again.included()), (lane.scores(), lane.included()));
        assert!(CanaryLane::from_bytes(&bytes, 49).is_none());
        assert!(CanaryLane::from_bytes(&bytes[1..], 50).is_none());
        let mut wrong = bytes;
        wrong[0] = 7;
        assert!(CanaryLane::from_bytes(&wrong, 50).is_none());
    }

    #[test]
    fn mixtures_do_not_overflow() {
        assert_eq!(log_mixture(1.0, 3.5), 3.5);
        assert_eq!(log_mixture(1.0, -3.5), -3.5);
        assert!((log_mixture(0.1, 1e6) - (1e6 + 0.1f64.ln())).abs() < 1e-9);
        assert!((log_mixture(0.1, -1e6) - 0.9f64.ln()).abs() < 1e-12);
        assert!((log_mixture(0.3, 0.7) - (0.7 + 0.3 * 0.7f64.exp()).ln()).abs() < 1e-15);
    }
}
