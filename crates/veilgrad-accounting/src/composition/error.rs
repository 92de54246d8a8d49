//! The error of an accountant that has no sound bound.

/// There is no sound privacy analysis of these events here, or no finite bound; the message says why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unsupported: {0}")]
pub struct Unsupported(String);

impl Unsupported {
    /// An error that says why.
    pub fn new(why: impl Into<String>) -> Self {
        Self(why.into())
    }
}

impl From<veilgrad_events::UnitError> for Unsupported {
    fn from(error: veilgrad_events::UnitError) -> Self {
        Self(error.to_string())
    }
}
