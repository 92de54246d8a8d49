//! Differential privacy for iterative training.
//!
//! A program that trains on private records changes in three places: it *plans* its round in public
//! parameters, it *charges* the round to a ledger before it touches data, and it hands each sampled
//! record's vectors to a sum that clips, adds and *releases* them with noise.
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
//! // Charge first. The event is derived from the plan and the sampler; nobody types it.
//! let header = RunHeader::new(RecordUnit::Example, Adjacency::AddRemove);
//! let mut run = Run::open(MemoryLedger::new(), header)?;
//! let permits = run.reserve(&plan.round(&AllRecords)?, 10)?;
//!
//! for permit in permits {
//!     let sample = Sample::draw(permit, &mut AllRecords, 2)?;
//!     let mut sum = plan.begin();
//!     for _id in sample.ids() {
//!         sum.add(&[&[0.3, -0.1, 2.0], &[0.05]])?; // this record's gradients
//!     }
//!     // sum.release(sample, …) adds noise and consumes the permit.
//! }
//! # Ok(())
//! # }
//! ```

pub use veilgrad_events as events;
pub use veilgrad_mechanism as mechanism;

/// What a training program needs, in one `use`.
pub mod prelude {
    pub use veilgrad_events::{
        Adjacency, BudgetShare, ClipNorm, Delta, Epsilon, JointScale, LedgerError, LedgerStore,
        MemoryLedger, NoiseMultiplier, NoiseStd, PublicCount, RecordUnit, Round, RoundPermit,
        Rounds, Run, RunHeader, SampleRate, Sampling, SumQuery, WeightBound,
    };
    pub use veilgrad_mechanism::{
        AllRecords, Allocation, ClippedSum, Estimates, Group, LearningRate, Metric, NoiseSource,
        Private, Quantile, Released, RoundPlan, Sample, Sampler, Structure,
    };
}
