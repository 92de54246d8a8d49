//! Private training of this crate's models: the round engine, then the optimizer.

use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;

use veilgrad_events::{Head, History, LedgerStore, Numerics, RoundPermit, Run};
#[cfg(feature = "insecure-testing")]
use veilgrad_mechanism::Noise;
use veilgrad_mechanism::{PartialSum, Sampler};
use zeroize::Zeroizing;

use crate::file::FileError;
use crate::loss::Loss;
use crate::model::{Model, Prepared};
use crate::native::{Measured, Memory, Native, Setup, vectors};
use crate::optimizer::{Optimizer, Schedule, WeightAverage, Weights};
use crate::records::Records;
use crate::round::{
    Checkpoint, Engine, Pace, Peers, Performance, Progress, SharedRound, TrainError, TrainingPlan,
    Trains, drive_shown,
};
use crate::tile::{best_tile, unsummed_tile};

/// Trains a model with differential privacy (DP-SGD).
///
/// # Guarantee
/// The model's parameters and everything that a round returns are functions of
/// [`Released`](veilgrad_mechanism::Released) estimates and of public parameters. An unusable record (values that are
/// not finite, a target out of range, a gradient that overflows) contributes zero to every group, and no output depends
/// on it otherwise.
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
/// // The trainer's header declares the record unit, and that records are proven to be isolated.
/// let mut run = Run::open(MemoryLedger::new(), trainer.header(Adjacency::AddRemove))?;
/// let records = InMemory::new(vec![0.5; 200], 2, vec![1.0; 100], 1);
/// trainer.train(&mut run, &mut AllRecords, &records, 3, 3, |_, _| ())?;
/// assert_eq!(trainer.rounds(), 3);
/// assert_eq!(run.close()?.rounds()[0].count, 3); // as many as were charged
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Trainer<O> {
    model: Model,
    optimizer: O,
    average: Option<WeightAverage>,
    engine: Engine<Memory>,
    schedule: Schedule,
    setup: Setup,
    prepared: Prepared,
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
        // Gradients of a record's examples are summed in f32, tile by tile: the tile size would change the result, so
        // it must not be a setting.
        let summed = engine.training().is_materialised();
        let tile = if summed { best_tile(&model) } else { unsummed_tile(performance, &model) };
        Ok(Self {
            model,
            optimizer,
            average: None,
            engine,
            schedule,
            setup: Setup { loss, metrics, tile, summed, order, class_weights: Arc::default() },
            prepared: Prepared::default(),
            momentum: 0.1,
        })
    }

    /// Keeps an exponential moving average of the weights. This is post-processing: it costs no privacy,
    /// and is often more accurate than the weights themselves.
    #[must_use]
    pub fn averaging(mut self, decay: f32) -> Self {
        self.average = Some(WeightAverage { decay, values: self.model.values.clone() });
        self
    }

    /// Multiplies the loss of an example by the public weight of its class, before its gradient is clipped, so that the
    /// sensitivity is the same. For softmax cross-entropy: an example whose class has no weight, or one that is not finite,
    /// contributes zero.
    ///
    /// # Example
    /// ```
    /// use veilgrad_events::{ClipNorm, NoiseMultiplier, PublicCount};
    /// use veilgrad_nn::{
    ///     Clipping, Layer, Loss, Model, Performance, Schedule, Sgd, Trainer, TrainingPlan,
    /// };
    ///
    /// let clipping = Clipping::Flat(ClipNorm::new(1.0)?);
    /// let plan = TrainingPlan::new(clipping, NoiseMultiplier::new(1.0)?, PublicCount::new(10.0)?);
    /// let (model, loss) = (Model::new(&[2], [Layer::linear(2)], 1)?, Loss::SoftmaxCrossEntropy);
    /// let (rate, performance) = (Schedule::Constant(0.5), Performance::default());
    /// // The second class is rare.
    /// let trainer = Trainer::new(model, loss, plan, Sgd::plain(), rate, performance)?
    ///     .class_weights(&[1.0, 5.0]);
    /// # assert_eq!(trainer.rounds(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn class_weights(mut self, weights: &[f32]) -> Self {
        self.setup.class_weights = weights.into();
        self
    }

    /// Sets the momentum of the running statistics of batch norm; 0.1 by default.
    #[must_use]
    pub const fn statistics_momentum(mut self, momentum: f32) -> Self {
        self.momentum = momentum;
        self
    }

    /// The model with its current weights.
    pub const fn model(&self) -> &Model {
        &self.model
    }

    /// The model with averaged weights, if [`averaging`](Self::averaging) was asked for.
    pub fn averaged_model(&self) -> Option<Model> {
        let values = self.average.as_ref()?.values.clone();
        Some(Model { values, ..self.model.clone() })
    }

    /// Runs one charged round.
    ///
    /// # Errors
    /// When the operating system gives no randomness or the permit is for another round; never because of a record.
    pub fn round<R: Records>(
        &mut self,
        permit: RoundPermit,
        sampler: &mut impl Sampler,
        records: &R,
    ) -> Result<Progress, TrainError> {
        self.step(records, |engine, backend| engine.round(backend, permit, sampler))
    }

    /// Runs one charged round with given noise, for tests, in a run that is stamped INSECURE.
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

    /// Adds up this process's records of a round that another process charged and will release, with the weights of that
    /// process.
    ///
    /// # Errors
    /// When the model or the plan is another one. Never because of a record.
    pub fn part<R: Records>(
        &mut self,
        mut round: SharedRound,
        ids: Zeroizing<Vec<u64>>,
        records: &R,
    ) -> Result<PartialSum, TrainError> {
        let lengths = |values: &[Vec<f32>]| values.iter().map(Vec::len).collect::<Vec<_>>();
        if lengths(&round.weights) != lengths(&self.model.values) {
            return Err(TrainError::DifferentPlan);
        }
        self.model.values = std::mem::take(&mut round.weights);
        self.prepared.prepare(&self.model);
        let (model, prepared, setup) = (&self.model, &self.prepared, &self.setup);
        self.engine.part(&Native { model, prepared, records, setup }, &round, ids)
    }

    /// Shares the records of all later rounds with other processes. No result depends on their number.
    pub fn share_with(&mut self, peers: Box<dyn Peers>) {
        self.engine.share_with(peers);
    }

    /// Charges and runs `rounds` rounds in blocks of `block`, and calls `show` after each. Rounds that a
    /// crash leaves unused stay charged; 32 is a good block size. For checkpoints, and to stop early, see
    /// [`drive`](crate::drive).
    ///
    /// # Errors
    /// When the budget does not cover the next block (no data is read for it), or anything fails.
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

    /// A checkpoint: weights, running statistics, optimizer state, averaged weights, clip norms, quantile
    /// estimates, the number of rounds, and the head of the ledger.
    ///
    /// # Guarantee
    /// All of it is released or public; see [`Checkpoint`].
    pub fn checkpoint(&self, head: Option<&Head>) -> Checkpoint {
        let Checkpoint { mut arrays } = self.engine.checkpoint(head);
        for (name, shape, values) in self.model.parameters() {
            arrays.insert(format!("model/{name}"), shape, values);
        }
        if let Some(average) = self.averaged_model() {
            for (name, shape, values) in average.parameters() {
                arrays.insert(format!("average/{name}"), shape, values);
            }
        }
        for (name, values) in self.optimizer.state() {
            arrays.insert(format!("optimizer/{name}"), &[values.len()], &values);
        }
        arrays.texts.insert("optimizer".to_owned(), self.optimizer.kind());
        Checkpoint { arrays }
    }

    /// Writes a [`checkpoint`](Self::checkpoint).
    ///
    /// # Errors
    /// When the file cannot be written; an older checkpoint at `path` is then unchanged.
    pub fn save(&self, path: &Path, head: Option<&Head>) -> Result<(), FileError> {
        self.checkpoint(head).write(path)
    }

    /// Resumes from a checkpoint of the same model, plan and kind of optimizer. Clip norms that no quantile
    /// adapts must equal the plan's. If the checkpoint names a ledger, that ledger must be passed and must contain
    /// everything that was charged when the checkpoint was written.
    ///
    /// # Errors
    /// When the file cannot be read or does not fit, or the ledger is another one or was rolled back.
    /// The trainer is then unchanged.
    pub fn resume(&mut self, path: &Path, ledger: Option<&dyn History>) -> Result<(), FileError> {
        self.restore(&Checkpoint::read(path, ledger)?)
    }

    /// Resumes from a checkpoint that was already read and verified.
    ///
    /// # Errors
    /// When it does not fit. The trainer is then unchanged.
    pub fn restore(&mut self, checkpoint: &Checkpoint) -> Result<(), FileError> {
        let arrays = &checkpoint.arrays;
        let mut model = self.model.clone();
        arrays.load("model/", &mut model)?;
        if checkpoint.text("optimizer").is_none_or(|kind| *kind != self.optimizer.kind()) {
            return Err(FileError::Format("'optimizer' is missing or wrong".to_owned()));
        }
        let average = self.average.as_ref().map(|average| {
            let mut averaged = model.clone();
            arrays.load("average/", &mut averaged)?;
            Ok::<_, FileError>(WeightAverage { values: averaged.values, ..*average })
        });
        let average = average.transpose()?;
        let state = arrays.arrays.iter().filter_map(|(name, (_, values))| {
            Some((name.strip_prefix("optimizer/")?.to_owned(), values.clone()))
        });
        let position = self.engine.position(checkpoint)?;
        self.optimizer.restore(state.collect(), &model)?;
        self.engine.go_on_from(position);
        (self.model, self.average) = (model, average);
        Ok(())
    }

    /// Runs a round; then updates the weights, the running statistics and the averaged weights.
    fn step<R: Records>(
        &mut self,
        records: &R,
        round: impl FnOnce(&mut Engine<Memory>, &Native<'_>) -> Result<Progress, TrainError>,
    ) -> Result<Progress, TrainError> {
        self.prepared.prepare(&self.model);
        let (model, prepared, setup) = (&self.model, &self.prepared, &self.setup);
        let backend = Native { model, prepared, records, setup };
        let rate = self.schedule.rate(self.engine.rounds());
        let progress = round(&mut self.engine, &backend)?;
        if let Some(estimates) = self.engine.estimates() {
            self.optimizer.step(Weights(&mut self.model), estimates, rate, progress.round);
            self.model.update_statistics(estimates, self.momentum);
        }
        if let Some(average) = &mut self.average {
            average.add(&self.model, progress.round);
        }
        Ok(progress)
    }
}

/// Gives access to the engine: the header of a run, the round to charge, the plan, the released estimates.
impl<O> Deref for Trainer<O> {
    type Target = Engine<Memory>;

    fn deref(&self) -> &Engine<Memory> {
        &self.engine
    }
}

impl<O: Optimizer, R: Records> Trains<R> for Trainer<O> {
    type Memory = Memory;

    fn engine(&self) -> &Engine<Memory> {
        &self.engine
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
