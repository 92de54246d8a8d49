//! Checkpoints of native models.

use std::path::Path;

use veilgrad_events::{Head, History};

use crate::file::FileError;
use crate::optimizer::{Optimizer, WeightAverage};
use crate::round::Checkpoint;
use crate::trainer::Trainer;

impl<O: Optimizer> Trainer<O> {
    /// Weights, running statistics, optimizer state, averages, clip norms, quantile estimates, the number
    /// of rounds, and where the ledger's chain ends.
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
    /// When the file cannot be written; what was there before is there still.
    pub fn save(&self, path: &Path, head: Option<&Head>) -> Result<(), FileError> {
        self.checkpoint(head).write(path)
    }

    /// Resumes from a checkpoint of the same model, plan and kind of optimizer: clip norms that no
    /// quantile adapts must be the plan's own. A checkpoint that names a ledger needs that ledger, and the ledger
    /// must contain what was charged when the checkpoint was written.
    ///
    /// # Errors
    /// When the file cannot be read or does not fit, or the ledger is another one or was rolled back.
    /// Nothing was changed then.
    pub fn resume(&mut self, path: &Path, ledger: Option<&dyn History>) -> Result<(), FileError> {
        self.restore(&Checkpoint::read(path, ledger)?)
    }

    /// The same for a checkpoint that was read before.
    ///
    /// # Errors
    /// When it does not fit. Nothing was changed then.
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
}
