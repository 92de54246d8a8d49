//! Single layers with per-record gradients, for adapters to other frameworks.

use std::sync::OnceLock;

use crate::gemm::Panels;
use crate::layer::{
    Backward, Compiled, EPSILON, Gradients, Layer, Operation, Packed, Parameter, Spare, Table,
    TableGradients, rectified_max_pool,
};
use crate::{ModelError, Window};

/// A layer for records of one shape: its forward pass, and its gradients record by record.
///
/// # Guarantee
/// Values and gradients of record i are computed from record i and the parameters, by a sequence of
/// operations that does not depend on the number of records, on i, or on any other record.
///
/// # Example
/// ```
/// use veilgrad_nn::Layer;
/// use veilgrad_nn::adapter::{Kernel, KernelWeights};
///
/// let kernel = Kernel::new(&Layer::Tanh, &[2])?;
/// let mut weights = KernelWeights::default();
/// kernel.prepare(&mut weights, &[])?; // no parameters
/// let x = [0.0, 1.0, 0.0, -1.0]; // two records
/// let y = kernel.forward(&weights, &x);
/// let back = kernel.backward(&weights, (&x, &y, &[1.0; 4]), true);
/// assert_eq!((y[0], back.input[0]), (0.0, 1.0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Kernel {
    operation: Box<dyn Operation>,
    inputs: usize,
    output: Vec<usize>,
    lengths: Vec<usize>,
}

/// The parameters of a [`Kernel`], packed once per round.
#[derive(Default)]
pub struct KernelWeights {
    values: Vec<Vec<f32>>,
    panels: Vec<Panels>,
    /// `panels` and those for the gradient by the input; replaces `panels` once that gradient is asked for.
    all_panels: OnceLock<Vec<Panels>>,
}

/// The gradients that [`Kernel::backward`] returns.
pub struct Back {
    /// The gradient by the input; empty unless asked for.
    pub input: Vec<f32>,
    /// The gradients by the parameters (for statistics: their values), a row per record; empty for the
    /// first parameter of a kernel with [`outer`](Kernel::outer) products or of a [table](Kernel::is_table).
    pub parameters: Vec<Vec<f32>>,
}

impl Kernel {
    /// A kernel of this layer for records of this shape.
    ///
    /// # Errors
    /// When the layer does not fit the shape, or has no operation (`Flatten`).
    pub fn new(layer: &Layer, shape: &[usize]) -> Result<Self, ModelError> {
        Self::with_epsilon(layer, EPSILON, shape)
    }

    /// A kernel of a normalisation layer with a custom epsilon. The parameters of [`Layer::BatchNorm`] are scale, shift,
    /// mean and mean square; the last two are statistics.
    ///
    /// # Errors
    /// As for [`new`](Self::new).
    pub fn with_epsilon(layer: &Layer, epsilon: f32, shape: &[usize]) -> Result<Self, ModelError> {
        Self::from_compiled(layer.operation(shape, epsilon)?, shape)
    }

    /// [`Layer::Relu`] followed by [`Layer::MaxPool2d`], as one kernel.
    ///
    /// # Errors
    /// When the window does not fit the shape.
    pub fn rectified_max_pool(window: Window, shape: &[usize]) -> Result<Self, ModelError> {
        Self::from_compiled(rectified_max_pool(shape, window)?, shape)
    }

    fn from_compiled((operation, output): Compiled, shape: &[usize]) -> Result<Self, ModelError> {
        let nothing = || ModelError::Shape(format!("there is nothing to compute on {shape:?}"));
        let operation = operation.ok_or_else(nothing)?;
        if shape.contains(&0) || output.contains(&0) {
            return Err(nothing());
        }
        let lengths = operation.parameters().iter().map(Parameter::length).collect();
        Ok(Self { operation, inputs: shape.iter().product(), output, lengths })
    }

    /// The number of inputs of one record.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// The shape of the output for one record.
    pub fn output(&self) -> &[usize] {
        &self.output
    }

    /// The lengths of the parameters.
    pub fn lengths(&self) -> &[usize] {
        &self.lengths
    }

    /// The numbers of inputs and outputs, if a record's gradient of the first parameter is the outer
    /// product of its input and its output gradient.
    pub fn outer(&self) -> Option<(usize, usize)> {
        self.operation.outer()
    }

    /// Whether the first parameter is a table, so that a record's gradient of it has few rows:
    /// [`table_gradients`](Self::table_gradients).
    pub fn is_table(&self) -> bool {
        self.table().is_some()
    }

    fn table(&self) -> Option<Table> {
        self.operation.table()
    }

    /// The gradients by the first parameter, if it is a table, for the inputs and output gradients of whole records.
    pub fn table_gradients(&self, x: &[f32], dy: &[f32]) -> Option<TableGradients> {
        let mut gradients = TableGradients::default();
        gradients.compute(self.table()?, x.len() / self.inputs, x, dy);
        Some(gradients)
    }

    /// Packs parameters for the kernel, reusing the allocation.
    ///
    /// # Errors
    /// When their number or lengths are wrong.
    pub fn prepare(
        &self,
        weights: &mut KernelWeights,
        values: &[&[f32]],
    ) -> Result<(), ModelError> {
        if !values.iter().map(|values| values.len()).eq(self.lengths.iter().copied()) {
            return Err(ModelError::Shape("a parameter has another length".to_owned()));
        }
        weights.values.resize_with(values.len(), Vec::new);
        for (to, from) in weights.values.iter_mut().zip(values) {
            to.clear();
            to.extend_from_slice(from);
        }
        match weights.all_panels.get_mut() {
            Some(panels) => self.operation.prepare(&weights.values, true, panels),
            None => self.operation.prepare(&weights.values, false, &mut weights.panels),
        }
        Ok(())
    }

    /// The forward pass. `x` holds the inputs of any number of whole records; a rest is ignored.
    pub fn forward(&self, weights: &KernelWeights, x: &[f32]) -> Vec<f32> {
        let records = x.len() / self.inputs;
        let mut y = vec![0.0; records * self.output.iter().product::<usize>()];
        let x = &x[..records * self.inputs];
        let panels = weights.all_panels.get().unwrap_or(&weights.panels);
        let packed = Packed { values: &weights.values, panels };
        self.operation.forward(packed, records, x, &mut y, &mut Spare::default());
        y
    }

    /// The backward pass: `y` is the output for `x`, and `dy` the gradient by `y`, all of whole records.
    pub fn backward(
        &self,
        weights: &KernelWeights,
        (x, y, dy): (&[f32], &[f32], &[f32]),
        wants_input: bool,
    ) -> Back {
        let records = x.len() / self.inputs;
        let mut input = vec![0.0; if wants_input { records * self.inputs } else { 0 }];
        let is_apart = self.outer().is_some() || self.is_table();
        let rows = |index: usize| if is_apart && index == 0 { 0 } else { records };
        let numbered = self.lengths.iter().enumerate();
        let mut parameters: Vec<Vec<f32>> =
            numbered.map(|(index, length)| vec![0.0; rows(index) * length]).collect();
        let panels = match wants_input {
            false => weights.all_panels.get().unwrap_or(&weights.panels),
            true => weights.all_panels.get_or_init(|| {
                let mut panels = Vec::new();
                self.operation.prepare(&weights.values, true, &mut panels);
                panels
            }),
        };
        let (buffers, lengths) = (&mut parameters[..], &self.lengths[..]);
        let gradients = Gradients { buffers, lengths, summed: false };
        let packed = Packed { values: &weights.values, panels };
        let (dx, spare) = (wants_input.then_some(&mut input[..]), &mut Spare::default());
        self.operation.backward(Backward { packed, records, x, y, dy, dx, gradients, spare });
        Back { input, parameters }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test::SplitMix64;

    #[test]
    fn a_kernel_treats_each_record_as_if_it_were_alone() {
        let shape = [6, 5, 4];
        let kernels = [
            Kernel::new(&crate::Conv2d::new(3, 2).into(), &shape).unwrap(),
            Kernel::new(&Layer::linear(7), &shape).unwrap(),
            Kernel::rectified_max_pool(Window { size: 2, stride: 1 }, &shape).unwrap(),
            Kernel::with_epsilon(&Layer::GroupNorm { groups: 2 }, 1e-3, &shape).unwrap(),
            Kernel::with_epsilon(&Layer::LayerNorm, 1e-3, &shape).unwrap(),
            Kernel::with_epsilon(&Layer::BatchNorm, 1e-3, &shape).unwrap(),
            Kernel::new(&Layer::Attention { heads: 2 }, &[10, 12]).unwrap(),
        ];
        let mut random = SplitMix64(3);
        let mut numbers = |count: usize| {
            (0..count).map(|_| random.next() as i8 as f32 / 64.0).collect::<Vec<_>>()
        };
        for kernel in kernels {
            let values: Vec<_> = kernel.lengths().iter().map(|length| numbers(*length)).collect();
            let values: Vec<&[f32]> = values.iter().map(Vec::as_slice).collect();
            let mut weights = KernelWeights::default();
            kernel.prepare(&mut weights, &values).unwrap();
            let (inputs, outputs) = (120, kernel.output().iter().product::<usize>());
            let (x, dy) = (numbers(3 * inputs), numbers(3 * outputs));
            let y = kernel.forward(&weights, &x);
            let back = kernel.backward(&weights, (&x, &y, &dy), true);
            for record in 0..3 {
                let row = |all: &[f32]| {
                    let width = all.len() / 3;
                    all[record * width..(record + 1) * width].to_vec()
                };
                assert_eq!(kernel.forward(&weights, &row(&x)), row(&y));
                let alone = kernel.backward(&weights, (&row(&x), &row(&y), &row(&dy)), true);
                assert_eq!(alone.input, row(&back.input));
                for (alone, all) in alone.parameters.iter().zip(&back.parameters) {
                    assert_eq!(*alone, row(all));
                }
            }
        }
    }

    #[test]
    fn weights_that_are_prepared_again_leave_nothing_behind() {
        let kernel = Kernel::new(&Layer::linear(3), &[20]).unwrap();
        // Values of an earlier round, and of this one.
        let (matrix, bias) = ([[2.0; 60], [1.0; 60]], [[0.5; 3], [0.25; 3]]);
        let (mut again, mut fresh) = <(KernelWeights, KernelWeights)>::default();
        let (x, dy) = ([1.0; 40], [1.0; 6]);
        kernel.prepare(&mut fresh, &[&matrix[1], &bias[1]]).unwrap();
        for wants_input in [false, true] {
            kernel.prepare(&mut again, &[&matrix[0], &bias[0]]).unwrap();
            let y = kernel.forward(&again, &x);
            let _ = kernel.backward(&again, (&x, &y, &dy), wants_input);
            kernel.prepare(&mut again, &[&matrix[1], &bias[1]]).unwrap();
            assert_eq!(kernel.forward(&again, &x), kernel.forward(&fresh, &x));
            let back = |weights| kernel.backward(weights, (&x, &y, &dy), true).input;
            assert_eq!(back(&again), back(&fresh));
        }
    }

    #[test]
    fn layers_and_parameters_of_a_wrong_shape_are_refused() {
        assert!(Kernel::new(&Layer::Flatten, &[3]).is_err());
        assert!(Kernel::new(&Layer::linear(2), &[0]).is_err());
        assert!(Kernel::new(&Layer::GroupNorm { groups: 3 }, &[4]).is_err());
        let kernel = Kernel::new(&Layer::linear(2), &[3]).unwrap();
        let mut weights = KernelWeights::default();
        assert!(kernel.prepare(&mut weights, &[&[0.0; 6]]).is_err());
        assert!(kernel.prepare(&mut weights, &[&[0.0; 5], &[0.0; 2]]).is_err());
    }
}
