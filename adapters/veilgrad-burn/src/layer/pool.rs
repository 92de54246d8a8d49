use burn::module::Module;
use burn::nn::PaddingConfig2d;
use burn::nn::pool::{MaxPool2d, MaxPool2dConfig};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Tensor};
use veilgrad_nn::adapter::Kernel;
use veilgrad_nn::{Layer as Native, Window};

use super::PrivateConfig;
use crate::tape::{self, Layer};

/// [`burn::nn::pool::MaxPool2d`] for private training, with a native kernel for square windows without
/// padding. It has no parameters, so Burn's own layer works as well, but is slower.
#[derive(Module, Debug)]
pub struct PrivateMaxPool2d {
    pool: MaxPool2d,
    rectified: bool,
}

impl PrivateConfig for MaxPool2dConfig {
    type Layer = PrivateMaxPool2d;

    fn private(&self, _: &Device) -> PrivateMaxPool2d {
        PrivateMaxPool2d { pool: self.init(), rectified: false }
    }
}

impl PrivateMaxPool2d {
    /// Includes a ReLU: the same as `relu` before this layer, but faster.
    #[must_use]
    pub fn rectified(mut self) -> Self {
        self.rectified = true;
        self
    }

    /// The forward pass: the largest value of each window of `[records, channels, height, width]`.
    pub fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        let MaxPool2d { stride, kernel_size, .. } = &self.pool;
        if self.is_native() && tape::is_recording() {
            let window = Window { size: kernel_size[0], stride: stride[0] };
            let layer = Layer {
                name: "PrivateMaxPool2d",
                settings: vec![window.size, window.stride, usize::from(self.rectified)],
                kernel: &|shape| match self.rectified {
                    true => Kernel::rectified_max_pool(window, shape),
                    false => Kernel::new(&Native::MaxPool2d(window), shape),
                },
                targets: Vec::new(),
                values: &Vec::new,
            };
            let y: Option<Tensor<4>> = tape::record(&x.clone().permute([0, 2, 3, 1]), layer);
            if let Some(y) = y {
                return y.permute([0, 3, 1, 2]);
            }
        }
        self.pool.forward(if self.rectified { relu(x) } else { x })
    }

    /// Whether there is a native kernel for these windows.
    pub(crate) fn is_native(&self) -> bool {
        let MaxPool2d { stride, kernel_size, padding, dilation, ceil_mode } = &self.pool;
        kernel_size[0] == kernel_size[1]
            && stride[0] == stride[1]
            && *padding == PaddingConfig2d::Valid
            && *dilation == [1, 1]
            && !ceil_mode
    }
}
