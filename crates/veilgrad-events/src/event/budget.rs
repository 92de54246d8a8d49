//! The privacy budget of a dataset.

use serde::{Deserialize, Serialize};

use super::entry::Mode;
use super::record::{Adjacency, RecordUnit};
use super::unit::{Delta, Epsilon};

/// The privacy budget of one dataset: the (epsilon, delta) that all its runs together must not exceed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Budget {
    /// A name chosen by the data owner; never a hash of the data.
    pub dataset: String,
    /// What a record is.
    pub unit: RecordUnit,
    /// Which datasets are neighbours.
    pub adjacency: Adjacency,
    /// The delta of the guarantee.
    pub delta: Delta,
    /// The epsilon that all runs together must not exceed.
    pub epsilon: Epsilon,
    /// Whether rounds may be chosen from earlier outputs.
    pub mode: Mode,
    /// In adaptive mode, the Rényi order of the privacy filter, fixed when the budget is declared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order: Option<f64>,
}
