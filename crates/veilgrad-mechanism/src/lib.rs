//! The Gaussian mechanism over groups of clipped vectors, in exact integer arithmetic.
//!
//! One round: draw a [`Sample`] with a permit from the ledger, [`add`](ClippedSum::add) each sampled
//! record to a [`ClippedSum`], [`release`](ClippedSum::release) it with [`Noise`]. Every record is clipped to an
//! integer vector with a certified norm, and every released value carries Gaussian noise and has the type
//! [`Released`]. Nothing bypasses this.
//!
//! - [`Structure`]: a record is a list of named vectors, the same for every record.
//! - [`Group`], [`RoundPlan`], [`Allocation`]: which vectors are clipped and noised together.
//! - [`Metric`], [`Quantile`]: metrics and adaptive clipping, as groups of the same round.
//! - [`CorrelatedNoise`], [`CyclicSampler`]: noise that is correlated between rounds, so that less of it adds up.
//! - [`best_of`]: private tuning; the best of a secret number of runs is released, and nothing else.
//! - [`Cohort`]: federated rounds, whose records are the model updates of users.
//! - [`CanaryLane`]: canaries for privacy audits, in extra coordinates of a group.
//!
//! # Guarantee
//! With the sample fixed, adding or removing one record changes the integer sum of each group by an
//! integer vector whose norm is at most `S_int`, by an exact integer certificate. The released value
//! is `floor(M)` for the real-valued Gaussian mechanism `M` with sensitivity `S_int` and standard
//! deviation `2^k`, so every accountant of the (subsampled) Gaussian mechanism applies unchanged and
//! rounding adds nothing to delta. The proof is in [`proof`]; it assumes nothing about floating-point rounding.
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

#[cfg(doc)]
#[doc = include_str!("../docs/guarantees.md")]
pub mod proof {}

mod accumulator;
mod adapt;
mod allocation;
mod arrival;
mod canary;
mod clip;
mod cohort;
mod correlated;
mod departure;
mod dropout;
mod estimate;
pub mod exact;
mod group;
#[cfg(feature = "insecure-testing")]
pub mod insecure;
mod kernel;
mod metric;
mod noise;
mod outer;
mod partial;
mod pattern;
mod plan;
mod plan_error;
mod plan_fingerprint;
mod planned;
mod private;
mod quantile;
mod recursion;
mod resolve;
mod sample;
mod sample_tag;
mod sampler;
mod selection;
mod structure;
mod sum;
mod sum_error;
mod tuning;

pub use adapt::Adapted;
pub use allocation::{Allocation, AllocationError, GroupSize};
pub use arrival::IncomingSum;
pub use canary::CanaryLane;
pub use cohort::Cohort;
pub use correlated::CorrelatedNoise;
pub use departure::{OutgoingSum, PrivateBytes};
pub use dropout::Dropouts;
pub use estimate::{Estimates, VectorEstimate};
pub use group::Group;
pub use metric::Metric;
pub use noise::{Noise, NoiseError};
pub use outer::{OuterMemory, OuterProducts, RecordVector, SparseRows};
pub use partial::PartialSum;
pub use plan::RoundPlan;
pub use plan_error::PlanError;
pub use private::{Private, Released};
pub use quantile::{LearningRate, Quantile, QuantileError};
pub use sample::{Sample, check_sampler};
pub use sample_tag::SampleTag;
pub use sampler::{
    AllRecords, AllocationSampler, CyclicSampler, FixedSampler, PoissonSampler, ShuffleSampler,
    TruncatedPoissonSampler,
};
pub use selection::{SampleError, Sampler, Selection};
pub use structure::{Structure, StructureError};
pub use sum::{ClippedSum, ReleaseError};
pub use sum_error::SumError;
pub use tuning::best_of;
