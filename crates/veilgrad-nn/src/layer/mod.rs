//! Layers: what a user writes, and the operations that they become for one shape of input.

mod activation;
mod conv;
mod embedding;
mod linear;
mod normalise;
mod pool;
mod statistics;

use crate::ModelError;
use crate::gemm::{Panels, Start};

pub use conv::{Conv2d, Padding};
pub use pool::Window;

/// One layer of a model. Images are `[height, width, channels]`, sequences `[length, features]`.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Layer {
    /// `y = x W + b` over the last axis.
    Linear {
        /// The length of the last axis of the output.
        outputs: usize,
    },
    /// A convolution over height and width.
    Conv2d(Conv2d),
    /// `max(0, x)`.
    Relu,
    /// The hyperbolic tangent.
    Tanh,
    /// `x Phi(x)`, with the exact normal distribution function.
    Gelu,
    /// The largest value of each window, per channel.
    MaxPool2d(Window),
    /// The mean of each window, per channel.
    AveragePool2d(Window),
    /// The mean over all axes but the last.
    GlobalAverage,
    /// All axes as one.
    Flatten,
    /// Normalises groups of channels over all positions, per record.
    GroupNorm {
        /// How many groups; divides the number of channels.
        groups: usize,
    },
    /// Normalises the last axis at each position, per record.
    LayerNorm,
    /// Normalises each channel by *released* running statistics, which are constants of a round, so
    /// that records stay independent. Each record contributes its channel means and mean squares as
    /// one more group of the round.
    BatchNorm,
    /// Looks up a vector per number; numbers that are no entry make the record contribute zero.
    Embedding {
        /// How many vectors.
        entries: usize,
        /// Their length.
        dimension: usize,
    },
}

impl Layer {
    /// `y = x W + b` over the last axis.
    #[must_use]
    pub const fn linear(outputs: usize) -> Self {
        Self::Linear { outputs }
    }

    /// The largest value of each square window.
    #[must_use]
    pub const fn max_pool(size: usize, stride: usize) -> Self {
        Self::MaxPool2d(Window { size, stride })
    }

    /// The mean of each square window.
    #[must_use]
    pub const fn average_pool(size: usize, stride: usize) -> Self {
        Self::AveragePool2d(Window { size, stride })
    }

    /// What parameters of this layer are called, before a number.
    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Self::Linear { .. } => "linear",
            Self::Conv2d(_) => "conv",
            Self::GroupNorm { .. } => "group_norm",
            Self::LayerNorm => "layer_norm",
            Self::BatchNorm => "batch_norm",
            Self::Embedding { .. } => "embedding",
            _ => "",
        }
    }

    /// The operation on records of this shape, and the shape of its output. `Flatten` needs none.
    pub(crate) fn operation(&self, shape: &[usize]) -> Result<Compiled, ModelError> {
        match self {
            Self::Linear { outputs } => linear::compile(shape, *outputs),
            Self::Conv2d(conv) => conv.compile(shape),
            Self::Relu => Ok(activation::compile(shape, activation::Relu)),
            Self::Tanh => Ok(activation::compile(shape, activation::Tanh)),
            Self::Gelu => Ok(activation::compile(shape, activation::Gelu)),
            Self::MaxPool2d(window) => pool::compile(shape, *window, pool::Kind::Max),
            Self::AveragePool2d(window) => pool::compile(shape, *window, pool::Kind::Average),
            Self::GlobalAverage => pool::compile_global(shape),
            Self::Flatten => Ok((None, vec![shape.iter().product()])),
            Self::GroupNorm { groups } => compile::group_norm(shape, *groups, EPSILON),
            Self::LayerNorm => compile::layer_norm(shape, EPSILON),
            Self::BatchNorm => compile::batch_norm(shape, EPSILON),
            Self::Embedding { entries, dimension } => {
                embedding::compile(shape, *entries, *dimension)
            }
        }
    }

    /// `Relu` followed by `MaxPool2d` as one operation.
    pub(crate) fn fused(&self, next: &Self, shape: &[usize]) -> Option<Compiled> {
        match (self, next) {
            (Self::Relu, Self::MaxPool2d(window)) => {
                compile::rectified_max_pool(shape, *window).ok()
            }
            _ => None,
        }
    }
}

/// Operations with settings that no [`Layer`] has.
pub(crate) mod compile {
    pub(crate) use super::normalise::{compile_group as group_norm, compile_layer as layer_norm};
    pub(crate) use super::pool::rectified_max_pool;
    pub(crate) use super::statistics::compile as batch_norm;
}

/// Keeps the division of a normalisation away from zero.
const EPSILON: f32 = 1e-5;

/// An operation and the shape of its output.
pub(crate) type Compiled = (Option<Box<dyn Operation>>, Vec<usize>);

/// A parameter of an operation.
pub(crate) struct Parameter {
    pub(crate) name: &'static str,
    pub(crate) shape: Vec<usize>,
    pub(crate) role: Role,
    pub(crate) first: First,
}

/// Whether a parameter is trained or follows a statistic of the records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Moved by an optimizer; records contribute gradients.
    Weight,
    /// A running average; records contribute values.
    Statistic,
}

/// The values before training.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum First {
    /// All the same.
    Constant(f32),
    /// Uniform in `[-limit, limit]`.
    Uniform(f32),
}

/// The parameters of one operation in one round, prepared for its kernels.
#[derive(Clone, Copy)]
pub(crate) struct Ready<'a> {
    pub(crate) values: &'a [Vec<f32>],
    pub(crate) panels: &'a [Panels],
}

/// What happened in the forward pass, and what came back: rows of one record each.
#[derive(Clone, Copy)]
pub(crate) struct Pass<'a> {
    pub(crate) records: usize,
    pub(crate) x: &'a [f32],
    pub(crate) y: &'a [f32],
    pub(crate) dy: &'a [f32],
}

/// Memory that an operation may use and leave dirty.
#[derive(Default)]
pub(crate) struct Spare {
    pub(crate) values: Vec<f32>,
    pub(crate) more: Vec<f32>,
    pub(crate) panels: Panels,
}

/// Where the gradients of an operation's parameters go: one row per record, or one for all.
pub(crate) struct Gradients<'a> {
    pub(crate) buffers: &'a mut [Vec<f32>],
    pub(crate) lengths: &'a [usize],
    pub(crate) summed: bool,
}

impl Gradients<'_> {
    /// The row of a record and what a product is to be added to there.
    pub(crate) fn row(&mut self, parameter: usize, record: usize) -> (&mut [f32], Start<'static>) {
        let length = self.lengths[parameter];
        let buffer = &mut self.buffers[parameter];
        if self.summed {
            (&mut buffer[..length], Start::Existing)
        } else {
            (&mut buffer[record * length..][..length], Start::Zero)
        }
    }

    /// The row of a record, to be added to.
    pub(crate) fn open(&mut self, parameter: usize, record: usize) -> &mut [f32] {
        let summed = self.summed;
        let row = self.row(parameter, record).0;
        if !summed {
            row.fill(0.0);
        }
        row
    }
}

/// A function of records and parameters, and its derivative.
///
/// # Guarantee
/// Row i of `y`, `dx` and of every gradient is computed from row i of `x` and `dy` and from the
/// parameters by a sequence of operations that does not depend on the number of records, on i, or on
/// any other row.
pub(crate) trait Operation: Send + Sync {
    fn parameters(&self) -> Vec<Parameter> {
        Vec::new()
    }

    /// Cuts weights for the kernels, once per round; `back` says whether the gradient by `x` will be
    /// wanted.
    fn prepare(&self, _values: &[Vec<f32>], _back: bool, _panels: &mut Vec<Panels>) {}

    fn forward(
        &self,
        ready: Ready<'_>,
        records: usize,
        x: &[f32],
        y: &mut [f32],
        spare: &mut Spare,
    );

    /// Writes the gradient by `x` where it is wanted, and the parameters' gradients (for statistics:
    /// the values), except those of an [`outer`](Operation::outer) parameter of single records.
    fn backward(
        &self,
        ready: Ready<'_>,
        pass: Pass<'_>,
        dx: Option<&mut [f32]>,
        gradients: &mut Gradients<'_>,
        spare: &mut Spare,
    );

    /// Inputs and outputs, where a record's gradient of parameter 0 is the outer product of its rows
    /// in `x` and `dy`.
    fn outer(&self) -> Option<(usize, usize)> {
        None
    }
}

/// `Arch::dispatch` for closures: the body is compiled for the best instructions of the machine.
#[inline(always)]
pub(crate) fn fast(body: impl FnOnce()) {
    struct Body<F>(F);
    impl<F: FnOnce()> pulp::NullaryFnOnce for Body<F> {
        type Output = ();
        #[inline(always)]
        fn call(self) {
            (self.0)();
        }
    }
    pulp::Arch::new().dispatch(Body(body));
}

/// The last axis and the number of positions before it.
pub(crate) fn last_axis(shape: &[usize]) -> Result<(usize, usize), ModelError> {
    match shape.split_last() {
        Some((&last, rest)) if last > 0 => Ok((rest.iter().product(), last)),
        _ => Err(ModelError::Shape("the input has no axis".to_owned())),
    }
}

/// Height, width and channels.
pub(crate) fn image(shape: &[usize]) -> Result<[usize; 3], ModelError> {
    <[usize; 3]>::try_from(shape)
        .map_err(|_| ModelError::Shape(format!("{shape:?} is not [height, width, channels]")))
}
