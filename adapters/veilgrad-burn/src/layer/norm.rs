use burn::module::{Module, Param, ParamId};
use burn::nn::{BatchNormConfig, GroupNormConfig, LayerNormConfig};
use burn::tensor::module::layer_norm;
use burn::tensor::{Device, Tensor};
use veilgrad_nn::Layer as Native;
use veilgrad_nn::adapter::Kernel;

use super::{PrivateConfig, same, values};
use crate::operation;
use crate::tape::{self, Layer};

/// [`burn::nn::LayerNorm`] for private training.
#[derive(Module, Debug)]
pub struct PrivateLayerNorm {
    /// The scale.
    pub gamma: Param<Tensor<1>>,
    /// The shift.
    pub beta: Option<Param<Tensor<1>>>,
    /// Added to the variance.
    pub epsilon: f64,
}

impl PrivateConfig for LayerNormConfig {
    type Layer = PrivateLayerNorm;

    fn private(&self, device: &Device) -> PrivateLayerNorm {
        let layer = self.init(device);
        PrivateLayerNorm { gamma: layer.gamma, beta: layer.beta, epsilon: self.epsilon }
    }
}

impl PrivateLayerNorm {
    /// The forward pass: normalises the last axis.
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        let [channels] = self.gamma.dims();
        let layer = Layer {
            name: "PrivateLayerNorm",
            settings: vec![self.epsilon.to_bits() as usize],
            kernel: &|shape| Kernel::with_epsilon(&Native::LayerNorm, self.epsilon as f32, shape),
            targets: vec![same(&self.gamma), self.beta.as_ref().and_then(same)],
            values: &|| {
                let gamma = operation::values(self.gamma.val());
                vec![gamma, values(self.beta.as_ref(), channels, 0.0)]
            },
        };
        tape::record(&x, layer).unwrap_or_else(|| {
            layer_norm(x, self.gamma.val(), self.beta.as_ref().map(Param::val), self.epsilon)
        })
    }
}

/// [`burn::nn::GroupNorm`] for private training.
#[derive(Module, Debug)]
pub struct PrivateGroupNorm {
    /// The scale.
    pub gamma: Option<Param<Tensor<1>>>,
    /// The shift.
    pub beta: Option<Param<Tensor<1>>>,
    /// The number of groups.
    pub num_groups: usize,
    /// The number of channels.
    pub num_channels: usize,
    /// Added to the variance.
    pub epsilon: f64,
}

private_config!(GroupNormConfig, burn::nn::GroupNorm => PrivateGroupNorm {
    gamma, beta, num_groups, num_channels, epsilon
});

impl PrivateGroupNorm {
    /// The forward pass: normalises groups of channels, `[records, channels, …]`.
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        let channels = self.num_channels;
        let norm = Native::GroupNorm { groups: self.num_groups };
        let layer = Layer {
            name: "PrivateGroupNorm",
            settings: vec![channels, self.num_groups, self.epsilon.to_bits() as usize],
            kernel: &|shape| Kernel::with_epsilon(&norm, self.epsilon as f32, shape),
            targets: [&self.gamma, &self.beta].map(|p| p.as_ref().and_then(same)).into(),
            values: &|| {
                let gamma = values(self.gamma.as_ref(), channels, 1.0);
                vec![gamma, values(self.beta.as_ref(), channels, 0.0)]
            },
        };
        if let Some(y) = channels_last(&x, layer) {
            return y;
        }
        let layer = burn::nn::GroupNorm {
            gamma: self.gamma.clone(),
            beta: self.beta.clone(),
            num_groups: self.num_groups,
            num_channels: channels,
            epsilon: self.epsilon,
            affine: self.gamma.is_some(),
        };
        layer.forward(x)
    }
}

/// Records a layer whose channels are the second axis; `None` if there is no tape, or the kernel does not fit.
fn channels_last<const D: usize>(x: &Tensor<D>, layer: Layer<'_>) -> Option<Tensor<D>> {
    if !tape::is_recording() {
        return None;
    }
    let y: Tensor<D> = tape::record(&x.clone().movedim(1, D - 1), layer)?;
    Some(y.movedim(D - 1, 1))
}

/// [`burn::nn::BatchNorm`] for private training: normalises by *released* running statistics. They are
/// constants of a round, so records stay independent. Each record contributes its channel means and mean
/// squares as one more group of the round
/// ([`TrainingPlan::statistics`](crate::TrainingPlan::statistics)), and
/// [`PrivateOptimizer::step`](crate::PrivateOptimizer::step) updates the running statistics.
#[derive(Module, Debug)]
pub struct PrivateBatchNorm {
    /// The scale.
    pub gamma: Param<Tensor<1>>,
    /// The shift.
    pub beta: Param<Tensor<1>>,
    /// The running mean: released, not trained.
    pub running_mean: Param<Tensor<1>>,
    /// The running variance: released, not trained.
    pub running_var: Param<Tensor<1>>,
    /// Added to the variance.
    pub epsilon: f64,
}

impl PrivateConfig for BatchNormConfig {
    type Layer = PrivateBatchNorm;

    fn private(&self, device: &Device) -> PrivateBatchNorm {
        let layer = self.init(device);
        let statistic = |tensor: Tensor<1>| Param::initialized(ParamId::new(), tensor.detach());
        PrivateBatchNorm {
            gamma: layer.gamma,
            beta: layer.beta,
            running_mean: statistic(layer.running_mean.value()),
            running_var: statistic(layer.running_var.value()),
            epsilon: self.epsilon,
        }
    }
}

impl PrivateBatchNorm {
    /// The forward pass: normalises each channel, `[records, channels, …]`.
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        let parameters = [&self.gamma, &self.beta, &self.running_mean, &self.running_var];
        let layer = Layer {
            name: "PrivateBatchNorm",
            settings: vec![self.epsilon.to_bits() as usize],
            kernel: &|shape| Kernel::with_epsilon(&Native::BatchNorm, self.epsilon as f32, shape),
            targets: parameters.map(same).into(),
            values: &|| {
                let [gamma, beta, mean, variance] = parameters.map(Param::val);
                let mean_square = variance + mean.clone() * mean.clone();
                [gamma, beta, mean, mean_square].map(operation::values).into()
            },
        };
        if let Some(y) = channels_last(&x, layer) {
            return y;
        }
        let [channels] = self.gamma.dims();
        let mut shape = [1; D];
        shape[1] = channels;
        let per_channel = |tensor: Tensor<1>| tensor.reshape(shape);
        let deviation = (self.running_var.val().detach() + self.epsilon).sqrt();
        let normal = (x - per_channel(self.running_mean.val().detach())) / per_channel(deviation);
        normal * per_channel(self.gamma.val()) + per_channel(self.beta.val())
    }
}
