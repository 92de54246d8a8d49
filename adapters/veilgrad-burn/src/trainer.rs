//! Private training of Burn models: the backend for the round engine.

use std::marker::PhantomData;
use std::ops::Deref;

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::Tensor;
use veilgrad_events::{Numerics, RoundPermit};
#[cfg(feature = "insecure-testing")]
use veilgrad_mechanism::Noise;
use veilgrad_mechanism::{RecordVector, Sampler};
use veilgrad_nn::round::{Backend, Engine, ExampleId, Trains, Vectors, quietly};
use veilgrad_nn::{Loss, Performance, Progress, Schedule, TrainError, TrainingPlan};

use crate::error::ModelError;
use crate::gradients::TileGradients;
use crate::inspect::{Parameters, Tracked};
use crate::per_record::{PerRecordModel, Stack, Stacked, losses, outputs};
use crate::tape::Tape;
use crate::tile::{Shape, judge};
use crate::{Outcome, PrivateOptimizer, Records, isolation};

/// Trains a Burn model with differential privacy (DP-SGD).
///
/// # Guarantee
/// A record adds an integer vector with a certified norm to the sums of a round. If
/// [`numerics`](Engine::numerics) is exact, the vector is a function of this record and of public state alone;
/// otherwise the run's header says `unverified`, and so does every statement about the run.
///
/// On the devices flex and ndarray, and without random layers, these are exact:
/// - models whose types isolate records, with losses of `veilgrad-nn`, many records at once:
///   [`per_record`](Trainer::per_record);
/// - any model and loss that sees one record at a time: [`with`](Trainer::with) tiles of 1,
///   or [`TrainingPlan::materialised`].
///
/// A model or loss in Burn's tensors that sees several records at once is unverified. The caller must ensure
/// that the loss closure keeps no state between calls. An unusable record (values that are not finite or out of
/// range, a panic while it is processed) contributes zero to every group, and no output depends on it otherwise.
///
/// # Example
/// ```
/// use burn::nn::LinearConfig;
/// use burn::optim::SgdConfig;
/// use burn::tensor::{Device, Int, Tensor, TensorData};
/// use veilgrad_burn::{
///     Outcome, PrivateConfig, PrivateLinear, PrivateOptimizer, Records, Trainer, TrainingPlan,
///     cross_entropy,
/// };
/// use veilgrad_events::{Adjacency, ClipNorm, MemoryLedger, NoiseMultiplier, PublicCount, Run};
/// use veilgrad_mechanism::AllRecords;
/// use veilgrad_nn::Clipping;
///
/// /// Records of two numbers and a class.
/// struct Points(Vec<([f32; 2], i64)>);
///
/// impl Records for Points {
///     type Example = ([f32; 2], i64);
///     type Batch = (Tensor<2>, Tensor<1, Int>);
///
///     fn count(&self) -> u64 {
///         self.0.len() as u64
///     }
///
///     fn read(&self, record: u64, _: usize) -> Self::Example {
///         self.0[record as usize]
///     }
///
///     fn made_up(&self, number: u64) -> Self::Example {
///         ([0.1 * number as f32, 1.0], (number % 2) as i64)
///     }
///
///     fn batch(&self, examples: Vec<Self::Example>, device: &Device) -> Self::Batch {
///         let (inputs, classes): (Vec<[f32; 2]>, Vec<i64>) = examples.into_iter().unzip();
///         let shape = [classes.len(), 2];
///         (
///             Tensor::from_data(TensorData::new(inputs.concat(), shape), device),
///             Tensor::from_data(TensorData::new(classes, [shape[0]]), device),
///         )
///     }
/// }
///
/// let mut model = LinearConfig::new(2, 2).private(&Device::flex().autodiff());
/// let clipping = Clipping::Flat(ClipNorm::new(1.0)?);
/// let plan = TrainingPlan::new(clipping, NoiseMultiplier::new(1.0)?, PublicCount::new(40.0)?);
/// let loss = |model: &PrivateLinear, (x, classes): (Tensor<2>, Tensor<1, Int>)| {
///     Outcome::new(cross_entropy(model.forward(x), classes))
/// };
/// let mut trainer = Trainer::new(&model, Points(vec![([1.0, 2.0], 1); 40]), plan, loss)?;
/// let mut run = Run::open(MemoryLedger::new(), trainer.header(Adjacency::AddRemove))?;
/// let mut optimizer = PrivateOptimizer::new(SgdConfig::new().init());
/// for permit in run.reserve(&trainer.event(&AllRecords)?, 3)? {
///     trainer.round(&model, permit, &mut AllRecords)?;
///     model = trainer.step(&mut optimizer, 0.1, model);
/// }
/// assert_eq!(trainer.rounds(), 3);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Trainer<M, R, F> {
    pub(crate) engine: Engine<Memory<M>>,
    pub(crate) shape: Shape,
    records: R,
    loss: F,
    model: PhantomData<fn(&M)>,
}

/// The working memory of one thread: the results of its last tile.
pub struct Memory<M> {
    /// The model of this round with its own leaves. Threads that share leaves share one autodiff graph, and wait for each
    /// other.
    model: Option<M>,
    tape: Tape,
    gradients: Option<TileGradients>,
    losses: Vec<f32>,
    /// A row per metric of the plan.
    metrics: Vec<Vec<f32>>,
}

/// A Burn model and its dataset, for one round.
struct BurnRound<'a, M, R, F> {
    model: &'a M,
    shape: &'a Shape,
    records: &'a R,
    loss: &'a F,
    /// Whether private layers record per-record gradients; otherwise each record is differentiated alone.
    recorded: bool,
}

/// The loss function of models whose types isolate records.
type PerRecordLosses<M> = fn(&M, Stack) -> Outcome;

impl<M, R, N> Trainer<M, Stacked<R, N>, PerRecordLosses<M>>
where
    M: PerRecordModel + Sync,
    R: Records + Sync,
    N: Fn(&R::Example) -> (Vec<f32>, Vec<f32>) + Sync,
{
    /// A trainer for a model whose types isolate records: many records at once, with exact numerics. `example`
    /// converts one example to its inputs and targets; [`Records::batch`] is not used. The plan's metrics may be
    /// `loss` and `accuracy`.
    ///
    /// # Errors
    /// As for [`new`](Trainer::new), and when the number of targets does not fit the loss.
    pub fn per_record(
        model: &M,
        records: R,
        training: TrainingPlan,
        loss: Loss,
        example: N,
    ) -> Result<Self, TrainError> {
        Self::per_record_with(model, records, training, loss, example, Performance::default())
    }

    /// [`per_record`](Self::per_record) with custom performance settings. They do not change the sums.
    ///
    /// # Errors
    /// As for [`per_record`](Self::per_record).
    pub fn per_record_with(
        model: &M,
        records: R,
        training: TrainingPlan,
        loss: Loss,
        example: N,
        performance: Performance,
    ) -> Result<Self, TrainError> {
        let stacked = Stacked::new(records, example, loss);
        let trainer = Self::build(model, stacked, training, losses, performance, true)?;
        let (inputs, targets) = trainer.records.widths();
        let zeros = Tensor::zeros([1, inputs], &trainer.shape.device);
        let [_, width] = outputs(model, zeros).dims();
        let needed = loss.targets(width);
        match needed == targets {
            true => Ok(trainer),
            false => Err(ModelError::Targets { needed, targets }.into()),
        }
    }
}

impl<M, R, F> Trainer<M, R, F>
where
    M: Module + Sync,
    R: Records + Sync,
    F: Fn(&M, R::Batch) -> Outcome + Sync,
{
    /// The largest default tile size.
    const TILE: usize = 128;
    /// The size of the first tile of made-up examples, from which the default tile size is computed.
    const FIRST: usize = 32;
    /// The approximate limit of the default tile size in bytes of values and gradients.
    const HELD: usize = 32 << 20;

    /// A trainer for any model. `loss` returns one loss per example of a batch. Checks the layers, the losses,
    /// and on made-up examples whether the model isolates records.
    ///
    /// # Errors
    /// When a layer, the loss or the plan cannot be used; the message says what to use instead.
    pub fn new(model: &M, records: R, training: TrainingPlan, loss: F) -> Result<Self, TrainError> {
        Self::with(model, records, training, loss, Performance::default())
    }

    /// [`new`](Trainer::new) with custom performance settings. With tiles of 1, the model sees each record alone:
    /// slower, but exact.
    ///
    /// # Errors
    /// As for [`new`](Trainer::new).
    pub fn with(
        model: &M,
        records: R,
        training: TrainingPlan,
        loss: F,
        performance: Performance,
    ) -> Result<Self, TrainError> {
        Self::build(model, records, training, loss, performance, false)
    }

    /// `apart`: records are isolated by construction, for any tile size.
    fn build(
        model: &M,
        records: R,
        training: TrainingPlan,
        loss: F,
        performance: Performance,
        apart: bool,
    ) -> Result<Self, TrainError> {
        let (recorded, tile) = (!training.is_materialised(), performance.tile);
        if training.trains_locally() {
            return Err(TrainError::LocalSteps);
        }
        let parameters = Parameters::of(model, recorded)?;
        if !parameters.statistics.is_empty() && !recorded {
            return Err(ModelError::Statistics.into());
        }
        let devices = model.devices();
        let [device] = &devices[..] else { return Err(ModelError::NotOneDevice.into()) };
        let device = device.clone().autodiff();
        if recorded && !isolation::is_known(&device) {
            return Err(ModelError::Device.into());
        }
        let metrics = training.metrics().cloned().collect();
        let first = if tile == 0 { Self::FIRST } else { tile };
        let capacity = if recorded { first } else { 1 };
        let mut shape = Shape::new(device, parameters, metrics, capacity);
        let numerics = if recorded {
            shape.explore(model, &records, &loss)?;
            if tile == 0 {
                let fitting = Self::HELD / shape.held.max(1);
                shape.capacity = fitting.clamp(8, Self::TILE) / 8 * 8;
                shape.explore(model, &records, &loss)?;
            }
            let found = isolation::check(&mut shape, model, &records, &loss)?;
            // A test on made-up records proves nothing about real ones.
            if apart || shape.capacity == 1 { found } else { Numerics::Unverified }
        } else {
            let batch = records.batch(vec![records.made_up(0)], &shape.device);
            judge(&loss(model, batch), &shape.metrics, 1)?;
            isolation::of_single_records(model, &shape.device)
        };
        let mut trained = shape.vectors.clone();
        let statistics = trained.split_off(shape.parameters.trained.len());
        let vectors = Vectors { trained, statistics };
        let engine = Engine::new(training, vectors, performance, numerics)?;
        Ok(Self { engine, shape, records, loss, model: PhantomData })
    }

    /// Runs one charged round and adapts clip norms to what it released.
    ///
    /// # Errors
    /// When the operating system gives no randomness, the permit is for another round, or the model is
    /// another one; never because of a record.
    pub fn round(
        &mut self,
        model: &M,
        permit: RoundPermit,
        sampler: &mut impl Sampler,
    ) -> Result<Progress, TrainError> {
        let (engine, backend) = self.backend(model)?;
        engine.round(&backend, permit, sampler)
    }

    /// Runs one charged round with given noise, for tests, in a run that is stamped INSECURE.
    ///
    /// # Errors
    /// As for [`round`](Self::round), and when the run is not stamped.
    #[cfg(feature = "insecure-testing")]
    pub fn round_insecure(
        &mut self,
        model: &M,
        permit: RoundPermit,
        sampler: &mut impl Sampler,
        noise: Noise,
    ) -> Result<Progress, TrainError> {
        let (engine, backend) = self.backend(model)?;
        engine.round_insecure(&backend, permit, sampler, noise)
    }

    /// Updates a model from the released estimates of the last round; see [`PrivateOptimizer::step`].
    pub fn step(&self, optimizer: &mut PrivateOptimizer, rate: f64, model: M) -> M {
        match self.estimates() {
            Some(released) => optimizer.step(rate, model, released),
            None => model,
        }
    }

    fn backend<'a>(&'a mut self, model: &'a M) -> Result<EngineAndRound<'a, M, R, F>, TrainError> {
        let recorded = !self.engine.training().is_materialised();
        if Parameters::of(model, recorded)?.all() != self.shape.parameters.all() {
            return Err(ModelError::OtherModel.into());
        }
        let (shape, records, loss) = (&self.shape, &self.records, &self.loss);
        Ok((&mut self.engine, BurnRound { model, shape, records, loss, recorded }))
    }
}

type EngineAndRound<'a, M, R, F> = (&'a mut Engine<Memory<M>>, BurnRound<'a, M, R, F>);

/// Gives access to the engine: the header of a run, the round to charge, the plan, the released estimates.
impl<M, R, F> Deref for Trainer<M, R, F> {
    type Target = Engine<Memory<M>>;

    fn deref(&self) -> &Engine<Memory<M>> {
        &self.engine
    }
}

/// A trainer with its model, optimizer and learning rate, for the training loop [`drive`](veilgrad_nn::drive).
pub struct Training<M, R, F> {
    /// Runs rounds.
    pub trainer: Trainer<M, R, F>,
    /// The model, updated after every round.
    pub model: M,
    /// Updates the model.
    pub optimizer: PrivateOptimizer,
    /// The learning rate schedule.
    pub schedule: Schedule,
}

impl<M, R, F> Trains<()> for Training<M, R, F>
where
    M: Module + Sync,
    R: Records + Sync,
    F: Fn(&M, R::Batch) -> Outcome + Sync,
{
    type Memory = Memory<M>;

    fn engine(&self) -> &Engine<Memory<M>> {
        &self.trainer
    }

    fn round(
        &mut self,
        permit: RoundPermit,
        sampler: &mut impl Sampler,
        (): &(),
    ) -> Result<Progress, TrainError> {
        let rate = self.schedule.rate(self.trainer.rounds());
        let progress = self.trainer.round(&self.model, permit, sampler)?;
        self.model = self.trainer.step(&mut self.optimizer, rate, self.model.clone());
        Ok(progress)
    }
}

/// How many examples of a microbatch or a user go through the model at once.
const TOGETHER: usize = 64;

impl<M, R, F> Backend for BurnRound<'_, M, R, F>
where
    M: Module + Sync,
    R: Records + Sync,
    F: Fn(&M, R::Batch) -> Outcome + Sync,
{
    type Memory = Memory<M>;

    fn memory(&self) -> Memory<M> {
        let (tape, losses, metrics) = (Tape::default(), Vec::new(), Vec::new());
        Memory { model: None, tape, gradients: None, losses, metrics }
    }

    fn capacity(&self, _: &Memory<M>) -> usize {
        if self.recorded { self.shape.capacity } else { TOGETHER }
    }

    fn records(&self) -> u64 {
        self.records.count()
    }

    fn examples(&self, record: u64) -> usize {
        quietly(|| self.records.examples(record)).unwrap_or(0)
    }

    fn run(&self, memory: &mut Memory<M>, examples: &[ExampleId]) -> bool {
        let padding = 0..(self.shape.size(examples.len()) - examples.len()) as u64;
        let examples = quietly(|| {
            let read = examples.iter().map(|one| self.records.read(one.record, one.example));
            read.chain(padding.map(|number| self.records.made_up(number))).collect()
        });
        let model = memory.model.get_or_insert_with(|| with_new_leaves(self.model));
        let tile = examples.and_then(|examples| {
            self.shape.run(model, self.records, self.loss, examples, &mut memory.tape)
        });
        let Some(tile) = tile else { return false };
        (memory.losses, memory.metrics) = (tile.losses, tile.metrics);
        memory.gradients = Some(tile.gradients);
        true
    }

    fn run_summed(
        &self,
        memory: &mut Memory<M>,
        examples: &[ExampleId],
        sums: &mut [Vec<f32>],
    ) -> bool {
        let trained = &self.shape.parameters.trained;
        let model = &*memory.model.get_or_insert_with(|| with_new_leaves(self.model));
        let found = quietly(|| {
            let read = examples.iter().map(|one| self.records.read(one.record, one.example));
            let batch = self.records.batch(read.collect(), &self.shape.device);
            let outcome = (self.loss)(model, batch);
            let (losses, metrics) = judge(&outcome, &self.shape.metrics, examples.len()).ok()?;
            let sound = losses.iter().all(|loss| loss.is_finite());
            let gradients = sound.then(|| {
                let mut gradients = outcome.sum().backward();
                Tracked::of(model, &mut gradients, trained)
            });
            Some((gradients, losses, metrics))
        });
        let Some(Some((gradients, losses, metrics))) = found else { return false };
        // One unusable example must not exclude the others.
        if gradients.is_none() && examples.len() > 1 {
            return false;
        }
        (memory.losses, memory.metrics) = (losses, metrics);
        // If the loss does not depend on a parameter, its gradient is empty and nothing is added.
        for (sum, gradient) in sums.iter_mut().zip(gradients.unwrap_or_default()) {
            sum.iter_mut().zip(gradient).for_each(|(sum, value)| *sum += value);
        }
        true
    }

    fn is_sound(&self, memory: &Memory<M>, row: usize) -> bool {
        memory.losses[row].is_finite()
    }

    fn vector<'m>(&self, memory: &'m Memory<M>, vector: usize, row: usize) -> RecordVector<'m> {
        match &memory.gradients {
            Some(gradients) => gradients.vector(vector, row),
            None => RecordVector::Values(&[]),
        }
    }

    fn metric(&self, memory: &Memory<M>, metric: usize, row: usize) -> f64 {
        f64::from(memory.metrics[metric][row])
    }

    fn end(&self, memory: &mut Memory<M>) {
        memory.tape.turn_over();
        (memory.model, memory.gradients) = (None, None);
        (memory.losses, memory.metrics) = (Vec::new(), Vec::new());
    }
}

/// A copy of the model whose parameters are new leaves of the autodiff graph.
fn with_new_leaves<M: Module>(model: &M) -> M {
    struct Leaves;
    impl ModuleMapper for Leaves {
        fn map_float<const D: usize>(&mut self, parameter: Param<Tensor<D>>) -> Param<Tensor<D>> {
            parameter.map(|tensor| {
                let trained = tensor.is_require_grad();
                tensor.detach().set_require_grad(trained)
            })
        }
    }
    model.clone().map(&mut Leaves)
}
