use burn::module::{Module, Param};
use burn::nn::LinearConfig;
use burn::tensor::Tensor;
use burn::tensor::module::linear;
use veilgrad_nn::Layer as Native;
use veilgrad_nn::adapter::Kernel;

use super::{same, values};
use crate::operation;
use crate::tape::{self, Layer};

/// [`burn::nn::Linear`] for private training.
#[derive(Module, Debug)]
pub struct PrivateLinear {
    /// `[inputs, outputs]`.
    pub weight: Param<Tensor<2>>,
    /// `[outputs]`.
    pub bias: Option<Param<Tensor<1>>>,
}

private_config!(LinearConfig, burn::nn::Linear => PrivateLinear { weight, bias });

impl PrivateLinear {
    /// The forward pass: `x W + b` over the last axis.
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        let [_, outputs] = self.weight.dims();
        let layer = Layer {
            name: "PrivateLinear",
            settings: Vec::new(),
            kernel: &|shape| Kernel::new(&Native::linear(outputs), shape),
            targets: vec![same(&self.weight), self.bias.as_ref().and_then(same)],
            values: &|| {
                let bias = values(self.bias.as_ref(), outputs, 0.0);
                vec![operation::values(self.weight.val()), bias]
            },
        };
        tape::record(&x, layer)
            .unwrap_or_else(|| linear(x, self.weight.val(), self.bias.as_ref().map(Param::val)))
    }
}
