//! Opening a durable run on a dataset with a budget, in one call.

use std::sync::Arc;

use veilgrad_events::{Budget, Pricing, Run, RunHeader};

use crate::dataset::DatasetLedger;
use crate::entry::Entry;
use crate::error::StoreError;
use crate::ledger::Ledger;
use crate::location::Location;
use crate::options::Options;
use crate::state::check_budget;

/// What opening a dataset created. With a new budget nothing that was spent elsewhere counts, so tell the user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Begun {
    /// Nothing: the dataset had a budget.
    Nothing,
    /// The dataset, in an existing ledger.
    Budget,
    /// The ledger and the dataset.
    Ledger,
}

impl Ledger {
    /// Opens or creates the ledger, and creates the dataset with this budget if it does not exist. An
    /// existing budget is not changed.
    ///
    /// # Errors
    /// As for [`open_or_create`](Self::open_or_create) and [`create_budget`](Self::create_budget).
    pub fn open_dataset(
        location: impl Into<Location>,
        options: Options,
        budget: &Budget,
    ) -> Result<(Self, Begun), StoreError> {
        check_budget(budget).map_err(StoreError::Refused)?;
        let location = location.into();
        let existed = Self::exists(&location, &options)?;
        let mut ledger = Self::open_or_create(location, options)?;
        let mut begun = Begun::Nothing;
        ledger.append(
            |ledger| {
                if ledger.state().datasets.contains_key(&budget.dataset) {
                    return Ok(Vec::new());
                }
                begun = if existed { Begun::Budget } else { Begun::Ledger };
                Ok(vec![Entry::Budget { budget: budget.clone() }])
            },
            None,
        )?;
        Ok((ledger, begun))
    }

    /// Opens a durable run: opens or creates the ledger, creates the dataset with this budget if it does not exist, and
    /// opens the run. If its header declares a plan, the plan must fit the budget.
    ///
    /// # Errors
    /// As for [`open_dataset`](Self::open_dataset) and [`Run::open`], and when the dataset's budget is for
    /// another delta.
    ///
    /// # Example
    /// ```
    /// use std::sync::Arc;
    /// use veilgrad_accounting::Tightest;
    /// use veilgrad_events::{
    ///     Adjacency, Budget, Delta, Epsilon, Mode, RecordUnit, RunHeader,
    /// };
    /// use veilgrad_ledger::{Begun, Ledger, Options};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let path = std::env::temp_dir().join(format!("veilgrad-open-run-{}.db", std::process::id()));
    /// let (unit, adjacency) = (RecordUnit::Example, Adjacency::AddRemove);
    /// let budget = Budget {
    ///     dataset: "mnist".to_owned(),
    ///     unit,
    ///     adjacency,
    ///     delta: Delta::new(1e-5)?,
    ///     epsilon: Epsilon::new(3.0)?,
    ///     mode: Mode::Planned,
    ///     order: None,
    /// };
    /// let header = RunHeader::new(unit, adjacency);
    /// let options = Options::default();
    /// let (run, begun) = Ledger::open_run(&path, options, &budget, header, Arc::new(Tightest))?;
    /// assert_eq!(begun, Begun::Ledger); // nothing was spent on this data before
    /// run.close()?;
    /// # std::fs::remove_file(Ledger::anchor_path(&path))?;
    /// # std::fs::remove_file(&path)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn open_run(
        location: impl Into<Location>,
        options: Options,
        budget: &Budget,
        header: RunHeader,
        pricing: Arc<dyn Pricing + Send + Sync>,
    ) -> Result<(Run<DatasetLedger>, Begun), StoreError> {
        let (ledger, begun) = Self::open_dataset(location, options, budget)?;
        let known = ledger.state().datasets.get(&budget.dataset).map(|known| known.budget.delta);
        if let Some(delta) = known.filter(|delta| *delta != budget.delta) {
            return Err(StoreError::Refused(format!(
                "the budget of {:?} is for delta {:e}, not {:e}",
                budget.dataset,
                delta.get(),
                budget.delta.get()
            )));
        }
        let run = Run::open(ledger.dataset(&budget.dataset, pricing)?, header)?;
        Ok((run, begun))
    }
}
