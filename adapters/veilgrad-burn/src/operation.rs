//! Native kernels as one operation of Burn's backends, with its derivative.
#![allow(deprecated)] // Burn announces the end of ndarray; while it is there, it is offered.

use std::fmt;
use std::sync::Arc;

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{
    Autodiff, Backend, Dispatch, Flex, NdArray, TensorMetadata, backend_extension, read_sync,
};
use burn::tensor::{Tensor, TensorData};

use crate::tape::{Found, Ready, Slot, probe};

/// A layer's kernel in this round, and where the backward pass leaves what it finds.
#[derive(Clone)]
pub(crate) struct Call {
    pub(crate) ready: Arc<Ready>,
    pub(crate) slot: Arc<Slot>,
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Its contents are private.
        f.write_str("Call")
    }
}

/// Runs a layer on a tensor with records first and channels last.
pub(crate) fn apply<const D: usize, const E: usize>(
    x: Tensor<D>,
    call: Call,
    shape: [usize; E],
) -> Tensor<E> {
    let probe = probe(&x.device());
    let y = <Dispatch as Native>::native(x.into_dispatch(), probe.into_dispatch(), call);
    Tensor::<E>::from_dispatch(y).reshape(shape)
}

/// Backends that can run native kernels.
#[backend_extension(Flex, NdArray, Autodiff)]
pub(crate) trait Native: Backend {
    /// The output of a kernel. `probe` anchors it in the graph and has no other use.
    fn native(x: FloatTensor<Self>, probe: FloatTensor<Self>, call: Call) -> FloatTensor<Self>;
}

impl Native for Flex {
    fn native(x: FloatTensor<Self>, _: FloatTensor<Self>, call: Call) -> FloatTensor<Self> {
        forward::<Self>(x, &call).0
    }
}

impl Native for NdArray {
    fn native(x: FloatTensor<Self>, _: FloatTensor<Self>, call: Call) -> FloatTensor<Self> {
        forward::<Self>(x, &call).0
    }
}

/// The output, and what the backward pass needs.
fn forward<B: Backend>(x: FloatTensor<B>, call: &Call) -> (FloatTensor<B>, Saved) {
    let (device, records) = (x.device(), x.shape().iter().next().copied().unwrap_or(0));
    let x = data::<B>(x);
    let Ready { kernel, weights } = &*call.ready;
    let y = kernel.forward(weights, slice(&x));
    let mut shape = vec![records];
    shape.extend(kernel.output());
    // Only kernels without parameters look at their outputs.
    let kept = if kernel.lengths().is_empty() { y.clone() } else { Vec::new() };
    let saved = Saved { call: call.clone(), x: Arc::new(x), y: Arc::new(kept) };
    (B::float_from_data(TensorData::new(y, shape), &device), saved)
}

#[derive(Clone)]
struct Saved {
    call: Call,
    x: Arc<TensorData>,
    y: Arc<Vec<f32>>,
}

impl fmt::Debug for Saved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Saved")
    }
}

#[derive(Debug)]
struct NativeBackward;

impl<B: Backend> Backward<B, 2> for NativeBackward {
    type State = Saved;

    fn backward(
        self,
        ops: Ops<Self::State, 2>,
        gradients: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        let [input, _probe] = ops.parents;
        let dy = gradients.consume::<B>(&ops.node);
        let device = dy.device();
        let dy = data::<B>(dy);
        let Saved { call, x, y } = ops.state;
        let Ready { kernel, weights } = &*call.ready;
        let mut back = kernel.backward(weights, (slice(&x), &y, slice(&dy)), input.is_some());
        if let Some(input) = input {
            let dx = TensorData::new(std::mem::take(&mut back.input), x.shape().clone());
            gradients.register::<B>(input.id, B::float_from_data(dx, &device));
        }
        call.slot.fill(Found { x, dy, back });
    }
}

impl<B: Backend + Native, C: CheckpointStrategy> Native for Autodiff<B, C> {
    fn native(x: FloatTensor<Self>, probe: FloatTensor<Self>, call: Call) -> FloatTensor<Self> {
        let nodes = [x.node(), probe.node()];
        let (y, saved) = forward::<B>(x.into_primitive(), &call);
        match NativeBackward.prepare::<C>(nodes).compute_bound().stateful() {
            OpsKind::Tracked(step) => step.finish(saved, y),
            OpsKind::UnTracked(step) => step.finish(y),
        }
    }
}

fn data<B: Backend>(tensor: FloatTensor<B>) -> TensorData {
    // Both backends compute at once; there is nothing that could have failed meanwhile.
    read_sync(B::float_into_data(tensor)).expect("tensors in memory can be read")
}

/// The numbers of data that a layer handed over.
pub(crate) fn slice(data: &TensorData) -> &[f32] {
    data.as_slice().expect("layers are of f32")
}
