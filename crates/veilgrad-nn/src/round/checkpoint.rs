//! Checkpoints: the state that resuming needs, without anything that could undo a charge.

use std::path::Path;

use veilgrad_events::{ClipNorm, Hash, Head, History};
use veilgrad_mechanism::{Adapted, CanaryLane, RoundPlan};

use super::engine::Engine;
use crate::file::{Arrays, FileError, write_private};

const FORMAT: &str = "veilgrad-checkpoint-2";
/// The entry with the coins and scores of canaries.
const CANARIES: &str = "canaries";

/// A training checkpoint: the number of rounds, clip norms, quantile estimates, and the head of the ledger. The trainer
/// adds weights and optimizer state.
///
/// # Guarantee
/// It holds no randomness except the coins of canaries, if the run is audited. A resumed run draws new samples and
/// new noise and charges new rounds, so an old checkpoint cannot undo a charge or repeat noise.
///
/// # Example
/// ```
/// use veilgrad_events::{ClipNorm, NoiseMultiplier, PublicCount};
/// use veilgrad_nn::{
///     Checkpoint, Clipping, Layer, Loss, Model, Performance, Schedule, Sgd, Trainer, TrainingPlan,
/// };
///
/// let clipping = Clipping::Flat(ClipNorm::new(1.0)?);
/// let plan = TrainingPlan::new(clipping, NoiseMultiplier::new(1.0)?, PublicCount::new(10.0)?);
/// let (model, loss) = (Model::new(&[2], [Layer::linear(2)], 1)?, Loss::SoftmaxCrossEntropy);
/// let (rate, performance) = (Schedule::Constant(0.5), Performance::default());
/// let mut trainer = Trainer::new(model, loss, plan, Sgd::plain(), rate, performance)?;
///
/// let path = std::env::temp_dir().join(format!("veilgrad-checkpoint-{}", std::process::id()));
/// trainer.save(&path, None)?; // with the head of a ledger, if the run has one
/// let checkpoint = Checkpoint::read(&path, None)?;
/// assert_eq!(checkpoint.round()?, 0);
/// trainer.restore(&checkpoint)?;
/// # std::fs::remove_file(path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Checkpoint {
    pub(crate) arrays: Arrays,
}

/// A checkpoint that is not yet compared with its ledger: training cannot resume from it.
pub struct UnverifiedCheckpoint {
    checkpoint: Checkpoint,
    head: Option<Head>,
}

impl UnverifiedCheckpoint {
    /// Reads a checkpoint without its ledger.
    ///
    /// # Errors
    /// When the file cannot be read, or is not a checkpoint.
    pub fn read(path: &Path) -> Result<Self, FileError> {
        let checkpoint = Checkpoint { arrays: Arrays::from_bytes(&std::fs::read(path)?)? };
        let text = |name: &str| checkpoint.text(name);
        if text("format").is_none_or(|format| format != FORMAT) {
            return Err(wrong("format"));
        }
        let head = match text("ledger") {
            None => None,
            Some(id) => {
                let sequence = text("sequence").and_then(|sequence| sequence.parse().ok());
                let hash = text("hash").and_then(|hash| hash.parse::<Hash>().ok());
                let (sequence, hash) = sequence.zip(hash).ok_or_else(|| wrong("hash"))?;
                Some(Head { id: id.to_owned(), sequence, hash })
            }
        };
        Ok(Self { checkpoint, head })
    }

    /// The head of the ledger when the checkpoint was written, if it names a ledger.
    #[must_use]
    pub const fn head(&self) -> Option<&Head> {
        self.head.as_ref()
    }

    /// The number of rounds run so far.
    ///
    /// # Errors
    /// When it is missing.
    pub fn round(&self) -> Result<u64, FileError> {
        self.checkpoint.round()
    }

    /// The bytes that were inserted under a name.
    ///
    /// # Errors
    /// When there are none.
    pub fn bytes(&self, name: &str) -> Result<&[u8], FileError> {
        self.checkpoint.bytes(name)
    }

    /// The checkpoint, if its ledger contains everything that was charged when it was written. A checkpoint without a
    /// ledger needs `None`.
    ///
    /// # Errors
    /// When the ledger is missing, is another one, or was rolled back.
    pub fn verify(self, ledger: Option<&dyn History>) -> Result<Checkpoint, FileError> {
        match (&self.head, ledger) {
            (None, None) => {}
            (Some(head), Some(ledger)) => ledger.contains(head)?,
            _ => return Err(wrong("ledger")),
        }
        Ok(self.checkpoint)
    }
}

fn wrong(name: &str) -> FileError {
    FileError::Format(format!("'{name}' is missing or wrong"))
}

impl Checkpoint {
    /// Adds bytes under a name. They must be released or public.
    pub fn insert(&mut self, name: &str, bytes: Vec<u8>) {
        self.arrays.bytes.insert(name.to_owned(), bytes);
    }

    /// The bytes that were inserted under a name.
    ///
    /// # Errors
    /// When there are none.
    pub fn bytes(&self, name: &str) -> Result<&[u8], FileError> {
        self.arrays.bytes.get(name).map(Vec::as_slice).ok_or_else(|| wrong(name))
    }

    /// Writes the checkpoint atomically, readable by its owner alone.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), FileError> {
        Ok(write_private(path, &self.arrays.to_bytes()?)?)
    }

    /// Reads a checkpoint. If it names a ledger, that ledger must be passed and must contain everything that
    /// was charged when the checkpoint was written.
    ///
    /// # Errors
    /// When the file cannot be read, or the ledger is another one or was rolled back.
    pub fn read(path: &Path, ledger: Option<&dyn History>) -> Result<Self, FileError> {
        UnverifiedCheckpoint::read(path)?.verify(ledger)
    }

    /// The number of rounds run so far.
    ///
    /// # Errors
    /// When it is missing.
    pub fn round(&self) -> Result<u64, FileError> {
        let round = self.text("round").and_then(|round| round.parse().ok());
        round.ok_or_else(|| wrong("round"))
    }

    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        self.arrays.texts.get(name).map(String::as_str)
    }
}

impl<M: Send> Engine<M> {
    /// A checkpoint: the number of rounds, clip norms, quantile estimates, and the head of the ledger. The trainer adds
    /// weights and optimizer state.
    #[must_use]
    pub fn checkpoint(&self, head: Option<&Head>) -> Checkpoint {
        let mut arrays = Arrays::default();
        let mut text = |name: &str, value: String| arrays.texts.insert(name.to_owned(), value);
        text("format", FORMAT.to_owned());
        text("round", self.round.to_string());
        let bits = |value: f64| format!("{:016x}", value.to_bits());
        for group in &self.groups {
            if let Some(clip) = self.plan.clip_norm(group) {
                text(&format!("clip/{group}"), bits(clip.get()));
            }
        }
        let adapted = self.plan.adapted();
        text("adapted", adapted.rounds.to_string());
        for (group, estimate) in adapted.estimates {
            text(&format!("quantile/{group}"), bits(estimate));
        }
        if let Some(head) = head {
            text("ledger", head.id.clone());
            text("sequence", head.sequence.to_string());
            text("hash", head.hash.to_string());
        }
        let mut checkpoint = Checkpoint { arrays };
        if let Some(lane) = &self.lane {
            checkpoint.insert(CANARIES, lane.to_bytes());
        }
        checkpoint
    }

    /// The engine's state in a checkpoint of the same plan. Clip norms that no quantile adapts must equal the plan's.
    ///
    /// # Errors
    /// When the checkpoint does not fit the plan.
    pub fn position(&self, checkpoint: &Checkpoint) -> Result<Position, FileError> {
        let number = |bits: &str| u64::from_str_radix(bits, 16).ok().map(f64::from_bits);
        let rounds = checkpoint.text("adapted").and_then(|rounds| rounds.parse().ok());
        let rounds = rounds.ok_or_else(|| wrong("adapted"))?;
        let texts = checkpoint.arrays.texts.iter();
        let quantiles = texts.filter_map(|(n, bits)| Some((n.strip_prefix("quantile/")?, bits)));
        let estimates = quantiles
            .map(|(name, bits)| Ok((name.to_owned(), number(bits).ok_or_else(|| wrong(name))?)))
            .collect::<Result<_, FileError>>()?;
        let mut plan = self.plan.clone();
        plan.restore(&Adapted { rounds, estimates })
            .map_err(|error| FileError::Format(error.to_string()))?;
        for group in &self.groups {
            let name = format!("clip/{group}");
            let clip = checkpoint.text(&name).and_then(number);
            if clip.is_none() || clip != plan.clip_norm(group).map(ClipNorm::get) {
                return Err(wrong(&name));
            }
        }
        let lane = match self.training().canaries {
            0 => None,
            count => {
                let lane = CanaryLane::from_bytes(checkpoint.bytes(CANARIES)?, count);
                Some(lane.ok_or_else(|| wrong(CANARIES))?)
            }
        };
        Ok(Position { round: checkpoint.round()?, plan, lane })
    }

    /// Continues from a state that [`position`](Self::position) returned.
    pub fn go_on_from(&mut self, position: Position) {
        (self.round, self.plan, self.lane) = (position.round, position.plan, position.lane);
        self.estimates = None;
    }
}

/// The state of an [`Engine`] in a checkpoint.
pub struct Position {
    round: u64,
    plan: RoundPlan,
    lane: Option<CanaryLane>,
}
