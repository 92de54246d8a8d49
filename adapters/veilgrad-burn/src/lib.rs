//! Differentially private training for models and training loops in Burn.
//!
//! A [`Trainer`] runs charged rounds over [`Records`]; a [`PrivateOptimizer`] wraps any Burn optimizer and
//! accepts only what a round released. Models made of private layers
//! (`LinearConfig::new(784, 10).private(&device)`, see [`PrivateConfig`]) train fast; any other model trains
//! record by record, unchanged ([`TrainingPlan::materialised`]). Permits, ledger, samplers, groups, metrics and
//! checkpoints are those of `veilgrad-nn`; `docs/burn.md` shows a training loop before and after.
//!
//! # Guarantee
//! A record adds an integer vector with a certified norm to a round. The vector is a function of this record
//! alone if the model's types ensure it ([`Trainer::per_record`]) or the model sees one record at a time;
//! otherwise the run is stamped `numerics = unverified` ([`Engine::numerics`](veilgrad_nn::round::Engine::numerics)).

mod checkpoint;
mod error;
mod gradients;
mod inspect;
mod isolation;
mod layer;
mod layer_pass;
mod operation;
mod optimizer;
mod per_record;
mod records;
mod tape;
mod tile;
mod trainer;

pub use error::ModelError;
pub use layer::{
    PrivateBatchNorm, PrivateConfig, PrivateConv1d, PrivateConv2d, PrivateEmbedding,
    PrivateGroupNorm, PrivateLayerNorm, PrivateLinear, PrivateMaxPool2d, PrivateMultiHeadAttention,
};
pub use optimizer::PrivateOptimizer;
pub use per_record::{PerRecord, PerRecordModel, Stack, Stacked, outputs};
pub use records::{Outcome, Records, accuracy, cross_entropy};
pub use trainer::{Trainer, Training};
pub use veilgrad_nn::{TrainError, TrainingPlan};
