#![doc = include_str!("../README.md")]
//!
//! # A custom training loop
//! Your loop changes in three places: it *plans* its rounds with public parameters, it *charges* them to a ledger before it
//! touches data, and it passes each sampled record's vectors to a sum that clips, adds and *releases* them with noise.
//!
//! ```
//! use veilgrad::prelude::*;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // Public parameters: what a record looks like, how it is clipped, how much noise there is.
//! let structure = Structure::new([("weight", 3), ("bias", 1)])?;
//! let groups = vec![
//!     Group::new("weight", ["weight"], ClipNorm::new(1.0)?).average(PublicCount::new(256.0)?),
//!     Group::new("bias", ["bias"], ClipNorm::new(0.1)?).average(PublicCount::new(256.0)?),
//! ];
//! let plan = RoundPlan::new(
//!     structure,
//!     groups,
//!     Allocation::Proportional(NoiseMultiplier::new(1.1)?),
//! )?;
//!
//! // Charge first. The event is derived from the plan and the sampler, not written by hand.
//! let header = RunHeader::new(RecordUnit::Example, Adjacency::AddRemove);
//! let mut run = Run::open(MemoryLedger::new(), header)?; // or a durable one, as above
//! let mut sampler = PoissonSampler::new(SampleRate::new(0.25)?);
//! let permits = run.reserve(&plan.round(&sampler)?, 10)?;
//!
//! for permit in permits {
//!     let noise = Noise::draw(&plan)?; // before the data is read, or on another thread meanwhile
//!     let sample = Sample::draw(permit, &mut sampler, 1000)?;
//!     let mut sum = sample.begin(&plan);
//!     for _id in sample.ids() {
//!         sum.add(&[&[0.3, -0.1, 2.0], &[0.05]])?; // this record's gradients
//!     }
//!     let estimates = sum.release(sample, noise)?; // consumes sample, permit and noise
//!     let gradient = estimates.vector("weight").ok_or("no such vector")?.to_vec();
//!     assert_eq!(gradient.len(), 3);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Audit a custom loop
//! Canaries go through the loop's own sampler, clipping, sum and noise, in coordinates that no record uses. They give a lower
//! bound on the privacy loss of these parts. (They do not go through the code that computes gradients.)
//!
//! ```
//! use veilgrad::accounting::audit::{Confidence, RunAudit};
//! use veilgrad::events::Folded;
//! use veilgrad::prelude::*;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut lane = CanaryLane::new(1000)?; // each is in the data with probability 1/2
//! let structure = Structure::new([("weight".to_owned(), 3), lane.vector("gradient")])?;
//! let group = Group::new("gradient", ["weight"], ClipNorm::new(1.0)?);
//! let groups = vec![group.with_vector(lane.vector("gradient").0)];
//! let noise = Allocation::Proportional(NoiseMultiplier::new(2.0)?);
//! let plan = RoundPlan::new(structure, groups, noise)?;
//! let mut sampler = PoissonSampler::new(SampleRate::new(0.25)?);
//!
//! // Before the run: the claim, and how many guesses will be made.
//! let rounds = Rounds { count: 10, round: plan.round(&sampler)? };
//! let (claimed, delta) = (Folded::try_from(&rounds)?, Delta::new(1e-5)?);
//! let (adjacency, confidence) = (Adjacency::AddRemove, Confidence::STANDARD);
//! let audit = RunAudit::plan(&[claimed], adjacency, delta, lane.count(), confidence)?;
//!
//! let mut run = Run::open(MemoryLedger::new(), RunHeader::new(RecordUnit::Example, adjacency))?;
//! let records = 200;
//! for permit in run.reserve(&rounds.round, rounds.count)? {
//!     let sample = Sample::draw(permit, &mut sampler, records + lane.count())?;
//!     let mut sum = sample.begin(&plan);
//!     for id in sample.ids() {
//!         match id.checked_sub(records) {
//!             Some(canary) => sum.add_canary(&lane, canary)?,
//!             None => sum.add(&[&[0.3, -0.1, 2.0], lane.zeros()])?, // this record's gradient
//!         }
//!     }
//!     let released = sum.release(sample, Noise::draw(&plan)?)?;
//!     lane.observe(&released, sampler.policy());
//! }
//! let verdict = audit.judge(lane.scores(), lane.included())?;
//! assert!(!verdict.contradicted && verdict.epsilon_lower < verdict.claimed);
//! # Ok(())
//! # }
//! ```

pub use veilgrad_accounting as accounting;
#[cfg(feature = "data")]
pub use veilgrad_data as data;
pub use veilgrad_events as events;
#[cfg(feature = "ledger")]
pub use veilgrad_ledger as ledger;
pub use veilgrad_mechanism as mechanism;
#[cfg(feature = "nn")]
pub use veilgrad_nn as nn;
pub use veilgrad_random as random;

/// The types that most training programs need, in one `use`.
pub mod prelude {
    pub use veilgrad_events::{
        Adjacency, BudgetShare, ClipNorm, Delta, Epsilon, FixedBatch, JointScale, LedgerError,
        LedgerKind, LedgerStore, MemoryLedger, NoiseMultiplier, NoiseStd, PublicCount, RecordUnit,
        Round, RoundPermit, Rounds, Run, RunCount, RunHeader, SampleRate, Sampling, SumQuery,
        TruncatedPoisson, TuningRun, WeightBound,
    };
    pub use veilgrad_mechanism::{
        AllRecords, Allocation, AllocationSampler, CanaryLane, ClippedSum, Estimates, FixedSampler,
        Group, LearningRate, Metric, Noise, PoissonSampler, Private, Quantile, Released, RoundPlan,
        Sample, Sampler, ShuffleSampler, Structure, TruncatedPoissonSampler, best_of,
    };
}
