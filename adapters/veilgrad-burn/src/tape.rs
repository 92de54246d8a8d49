//! The tape: records the private layers that a tile goes through.

use std::cell::RefCell;
use std::sync::Arc;

use burn::module::ParamId;
use burn::tensor::Tensor;
use veilgrad_nn::ModelError;
use veilgrad_nn::adapter::{Kernel, KernelWeights};

use crate::layer_pass::{PreparedKernel, Slot, Values};
use crate::operation;

thread_local! {
    static TAPE: RefCell<Option<Tape>> = const { RefCell::new(None) };
}

/// The layers that a tile went through, in order.
#[derive(Default)]
pub(crate) struct Tape {
    records: usize,
    pub(crate) uses: Vec<Use>,
    /// A cache of kernels, kept from round to round.
    known: Vec<Known>,
    /// Why a layer could not be recorded.
    pub(crate) refused: Option<String>,
}

struct Known {
    key: Key,
    prepared: Arc<PreparedKernel>,
    /// Whether it holds the parameters of this round.
    fresh: bool,
}

/// The cache key of a kernel: name, settings and parameters of the layer, and the shape of a record.
#[derive(Clone, PartialEq)]
struct Key {
    name: &'static str,
    settings: Vec<usize>,
    parameters: Vec<Option<ParamId>>,
    shape: Vec<usize>,
}

/// One use of a layer with parameters.
pub(crate) struct Use {
    /// The model's parameter for each parameter of the kernel; `None` if the layer does not have it.
    pub(crate) targets: Vec<Option<Target>>,
    pub(crate) prepared: Arc<PreparedKernel>,
    pub(crate) slot: Arc<Slot>,
}

/// A parameter of a model, and its memory order.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Target {
    pub(crate) id: ParamId,
    pub(crate) order: Order,
}

/// The memory order of a parameter in Burn and in the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    Same,
    /// `[filters, channels, places]` in Burn, `[places, channels, filters]` in the kernel.
    Filters {
        filters: usize,
        channels: usize,
        places: usize,
    },
}

impl Order {
    /// Calls `visit` with the index of each number in Burn and in the kernel.
    fn each(self, mut visit: impl FnMut(usize, usize)) {
        let Self::Filters { filters, channels, places } = self else { return };
        for filter in 0..filters {
            for channel in 0..channels {
                for place in 0..places {
                    let burn = (filter * channels + channel) * places + place;
                    visit(burn, (place * channels + channel) * filters + filter);
                }
            }
        }
    }

    pub(crate) fn to_burn(self, rows: Vec<f32>) -> Vec<f32> {
        let Self::Filters { filters, channels, places } = self else { return rows };
        let length = filters * channels * places;
        let mut turned = vec![0.0; rows.len()];
        for (to, from) in turned.chunks_exact_mut(length).zip(rows.chunks_exact(length)) {
            self.each(|burn, kernel| to[burn] = from[kernel]);
        }
        turned
    }

    pub(crate) fn to_kernel(self, values: Vec<f32>) -> Vec<f32> {
        if self == Self::Same {
            return values;
        }
        let mut turned = vec![0.0; values.len()];
        self.each(|burn, kernel| turned[kernel] = values[burn]);
        turned
    }
}

/// A layer as the tape needs it. The first axis of tensors is records, the last is channels.
pub(crate) struct Layer<'a> {
    pub(crate) name: &'static str,
    /// Settings that distinguish layers with the same name and parameters.
    pub(crate) settings: Vec<usize>,
    pub(crate) kernel: &'a dyn Fn(&[usize]) -> Result<Kernel, ModelError>,
    /// The kernel's parameters; see [`Use`].
    pub(crate) targets: Vec<Option<Target>>,
    /// Their values, in the kernel's order.
    pub(crate) values: &'a dyn Fn() -> Vec<Values>,
}

/// Runs `body` while recording a tile of `records` records on `tape`.
pub(crate) fn recorded<T>(tape: &mut Tape, records: usize, body: impl FnOnce() -> T) -> T {
    /// Moves the tape back, also after a panic.
    struct Guard<'a>(&'a mut Tape);
    impl Drop for Guard<'_> {
        fn drop(&mut self) {
            *self.0 = TAPE.with_borrow_mut(Option::take).unwrap_or_default();
        }
    }
    (tape.records, tape.uses) = (records, Vec::new());
    TAPE.set(Some(std::mem::take(tape)));
    let _guard = Guard(tape);
    body()
}

pub(crate) fn is_recording() -> bool {
    TAPE.with_borrow(Option::is_some)
}

/// Sets the reason why a layer cannot be recorded, unless there is one already.
pub(crate) fn refuse(reason: String) {
    TAPE.with_borrow_mut(|tape| {
        if let Some(tape) = tape {
            tape.refused.get_or_insert(reason);
        }
    });
}

/// Runs a layer on its native kernel and records it. `None` if this thread has no tape, or the kernel does not
/// fit: then use Burn's operation.
pub(crate) fn record<const D: usize, const E: usize>(
    x: &Tensor<D>,
    layer: Layer<'_>,
) -> Option<Tensor<E>> {
    let call = TAPE.with_borrow_mut(|tape| tape.as_mut()?.enter(&x.dims(), layer))?;
    let mut shape = vec![x.dims()[0]];
    shape.extend(call.prepared.kernel.output());
    let shape = <[usize; E]>::try_from(shape).ok()?;
    Some(operation::apply(x.clone(), call, shape))
}

impl Tape {
    /// Ends a round: drops the values of records. Kernels of this round are kept for the next.
    pub(crate) fn turn_over(&mut self) {
        (self.records, self.refused) = (0, None);
        self.uses.clear();
        self.known.retain_mut(|known| std::mem::take(&mut known.fresh));
    }

    /// The kernel of a layer, with the parameters of this round.
    fn prepared(&mut self, key: Key, layer: &Layer<'_>) -> Result<Arc<PreparedKernel>, ModelError> {
        let found = self.known.iter().position(|known| known.key == key);
        if let Some(known) = found.and_then(|index| self.known.get(index))
            && known.fresh
        {
            return Ok(Arc::clone(&known.prepared));
        }
        // Reuses the allocation of the last round, unless something still refers to it.
        let old = found.map(|index| self.known.swap_remove(index));
        let mut prepared = match old.and_then(|known| Arc::into_inner(known.prepared)) {
            Some(prepared) => prepared,
            None => PreparedKernel {
                kernel: (layer.kernel)(&key.shape)?,
                weights: KernelWeights::default(),
            },
        };
        let values = (layer.values)();
        let values: Vec<&[f32]> = values.iter().map(Values::slice).collect();
        prepared.kernel.prepare(&mut prepared.weights, &values)?;
        let prepared = Arc::new(prepared);
        self.known.push(Known { key, prepared: Arc::clone(&prepared), fresh: true });
        Ok(prepared)
    }

    /// Records a layer and returns its kernel; sets `refused` if there is none.
    fn enter(&mut self, shape: &[usize], layer: Layer<'_>) -> Option<operation::Call> {
        let name = layer.name;
        let entered = self.try_enter(shape, layer);
        entered.map_err(|why| self.refused.get_or_insert(format!("{name}: {why}")).clone()).ok()
    }

    fn try_enter(&mut self, shape: &[usize], layer: Layer<'_>) -> Result<operation::Call, String> {
        let (name, records) = (layer.name, self.records);
        let (&first, shape) = shape.split_first().ok_or("the input has no axis")?;
        if first != records {
            return Err(format!(
                "the first axis of the input is not that of the records ({first} instead of {records}); \
                 keep records first and give further axes to the layer as they are"
            ));
        }
        let parameters =
            layer.targets.iter().map(|target| target.map(|target| target.id)).collect();
        let settings = layer.settings.clone();
        let key = Key { name, settings, parameters, shape: shape.to_vec() };
        let prepared = self.prepared(key, &layer).map_err(|error| error.to_string())?;
        let slot = Arc::new(Slot::default());
        if !layer.targets.is_empty() {
            let (prepared, slot) = (Arc::clone(&prepared), Arc::clone(&slot));
            self.uses.push(Use { targets: layer.targets, prepared, slot });
        }
        Ok(operation::Call { prepared, slot })
    }
}

pub(crate) fn numbers<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    // Does not copy a tensor that is f32 already.
    tensor.into_data().convert::<f32>().try_into_vec().unwrap_or_default()
}
