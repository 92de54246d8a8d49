//! Neural networks trained privately: layers written for per-record gradients, and sums of those that
//! are exact.
//!
//! A [`Model`] is a list of [`Layer`]s. A [`TrainingPlan`] says in public parameters what a round asks
//! of its sample: clipped gradients, and with them batch-norm statistics and metrics. A [`Trainer`]
//! runs charged rounds and hands what they release to an [`Optimizer`].
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
//! let weights = trainer.model().to_safetensors()?; // released: may be shown
//! # assert!(!weights.is_empty());
//! # Ok(())
//! # }
//! ```
//!
//! # Guarantee
//! What a record adds to the sums of a round is a vector of integers that depends on this record and
//! on public values alone, whose norm was certified in exact arithmetic; the sums are the same bits
//! for any number of threads, size of tiles and order of records. The proof is in [`proof`].
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

/// What adapters of other frameworks build on: layers one by one, losses of single records ([`Loss::judge`]), sums of outer
/// products.
pub mod adapter {
    pub use crate::kernel::{Back, Kernel, KernelWeights};
    pub use crate::loss::Judgement;
    pub use crate::product::outer_products;
}

pub use error::ModelError;
pub use file::{FileError, write_private};
pub use layer::{Conv2d, Layer, Padding, Window};
pub use loss::Loss;
pub use model::Model;
pub use optimizer::{
    Adagrad, Adam, GradientDescent, Optimizer, PerWeight, RmsProp, Rule, Schedule, Sgd, Step,
    Weights,
};
pub use records::{InMemory, Microbatches, Records};
pub use round::{
    Checkpoint, Clipping, Contribution, DriveError, Hooks, Pace, Performance, Progress, TrainError,
    TrainingPlan, Unit, UnverifiedCheckpoint, drive,
};
pub use trainer::Trainer;
