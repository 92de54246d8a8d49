//! Private training for models and loops that already exist in Burn.
//!
//! A [`Trainer`] runs charged rounds over [`Records`] and returns what they released; a
//! [`PrivateOptimizer`] wraps any optimizer of Burn and takes nothing else. Models made of private
//! layers (`LinearConfig::new(784, 10).private(&device)`, see [`PrivateConfig`]) train fast; any other model
//! trains record by record, without change ([`TrainingPlan::materialised`]). Permits, ledger, samplers,
//! groups, metrics and checkpoints are those of `veilgrad-nn`; `docs/burn.md` shows a loop before and
//! after.
//!
//! # Guarantee
//! What a record adds to a round is a vector of integers with a certified norm. It is a function of this
//! record alone where the types of the model say so ([`Trainer::per_record`]) or the model sees one record
//! at a time; otherwise the run is stamped `numerics = unverified` ([`Engine::numerics`](veilgrad_nn::round::Engine::numerics)).

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
