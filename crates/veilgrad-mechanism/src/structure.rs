//! The structure of a record: a list of named vectors, the same for every record.

use std::collections::HashMap;

/// The names and dimensions of the vectors that every record consists of.
///
/// # Example
/// ```
/// use veilgrad_mechanism::Structure;
///
/// let structure = Structure::new([("conv.weight", 25), ("conv.bias", 5)])?;
/// assert_eq!(structure.vectors().map(|(_, length)| length).sum::<usize>(), 30);
/// assert!(Structure::new([("w", 1), ("w", 2)]).is_err()); // names are unique
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Structure {
    vectors: Vec<(String, usize)>,
    index: HashMap<String, usize>,
}

/// A structure is invalid, or the named vectors of a record do not match it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StructureError {
    /// There are no vectors.
    #[error("a structure needs at least one vector")]
    Empty,
    /// Two vectors share a name.
    #[error("vector '{0}' is named twice")]
    Duplicate(String),
    /// A vector has no coordinate.
    #[error("vector '{0}' has dimension 0")]
    NoDimension(String),
    /// The vectors together have too many coordinates.
    #[error("a structure of more than 2^36 coordinates is not supported")]
    TooLong,
    /// A record has a vector that is not in the structure.
    #[error("there is no vector '{0}'")]
    Unknown(String),
    /// A record lacks a vector of the structure.
    #[error("vector '{0}' is missing")]
    Missing(String),
}

/// More coordinates than fit in memory; keeps sizes far from overflow.
const MAX_COORDINATES: usize = 1 << 36;

impl Structure {
    /// A structure of vectors with these names and dimensions.
    ///
    /// Checks that there is at least one vector, that names are unique and dimensions are positive.
    ///
    /// # Errors
    /// Names the first invalid vector.
    pub fn new<N: Into<String>>(
        vectors: impl IntoIterator<Item = (N, usize)>,
    ) -> Result<Self, StructureError> {
        let vectors: Vec<(String, usize)> =
            vectors.into_iter().map(|(name, dimension)| (name.into(), dimension)).collect();
        if vectors.is_empty() {
            return Err(StructureError::Empty);
        }
        let (mut index, mut total) = (HashMap::new(), 0usize);
        for (position, (name, dimension)) in vectors.iter().enumerate() {
            if *dimension == 0 {
                return Err(StructureError::NoDimension(name.clone()));
            }
            if index.insert(name.clone(), position).is_some() {
                return Err(StructureError::Duplicate(name.clone()));
            }
            total = total.saturating_add(*dimension);
        }
        if total > MAX_COORDINATES {
            return Err(StructureError::TooLong);
        }
        Ok(Self { vectors, index })
    }

    /// Names and dimensions, in order.
    pub fn vectors(&self) -> impl Iterator<Item = (&str, usize)> {
        self.vectors.iter().map(|(name, dimension)| (name.as_str(), *dimension))
    }

    /// The index of a vector.
    pub(crate) fn position(&self, name: &str) -> Option<usize> {
        self.index.get(name).copied()
    }

    /// Puts named vectors into the order of the structure, as
    /// [`ClippedSum::add`](crate::ClippedSum::add) takes them.
    ///
    /// # Errors
    /// When a name is unknown, missing or given twice.
    pub fn order<'a>(&self, named: &[(&str, &'a [f32])]) -> Result<Vec<&'a [f32]>, StructureError> {
        let mut ordered: Vec<Option<&[f32]>> = vec![None; self.vectors.len()];
        for (name, vector) in named {
            let slot = self.position(name).and_then(|position| ordered.get_mut(position));
            let slot = slot.ok_or_else(|| StructureError::Unknown((*name).to_owned()))?;
            if slot.replace(vector).is_some() {
                return Err(StructureError::Duplicate((*name).to_owned()));
            }
        }
        let pairs = self.vectors.iter().zip(ordered);
        pairs
            .map(|((name, _), vector)| vector.ok_or_else(|| StructureError::Missing(name.clone())))
            .collect()
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
        assert_eq!(
            Structure::new([("w", usize::MAX), ("v", usize::MAX)]),
            Err(StructureError::TooLong)
        );
    }

    #[test]
    fn named_vectors_are_put_in_order() {
        let ordered = structure().order(&[("b", &[3.0]), ("w", &[1.0, 2.0])]).unwrap();
        assert_eq!(ordered, [&[1.0, 2.0][..], &[3.0]]);
        for (named, message) in [
            (vec![("w", &[1.0, 2.0][..])], "vector 'b' is missing"),
            (vec![("w", &[1.0][..]), ("c", &[1.0])], "there is no vector 'c'"),
            (vec![("w", &[1.0][..]), ("w", &[1.0])], "vector 'w' is named twice"),
        ] {
            assert_eq!(structure().order(&named).unwrap_err().to_string(), message);
        }
    }
}
