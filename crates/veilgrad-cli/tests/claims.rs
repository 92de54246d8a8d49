//! All commands make the same claim about a dataset.

use std::path::Path;
use std::sync::Arc;

use crate::common::{Directory, ok, veilgrad};
use serde_json::Value;
use veilgrad_accounting::Tightest;
use veilgrad_events::{
    Adjacency, ClipNorm, Mode, NoiseStd, RecordUnit, Round, Rounds, Run, RunHeader, SampleRate,
    Sampling, SumQuery,
};
use veilgrad_ledger::{DatasetLedger, Ledger, Options};

fn create(directory: &Directory, name: &str, epsilon: &str, delta: &str) -> String {
    let ledger = directory.file(name);
    let budget = ["budget", "create", "visits", "--epsilon", epsilon, "--delta", delta, "--ledger"];
    ok(&[&budget[..], &[&ledger]].concat());
    ledger
}

fn round(noise: f64) -> Round {
    let query = SumQuery::new("g", ClipNorm::new(1.0).unwrap(), NoiseStd::new(noise).unwrap());
    let rate = SampleRate::new(256.0 / 60000.0).unwrap();
    Round::new(Sampling::Poisson { rate }, vec![query]).unwrap()
}

fn store(ledger: &str) -> DatasetLedger {
    let open = Ledger::open(Path::new(ledger), Options::default()).unwrap();
    open.dataset("visits", Arc::new(Tightest)).unwrap()
}

/// Opens a run that declared its plan, and charges some of its rounds.
fn begin(ledger: &str, noise: f64, plan: u64, charged: u64) -> Run<DatasetLedger> {
    let mut header = RunHeader::new(RecordUnit::Example, Adjacency::AddRemove);
    header.mode = Mode::Planned;
    header.plan = Some(vec![Rounds { count: plan, round: round(noise) }]);
    let mut run = Run::open(store(ledger), header).unwrap();
    drop(run.reserve(&round(noise), charged).unwrap());
    run
}

/// A finished run of 14,040 rounds, which costs 2.3796.
fn charge(ledger: &str) {
    begin(ledger, 1.1, 14_040, 14_040).close().unwrap();
}

/// What every command claims in its JSON; they must agree, exit codes included.
fn claims(ledger: &str, code: i32) -> Value {
    let document = |arguments: &[&str], code: i32| -> Value {
        let output = veilgrad(&[arguments, &["--json"]].concat());
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {error}");
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let shown = document(&["budget", "show", "visits", "--ledger", ledger], code);
    let guarantee = shown["guarantee"].clone();
    let listed = document(&["budget", "list", "--ledger", ledger], 0);
    assert_eq!(listed["datasets"][0]["guarantee"], guarantee, "budget list");
    let ledgers = document(&["ledger", "show", ledger], 0);
    assert_eq!(ledgers["datasets"][0]["guarantee"], guarantee, "ledger show");
    assert_eq!(ledgers["datasets"][0]["reason"], shown["reason"], "ledger show");
    let account = document(&["account", ledger, "--delta", "1e-5"], code);
    assert_eq!(account["guarantee"], guarantee, "account");
    let report = document(&["report", ledger], code);
    assert_eq!(report["epsilon"], guarantee["epsilon"], "report");
    assert_eq!((&report["why"], &report["reason"]), (&guarantee["why"], &shown["reason"]));
    let statement = document(&["statement", ledger], code);
    assert_eq!(statement["epsilon"], guarantee["epsilon"], "statement");
    shown
}

#[test]
fn a_budget_that_was_lowered_below_what_is_spent_is_not_claimed() {
    let directory = Directory::new("claim-lowered");
    let ledger = create(&directory, "ledger.db", "3", "1e-5");
    charge(&ledger);
    begin(&ledger, 1.1, 10, 10).close().unwrap();
    let before = claims(&ledger, 0);
    assert_eq!(before["guarantee"]["epsilon"], 3.0);
    ok(&["budget", "tighten", "visits", "--epsilon", "1", "--ledger", &ledger]);
    let after = claims(&ledger, 0);
    assert_eq!((&after["epsilon"], &after["left"]), (&1.0.into(), &0.0.into()));
    assert_eq!(after["guarantee"]["epsilon"], after["spent"]);
    assert!(after["spent"].as_f64().unwrap() > 2.379, "{after}");
    let why = after["guarantee"]["why"].as_str().unwrap();
    assert!(why.contains("more is spent than the budget of 1 allows"), "{why}");
    for arguments in [
        vec!["budget", "show", "visits", "--ledger", &ledger],
        vec!["budget", "list", "--ledger", &ledger],
        vec!["ledger", "show", &ledger],
        vec!["account", &ledger, "--delta", "1e-5"],
        vec!["statement", &ledger],
    ] {
        let text = ok(&arguments);
        assert!(
            text.contains("more is spent than the budget of 1 allows"),
            "{arguments:?}: {text}"
        );
        assert!(!text.contains("guarantee         epsilon 1 "), "{arguments:?}: {text}");
    }
}

#[test]
fn an_import_that_lifts_the_total_over_the_cap_is_claimed_as_spent() {
    let directory = Directory::new("claim-import");
    let (one, two) =
        (create(&directory, "one.db", "2.5", "1e-5"), create(&directory, "two.db", "2.5", "1e-5"));
    charge(&one);
    charge(&two);
    let export = directory.file("export.jsonl");
    std::fs::write(&export, ok(&["ledger", "export", &two])).unwrap();
    ok(&["ledger", "import", &one, &export]);
    let found = claims(&one, 0);
    assert!(found["spent"].as_f64().unwrap() > 3.0, "{found}");
    assert_eq!(found["guarantee"]["epsilon"], found["spent"]);
    assert_eq!((&found["epsilon"], &found["left"]), (&2.5.into(), &0.0.into()));
}

#[test]
fn nothing_is_claimed_of_data_that_an_insecure_run_used() {
    let directory = Directory::new("claim-insecure");
    let ledger = create(&directory, "ledger.db", "3", "1e-5");
    charge(&ledger);
    let header = RunHeader::new(RecordUnit::Example, Adjacency::AddRemove);
    Run::open_insecure(store(&ledger), header, "seeded noise").unwrap().close().unwrap();
    let found = claims(&ledger, 7);
    assert_eq!((&found["guarantee"], &found["valid"]), (&Value::Null, &false.into()));
    assert_eq!((&found["spent"], &found["left"]), (&Value::Null, &Value::Null));
    assert!(found["reason"].as_str().unwrap().contains("seeded noise"), "{found}");
    for (arguments, code) in [
        (vec!["budget", "show", "visits", "--ledger", &ledger], 7),
        (vec!["budget", "list", "--ledger", &ledger], 0),
        (vec!["ledger", "show", &ledger], 0),
        (vec!["account", &ledger, "--delta", "1e-5"], 7),
        (vec!["statement", &ledger], 7),
        (vec!["report", &ledger], 7),
    ] {
        let output = veilgrad(&arguments);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains("seeded noise"), "{arguments:?}: {text}");
        assert!(!text.contains("epsilon 3"), "{arguments:?}: {text}");
    }
    let statement = veilgrad(&["statement", &ledger]).stdout;
    assert!(String::from_utf8(statement).unwrap().starts_with("NOTHING MAY BE CLAIMED."));
}

#[test]
fn a_running_plan_is_claimed_as_a_whole_and_its_rest_is_reserved() {
    let directory = Directory::new("claim-plan");
    let ledger = create(&directory, "ledger.db", "3", "1e-5");
    let run = begin(&ledger, 1.1, 14_040, 10);
    let found = claims(&ledger, 0);
    let number = |value: &Value| value.as_f64().unwrap();
    let claimed = number(&found["guarantee"]["epsilon"]);
    assert!((2.379..2.38).contains(&claimed), "{found}");
    assert!(number(&found["spent"]) < 1.0, "{found}");
    let used = number(&found["spent"]) + number(&found["reserved"]);
    assert!(used >= claimed && used < claimed + 1e-6, "{found}");
    assert!((number(&found["left"]) - (3.0 - used)).abs() < 1e-6, "{found}");
    // A run that died or ended no longer reserves budget.
    drop(run);
    let died = claims(&ledger, 0);
    assert_eq!((&died["reserved"], &died["guarantee"]), (&0.0.into(), &found["guarantee"]));
    let ledger = create(&directory, "closed.db", "3", "1e-5");
    begin(&ledger, 1.1, 14_040, 10).close().unwrap();
    let closed = claims(&ledger, 0);
    assert_eq!(closed["reserved"], 0.0, "{closed}");
    // The claim of a plan does not depend on when it stopped.
    assert_eq!(closed["guarantee"], found["guarantee"]);
}

#[test]
fn words_follow_the_numbers() {
    let directory = Directory::new("claim-words");
    let statement = |name: &str, epsilon: &str, delta: &str, noise: f64, rounds: u64| {
        let ledger = create(&directory, name, epsilon, delta);
        begin(&ledger, noise, rounds, rounds).close().unwrap();
        ok(&["statement", &ledger])
    };
    let hopeless = statement("a.db", "500", "0.5", 0.3, 14_040);
    assert!(hopeless.contains("That is no meaningful protection."), "{hopeless}");
    assert!(!hopeless.contains("hardly tell"), "{hopeless}");
    let strong = statement("b.db", "3", "1e-5", 1.1, 14_040);
    assert!(strong.contains("That is strong protection."), "{strong}");
    assert!(
        strong.contains("accuses wrongly in 1.00 % of cases is right about at most"),
        "{strong}"
    );
    assert!(!strong.contains("WARNING"), "{strong}");
    // The ledger does not know the number of records, and the statement says what delta must be below.
    assert!(strong.contains("well below one over the number of records"), "{strong}");
    let very = statement("c.db", "3", "1e-5", 20.0, 1000);
    assert!(very.contains("That is very strong protection."), "{very}");
    // Above 10 there is a warning, on the page as well.
    let large = create(&directory, "d.db", "30", "1e-5");
    begin(&large, 0.5, 14_040, 14_040).close().unwrap();
    let text = ok(&["statement", &large]);
    assert!(text.contains("WARNING.") && text.contains("is above 10"), "{text}");
    assert!(ok(&["report", &large]).contains("is above 10"));
}

#[test]
fn noise_that_was_used_is_rounded_down_in_statement_and_report() {
    let directory = Directory::new("claim-noise");
    let ledger = create(&directory, "ledger.db", "3", "1e-5");
    begin(&ledger, 1.234_567_89, 100, 100).close().unwrap();
    let statement = ok(&["statement", &ledger]);
    assert!(statement.contains("noise 1.2345 on the sum"), "{statement}");
    assert!(statement.contains("noise multiplier 1.2345"), "{statement}");
    // A rate of 0.0042666... is shown rounded up.
    assert!(statement.contains("at rate 0.0042667 "), "{statement}");
    let page = ok(&["report", &ledger]);
    assert!(page.contains("<b>1.2345</b>") && page.contains("1.2345 x clip 1"), "{page}");
    assert!(page.contains("<td class=\"n\">1.2345</td>") && !page.contains("1.2346"), "{page}");
    let report: Value = serde_json::from_str(&ok(&["report", &ledger, "--json"])).unwrap();
    assert_eq!(report["groups"][0]["noise"], 1.234_567_89);
}
