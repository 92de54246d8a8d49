//! Selecting vectors by name or glob.

use crate::plan_error::PlanError;
use crate::structure::Structure;

/// A vector of a structure.
pub(crate) struct Vector<'a> {
    pub(crate) index: usize,
    pub(crate) name: &'a str,
    pub(crate) dimension: usize,
}

/// The vectors that match a name or a glob. The exact name of a vector matches that vector only, even if it contains
/// glob characters.
pub(crate) fn matching<'a>(
    structure: &'a Structure,
    text: &str,
) -> Result<Vec<Vector<'a>>, PlanError> {
    let vectors = structure.vectors().enumerate();
    let vectors = vectors.map(|(index, (name, dimension))| Vector { index, name, dimension });
    if structure.position(text).is_some() {
        return Ok(vectors.filter(|vector| vector.name == text).collect());
    }
    let glob = glob::Pattern::new(text).map_err(|_| PlanError::Pattern(text.to_owned()))?;
    Ok(vectors.filter(|vector| glob.matches(vector.name)).collect())
}
