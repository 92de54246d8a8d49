//! Accountants for more than one record or one run: what `--group` and `--tuning-mean-runs` ask for.

use std::num::NonZeroU64;

use serde_json::{Map, Value, json};
use veilgrad_accounting::{Accountant, ByTriangle, Composition, Tuned, Tuning, Unsupported};
use veilgrad_events::{Adjacency, Folded};

use crate::argument::View;
use crate::error::Error;

/// The chosen accountant, with the adjustments of the command line.
pub(crate) struct Adjusted {
    accountant: &'static dyn Accountant,
    pub(crate) group: NonZeroU64,
    tuning: Option<(Tuning, String)>,
}

impl Adjusted {
    pub(crate) fn new(view: &View) -> Result<Self, Error> {
        let of_mean = |mean| {
            let distribution = view.tuning_distribution;
            Ok::<_, Error>((distribution.tuning(mean)?, distribution.name()))
        };
        let tuning = view.tuning_mean_runs.map(of_mean).transpose()?;
        Ok(Self { accountant: view.accountant(), group: view.group, tuning })
    }

    /// The rounds for neighbours that differ in the whole group, and whether their analysis is for one record instead, because
    /// there is none of groups.
    pub(crate) fn compose<R: IntoIterator<Item = Folded>>(
        &self,
        runs: impl Fn() -> Vec<R>,
        adjacency: Adjacency,
    ) -> Result<(Composition, bool), Unsupported> {
        let of_group = Composition::of_group(runs(), adjacency, self.group);
        match (of_group, self.group.get()) {
            // A choice among runs needs the profile of the whole group.
            (Err(error), 2..) if self.is_tuned() => Err(error),
            (Err(_), 2..) => Ok((Composition::of_runs(runs(), adjacency)?, true)),
            (found, _) => Ok((found?, false)),
        }
    }

    /// Calls `with` with the accountant, and whether it accounts for more than its composition says.
    pub(crate) fn with<T>(
        &self,
        one_record: bool,
        with: impl FnOnce(&dyn Accountant, bool) -> T,
    ) -> T {
        let (inner, records) = (self.accountant, self.group);
        let tuned = self.tuning.as_ref().map(|(tuning, _)| Tuned { inner, tuning: *tuning });
        let inner = tuned.as_ref().map_or(inner, |tuned| tuned as &dyn Accountant);
        // A tuning needs the profile of what its composition is for, so going from neighbour to neighbour comes last.
        match one_record {
            true => with(&ByTriangle { inner, records }, true),
            false => with(inner, tuned.is_some()),
        }
    }

    pub(crate) const fn is_tuned(&self) -> bool {
        self.tuning.is_some()
    }

    /// Adds the adjustments to the answer of a command.
    pub(crate) fn describe(&self, document: &mut Map<String, Value>) {
        document.insert("group".to_owned(), json!(self.group));
        let tuning = self
            .tuning
            .as_ref()
            .map(|(tuning, name)| json!({"mean_runs": tuning.mean_runs(), "distribution": name}));
        document.insert("tuning".to_owned(), json!(tuning));
    }

    /// Whether the answer is for something else than one record and one run.
    pub(crate) const fn is_adjusted(&self) -> bool {
        self.is_tuned() || self.group.get() > 1
    }

    /// What the answer is for, in sentences; none for one record and one run.
    pub(crate) fn scope(&self) -> Vec<String> {
        let mut sentences = Vec::new();
        if self.group.get() > 1 {
            sentences.push(format!(
                "All numbers are for a person with {} records; somebody with one record is protected better.",
                self.group
            ));
        }
        if let Some((tuning, name)) = &self.tuning {
            let mean = veilgrad_accounting::display::runs(tuning.mean_runs());
            sentences.push(format!(
                "They are for `veilgrad tune`: of a secret number of runs, on average {mean} ({name}), only the best is released."
            ));
        }
        sentences
    }

    /// Who may be in the data.
    pub(crate) fn subjects(&self) -> String {
        match self.group.get() {
            1 => "records".to_owned(),
            records => format!("people with {records} records"),
        }
    }

    /// The adjustments as rows of a table.
    pub(crate) fn rows(&self) -> String {
        let mut rows = Vec::new();
        if self.group.get() > 1 {
            rows.push(("protects", format!("a person with {} records", self.group)));
        }
        if let Some((tuning, name)) = &self.tuning {
            let mean = veilgrad_accounting::display::runs(tuning.mean_runs());
            let what = format!("the best of {mean} runs on average ({name}), which stays secret");
            rows.push(("released", what));
        }
        crate::output::table(&rows)
    }
}
