//! The rounds of a dataset, run by run, as its ledger has them.

use veilgrad_accounting::Tightest;
use veilgrad_events::{Event, Mode, Rounds, RoundsFile, run_length};
use veilgrad_ledger::{Dataset, Entry, Ledger, StoreError};

use crate::error::Error;

/// What every run charged, in the order in which runs began.
pub(crate) fn charged_runs(ledger: &Ledger, name: &str) -> Result<Vec<Vec<Rounds>>, Error> {
    let mut runs: Vec<(String, Vec<Rounds>)> = Vec::new();
    ledger.visit_rows(&mut |_, bytes, _| {
        let entry = Entry::from_bytes(bytes).map_err(StoreError::Damaged)?.original();
        if let Entry::Run { dataset, run, event: Event::Reserve(reservation), .. } = entry
            && dataset == name
        {
            match runs.iter_mut().find(|(id, _)| *id == run) {
                Some((_, rounds)) => rounds.push(reservation.charge),
                None => runs.push((run, vec![reservation.charge])),
            }
        }
        Ok(())
    })?;
    Ok(runs.into_iter().map(|(_, rounds)| run_length(rounds)).collect())
}

/// A file from which `veilgrad account` computes the same epsilon as from the ledger.
pub(crate) fn file(ledger: &Ledger, dataset: &Dataset) -> Result<RoundsFile, Error> {
    let name = &dataset.budget.dataset;
    if let Some(reason) = dataset.insecure() {
        return Err(Error::Usage(format!(
            "a run of {name:?} protects nothing ({reason}), which rounds alone would not say"
        )));
    }
    if dataset.runs.values().any(|run| !run.apart.is_empty()) {
        return Err(Error::Usage(format!(
            "a run of {name:?} was charged by two branches of the ledger, which rounds alone would not say; account \
             for the ledger itself"
        )));
    }
    let terms = dataset.terms(&Tightest);
    let planned = terms.mode == Mode::Planned && dataset.runs.values().all(|run| run.is_planned());
    let (mode, order) = if planned { (Mode::Planned, None) } else { (Mode::Adaptive, terms.order) };
    Ok(RoundsFile { mode: Some(mode), order, runs: charged_runs(ledger, name)? })
}
