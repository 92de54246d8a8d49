//! Private layers: Burn's layers, with its configurations and records, that compute per-record gradients.
//!
//! Outside of private training they compute the same as Burn's layers. While a [`Trainer`](crate::Trainer)
//! records, they run on native kernels that isolate records. Autodiff does not track the weights; a probe
//! leaf in the graph provides the gradient by each output.

/// Implements [`PrivateConfig`] for a layer that takes over the fields of Burn's layer.
macro_rules! private_config {
    ($config:ty, $burn:ty => $layer:ident { $($field:ident),+ }) => {
        impl super::PrivateConfig for $config {
            type Layer = $layer;

            fn private(&self, device: &burn::tensor::Device) -> $layer {
                self.init(device).into()
            }
        }

        impl From<$burn> for $layer {
            fn from(layer: $burn) -> Self {
                Self { $($field: layer.$field),+ }
            }
        }
    };
}

mod attention;
mod conv;
mod embedding;
mod linear;
mod norm;
mod pool;

use burn::module::Param;
use burn::tensor::{Device, Tensor};

use crate::layer_pass::Values;
use crate::operation;
use crate::tape::{Order, Target};

pub use attention::PrivateMultiHeadAttention;
pub use conv::{PrivateConv1d, PrivateConv2d};
pub use embedding::PrivateEmbedding;
pub use linear::PrivateLinear;
pub use norm::{PrivateBatchNorm, PrivateGroupNorm, PrivateLayerNorm};
pub use pool::PrivateMaxPool2d;

/// Makes a private layer from Burn's configuration, as `init` makes an ordinary one. The parameters have
/// the same names and shapes, so records of one load into the other.
pub trait PrivateConfig {
    /// The private layer.
    type Layer;

    /// The private layer, initialised as in Burn.
    fn private(&self, device: &Device) -> Self::Layer;
}

/// The target for a parameter with the same memory order in Burn and in the kernel.
fn same<const D: usize>(parameter: &Param<Tensor<D>>) -> Option<Target> {
    Some(Target { id: parameter.id, order: Order::Same })
}

/// The values of a parameter; `length` times `otherwise` if the layer does not have it.
fn values(parameter: Option<&Param<Tensor<1>>>, length: usize, otherwise: f32) -> Values {
    match parameter {
        Some(parameter) => operation::values(parameter.val()),
        None => Values::Own(vec![otherwise; length]),
    }
}
