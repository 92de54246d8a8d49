//! Errors of Burn models in private training.

use veilgrad_nn::TrainError;

/// A model, layer or loss cannot be used for private training. No message depends on a record.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// Private training cannot use a layer.
    #[error("private training cannot use {layer}: {instead}")]
    Layer {
        /// The path and type of the layer.
        layer: String,
        /// What to use instead.
        instead: String,
    },
    /// A private layer is used in an unsupported way.
    #[error("private training cannot use a layer in this way: {0}")]
    Refused(String),
    /// No parameter requires a gradient, or the loss depends on none.
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
    /// The number of losses differs from the number of examples.
    #[error("{losses} losses for {examples} examples: the outcome must have one loss for each")]
    Losses {
        /// Examples in the batch.
        examples: usize,
        /// Losses of the outcome.
        losses: usize,
    },
    /// An example has the wrong number of targets for the loss.
    #[error(
        "an example has {targets} targets, but the loss needs {needed} for the model's outputs"
    )]
    Targets {
        /// The number of targets that the loss needs.
        needed: usize,
        /// The number of targets of an example.
        targets: usize,
    },
    /// The outcome has no values for a metric of the plan.
    #[error("the outcome needs one value of metric '{0}' for each example")]
    Metric(String),
    /// A model with private batch norm has other layers than private ones, or the plan is materialised.
    #[error(
        "a model with private batch norm needs TrainingPlan::statistics and private layers throughout"
    )]
    Statistics,
    /// The model is on a device that private layers do not support.
    #[error(
        "private layers run on the devices flex and ndarray with autodiff; use one of them, or \
             TrainingPlan::materialised"
    )]
    Device,
    /// The model is on several devices, on none, or not on one with autodiff.
    #[error("the model must be on one device with autodiff: Device::flex().autodiff()")]
    NotOneDevice,
    /// The model differs from the one that the trainer was made for.
    #[error("the model has other parameters than the one that the plan was made for")]
    OtherModel,
}

impl From<ModelError> for TrainError {
    fn from(error: ModelError) -> Self {
        Self::Backend(Box::new(error))
    }
}
