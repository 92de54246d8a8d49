use burn::module::Module;
use burn::nn::attention::MultiHeadAttentionConfig;
use burn::nn::{Dropout, DropoutConfig};
use burn::tensor::activation::{quiet_softmax, softmax};
use burn::tensor::{Bool, Device, Tensor};

use veilgrad_nn::Layer as Native;
use veilgrad_nn::adapter::Kernel;

use super::{PrivateConfig, PrivateLinear};
use crate::tape::{self, Layer};

/// [`burn::nn::attention::MultiHeadAttention`] for private training, built from private linear layers.
#[derive(Module, Debug)]
pub struct PrivateMultiHeadAttention {
    /// The projection to queries.
    pub query: PrivateLinear,
    /// The projection to keys.
    pub key: PrivateLinear,
    /// The projection to values.
    pub value: PrivateLinear,
    /// The projection of the heads to the output.
    pub output: PrivateLinear,
    /// Dropout of the attention weights.
    pub dropout: Dropout,
    /// The number of heads.
    pub n_heads: usize,
    /// The value of a masked score.
    pub min_float: f64,
    /// Whether to use quiet softmax, whose weights may sum to less than 1.
    pub quiet_softmax: bool,
}

impl PrivateConfig for MultiHeadAttentionConfig {
    type Layer = PrivateMultiHeadAttention;

    fn private(&self, device: &Device) -> PrivateMultiHeadAttention {
        let layer = self.init(device);
        let dropout = DropoutConfig::new(self.dropout).init();
        PrivateMultiHeadAttention {
            query: layer.query.into(),
            key: layer.key.into(),
            value: layer.value.into(),
            output: layer.output.into(),
            // A layer that drops nothing is not random.
            dropout: if self.dropout == 0.0 { dropout.freeze() } else { dropout },
            n_heads: layer.n_heads,
            min_float: layer.min_float,
            quiet_softmax: layer.quiet_softmax,
        }
    }
}

impl PrivateMultiHeadAttention {
    /// Attention of `query` to `key` and `value`, all `[records, length, dimension]`. Positions where `mask`
    /// (`[records, length of query, length of key]`) is true are ignored.
    pub fn forward(
        &self,
        query: Tensor<3>,
        key: Tensor<3>,
        value: Tensor<3>,
        mask: Option<Tensor<3, Bool>>,
    ) -> Tensor<3> {
        if mask.is_none()
            && self.is_native()
            && query.dims() == key.dims()
            && query.dims() == value.dims()
            && tape::is_recording()
        {
            let projected = vec![
                self.query.forward(query.clone()),
                self.key.forward(key.clone()),
                self.value.forward(value.clone()),
            ];
            if let Some(context) = self.record(&Tensor::cat(projected, 2)) {
                return self.output.forward(context);
            }
        }
        let [records, length, dimension] = query.dims();
        let width = dimension / self.n_heads;
        let heads = |x: Tensor<3>| {
            let [_, length, _] = x.dims();
            x.reshape([records, length, self.n_heads, width]).swap_dims(1, 2)
        };
        let (query, key) = (heads(self.query.forward(query)), heads(self.key.forward(key)));
        let value = heads(self.value.forward(value));
        let mut scores = query.matmul(key.transpose()).div_scalar((width as f32).sqrt());
        if let Some(mask) = mask {
            scores = scores.mask_fill(mask.unsqueeze_dim::<4>(1), self.min_float);
        }
        let weights =
            if self.quiet_softmax { quiet_softmax(scores, 3) } else { softmax(scores, 3) };
        let context = self.dropout.forward(weights).matmul(value);
        self.output.forward(context.swap_dims(1, 2).reshape([records, length, dimension]))
    }

    /// Whether there is a native kernel for attention without a mask.
    pub(crate) fn is_native(&self) -> bool {
        !self.quiet_softmax && (self.dropout.prob == 0.0 || !self.dropout.training.is_enabled())
    }

    /// Attention of concatenated queries, keys and values with the native kernel; `None` if there is no tape, or the kernel
    /// does not fit.
    fn record(&self, projected: &Tensor<3>) -> Option<Tensor<3>> {
        let layer = Layer {
            name: "PrivateMultiHeadAttention",
            settings: vec![self.n_heads],
            kernel: &|shape| Kernel::new(&Native::Attention { heads: self.n_heads }, shape),
            targets: Vec::new(),
            values: &Vec::new,
        };
        tape::record(projected, layer)
    }
}
