//! Rounds of a Burn model: permit, sample, tiles, certified sums, release.

use std::marker::PhantomData;

use burn::module::Module;
use burn::tensor::Tensor;
use veilgrad_events::{
    Adjacency, LedgerError, Numerics, RecordUnit, Round, RoundPermit, RunHeader,
};
use veilgrad_mechanism::{
    ClippedSum, Estimates, Metric, Noise, NoiseError, PlanError, ReleaseError, Released, RoundPlan,
    Sample, SampleError, Sampler, SumError,
};
use veilgrad_nn::adapter::{Book, Rows};
use veilgrad_nn::{Contribution, Loss, Unit};

use crate::inspect::{Parameters, Tracked};
use crate::per_record::{PerRecordModel, Stack, Stacked, losses, outputs};
use crate::quiet::quietly;
use crate::tape::Tape;
use crate::tile::{Shape, Tile, judge};
use crate::{Outcome, Records, TrainingPlan, isolation};

/// Training was refused or stopped. No message depends on a record.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrainError {
    /// A layer that private training cannot use.
    #[error("private training cannot use {layer}: {instead}")]
    Layer {
        /// Where it is and what it is.
        layer: String,
        /// What to use instead.
        instead: String,
    },
    /// A private layer cannot be used in this way.
    #[error("private training cannot use a layer in this way: {0}")]
    Refused(String),
    /// No parameter is trained, or the losses do not depend on any.
    #[error(
        "nothing is trained: no parameter of the model requires a gradient, or the loss depends on none"
    )]
    NothingTrained,
    /// Records are not independent in the model or in the loss.
    #[error(
        "a record changes what the model makes of another record; look for operations along the first \
         axis (ordinary batch norm, averages over the batch, records that are not first)"
    )]
    CrossRecord,
    /// The model fails on made-up examples.
    #[error("the model fails on made-up examples")]
    MadeUp,
    /// There is not one loss per example.
    #[error("{losses} losses for {examples} examples: the outcome must have one loss for each")]
    Losses {
        /// Examples in the batch.
        examples: usize,
        /// Losses of the outcome.
        losses: usize,
    },
    /// An example does not have the targets that the loss needs.
    #[error(
        "an example has {targets} targets, but the loss needs {needed} for the model's outputs"
    )]
    Targets {
        /// What the loss needs.
        needed: usize,
        /// What there is.
        targets: usize,
    },
    /// A metric of the plan has no values.
    #[error("the outcome needs one value of metric '{0}' for each example")]
    Metric(String),
    /// The model has statistics to release, or none, and the plan says otherwise.
    #[error(
        "a model with private batch norm needs TrainingPlan::statistics and private layers throughout, \
         and no other model may have statistics"
    )]
    Statistics,
    /// The model is on a device that private layers do not run on.
    #[error(
        "private layers run on the devices flex and ndarray with autodiff; use one of them, or \
             TrainingPlan::materialised"
    )]
    Device,
    /// The model is on several devices, on none, or not on one with autodiff.
    #[error("the model must be on one device with autodiff: Device::flex().autodiff()")]
    NotOneDevice,
    /// Burn models do not train locally.
    #[error("local steps of users are not supported here; use Contribution::Average")]
    LocalSteps,
    /// The run was opened for other records or other numerics than these; see [`Trainer::header`].
    #[error("the run's record is {run}, the plan's {plan}")]
    Unit {
        /// What a record is in the ledger.
        run: RecordUnit,
        /// What a record is in training.
        plan: RecordUnit,
    },
    /// The model is another one than that of the plan.
    #[error("the model has other parameters than the one that the plan was made for")]
    OtherModel,
    /// The groups do not make a plan for the model.
    #[error(transparent)]
    Training(#[from] veilgrad_nn::TrainError),
    /// The groups do not make a plan.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The operating system has no randomness.
    #[error(transparent)]
    Noise(#[from] NoiseError),
    /// The sample could not be drawn.
    #[error(transparent)]
    Sample(#[from] SampleError),
    /// A sum was refused.
    #[error(transparent)]
    Sum(#[from] SumError),
    /// A release was refused.
    #[error(transparent)]
    Release(#[from] ReleaseError),
    /// The ledger did not take a charge.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
}

/// Private rounds of a Burn model.
///
/// # Guarantee
/// What a record adds to the sums of a round is a vector of integers with a certified norm. Where
/// [`numerics`](Trainer::numerics) is exact, it is a function of this record and of public state alone;
/// otherwise the run's header says `unverified`, and so does every statement about the run.
///
/// Exact are, on the devices flex and ndarray and without randomness of the model's own:
/// - models whose types keep records apart, with losses of `veilgrad-nn`, many records at once:
///   [`per_record`](Trainer::per_record);
/// - any model and loss that sees one record at a time: [`with_tile`](Trainer::with_tile) with a tile of 1,
///   or [`TrainingPlan::materialised`].
///
/// A model or loss of several records at once that is written with Burn's tensors is unverified. That a
/// closure remembers nothing from one call to the next is the caller's duty. A record
/// that makes no sense (not finite, out of range, a panic on the way) contributes zero to every group,
/// and nothing tells.
pub struct Trainer<M, R, F> {
    pub(crate) plan: RoundPlan,
    pub(crate) groups: Vec<String>,
    pub(crate) round: u64,
    pub(crate) shape: Shape,
    training: TrainingPlan,
    records: R,
    loss: F,
    numerics: Numerics,
    /// None while a round is under way: sums of a round that failed must not enter another.
    book: Option<Book>,
    tape: Tape,
    model: PhantomData<fn(&M)>,
}

/// The losses of models that keep records apart by their types.
type PerRecordLosses<M> = fn(&M, Stack) -> Outcome;

impl<M, R, N> Trainer<M, Stacked<R, N>, PerRecordLosses<M>>
where
    M: PerRecordModel,
    R: Records,
    N: Fn(&R::Example) -> (Vec<f32>, Vec<f32>),
{
    /// Trains a model that keeps records apart by its types, many records at once, exactly. `example` turns one
    /// example into its inputs and targets; [`Records::batch`] is not used. Metrics of the plan may be
    /// `loss` and `accuracy`.
    ///
    /// # Errors
    /// As for [`new`](Trainer::new), and when there are not as many targets as the loss needs.
    pub fn per_record(
        model: &M,
        records: R,
        training: TrainingPlan,
        loss: Loss,
        example: N,
    ) -> Result<Self, TrainError> {
        Self::per_record_with_tile(model, records, training, loss, example, 0)
    }

    /// As [`per_record`](Self::per_record), with `tile` examples at once; 0 lets the model decide. The sums are the same for any.
    ///
    /// # Errors
    /// As for [`per_record`](Self::per_record).
    pub fn per_record_with_tile(
        model: &M,
        records: R,
        training: TrainingPlan,
        loss: Loss,
        example: N,
        tile: usize,
    ) -> Result<Self, TrainError> {
        let stacked = Stacked::new(records, example, loss);
        let trainer = Self::build(model, stacked, training, losses, tile, true)?;
        let device = trainer.shape.device.clone();
        let (inputs, targets) = trainer.records.widths();
        let [_, width] = outputs(model, Tensor::zeros([1, inputs], &device)).dims();
        let needed = loss.targets(width);
        match needed == targets {
            true => Ok(trainer),
            false => Err(TrainError::Targets { needed, targets }),
        }
    }
}

impl<M: Module, R: Records, F: Fn(&M, R::Batch) -> Outcome> Trainer<M, R, F> {
    /// Examples that go through a model at once, at most, unless told otherwise.
    const TILE: usize = 128;
    /// Examples of the first, made-up tile, from which the model decides.
    const FIRST: usize = 32;
    /// Bytes of gradients that are held for them, about, unless told otherwise.
    const HELD: usize = 64 << 20;

    /// Checks a model and a plan: layers by name, losses, and on made-up examples whether the model
    /// keeps records apart. `loss` gives the losses of a batch, one for each example.
    ///
    /// # Errors
    /// Says what cannot be used, and what to use instead.
    pub fn new(model: &M, records: R, training: TrainingPlan, loss: F) -> Result<Self, TrainError> {
        Self::with_tile(model, records, training, loss, 0)
    }

    /// As [`new`](Trainer::new), with `tile` examples at once: more are faster and need more memory. 0 lets
    /// the model decide. With 1, the model sees each record alone: slower, and exact.
    ///
    /// # Errors
    /// As for [`new`](Trainer::new).
    pub fn with_tile(
        model: &M,
        records: R,
        training: TrainingPlan,
        loss: F,
        tile: usize,
    ) -> Result<Self, TrainError> {
        Self::build(model, records, training, loss, tile, false)
    }

    /// `apart` says that records are apart by construction, however many are in a tile.
    fn build(
        model: &M,
        records: R,
        training: TrainingPlan,
        loss: F,
        tile: usize,
        apart: bool,
    ) -> Result<Self, TrainError> {
        let recorded = !training.is_materialised();
        if let Unit::User { contribution: Contribution::LocalSgd { .. }, .. } = training.unit {
            return Err(TrainError::LocalSteps);
        }
        let parameters = Parameters::of(model, recorded)?;
        let has = !parameters.statistics.is_empty();
        if has != training.queries.has_statistics() || has && !recorded {
            return Err(TrainError::Statistics);
        }
        let devices = model.devices();
        let [device] = &devices[..] else { return Err(TrainError::NotOneDevice) };
        let device = device.clone().autodiff();
        if recorded && !isolation::is_known(&device) {
            return Err(TrainError::Device);
        }
        let of = |parameters: &[crate::inspect::Parameter]| -> Vec<(String, usize)> {
            parameters.iter().map(|p| (p.name.clone(), p.length)).collect()
        };
        let (trained, statistics) = (of(&parameters.trained), of(&parameters.statistics));
        let (plan, groups) = training.queries.resolve(&trained, &statistics, recorded)?;
        let metrics = training.queries.metrics().cloned().collect();
        let first = if tile == 0 { Self::FIRST } else { tile };
        let capacity = if recorded { first } else { 1 };
        let (partial, vectors) = (false, Vec::new());
        let mut shape = Shape { device, parameters, metrics, capacity, partial, vectors };
        let numerics = if recorded {
            shape.explore(model, &records, &loss)?;
            if tile == 0 {
                let dense = shape.vectors.iter().filter(|vector| vector.outer.is_none());
                let held = dense.map(|vector| 4 * vector.length).sum::<usize>().max(1);
                shape.capacity = (Self::HELD / held).clamp(8, Self::TILE) / 8 * 8;
                shape.explore(model, &records, &loss)?;
            }
            let found = isolation::check(&mut shape, model, &records, &loss)?;
            // What made-up records show is no proof for others.
            if apart || shape.capacity == 1 { found } else { Numerics::Unverified }
        } else {
            let batch = records.batch(vec![records.made_up(0)], &shape.device);
            judge(&loss(model, batch), &shape.metrics, 1)?;
            isolation::of_single_records(model, &shape.device)
        };
        Ok(Self {
            plan,
            groups,
            round: 0,
            shape,
            training,
            records,
            loss,
            numerics,
            book: None,
            tape: Tape::default(),
            model: PhantomData,
        })
    }

    /// Whether a record's contribution is a function of this record alone: the header of a run says the same.
    #[must_use]
    pub const fn numerics(&self) -> Numerics {
        self.numerics
    }

    /// The header of a run: what a record is, which datasets are neighbours, and whether isolation is
    /// established.
    #[must_use]
    pub fn header(&self, adjacency: Adjacency) -> RunHeader {
        let mut header = RunHeader::new(self.training.unit.record(), adjacency);
        header.numerics = self.numerics;
        header
    }

    /// The round as the ledger is to charge it.
    ///
    /// # Errors
    /// When a clip norm has become so extreme that its event cannot be written.
    pub fn event(&self, sampler: &impl Sampler) -> Result<Round, TrainError> {
        Ok(self.plan.round(sampler)?)
    }

    /// The mechanism's plan: groups, clip norms, noise.
    #[must_use]
    pub const fn plan(&self) -> &RoundPlan {
        &self.plan
    }

    /// The number of rounds so far, of all runs.
    #[must_use]
    pub const fn rounds(&self) -> u64 {
        self.round
    }

    /// The private estimate of a metric in what a round released.
    #[must_use]
    pub fn metric(&self, name: &str, released: &Released<Estimates>) -> Option<Vec<f64>> {
        let metric = self.shape.metrics.iter().find(|metric| metric.vector().0 == name)?;
        metric.decode(released)
    }

    /// Runs one charged round and adapts clip norms to what it released.
    ///
    /// # Errors
    /// When randomness fails, the permit is for another round or the model is another one; never
    /// because of a record.
    pub fn round(
        &mut self,
        model: &M,
        permit: RoundPermit,
        sampler: &mut impl Sampler,
    ) -> Result<Released<Estimates>, TrainError> {
        // Ahead of the data.
        let noise = Noise::draw_on(&self.plan, 1)?;
        self.round_with(model, permit, sampler, noise)
    }

    /// Runs one charged round with noise for tests, in a run that is stamped INSECURE.
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
    ) -> Result<Released<Estimates>, TrainError> {
        self.round_with(model, permit, sampler, noise)
    }

    fn round_with(
        &mut self,
        model: &M,
        permit: RoundPermit,
        sampler: &mut impl Sampler,
        noise: Noise,
    ) -> Result<Released<Estimates>, TrainError> {
        let (run, plan) = (permit.unit(), self.training.unit.record());
        if run != plan {
            return Err(TrainError::Unit { run, plan });
        }
        let recorded = !self.training.is_materialised();
        let found = Parameters::of(model, recorded)?;
        if found.all() != self.shape.parameters.all() {
            return Err(TrainError::OtherModel);
        }
        let sample = Sample::draw(permit, sampler, self.records.count())?;
        let mut sum = sample.begin(&self.plan);
        sum.cover(noise)?;
        if recorded {
            self.add_recorded(model, &sample, &mut sum)?;
        } else {
            for id in sample.ids() {
                self.add_single(model, id, &mut sum)?;
            }
        }
        let released = sum.release_covered(sample)?;
        self.round = self.round.saturating_add(1);
        self.plan.adapt(&released)?;
        Ok(released)
    }

    /// Adds the sample, tile by tile.
    fn add_recorded(
        &mut self,
        model: &M,
        sample: &Sample,
        sum: &mut ClippedSum,
    ) -> Result<(), TrainError> {
        let vectors = &self.shape.vectors[..self.shape.parameters.trained.len()];
        let book = self.book.take();
        let mut book = book.unwrap_or_else(|| Book::new(vectors, &self.plan, &self.groups));
        let (mut tape, ids) = (std::mem::take(&mut self.tape), sample.ids().collect::<Vec<u64>>());
        for ids in ids.chunks(self.shape.capacity) {
            match self.tile(model, ids, &mut tape) {
                Some(tile) => self.add_tile(&tile, ids.len(), &mut book, sum)?,
                // Some record does not fit. Alone, it spoils no other, and the others come to the
                // same: what comes from a record does not depend on its neighbours.
                None => {
                    for id in ids {
                        if let Some(tile) = self.tile(model, &[*id], &mut tape) {
                            self.add_tile(&tile, 1, &mut book, sum)?;
                        }
                    }
                }
            }
        }
        book.hand_over(sum)?;
        tape.turn_over();
        (self.book, self.tape) = (Some(book), tape);
        Ok(())
    }

    /// A tile of records, filled up with made-up ones.
    fn tile(&self, model: &M, ids: &[u64], tape: &mut Tape) -> Option<Tile> {
        let padding = 0..(self.shape.size(ids.len()) - ids.len()) as u64;
        let examples = quietly(|| {
            let read = ids.iter().map(|id| self.records.read(*id, 0));
            read.chain(padding.map(|number| self.records.made_up(number))).collect()
        })?;
        self.shape.run(model, &self.records, &self.loss, examples, tape)
    }

    /// Adds the first `count` records of a tile; the others are made up.
    fn add_tile(
        &self,
        tile: &Tile,
        count: usize,
        book: &mut Book,
        sum: &mut ClippedSum,
    ) -> Result<(), TrainError> {
        let trained = self.shape.parameters.trained.len();
        let statistics = trained..trained + self.shape.parameters.statistics.len();
        let mut norms = Vec::new();
        for row in 0..count {
            let statistics: Vec<&[f32]> =
                statistics.clone().map(|index| tile.gradients.gradient(index, row)).collect();
            // A record counts in all groups or in none.
            let sound = statistics.iter().all(|values| values.iter().all(|v| v.is_finite()));
            if !sound || !tile.losses[row].is_finite() {
                continue;
            }
            book.add(&self.plan, &tile.gradients, row, &mut norms);
            let metrics = self.shape.metrics.iter().zip(&tile.metrics);
            let encoded: Vec<Vec<f32>> =
                metrics.map(|(metric, values)| metric.encode(f64::from(values[row]))).collect();
            let mut vectors = vec![&[][..]; trained];
            vectors.extend(statistics);
            vectors.extend(encoded.iter().map(Vec::as_slice));
            let norms = self.groups.iter().zip(&norms);
            let norm = |name: &str| norms.clone().find(|(n, _)| *n == name).map(|(_, norm)| *norm);
            sum.add_beside(&vectors, 1.0, norm)?;
        }
        Ok(())
    }

    /// Adds one record by the gradient of its average loss.
    fn add_single(&self, model: &M, id: u64, sum: &mut ClippedSum) -> Result<(), TrainError> {
        let trained = &self.shape.parameters.trained;
        let most = match self.training.unit {
            Unit::Microbatch { examples } | Unit::User { examples, .. } => examples.get() as usize,
            _ => 1,
        };
        let gradients = quietly(|| {
            let count = self.records.examples(id).min(most);
            if count == 0 {
                return None;
            }
            let examples = (0..count).map(|example| self.records.read(id, example)).collect();
            let outcome = (self.loss)(model, self.records.batch(examples, &self.shape.device));
            let (losses, metrics) = judge(&outcome, &self.shape.metrics, count).ok()?;
            let sound = losses.iter().all(|loss| loss.is_finite());
            let mut gradients = outcome.sum().div_scalar(count as f32).backward();
            let gradients = Tracked::of(model, &mut gradients, trained);
            sound.then_some((gradients, metrics))
        });
        let Some(Some((mut gradients, metrics))) = gradients else { return Ok(()) };
        for (gradient, parameter) in gradients.iter_mut().zip(trained) {
            // The loss may not depend on all parameters.
            gradient.resize(parameter.length, 0.0);
        }
        let encode = |(metric, values): (&Metric, &Vec<f32>)| {
            let mut average = vec![0.0; metric.vector().1];
            for value in values {
                for (sum, part) in average.iter_mut().zip(metric.encode(f64::from(*value))) {
                    *sum += part / values.len() as f32;
                }
            }
            average
        };
        gradients.extend(self.shape.metrics.iter().zip(&metrics).map(encode));
        sum.add(&gradients.iter().map(Vec::as_slice).collect::<Vec<_>>())?;
        Ok(())
    }
}
