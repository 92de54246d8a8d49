//! Private datasets for Burn, and the losses of a batch.

use burn::tensor::{Device, Tensor};

/// A private dataset for a Burn model. Open for implementors.
///
/// A record is what the guarantee protects: an example, a microbatch or a user. It has one or more
/// examples. What [`read`](Records::read) returns is never printed.
pub trait Records {
    /// One example.
    type Example;
    /// A batch of examples as tensors, the model's input.
    type Batch;

    /// How many records there are. Private under add/remove adjacency.
    fn count(&self) -> u64;

    /// How many examples a record has; one, unless a record is a microbatch or a user.
    fn examples(&self, _record: u64) -> usize {
        1
    }

    /// An example of a record. Must depend on this record alone.
    fn read(&self, record: u64, example: usize) -> Self::Example;

    /// A made-up, **public** example with the shape of the real ones; different for each number. Batches are
    /// padded with them, and they test whether a model isolates records.
    fn made_up(&self, number: u64) -> Self::Example;

    /// Stacks examples along the first axis, in their order. Row i must depend on example i alone.
    fn batch(&self, examples: Vec<Self::Example>, device: &Device) -> Self::Batch;
}

impl<R: Records + ?Sized> Records for &R {
    type Example = R::Example;
    type Batch = R::Batch;

    fn count(&self) -> u64 {
        (**self).count()
    }

    fn examples(&self, record: u64) -> usize {
        (**self).examples(record)
    }

    fn read(&self, record: u64, example: usize) -> Self::Example {
        (**self).read(record, example)
    }

    fn made_up(&self, number: u64) -> Self::Example {
        (**self).made_up(number)
    }

    fn batch(&self, examples: Vec<Self::Example>, device: &Device) -> Self::Batch {
        (**self).batch(examples, device)
    }
}

/// The losses and metrics of a batch, one value per example.
///
/// A run whose outcomes are computed for several records at once is `unverified`: no test can prove that
/// an operation never couples records. See [`Trainer`](crate::Trainer) for what is exact.
///
/// A record with a loss that is not finite contributes zero to every group.
#[derive(Debug)]
pub struct Outcome {
    pub(crate) losses: Tensor<1>,
    pub(crate) metrics: Vec<(&'static str, Tensor<1>)>,
    /// A tensor with the derivatives of the summed losses, to differentiate in their place.
    root: Option<Tensor<1>>,
}

impl Outcome {
    /// An outcome with one loss per example: not their sum or average.
    pub const fn new(losses: Tensor<1>) -> Self {
        Self { losses, metrics: Vec::new(), root: None }
    }

    /// An outcome with untracked losses, and a tensor with the derivatives of their sum.
    pub(crate) const fn with_root(losses: Tensor<1>, root: Tensor<1>) -> Self {
        Self { losses, metrics: Vec::new(), root: Some(root) }
    }

    pub(crate) fn sum(&self) -> Tensor<1> {
        self.root.clone().unwrap_or_else(|| self.losses.clone().sum())
    }

    /// Adds a metric of the plan, with one value per example.
    #[must_use]
    pub fn metric(mut self, name: &'static str, values: Tensor<1>) -> Self {
        self.metrics.push((name, values));
        self
    }
}

/// Softmax cross-entropy of each example: `logits` are `[examples, classes]`. The loss of an example
/// whose target is out of range is not finite, so that its record contributes zero.
pub fn cross_entropy(logits: Tensor<2>, targets: Tensor<1, burn::tensor::Int>) -> Tensor<1> {
    let [examples, classes] = logits.dims();
    let sound = targets.clone().greater_equal_elem(0).float()
        * targets.clone().lower_elem(classes as i64).float();
    let index = targets.clamp(0, classes as i64 - 1).reshape([examples, 1]);
    let chosen = burn::tensor::activation::log_softmax(logits, 1).gather(1, index);
    // Divides by zero where the target is out of range.
    chosen.neg().reshape([examples]) / sound
}

/// 1 for each example whose largest logit is that of its target, else 0.
pub fn accuracy(logits: Tensor<2>, targets: Tensor<1, burn::tensor::Int>) -> Tensor<1> {
    let [examples, _] = logits.dims();
    logits.argmax(1).reshape([examples]).equal(targets).float()
}
