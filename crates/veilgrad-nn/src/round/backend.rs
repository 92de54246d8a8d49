//! What a training framework supplies to a round: per-record gradients and metrics.

use veilgrad_mechanism::RecordVector;

use super::plan::Contribution;

/// Names one example of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExampleId {
    /// The record.
    pub record: u64,
    /// The index of the example within the record.
    pub example: usize,
}

/// A model and a dataset, as a round needs them: computes per-record gradients. Open for adapters to other frameworks.
///
/// # Guarantee
/// A backend is trusted: everything in row i must be a function of example i and of public state alone, not of other
/// rows, their number, or earlier calls. A backend that cannot promise this must declare
/// [`Numerics::Unverified`](veilgrad_events::Numerics) in the run's header. It must not print anything or return an
/// error that depends on a record.
pub trait Backend: Sync {
    /// The working memory of one thread: its size depends on the tile and the model, not on the sample.
    type Memory: Send;

    /// Whether [`local_steps`](Self::local_steps) is implemented.
    const LOCAL_STEPS: bool = false;

    /// Allocates the working memory of one thread.
    fn memory(&self) -> Self::Memory;

    /// How many examples go through the model at once.
    fn capacity(&self, memory: &Self::Memory) -> usize;

    /// How many records there are. Private under add/remove adjacency.
    fn records(&self) -> u64;

    /// How many examples a record has.
    fn examples(&self, record: u64) -> usize;

    /// The weight of a record, if the plan has weights; must depend on this record alone. By default the number of its
    /// examples.
    fn weight(&self, record: u64) -> f64 {
        self.examples(record) as f64
    }

    /// Runs the forward and backward pass on examples, with a row of results each. False if they cannot be run together:
    /// then each is tried alone, and one that fails alone contributes zero.
    fn run(&self, memory: &mut Self::Memory, examples: &[ExampleId]) -> bool;

    /// Runs the forward and backward pass on examples, and adds the vectors of valid ones to `sums`, in the order of
    /// [`Vectors`](super::Vectors). False as for [`run`](Self::run); then `sums` must be unchanged.
    fn run_summed(
        &self,
        memory: &mut Self::Memory,
        examples: &[ExampleId],
        sums: &mut [Vec<f32>],
    ) -> bool;

    /// Whether the example of a row is valid: finite inputs, a target in range, a finite loss.
    fn is_sound(&self, memory: &Self::Memory, row: usize) -> bool;

    /// A gradient or statistic of a row, after [`run`](Self::run); `vector` is its index in [`Vectors`](super::Vectors).
    fn vector<'m>(&self, memory: &'m Self::Memory, vector: usize, row: usize) -> RecordVector<'m>;

    /// The value of a metric for a row; `metric` is its index in the plan.
    fn metric(&self, memory: &Self::Memory, metric: usize, row: usize) -> f64;

    /// The values of all parameters, for the other processes of a job ([`Peers`](super::Peers)). Public.
    fn weights(&self) -> Vec<Vec<f32>> {
        Vec::new()
    }

    /// Called at the end of a round: wipes values of records.
    fn end(&self, _memory: &mut Self::Memory) {}

    /// The model update of local SGD on the first `examples` examples of one record: old weights minus new ones, which an
    /// optimizer subtracts like a gradient. `None` if no example is valid: the record then contributes zero.
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
