//! Native models in training: the round engine, then the optimizer.

use std::ops::Deref;

use veilgrad_events::{LedgerStore, Numerics, Round, RoundPermit, Run};
#[cfg(feature = "insecure-testing")]
use veilgrad_mechanism::Noise;
use veilgrad_mechanism::Sampler;

use crate::loss::Loss;
use crate::model::{Model, Prepared};
use crate::native::{Measured, Memory, Native, vectors};
use crate::optimizer::{Optimizer, Schedule, WeightAverage, Weights};
use crate::records::Records;
#[cfg(doc)]
use crate::round::drive;
use crate::round::{
    Engine, Pace, Performance, Progress, TrainError, TrainingPlan, Trains, drive_shown,
};
use crate::tile::{best_tile, tile_of};

/// A model in training.
///
/// # Guarantee
/// The model's parameters and all that a round returns are functions of [`Released`](veilgrad_mechanism::Released) estimates and of
/// public parameters. An unusable record (not finite, a target out of range, overflow on the way)
/// contributes zero to every group, and no output depends on it otherwise.
///
/// # Example
/// ```
/// use veilgrad_events::{Adjacency, ClipNorm, MemoryLedger, NoiseMultiplier, PublicCount, Run};
/// use veilgrad_mechanism::AllRecords;
/// use veilgrad_nn::{
///     Clipping, InMemory, Layer, Loss, Model, Performance, Schedule, Sgd, Trainer, TrainingPlan,
/// };
///
/// let clipping = Clipping::Flat(ClipNorm::new(1.0)?);
/// let plan = TrainingPlan::new(clipping, NoiseMultiplier::new(1.0)?, PublicCount::new(100.0)?);
/// let model = Model::new(&[2], [Layer::linear(2)], 1)?;
/// let (loss, rate) = (Loss::SoftmaxCrossEntropy, Schedule::Constant(0.5));
/// let mut trainer = Trainer::new(model, loss, plan, Sgd::plain(), rate, Performance::default())?;
///
/// // The trainer's header says what a record is and how far the arithmetic is proven.
/// let mut run = Run::open(MemoryLedger::new(), trainer.header(Adjacency::AddRemove))?;
/// let records = InMemory::new(vec![0.5; 200], 2, vec![1.0; 100], 1);
/// trainer.train(&mut run, &mut AllRecords, &records, 3, 3, |_, _| ())?;
/// assert_eq!(trainer.rounds(), 3);
/// assert_eq!(run.close()?.rounds()[0].count, 3); // as many as were charged
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Trainer<O> {
    pub(crate) model: Model,
    pub(crate) optimizer: O,
    pub(crate) average: Option<WeightAverage>,
    pub(crate) engine: Engine<Memory>,
    loss: Loss,
    schedule: Schedule,
    metrics: Vec<Measured>,
    prepared: Prepared,
    tile: usize,
    /// The parameter of each vector of a round.
    order: Vec<usize>,
    momentum: f32,
}

impl<O: Optimizer> Trainer<O> {
    /// A trainer of this model, loss, plan and optimizer.
    ///
    /// # Errors
    /// When the plan's groups do not fit the model, or a metric is none of `accuracy`, `loss` and `classes`.
    pub fn new(
        model: Model,
        loss: Loss,
        training: TrainingPlan,
        optimizer: O,
        schedule: Schedule,
        performance: Performance,
    ) -> Result<Self, TrainError> {
        let (vectors, order) = vectors(&model);
        let metrics = Measured::of_plan(&training)?;
        let engine = Engine::new(training, vectors, performance, Numerics::Exact)?;
        // Examples of one record are added up in f32, tile by tile: there, the tile is part of the arithmetic and
        // must not be a setting.
        let summed = engine.training().is_materialised();
        let tile = if summed { best_tile(&model) } else { tile_of(performance, &model) };
        Ok(Self {
            tile,
            model,
            optimizer,
            average: None,
            engine,
            loss,
            schedule,
            metrics,
            prepared: Prepared::default(),
            order,
            momentum: 0.1,
        })
    }

    /// Keeps an exponential moving average of the weights: post-processing, and often better than
    /// the weights themselves.
    #[must_use]
    pub fn averaging(mut self, decay: f32) -> Self {
        self.average = Some(WeightAverage::new(decay, &self.model));
        self
    }

    /// How far a round moves the running statistics of batch norm; 0.1 by default.
    #[must_use]
    pub const fn statistics_momentum(mut self, momentum: f32) -> Self {
        self.momentum = momentum;
        self
    }

    /// The model as it is.
    pub const fn model(&self) -> &Model {
        &self.model
    }

    /// The model with averaged weights, if [`averaging`](Self::averaging) was asked for.
    pub fn averaged_model(&self) -> Option<Model> {
        Some(self.average.as_ref()?.model(&self.model))
    }

    /// Runs one charged round.
    ///
    /// # Errors
    /// When randomness fails or the permit is for another round; never because of a record.
    pub fn round<R: Records>(
        &mut self,
        permit: RoundPermit,
        sampler: &mut impl Sampler,
        records: &R,
    ) -> Result<Progress, TrainError> {
        self.step(records, |engine, backend| engine.round(backend, permit, sampler))
    }

    /// Runs one charged round with noise for tests, in a run that is stamped INSECURE.
    ///
    /// # Errors
    /// As for [`round`](Self::round), and when the run is not stamped.
    #[cfg(feature = "insecure-testing")]
    pub fn round_insecure<R: Records>(
        &mut self,
        permit: RoundPermit,
        sampler: &mut impl Sampler,
        records: &R,
        noise: Noise,
    ) -> Result<Progress, TrainError> {
        self.step(records, |engine, backend| engine.round_insecure(backend, permit, sampler, noise))
    }

    /// Charges and runs `rounds` rounds in blocks of `block`, and shows each round's metrics. Blocks
    /// that a crash leaves unused stay charged; 32 is a good size. For checkpoints, and to stop in order,
    /// see [`drive`].
    ///
    /// # Errors
    /// When the budget is spent (no data was touched for it), or anything fails.
    pub fn train<S: LedgerStore, R: Records>(
        &mut self,
        run: &mut Run<S>,
        sampler: &mut impl Sampler,
        records: &R,
        rounds: u64,
        block: u64,
        show: impl FnMut(&Self, &Progress),
    ) -> Result<(), TrainError> {
        let pace = Pace { rounds, block, checkpoint_rounds: None };
        drive_shown(self, run, sampler, records, &pace, show)
    }

    /// A round, and what follows from what it released: the optimizer, running statistics, the average.
    fn step<R: Records>(
        &mut self,
        records: &R,
        round: impl FnOnce(&mut Engine<Memory>, &Native<'_>) -> Result<Progress, TrainError>,
    ) -> Result<Progress, TrainError> {
        self.prepared.prepare(&self.model);
        let backend = Native {
            model: &self.model,
            prepared: &self.prepared,
            loss: self.loss,
            metrics: &self.metrics,
            records,
            tile: self.tile,
            summed: self.engine.training().is_materialised(),
            order: &self.order,
        };
        let rate = self.schedule.rate(self.engine.rounds());
        let progress = round(&mut self.engine, &backend)?;
        if let Some(estimates) = self.engine.estimates() {
            self.optimizer.step(Weights::new(&mut self.model), estimates, rate, progress.round);
            self.model.follow(estimates, self.momentum);
        }
        if let Some(average) = &mut self.average {
            average.add(&self.model, progress.round);
        }
        Ok(progress)
    }
}

/// The engine: the header of a run, the round to charge, the plan, what was released.
impl<O> Deref for Trainer<O> {
    type Target = Engine<Memory>;

    fn deref(&self) -> &Engine<Memory> {
        &self.engine
    }
}

impl<O: Optimizer, R: Records> Trains<R> for Trainer<O> {
    fn rounds(&self) -> u64 {
        self.engine.rounds()
    }

    fn event(&self, sampler: &impl Sampler) -> Result<Round, TrainError> {
        self.engine.event(sampler)
    }

    fn round(
        &mut self,
        permit: RoundPermit,
        sampler: &mut impl Sampler,
        records: &R,
    ) -> Result<Progress, TrainError> {
        self.round(permit, sampler, records)
    }
}
