//! The error of accountants.

/// No sound privacy analysis of these events is implemented, or no finite bound exists; the message says why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unsupported: {0}")]
pub struct Unsupported(String);

impl Unsupported {
    /// An error with this message.
    pub fn new(why: impl Into<String>) -> Self {
        Self(why.into())
    }
}

impl From<veilgrad_events::UnitError> for Unsupported {
    fn from(error: veilgrad_events::UnitError) -> Self {
        Self(error.to_string())
    }
}
