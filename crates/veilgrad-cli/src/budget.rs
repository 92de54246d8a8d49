//! `veilgrad budget`: one budget per dataset, for all of its runs.

use serde_json::{Value, json};
use veilgrad_accounting::Tightest;
use veilgrad_accounting::claim::{Claim, NoClaim};
use veilgrad_accounting::display::{down, percent_up, up};
use veilgrad_events::{Mode, Pricing};
use veilgrad_ledger::{Begun, Dataset, Ledger, Location, RunState};

use crate::answer::unit_name;
use crate::argument::{Budget, BudgetMode, Common, CreateBudget};
use crate::error::Error;
use crate::output::{print, print_answer, print_json, say, table};

pub(crate) fn run(command: &Budget, common: &Common) -> Result<(), Error> {
    match command {
        Budget::Create(create) => {
            let ledger = create_budget(create, common)?;
            show(&ledger, &create.dataset, common).map(|_| ())
        }
        Budget::Show(one) => {
            let ledger = Ledger::read(&one.file.to_read()?, common.options())?;
            show(&ledger, &one.dataset, common)?
                .map_err(|reason| Error::NoAnswer(reason.to_string()))
        }
        Budget::List(file) => list(&Ledger::read(&file.to_read()?, common.options())?, common),
        Budget::Tighten(tighten) => {
            let mut ledger = Ledger::open(&tighten.file.to_write()?, common.options())?;
            ledger.tighten(&tighten.dataset, tighten.epsilon)?;
            // The budget was lowered, whether or not anything may be claimed.
            show(&ledger, &tighten.dataset, common).map(|_| ())
        }
    }
}

fn create_budget(create: &CreateBudget, common: &Common) -> Result<Ledger, Error> {
    let (mode, order) = match create.mode {
        BudgetMode::Planned => (Mode::Planned, None),
        BudgetMode::Adaptive => {
            let order = Tightest.order(create.epsilon, create.delta).ok_or_else(|| {
                let (epsilon, delta) = (create.epsilon.get(), create.delta.get());
                let why =
                    format!("epsilon {epsilon} leaves no room for any round at delta {delta}");
                Error::Usage(why)
            })?;
            (Mode::Adaptive, Some(order))
        }
    };
    let path = create.file.to_write()?;
    let existed = Ledger::exists(&path, &common.options())?;
    let begun = if existed { Begun::Budget } else { Begun::Ledger };
    let mut ledger = Ledger::open_or_create(&path, common.options())?;
    let budget = veilgrad_events::Budget {
        dataset: create.dataset.clone(),
        unit: create.unit,
        adjacency: create.adjacency.adjacency(),
        delta: create.delta,
        epsilon: create.epsilon,
        mode,
        order,
    };
    ledger.create_budget(budget.clone())?;
    announce(&budget, &path, begun);
    Ok(ledger)
}

/// Announces that a dataset begins with nothing spent, even with --quiet. A mistyped name, another ledger or a renamed
/// file would otherwise hide what was spent before.
pub(crate) fn announce(budget: &veilgrad_events::Budget, ledger: &Location, begun: Begun) {
    let new = if begun == Begun::Ledger { "new " } else { "" };
    say(&format!(
        "NEW BUDGET: dataset {:?}, epsilon {} at delta {:e}, unit {}, adjacency {}, in the {new}ledger {}; \
         nothing that was spent before counts\n",
        budget.dataset,
        budget.epsilon.get(),
        budget.delta.get(),
        unit_name(budget.unit),
        budget.adjacency.name(),
        ledger
    ));
}

/// The epsilon of a run by itself. Together, the runs of a dataset cost less than the sum of these.
fn epsilon_alone(dataset: &Dataset, run: &RunState) -> Option<f64> {
    let price = Tightest.price(&dataset.terms(&Tightest), &run.charges()).ok();
    price.filter(|_| run.insecure.is_none())
}

/// Shows a dataset. The inner error is the reason why nothing may be claimed about it.
fn show(ledger: &Ledger, name: &str, common: &Common) -> Result<Result<(), NoClaim>, Error> {
    let dataset = ledger
        .state()
        .datasets()
        .get(name)
        .ok_or_else(|| Error::Usage(format!("the ledger has no dataset {name:?}")))?;
    let status = BudgetStatus::new(ledger, dataset);
    print_answer(common.json, &status.document(), &status.table())?;
    Ok(status.claim.map(|_| ()))
}

fn list(ledger: &Ledger, common: &Common) -> Result<(), Error> {
    let datasets = ledger.state().datasets().values();
    if common.json {
        let all: Vec<Value> =
            datasets.map(|dataset| BudgetStatus::new(ledger, dataset).document()).collect();
        return print_json(&json!({ "schema": 1, "datasets": all }));
    }
    let mut text = format!(
        "{:<24}{:>12}{:>12}{:>12}{:>8}  adjacency\n",
        "dataset", "spent", "cap", "guarantee", "runs"
    );
    for dataset in datasets {
        let claim = crate::claim::of(dataset);
        let (spent, guarantee) = match &claim {
            Ok(claim) => (up(claim.spent), up(claim.epsilon)),
            Err(_) => ("unknown".to_owned(), "none".to_owned()),
        };
        text.push_str(&format!(
            "{:<24}{spent:>12}{:>12}{guarantee:>12}{:>8}  {}\n",
            dataset.budget.dataset,
            dataset.budget.epsilon.get(),
            dataset.runs.len(),
            dataset.budget.adjacency.name()
        ));
        let why = claim.map_or_else(|reason| reason.to_string(), |claim| claim.why());
        text.push_str(&format!("  {why}\n"));
    }
    print(&text)
}

/// A dataset with what may be claimed about it and what is left of its budget.
pub(crate) struct BudgetStatus<'a> {
    dataset: &'a Dataset,
    claim: Result<Claim, NoClaim>,
    reserved: Option<f64>,
}

impl<'a> BudgetStatus<'a> {
    pub(crate) fn new(ledger: &Ledger, dataset: &'a Dataset) -> Self {
        let claim = crate::claim::of(dataset);
        let spent = claim.as_ref().ok().map(|claim| claim.spent);
        let reserved = spent.and_then(|spent| crate::claim::reserved(ledger, dataset, spent));
        Self { dataset, claim, reserved }
    }

    fn cap(&self) -> f64 {
        self.dataset.budget.epsilon.get()
    }

    /// What a new run could still use, rounded down.
    fn left(&self) -> Option<f64> {
        let used = self.claim.as_ref().ok()?.spent + self.reserved?;
        Some(if used == 0.0 { self.cap() } else { (self.cap() - used).next_down().max(0.0) })
    }

    pub(crate) fn document(&self) -> Value {
        let budget = &self.dataset.budget;
        let runs: Vec<Value> = self
            .dataset
            .runs
            .iter()
            .map(|(run, state)| {
                json!({
                    "run": run,
                    "id": state.id,
                    "source": state.source,
                    "rounds": state.charged(),
                    "epsilon": epsilon_alone(self.dataset, state),
                    "insecure": state.insecure,
                    "closed": state.closed,
                })
            })
            .collect();
        let spent = self.claim.as_ref().ok().map(|claim| claim.spent);
        let mut document = json!({
            "schema": 1,
            "dataset": budget.dataset,
            "unit": budget.unit,
            "adjacency": budget.adjacency.name(),
            "delta": budget.delta,
            "epsilon": self.cap(),
            "mode": budget.mode,
            "order": budget.order,
            "guarantee": crate::claim::json(&self.claim),
            "running": spent,
            "spent": spent,
            "reserved": self.reserved,
            "left": self.left(),
            "runs": runs,
            "valid": self.claim.is_ok(),
        });
        if let (Err(reason), Some(map)) = (&self.claim, document.as_object_mut()) {
            map.insert("reason".to_owned(), json!(reason.to_string()));
        }
        document
    }

    fn table(&self) -> String {
        let (budget, cap) = (&self.dataset.budget, self.cap());
        let mut rows = vec![
            ("dataset", budget.dataset.clone()),
            ("unit", budget.unit.to_string()),
            ("adjacency", budget.adjacency.name().to_owned()),
            ("delta", format!("{:e}", budget.delta.get())),
        ];
        rows.extend(crate::claim::rows(&self.claim));
        match &self.claim {
            Ok(claim) => {
                rows.push(("running", format!("epsilon {} of {cap} spent", up(claim.spent))));
                rows.push(("", bar(claim.spent, cap)));
            }
            Err(_) => rows.push(("running", "epsilon unknown".to_owned())),
        }
        if let Some(reserved) = self.reserved.filter(|reserved| *reserved > 0.0) {
            rows.push(("reserved", format!("{} for running plans", up(reserved))));
        }
        if let Some(left) = self.left() {
            rows.push(("left", down(left)));
        }
        let mut text = table(&rows);
        for (run, state) in &self.dataset.runs {
            let from = state.source.as_ref().map_or(String::new(), |id| format!(" of ledger {id}"));
            let end = if state.closed { "closed" } else { "open" };
            let insecure =
                state.insecure.as_ref().map_or(String::new(), |why| format!(", INSECURE: {why}"));
            let rounds = state.charged();
            let alone = epsilon_alone(self.dataset, state).map_or("unknown".to_owned(), up);
            text.push_str(&format!(
                "run {run:<14}{rounds} rounds, epsilon {alone} alone, {end}{insecure}{from}\n"
            ));
        }
        text
    }
}

/// A text bar of what is spent of a budget.
pub(crate) fn bar(spent: f64, cap: f64) -> String {
    const WIDTH: usize = 40;
    let share = if cap > 0.0 { (spent / cap).clamp(0.0, 1.0) } else { 1.0 };
    // Rounded up: spending must not look smaller than it is.
    let filled = ((share * WIDTH as f64).ceil() as usize).min(WIDTH);
    let bar = "#".repeat(filled) + &".".repeat(WIDTH - filled);
    format!("[{bar}] {}", percent_up(share))
}
