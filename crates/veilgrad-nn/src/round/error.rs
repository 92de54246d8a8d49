//! Errors of training.

use veilgrad_events::{LedgerError, RecordUnit};
use veilgrad_mechanism::{
    NoiseError, PlanError, ReleaseError, SampleError, StructureError, SumError,
};

/// Training was refused or stopped. No message depends on a record.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrainError {
    /// The groups of the plan are invalid.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The names or lengths of the vectors are invalid.
    #[error(transparent)]
    Structure(#[from] StructureError),
    /// The model or the data does not fit, or the backend cannot use it.
    #[error(transparent)]
    Backend(Box<dyn std::error::Error + Send + Sync>),
    /// The model has batch norm and the plan has no statistics, or the other way round.
    #[error(
        "a model with batch norm needs TrainingPlan::statistics, and no other model may have it"
    )]
    Statistics,
    /// The backend does not compute a metric of the plan.
    #[error("there are no values for metric '{0}'")]
    Metric(String),
    /// The backend does not support local SGD.
    #[error("local steps of users are not supported here; use Contribution::Average")]
    LocalSteps,
    /// The run was opened for another record unit than the plan's; see [`Engine::header`](super::Engine::header).
    #[error("the run's record is {run}, the plan's {plan}")]
    Unit {
        /// The record unit of the run.
        run: RecordUnit,
        /// The record unit of the plan.
        plan: RecordUnit,
    },
    /// The run's header declares exact numerics, and the trainer's are unverified; see
    /// [`Engine::header`](super::Engine::header).
    #[error(
        "the run's header declares exact numerics, but this trainer's are unverified: open the run with the \
         trainer's own header, or train on single records"
    )]
    Numerics,
    /// The plan has canaries and correlated noise.
    #[error("canaries are for plain noise: their scores assume that rounds are independent")]
    CorrelatedCanaries,
    /// Noise could not be drawn.
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
    /// All rounds of a phase are done.
    #[error("all rounds of this phase are done")]
    Finished,
    /// A round was charged, but left no estimates of its vectors.
    #[error("a charged round left no estimates: to repeat it would be charged again")]
    NoEstimates,
    /// The ledger refused a charge.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// The other processes of the job cannot be reached, or sent a sum that is refused.
    #[error("the processes of the job: {0}")]
    Peers(Box<dyn std::error::Error + Send + Sync>),
    /// What another process sent does not fit this one's model or plan.
    #[error("the processes of the job have different models or plans")]
    DifferentPlan,
    /// A worker thread panicked.
    #[error("a worker thread panicked")]
    Worker,
}
