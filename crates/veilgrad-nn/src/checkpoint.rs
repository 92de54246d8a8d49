//! Checkpoints: enough to go on, and nothing to go back with.

use std::path::Path;

use veilgrad_events::ClipNorm;
use veilgrad_ledger::{Hash, Head, Ledger};

use crate::file::{Arrays, FileError};
use crate::{Optimizer, Trainer};

const FORMAT: &str = "veilgrad-checkpoint-1";

impl<O: Optimizer> Trainer<O> {
    /// Writes weights, running statistics, optimizer state, averages, clip norms, the number of
    /// rounds, and where the ledger's chain ends.
    ///
    /// # Guarantee
    /// All of it is released or public. There is no randomness in it: whoever goes on from a
    /// checkpoint draws new samples and new noise and charges new rounds, so that an old checkpoint
    /// cannot undo a charge or repeat noise.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn save(&self, path: &Path, head: Option<&Head>) -> Result<(), FileError> {
        let mut arrays = Arrays::default();
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
        let mut text = |name: String, value: String| arrays.texts.insert(name, value);
        text("format".to_owned(), FORMAT.to_owned());
        text("round".to_owned(), self.round.to_string());
        for group in &self.groups {
            if let Some(clip) = self.plan.clip_norm(group) {
                text(format!("clip/{group}"), format!("{:016x}", clip.get().to_bits()));
            }
        }
        if let Some(head) = head {
            text("ledger".to_owned(), head.id.clone());
            text("sequence".to_owned(), head.sequence.to_string());
            text("hash".to_owned(), head.hash.to_string());
        }
        arrays.write(path)
    }

    /// Goes on from a checkpoint. A checkpoint that names a ledger needs that ledger, and the ledger
    /// must contain what was charged when the checkpoint was written.
    ///
    /// # Errors
    /// When the file cannot be read or does not fit, or the ledger is another one or was rolled back.
    pub fn resume(&mut self, path: &Path, ledger: Option<&Ledger>) -> Result<(), FileError> {
        let arrays = Arrays::read(path)?;
        let text = |name: &str| arrays.texts.get(name);
        let wrong = |name: &str| FileError::Format(format!("'{name}' is missing or wrong"));
        if text("format").is_none_or(|format| format != FORMAT) {
            return Err(wrong("format"));
        }
        match (text("ledger"), ledger) {
            (None, None) => {}
            (Some(id), Some(ledger)) => {
                let sequence = text("sequence").and_then(|sequence| sequence.parse().ok());
                let hash = text("hash").and_then(|hash| hash.parse::<Hash>().ok());
                let (sequence, hash) = sequence.zip(hash).ok_or_else(|| wrong("hash"))?;
                ledger.contains(&Head { id: id.clone(), sequence, hash })?;
            }
            _ => return Err(wrong("ledger")),
        }
        let round = text("round").and_then(|round| round.parse().ok());
        let round = round.ok_or_else(|| wrong("round"))?;
        let mut model = self.model.clone();
        arrays.load("model/", &mut model)?;
        let mut plan = self.plan.clone();
        for group in &self.groups {
            let name = format!("clip/{group}");
            let bits = text(&name).and_then(|bits| u64::from_str_radix(bits, 16).ok());
            let clip = bits.and_then(|bits| ClipNorm::new(f64::from_bits(bits)).ok());
            let clip = clip.ok_or_else(|| wrong(&name))?;
            plan.set_clip_norm(group, clip).map_err(|_| wrong(&name))?;
        }
        if let Some(average) = &mut self.average {
            let mut averaged = model.clone();
            arrays.load("average/", &mut averaged)?;
            average.values = averaged.values;
        }
        let state = arrays.arrays.iter().filter_map(|(name, (_, values))| {
            Some((name.strip_prefix("optimizer/")?.to_owned(), values.clone()))
        });
        self.optimizer.restore(state.collect());
        (self.model, self.plan, self.round) = (model, plan, round);
        Ok(())
    }
}
