use burn::module::{Module, Param};
use burn::nn::EmbeddingConfig;
use burn::tensor::module::embedding;
use burn::tensor::{Int, Tensor};
use veilgrad_nn::Layer as Native;
use veilgrad_nn::adapter::Kernel;

use super::same;
use crate::operation;
use crate::tape::{self, Layer};

/// [`burn::nn::Embedding`] for private training. In training, a record with an index out of range contributes
/// zero.
#[derive(Module, Debug)]
pub struct PrivateEmbedding {
    /// `[entries, dimension]`.
    pub weight: Param<Tensor<2>>,
}

private_config!(EmbeddingConfig, burn::nn::Embedding => PrivateEmbedding { weight });

impl PrivateEmbedding {
    /// The forward pass: looks up a vector for each index.
    pub fn forward(&self, x: Tensor<2, Int>) -> Tensor<3> {
        // Entries are below 2^24, so that f32 holds them exactly.
        if tape::is_recording()
            && let Some(y) = self.record(&x.clone().float())
        {
            return y;
        }
        embedding(self.weight.val(), x)
    }

    /// Looks up with the native kernel; `None` if there is no tape, or the kernel does not fit.
    pub(crate) fn record(&self, x: &Tensor<2>) -> Option<Tensor<3>> {
        let [entries, dimension] = self.weight.dims();
        let layer = Layer {
            name: "PrivateEmbedding",
            settings: Vec::new(),
            kernel: &|shape| Kernel::new(&Native::Embedding { entries, dimension }, shape),
            targets: vec![same(&self.weight)],
            values: &|| vec![operation::values(self.weight.val())],
        };
        tape::record(x, layer)
    }
}
