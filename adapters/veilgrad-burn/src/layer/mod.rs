//! Private layers: those of Burn, with its configurations and records, that say what each record's
//! gradient is.
//!
//! Outside of private training they compute what Burn's do. While a [`Trainer`](crate::Trainer)
//! records, they run on native kernels that keep records apart; weights are not tracked, and a probe
//! leaf makes the gradient by each output known.

/// Where Burn's layer is made first, and its fields are then taken over.
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

/// A configuration of Burn that makes a private layer where `init` makes an ordinary one. Parameters
/// have the same names and shapes, so that records of the one load into the other.
pub trait PrivateConfig {
    /// The private layer.
    type Layer;

    /// The layer, initialised as Burn does.
    fn private(&self, device: &Device) -> Self::Layer;
}

/// A target of the kernel that stands as it does in Burn.
fn same<const D: usize>(parameter: &Param<Tensor<D>>) -> Option<Target> {
    Some(Target { id: parameter.id, order: Order::Same })
}

/// The values of a parameter; of one that is not there, `length` times `otherwise`.
fn values(parameter: Option<&Param<Tensor<1>>>, length: usize, otherwise: f32) -> Values {
    match parameter {
        Some(parameter) => operation::values(parameter.val()),
        None => Values::Own(vec![otherwise; length]),
    }
}
