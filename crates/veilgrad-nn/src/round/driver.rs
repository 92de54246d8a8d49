//! The training loop: charge a block of rounds, run it, report progress, save checkpoints, stop cleanly.

use std::num::NonZeroU64;
use std::time::{Duration, Instant};

use veilgrad_events::{LedgerError, LedgerStore, Permits, RoundPermit, Run};
use veilgrad_mechanism::Sampler;

use super::engine::{Engine, Progress};
use super::error::TrainError;
use crate::file::FileError;

/// Saving checkpoints takes at most about 1/50 of the time.
const SAVING_SHARE: u32 = 50;
/// The most blocks between two checkpoints. A checkpoint costs about three syncs and a block costs one, so even
/// with the shortest rounds checkpoints cause less than 5 % of the syncs.
const MOST_BLOCKS: u64 = 64;

/// How many rounds [`drive`] runs, and how often it charges and saves. Nothing here changes a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// How many rounds to run.
    pub rounds: u64,
    /// How many rounds are charged at once: the most that a crash can waste. 32 is a good size.
    pub block: u64,
    /// Rounds between checkpoints. `None` saves as often as takes about 2 % of the time, and after 64
    /// blocks at the latest.
    pub checkpoint_rounds: Option<NonZeroU64>,
}

/// A trainer that [`drive`] can run, on data of type `D`.
pub trait Trains<D: ?Sized> {
    /// The working memory of one thread of the backend.
    type Memory: Send;

    /// The engine that runs its rounds.
    fn engine(&self) -> &Engine<Self::Memory>;

    /// Runs one charged round.
    ///
    /// # Errors
    /// Never because of a record.
    fn round(
        &mut self,
        permit: RoundPermit,
        sampler: &mut impl Sampler,
        data: &D,
    ) -> Result<Progress, TrainError>;
}

/// Callbacks of [`drive`]. By default they do nothing, never stop, and do not wait for a busy ledger.
pub trait Hooks<T, S: LedgerStore> {
    /// Called after a block was charged.
    fn charged(&mut self, _run: &Run<S>) {}

    /// Called after each round.
    fn show(&mut self, _trainer: &T, _progress: &Progress) {}

    /// Saves a checkpoint; called when one is due.
    ///
    /// # Errors
    /// When it cannot be written; the previous checkpoint must then be intact.
    fn save(&mut self, _trainer: &T) -> Result<(), FileError> {
        Ok(())
    }

    /// Whether to stop before the next round.
    fn stop(&mut self) -> bool {
        false
    }

    /// Whether to try again after a charge failed because the ledger is busy.
    fn wait(&mut self, _why: &str) -> bool {
        false
    }
}

/// Why [`drive`] stopped before all rounds were done.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DriveError {
    /// Training failed, or the ledger refused a charge. A checkpoint of all rounds so far was saved.
    #[error(transparent)]
    Train(#[from] TrainError),
    /// A checkpoint could not be saved.
    #[error(
        "{}the checkpoint of round {round} could not be written ({cause}); {}",
        train.as_ref().map_or(String::new(), |error| format!("{error}; and ")),
        match saved {
            Some(round) => format!("the one of round {round} is whole"),
            None => "no earlier one was written".to_owned(),
        }
    )]
    Checkpoint {
        /// The round that was not saved.
        round: u64,
        /// The round of the checkpoint that is still there, if this driver saved one.
        saved: Option<u64>,
        /// Why it could not be written.
        cause: Box<FileError>,
        /// The error that had stopped training before, if there was one.
        train: Option<Box<TrainError>>,
    },
}

/// The state of one call of [`drive`].
struct Driver<'a, D: ?Sized, T, S: LedgerStore, P, H> {
    trainer: &'a mut T,
    run: &'a mut Run<S>,
    sampler: &'a mut P,
    data: &'a D,
    pace: &'a Pace,
    hooks: &'a mut H,
    rounds_left: u64,
    /// The round of the last checkpoint, when it was saved, and how long that took.
    saved: Option<u64>,
    saved_at: Instant,
    saving_took: Duration,
}

impl<D, T, S, P, H> Driver<'_, D, T, S, P, H>
where
    D: ?Sized,
    T: Trains<D>,
    S: LedgerStore,
    P: Sampler,
    H: Hooks<T, S>,
{
    fn is_due(&self) -> bool {
        let since = self.trainer.engine().rounds().saturating_sub(self.saved.unwrap_or(0));
        let most = self.pace.block.max(1).saturating_mul(MOST_BLOCKS);
        match self.pace.checkpoint_rounds {
            Some(every) => since >= every.get(),
            None => since >= most || self.saved_at.elapsed() >= self.saving_took * SAVING_SHARE,
        }
    }

    /// Saves a checkpoint, unless no round was run since the last one.
    fn save(&mut self) -> Result<(), DriveError> {
        let (round, saved) = (self.trainer.engine().rounds(), self.saved);
        if saved == Some(round) {
            return Ok(());
        }
        let start = Instant::now();
        self.hooks.save(self.trainer).map_err(|cause| {
            let cause = Box::new(cause);
            DriveError::Checkpoint { round, saved, cause, train: None }
        })?;
        (self.saved, self.saved_at, self.saving_took) =
            (Some(round), Instant::now(), start.elapsed());
        Ok(())
    }

    /// Charges a block. If the ledger is busy, saves a checkpoint and tries again while the hooks say so. `None` if the
    /// hooks want to stop.
    fn reserve(&mut self) -> Result<Option<Permits>, DriveError> {
        let round = self.trainer.engine().event(self.sampler)?;
        let block = self.rounds_left.min(self.pace.block.max(1));
        while !self.hooks.stop() {
            match self.run.reserve(&round, block) {
                Err(LedgerError::Busy(why)) => {
                    self.save()?;
                    if !self.hooks.wait(&why) {
                        return Err(TrainError::Ledger(LedgerError::Busy(why)).into());
                    }
                }
                other => {
                    let permits = other.map_err(TrainError::Ledger)?;
                    self.hooks.charged(self.run);
                    return Ok(Some(permits));
                }
            }
        }
        Ok(None)
    }

    /// Charges and runs blocks until all rounds are done or the hooks want to stop.
    fn run(&mut self) -> Result<(), DriveError> {
        while self.rounds_left > 0 {
            let Some(permits) = self.reserve()? else { return Ok(()) };
            for permit in permits {
                let progress = self.trainer.round(permit, self.sampler, self.data)?;
                self.rounds_left -= 1;
                self.hooks.show(self.trainer, &progress);
                if self.is_due() {
                    self.save()?;
                }
                if self.hooks.stop() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}

/// The training loop: charges and runs rounds block by block, until all are done or the hooks want to
/// stop; returns how many are left. Saves a checkpoint before the first charge, at the given pace, and at
/// the end, also after an error.
///
/// Rounds that were charged but not run stay charged.
///
/// # Errors
/// When there are more rounds than correlated noise was planned for (nothing is charged then), the budget does not cover the next
/// block (no data is read for it), the ledger stays busy, or anything fails.
///
/// # Example
/// ```
/// use veilgrad_events::{Adjacency, ClipNorm, MemoryLedger, NoiseMultiplier, PublicCount, Run};
/// use veilgrad_mechanism::AllRecords;
/// use veilgrad_nn::{
///     Clipping, Hooks, InMemory, Layer, Loss, Model, Pace, Performance, Progress, Schedule, Sgd,
///     Trainer, TrainingPlan, drive,
/// };
///
/// /// Stops after the second round.
/// struct StopAfterTwo(u64);
///
/// impl<T> Hooks<T, MemoryLedger> for StopAfterTwo {
///     fn show(&mut self, _: &T, progress: &Progress) {
///         self.0 = progress.round;
///     }
///
///     fn stop(&mut self) -> bool {
///         self.0 == 2
///     }
/// }
///
/// let clipping = Clipping::Flat(ClipNorm::new(1.0)?);
/// let plan = TrainingPlan::new(clipping, NoiseMultiplier::new(1.0)?, PublicCount::new(10.0)?);
/// let (model, loss) = (Model::new(&[2], [Layer::linear(2)], 1)?, Loss::SoftmaxCrossEntropy);
/// let (rate, performance) = (Schedule::Constant(0.5), Performance::default());
/// let mut trainer = Trainer::new(model, loss, plan, Sgd::plain(), rate, performance)?;
/// let mut run = Run::open(MemoryLedger::new(), trainer.header(Adjacency::AddRemove))?;
/// let records = InMemory::new(vec![0.5; 20], 2, vec![1.0; 10], 1);
/// let pace = Pace { rounds: 8, block: 4, checkpoint_rounds: None };
/// let hooks = &mut StopAfterTwo(0);
/// let left = drive(&mut trainer, &mut run, &mut AllRecords, &records, &pace, hooks)?;
/// assert_eq!((trainer.rounds(), left), (2, 6));
/// assert_eq!(run.store().rounds()[0].count, 4); // the rest of the block stays charged
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn drive<D: ?Sized, T: Trains<D>, S: LedgerStore>(
    trainer: &mut T,
    run: &mut Run<S>,
    sampler: &mut impl Sampler,
    data: &D,
    pace: &Pace,
    hooks: &mut impl Hooks<T, S>,
) -> Result<u64, DriveError> {
    trainer.engine().check_rounds(pace.rounds)?;
    let mut driver = Driver {
        trainer,
        run,
        sampler,
        data,
        pace,
        hooks,
        rounds_left: pace.rounds,
        saved: None,
        saved_at: Instant::now(),
        saving_took: Duration::ZERO,
    };
    driver.save()?;
    let ended = driver.run();
    // Does not retry a checkpoint that could not be written.
    if let Err(error @ DriveError::Checkpoint { .. }) = ended {
        return Err(error);
    }
    match (ended, driver.save()) {
        (
            Err(DriveError::Train(error)),
            Err(DriveError::Checkpoint { round, saved, cause, .. }),
        ) => {
            let train = Some(Box::new(error));
            Err(DriveError::Checkpoint { round, saved, cause, train })
        }
        (ended, saved) => ended.and(saved).map(|()| driver.rounds_left),
    }
}

/// Runs [`drive`] without checkpoints; calls `show` after each round, and stops only after the last.
///
/// # Errors
/// As for [`drive`].
pub fn drive_shown<D: ?Sized, T: Trains<D>, S: LedgerStore>(
    trainer: &mut T,
    run: &mut Run<S>,
    sampler: &mut impl Sampler,
    data: &D,
    pace: &Pace,
    show: impl FnMut(&T, &Progress),
) -> Result<(), TrainError> {
    match drive(trainer, run, sampler, data, pace, &mut ShowOnly(show)) {
        Ok(_) => Ok(()),
        Err(DriveError::Train(error)) => Err(error),
        // `ShowOnly` writes nothing, so this cannot happen.
        Err(DriveError::Checkpoint { train, .. }) => train.map_or(Ok(()), |error| Err(*error)),
    }
}

/// Hooks that report rounds and save nothing.
struct ShowOnly<F>(F);

impl<T, S: LedgerStore, F: FnMut(&T, &Progress)> Hooks<T, S> for ShowOnly<F> {
    fn show(&mut self, trainer: &T, progress: &Progress) {
        (self.0)(trainer, progress);
    }
}
