//! Names and globs of vectors.

use crate::plan_error::PlanError;
use crate::structure::Structure;

/// The name of a vector, or a glob.
pub(crate) enum Pattern {
    Exact(String),
    Glob(glob::Pattern),
}

impl Pattern {
    /// A name that the structure has is that vector and nothing else, whatever characters it holds.
    pub(crate) fn new(structure: &Structure, text: &str) -> Result<Self, PlanError> {
        if structure.position(text).is_some() {
            return Ok(Self::Exact(text.to_owned()));
        }
        let glob = glob::Pattern::new(text).map_err(|_| PlanError::Pattern(text.to_owned()))?;
        Ok(Self::Glob(glob))
    }

    pub(crate) fn matches(&self, name: &str) -> bool {
        match self {
            Self::Exact(exact) => exact == name,
            Self::Glob(glob) => glob.matches(name),
        }
    }
}
