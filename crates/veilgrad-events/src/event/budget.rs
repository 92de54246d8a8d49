//! What all runs on a dataset may cost together.

use serde::{Deserialize, Serialize};

use super::entry::Mode;
use super::record::{Adjacency, RecordUnit};
use super::unit::{Delta, Epsilon};

/// The budget of one dataset: one promise that all its runs keep together.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Budget {
    /// A name that its owner chose; never a hash of the data.
    pub dataset: String,
    /// What a record is.
    pub unit: RecordUnit,
    /// Which datasets are neighbours.
    pub adjacency: Adjacency,
    /// The delta of the promise.
    pub delta: Delta,
    /// What all runs together must not exceed.
    pub epsilon: Epsilon,
    /// Whether rounds may be chosen from earlier outputs.
    pub mode: Mode,
    /// In adaptive mode, the Rényi order at which the budget is kept, declared once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order: Option<f64>,
}
