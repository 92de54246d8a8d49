//! `veilgrad compare`: runs side by side. Privacy comes from their ledgers, never from a stored report.

use std::fmt::Write;
use std::path::Path;

use serde_json::{Value, json};
use veilgrad_accounting::Tightest;
use veilgrad_accounting::display::{claimed_noise_down, percent, up};
use veilgrad_events::{Pricing, RunRounds, Sampling};
use veilgrad_ledger::{Dataset, RunState};

use crate::answer::rate;
use crate::argument::{Common, Compare, RunOf};
use crate::error::Error;
use crate::output::{print_answer, significant, write_file};
use crate::report::chart::{bars, escape};
use crate::report::layout::{document, figure};
use crate::report::{self, Report};

const NO_LEDGER: &str = "the ledger is not where the results say: what is stored with them was not checked, and what they added to the \
     budget is unknown";

/// What is said below every comparison.
const NOTES: [&str; 3] = [
    "epsilon is what may be claimed about the dataset with all of its runs, as of its ledger now; added is what a run added to \
     what the dataset had spent before it; alone is the epsilon of its rounds without any other run.",
    "Accuracy and mean absolute error are what was stored with the results, on their public test sets; an error is in the unit \
     of its label.",
    "There are no times: how long a run takes depends on private sample sizes, so it is not stored.",
];

/// A run in a comparison.
struct Row {
    name: String,
    report: Report,
    /// `None` if the ledger is not there, or has no bound.
    cost: Option<Cost>,
    /// Why privacy was not computed from the ledger, if so.
    unverified: Option<&'static str>,
}

/// What a run cost, from the ledger.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Cost {
    /// The epsilon of its rounds by themselves.
    alone: f64,
    /// What the dataset had spent before the run, and with it.
    before: f64,
    after: f64,
    /// The budget of the dataset.
    budget: f64,
    /// The sampling rate of its last rounds: those before training may use all records.
    rate: Option<f64>,
}

impl Cost {
    /// What the run added, rounded up.
    fn added(&self) -> f64 {
        if self.after > self.before { (self.after - self.before).next_up() } else { 0.0 }
    }

    /// The cost of the runs with these ids, or of all runs if there are none. `None` if there is no bound.
    fn new(dataset: &Dataset, ids: &[String]) -> Option<Self> {
        if dataset.insecure().is_some() {
            return None;
        }
        let is_part = |run: &RunState| ids.is_empty() || ids.contains(&run.id);
        let first = dataset.runs.iter().find(|(_, run)| is_part(run)).map(|(number, _)| *number)?;
        let price = |counts: &dyn Fn(u64, &RunState) -> bool| {
            let runs = dataset.runs.iter().filter(|(number, run)| counts(**number, run));
            let charges: Vec<RunRounds<'_>> = runs
                .flat_map(|(_, run)| run.charges())
                .filter(|run| !run.rounds.is_empty())
                .collect();
            match charges.is_empty() {
                true => Some(0.0),
                false => Tightest.price(&dataset.terms(&Tightest), &charges).ok(),
            }
        };
        let last = dataset.runs.values().rfind(|run| is_part(run) && !run.rounds.is_empty());
        let sampling = last.and_then(|run| run.rounds.last()).map(|rounds| rounds.sampling);
        Some(Self {
            rate: sampling.filter(|sampling| *sampling != Sampling::All {}).and_then(rate),
            alone: price(&|_, run| is_part(run))?,
            before: price(&|number, run| number < first && !is_part(run))?,
            after: price(&|number, run| number < first || is_part(run))?,
            budget: dataset.budget.epsilon.get(),
        })
    }
}

pub(crate) fn run(arguments: &Compare, common: &Common) -> Result<(), Error> {
    let rows: Result<Vec<Row>, Error> =
        arguments.runs.iter().map(|run| Row::read(run, common)).collect();
    let rows = rows?;
    if let Some(path) = &arguments.html {
        write_file(path, page(&rows).as_bytes())?;
    }
    let all: Vec<Value> = rows.iter().map(Row::document).collect();
    let document = json!({ "schema": 1, "runs": all, "notes": NOTES });
    print_answer(common.json, &document, &text(&rows))
}

impl Row {
    fn read(run: &Path, common: &Common) -> Result<Self, Error> {
        let unverified = !report::has_ledger(run, &common.options())?;
        let of = RunOf { run: run.into(), dataset: None, ledger: None, unverified };
        let (report, ledger) = report::read_with_ledger(&of, common)?;
        let dataset =
            ledger.as_ref().and_then(|ledger| ledger.state().datasets().get(&report.dataset));
        let cost = dataset.and_then(|dataset| Cost::new(dataset, &report.run_ids));
        let name = run.display().to_string();
        Ok(Self { name, report, cost, unverified: unverified.then_some(NO_LEDGER) })
    }

    fn rate(&self) -> Option<f64> {
        self.cost.map_or(self.report.rate, |cost| cost.rate)
    }

    /// The expected batch size, from the rate and the declared number of records.
    fn batch(&self) -> Option<f64> {
        Some(report::whole(self.rate()? * self.report.records? as f64))
    }

    fn notes(&self) -> Vec<String> {
        let mut notes: Vec<String> = self.unverified.iter().map(|why| (*why).to_owned()).collect();
        let claim = self.report.reason.iter();
        notes.extend(claim.map(|reason| format!("nothing may be claimed: {reason}")));
        if self.report.insecure {
            notes.push("INSECURE".to_owned());
        }
        notes
    }

    fn document(&self) -> Value {
        let report = &self.report;
        json!({
            "run": self.name,
            "dataset": report.dataset,
            "verified": self.unverified.is_none(),
            "reason": self.unverified,
            "test_accuracy": report.test_accuracy,
            "test_mean_absolute_error": report.test_mean_absolute_error,
            "epsilon": report.epsilon,
            "delta": report.delta,
            "valid": report.valid,
            "unit": report.unit,
            "adjacency": report.adjacency,
            "added": self.cost.map(|cost| cost.added()),
            "alone": self.cost.map(|cost| cost.alone),
            "spent_before": self.cost.map(|cost| cost.before),
            "spent_after": self.cost.map(|cost| cost.after),
            "budget": self.cost.map(|cost| cost.budget),
            "rounds": report.rounds,
            "charged": report.charged,
            "noise_multiplier": report.noise_multiplier,
            "sampling": report.sampling,
            "rate": self.rate(),
            "records": report.records,
            "batch": self.batch(),
            "seconds": report.seconds,
            "insecure": report.insecure,
            "ledger": report.ledger,
        })
    }

    /// The cells of a table, in the order of [`columns`].
    fn cells(&self, columns: &[&str]) -> Vec<String> {
        let report = &self.report;
        let (unknown, none) = (|| "unknown".to_owned(), || "none".to_owned());
        let shown = |value: Option<f64>| value.map_or_else(unknown, up);
        let cell = |column: &&str| match *column {
            ACCURACY => report.test_accuracy.map_or_else(none, percent),
            ERROR => report.test_mean_absolute_error.map_or_else(none, shown_error),
            "epsilon" => report.shown_epsilon(),
            "delta" => format!("{:e}", report.delta),
            "added" => shown(self.cost.map(|cost| cost.added())),
            "alone" => shown(self.cost.map(|cost| cost.alone)),
            "rounds" => report.rounds.to_string(),
            "noise" => claimed_noise_down(report.noise_multiplier),
            "batch" => self.batch().map_or_else(unknown, |batch| batch.to_string()),
            "dataset" => report.dataset.clone(),
            _ => self.name.clone(),
        };
        columns.iter().map(cell).collect()
    }
}

const ACCURACY: &str = "accuracy";
const ERROR: &str = "mean absolute error";

/// The columns of a table: accuracy for classes, the mean absolute error for numbers, and both for runs of both kinds.
fn columns(rows: &[Row]) -> Vec<&'static str> {
    let has_error = rows.iter().any(|row| row.report.test_mean_absolute_error.is_some());
    let has_accuracy = rows.iter().any(|row| row.report.test_accuracy.is_some());
    let mut columns = vec!["run"];
    columns.extend((has_accuracy || !has_error).then_some(ACCURACY));
    columns.extend(has_error.then_some(ERROR));
    columns.extend(["epsilon", "delta", "added", "alone", "rounds", "noise", "batch", "dataset"]);
    columns
}

/// Whether the cells of a column are names, not numbers.
fn has_names(column: &str) -> bool {
    column == "run" || column == "dataset"
}

fn shown_error(error: f64) -> String {
    significant(error, 6)
}

fn text(rows: &[Row]) -> String {
    let columns = columns(rows);
    let header = columns.iter().map(|column| (*column).to_owned()).collect();
    let lines: Vec<Vec<String>> =
        std::iter::once(header).chain(rows.iter().map(|row| row.cells(&columns))).collect();
    let width = |column: usize| {
        let cells = lines.iter().filter_map(|line| line.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let mut text = String::new();
    for line in &lines {
        let mut cells = String::new();
        for (place, (cell, column)) in line.iter().zip(&columns).enumerate() {
            let width = width(place);
            // Writing to a string does not fail. Names are on the left, numbers on the right.
            let _ = match has_names(column) {
                true => write!(cells, "{cell:<width$}  "),
                false => write!(cells, "{cell:>width$}  "),
            };
        }
        text.push_str(cells.trim_end());
        text.push('\n');
    }
    text.push('\n');
    for row in rows {
        row.notes().iter().for_each(|note| text.push_str(&format!("{}: {note}\n", row.name)));
    }
    NOTES.iter().for_each(|note| text.push_str(&format!("{note}\n")));
    text
}

fn page(rows: &[Row]) -> String {
    let mut body = "<h1>Comparison of runs</h1>\n".to_owned();
    for row in rows {
        for note in row.notes() {
            let (name, note) = (escape(&row.name), escape(&note));
            let _ = writeln!(body, "<p class=\"warning\">{name}: {note}.</p>");
        }
    }
    body.push_str("<div class=\"scroll\"><table><thead><tr>");
    let columns = columns(rows);
    let class = |column: &str| if has_names(column) { "" } else { " class=\"n\"" };
    for name in &columns {
        let _ = write!(body, "<th{}>{name}</th>", class(name));
    }
    body.push_str("</tr></thead>\n");
    for row in rows {
        body.push_str("<tr>");
        for (column, cell) in columns.iter().zip(row.cells(&columns)) {
            let _ = write!(body, "<td{}>{}</td>", class(column), escape(&cell));
        }
        body.push_str("</tr>\n");
    }
    body.push_str("</table></div>\n<h2>Charts</h2>\n<div class=\"charts\">\n");
    let chart = |title: &str, value: &dyn Fn(&Row) -> Option<(f64, String)>| {
        let bar = |row: &Row| value(row).map(|(size, text)| (short_name(&row.name), size, text));
        bars(title, &rows.iter().filter_map(bar).collect::<Vec<_>>())
    };
    let accuracy = chart("Accuracy of every run", &|row| {
        let accuracy = row.report.test_accuracy?;
        Some((accuracy, percent(accuracy)))
    });
    if columns.contains(&ACCURACY) {
        figure(&mut body, "Accuracy on the public test set", &accuracy);
    }
    if columns.contains(&ERROR) {
        let errors = chart("Mean absolute error of every run", &|row| {
            let error = row.report.test_mean_absolute_error?;
            Some((error, shown_error(error)))
        });
        let caption = "Mean absolute error on the public test set, in the unit of the label";
        figure(&mut body, caption, &errors);
    }
    let added = chart("What every run added to the budget", &|row| {
        let cost = row.cost?;
        let of = format!("epsilon {} of {}", up(cost.added()), cost.budget);
        Some((cost.added(), of))
    });
    figure(&mut body, "What the run added to the budget of its dataset", &added);
    body.push_str("</div>\n<h2>How to read it</h2>\n");
    for note in NOTES {
        let _ = writeln!(body, "<p>{}</p>", escape(note));
    }
    document("Comparison of runs", &body)
}

/// The last part of a path, which fits next to a bar.
fn short_name(path: &str) -> String {
    let part = path.trim_end_matches('/').trim_end_matches("/report.json").rsplit('/').next();
    part.unwrap_or(path).to_owned()
}
