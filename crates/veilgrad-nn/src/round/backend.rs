//! What a training framework supplies to rounds: parameters by name, and what a model makes of examples.

use veilgrad_mechanism::RecordVector;

use super::plan::Contribution;

/// One example of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExampleId {
    /// The record.
    pub record: u64,
    /// Which of its examples.
    pub example: usize,
}

/// A model and its records, as a round needs them. Open for adapters of other frameworks.
///
/// # Guarantee
/// This is trusted: everything of row i must be a function of example i and of public state alone, not of other
/// rows, of their number, or of what ran before. Whoever cannot promise that says so in the run's header
/// ([`Numerics`](veilgrad_events::Numerics)). Nothing that depends on a record may be printed or raised.
pub trait Backend: Sync {
    /// One thread's memory: bounded by the tile and the model, whatever the sample.
    type Memory: Send;

    /// Whether [`local_steps`](Self::local_steps) is there.
    const LOCAL_STEPS: bool = false;

    /// Memory for a thread.
    fn memory(&self) -> Self::Memory;

    /// How many examples go through the model at once.
    fn capacity(&self, memory: &Self::Memory) -> usize;

    /// How many records there are. Private under add/remove adjacency.
    fn records(&self) -> u64;

    /// How many examples a record has.
    fn examples(&self, record: u64) -> usize;

    /// Takes examples through the model and back, a row each. False if they cannot go together: then each is tried
    /// alone, and one that fails alone contributes zero.
    fn run(&self, memory: &mut Self::Memory, examples: &[ExampleId]) -> bool;

    /// Takes examples through the model and back, and adds the vectors of valid ones to `sums`, in the order of
    /// [`Vectors`](super::Vectors). False as for [`run`](Self::run), with nothing added.
    fn run_summed(
        &self,
        memory: &mut Self::Memory,
        examples: &[ExampleId],
        sums: &mut [Vec<f32>],
    ) -> bool;

    /// Whether the example of a row is valid: finite inputs, a possible target, a finite loss.
    fn is_sound(&self, memory: &Self::Memory, row: usize) -> bool;

    /// A vector of a row, counted through [`Vectors`](super::Vectors), after [`run`](Self::run).
    fn vector<'m>(&self, memory: &'m Self::Memory, vector: usize, row: usize) -> RecordVector<'m>;

    /// The value of a metric of the plan for a row.
    fn metric(&self, memory: &Self::Memory, metric: usize, row: usize) -> f64;

    /// The round is over: forgets records.
    fn end(&self, _memory: &mut Self::Memory) {}

    /// How far training on the examples of a record alone moves the weights, in the direction that an optimizer
    /// subtracts; `None` if the backend does not train locally.
    fn local_steps(
        &self,
        _memory: &mut Self::Memory,
        _record: u64,
        _examples: usize,
        _contribution: Contribution,
    ) -> Option<Vec<Vec<f32>>> {
        None
    }
}
