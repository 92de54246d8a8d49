//! What all rows together say: datasets, budgets, runs, charges.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use veilgrad_events::{
    Adjacency, Budget, Delta, Epsilon, Event, Folded, LedgerError, Mode, PlanEnds, Pricing, Round,
    RunHeader, RunRounds,
};

use crate::chain::{Chained, Hash};
use crate::entry::Entry;
use crate::name;
use crate::run_state::RunState;
use crate::tally::Tally;

/// The reason that a repair gives for a dataset's infinite epsilon.
pub(crate) const LOST_ROWS: &str = "rows of the ledger were lost";

/// Everything that a ledger says.
#[derive(Debug, Clone, Default)]
pub struct State {
    pub(crate) id: String,
    pub(crate) datasets: BTreeMap<String, Dataset>,
    /// Rows of other ledgers: whose, their hashes there, and what they say. (A hash that somebody claims for
    /// another row must not keep the real one out.)
    imported: HashSet<(String, String, Hash)>,
}

/// A dataset with its budget and its runs.
#[derive(Debug, Clone)]
pub struct Dataset {
    /// The terms, as last tightened.
    pub budget: Budget,
    /// The terms with which it was created.
    created_epsilon: Epsilon,
    created_delta: Delta,
    /// Runs by the number of the row that opened or imported them here.
    pub runs: BTreeMap<u64, RunState>,
    /// The same numbers by the runs' ids.
    numbers: HashMap<String, u64>,
    /// What the budget's checks counted already.
    pub(crate) tally: Tally,
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
        if planned.any(|rounds| counts_records(self.budget.adjacency, &rounds.round)) {
            return Err(LedgerError::PrivateCount.to_string());
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
            insecure: None,
            closed: false,
        };
        self.runs.insert(sequence, state);
        Ok(())
    }

    /// What all runs charged, in the order of runs; those that charged nothing are left out.
    pub fn charges(&self) -> Vec<RunRounds<'_>> {
        let charges = self.runs.values().flat_map(RunState::charges);
        // A run that charged nothing says nothing about how the others may be priced.
        charges.filter(|run| !run.rounds.is_empty()).collect()
    }

    /// What all runs have cost.
    ///
    /// # Errors
    /// Says why that is not known.
    pub fn price(&self, pricing: &dyn Pricing) -> Result<f64, String> {
        pricing.price(&self.terms(pricing), &self.charges())
    }

    /// Whether everything that is charged, and these runs that are still to come, keep the budget.
    ///
    /// # Errors
    /// Says what it would cost.
    pub fn covers(&self, pricing: &dyn Pricing, more: &[RunRounds<'_>]) -> Result<(), String> {
        let all = [self.charges().as_slice(), more].concat();
        pricing.check(&self.terms(pricing), &all)
    }

    /// The budget with the Rényi order at which runs that declared no plan are priced. It follows from the terms with
    /// which the budget was created, so that it was fixed before the first round.
    pub fn terms(&self, pricing: &dyn Pricing) -> Budget {
        let order = self.budget.order;
        let order = order.or_else(|| pricing.order(self.created_epsilon, self.created_delta));
        Budget { order, ..self.budget.clone() }
    }

    /// What all runs will have cost if those that hold room for their plans (see
    /// [`Ledger::holding`](crate::Ledger::holding)) finish them.
    ///
    /// # Errors
    /// Says why that is not known.
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

    /// What all runs charged, with whole plans in the place of the part of them that is charged.
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

    /// Whether everything that is charged, the plans that these runs hold, and the plans of new runs keep the budget.
    pub(crate) fn check(
        &mut self,
        pricing: &dyn Pricing,
        plans: &[(bool, Vec<Folded>)],
        holding: &BTreeSet<u64>,
    ) -> Result<(), String> {
        let terms = self.terms(pricing);
        let held = self.plans_of(holding)?;
        let mut part = self.tally.count(pricing, &terms, &self.runs);
        if let Some(used) = part
            && !(plans.is_empty() && held.is_empty())
        {
            part = pricing.meter(&terms).map(|mut meter| {
                // What is charged of a plan that is held counts twice here; if that fits, all does.
                let plans = plans.iter().map(|(_, rounds)| rounds);
                for (run, rounds) in (0..).zip(plans.chain(held.values())) {
                    rounds.iter().for_each(|rounds| meter.add(run, *rounds));
                }
                (used + meter.part()).next_up()
            });
        }
        if part.is_some_and(|part| part <= 1.0) {
            return Ok(());
        }
        let plans: Vec<_> =
            plans.iter().map(|(planned, rounds)| RunRounds { planned: *planned, rounds }).collect();
        let all = [self.charges_with(&held).as_slice(), &plans].concat();
        let refused = match pricing.check(&terms, &all) {
            Err(why) if !held.is_empty() => why,
            result => return result,
        };
        Err(match self.covers(pricing, &plans) {
            Ok(()) => format!(
                "{refused}, with what {} running plan(s) hold; it may fit when they have ended",
                held.len()
            ),
            Err(why) => why,
        })
    }

    /// Why no epsilon holds for this dataset, if a run protected nothing.
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

    /// The dataset of this name.
    ///
    /// # Errors
    /// Says that there is none, and names a similar one.
    pub fn find(&self, name: &str) -> Result<&Dataset, String> {
        self.datasets.get(name).ok_or_else(|| match self.alike(name) {
            Some(alike) => {
                format!("the ledger has no dataset {name:?}; did you mean {alike:?}?")
            }
            None => format!("the ledger has no dataset {name:?}"),
        })
    }

    /// A dataset whose name differs from this one only by case, white space, invisible characters or another spelling
    /// of the same characters.
    pub fn alike(&self, name: &str) -> Option<&str> {
        let canonical = name::canonical(name);
        let mut names = self.datasets.keys().map(String::as_str);
        names.find(|known| *known != name && name::canonical(known) == canonical)
    }

    /// Whether a repair found that rows were lost, in which any dataset may have begun.
    pub(crate) fn has_lost_rows(&self) -> bool {
        let mut runs = self.datasets.values().flat_map(|dataset| dataset.runs.values());
        runs.any(|run| run.insecure.as_deref() == Some(LOST_ROWS))
    }

    /// Whether a dataset may begin under this name. Ledgers of earlier versions may have names that are alike.
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

    /// Whether a row of another ledger is charged here.
    pub(crate) fn has_imported(&self, source: &str, hash: &str, entry: &Entry) -> bool {
        imported_key(source, hash, entry).is_ok_and(|key| self.imported.contains(&key))
    }

    /// Takes the next row in, from its bytes.
    ///
    /// # Errors
    /// When they say nothing, or the row is against the rules.
    pub(crate) fn take(&mut self, sequence: u64, bytes: &[u8]) -> Result<(), String> {
        self.apply(sequence, &Entry::from_bytes(bytes)?)
    }

    /// Takes the next row in.
    ///
    /// # Errors
    /// When the row is against the rules; nothing that a ledger wrote is.
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
                self.apply_to(Some(source), sequence, entry)?;
            }
            other => self.apply_to(None, sequence, other)?,
        }
        Ok(())
    }

    fn apply_to(
        &mut self,
        source: Option<&String>,
        sequence: u64,
        entry: &Entry,
    ) -> Result<(), String> {
        match entry {
            Entry::Budget { budget } => {
                check(budget)?;
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
                // They must protect the same. Both promises are kept: the smaller epsilon at the smaller
                // delta implies either.
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
                // A row that would raise it changes nothing: appending one is refused, but an import
                // may keep a smaller promise today than when an old row behind it was written.
                if epsilon.get() < known.budget.epsilon.get() {
                    known.budget.epsilon = *epsilon;
                }
            }
            Entry::Run { dataset, run, event, .. } => {
                self.run_event(source, sequence, dataset, run, event)?;
            }
            Entry::Create { .. } | Entry::Recovered { .. } if source.is_some() => {}
            Entry::Create { .. } | Entry::Recovered { .. } | Entry::Import { .. } => {
                return Err("is not a row of this place".to_owned());
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
        // Another branch may have gone on with a run that was closed here; that stays charged.
        if state.closed && source.is_none() {
            return Err(format!("run {run} is closed"));
        }
        match event {
            Event::Reserve(reservation) => {
                if counts_records(adjacency, &reservation.charge.round) {
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
            // A branch that ended a run does not end it here.
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

/// Ids are drawn as 32 hexadecimal digits, and are nothing else.
fn check_id(id: &str) -> Result<(), String> {
    let digits = id.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    if id.len() == 32 && digits {
        Ok(())
    } else {
        Err("an id is not 32 hexadecimal digits".to_owned())
    }
}

/// Texts are shown on terminals: control characters could change what is seen.
fn check_text(text: &str) -> Result<(), String> {
    if text.chars().any(char::is_control) {
        return Err("a text has control characters".to_owned());
    }
    Ok(())
}

/// Whether a round would store the number of records where that is private.
fn counts_records(adjacency: Adjacency, round: &Round) -> bool {
    adjacency == Adjacency::AddRemove && round.sampling().records().is_some()
}

/// The terms that a budget must have.
pub(crate) fn check(budget: &Budget) -> Result<(), String> {
    let name = &budget.dataset;
    let printable = name.chars().all(|c| !c.is_control());
    if name.is_empty() || name.len() > 200 || !printable {
        return Err(format!("dataset name {name:?}: must be 1 to 200 printable characters"));
    }
    match (budget.mode, budget.order) {
        (Mode::Planned, None) => Ok(()),
        (Mode::Adaptive, Some(order)) if order > 1.0 && order.is_finite() => Ok(()),
        (Mode::Planned, Some(_)) => Err("a planned budget has no order".to_owned()),
        (Mode::Adaptive, _) => Err("an adaptive budget needs an order above 1".to_owned()),
    }
}
