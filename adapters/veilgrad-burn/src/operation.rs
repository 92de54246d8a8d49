//! Native kernels as a differentiable operation of Burn's backends.
#![allow(deprecated)] // Burn deprecates ndarray, but still ships it.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{
    Autodiff, AutodiffBackend, Backend, Dispatch, Flex, NdArray, TensorMetadata, backend_extension,
    read_sync,
};
use burn::tensor::{Device, Shape, Tensor, TensorData};

use crate::layer_pass::{LayerPass, PreparedKernel, Slot, Values};

/// A layer's kernel in this round, and where the backward pass stores its results.
#[derive(Clone)]
pub(crate) struct Call {
    pub(crate) prepared: Arc<PreparedKernel>,
    pub(crate) slot: Arc<Slot>,
}

/// Implements `Debug`, which Burn requires, with the type's name alone: the contents are private.
macro_rules! debug_by_name {
    ($($type:ident),+) => {$(
        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(stringify!($type))
            }
        }
    )+};
}

debug_by_name!(Call, ShownValues, Saved);

/// Runs a layer on a tensor whose first axis is records and whose last axis is channels.
pub(crate) fn apply<const D: usize, const E: usize>(
    x: Tensor<D>,
    call: Call,
    shape: [usize; E],
) -> Tensor<E> {
    let probe = probe(&x.device());
    let y = <Dispatch as Native>::native(x.into_dispatch(), probe.into_dispatch(), call);
    Tensor::<E>::from_dispatch(y).reshape(shape)
}

/// The values of a tensor, without a copy where possible.
pub(crate) fn values<const D: usize>(tensor: Tensor<D>) -> Values {
    let shown = ShownValues::default();
    <Dispatch as Native>::show(tensor.into_dispatch(), shown.clone());
    let seen = shown.0.lock().unwrap_or_else(PoisonError::into_inner).take();
    seen.expect("every backend shows its numbers")
}

/// Where a backend stores the values of a tensor.
#[derive(Clone, Default)]
pub(crate) struct ShownValues(Arc<Mutex<Option<Values>>>);

/// Backends that can run native kernels.
#[backend_extension(Flex, NdArray, Autodiff)]
pub(crate) trait Native: Backend {
    /// The output of a kernel. `probe` only anchors the operation in the autodiff graph.
    fn native(x: FloatTensor<Self>, probe: FloatTensor<Self>, call: Call) -> FloatTensor<Self>;

    /// Stores the values of `x` in `shown`, and returns `x`.
    fn show(x: FloatTensor<Self>, shown: ShownValues) -> FloatTensor<Self>;
}

macro_rules! native_in_memory {
    ($($backend:ty),+) => {$(
        impl Native for $backend {
            fn native(x: FloatTensor<Self>, _: FloatTensor<Self>, call: Call) -> FloatTensor<Self> {
                forward::<Self>(x, &call).0
            }

            fn show(x: FloatTensor<Self>, shown: ShownValues) -> FloatTensor<Self> {
                let read = Self::read(x.clone());
                *shown.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(read);
                x
            }
        }
    )+};
}

native_in_memory!(Flex, NdArray);

/// Backends whose tensors are in main memory.
pub(crate) trait Read: Backend {
    fn read(tensor: FloatTensor<Self>) -> Values {
        // These backends compute eagerly: no pending operation can fail here.
        let data = read_sync(Self::float_into_data(tensor)).expect("tensors in memory can be read");
        Values::Data(Arc::new(data.convert::<f32>()))
    }
}

impl Read for Flex {
    fn read(tensor: FloatTensor<Self>) -> Values {
        if tensor.as_slice::<f32>().is_some() {
            return Values::Flex(tensor);
        }
        let data = tensor.into_data().convert::<f32>();
        Values::Data(Arc::new(data))
    }
}

impl Read for NdArray {}

/// The output of a kernel, and what its backward pass needs.
fn forward<B: Read>(x: FloatTensor<B>, call: &Call) -> (FloatTensor<B>, Saved) {
    let (device, input) = (x.device(), x.shape());
    let x = B::read(x);
    let PreparedKernel { kernel, weights } = &*call.prepared;
    let y = kernel.forward(weights, x.slice());
    let mut shape = vec![input.iter().next().copied().unwrap_or(0)];
    shape.extend(kernel.output());
    // Only kernels without parameters need their outputs in the backward pass.
    let kept = if kernel.lengths().is_empty() { y.clone() } else { Vec::new() };
    let saved = Saved { call: call.clone(), x, input, y: Arc::new(kept) };
    (B::float_from_data(TensorData::new(y, shape), &device), saved)
}

#[derive(Clone)]
struct Saved {
    call: Call,
    x: Values,
    input: Shape,
    y: Arc<Vec<f32>>,
}

#[derive(Debug)]
struct NativeBackward;

impl<B: Read> Backward<B, 2> for NativeBackward {
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
        let dy = B::read(dy);
        let Saved { call, x, input: shape, y } = ops.state;
        let PreparedKernel { kernel, weights } = &*call.prepared;
        let mut back = kernel.backward(weights, (x.slice(), &y, dy.slice()), input.is_some());
        if let Some(input) = input {
            let dx = TensorData::new(std::mem::take(&mut back.input), shape);
            gradients.register::<B>(input.id, B::float_from_data(dx, &device));
        }
        call.slot.fill(LayerPass { x, dy, back });
    }
}

impl<B: Native + Read, C: CheckpointStrategy> Native for Autodiff<B, C> {
    fn native(x: FloatTensor<Self>, probe: FloatTensor<Self>, call: Call) -> FloatTensor<Self> {
        let nodes = [x.node(), probe.node()];
        let (y, saved) = forward::<B>(x.into_primitive(), &call);
        match NativeBackward.prepare::<C>(nodes).compute_bound().stateful() {
            OpsKind::Tracked(step) => step.finish(saved, y),
            OpsKind::UnTracked(step) => step.finish(y),
        }
    }

    fn show(x: FloatTensor<Self>, shown: ShownValues) -> FloatTensor<Self> {
        Self::from_inner(B::show(x.into_primitive(), shown))
    }
}

/// A leaf that anchors a layer in the autodiff graph: the layer's backward pass runs even if its input needs
/// no gradient and its weights are not tracked.
fn probe(device: &Device) -> Tensor<1> {
    Tensor::<1>::zeros([1], device).require_grad()
}
