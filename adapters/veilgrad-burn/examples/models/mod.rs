//! Model A of the benchmarks, of Burn's layers and of private ones.

use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::pool::{MaxPool2d, MaxPool2dConfig};
use burn::nn::{Linear, LinearConfig, PaddingConfig2d};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Tensor};
use veilgrad_burn::{
    PerRecord, PerRecordModel, PrivateConfig, PrivateConv2d, PrivateLinear, PrivateMaxPool2d,
    outputs,
};

fn first_conv() -> Conv2dConfig {
    Conv2dConfig::new([1, 16], [8, 8]).with_stride([2, 2]).with_padding(PaddingConfig2d::Same)
}

fn second_conv() -> Conv2dConfig {
    Conv2dConfig::new([16, 32], [4, 4]).with_stride([2, 2])
}

fn pool() -> MaxPool2dConfig {
    MaxPool2dConfig::new([2, 2]).with_strides([1, 1])
}

/// The tutorial's network with Burn's layers.
#[derive(Module, Debug)]
pub(crate) struct PublicCnn {
    first: Conv2d,
    second: Conv2d,
    pool: MaxPool2d,
    third: Linear,
    last: Linear,
}

impl PublicCnn {
    #[allow(dead_code)]
    pub(crate) fn new(device: &Device) -> Self {
        Self {
            first: first_conv().init(device),
            second: second_conv().init(device),
            pool: pool().init(),
            third: LinearConfig::new(512, 32).init(device),
            last: LinearConfig::new(32, 10).init(device),
        }
    }

    #[allow(dead_code)]
    pub(crate) fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        let [images, _] = x.dims();
        let x = self.pool.forward(relu(self.first.forward(x.reshape([images, 1, 28, 28]))));
        let x = self.pool.forward(relu(self.second.forward(x)));
        self.last.forward(relu(self.third.forward(x.flatten(1, 3))))
    }
}

/// The tutorial's network with private layers.
#[derive(Module, Debug)]
pub(crate) struct PrivateCnn {
    first: PrivateConv2d,
    second: PrivateConv2d,
    pool: PrivateMaxPool2d,
    third: PrivateLinear,
    last: PrivateLinear,
}

impl PrivateCnn {
    #[allow(dead_code)]
    pub(crate) fn new(device: &Device) -> Self {
        Self {
            first: first_conv().private(device),
            second: second_conv().private(device),
            pool: pool().private(device).rectified(),
            third: LinearConfig::new(512, 32).private(device),
            last: LinearConfig::new(32, 10).private(device),
        }
    }

    #[allow(dead_code)]
    pub(crate) fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        outputs(self, x)
    }
}

impl PerRecordModel for PrivateCnn {
    fn each(&self, x: PerRecord<2>) -> PerRecord<2> {
        let x = self.pool.each(self.first.each(x.reshape(&[1, 28, 28])));
        let x = self.pool.each(self.second.each(x));
        self.last.each(self.third.each(x.flatten()).relu())
    }
}
