//! The state of a ledger: datasets, budgets, runs and charges.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use veilgrad_events::{
    Budget, Delta, Epsilon, Event, Folded, LedgerError, Mode, PlanEnds, Pricing, RunCount,
    RunHeader, RunRounds,
};

use crate::chain::{Chained, Hash};
use crate::entry::Entry;
use crate::name;
use crate::run_state::RunState;
use crate::tally::Tally;

/// The reason with which a repair marks a dataset as insecure.
pub(crate) const LOST_ROWS: &str = "rows of the ledger were lost";

/// The state of a ledger: its datasets with their budgets and runs.
#[derive(Debug, Clone, Default)]
pub struct State {
    pub(crate) id: String,
    pub(crate) datasets: BTreeMap<String, Dataset>,
    /// Imported rows: source ledger, hash there, and hash of the content. (A forged row with the hash of a real one
    /// must not block the real one.)
    imported: HashSet<(String, String, Hash)>,
}

/// A dataset with its budget and its runs.
#[derive(Debug, Clone)]
pub struct Dataset {
    /// The current budget, as last tightened.
    pub budget: Budget,
    /// The terms with which the budget was created.
    created_epsilon: Epsilon,
    created_delta: Delta,
    /// Runs, by the number of the row that opened or imported them.
    pub runs: BTreeMap<u64, RunState>,
    /// The numbers of runs by their ids.
    numbers: HashMap<String, u64>,
    /// The running total of the budget's checks.
    pub(crate) tally: Tally,
}

/// The plan of a run that is about to be opened.
#[derive(Debug, Clone)]
pub(crate) struct NewPlan {
    pub(crate) planned: bool,
    pub(crate) rounds: Vec<Folded>,
    pub(crate) tuning: Option<RunCount>,
}

impl NewPlan {
    fn charges(&self) -> RunRounds<'_> {
        RunRounds { planned: self.planned, rounds: &self.rounds, tuning: self.tuning }
    }
}

impl Dataset {
    fn open(
        &mut self,
        source: Option<&String>,
        sequence: u64,
        run: &str,
        header: &RunHeader,
    ) -> Result<(), String> {
        let name = &self.budget.dataset;
        if (self.budget.unit, self.budget.adjacency) != (header.unit, header.adjacency) {
            return Err(format!("dataset {name:?} has another unit or adjacency"));
        }
        check_text(&header.code_version)?;
        check_text(header.plan_hash.as_deref().unwrap_or_default())?;
        let mut planned = header.plan.iter().flatten();
        let adjacency = self.budget.adjacency;
        if planned.any(|rounds| rounds.round.sampling().reveals_record_count(adjacency)) {
            return Err(LedgerError::PrivateCount.to_string());
        }
        if header.tuning.is_some() && !(header.plan.is_some() && header.mode == Mode::Planned) {
            return Err("a tuning needs a plan with the rounds of one run".to_owned());
        }
        if self.numbers.insert(run.to_owned(), sequence).is_some() {
            return Err(format!("run {run} is opened twice"));
        }
        let state = RunState {
            id: run.to_owned(),
            source: source.cloned(),
            header: header.clone(),
            rounds: Vec::new(),
            apart: Vec::new(),
            plan_ends: PlanEnds::new(header.plan.as_deref().unwrap_or_default()),
            next_round: 0,
            charged: 0,
            insecure: None,
            closed: false,
        };
        self.runs.insert(sequence, state);
        Ok(())
    }

    /// The charges of all runs, in order, without runs that charged nothing.
    pub fn charges(&self) -> Vec<RunRounds<'_>> {
        let charges = self.runs.values().flat_map(RunState::charges);
        // An unplanned run that charged nothing must not change how the others are priced.
        charges.filter(|run| !run.rounds.is_empty()).collect()
    }

    /// An upper bound on the epsilon of all charges.
    ///
    /// # Errors
    /// Says why there is no bound.
    pub fn price(&self, pricing: &dyn Pricing) -> Result<f64, String> {
        pricing.price(&self.terms(pricing), &self.charges())
    }

    /// Checks that all charges, the whole plans of the runs in `holding` (see
    /// [`Ledger::holding`](crate::Ledger::holding)) and these future runs together stay within the budget.
    ///
    /// # Errors
    /// Says what epsilon would be, and whether the future runs would fit without the held plans.
    pub fn covers(
        &self,
        pricing: &dyn Pricing,
        more: &[RunRounds<'_>],
        holding: &BTreeSet<u64>,
    ) -> Result<(), String> {
        let (terms, held) = (self.terms(pricing), self.plans_of(holding)?);
        let check = |charges: Vec<RunRounds<'_>>| {
            pricing.check(&terms, &[charges.as_slice(), more].concat())
        };
        let refused = match check(self.charges_with(&held)) {
            Err(why) if !held.is_empty() => why,
            result => return result,
        };
        Err(match check(self.charges()) {
            Ok(()) => format!(
                "{refused}, with what {} running plan(s) hold; it may fit when they have ended",
                held.len()
            ),
            Err(why) => why,
        })
    }

    /// The budget with the Rényi order for runs without a plan. The order follows from the terms with which the budget
    /// was created, so it was fixed before the first round.
    pub fn terms(&self, pricing: &dyn Pricing) -> Budget {
        let order = self.budget.order;
        let order = order.or_else(|| pricing.order(self.created_epsilon, self.created_delta));
        Budget { order, ..self.budget.clone() }
    }

    /// An upper bound on the epsilon of all charges if the runs in `holding` (see
    /// [`Ledger::holding`](crate::Ledger::holding)) finish their plans.
    ///
    /// # Errors
    /// Says why there is no bound.
    pub fn price_with_plans(
        &self,
        pricing: &dyn Pricing,
        holding: &BTreeSet<u64>,
    ) -> Result<f64, String> {
        let plans = self.plans_of(holding)?;
        pricing.price(&self.terms(pricing), &self.charges_with(&plans))
    }

    /// The whole plans of these runs.
    fn plans_of(&self, holding: &BTreeSet<u64>) -> Result<BTreeMap<u64, Vec<Folded>>, String> {
        let held = self.runs.iter().filter(|(number, _)| holding.contains(number));
        held.map(|(number, run)| {
            let plan = run.header.plan.iter().flatten().map(Folded::try_from);
            let plan: Result<Vec<_>, _> = plan.collect();
            Ok((*number, plan.map_err(|error| error.to_string())?))
        })
        .collect()
    }

    /// The charges of all runs, with whole plans instead of their charged parts.
    fn charges_with<'a>(&'a self, plans: &'a BTreeMap<u64, Vec<Folded>>) -> Vec<RunRounds<'a>> {
        let charges = self.runs.iter().flat_map(|(number, run)| {
            let [rounds, apart] = run.charges();
            let rounds = match plans.get(number) {
                Some(plan) => RunRounds { rounds: plan, ..rounds },
                None => rounds,
            };
            [rounds, apart]
        });
        charges.filter(|run| !run.rounds.is_empty()).collect()
    }

    /// Checks that all charges, the held plans and the plans of new runs together stay within the budget.
    pub(crate) fn check(
        &mut self,
        pricing: &dyn Pricing,
        plans: &[NewPlan],
        holding: &BTreeSet<u64>,
    ) -> Result<(), String> {
        let order = || pricing.order(self.created_epsilon, self.created_delta);
        let order = self.budget.order.or_else(|| self.tally.order(order));
        let terms = Budget { order, ..self.budget.clone() };
        let held = self.plans_of(holding)?;
        let mut part = self.tally.count(pricing, &terms, &self.runs);
        if plans.iter().any(|plan| plan.tuning.is_some()) {
            // A running total is for runs that are no tunings.
            part = None;
        }
        if let Some(used) = part
            && !(plans.is_empty() && held.is_empty())
        {
            part = pricing.meter(&terms).map(|mut meter| {
                // The charged part of a held plan counts twice here, which is an upper bound.
                let plans = plans.iter().map(|plan| &plan.rounds);
                for (run, rounds) in (0..).zip(plans.chain(held.values())) {
                    rounds.iter().for_each(|rounds| meter.add(run, *rounds));
                }
                (used + meter.part()).next_up()
            });
        }
        if part.is_some_and(|part| part <= 1.0) {
            return Ok(());
        }
        let plans: Vec<_> = plans.iter().map(NewPlan::charges).collect();
        self.covers(pricing, &plans, holding)
    }

    /// Why the dataset has no finite epsilon, if a run is marked insecure.
    pub fn insecure(&self) -> Option<&str> {
        self.runs.values().find_map(|run| run.insecure.as_deref())
    }
}

impl State {
    /// The datasets by name.
    pub const fn datasets(&self) -> &BTreeMap<String, Dataset> {
        &self.datasets
    }

    /// Whether a run declared its plan when it was opened.
    pub(crate) fn declared_plan(&self, dataset: &str, run: &str) -> bool {
        let known = self.datasets.get(dataset);
        let number = known.and_then(|known| known.numbers.get(run));
        let run = number.and_then(|number| known?.runs.get(number));
        run.is_some_and(|run| run.header.plan.is_some())
    }

    /// The dataset with this name.
    ///
    /// # Errors
    /// When there is none; suggests a similar name.
    pub fn find(&self, name: &str) -> Result<&Dataset, String> {
        self.datasets.get(name).ok_or_else(|| match self.alike(name) {
            Some(alike) => {
                format!("the ledger has no dataset {name:?}; did you mean {alike:?}?")
            }
            None => format!("the ledger has no dataset {name:?}"),
        })
    }

    /// A dataset whose name differs from this one only by case, white space, invisible characters or Unicode
    /// composition.
    pub fn alike(&self, name: &str) -> Option<&str> {
        let canonical = name::canonical(name);
        let mut names = self.datasets.keys().map(String::as_str);
        names.find(|known| *known != name && name::canonical(known) == canonical)
    }

    /// Whether a repair found that rows may be lost, in which any dataset may have been created.
    pub(crate) fn has_lost_rows(&self) -> bool {
        let mut runs = self.datasets.values().flat_map(|dataset| dataset.runs.values());
        runs.any(|run| run.insecure.as_deref() == Some(LOST_ROWS))
    }

    /// Checks that a dataset may be created with this name.
    pub(crate) fn check_new(&self, name: &str) -> Result<(), String> {
        name::check_new(name)?;
        if self.has_lost_rows() {
            return Err(format!(
                "{LOST_ROWS}, and a dataset may have begun in them: begin {name:?} in another ledger"
            ));
        }
        match self.alike(name) {
            Some(alike) if !self.datasets.contains_key(name) => Err(format!(
                "the ledger has a budget for {alike:?}, and {name:?} is another spelling of it: use {alike:?}"
            )),
            _ => Ok(()),
        }
    }

    /// Whether a row of another ledger was imported.
    pub(crate) fn has_imported(&self, source: &str, hash: &str, entry: &Entry) -> bool {
        imported_key(source, hash, entry).is_ok_and(|key| self.imported.contains(&key))
    }

    /// Applies the next row, from its bytes.
    ///
    /// # Errors
    /// When they are not an entry, or the row is invalid.
    pub(crate) fn apply_bytes(&mut self, sequence: u64, bytes: &[u8]) -> Result<(), String> {
        self.apply(sequence, &Entry::from_bytes(bytes)?)
    }

    /// Applies the next row.
    ///
    /// # Errors
    /// When the row is invalid; rows written by a ledger never are.
    pub(crate) fn apply(&mut self, sequence: u64, entry: &Entry) -> Result<(), String> {
        if (sequence == 1) != matches!(entry, Entry::Create { .. }) {
            return Err("the first row, and no other, creates the ledger".to_owned());
        }
        match entry {
            Entry::Create { id } => {
                check_id(id)?;
                self.id.clone_from(id);
            }
            Entry::Recovered { .. } => {}
            Entry::Import { source, hash, entry } => {
                check_id(source)?;
                if !self.imported.insert(imported_key(source, hash, entry)?) {
                    return Err("a row is imported twice".to_owned());
                }
                self.apply_from(Some(source), sequence, entry)?;
            }
            other => self.apply_from(None, sequence, other)?,
        }
        Ok(())
    }

    /// Applies a row of this ledger, or of the ledger `source`.
    fn apply_from(
        &mut self,
        source: Option<&String>,
        sequence: u64,
        entry: &Entry,
    ) -> Result<(), String> {
        match entry {
            Entry::Budget { budget } => {
                check_budget(budget)?;
                let Some(known) = self.datasets.get_mut(&budget.dataset) else {
                    let dataset = Dataset {
                        budget: budget.clone(),
                        created_epsilon: budget.epsilon,
                        created_delta: budget.delta,
                        runs: BTreeMap::new(),
                        numbers: HashMap::new(),
                        tally: Tally::default(),
                    };
                    self.datasets.insert(budget.dataset.clone(), dataset);
                    return Ok(());
                };
                let (name, ours) = (&budget.dataset, &mut known.budget);
                if source.is_none() {
                    return Err(format!("dataset {name:?} has a budget"));
                }
                // Unit and adjacency must agree. The smaller epsilon at the smaller delta implies both budgets.
                if (ours.unit, ours.adjacency) != (budget.unit, budget.adjacency) {
                    return Err(format!("dataset {name:?} has another unit or adjacency there"));
                }
                if budget.epsilon.get() < ours.epsilon.get() {
                    ours.epsilon = budget.epsilon;
                }
                if budget.delta.get() < ours.delta.get() {
                    ours.delta = budget.delta;
                }
            }
            Entry::Tighten { dataset, epsilon } => {
                let known = self.dataset_mut(dataset)?;
                // A row that would raise the budget has no effect. Appending one is refused, but an earlier version
                // of the import may have kept a larger budget when the row was written.
                if epsilon.get() < known.budget.epsilon.get() {
                    known.budget.epsilon = *epsilon;
                }
            }
            Entry::Run { dataset, run, event, .. } => {
                self.run_event(source, sequence, dataset, run, event)?;
            }
            Entry::Create { .. } | Entry::Recovered { .. } if source.is_some() => {}
            Entry::Create { .. } | Entry::Recovered { .. } | Entry::Import { .. } => {
                return Err("a row of this kind is not allowed here".to_owned());
            }
        }
        Ok(())
    }

    fn run_event(
        &mut self,
        source: Option<&String>,
        sequence: u64,
        dataset: &str,
        run: &str,
        event: &Event,
    ) -> Result<(), String> {
        check_id(run)?;
        let known = self.dataset_mut(dataset)?;
        if let Event::Open(header) = event {
            return known.open(source, sequence, run, header);
        }
        let adjacency = known.budget.adjacency;
        let number = known.numbers.get(run).and_then(|number| known.runs.get_mut(number));
        let state = number.ok_or_else(|| format!("run {run} is not open"))?;
        // Another branch may have continued a run that was closed here; its rounds are charged.
        if state.closed && source.is_none() {
            return Err(format!("run {run} is closed"));
        }
        match event {
            Event::Reserve(reservation) => {
                if reservation.charge.round.sampling().reveals_record_count(adjacency) {
                    return Err(LedgerError::PrivateCount.to_string());
                }
                let first = reservation.first_round;
                let planned = state.header.plan.as_ref();
                let ends = &state.plan_ends;
                if planned.is_some_and(|plan| !ends.follows(plan, first, &reservation.charge)) {
                    return Err(LedgerError::NotPlanned(first).to_string());
                }
                let charge =
                    Folded::try_from(&reservation.charge).map_err(|error| error.to_string())?;
                state.charge(first, charge)?;
            }
            Event::Insecure(insecure) => {
                check_text(&insecure.reason)?;
                state.insecure = Some(insecure.reason.clone());
            }
            // A run of this ledger is not closed by another branch.
            Event::Close(_) if source.is_some() && state.source.is_none() => {}
            Event::Close(_) => state.closed = true,
            _ => return Err("an unknown event".to_owned()),
        }
        Ok(())
    }

    fn dataset_mut(&mut self, name: &str) -> Result<&mut Dataset, String> {
        self.datasets.get_mut(name).ok_or_else(|| format!("there is no dataset {name:?}"))
    }
}

fn imported_key(source: &str, hash: &str, entry: &Entry) -> Result<(String, String, Hash), String> {
    Ok((source.to_owned(), hash.to_owned(), Hash::of(&entry.to_bytes()?)))
}

/// Checks that an id is 32 hexadecimal digits.
fn check_id(id: &str) -> Result<(), String> {
    let digits = id.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    if id.len() == 32 && digits {
        Ok(())
    } else {
        Err("an id is not 32 hexadecimal digits".to_owned())
    }
}

/// Refuses control characters, which could change what a terminal shows.
fn check_text(text: &str) -> Result<(), String> {
    if text.chars().any(char::is_control) {
        return Err("a text has control characters".to_owned());
    }
    Ok(())
}

/// Checks the terms of a budget.
pub(crate) fn check_budget(budget: &Budget) -> Result<(), String> {
    let name = &budget.dataset;
    let is_printable = name.chars().all(|c| !c.is_control());
    if name.is_empty() || name.len() > 200 || !is_printable {
        return Err(format!("dataset name {name:?}: must be 1 to 200 printable characters"));
    }
    match (budget.mode, budget.order) {
        (Mode::Planned, None) => Ok(()),
        (Mode::Adaptive, Some(order)) if order > 1.0 && order.is_finite() => Ok(()),
        (Mode::Planned, Some(_)) => Err("a planned budget has no order".to_owned()),
        (Mode::Adaptive, _) => Err("an adaptive budget needs an order above 1".to_owned()),
    }
}
