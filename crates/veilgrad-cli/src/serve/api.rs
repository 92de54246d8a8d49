//! The answers: the page, plans by the code of `veilgrad plan`, ledgers and reports.

use clap::Parser;
use serde_json::{Value, json};
use veilgrad_accounting::display::{down, percent_up, up};
use veilgrad_ledger::Ledger;

use super::guard;
use super::listing::{Found, Kind, Listing};
use super::place::Place;
use crate::argument::{Arguments, Command, Plan, RunOf};
use crate::budget::BudgetStatus;
use crate::error::{self, Error};
use crate::plan::{Solved, batch_rows, correlated};
use crate::report::chart::escape;
use crate::report::layout::{STYLE, document};
use crate::report::page::privacy_charts;
use crate::report::{self, page};

const PAGE: &str = include_str!("page.html");

/// The options of `plan` that a request may set. None of them writes a file.
const OPTIONS: [&str; 21] = [
    "rate",
    "records",
    "batch",
    "steps",
    "epochs",
    "delta",
    "epsilon",
    "noise-multiplier",
    "solve",
    "sampling",
    "max-batch",
    "adjacency",
    "accountant",
    "group",
    "tuning-mean-runs",
    "tuning-distribution",
    "advantage",
    "tpr",
    "fpr",
    "prior",
    "posterior",
];

/// What is sent back.
pub(super) struct Content {
    pub(super) status: u16,
    pub(super) kind: &'static str,
    pub(super) text: String,
    /// What the browser may do with it: nothing but show it, unless it is the planner page.
    pub(super) policy: String,
}

/// Pages without scripts. Nothing is loaded, from anywhere.
const STILL: &str = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; \
                     frame-ancestors 'none'";

impl Content {
    pub(super) fn text(status: u16, text: &str) -> Self {
        let (kind, policy) = ("text/plain; charset=utf-8", STILL.to_owned());
        Self { status, kind, text: text.to_owned(), policy }
    }

    fn json(document: &Value) -> Self {
        let (kind, policy) = ("application/json", STILL.to_owned());
        Self { status: 200, kind, text: document.to_string(), policy }
    }

    fn page(status: u16, text: String) -> Self {
        Self { status, kind: "text/html; charset=utf-8", text, policy: STILL.to_owned() }
    }
}

/// The answer to a request that was let in: `rest` is what follows the token.
pub(super) fn answer(rest: &str, place: &Place<'_>) -> Content {
    let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
    match path.split_once('/') {
        None if path.is_empty() => planner(place),
        None if path == "plan" => with_plan(query, plan),
        None if path == "charts" => slow(place, || with_plan(query, charts)),
        None if path == "advice" => slow(place, || with_plan(query, advice)),
        None if path == "files" => Content::json(&files(&Listing::of(place.directory))),
        Some(("ledger", id)) => with_file(place, Kind::Ledger, id, |found| ledger(found, place)),
        Some(("report", id)) => {
            with_file(place, Kind::Report, id, |found| run_report(found, place))
        }
        _ => Content::text(404, "there is no such page\n"),
    }
}

/// The planner page. Its script runs because it carries a number that is used once; no other script does.
fn planner(place: &Place<'_>) -> Content {
    let Ok(nonce) = guard::random_hex() else {
        return Content::text(500, "the operating system has no randomness\n");
    };
    let directory = escape(&place.directory.display().to_string());
    // The directory comes last: its name is not a template.
    let text = PAGE.replace("{{nonce}}", &nonce).replace("{{style}}", STYLE).replacen(
        "{{directory}}",
        &directory,
        1,
    );
    let policy = format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; img-src data:; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    );
    Content { policy, ..Content::page(200, text) }
}

/// The answer for the plan of a query; the reason as JSON if there is no such plan.
fn with_plan(query: &str, answer: fn(&Solved<'_>) -> Result<Value, Error>) -> Content {
    let found = parse(query).and_then(|arguments| {
        let answered = Solved::with(&arguments, true, answer);
        answered.and_then(|found| found).map_err(|error| error.to_string())
    });
    Content::json(&found.unwrap_or_else(|reason| json!({ "reason": reason })))
}

/// An answer that takes long; the page asks again if it was left out.
fn slow(place: &Place<'_>, answer: impl FnOnce() -> Content) -> Content {
    place.slow.run(answer).unwrap_or_else(|| Content::json(&json!({ "again": true })))
}

/// The arguments of `plan`, checked as those of the command are.
fn parse(query: &str) -> Result<Plan, String> {
    let mut words = vec!["veilgrad".to_owned(), "plan".to_owned()];
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        if !OPTIONS.contains(&name.as_ref()) {
            return Err(format!("a plan has no option {name:?}"));
        }
        words.push(format!("--{name}={value}"));
    }
    match Arguments::try_parse_from(words) {
        Ok(Arguments { command: Command::Plan(plan), .. }) => Ok(plan),
        Ok(_) => Err("this is not a plan".to_owned()),
        Err(error) => Err(error::of_arguments(&error)),
    }
}

/// `plan` is what `veilgrad plan --json` prints, without advice; the rest is for people.
fn plan(solved: &Solved<'_>) -> Result<Value, Error> {
    let page = solved.page();
    let cards: Vec<Value> = page
        .cards()
        .into_iter()
        .map(|(key, value, name)| json!({ "key": key, "value": value, "name": name }))
        .collect();
    let (configuration, untrainable) = match &page.configuration {
        Some(Ok(found)) => (Some(found), None),
        Some(Err(why)) => (None, Some(why)),
        None => (None, None),
    };
    Ok(json!({
        "plan": solved.document(&[], None),
        "cards": cards,
        "words": page.words(),
        "warnings": page.warnings(),
        "toml": configuration.map(|found| &found.toml),
        "command": configuration.map(|found| &found.command),
        "untrainable": untrainable,
        "reason": page.reason,
    }))
}

fn charts(solved: &Solved<'_>) -> Result<Value, Error> {
    let charts = privacy_charts(&solved.curves()?, solved.page().delta);
    let chart = |(caption, svg): (String, String)| json!({ "caption": caption, "svg": svg });
    Ok(json!({ "charts": charts.map(chart) }))
}

fn advice(solved: &Solved<'_>) -> Result<Value, Error> {
    Ok(json!({
        "advice": batch_rows(&solved.batches()),
        "correlated": correlated::as_text(solved.correlated().as_ref()),
    }))
}

fn files(listing: &Listing) -> Value {
    let file = |Found { id, kind, name, .. }: &Found| {
        let kind = if *kind == Kind::Ledger { "ledger" } else { "report" };
        json!({ "id": id, "kind": kind, "name": name })
    };
    let files: Vec<Value> = listing.found.iter().map(file).collect();
    json!({ "files": files, "more": listing.more })
}

/// The answer for a file that is listed now.
fn with_file(
    place: &Place<'_>,
    kind: Kind,
    id: &str,
    answer: impl Fn(&Found) -> Content,
) -> Content {
    match Listing::of(place.directory).find(kind, id) {
        Some(found) => answer(found),
        None => Content::text(404, "there is no such file\n"),
    }
}

/// The budgets of a ledger, as `budget list` computes them.
fn ledger(found: &Found, place: &Place<'_>) -> Content {
    let ledger = match Ledger::read(&found.path, place.options.clone()) {
        Ok(ledger) => ledger,
        Err(error) => return Content::json(&json!({ "reason": error.to_string() })),
    };
    let unknown = || "unknown".to_owned();
    let datasets = ledger.state().datasets().values().map(|dataset| {
        let status = BudgetStatus::new(&ledger, dataset).document();
        let number = |key: &str| status[key].as_f64();
        let (spent, budget) = (number("spent"), number("epsilon").unwrap_or(0.0));
        let share = spent.map(|spent| if budget > 0.0 { (spent / budget).min(1.0) } else { 1.0 });
        let guarantee = status["guarantee"]["epsilon"].as_f64();
        json!({
            "dataset": dataset.budget.dataset,
            "spent": spent.map_or_else(unknown, up),
            "budget": budget.to_string(),
            "left": number("left").map_or_else(unknown, down),
            "guarantee": guarantee.map_or("none".to_owned(), up),
            "runs": dataset.runs.len().to_string(),
            "share": share.map_or_else(unknown, percent_up),
        })
    });
    let rows: Vec<Value> = datasets.collect();
    Content::json(&json!({ "rows": rows }))
}

/// The report of a run, computed from its ledger again; labelled if the ledger is not there.
fn run_report(found: &Found, place: &Place<'_>) -> Content {
    let report = report::has_ledger(&found.path, &place.options).and_then(|has_ledger| {
        let (run, unverified) = (found.path.clone().into(), !has_ledger);
        let of = RunOf { run, dataset: None, ledger: None, unverified };
        report::read(&of, place.common)
    });
    match report {
        Ok(report) => Content::page(200, page::page(&report)),
        Err(error) => {
            let (name, why) = (escape(&found.name), escape(&error.to_string()));
            let body =
                format!("<h1>{name}</h1>\n<p class=\"warning\">There is no report: {why}</p>\n");
            Content::page(422, document("No report", &body))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUERY: &str =
        "records=60000&batch=256&steps=14040&delta=1e-5&noise-multiplier=1.1&solve=epsilon";

    fn answered(query: &str, answer: fn(&Solved<'_>) -> Result<Value, Error>) -> Value {
        serde_json::from_str(&with_plan(query, answer).text).unwrap()
    }

    #[test]
    fn the_page_gets_the_numbers_of_the_command() {
        let found = answered(QUERY, plan);
        // Abadi et al. (2016), by the accountant: 2.3795545...
        assert!((found["plan"]["epsilon"].as_f64().unwrap() - 2.379_554_5).abs() < 1e-6, "{found}");
        assert_eq!(found["cards"][0]["value"], "2.3796");
        assert!(found["cards"][0]["name"].as_str().unwrap().ends_with("(solved)"));
        assert!(found["reason"].is_null());
        let toml: toml::Table = found["toml"].as_str().unwrap().parse().unwrap();
        assert_eq!(toml["privacy"]["expected_batch"].as_float(), Some(256.0));
        assert_eq!(toml["privacy"]["noise_multiplier"].as_float(), Some(1.1));
        assert_eq!(toml["train"]["rounds"].as_integer(), Some(14040));
        assert_eq!(found["words"].as_array().unwrap().len(), 4);
        assert_eq!(found["command"], "veilgrad train CONFIG.toml");
        assert_eq!(found["plan"]["advice"].as_array().unwrap().len(), 6);
        let fixed = answered(&format!("{QUERY}&sampling=fixed"), plan);
        assert!(fixed["toml"].is_null() && fixed["command"].is_null());
        assert!(fixed["untrainable"].as_str().unwrap().contains("private under add-remove"));
    }

    #[test]
    fn a_question_without_answer_has_a_reason_and_cannot_name_files() {
        for (query, reason) in [
            ("records=60000&batch=256&steps=10&delta=7&noise-multiplier=1", "delta"),
            ("html=/tmp/x&delta=1e-5", "no option \"html\""),
            ("json=1", "no option \"json\""),
            ("records=10&batch=20&steps=5&delta=1e-5&epsilon=1", "larger than the number"),
            ("delta=1e-5", "missing"),
        ] {
            let found = answered(query, plan);
            assert!(found["reason"].as_str().is_some_and(|why| why.contains(reason)), "{found}");
        }
        // The values that are known are shown with it.
        let found =
            answered("rate=0.5&delta=1e-5&noise-multiplier=0.3&epsilon=0.001&solve=steps", plan);
        assert!(found["reason"].as_str().unwrap().contains("not one round fits"), "{found}");
    }

    #[test]
    fn charts_and_advice_come_apart() {
        let drawn = answered(QUERY, charts);
        let charts = drawn["charts"].as_array().unwrap();
        assert_eq!(charts.len(), 3);
        assert!(charts.iter().all(|chart| chart["svg"].as_str().unwrap().starts_with("<svg ")));
        assert_eq!(answered(QUERY, advice)["advice"], json!([]));
        let noise = "records=60000&batch=256&steps=100&delta=1e-5&epsilon=3";
        let found = answered(noise, advice);
        assert_eq!(found["advice"].as_array().unwrap().len(), 5);
        assert!(found["correlated"].as_str().unwrap().contains("is correlated over"), "{found}");
        assert_eq!(answered(QUERY, advice)["correlated"], "");
    }

    #[test]
    fn the_page_loads_nothing_from_elsewhere() {
        for forbidden in ["http:", "https:", "//cdn", "@import", "url(", "onclick", " src="] {
            assert!(!PAGE.contains(forbidden), "{forbidden}");
        }
        for template in ["{{nonce}}", "{{style}}", "{{directory}}"] {
            assert!(PAGE.contains(template), "{template}");
        }
    }
}
