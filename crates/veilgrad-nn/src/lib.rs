//! Neural networks trained privately: layers written for per-record gradients, and sums of them that are
//! exact.
mod book;
mod checkpoint;
mod file;
mod gemm;
mod layer;
mod loss;
mod model;
mod optimizer;
mod outer;
mod plan;
pub mod public;
mod records;
#[cfg(test)]
mod reference;
#[cfg(test)]
mod test;
mod tile;
mod trainer;
mod worker;

pub use file::FileError;
pub use layer::{Conv2d, Layer, Padding, Window};
pub use loss::Loss;
pub use model::{Model, ModelError};
pub use optimizer::{
    Adagrad, Adam, Each, Optimizer, RmsProp, Rule, Schedule, Sgd, Step, Weights,
};
pub use plan::{Clipping, Contribution, TrainingPlan, Unit, Watch};
pub use records::{InMemory, Microbatches, Records};
pub use trainer::{Performance, Progress, TrainError, Trainer};
