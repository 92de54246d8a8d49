//! The kernel of a layer, and the results of its backward pass.
#![allow(deprecated)] // Burn deprecates ndarray, but still ships it.

use std::sync::{Arc, Mutex, PoisonError};

use burn::backend::Flex;
use burn::backend::tensor::FloatTensor;
use burn::tensor::TensorData;
use veilgrad_nn::adapter::{Back, Kernel, KernelWeights};

/// A kernel with the parameters of this round.
pub(crate) struct PreparedKernel {
    pub(crate) kernel: Kernel,
    pub(crate) weights: KernelWeights,
}

/// Where the backward pass stores the results of a layer.
#[derive(Default)]
pub(crate) struct Slot(Mutex<Option<LayerPass>>);

/// Input, output gradient and parameter gradients of a layer, with a row per record.
pub(crate) struct LayerPass {
    pub(crate) x: Values,
    pub(crate) dy: Values,
    pub(crate) back: Back,
}

impl Slot {
    pub(crate) fn fill(&self, found: LayerPass) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(found);
    }

    pub(crate) fn take(&self) -> Option<LayerPass> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

#[derive(Clone)]
pub(crate) enum Values {
    /// A tensor of the backend, without a copy.
    Flex(FloatTensor<Flex>),
    /// Data read from a backend.
    Data(Arc<TensorData>),
    /// Computed here.
    Own(Vec<f32>),
}

impl Values {
    pub(crate) fn slice(&self) -> &[f32] {
        match self {
            Self::Flex(tensor) => tensor.as_slice(),
            Self::Data(data) => data.as_slice().ok(),
            Self::Own(values) => Some(values.as_slice()),
        }
        .expect("layers are of f32")
    }
}
