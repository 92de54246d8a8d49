//! Checkpoints: all that resuming needs, and nothing that could undo a charge.

use std::path::Path;

use veilgrad_events::{ClipNorm, Hash, Head, History};
use veilgrad_mechanism::{Adapted, CanaryLane, RoundPlan};

use super::engine::Engine;
use crate::file::{Arrays, FileError, write_private};

const FORMAT: &str = "veilgrad-checkpoint-2";
/// The name of coins and scores of canaries.
const CANARIES: &str = "canaries";

/// What every checkpoint of training has: the number of rounds, clip norms, quantile estimates, and
/// where the ledger's chain ends. The trainer adds weights and optimizer.
///
/// # Guarantee
/// There is no randomness in it but the coins of canaries, if the run is audited: a resumed run draws new samples and
/// new noise and charges new rounds, so that an old checkpoint cannot undo a charge or repeat noise.
pub struct Checkpoint {
    pub(crate) arrays: Arrays,
}

/// A checkpoint that was read but not compared with its ledger: nothing can be resumed from it yet.
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

    /// Where the ledger's chain ended when it was written, if it names a ledger.
    #[must_use]
    pub const fn head(&self) -> Option<&Head> {
        self.head.as_ref()
    }

    /// The number of rounds so far.
    ///
    /// # Errors
    /// When it is missing.
    pub fn round(&self) -> Result<u64, FileError> {
        self.checkpoint.round()
    }

    /// Bytes that were added.
    ///
    /// # Errors
    /// When there are none of this name.
    pub fn bytes(&self, name: &str) -> Result<&[u8], FileError> {
        self.checkpoint.bytes(name)
    }

    /// The checkpoint, if its ledger contains what was charged when it was written.
    ///
    /// # Errors
    /// When the ledger is missing, another one, or was rolled back.
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

    /// Bytes that were added.
    ///
    /// # Errors
    /// When there are none of this name.
    pub fn bytes(&self, name: &str) -> Result<&[u8], FileError> {
        self.arrays.bytes.get(name).map(Vec::as_slice).ok_or_else(|| wrong(name))
    }

    /// Writes a file that is there as a whole or not at all, readable by its owner alone.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), FileError> {
        Ok(write_private(path, &self.arrays.to_bytes()?)?)
    }

    /// Reads a checkpoint. One that names a ledger needs that ledger, and the ledger must contain what
    /// was charged when the checkpoint was written.
    ///
    /// # Errors
    /// When the file cannot be read, or the ledger is another one or was rolled back.
    pub fn read(path: &Path, ledger: Option<&dyn History>) -> Result<Self, FileError> {
        UnverifiedCheckpoint::read(path)?.verify(ledger)
    }

    /// The number of rounds so far.
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
    /// Where training stands: the number of rounds, clip norms, quantile estimates, and where the ledger's chain
    /// ends. The trainer adds weights and optimizer.
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

    /// Where a checkpoint of the same plan stands: clip norms that no quantile adapts must be the plan's own.
    ///
    /// # Errors
    /// When it does not fit.
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

    /// Goes on from there.
    pub fn go_on_from(&mut self, position: Position) {
        (self.round, self.plan, self.lane) = (position.round, position.plan, position.lane);
        self.estimates = None;
    }
}

/// Where training stood.
pub struct Position {
    round: u64,
    plan: RoundPlan,
    lane: Option<CanaryLane>,
}
