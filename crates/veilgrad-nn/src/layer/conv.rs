//! Convolutions, computed as matrix products of patches and filters.

use super::operation::{
    Backward, Compiled, Initial, Operation, Packed, Parameter, Role, Spare, image,
};
use crate::error::ModelError;
use crate::gemm::{Left, Panels, Patches, Start, multiply, multiply_plain};
use veilgrad_mechanism::exact::vectorised;

/// A two-dimensional convolution layer: `filters` filters of size `kernel` (height, width) over all channels.
///
/// # Example
/// ```
/// use veilgrad_nn::{Conv2d, Layer, Model, Padding};
///
/// let conv = Conv2d::new(16, 8).stride(2).padding(Padding::Same);
/// let model = Model::new(&[28, 28, 1], [Layer::from(conv)], 1)?;
/// assert_eq!(model.output(), [14, 14, 16]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Conv2d {
    /// Channels of the output.
    pub filters: usize,
    /// Height and width of a filter.
    pub kernel: (usize, usize),
    /// Stride in height and in width.
    pub stride: (usize, usize),
    /// The zeros around the image.
    pub padding: Padding,
}

/// Zero padding of a convolution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Padding {
    /// No padding.
    Valid,
    /// As many zeros as make the output `ceil(input / stride)` long; an odd one goes to the bottom or right.
    Same,
    /// This many rows above and below, and this many columns left and right.
    Explicit(usize, usize),
}

impl Conv2d {
    /// Square filters, stride 1, no padding.
    pub const fn new(filters: usize, size: usize) -> Self {
        Self { filters, kernel: (size, size), stride: (1, 1), padding: Padding::Valid }
    }

    /// Sets the stride in both directions.
    #[must_use]
    pub const fn stride(mut self, stride: usize) -> Self {
        self.stride = (stride, stride);
        self
    }

    /// Sets the padding.
    #[must_use]
    pub const fn padding(mut self, padding: Padding) -> Self {
        self.padding = padding;
        self
    }

    /// The zeros around an image of shape `[height, width, channels]`: above and below, left and right. `None` if the
    /// convolution does not fit it.
    ///
    /// # Example
    /// ```
    /// use veilgrad_nn::{Conv2d, Padding};
    ///
    /// let conv = Conv2d::new(16, 4).stride(2).padding(Padding::Same);
    /// assert_eq!(conv.zeros(&[28, 27, 1]), Some([[1, 1], [1, 2]])); // an odd one goes to the right
    /// ```
    #[must_use]
    pub fn zeros(&self, shape: &[usize]) -> Option<[[usize; 2]; 2]> {
        let zeros = |axis: Axis| [axis.before, axis.padded - axis.inputs - axis.before];
        let &[height, width, _] = shape else { return None };
        let (down, right) = self.axes(height, width)?;
        Some([zeros(down), zeros(right)])
    }

    fn axes(&self, height: usize, width: usize) -> Option<(Axis, Axis)> {
        let (explicit_down, explicit_right) = match self.padding {
            Padding::Explicit(down, right) => (Some(down), Some(right)),
            Padding::Valid => (Some(0), Some(0)),
            Padding::Same => (None, None),
        };
        let down = Axis::new(height, self.kernel.0, self.stride.0, explicit_down)?;
        Some((down, Axis::new(width, self.kernel.1, self.stride.1, explicit_right)?))
    }

    pub(super) fn compile(&self, shape: &[usize]) -> Result<Compiled, ModelError> {
        let [height, width, channels] = image(shape)?;
        let wrong = || ModelError::Shape(format!("{self:?} does not fit an image of {shape:?}"));
        let (down, right) = self.axes(height, width).ok_or_else(wrong)?;
        if channels * self.filters == 0 {
            return Err(wrong());
        }
        let line = right.padded * channels;
        let corner = |place: usize| {
            let (y, x) = (place / right.outputs, place % right.outputs);
            y * down.stride * line + x * right.stride * channels
        };
        let corners = (0..down.outputs * right.outputs).map(corner).collect();
        let lines = (0..down.kernel).map(|row| row * line).collect();
        let conv = Conv { down, right, channels, filters: self.filters, corners, lines };
        Ok((Some(Box::new(conv)), vec![down.outputs, right.outputs, self.filters]))
    }
}

impl From<Conv2d> for super::Layer {
    fn from(conv: Conv2d) -> Self {
        Self::Conv2d(conv)
    }
}

/// Height or width: sizes along one axis of the image.
#[derive(Clone, Copy)]
struct Axis {
    inputs: usize,
    kernel: usize,
    stride: usize,
    outputs: usize,
    /// Zeros before the first pixel, and the length with padding on both sides.
    before: usize,
    padded: usize,
}

impl Axis {
    /// `explicit` zeros on both sides, or as many as make the output `ceil(input / stride)` long.
    fn new(inputs: usize, kernel: usize, stride: usize, explicit: Option<usize>) -> Option<Self> {
        if inputs == 0 || kernel == 0 || stride == 0 {
            return None;
        }
        let Some(before) = explicit else {
            let outputs = inputs.div_ceil(stride);
            let padded = ((outputs - 1) * stride + kernel).max(inputs);
            let before = (padded - inputs) / 2;
            return Some(Self { inputs, kernel, stride, outputs, before, padded });
        };
        let padded = inputs + 2 * before;
        let outputs = padded.checked_sub(kernel)? / stride + 1;
        Some(Self { inputs, kernel, stride, outputs, before, padded })
    }
}

struct Conv {
    down: Axis,
    right: Axis,
    channels: usize,
    filters: usize,
    /// Offsets of the patches in the padded image, and of a patch's lines from its corner.
    corners: Vec<usize>,
    lines: Vec<usize>,
}

impl Conv {
    fn input(&self) -> usize {
        self.down.inputs * self.right.inputs * self.channels
    }

    fn positions(&self) -> usize {
        self.down.outputs * self.right.outputs
    }

    /// Numbers under a filter.
    fn patch(&self) -> usize {
        self.down.kernel * self.right.kernel * self.channels
    }

    fn is_padded(&self) -> bool {
        self.down.padded > self.down.inputs || self.right.padded > self.right.inputs
    }

    /// Offsets of the image's rows in the padded image.
    fn rows(&self) -> impl Iterator<Item = usize> {
        let (line, first) = (self.right.padded * self.channels, self.right.before * self.channels);
        let before = self.down.before;
        (0..self.down.inputs).map(move |row| (row + before) * line + first)
    }

    /// Writes the padded image.
    fn pad(&self, x: &[f32], padded: &mut Vec<f32>) {
        padded.resize(self.down.padded * self.right.padded * self.channels, 0.0);
        padded.fill(0.0);
        let width = self.right.inputs * self.channels;
        for (from, to) in x.chunks_exact(width).zip(self.rows()) {
            padded[to..to + width].copy_from_slice(from);
        }
    }

    /// The patches of the padded image, one per filter position.
    fn patches<'a>(&'a self, x: &'a [f32], padded: &'a mut Vec<f32>) -> Patches<'a> {
        let image = if self.is_padded() {
            self.pad(x, padded);
            padded.as_slice()
        } else {
            x
        };
        let (corners, lines) = (&self.corners, &self.lines);
        Patches { image, corners, lines, run: self.right.kernel * self.channels }
    }

    /// Adds the gradient of every patch to the pixels of the patch (col2im).
    fn scatter(&self, patches: &[f32], padded: &mut Vec<f32>, dx: &mut [f32]) {
        let run = self.right.kernel * self.channels;
        let add = |sums: &mut [f32]| {
            sums.fill(0.0);
            vectorised(
                #[inline(always)]
                || {
                    let places = self.corners.iter().zip(patches.chunks_exact(self.patch()));
                    for (corner, patch) in places {
                        for (line, from) in self.lines.iter().zip(patch.chunks_exact(run)) {
                            for (sum, value) in sums[corner + line..][..run].iter_mut().zip(from) {
                                *sum += value;
                            }
                        }
                    }
                },
            );
        };
        if self.is_padded() {
            padded.resize(self.down.padded * self.right.padded * self.channels, 0.0);
            add(padded);
            let width = self.right.inputs * self.channels;
            for (to, from) in dx.chunks_exact_mut(width).zip(self.rows()) {
                to.copy_from_slice(&padded[from..from + width]);
            }
        } else {
            add(dx);
        }
    }
}

impl Operation for Conv {
    fn parameters(&self) -> Vec<Parameter> {
        let (height, width) = (self.down.kernel, self.right.kernel);
        // Glorot and Bengio 2010.
        let fans = self.patch() + height * width * self.filters;
        let initial = Initial::Uniform((6.0 / fans as f32).sqrt());
        let shape = vec![height, width, self.channels, self.filters];
        vec![
            Parameter::new("weight", shape, Role::Weight, initial),
            Parameter::new("bias", vec![self.filters], Role::Weight, Initial::Constant(0.0)),
        ]
    }

    fn prepare(&self, values: &[Vec<f32>], back: bool, panels: &mut Vec<Panels>) {
        panels.resize_with(2, Panels::default);
        panels[0].pack(&values[0], self.patch(), self.filters);
        if back {
            panels[1].pack_transposed(&values[0], self.filters, self.patch());
        }
    }

    fn forward(&self, packed: Packed<'_>, _: usize, x: &[f32], y: &mut [f32], spare: &mut Spare) {
        let positions = self.positions();
        let rows = x.chunks_exact(self.input());
        for (x, y) in rows.zip(y.chunks_exact_mut(positions * self.filters)) {
            let patches = Left::Patches(self.patches(x, &mut spare.more));
            let bias = Start::Bias(&packed.values[1]);
            multiply(positions, patches, &packed.panels[0], bias, y);
        }
    }

    fn backward(&self, mut pass: Backward<'_>) {
        let (positions, patch, filters) = (self.positions(), self.patch(), self.filters);
        let rows = pass.x.chunks_exact(self.input());
        for (record, (x, dy)) in rows.zip(pass.dy.chunks_exact(positions * filters)).enumerate() {
            let patches = Left::PatchColumns(self.patches(x, &mut pass.spare.more));
            let (weight, start) = pass.gradients.row(0, record);
            let shape = (patch, positions, filters);
            multiply_plain(shape, patches, dy, start, weight, &mut pass.spare.panels);
            pass.gradients.add_rows(1, record, dy);
            if let Some(dx) = pass.dx.as_deref_mut() {
                let dx = &mut dx[record * self.input()..][..self.input()];
                let (back, panels) = (Left::Rows(dy), &pass.packed.panels[1]);
                pass.spare.values.resize(positions * patch, 0.0);
                multiply(positions, back, panels, Start::Zero, &mut pass.spare.values);
                self.scatter(&pass.spare.values, &mut pass.spare.more, dx);
            }
        }
    }
}
