//! Preconditioning rounds before training. Each is charged separately and saved as soon as it is released.

use veilgrad_events::{LedgerError, Run};
use veilgrad_ledger::DatasetLedger;
use veilgrad_nn::{DriveError, Hooks, Preconditioning, TrainError};

use super::data::TrainingRecords;
use super::hooks::RunHooks;
use super::job::Job;
use crate::team::Leader;

/// Runs the remaining preconditioning rounds, if any, and whitens the inputs. False if it was interrupted. A round that was
/// charged but not saved stays charged, and is charged again when the run is resumed. Other processes, if there are any, share
/// the records.
pub(crate) fn run(
    job: &mut Job,
    run: &mut Run<DatasetLedger>,
    records: &mut TrainingRecords,
    hooks: &mut RunHooks,
    leader: Option<&dyn Leader>,
) -> Result<bool, DriveError> {
    let Some(mut phase) = job.precondition.take() else { return Ok(true) };
    let mut finished = Ok(true);
    if !phase.is_done() {
        finished = run_rounds(job, &mut phase, run, records, hooks, leader);
    }
    let whitening = phase.whitening();
    hooks.precondition = phase.to_bytes().ok();
    job.precondition = Some(phase);
    if let (Ok(true), Some(whitening)) = (&finished, whitening) {
        records.whiten(&whitening, job.threads);
    }
    finished
}

/// Charges and runs the remaining rounds; false if it was interrupted.
fn run_rounds(
    job: &Job,
    phase: &mut Preconditioning,
    run: &mut Run<DatasetLedger>,
    records: &TrainingRecords,
    hooks: &mut RunHooks,
    leader: Option<&dyn Leader>,
) -> Result<bool, DriveError> {
    save(job, phase, hooks)?;
    while let Some(round) = phase.event()? {
        let permit = loop {
            if hooks.stop() {
                return Ok(false);
            }
            match run.reserve(&round, 1) {
                Err(LedgerError::Busy(why)) if hooks.wait(&why) => {}
                permits => break permits.map_err(TrainError::Ledger)?.next(),
            }
        };
        let Some(permit) = permit else {
            let none = LedgerError::Refused("no permit was granted".to_owned());
            return Err(TrainError::Ledger(none).into());
        };
        hooks.charged(run);
        phase.round_with(permit, records, leader.map(Leader::peers))?;
        save(job, phase, hooks)?;
    }
    Ok(true)
}

/// Saves a checkpoint of the phase.
fn save(job: &Job, phase: &Preconditioning, hooks: &mut RunHooks) -> Result<(), DriveError> {
    let saved = phase.to_bytes().and_then(|bytes| {
        hooks.precondition = Some(bytes);
        hooks.save(&job.trainer)
    });
    saved.map_err(|cause| DriveError::Checkpoint {
        round: 0,
        saved: None,
        cause: Box::new(cause),
        train: None,
    })
}
