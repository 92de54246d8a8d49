//! Ledger entries. The meaning of an event kind never changes; an unknown kind is refused.

use serde::{Deserialize, Deserializer, Serialize};

use super::record::{Adjacency, RecordUnit};
use super::round::Rounds;
use super::run_count::RunCount;
use super::tag_first::TagFirst;

/// One entry of a ledger.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Event {
    /// A run begins.
    Open(RunHeader),
    /// Rounds are charged, before any of them runs.
    Reserve(Reservation),
    /// The run was marked insecure: it protects nothing, and its epsilon is infinite.
    Insecure(Insecure),
    /// The run was closed normally.
    Close(Close),
}

/// The same variants, read without a tag.
#[derive(Deserialize)]
#[serde(remote = "Event", rename_all = "kebab-case")]
enum Variants {
    Open(RunHeader),
    Reserve(Reservation),
    Insecure(Insecure),
    Close(Close),
}

impl<'de> Deserialize<'de> for Event {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Variants::deserialize(TagFirst::new("event", deserializer))
    }
}

/// The public facts of a run.
///
/// # Example
/// ```
/// use veilgrad_events::{Adjacency, Mode, RecordUnit, RunHeader};
///
/// let header = RunHeader::new(RecordUnit::User, Adjacency::AddRemove);
/// assert!(header.plan.is_none()); // its rounds are accounted for as adaptive
/// let planned = header.with_plan(Vec::new());
/// assert!(planned.plan.is_some() && planned.mode == Mode::Planned);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunHeader {
    /// Version of the code that runs.
    pub code_version: String,
    /// Hash of the effective configuration, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan_hash: Option<String>,
    /// All rounds that the run may charge, in order, if they were declared when it was opened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<Vec<Rounds>>,
    /// What a record is.
    pub unit: RecordUnit,
    /// Which datasets are neighbours.
    pub adjacency: Adjacency,
    /// Whether record isolation and exact sums are proven for this run.
    pub numerics: Numerics,
    /// Whether the parameters of all rounds were fixed before the first one. This counts only together with a
    /// [`plan`](Self::plan): a run without a plan is accounted for as adaptive, whatever this field says.
    pub mode: Mode,
    /// If only the best of a random number of such runs is released: the distribution of that number. The plan is that of
    /// one of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tuning: Option<RunCount>,
}

impl RunHeader {
    /// A header for this version of the code, with exact numerics and no plan. Its rounds are accounted for as
    /// adaptive unless [`with_plan`](Self::with_plan) declares them.
    #[must_use]
    pub fn new(unit: RecordUnit, adjacency: Adjacency) -> Self {
        Self {
            code_version: env!("CARGO_PKG_VERSION").to_owned(),
            plan_hash: None,
            plan: None,
            unit,
            adjacency,
            numerics: Numerics::Exact,
            mode: Mode::Planned,
            tuning: None,
        }
    }

    /// Declares all rounds that the run may charge, in order, so that the tightest accountants apply. A store with
    /// a budget refuses the run unless all of them fit. The run can then charge nothing else.
    #[must_use]
    pub fn with_plan(self, plan: Vec<Rounds>) -> Self {
        Self { plan: Some(plan), mode: Mode::Planned, ..self }
    }

    /// Declares that only the best of a random number of runs with this plan is released, for
    /// [`TuningRun`](crate::TuningRun).
    #[must_use]
    pub fn with_tuning(self, count: RunCount) -> Self {
        Self { tuning: Some(count), ..self }
    }
}

/// Whether rounds were planned in advance or chosen adaptively, which decides the accountants that apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// The sampling and noise multipliers of all rounds were fixed before the first round.
    Planned,
    /// They may depend on earlier outputs; only a privacy filter applies.
    Adaptive,
}

/// Whether the arithmetic of a run is proven exact.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Numerics {
    /// Every record's integer contribution is a function of that record and public state alone.
    Exact,
    /// Record isolation is not proven for the backend in use.
    Unverified,
}

/// A block of charged rounds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reservation {
    /// The number of the first round of the block within its run.
    pub first_round: u64,
    /// The rounds.
    pub charge: Rounds,
    /// The noise added to all their queries.
    pub noise: NoiseMechanism,
}

/// The distribution of noise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum NoiseMechanism {
    /// Gaussian noise, rounded down to the integer grid if the query has one: independent, or correlated between rounds if the
    /// query has a strategy.
    Gaussian,
}

/// Why a run protects nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Insecure {
    /// The reason in words, such as "seeded noise".
    pub reason: String,
}

/// The end of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Close {}
