//! Checkpoints of Burn models.

use std::path::Path;

use burn::module::Module;
use burn::store::ModuleRecord;
use burn::tensor::Bytes;
use veilgrad_events::{Head, History};
use veilgrad_nn::{Checkpoint, FileError};

use crate::{Outcome, PrivateOptimizer, Records, Trainer};

fn format(error: impl std::fmt::Display) -> FileError {
    FileError::Format(error.to_string())
}

impl<M, R, F> Trainer<M, R, F>
where
    M: Module + Sync,
    R: Records + Sync,
    F: Fn(&M, R::Batch) -> Outcome + Sync,
{
    /// Saves a checkpoint: model, optimizer state, clip norms, quantile estimates, the number of rounds, and
    /// the head of the ledger.
    ///
    /// # Guarantee
    /// All of it is released or public if the model and the optimizer are; see [`Checkpoint`].
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn save(
        &self,
        path: &Path,
        model: &M,
        optimizer: &PrivateOptimizer,
        head: Option<&Head>,
    ) -> Result<(), FileError> {
        let mut checkpoint = self.engine.checkpoint(head);
        let record = model.clone().into_record().into_bytes().map_err(format)?;
        checkpoint.insert("model", record.to_vec());
        let state = optimizer.optimizer.into_bytes().map_err(format)?;
        checkpoint.insert("optimizer", state.to_vec());
        checkpoint.write(path)
    }

    /// Resumes from a checkpoint of the same model, plan and optimizer. If it names a ledger, that ledger
    /// must be passed and must contain everything that was charged when the checkpoint was written.
    ///
    /// # Errors
    /// When the file cannot be read or does not fit, or the ledger is another one or was rolled back.
    /// The trainer is then unchanged.
    pub fn resume(
        &mut self,
        path: &Path,
        model: M,
        optimizer: PrivateOptimizer,
        ledger: Option<&dyn History>,
    ) -> Result<(M, PrivateOptimizer), FileError> {
        let checkpoint = Checkpoint::read(path, ledger)?;
        let position = self.engine.position(&checkpoint)?;
        let bytes =
            |name| Ok::<_, FileError>(Bytes::from_bytes_vec(checkpoint.bytes(name)?.to_vec()));
        let record = ModuleRecord::from_bytes(bytes("model")?).map_err(format)?;
        let model = model.try_load_record(record).map_err(format)?;
        let state = bytes("optimizer")?;
        let restored = optimizer.optimizer.clone().from_bytes(state).map_err(format)?;
        let parameters = crate::inspect::Parameters::of(&model, false).map_err(format)?;
        self.engine.go_on_from(position);
        self.shape.parameters = parameters;
        Ok((model, PrivateOptimizer { optimizer: restored, ..optimizer }))
    }
}
