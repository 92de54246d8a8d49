//! What a layer is run with, and what the backward pass finds at it.
#![allow(deprecated)] // Burn announces the end of ndarray; while it is there, it is offered.

use std::sync::{Arc, Mutex, PoisonError};

use burn::backend::Flex;
use burn::backend::tensor::FloatTensor;
use burn::tensor::TensorData;
use veilgrad_nn::adapter::{Back, Kernel, KernelWeights};

/// A kernel and the parameters of this round.
pub(crate) struct PreparedKernel {
    pub(crate) kernel: Kernel,
    pub(crate) weights: KernelWeights,
}

/// Where the backward pass leaves what it found at a layer.
#[derive(Default)]
pub(crate) struct Slot(Mutex<Option<LayerPass>>);

/// Inputs of a layer, what came back, and the gradients by its parameters: rows of one record each.
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
    /// Where the backend has them.
    Flex(FloatTensor<Flex>),
    /// As they were handed over.
    Data(Arc<TensorData>),
    /// Made here.
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
