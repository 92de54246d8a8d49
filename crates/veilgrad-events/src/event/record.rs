//! What a guarantee protects: the unit of privacy and the adjacency relation.

use std::fmt;
use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};

/// The unit of privacy: what one record of the dataset is (paper, Table 1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[non_exhaustive]
pub enum RecordUnit {
    /// One training example.
    Example,
    /// A fixed set of examples whose average is clipped as one vector.
    Microbatch {
        /// How many examples each microbatch holds.
        examples: NonZeroU32,
    },
    /// Everything that one user contributed.
    User,
    /// Everything that one node of a federation contributed. A node need not be a person: one person may have several,
    /// and one node may hold the data of many.
    Node,
}

impl fmt::Display for RecordUnit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Example => f.write_str("one training example"),
            Self::Microbatch { examples } => write!(
                f,
                "one microbatch of {examples} examples; replacing a single example inside it moves \
                 the sum by up to twice the clip norm"
            ),
            Self::User => f.write_str("all data of one user"),
            Self::Node => {
                f.write_str("all data of one node of the federation (a node need not be a person)")
            }
        }
    }
}

/// The adjacency relation: when two datasets are neighbours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Adjacency {
    /// One record is added or removed.
    AddRemove,
    /// One record is replaced by another; the number of records is public.
    ReplaceOne,
    /// One record's contribution is set to zero; the number of records is public.
    ZeroOut,
}

impl Adjacency {
    /// The L2 sensitivity of the sum over a sample that contains the differing record, in multiples of the
    /// clip norm `S`.
    #[must_use]
    pub const fn sensitivity(self) -> u32 {
        match self {
            Self::AddRemove | Self::ZeroOut => 1,
            Self::ReplaceOne => 2,
        }
    }

    /// The name in files and on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::AddRemove => "add-remove",
            Self::ReplaceOne => "replace-one",
            Self::ZeroOut => "zero-out",
        }
    }
}

impl fmt::Display for Adjacency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_command_line() {
        for (adjacency, name) in [
            (Adjacency::AddRemove, "add-remove"),
            (Adjacency::ReplaceOne, "replace-one"),
            (Adjacency::ZeroOut, "zero-out"),
        ] {
            assert_eq!(adjacency.to_string(), name);
            assert_eq!(serde_json::to_string(&adjacency).unwrap(), format!("\"{name}\""));
        }
        assert!(serde_json::from_str::<Adjacency>("\"add\"").is_err());
    }

    #[test]
    fn a_microbatch_says_what_it_protects() {
        let unit = RecordUnit::Microbatch { examples: NonZeroU32::new(10).unwrap() };
        assert!(unit.to_string().contains("twice the clip norm"));
        let json = serde_json::to_string(&unit).unwrap();
        assert_eq!(serde_json::from_str::<RecordUnit>(&json).unwrap(), unit);
        assert!(serde_json::from_str::<RecordUnit>(r#"{"microbatch":{"examples":0}}"#).is_err());
    }

    #[test]
    fn a_node_is_not_called_a_user() {
        let text = RecordUnit::Node.to_string();
        assert!(text.contains("one node of the federation") && !text.contains("user"));
        assert_eq!(serde_json::from_str::<RecordUnit>("\"node\"").unwrap(), RecordUnit::Node);
    }
}
