//! Models that isolate records by construction.

use std::ops::Add;

use burn::module::Module;
use burn::tensor::activation::relu;
use burn::tensor::{Device, Tensor, TensorData};
use veilgrad_nn::adapter::{Judgement, Kernel};
use veilgrad_nn::{Layer as Native, Loss};

use crate::layer::{
    PrivateBatchNorm, PrivateConv1d, PrivateConv2d, PrivateEmbedding, PrivateGroupNorm,
    PrivateLayerNorm, PrivateLinear, PrivateMaxPool2d, PrivateMultiHeadAttention,
};
use crate::tape::{self, Layer, numbers};
use crate::{Outcome, Records};

/// A model whose types ensure that its forward pass isolates records: see [`PerRecord`].
pub trait PerRecordModel: Module {
    /// The forward pass: outputs `[records, outputs]` from inputs `[records, inputs]`.
    fn each(&self, inputs: PerRecord<2>) -> PerRecord<2>;
}

/// A tensor whose first axis is records, and whose operations all isolate records.
///
/// # Guarantee
/// Row i of every result is computed from row i of its operands and the parameters of layers, by a
/// sequence of operations that depends neither on the number of rows, nor on i, nor on another row.
///
/// Proof: the only operations are the native kernels of `veilgrad-nn`, which guarantee this, elementwise
/// addition, and reshapes and concatenation within a row. A model cannot convert a [`Tensor`] to a `PerRecord` or back:
///
/// ```compile_fail
/// # use veilgrad_burn::PerRecord;
/// # use burn::tensor::Tensor;
/// fn from_a_tensor(x: Tensor<2>) -> PerRecord<2> {
///     PerRecord(x)
/// }
/// ```
/// ```compile_fail
/// # use veilgrad_burn::PerRecord;
/// # use burn::tensor::Tensor;
/// fn centred_by_the_batch(x: PerRecord<2>) -> PerRecord<2> {
///     x.clone() - x.mean_dim(0)
/// }
/// ```
#[derive(Clone)]
pub struct PerRecord<const D: usize>(Tensor<D>);

impl<const D: usize> PerRecord<D> {
    /// `max(0, x)`.
    #[must_use]
    pub fn relu(self) -> Self {
        let layer = Layer {
            name: "relu",
            settings: Vec::new(),
            kernel: &|shape| Kernel::new(&Native::Relu, shape),
            targets: Vec::new(),
            values: &Vec::new,
        };
        Self(tape::record(&self.0, layer).unwrap_or_else(|| relu(self.0)))
    }

    /// Reshapes each record; `record` is the shape of one record. `reshape(&[1, 28, 28])` turns images
    /// `[records, 784]` into `[records, 1, 28, 28]`.
    ///
    /// # Panics
    /// When the shape has another number of axes or of elements.
    #[must_use]
    pub fn reshape<const E: usize>(self, record: &[usize]) -> PerRecord<E> {
        let [records, of_one @ ..] = &self.0.dims()[..] else {
            panic!("there is no axis of records")
        };
        let same = of_one.iter().product::<usize>() == record.iter().product::<usize>();
        assert!(same, "records of shape {of_one:?} cannot have shape {record:?}");
        let shape: Vec<usize> = [*records].into_iter().chain(record.iter().copied()).collect();
        let Ok(shape) = <[usize; E]>::try_from(shape) else {
            panic!("shape {record:?} of a record does not have {E} axes with that of the records")
        };
        PerRecord(self.0.reshape(shape))
    }

    /// Flattens each record.
    #[must_use]
    pub fn flatten(self) -> PerRecord<2> {
        let length = self.0.dims()[1..].iter().product();
        self.reshape(&[length])
    }

    fn through<const E: usize>(self, layer: impl FnOnce(Tensor<D>) -> Tensor<E>) -> PerRecord<E> {
        PerRecord(layer(self.0))
    }
}

/// Elementwise addition; panics unless both have the same shape.
impl<const D: usize> Add for PerRecord<D> {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        // Broadcasting would spread one record over others.
        assert_eq!(self.0.dims(), other.0.dims(), "only equal shapes can be added");
        Self(self.0 + other.0)
    }
}

/// Implements `each` for layers that take tensors with any number of axes.
macro_rules! each_record {
    ($($layer:ty),+) => {$(
        impl $layer {
            /// [`forward`](Self::forward) of each record.
            pub fn each<const D: usize>(&self, x: PerRecord<D>) -> PerRecord<D> {
                x.through(|x| self.forward(x))
            }
        }
    )+};
}

each_record!(PrivateLinear, PrivateLayerNorm, PrivateGroupNorm, PrivateBatchNorm);

impl PrivateConv1d {
    /// [`forward`](Self::forward) of each record.
    pub fn each(&self, x: PerRecord<3>) -> PerRecord<3> {
        x.through(|x| self.forward(x))
    }
}

impl PrivateConv2d {
    /// [`forward`](Self::forward) of each record.
    pub fn each(&self, x: PerRecord<4>) -> PerRecord<4> {
        x.through(|x| self.forward(x))
    }
}

impl PrivateMaxPool2d {
    /// [`forward`](Self::forward) of each record; only for square windows without padding.
    pub fn each(&self, x: PerRecord<4>) -> PerRecord<4> {
        if !self.is_native() {
            tape::refuse(
                "PrivateMaxPool2d: only square windows without padding and dilation keep records \
                 apart by construction"
                    .to_owned(),
            );
        }
        x.through(|x| self.forward(x))
    }
}

impl PerRecord<2> {
    /// The positions of the inputs of each record: 0, 1, … whatever the inputs are. For embeddings of positions.
    #[must_use]
    pub fn positions(&self) -> Self {
        let [records, length] = self.0.dims();
        let positions: Vec<f32> =
            (0..records).flat_map(|_| (0..length).map(|position| position as f32)).collect();
        let positions = TensorData::new(positions, [records, length]);
        Self(Tensor::from_data(positions, &self.0.device()))
    }
}

impl PerRecord<3> {
    /// The mean over the positions of each record: `[records, channels]` from `[records, length, channels]`.
    #[must_use]
    pub fn average(self) -> PerRecord<2> {
        let layer = Layer {
            name: "average",
            settings: Vec::new(),
            kernel: &|shape| Kernel::new(&Native::GlobalAverage, shape),
            targets: Vec::new(),
            values: &Vec::new,
        };
        let mean = |x: Tensor<3>| x.mean_dim(1).squeeze_dim::<2>(1);
        PerRecord(tape::record(&self.0, layer).unwrap_or_else(|| mean(self.0)))
    }
}

impl PrivateMultiHeadAttention {
    /// Attention of the positions of each record to each other; only without dropout and quiet softmax.
    pub fn each(&self, x: PerRecord<3>) -> PerRecord<3> {
        if !self.is_native() {
            tape::refuse(
                "PrivateMultiHeadAttention: only attention without dropout and quiet softmax keeps \
                 records apart by construction"
                    .to_owned(),
            );
        }
        x.through(|x| self.forward(x.clone(), x.clone(), x, None))
    }
}

impl PrivateEmbedding {
    /// Looks up a vector for each index of a record.
    pub fn each(&self, x: PerRecord<2>) -> PerRecord<3> {
        x.through(|x| self.record(&x).unwrap_or_else(|| self.forward(x.int())))
    }
}

/// The outputs of a model, for public inputs or after training.
pub fn outputs<M: PerRecordModel>(model: &M, inputs: Tensor<2>) -> Tensor<2> {
    model.each(PerRecord(inputs)).0
}

/// A dataset whose examples are converted one by one to inputs and targets.
pub struct Stacked<R, N> {
    records: R,
    example: N,
    loss: Loss,
}

/// A batch of [`Stacked`] examples.
pub struct Stack {
    inputs: Tensor<2>,
    targets: Vec<Vec<f32>>,
    loss: Loss,
}

impl<R: Records, N: Fn(&R::Example) -> (Vec<f32>, Vec<f32>)> Stacked<R, N> {
    pub(crate) const fn new(records: R, example: N, loss: Loss) -> Self {
        Self { records, example, loss }
    }

    /// The numbers of inputs and targets of an example.
    pub(crate) fn widths(&self) -> (usize, usize) {
        let (inputs, targets) = self.made_up(0);
        (inputs.len(), targets.len())
    }
}

impl<R: Records, N: Fn(&R::Example) -> (Vec<f32>, Vec<f32>)> Records for Stacked<R, N> {
    type Example = (Vec<f32>, Vec<f32>);
    type Batch = Stack;

    fn count(&self) -> u64 {
        self.records.count()
    }

    fn examples(&self, record: u64) -> usize {
        self.records.examples(record)
    }

    fn read(&self, record: u64, example: usize) -> Self::Example {
        (self.example)(&self.records.read(record, example))
    }

    fn made_up(&self, number: u64) -> Self::Example {
        (self.example)(&self.records.made_up(number))
    }

    /// An example with another number of inputs or targets is unusable: its row becomes NaN.
    fn batch(&self, examples: Vec<Self::Example>, device: &Device) -> Stack {
        let (count, (width, targets)) = (examples.len(), self.widths());
        let mut inputs = Vec::with_capacity(count * width);
        let fits = |(x, y): &Self::Example| x.len() == width && y.len() == targets;
        let absurd = || (vec![f32::NAN; width], vec![f32::NAN; targets]);
        let stacked = examples.into_iter().map(|e| if fits(&e) { e } else { absurd() });
        let targets = stacked
            .map(|(x, y)| {
                inputs.extend(x);
                y
            })
            .collect();
        let inputs = Tensor::from_data(TensorData::new(inputs, [count, width]), device);
        Stack { inputs, targets, loss: self.loss }
    }
}

/// The loss of each record, from its own outputs and targets alone, with the metrics `loss` and `accuracy`.
pub(crate) fn losses<M: PerRecordModel>(model: &M, stack: Stack) -> Outcome {
    let outputs = outputs(model, stack.inputs);
    let [records, width] = outputs.dims();
    let device = outputs.device();
    let values = numbers(outputs.clone().detach());
    let mut gradients = vec![0.0; values.len()];
    let rows = values.chunks_exact(width).zip(gradients.chunks_exact_mut(width));
    let (mut losses, mut right) = (Vec::with_capacity(records), Vec::with_capacity(records));
    for ((row, gradient), target) in rows.zip(&stack.targets) {
        let judgement = stack.loss.judge(row, target, gradient).unwrap_or_else(|| {
            gradient.fill(0.0);
            Judgement { loss: f32::NAN, right: 0.0 }
        });
        losses.push(judgement.loss);
        right.push(judgement.right);
    }
    let column =
        |values: Vec<f32>| Tensor::<1>::from_data(TensorData::new(values, [records]), &device);
    let gradients = Tensor::from_data(TensorData::new(gradients, [records, width]), &device);
    let losses = column(losses);
    // The derivative of this sum by an output is exactly the gradient that it is multiplied with.
    Outcome::with_root(losses.clone(), (outputs * gradients).sum())
        .metric("loss", losses)
        .metric("accuracy", column(right))
}
