//! Operations on tiles of records: compiled layers.

use super::table::Table;
use crate::error::ModelError;
use crate::gemm::{Panels, Start, wipe};
use veilgrad_mechanism::exact::vectorised;

/// An operation, if one is needed, and the shape of its output.
pub(crate) type Compiled = (Option<Box<dyn Operation>>, Vec<usize>);

/// A parameter of an operation, or of a model; in a model, its name begins with that of its layer.
pub(crate) struct Parameter {
    pub(crate) name: String,
    pub(crate) shape: Vec<usize>,
    pub(crate) role: Role,
    pub(crate) initial: Initial,
}

impl Parameter {
    pub(crate) fn new(name: &str, shape: Vec<usize>, role: Role, initial: Initial) -> Self {
        Self { name: name.to_owned(), shape, role, initial }
    }

    pub(crate) fn length(&self) -> usize {
        self.shape.iter().product()
    }
}

/// Whether a parameter is trained or is a running statistic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Moved by an optimizer; records contribute gradients.
    Weight,
    /// A running average; records contribute values.
    Statistic,
}

/// How a parameter is initialised.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Initial {
    /// All the same.
    Constant(f32),
    /// Uniform in `[-limit, limit]`.
    Uniform(f32),
}

/// The parameters of one operation in one round, packed for its kernels.
#[derive(Clone, Copy)]
pub(crate) struct Packed<'a> {
    pub(crate) values: &'a [Vec<f32>],
    pub(crate) panels: &'a [Panels],
}

/// The arguments of a backward pass: input, output and output gradient, a row per record, and where gradients go.
pub(crate) struct Backward<'a> {
    pub(crate) packed: Packed<'a>,
    pub(crate) records: usize,
    pub(crate) x: &'a [f32],
    pub(crate) y: &'a [f32],
    pub(crate) dy: &'a [f32],
    /// Where to write the gradient by `x`, if it is needed.
    pub(crate) dx: Option<&'a mut [f32]>,
    pub(crate) gradients: Gradients<'a>,
    pub(crate) spare: &'a mut Spare,
}

/// Scratch memory of operations; its contents are arbitrary.
#[derive(Default)]
pub(crate) struct Spare {
    pub(crate) values: Vec<f32>,
    pub(crate) more: Vec<f32>,
    pub(crate) panels: Panels,
}

impl Spare {
    /// Overwrites everything with zeros.
    pub(crate) fn wipe(&mut self) {
        wipe(&mut self.values);
        wipe(&mut self.more);
        self.panels.wipe();
    }

    #[cfg(test)]
    pub(crate) fn is_wiped(&self) -> bool {
        let mut left = self.values.iter().chain(&self.more).chain(self.panels.values());
        left.all(|value| *value == 0.0)
    }
}

/// Where the gradients of an operation's parameters go: one row per record, or one for all.
pub(crate) struct Gradients<'a> {
    pub(crate) buffers: &'a mut [Vec<f32>],
    pub(crate) lengths: &'a [usize],
    pub(crate) summed: bool,
}

impl Gradients<'_> {
    /// The row of a record, and the start of a product that is written to it.
    pub(crate) fn row(&mut self, parameter: usize, record: usize) -> (&mut [f32], Start<'static>) {
        let length = self.lengths[parameter];
        let buffer = &mut self.buffers[parameter];
        if self.summed {
            (&mut buffer[..length], Start::Existing)
        } else {
            (&mut buffer[record * length..][..length], Start::Zero)
        }
    }

    /// The row to which a record's gradient is added: zeroed, unless gradients are summed.
    pub(crate) fn accumulator(&mut self, parameter: usize, record: usize) -> &mut [f32] {
        let summed = self.summed;
        let row = self.row(parameter, record).0;
        if !summed {
            row.fill(0.0);
        }
        row
    }

    /// Adds a record's output gradient at every position to the gradient of a bias.
    pub(crate) fn add_rows(&mut self, parameter: usize, record: usize, dy: &[f32]) {
        let bias = self.accumulator(parameter, record);
        vectorised(
            #[inline(always)]
            || {
                for dy in dy.chunks_exact(bias.len()) {
                    for (sum, dy) in bias.iter_mut().zip(dy) {
                        *sum += dy;
                    }
                }
            },
        );
    }
}

/// A compiled layer: forward and backward pass on a tile of records.
///
/// # Guarantee
/// Row i of `y`, of `dx` and of every gradient is computed from row i of `x` and `dy` and from the
/// parameters, by a sequence of operations that does not depend on the number of records, on i, or on
/// any other row.
pub(crate) trait Operation: Send + Sync {
    fn parameters(&self) -> Vec<Parameter> {
        Vec::new()
    }

    /// Packs weights for the kernels, once per round; `back` says whether the gradient by `x` will be
    /// needed.
    fn prepare(&self, _values: &[Vec<f32>], _back: bool, _panels: &mut Vec<Panels>) {}

    fn forward(
        &self,
        packed: Packed<'_>,
        records: usize,
        x: &[f32],
        y: &mut [f32],
        spare: &mut Spare,
    );

    /// Writes the gradient by `x` where it is needed, and the gradients of the parameters (for statistics:
    /// the values). Per record, the parameter of an [`outer`](Operation::outer) product or of a
    /// [`table`](Operation::table) gets none.
    fn backward(&self, pass: Backward<'_>);

    /// The numbers of inputs and outputs, if a record's gradient of parameter 0 is the outer product of its
    /// rows in `x` and `dy`.
    fn outer(&self) -> Option<(usize, usize)> {
        None
    }

    /// The table that parameter 0 is, if a record's gradient of it is zero except in the rows that its numbers in `x`
    /// name, and there the sum of `dy` over the positions that name the row: see
    /// [`TableGradients`](super::TableGradients).
    fn table(&self) -> Option<Table> {
        None
    }
}

/// The number of positions (all axes but the last), and the length of the last axis.
pub(crate) fn last_axis(shape: &[usize]) -> Result<(usize, usize), ModelError> {
    match shape.split_last() {
        Some((&last, rest)) if last > 0 => Ok((rest.iter().product(), last)),
        _ => Err(ModelError::Shape("the input has no axis".to_owned())),
    }
}

pub(crate) fn image(shape: &[usize]) -> Result<[usize; 3], ModelError> {
    <[usize; 3]>::try_from(shape)
        .map_err(|_| ModelError::Shape(format!("{shape:?} is not [height, width, channels]")))
}
