//! Errors of round plans.

use veilgrad_events::{ClipNorm, GridError, QueryError, RoundError, UnitError};

use crate::allocation::AllocationError;

/// A round plan is invalid.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// Two groups share a name.
    #[error("group '{0}' is named twice")]
    DuplicateGroup(String),
    /// A pattern is not a glob.
    #[error("'{0}' is not a valid pattern")]
    Pattern(String),
    /// A pattern matches no vector.
    #[error("pattern '{pattern}' of group '{group}' matches no vector")]
    NoMatch {
        /// The group.
        group: String,
        /// Its pattern.
        pattern: String,
    },
    /// A vector is in two groups, or twice in one.
    #[error("vector '{vector}' is in group '{first}' and again in group '{second}'")]
    Overlap {
        /// The vector.
        vector: String,
        /// The group that had it first.
        first: String,
        /// The group that claims it again.
        second: String,
    },
    /// A vector is in no group.
    #[error("vector '{0}' is in no group")]
    Uncovered(String),
    /// A quantile or an average refers to something that does not exist or has the wrong kind.
    #[error("group '{group}' refers to '{target}', which is not {kind}")]
    Reference {
        /// The group that refers.
        group: String,
        /// The name it uses.
        target: String,
        /// The kind that it must have.
        kind: &'static str,
    },
    /// An option was set that does not apply to the group's content.
    #[error("group '{group}' cannot be {option}")]
    Misapplied {
        /// The group.
        group: String,
        /// The option.
        option: &'static str,
    },
    /// An adaptive clip norm is below its floor.
    #[error("the clip norm of group '{group}' starts at {clip}, below its floor {floor}")]
    BelowFloor {
        /// The group.
        group: String,
        /// Its clip norm.
        clip: ClipNorm,
        /// The floor of the quantile that adapts it.
        floor: ClipNorm,
    },
    /// Two quantiles adapt the same clip norm.
    #[error("the clip norm of group '{0}' is adapted twice")]
    AdaptedTwice(String),
    /// The estimate of a restored quantile is NaN or infinite.
    #[error("the estimate of group '{0}' is not finite")]
    Estimate(String),
    /// The noise cannot be allocated to the groups.
    #[error(transparent)]
    Allocation(#[from] AllocationError),
    /// A group's noise has no integer grid.
    #[error("group '{0}': {1}")]
    Grid(String, GridError),
    /// A number is out of range.
    #[error("group '{0}': {1}")]
    Unit(String, UnitError),
    /// A group has no valid ledger query.
    #[error(transparent)]
    Query(#[from] QueryError),
    /// The plan has no valid ledger round.
    #[error(transparent)]
    Round(#[from] RoundError),
    /// The estimates belong to another plan.
    #[error("the estimates belong to another plan")]
    ForeignEstimates,
}
