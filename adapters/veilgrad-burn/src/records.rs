//! Where records come from, and what a model makes of them.

use burn::tensor::{Device, Tensor};

/// Private records for a Burn model. Open for implementors.
///
/// A record is what the guarantee protects: an example, a microbatch or a user. It has one or more
/// examples. Nothing that [`read`](Records::read) returns is ever shown.
pub trait Records {
    /// One example.
    type Example;
    /// Some examples as tensors: what the model takes.
    type Batch;

    /// How many records there are. Private under add/remove adjacency.
    fn count(&self) -> u64;

    /// How many examples a record has; one, unless a record is a microbatch or a user.
    fn examples(&self, _record: u64) -> usize {
        1
    }

    /// An example of a record. Must depend on this record alone.
    fn read(&self, record: u64, example: usize) -> Self::Example;

    /// An example that is made up, **public**, of the shape that all have; another one for another
    /// number. Batches are filled up with them, and they show whether a model keeps records apart.
    fn made_up(&self, number: u64) -> Self::Example;

    /// The examples as tensors, in their order along the first axis. What belongs to an example must
    /// depend on this example alone.
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

/// What a model makes of a batch: a loss for each example, and values of metrics.
///
/// A run whose outcomes are computed for several records at once is `unverified`: no check can show that
/// an operation never couples records. See [`Trainer`](crate::Trainer) for what is exact.
///
/// A loss that is not finite makes its record contribute zero to everything.
#[derive(Debug)]
pub struct Outcome {
    pub(crate) losses: Tensor<1>,
    pub(crate) metrics: Vec<(&'static str, Tensor<1>)>,
    /// What is differentiated in place of the sum of the losses, with the same derivatives.
    root: Option<Tensor<1>>,
}

impl Outcome {
    /// The losses of the examples: not their sum, not their average.
    pub const fn new(losses: Tensor<1>) -> Self {
        Self { losses, metrics: Vec::new(), root: None }
    }

    /// Losses that are not tracked, and a number that has the derivatives of their sum.
    pub(crate) const fn with_root(losses: Tensor<1>, root: Tensor<1>) -> Self {
        Self { losses, metrics: Vec::new(), root: Some(root) }
    }

    pub(crate) fn sum(&self) -> Tensor<1> {
        self.root.clone().unwrap_or_else(|| self.losses.clone().sum())
    }

    /// The value of each example for a metric of the plan.
    #[must_use]
    pub fn metric(mut self, name: &'static str, values: Tensor<1>) -> Self {
        self.metrics.push((name, values));
        self
    }
}

/// Softmax cross-entropy of each example: `logits` are `[examples, classes]`. The loss of an example
/// whose target is not a class is NaN, so that its record contributes zero.
pub fn cross_entropy(logits: Tensor<2>, targets: Tensor<1, burn::tensor::Int>) -> Tensor<1> {
    let [examples, classes] = logits.dims();
    let sound = targets.clone().greater_equal_elem(0).float()
        * targets.clone().lower_elem(classes as i64).float();
    let index = targets.clamp(0, classes as i64 - 1).reshape([examples, 1]);
    let chosen = burn::tensor::activation::log_softmax(logits, 1).gather(1, index);
    // Division by zero where there is no such class.
    chosen.neg().reshape([examples]) / sound
}

/// 1 for each example whose largest logit is that of its target, else 0.
pub fn accuracy(logits: Tensor<2>, targets: Tensor<1, burn::tensor::Int>) -> Tensor<1> {
    let [examples, _] = logits.dims();
    logits.argmax(1).reshape([examples]).equal(targets).float()
}
