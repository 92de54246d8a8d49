//! Errors of building and loading models.

/// A model could not be built from its layers, or values do not fit it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// A layer does not fit its input.
    #[error("{0}")]
    Shape(String),
    /// No layer has parameters to train.
    #[error("a model needs at least one layer with parameters")]
    NoParameters,
    /// A parameter is missing, unknown or has another shape.
    #[error("parameter '{0}' is missing, unknown or has another shape")]
    Parameter(String),
    /// A name or glob matches no parameter; the second text lists their names.
    #[error("'{0}' matches no parameter; they are {1}")]
    Pattern(String, String),
    /// Every parameter is frozen.
    #[error("every parameter is frozen: nothing is left to train")]
    AllFrozen,
    /// An optimizer's state is missing, unknown, of another length or not finite.
    #[error("the optimizer's state for '{0}' is missing, unknown, of another length or not finite")]
    State(String),
}
