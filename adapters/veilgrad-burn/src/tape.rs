//! What private layers write down while a tile of records goes through a model.

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

/// The layers that a tile went through, in their order.
#[derive(Default)]
pub(crate) struct Tape {
    records: usize,
    pub(crate) uses: Vec<Use>,
    /// The kernels, from round to round.
    known: Vec<Known>,
    /// Why a layer could not be written down.
    pub(crate) refused: Option<String>,
}

struct Known {
    key: Key,
    prepared: Arc<PreparedKernel>,
    /// Whether the parameters are those of this round.
    fresh: bool,
}

/// What a kernel is for: a kind of layer, its settings, its parameters, a shape.
#[derive(Clone, PartialEq)]
struct Key {
    name: &'static str,
    settings: Vec<usize>,
    parameters: Vec<Option<ParamId>>,
    shape: Vec<usize>,
}

/// One pass through a layer with parameters.
pub(crate) struct Use {
    /// For each parameter of the kernel: whose it is. None for one that the layer does not have.
    pub(crate) targets: Vec<Option<Target>>,
    pub(crate) prepared: Arc<PreparedKernel>,
    pub(crate) slot: Arc<Slot>,
}

/// A parameter of a model and how the kernel's numbers stand in it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Target {
    pub(crate) id: ParamId,
    pub(crate) order: Order,
}

/// How the numbers of a parameter stand in Burn, and in the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    Same,
    /// `[filters, channels, places]`, and `[places, channels, filters]`.
    Filters {
        filters: usize,
        channels: usize,
        places: usize,
    },
}

impl Order {
    /// Calls with each place in Burn and in the kernel.
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

/// A layer as the tape needs it. Tensors have records first and channels last.
pub(crate) struct Layer<'a> {
    pub(crate) name: &'static str,
    /// What distinguishes layers of this name and these parameters.
    pub(crate) settings: Vec<usize>,
    pub(crate) kernel: &'a dyn Fn(&[usize]) -> Result<Kernel, ModelError>,
    /// The kernel's parameters; see [`Use`].
    pub(crate) targets: Vec<Option<Target>>,
    /// Their values, in the kernel's order.
    pub(crate) values: &'a dyn Fn() -> Vec<Values>,
}

/// Runs `body` with a tape for `records` records; the kernels in it stay with `tape`.
pub(crate) fn recorded<T>(tape: &mut Tape, records: usize, body: impl FnOnce() -> T) -> T {
    /// Takes the tape out again, also after a panic.
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

/// Notes why a layer cannot be recorded.
pub(crate) fn refuse(reason: String) {
    TAPE.with_borrow_mut(|tape| {
        if let Some(tape) = tape {
            tape.refused.get_or_insert(reason);
        }
    });
}

/// Runs a layer natively and writes it down. None if no tape runs in this thread, or the layer does
/// not fit: Burn's own operation is to be used then.
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
    /// Forgets records; the kernels of this round stay, for the parameters of the next.
    pub(crate) fn turn_over(&mut self) {
        (self.records, self.refused) = (0, None);
        self.uses.clear();
        self.known.retain_mut(|known| std::mem::take(&mut known.fresh));
    }

    /// The kernel of a layer, with its parameters of this round.
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

    /// The kernel of a layer, written down; notes why if there is none.
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
    // Without a copy, where it is f32 already.
    tensor.into_data().convert::<f32>().try_into_vec().unwrap_or_default()
}
