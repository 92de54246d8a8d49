//! What can stop training.

use veilgrad_events::{LedgerError, RecordUnit};
use veilgrad_mechanism::{
    NoiseError, PlanError, ReleaseError, SampleError, StructureError, SumError,
};

/// Training was refused or stopped. No message depends on a record.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrainError {
    /// The groups do not make a plan.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The vectors do not make a structure.
    #[error(transparent)]
    Structure(#[from] StructureError),
    /// The model or the data does not fit, or the backend cannot use it.
    #[error(transparent)]
    Backend(Box<dyn std::error::Error + Send + Sync>),
    /// The model has statistics to release, or none, and the plan says otherwise.
    #[error(
        "a model with batch norm needs TrainingPlan::statistics, and no other model may have it"
    )]
    Statistics,
    /// There are no values for a metric of the plan.
    #[error("there are no values for metric '{0}'")]
    Metric(String),
    /// The backend does not train on the examples of a user alone.
    #[error("local steps of users are not supported here; use Contribution::Average")]
    LocalSteps,
    /// The run was opened for other records than the plan's; see [`Engine::header`](super::Engine::header).
    #[error("the run's record is {run}, the plan's {plan}")]
    Unit {
        /// What a record is in the ledger.
        run: RecordUnit,
        /// What a record is in training.
        plan: RecordUnit,
    },
    /// The run's header declares exact numerics, and the trainer's are unverified; see
    /// [`Engine::header`](super::Engine::header).
    #[error(
        "the run's header declares exact numerics, but this trainer's are unverified: open the run with the \
         trainer's own header, or train on single records"
    )]
    Numerics,
    /// The operating system has no randomness.
    #[error(transparent)]
    Noise(#[from] NoiseError),
    /// The sample could not be drawn.
    #[error(transparent)]
    Sample(#[from] SampleError),
    /// A sum was refused.
    #[error(transparent)]
    Sum(#[from] SumError),
    /// A release was refused.
    #[error(transparent)]
    Release(#[from] ReleaseError),
    /// The ledger did not take a charge.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// A thread died.
    #[error("a worker thread panicked")]
    Worker,
}
