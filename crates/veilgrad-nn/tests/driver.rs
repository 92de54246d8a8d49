//! The training loop: when it saves checkpoints, waits for the ledger, and stops.

use std::num::NonZeroU64;

use crate::common::{examples, in_memory, plan, trainer};
use veilgrad_events::{Adjacency, Event, LedgerError, LedgerStore, MemoryLedger, Run, SampleRate};
use veilgrad_mechanism::PoissonSampler;
use veilgrad_nn::{
    DriveError, FileError, Hooks, Pace, Performance, Progress, Trainer, write_private,
};

/// A ledger that fails some charges.
struct Failing {
    ledger: MemoryLedger,
    charges: usize,
    /// The first charge that fails, how many fail, and their error.
    errors: (usize, usize, LedgerError),
}

impl LedgerStore for Failing {
    fn append(&mut self, events: &[Event]) -> Result<(), LedgerError> {
        if matches!(events, [Event::Reserve(_), ..]) {
            let (first, count, error) = &self.errors;
            self.charges += 1;
            if (*first..first + count).contains(&(self.charges - 1)) {
                return Err(error.clone());
            }
        }
        self.ledger.append(events)
    }

    fn visit(&self, visitor: &mut dyn FnMut(&Event)) -> Result<(), LedgerError> {
        self.ledger.visit(visitor)
    }
}

/// Hooks that record their calls.
#[derive(Default)]
struct Recorder {
    charged: usize,
    shown: Vec<u64>,
    saved: Vec<u64>,
    waited: usize,
    patience: usize,
    stop_after: Option<u64>,
    /// From this round on, the disk is full.
    full: Option<u64>,
}

impl<O, S: LedgerStore> Hooks<Trainer<O>, S> for Recorder
where
    Trainer<O>: Rounds,
{
    fn charged(&mut self, _: &Run<S>) {
        self.charged += 1;
    }

    fn show(&mut self, _: &Trainer<O>, progress: &Progress) {
        self.shown.push(progress.round);
    }

    fn save(&mut self, trainer: &Trainer<O>) -> Result<(), FileError> {
        let round = trainer.number();
        if self.full.is_some_and(|full| round >= full) {
            return Err(FileError::Io(std::io::ErrorKind::StorageFull.into()));
        }
        self.saved.push(round);
        Ok(())
    }

    fn stop(&mut self) -> bool {
        self.stop_after.is_some_and(|round| self.shown.last() >= Some(&round))
    }

    fn wait(&mut self, _: &str) -> bool {
        self.waited += 1;
        self.waited <= self.patience
    }
}

trait Rounds {
    fn number(&self) -> u64;
}

impl<O: veilgrad_nn::Optimizer> Rounds for Trainer<O> {
    fn number(&self) -> u64 {
        self.rounds()
    }
}

fn drive(
    pace: Pace,
    errors: (usize, usize, LedgerError),
    hooks: &mut Recorder,
) -> Result<u64, DriveError> {
    let data = in_memory(&examples(20, 3));
    let mut trainer = trainer(plan(0.3, 8.0), Performance { threads: 1, tile: 8 });
    let store = Failing { ledger: MemoryLedger::new(), charges: 0, errors };
    let mut run = Run::open(store, trainer.header(Adjacency::AddRemove)).unwrap();
    let mut sampler = PoissonSampler::new(SampleRate::new(0.2).unwrap());
    veilgrad_nn::drive(&mut trainer, &mut run, &mut sampler, &data, &pace, hooks)
}

fn never() -> (usize, usize, LedgerError) {
    (0, 0, LedgerError::Poisoned)
}

fn pace(rounds: u64, block: u64, every: u64) -> Pace {
    Pace { rounds, block, checkpoint_rounds: NonZeroU64::new(every) }
}

#[test]
fn checkpoints_are_saved_before_the_first_charge_every_so_many_rounds_and_at_the_end() {
    let mut hooks = Recorder::default();
    assert_eq!(drive(pace(10, 4, 3), never(), &mut hooks).unwrap(), 0);
    assert_eq!(hooks.saved, [0, 3, 6, 9, 10]);
    assert_eq!(hooks.shown, (1..=10).collect::<Vec<_>>());
    assert_eq!(hooks.charged, 3);
    // With the default pace, after 64 blocks at the latest.
    let mut hooks = Recorder::default();
    drive(pace(200, 1, 0), never(), &mut hooks).unwrap();
    let longest = hooks.saved.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap();
    assert!(longest <= 64 && hooks.saved.last() == Some(&200), "{:?}", hooks.saved);
}

#[test]
fn whatever_the_ledger_answers_all_rounds_so_far_are_saved_first() {
    for error in [
        LedgerError::BudgetExhausted("spent".to_owned()),
        LedgerError::Refused("disk full".to_owned()),
        LedgerError::Busy("held".to_owned()),
    ] {
        let mut hooks = Recorder::default();
        let outcome = drive(pace(12, 4, 1000), (2, 99, error.clone()), &mut hooks);
        let Err(DriveError::Train(veilgrad_nn::TrainError::Ledger(found))) = outcome else {
            panic!("{error}: {outcome:?}");
        };
        assert_eq!(found, error);
        assert_eq!(hooks.saved, [0, 8], "{error}");
    }
}

#[test]
fn a_busy_ledger_is_waited_for_and_no_round_is_lost() {
    let mut hooks = Recorder { patience: 3, ..Recorder::default() };
    let busy = (1, 3, LedgerError::Busy("held".to_owned()));
    assert_eq!(drive(pace(12, 4, 1000), busy, &mut hooks).unwrap(), 0);
    assert_eq!((hooks.waited, hooks.charged), (3, 3));
    // Before it waited, it saved a checkpoint.
    assert_eq!(hooks.saved, [0, 4, 12]);
}

#[test]
fn a_checkpoint_that_cannot_be_written_stops_the_run_and_names_the_one_that_is_whole() {
    let mut hooks = Recorder { full: Some(6), ..Recorder::default() };
    let error = drive(pace(12, 4, 3), never(), &mut hooks).unwrap_err();
    assert!(matches!(error, DriveError::Checkpoint { round: 6, saved: Some(3), .. }), "{error:?}");
    let text = error.to_string();
    assert!(text.contains("round 6 could not") && text.contains("round 3 is whole"), "{text}");
    assert_eq!(hooks.shown.last(), Some(&6));
    // If the first checkpoint cannot be written, nothing is charged.
    let mut hooks = Recorder { full: Some(0), ..Recorder::default() };
    assert!(drive(pace(12, 4, 3), never(), &mut hooks).is_err());
    assert_eq!(hooks.charged, 0);
    // The message also says why training had stopped.
    let mut hooks = Recorder { full: Some(8), ..Recorder::default() };
    let spent = (2, 99, LedgerError::BudgetExhausted("spent".to_owned()));
    let text = drive(pace(12, 4, 1000), spent, &mut hooks).unwrap_err().to_string();
    assert!(text.contains("spent") && text.contains("round 8 could not"), "{text}");
}

#[test]
fn a_run_that_is_stopped_is_saved_and_says_what_is_left() {
    let mut hooks = Recorder { stop_after: Some(5), ..Recorder::default() };
    assert_eq!(drive(pace(12, 4, 1000), never(), &mut hooks).unwrap(), 7);
    assert_eq!(hooks.saved, [0, 5]);
    // It also stops while it waits for a busy ledger.
    let mut hooks = Recorder { stop_after: Some(0), patience: 1000, ..Recorder::default() };
    let busy = (0, usize::MAX / 2, LedgerError::Busy("held".to_owned()));
    hooks.shown.push(0);
    assert_eq!(drive(pace(12, 4, 1000), busy, &mut hooks).unwrap(), 12);
}

#[test]
fn a_file_that_cannot_be_written_leaves_what_was_there_and_nothing_else() {
    let place = std::env::temp_dir().join(format!("veilgrad-nn-partial-{}", std::process::id()));
    std::fs::create_dir_all(place.join("taken")).unwrap();
    // The name is that of a directory: renaming fails.
    assert!(write_private(&place.join("taken"), b"bytes").is_err());
    let left: Vec<_> = std::fs::read_dir(&place).unwrap().map(|e| e.unwrap().file_name()).collect();
    std::fs::remove_dir_all(&place).unwrap();
    assert_eq!(left, ["taken"]);
}
