//! Layers as a user writes them, and the operations they compile to for one shape of input.

mod activation;
mod attention;
mod columns;
mod conv;
mod embedding;
mod group_norm;
mod lanes;
mod layer_norm;
mod linear;
mod operation;
mod pool;
mod statistics;
mod table;

use crate::error::ModelError;

pub use columns::EmbeddedColumn;
pub use conv::{Conv2d, Padding};
pub(crate) use operation::{
    Backward, Compiled, Gradients, Initial, Operation, Packed, Parameter, Role, Spare,
};
pub use pool::Window;
pub(crate) use pool::rectified_max_pool;
pub(crate) use table::Table;
pub use table::TableGradients;

/// One layer of a model. Images are `[height, width, channels]`, sequences `[length, features]`.
///
/// # Example
/// ```
/// use veilgrad_nn::{Layer, Model};
///
/// let model = Model::new(&[4], [Layer::linear(8), Layer::Tanh, Layer::linear(2)], 1)?;
/// assert_eq!(model.output(), [2]);
/// assert!(Model::new(&[4], [Layer::max_pool(2, 2), Layer::linear(2)], 1).is_err()); // not an image
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
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
    /// Joins all axes into one.
    Flatten,
    /// Normalises groups of channels over all positions, per record.
    GroupNorm {
        /// How many groups; divides the number of channels.
        groups: usize,
    },
    /// Normalises the last axis at each position, per record.
    LayerNorm,
    /// Scaled dot-product attention of the positions of a record to each other. Each position of the input holds its
    /// query, its key and its value, one after the other, each split into heads; the output has the heads of the values.
    Attention {
        /// How many heads; divides the number of channels of a query.
        heads: usize,
    },
    /// Normalises each channel by *released* running statistics, which are constants of a round, so
    /// that records stay independent. Each record contributes its channel means and mean squares as
    /// one more group of the round.
    BatchNorm,
    /// Replaces each number (a token) by its row of a table. A number without a row makes the record
    /// contribute zero.
    Embedding {
        /// Rows of the table.
        entries: usize,
        /// The length of a row.
        dimension: usize,
    },
    /// Replaces single numbers of a row by rows of tables, one table for each, in their places. The number -1 gives zeros,
    /// and any other number without a row makes the record contribute zero.
    EmbedColumns(Vec<EmbeddedColumn>),
}

impl Layer {
    /// What normalisations of a [`Model`](crate::Model) add to the variance.
    pub const NORM_EPSILON: f32 = EPSILON;

    /// `y = x W + b` over the last axis.
    pub const fn linear(outputs: usize) -> Self {
        Self::Linear { outputs }
    }

    /// The largest value of each square window.
    pub const fn max_pool(size: usize, stride: usize) -> Self {
        Self::MaxPool2d(Window { size, stride })
    }

    /// The mean of each square window.
    pub const fn average_pool(size: usize, stride: usize) -> Self {
        Self::AveragePool2d(Window { size, stride })
    }

    /// The prefix of the layer's parameter names; a number follows.
    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Self::Linear { .. } => "linear",
            Self::Conv2d(_) => "conv",
            Self::GroupNorm { .. } => "group_norm",
            Self::LayerNorm => "layer_norm",
            Self::BatchNorm => "batch_norm",
            Self::Embedding { .. } | Self::EmbedColumns(_) => "embedding",
            _ => "",
        }
    }

    /// The operation on records of this shape (none for `Flatten`), and the shape of its output. `epsilon` is that of
    /// normalisations.
    pub(crate) fn operation(&self, shape: &[usize], epsilon: f32) -> Result<Compiled, ModelError> {
        match self {
            Self::Linear { outputs } => linear::compile(shape, *outputs),
            Self::Conv2d(conv) => conv.compile(shape),
            Self::Relu => Ok(activation::relu(shape)),
            Self::Tanh => Ok(activation::tanh(shape)),
            Self::Gelu => Ok(activation::gelu(shape)),
            Self::MaxPool2d(window) => pool::compile(shape, *window, pool::MAX),
            Self::AveragePool2d(window) => pool::compile(shape, *window, pool::AVERAGE),
            Self::GlobalAverage => pool::compile_global(shape),
            Self::Flatten => Ok((None, vec![shape.iter().product()])),
            Self::GroupNorm { groups } => group_norm::compile(shape, *groups, epsilon),
            Self::LayerNorm => layer_norm::compile(shape, epsilon),
            Self::Attention { heads } => attention::compile(shape, *heads),
            Self::BatchNorm => statistics::compile(shape, epsilon),
            Self::Embedding { entries, dimension } => {
                embedding::compile(shape, *entries, *dimension)
            }
            Self::EmbedColumns(columns) => columns::compile(shape, columns),
        }
    }

    /// `Relu` followed by `MaxPool2d` as one operation.
    pub(crate) fn fused(&self, next: &Self, shape: &[usize]) -> Option<Compiled> {
        let (Self::Relu, Self::MaxPool2d(window)) = (self, next) else { return None };
        rectified_max_pool(shape, *window).ok()
    }
}

/// The default epsilon of normalisations.
pub(crate) const EPSILON: f32 = 1e-5;
