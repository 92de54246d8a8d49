//! Neural networks with differentially private training: per-record gradients, clipped and summed exactly.
//!
//! A [`Model`] is a list of [`Layer`]s. A [`TrainingPlan`] holds the privacy settings: clipping, noise, and
//! the batch-norm statistics and metrics that a round releases with its gradients. A [`Trainer`] runs
//! charged rounds and passes what they release to an [`Optimizer`].
//!
//! ```
//! use veilgrad_events::{
//!     Adjacency, ClipNorm, MemoryLedger, NoiseMultiplier, PublicCount, Run, SampleRate,
//! };
//! use veilgrad_mechanism::PoissonSampler;
//! use veilgrad_nn::{
//!     Clipping, InMemory, Layer, Loss, Model, Performance, Schedule, Sgd, Trainer, TrainingPlan,
//! };
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let model = Model::new(&[4], [Layer::linear(8), Layer::Relu, Layer::linear(3)], 1)?;
//! let plan = TrainingPlan::new(
//!     Clipping::Flat(ClipNorm::new(1.0)?),
//!     NoiseMultiplier::new(1.1)?,
//!     PublicCount::new(32.0)?, // the expected number of records in a sample, declared
//! );
//! let (loss, rate) = (Loss::SoftmaxCrossEntropy, Schedule::Constant(0.5));
//! let mut trainer =
//!     Trainer::new(model, loss, plan, Sgd::with_momentum(0.9), rate, Performance::default())?;
//!
//! // Private records: four numbers and a class each.
//! let records = InMemory::new(vec![0.5; 4 * 320], 4, vec![1.0; 320], 1);
//! let mut sampler = PoissonSampler::new(SampleRate::new(0.1)?);
//! let mut run = Run::open(MemoryLedger::new(), trainer.header(Adjacency::AddRemove))?;
//! trainer.train(&mut run, &mut sampler, &records, 10, 5, |_, _| ())?;
//! let weights = trainer.model().to_safetensors()?; // differentially private: may be published
//! # assert!(!weights.is_empty());
//! # Ok(())
//! # }
//! ```
//!
//! # Guarantee
//! A record adds an integer vector to the sums of a round. The vector depends on this record and on
//! public values alone, and its norm is checked in exact arithmetic. The sums have the same bits for
//! any number of threads, tile size and order of records. See [`proof`].
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

#[cfg(doc)]
#[doc = include_str!("../docs/training.md")]
pub mod proof {}

mod error;
mod file;
mod gemm;
mod kernel;
mod layer;
mod loss;
mod model;
mod native;
mod optimizer;
mod outer;
mod precondition;
mod product;
pub mod public;
mod records;
#[cfg(test)]
mod reference;
pub mod round;
#[cfg(test)]
mod test;
mod tile;
mod trainer;

/// Building blocks for adapters to other frameworks: single layers, losses of single records ([`Loss::judge`]), sums of
/// outer products.
pub mod adapter {
    pub use crate::kernel::{Back, Kernel, KernelWeights};
    pub use crate::layer::TableGradients;
    pub use crate::loss::Judgement;
    pub use crate::product::outer_products;
}

pub use error::ModelError;
pub use file::{FileError, write_private};
pub use layer::{Conv2d, EmbeddedColumn, Layer, Padding, Window};
pub use loss::Loss;
pub use model::{Model, PlacedLayer};
pub use optimizer::{
    Adagrad, Adam, GradientDescent, Optimizer, PerWeight, RmsProp, Rule, Schedule, Sgd, Step,
    Weights, Yogi,
};
pub use precondition::{PreconditionError, PreconditionPlan, Preconditioning, Whitening};
pub use records::{InMemory, Microbatches, Records};
pub use round::{
    Checkpoint, Clipping, Contribution, Denominator, DriveError, Hooks, Pace, Performance,
    Progress, TrainError, TrainingPlan, Unit, UnverifiedCheckpoint, drive,
};
pub use trainer::Trainer;
