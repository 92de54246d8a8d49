//! `veilgrad budget`: one budget per dataset, many runs.

use std::path::Path;

use serde_json::{Value, json};
use veilgrad_accounting::Best;
use veilgrad_accounting::display::{down, up};
use veilgrad_events::{Mode, Pricing};
use veilgrad_ledger::{Begun, Dataset, Ledger, RunState};

use crate::answer::adjacency_name;
use crate::argument::{Budget, BudgetMode, Common, CreateBudget};
use crate::error::Error;
use crate::output::{print, say};

pub(crate) fn run(command: &Budget, common: &Common) -> Result<(), Error> {
    match command {
        Budget::Create(create) => {
            let ledger = create_budget(create, common)?;
            show(&ledger, &create.dataset, common)
        }
        Budget::Show(one) => {
            show(&Ledger::read(&one.file.to_read()?, common.options())?, &one.dataset, common)
        }
        Budget::List(file) => list(&Ledger::read(&file.to_read()?, common.options())?, common),
        Budget::Tighten(tighten) => {
            let mut ledger = Ledger::open(&tighten.file.to_write()?, common.options())?;
            ledger.tighten(&tighten.dataset, tighten.epsilon)?;
            show(&ledger, &tighten.dataset, common)
        }
    }
}

fn create_budget(create: &CreateBudget, common: &Common) -> Result<Ledger, Error> {
    let mode = match create.mode {
        BudgetMode::Planned => Mode::Planned,
        BudgetMode::Adaptive => Mode::Adaptive,
    };
    let order = match mode {
        Mode::Planned => None,
        Mode::Adaptive => Some(Best.order(create.epsilon, create.delta).ok_or_else(|| {
            Error::Usage(format!(
                "epsilon {} leaves no room for any round at delta {}",
                create.epsilon.get(),
                create.delta.get()
            ))
        })?),
    };
    let path = create.file.to_write()?;
    let begun = if path.exists() { Begun::Budget } else { Begun::Ledger };
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

/// Says that a dataset begins with nothing spent, whoever wants to hear less: a mistyped name, another
/// ledger or a renamed file would otherwise forget what was spent before.
pub(crate) fn announce(budget: &veilgrad_events::Budget, ledger: &Path, begun: Begun) {
    let new = if begun == Begun::Ledger { "new " } else { "" };
    say(&format!(
        "NEW BUDGET: dataset {:?}, epsilon {} at delta {:e}, unit {}, adjacency {}, in the {new}ledger {}; \
         nothing that was spent before counts\n",
        budget.dataset,
        budget.epsilon.get(),
        budget.delta.get(),
        crate::report::unit_name(budget.unit),
        adjacency_name(budget.adjacency),
        ledger.display()
    ));
}

/// What a dataset has spent; or why nobody can say.
pub(crate) fn spent(dataset: &Dataset) -> Result<f64, String> {
    if let Some(reason) = dataset.insecure() {
        return Err(format!("a run protects nothing: {reason}"));
    }
    dataset.price(&Best)
}

/// What a run would have cost alone; the runs of a dataset together cost less than the sum of these.
fn alone(dataset: &Dataset, run: &RunState) -> Option<f64> {
    let price = Best.price(&dataset.terms(&Best), &run.charges()).ok();
    price.filter(|_| run.insecure.is_none())
}

fn show(ledger: &Ledger, name: &str, common: &Common) -> Result<(), Error> {
    let dataset = ledger
        .state()
        .datasets()
        .get(name)
        .ok_or_else(|| Error::Usage(format!("the ledger has no dataset {name:?}")))?;
    if common.json { print(&format!("{}\n", document(dataset))) } else { print(&table(dataset)) }
}

fn list(ledger: &Ledger, common: &Common) -> Result<(), Error> {
    let datasets = ledger.state().datasets().values();
    if common.json {
        let all: Vec<Value> = datasets.map(document).collect();
        return print(&format!("{}\n", json!({ "schema": 1, "datasets": all })));
    }
    let mut text =
        format!("{:<24}{:>12}{:>12}{:>8}  adjacency\n", "dataset", "spent", "cap", "runs");
    for dataset in datasets {
        let spent = spent(dataset).map_or("unknown".to_owned(), up);
        text.push_str(&format!(
            "{:<24}{:>12}{:>12}{:>8}  {}\n",
            dataset.budget.dataset,
            spent,
            dataset.budget.epsilon.get(),
            dataset.runs.len(),
            adjacency_name(dataset.budget.adjacency)
        ));
    }
    print(&text)
}

/// Under which condition the budget is a guarantee.
fn assumption(mode: Mode) -> &'static str {
    match mode {
        Mode::Planned => "sampling, noise and number of rounds are not chosen from earlier outputs",
        Mode::Adaptive => "none: rounds may be chosen from earlier outputs",
    }
}

/// What is left, rounded down.
fn left(cap: f64, spent: f64) -> f64 {
    if spent == 0.0 { cap } else { (cap - spent).next_down().max(0.0) }
}

fn document(dataset: &Dataset) -> Value {
    let budget = &dataset.budget;
    let price = spent(dataset);
    let runs: Vec<Value> = dataset
        .runs
        .iter()
        .map(|(run, state)| {
            json!({
                "run": run,
                "id": state.id,
                "source": state.source,
                "rounds": state.charged(),
                "epsilon": alone(dataset, state),
                "insecure": state.insecure,
                "closed": state.closed,
            })
        })
        .collect();
    let cap = budget.epsilon.get();
    let mut document = json!({
        "schema": 1,
        "dataset": budget.dataset,
        "unit": budget.unit,
        "adjacency": adjacency_name(budget.adjacency),
        "delta": budget.delta,
        "epsilon": cap,
        "mode": budget.mode,
        "order": budget.order,
        "assumption": assumption(budget.mode),
        "guarantee": { "epsilon": cap, "delta": budget.delta },
        "running": price.as_ref().ok(),
        "spent": price.as_ref().ok(),
        "left": price.as_ref().ok().map(|spent| left(cap, *spent)),
        "runs": runs,
        "valid": price.is_ok(),
    });
    if let (Err(reason), Some(map)) = (price, document.as_object_mut()) {
        map.insert("reason".to_owned(), json!(reason));
    }
    document
}

fn table(dataset: &Dataset) -> String {
    let budget = &dataset.budget;
    let cap = budget.epsilon.get();
    let mut text = format!(
        "dataset           {}\nunit              {}\nadjacency         {}\ndelta             {:e}\n",
        budget.dataset,
        budget.unit,
        adjacency_name(budget.adjacency),
        budget.delta.get()
    );
    text.push_str(&format!("guarantee         epsilon {cap}, whatever is still charged\n"));
    text.push_str(&format!("assumption        {}\n", assumption(budget.mode)));
    match spent(dataset) {
        Ok(spent) => {
            text.push_str(&format!("running           epsilon {} of {cap} spent\n", up(spent)));
            text.push_str(&format!("                  {}\n", bar(spent, cap)));
            text.push_str(&format!("left              {}\n", down(left(cap, spent))));
        }
        Err(reason) => text.push_str(&format!("running           epsilon unknown: {reason}\n")),
    }
    for (run, state) in &dataset.runs {
        let from = state.source.as_ref().map_or(String::new(), |id| format!(" of ledger {id}"));
        let end = if state.closed { "closed" } else { "open" };
        let insecure =
            state.insecure.as_ref().map_or(String::new(), |why| format!(", INSECURE: {why}"));
        let rounds = state.charged();
        let alone = alone(dataset, state).map_or("unknown".to_owned(), up);
        text.push_str(&format!(
            "run {run:<14}{rounds} rounds, epsilon {alone} alone, {end}{insecure}{from}\n"
        ));
    }
    text
}

/// Spent against cap, as wide as a terminal has room for beside the labels.
pub(crate) fn bar(spent: f64, cap: f64) -> String {
    const WIDTH: usize = 40;
    let share = if cap > 0.0 { (spent / cap).clamp(0.0, 1.0) } else { 1.0 };
    // Rounded up: what is spent must not look smaller.
    let filled = ((share * WIDTH as f64).ceil() as usize).min(WIDTH);
    format!(
        "[{}{}] {:.0} %",
        "#".repeat(filled),
        ".".repeat(WIDTH - filled),
        (share * 100.0).ceil()
    )
}
