//! What a record looks like: a list of named vectors, the same for every record.

use std::collections::HashMap;

/// The names and dimensions of the vectors that every record consists of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Structure {
    vectors: Vec<(String, usize)>,
}

/// A record or a group does not fit the structure.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StructureError {
    /// There is nothing to sum.
    #[error("a structure needs at least one vector")]
    Empty,
    /// Two vectors share a name.
    #[error("vector '{0}' is named twice")]
    Duplicate(String),
    /// A vector has no coordinate.
    #[error("vector '{0}' has dimension 0")]
    NoDimension(String),
    /// A record has too many or too few vectors.
    #[error("a record of {found} vectors does not fit a structure of {expected}")]
    Count {
        /// Vectors in the structure.
        expected: usize,
        /// Vectors in the record.
        found: usize,
    },
    /// A vector has the wrong length.
    #[error("vector '{name}' has {found} coordinates, not {expected}")]
    Dimension {
        /// The vector.
        name: String,
        /// Its dimension in the structure.
        expected: usize,
        /// Its length in the record.
        found: usize,
    },
    /// A vector that the structure does not have.
    #[error("there is no vector '{0}'")]
    Unknown(String),
    /// A group that the plan does not have.
    #[error("there is no group '{0}' of vectors")]
    UnknownGroup(String),
    /// Sums of two different plans were merged.
    #[error("the two sums belong to different plans")]
    PlanMismatch,
}

impl Structure {
    /// Checks that there is at least one vector, that names differ and dimensions are positive.
    ///
    /// # Errors
    /// Names the vector that breaks a rule.
    pub fn new<N: Into<String>>(
        vectors: impl IntoIterator<Item = (N, usize)>,
    ) -> Result<Self, StructureError> {
        let vectors: Vec<(String, usize)> =
            vectors.into_iter().map(|(name, dimension)| (name.into(), dimension)).collect();
        if vectors.is_empty() {
            return Err(StructureError::Empty);
        }
        let mut seen = std::collections::HashSet::new();
        for (name, dimension) in &vectors {
            if *dimension == 0 {
                return Err(StructureError::NoDimension(name.clone()));
            }
            if !seen.insert(name) {
                return Err(StructureError::Duplicate(name.clone()));
            }
        }
        Ok(Self { vectors })
    }

    /// Names and dimensions, in order.
    pub fn vectors(&self) -> impl Iterator<Item = (&str, usize)> {
        self.vectors.iter().map(|(name, dimension)| (name.as_str(), *dimension))
    }

    /// Puts named vectors into the order of the structure, as
    /// [`ClippedSum::add`](crate::ClippedSum::add) takes them.
    ///
    /// # Errors
    /// When a name is unknown, missing or given twice.
    pub fn order<'a>(&self, named: &[(&str, &'a [f32])]) -> Result<Vec<&'a [f32]>, StructureError> {
        let mut by_name = HashMap::new();
        for (name, vector) in named {
            if !self.vectors.iter().any(|(known, _)| known == name) {
                return Err(StructureError::Unknown((*name).to_owned()));
            }
            if by_name.insert(*name, *vector).is_some() {
                return Err(StructureError::Duplicate((*name).to_owned()));
            }
        }
        let count = StructureError::Count { expected: self.vectors.len(), found: by_name.len() };
        self.vectors
            .iter()
            .map(|(name, _)| by_name.get(name.as_str()).copied())
            .collect::<Option<Vec<_>>>()
            .ok_or(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn structure() -> Structure {
        Structure::new([("w", 2), ("b", 1)]).unwrap()
    }

    #[test]
    fn structures_are_checked_by_name() {
        let vectors: [(&str, usize); 0] = [];
        assert_eq!(Structure::new(vectors), Err(StructureError::Empty));
        assert_eq!(
            Structure::new([("w", 1), ("w", 2)]),
            Err(StructureError::Duplicate("w".to_owned()))
        );
        assert_eq!(
            Structure::new([("w", 0)]).unwrap_err().to_string(),
            "vector 'w' has dimension 0"
        );
    }

    #[test]
    fn named_vectors_are_put_in_order() {
        let ordered = structure().order(&[("b", &[3.0]), ("w", &[1.0, 2.0])]).unwrap();
        assert_eq!(ordered, [&[1.0, 2.0][..], &[3.0]]);
        for (named, message) in [
            (vec![("w", &[1.0, 2.0][..])], "a record of 1 vectors does not fit a structure of 2"),
            (vec![("w", &[1.0][..]), ("c", &[1.0])], "there is no vector 'c'"),
            (vec![("w", &[1.0][..]), ("w", &[1.0])], "vector 'w' is named twice"),
        ] {
            assert_eq!(structure().order(&named).unwrap_err().to_string(), message);
        }
    }
}
