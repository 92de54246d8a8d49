//! Why a Burn model cannot be trained privately.

use veilgrad_nn::TrainError;

/// A model, its layers or its losses cannot be used. No message depends on a record.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// A layer that private training cannot use.
    #[error("private training cannot use {layer}: {instead}")]
    Layer {
        /// Where it is and what it is.
        layer: String,
        /// What to use instead.
        instead: String,
    },
    /// A private layer cannot be used in this way.
    #[error("private training cannot use a layer in this way: {0}")]
    Refused(String),
    /// No parameter is trained, or the losses do not depend on any.
    #[error(
        "nothing is trained: no parameter of the model requires a gradient, or the loss depends on none"
    )]
    NothingTrained,
    /// Records are not independent in the model or in the loss.
    #[error(
        "a record changes what the model makes of another record; look for operations along the first \
         axis (ordinary batch norm, averages over the batch, records that are not first)"
    )]
    CrossRecord,
    /// The model fails on made-up examples.
    #[error("the model fails on made-up examples")]
    MadeUp,
    /// There is not one loss per example.
    #[error("{losses} losses for {examples} examples: the outcome must have one loss for each")]
    Losses {
        /// Examples in the batch.
        examples: usize,
        /// Losses of the outcome.
        losses: usize,
    },
    /// An example does not have the targets that the loss needs.
    #[error(
        "an example has {targets} targets, but the loss needs {needed} for the model's outputs"
    )]
    Targets {
        /// What the loss needs.
        needed: usize,
        /// What there is.
        targets: usize,
    },
    /// A metric of the plan has no values.
    #[error("the outcome needs one value of metric '{0}' for each example")]
    Metric(String),
    /// Private batch norm needs private layers throughout.
    #[error(
        "a model with private batch norm needs TrainingPlan::statistics and private layers throughout"
    )]
    Statistics,
    /// The model is on a device that private layers do not run on.
    #[error(
        "private layers run on the devices flex and ndarray with autodiff; use one of them, or \
             TrainingPlan::materialised"
    )]
    Device,
    /// The model is on several devices, on none, or not on one with autodiff.
    #[error("the model must be on one device with autodiff: Device::flex().autodiff()")]
    NotOneDevice,
    /// The model is another one than that of the plan.
    #[error("the model has other parameters than the one that the plan was made for")]
    OtherModel,
}

impl From<ModelError> for TrainError {
    fn from(error: ModelError) -> Self {
        Self::Backend(Box::new(error))
    }
}
