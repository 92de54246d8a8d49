use burn::module::{Module, Param};
use burn::nn::conv::{Conv1dConfig, Conv2dConfig};
use burn::nn::{PaddingConfig1d, PaddingConfig2d};
use burn::tensor::Tensor;
use burn::tensor::module::conv2d;
use burn::tensor::ops::ConvOptions;
use veilgrad_nn::adapter::Kernel;
use veilgrad_nn::{Conv2d, Padding};

use super::{same, values};
use crate::layer_pass::Values;
use crate::tape::{self, Layer, Order, Target, numbers};

/// [`burn::nn::conv::Conv2d`] for private training, without dilation and with one group.
#[derive(Module, Debug)]
pub struct PrivateConv2d {
    /// `[filters, channels, height, width]`.
    pub weight: Param<Tensor<4>>,
    /// `[filters]`.
    pub bias: Option<Param<Tensor<1>>>,
    /// Stride in height and in width.
    pub stride: [usize; 2],
    /// Spacing between the elements of a filter.
    pub dilation: [usize; 2],
    /// Groups of channels.
    pub groups: usize,
    /// The zeros around an image.
    #[module(skip)]
    pub padding: PaddingConfig2d,
}

private_config!(Conv2dConfig, burn::nn::conv::Conv2d => PrivateConv2d {
    weight, bias, stride, dilation, groups, padding
});

/// The zeros before and after one axis.
type Pads = (usize, usize);

/// As many zeros as make the output `ceil(input / stride)` long.
fn same_padding(inputs: usize, kernel: usize, stride: usize) -> Pads {
    let needed = (inputs.div_ceil(stride).max(1) - 1) * stride + kernel;
    let zeros = needed.saturating_sub(inputs);
    (zeros / 2, zeros - zeros / 2)
}

/// A convolution; one-dimensional ones have height 1.
struct Convolution<'a> {
    name: &'static str,
    weight: Tensor<4>,
    target: Option<Target>,
    bias: Option<&'a Param<Tensor<1>>>,
    stride: [usize; 2],
    dilation: [usize; 2],
    groups: usize,
    pads: [Pads; 2],
}

impl Convolution<'_> {
    fn forward(self, x: Tensor<4>) -> Tensor<4> {
        if tape::is_recording()
            && let Some(y) = self.record(&x)
        {
            return y;
        }
        let options =
            ConvOptions::new_with_padding(self.stride, self.pads, self.dilation, self.groups);
        conv2d(x, self.weight, self.bias.map(Param::val), options)
    }

    fn record(&self, x: &Tensor<4>) -> Option<Tensor<4>> {
        if self.dilation != [1, 1] || self.groups != 1 {
            tape::refuse(format!(
                "{}: dilation {:?} and {} groups have no private layer; use dilation 1 and one group, or \
                 TrainingPlan::materialised",
                self.name, self.dilation, self.groups
            ));
            return None;
        }
        let [(top, bottom), (left, right)] = self.pads;
        let [filters, channels, height, width] = self.weight.dims();
        let order = Order::Filters { filters, channels, places: height * width };
        let even = top == bottom && left == right;
        // The kernel has no asymmetric padding: it is done here.
        let x = if even { x.clone() } else { x.clone().pad((left, right, top, bottom), 0.0) };
        let padding = if even { Padding::Explicit(top, left) } else { Padding::Valid };
        let conv = Conv2d {
            filters,
            kernel: (height, width),
            stride: (self.stride[0], self.stride[1]),
            padding,
        };
        let layer = Layer {
            name: self.name,
            settings: vec![self.stride[0], self.stride[1], top, bottom, left, right],
            kernel: &|shape| Kernel::new(&conv.into(), shape),
            targets: vec![
                self.target.map(|target| Target { order, ..target }),
                self.bias.and_then(same),
            ],
            values: &|| {
                let weight = order.to_kernel(numbers(self.weight.clone()));
                vec![Values::Own(weight), values(self.bias, filters, 0.0)]
            },
        };
        let y: Tensor<4> = tape::record(&x.permute([0, 2, 3, 1]), layer)?;
        Some(y.permute([0, 3, 1, 2]))
    }
}

impl PrivateConv2d {
    /// The forward pass: images `[records, channels, height, width]`.
    pub fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        let [_, _, height, width] = x.dims();
        let [_, _, kernel_height, kernel_width] = self.weight.dims();
        let pads = match &self.padding {
            PaddingConfig2d::Valid => [(0, 0); 2],
            PaddingConfig2d::Same => [
                same_padding(height, kernel_height, self.stride[0]),
                same_padding(width, kernel_width, self.stride[1]),
            ],
            PaddingConfig2d::Explicit(top, left, bottom, right) => {
                [(*top, *bottom), (*left, *right)]
            }
        };
        Convolution {
            name: "PrivateConv2d",
            weight: self.weight.val(),
            target: same(&self.weight),
            bias: self.bias.as_ref(),
            stride: self.stride,
            dilation: self.dilation,
            groups: self.groups,
            pads,
        }
        .forward(x)
    }
}

/// [`burn::nn::conv::Conv1d`] for private training, without dilation and with one group.
#[derive(Module, Debug)]
pub struct PrivateConv1d {
    /// `[filters, channels, length]`.
    pub weight: Param<Tensor<3>>,
    /// `[filters]`.
    pub bias: Option<Param<Tensor<1>>>,
    /// Stride.
    pub stride: usize,
    /// Spacing between the elements of a filter.
    pub dilation: usize,
    /// Groups of channels.
    pub groups: usize,
    /// The zeros around a sequence.
    #[module(skip)]
    pub padding: PaddingConfig1d,
}

private_config!(Conv1dConfig, burn::nn::conv::Conv1d => PrivateConv1d {
    weight, bias, stride, dilation, groups, padding
});

impl PrivateConv1d {
    /// The forward pass: sequences `[records, channels, length]`.
    pub fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let [_, _, length] = x.dims();
        let [_, _, kernel] = self.weight.dims();
        let pads = match &self.padding {
            PaddingConfig1d::Valid => (0, 0),
            PaddingConfig1d::Same => same_padding(length, kernel, self.stride),
            PaddingConfig1d::Explicit(left, right) => (*left, *right),
        };
        let convolution = Convolution {
            name: "PrivateConv1d",
            weight: self.weight.val().unsqueeze_dim(2),
            target: same(&self.weight),
            bias: self.bias.as_ref(),
            stride: [1, self.stride],
            dilation: [1, self.dilation],
            groups: self.groups,
            pads: [(0, 0), pads],
        };
        convolution.forward(x.unsqueeze_dim(2)).squeeze_dim(2)
    }
}
