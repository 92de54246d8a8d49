//! Noise that is correlated between the rounds of a segment.

use veilgrad_events::{BandedStrategy, IntegerGrid, ProcessIdentity, Sampling};
use veilgrad_random::{RandomError, RoundKey};

use crate::noise::{GroupNoise, draw_groups, sized};
use crate::recursion::Recursion;
use crate::{Estimates, Noise, NoiseError, Released, RoundPlan, Sample};

/// The source of noise that is correlated between the rounds of one segment.
///
/// A model adds up what rounds release, and much of this noise cancels in the sum. It needs rounds in which a record takes part
/// at most once in as many rounds as the strategy has bands ([`CyclicSampler`](crate::CyclicSampler)). Memory:
/// `8 (b - 1) d` bytes for `b` bands and `d` coordinates.
///
/// # Guarantee
/// Per coordinate, with independent `N_t = floor(2^k Z_t)`, noise is `e_t = floor((N_t - sum_{j>=1} m_j e_{t-j}) / 2^p)` over
/// the integers, and all releases `y_t = x_t + e_t` of the segment are a function of `w_t = floor(sum_{j>=0} m_j x_{t-j} + 2^k Z_t)`:
/// a Gaussian mechanism, whose sensitivity for each time that a record takes part is `S_int |m|`. The proof is in
/// [`proof`](crate::proof). A number out of range ends the segment; its probability is below `2^-2800`.
///
/// Earlier noise is as secret as the sums, since a release minus its noise is the sum. It is kept in memory only, is wiped when
/// dropped, cannot be cloned, printed or serialised, and a forked process cannot use it. So a run that is interrupted cannot
/// continue its segment: it begins a new one, with a new source and new groups of records, and the ledger charges it as such.
///
/// # Example
/// ```
/// use std::num::NonZeroU64;
/// use veilgrad_events::{
///     Adjacency, BandedStrategy, ClipNorm, MemoryLedger, NoiseMultiplier, RecordUnit, Run, RunHeader, SampleRate,
/// };
/// use veilgrad_mechanism::{
///     Allocation, CorrelatedNoise, CyclicSampler, Group, RoundPlan, Sample, Structure,
/// };
///
/// let structure = Structure::new([("x", 2)])?;
/// let group = Group::new("x", ["x"], ClipNorm::new(1.0)?);
/// let noise = Allocation::Proportional(NoiseMultiplier::new(1.0)?);
/// let plan = RoundPlan::new(structure, vec![group], noise)?;
/// let plan = plan.correlated(BandedStrategy::new(12, vec![4096, 2048])?)?;
///
/// // Two bands, so two groups of records: rounds 0, 2, 4 sample from one, rounds 1, 3, 5 from the other.
/// let groups = NonZeroU64::new(2).ok_or("zero")?;
/// let mut sampler = CyclicSampler::new(SampleRate::new(0.5)?, groups, 0);
/// let mut noise = CorrelatedNoise::new(&plan, 6)?;
/// let header = RunHeader::new(RecordUnit::Example, Adjacency::AddRemove);
/// let mut run = Run::open(MemoryLedger::new(), header)?;
/// for permit in run.reserve(&plan.round(&sampler)?, 6)? {
///     let sample = Sample::draw(permit, &mut sampler, 100)?;
///     let mut sum = sample.begin(&plan);
///     for _record in sample.ids() {
///         sum.add(&[&[0.6, 0.8]])?;
///     }
///     let noise = noise.draw(&sample, 1)?;
///     let released = sum.release(sample, noise)?;
///     assert!(released.vector("x").is_some());
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct CorrelatedNoise {
    strategy: BandedStrategy,
    groups: Vec<(IntegerGrid, usize)>,
    /// One for each group; empty after an error.
    recursions: Vec<Recursion>,
    process: ProcessIdentity,
    next: Next,
    rounds: u64,
    rounds_left: u64,
    /// Noise that was drawn ahead.
    ready: Option<Vec<GroupNoise>>,
}

/// The round that noise may be drawn for next.
#[derive(Clone, Copy, PartialEq)]
enum Next {
    First,
    Round {
        run: u64,
        number: u64,
    },
    /// None: an error ended the segment.
    Ended,
}

impl CorrelatedNoise {
    /// A source for a segment of at most `rounds` rounds of this plan.
    ///
    /// # Errors
    /// When the plan's noise is not correlated, its strategy amplifies noise so much that 64 bits may not hold it for so many
    /// rounds, or the identity of this process cannot be determined.
    pub fn new(plan: &RoundPlan, rounds: u64) -> Result<Self, NoiseError> {
        let Some(strategy) = plan.strategy() else {
            return Err(NoiseError::WrongKind("independent between rounds", "`Noise::draw`"));
        };
        let groups: Vec<_> = plan.inner.groups.iter().map(sized).collect();
        let recursion = |(grid, _): &(IntegerGrid, usize)| {
            let k = grid.k();
            Recursion::new(strategy, k, rounds).ok_or(NoiseError::Unstable { k, rounds })
        };
        Ok(Self {
            strategy: strategy.clone(),
            recursions: groups.iter().map(recursion).collect::<Result<_, _>>()?,
            groups,
            process: ProcessIdentity::current()?,
            next: Next::First,
            rounds,
            rounds_left: rounds,
            ready: None,
        })
    }

    /// Draws the noise of the next round ahead, on `threads` threads, so that [`draw`](Self::draw) only hands it out.
    ///
    /// # Errors
    /// As for [`draw`](Self::draw).
    pub fn prepare(&mut self, threads: usize) -> Result<(), NoiseError> {
        self.check_process()?;
        if self.ready.is_none() {
            self.ready = Some(self.advance(threads, Vec::new())?);
        }
        Ok(())
    }

    /// Draws the noise of the round of this sample, on `threads` threads. The distribution does not depend on their number.
    ///
    /// # Errors
    /// When the sample is not that of the next round of the segment or already has noise, the segment has no rounds left, the
    /// operating system has no randomness, or a number is out of range. An error ends the segment.
    pub fn draw(&mut self, sample: &Sample, threads: usize) -> Result<Noise, NoiseError> {
        self.draw_reusing(sample, threads, Vec::new())
    }

    /// Draws the noise of the round of this sample, reusing the memory of an earlier release, which is consumed.
    ///
    /// # Errors
    /// As for [`draw`](Self::draw).
    pub fn draw_over(
        &mut self,
        sample: &Sample,
        threads: usize,
        old: Released<Estimates>,
    ) -> Result<Noise, NoiseError> {
        self.draw_reusing(sample, threads, old.into_inner().sums)
    }

    fn draw_reusing(
        &mut self,
        sample: &Sample,
        threads: usize,
        old: Vec<Vec<i64>>,
    ) -> Result<Noise, NoiseError> {
        self.check_process()?;
        let permit = sample.permit();
        let (run, number) = (permit.run(), permit.number());
        // Until this round has its noise, there is no next one.
        let is_next = match std::mem::replace(&mut self.next, Next::Ended) {
            Next::First => matches!(
                permit.round().sampling(),
                Sampling::CyclicPoisson { first_round, .. } if first_round == number
            ),
            next => next == Next::Round { run, number },
        };
        if !is_next || !sample.claim_noise() {
            self.wipe();
            return Err(NoiseError::SegmentOrder);
        }
        let groups = match self.ready.take() {
            Some(ready) => ready,
            None => self.advance(threads, old)?,
        };
        self.next = Next::Round { run, number: number.saturating_add(1) };
        let (process, strategy) = (Some(self.process), Some(self.strategy.clone()));
        Ok(Noise { groups, process, strategy, permit: Some(permit.id()) })
    }

    /// The noise of the next round. Any error ends the segment.
    fn advance(
        &mut self,
        threads: usize,
        old: Vec<Vec<i64>>,
    ) -> Result<Vec<GroupNoise>, NoiseError> {
        let drawn = self.try_advance(threads, old);
        if drawn.is_err() {
            self.next = Next::Ended;
            self.wipe();
        }
        drawn
    }

    fn try_advance(
        &mut self,
        threads: usize,
        old: Vec<Vec<i64>>,
    ) -> Result<Vec<GroupNoise>, NoiseError> {
        if self.recursions.len() != self.groups.len() {
            return Err(NoiseError::SegmentOrder);
        }
        self.rounds_left =
            self.rounds_left.checked_sub(1).ok_or(NoiseError::SegmentEnd(self.rounds))?;
        let key = RoundKey::from_os()?;
        let mut groups = draw_groups(self.groups.iter().copied(), &key, threads, old)?;
        for (group, recursion) in groups.iter_mut().zip(&mut self.recursions) {
            if !recursion.advance(&mut group.values, threads) {
                return Err(NoiseError::Overflow);
            }
        }
        Ok(groups)
    }

    /// A forked child has a copy of the past noise, and drops it.
    fn check_process(&mut self) -> Result<(), NoiseError> {
        if self.process.is_current() {
            return Ok(());
        }
        self.next = Next::Ended;
        self.wipe();
        Err(RandomError::OtherProcess.into())
    }

    /// Drops the past noise, which wipes it.
    fn wipe(&mut self) {
        self.recursions.clear();
        self.ready = None;
    }
}
