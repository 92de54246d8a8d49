//! `budget` and `ledger`, as people and programs call them.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use crate::common::{Directory, ok, refused, veilgrad};
use serde_json::Value;
use veilgrad_accounting::Tightest;
use veilgrad_events::{
    Adjacency, ClipNorm, LedgerStore, Mode, NoiseStd, Numerics, RecordUnit, Round, Rounds, Run,
    RunHeader, SampleRate, Sampling, SumQuery,
};
use veilgrad_ledger::{Ledger, Options};

fn json(arguments: &[&str]) -> Value {
    serde_json::from_str(&ok(&[arguments, &["--json"]].concat())).unwrap()
}

/// A ledger with a budget of 3 for "mnist".
fn create(directory: &Directory) -> String {
    let ledger = directory.file("ledger.db");
    ok(&["budget", "create", "mnist", "--epsilon", "3", "--delta", "1e-5", "--ledger", &ledger]);
    ledger
}

/// Charges rounds of the MNIST tutorial, in a run that declared them as its plan.
fn charge(ledger: &str, rounds: u64) {
    let mut header = RunHeader::new(RecordUnit::Example, Adjacency::AddRemove);
    header.mode = Mode::Planned;
    header.plan = Some(vec![Rounds { count: rounds, round: tutorial() }]);
    run(ledger, rounds, header).close().unwrap();
}

fn tutorial() -> Round {
    let query = SumQuery::new("g", ClipNorm::new(1.0).unwrap(), NoiseStd::new(1.1).unwrap());
    let rate = SampleRate::new(256.0 / 60000.0).unwrap();
    Round::new(Sampling::Poisson { rate }, vec![query]).unwrap()
}

/// Charges the same rounds in a run with a custom header, which stays open.
fn run(ledger: &str, rounds: u64, header: RunHeader) -> Run<impl LedgerStore> {
    let round = tutorial();
    let open = Ledger::open(Path::new(ledger), Options::default()).unwrap();
    let store = open.dataset("mnist", Arc::new(Tightest)).unwrap();
    let mut run = Run::open(store, header).unwrap();
    drop(run.reserve(&round, rounds).unwrap());
    run
}

#[test]
fn a_ledger_has_a_report_and_a_statement_whoever_trained() {
    let directory = Directory::new("ledger-report");
    let ledger = create(&directory);
    refused(&["statement", &ledger], 2, "nothing is charged");
    charge(&ledger, 14_040);
    let report = json(&["report", &ledger]);
    // One run of a fixed plan: 60 epochs of the MNIST tutorial.
    let epsilon = report["epsilon"].as_f64().unwrap();
    assert!((2.379..2.381).contains(&epsilon), "{epsilon}");
    assert_eq!((&report["rounds"], &report["runs"]), (&14_040.into(), &1.into()));
    assert_eq!((&report["sampling"], &report["numerics"]), (&"poisson".into(), &"exact".into()));
    assert_eq!(report["groups"][0]["name"], "g");
    assert!((report["noise_multiplier"].as_f64().unwrap() - 1.1).abs() < 1e-9);
    for key in ["test_accuracy", "model"] {
        assert!(report[key].is_null(), "{key}");
    }
    assert!(report["groups"][0]["dimension"].is_null());
    let statement = ok(&["statement", &ledger]);
    for part in [
        "(2.3796, 1e-5)",
        "one example",
        "add-remove",
        "Poisson sampling",
        "g (clipped to norm 1, noise 1.1",
        "one run on this data",
        "no floating-point rounding",
        report["ledger"]["head"].as_str().unwrap(),
    ] {
        assert!(statement.contains(part), "{part}: {statement}");
    }
    let page = ok(&["report", &ledger]);
    assert!(page.contains("<svg") && page.contains("Epsilon after every round"));
    // The second run may have been chosen from the first's outputs, so only the budget bounds both.
    charge(&ledger, 10);
    let report = json(&["report", &ledger, "--dataset", "mnist"]);
    assert_eq!((&report["epsilon"], &report["runs"]), (&3.0.into(), &2.into()));
    refused(&["statement", &ledger, "--dataset", "other"], 2, "no dataset");
    assert_eq!((&report["accountant"], &report["mode"]), (&"budget".into(), &"planned".into()));
    assert_eq!(report["curves"]["profile"].as_array().unwrap().len(), 0);
    assert!(ok(&["statement", &ledger]).contains("no round is granted that would lift all runs"));
    // A budget below what is spent is not claimed.
    ok(&["budget", "tighten", "mnist", "--epsilon", "1", "--ledger", &ledger]);
    let report = json(&["report", &ledger]);
    let epsilon = report["epsilon"].as_f64().unwrap();
    assert!((2.38..2.39).contains(&epsilon) && report["epsilon_running"] == epsilon, "{epsilon}");
}

#[test]
fn a_statement_of_a_ledger_is_that_of_its_weakest_run() {
    let directory = Directory::new("ledger-weakest");
    let ledger = create(&directory);
    let header = RunHeader::new(RecordUnit::Example, Adjacency::AddRemove);
    // Without a plan, rounds may have been chosen from outputs, so only the budget bounds them.
    let mut unverified = header.clone();
    unverified.numerics = Numerics::Unverified;
    let open = run(&ledger, 10, unverified);
    let report = json(&["report", &ledger]);
    assert_eq!((&report["epsilon"], &report["accountant"]), (&3.0.into(), &"budget".into()));
    open.close().unwrap();
    let report = json(&["report", &ledger]);
    assert_eq!((&report["epsilon"], &report["mode"]), (&3.0.into(), &"adaptive".into()));
    assert_eq!(report["numerics"], "unverified");
    let condition = report["conditions"][0].as_str().unwrap();
    assert!(condition.contains("numerics: unverified"), "{condition}");
    // A later run with exact numerics does not change that.
    charge(&ledger, 10);
    assert_eq!(json(&["report", &ledger])["numerics"], "unverified");
    assert!(ok(&["statement", &ledger]).contains("NOT established"));
    // A declared plan counts as a whole from the beginning.
    std::fs::create_dir(directory.0.join("planned")).unwrap();
    let planned = directory.file("planned/ledger.db");
    ok(&["budget", "create", "mnist", "--epsilon", "3", "--delta", "1e-5", "--ledger", &planned]);
    let mut header = header;
    header.mode = Mode::Planned;
    header.plan = Some(vec![Rounds { count: 14_040, round: tutorial() }]);
    drop(run(&planned, 10, header));
    let report = json(&["report", &planned]);
    let epsilon = report["epsilon"].as_f64().unwrap();
    assert!((2.379..2.381).contains(&epsilon), "{epsilon}");
    assert_eq!(report["rounds"], 10);
}

#[test]
fn a_statement_of_an_adaptive_ledger_promises_its_budget() {
    let directory = Directory::new("ledger-adaptive");
    let ledger = directory.file("ledger.db");
    let create = ["budget", "create", "mnist", "--epsilon", "3", "--delta", "1e-5"];
    ok(&[&create[..], &["--mode", "adaptive", "--ledger", &ledger]].concat());
    charge(&ledger, 10);
    let report = json(&["report", &ledger]);
    assert_eq!((&report["epsilon"], &report["mode"]), (&3.0.into(), &"adaptive".into()));
    assert_eq!(report["curves"]["attack"].as_array().unwrap().len(), 0);
    let statement = ok(&["statement", &ledger]);
    assert!(statement.contains("may have been chosen") && !statement.contains("fixed before"));
}

#[test]
fn a_budget_shows_what_is_spent_and_left() {
    let directory = Directory::new("budget");
    let ledger = create(&directory);
    let show = || json(&["budget", "show", "mnist", "--ledger", &ledger]);
    assert_eq!((&show()["spent"], &show()["left"]), (&0.0.into(), &3.0.into()));
    charge(&ledger, 14_040);
    let found = show();
    let spent = found["spent"].as_f64().unwrap();
    assert!((2.379_554_518..2.379_56).contains(&spent), "{found}");
    assert!((found["left"].as_f64().unwrap() - (3.0 - spent)).abs() < 1e-9);
    assert_eq!(found["runs"][0]["rounds"], 14_040);
    let table = ok(&["budget", "show", "mnist", "--ledger", &ledger]);
    assert!(table.contains("2.3796 of 3 spent") && table.contains("] 79.32 %"), "{table}");
    // Spent is rounded up, left is rounded down, and each run is shown.
    assert!(table.contains("guarantee         epsilon 2.3796 at delta 1e-5\n"), "{table}");
    assert!(table.contains("declared all of its rounds before the first"), "{table}");
    assert!(table.contains("left              0.62044\n"), "{table}");
    assert!(table.contains("14040 rounds, epsilon 2.3796 alone, closed"), "{table}");
    let drawn = ok(&["ledger", "show", &ledger]);
    assert!(drawn.contains(&format!("[{}{}]", "#".repeat(32), ".".repeat(8))), "{drawn}");
    assert!(
        drawn.contains("running epsilon 2.3796, guarantee 2.3796: there is one run"),
        "{drawn}"
    );
    let shown = json(&["ledger", "show", &ledger]);
    assert_eq!(shown["datasets"][0]["running"].as_f64(), Some(spent));
    let guarantee = found["guarantee"]["epsilon"].as_f64().unwrap();
    assert!(guarantee >= spent && guarantee < spent + 1e-6, "{found}");
    assert_eq!(shown["datasets"][0]["guarantee"], found["guarantee"]);
    assert!(ok(&["budget", "list", "--ledger", &ledger]).contains("mnist"));
    // `account` computes the same number from the database.
    let account = json(&["account", &ledger, "--delta", "1e-5"]);
    assert_eq!(account["epsilon"].as_f64(), Some(spent));
    assert_eq!(account["steps"], 14_040);
    // What was charged so far and what is claimed are different numbers.
    assert_eq!(account["running"], account["epsilon"]);
    assert_eq!(account["guarantee"], found["guarantee"]);
    let table = ok(&["account", &ledger, "--delta", "1e-5"]);
    assert!(table.contains("guarantee         epsilon 2.3796 at delta 1e-5"), "{table}");
}

#[test]
fn many_may_create_one_ledger_at_once() {
    let directory = Directory::new("at-once");
    let ledger = directory.file("ledger.db");
    let name = |i: usize| format!("data-{i}");
    let start = |i: usize| {
        Command::new(env!("CARGO_BIN_EXE_veilgrad"))
            .args(["budget", "create", &name(i), "--epsilon", "1", "--delta", "1e-5", "--ledger"])
            .args([ledger.as_str(), "-q"])
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap()
    };
    let children: Vec<_> = (0..8).map(start).collect();
    for mut child in children {
        assert_eq!(child.wait().unwrap().code(), Some(0));
    }
    let list = json(&["budget", "list", "--ledger", &ledger]);
    assert_eq!(list["datasets"].as_array().unwrap().len(), 8);
}

#[test]
fn budgets_are_tightened_never_loosened_and_unknown_ones_are_named() {
    let directory = Directory::new("tighten");
    let ledger = create(&directory);
    let tighten = |epsilon| ["budget", "tighten", "mnist", "--epsilon", epsilon, "--ledger"];
    ok(&[&tighten("2")[..], &[&ledger]].concat());
    refused(&[&tighten("2.5")[..], &[&ledger]].concat(), 4, "never raised");
    refused(&["budget", "show", "cifar", "--ledger", &ledger], 2, "cifar");
    let again = ["budget", "create", "mnist", "--epsilon", "9", "--delta", "1e-5", "--ledger"];
    refused(&[&again[..], &[&ledger]].concat(), 4, "has a budget");
    let adaptive = json(&[
        "budget",
        "create",
        "adaptive",
        "--epsilon",
        "1",
        "--delta",
        "1e-6",
        "--mode",
        "adaptive",
        "--unit",
        "user",
        "--adjacency",
        "replace-one",
        "--ledger",
        &ledger,
    ]);
    assert!(adaptive["order"].as_f64().unwrap() > 1.0, "{adaptive}");
    assert_eq!((&adaptive["unit"], &adaptive["mode"]), (&"user".into(), &"adaptive".into()));
    refused(&["account", &ledger, "--delta", "1e-5"], 2, "--dataset");
    let pld =
        ["account", &ledger, "--dataset", "adaptive", "--delta", "1e-6", "--accountant", "pld"];
    refused(&pld, 7, "Rényi filter");
    let document = veilgrad(&[&pld[..], &["--json"]].concat());
    assert_eq!(document.status.code(), Some(7));
    let document: Value = serde_json::from_slice(&document.stdout).unwrap();
    assert_eq!((&document["valid"], &document["epsilon"]), (&false.into(), &Value::Null));
    let zero = ["budget", "create", "zero", "--epsilon", "0", "--delta", "1e-5", "--ledger"];
    refused(&[&zero[..], &[&ledger]].concat(), 2, "epsilon 0 is not greater than 0");
    // A rounds file has its mode, and another adjacency gives another epsilon.
    let rounds = ["ledger", "export", &ledger, "--format", "rounds", "--dataset"];
    assert!(
        ok(&[&rounds[..], &["adaptive"]].concat()).starts_with(r#"{"mode":"adaptive","order":"#)
    );
    assert!(ok(&[&rounds[..], &["mnist"]].concat()).starts_with(r#"{"mode":"planned"}"#));
    let other = ["account", &ledger, "--dataset", "adaptive", "--delta", "1e-6", "--adjacency"];
    refused(&[&other[..], &["add-remove"]].concat(), 2, "replace-one");
}

#[test]
fn ledgers_are_verified_shown_and_moved() {
    let directory = Directory::new("ledger");
    let ledger = create(&directory);
    charge(&ledger, 100);
    let head = ok(&["ledger", "head", &ledger]);
    let verified = json(&["ledger", "verify", &ledger]);
    assert_eq!((&verified["rounds"], &verified["rows"]), (&100.into(), &5.into()));
    assert_eq!(verified["head"].as_str(), Some(head.trim()));
    charge(&ledger, 50);
    ok(&["ledger", "verify", &ledger, "--against", head.trim()]);
    let later = ok(&["ledger", "head", &ledger]);
    assert!(ok(&["ledger", "show", &ledger]).contains("mnist"));
    assert_eq!(json(&["ledger", "list", &ledger])["runs"].as_array().unwrap().len(), 2);
    // Export and import give the same head.
    let (export, copy) = (directory.file("export.jsonl"), directory.file("copy.db"));
    std::fs::write(&export, ok(&["ledger", "export", &ledger])).unwrap();
    let import = veilgrad(&["ledger", "import", &copy, &export]);
    assert_eq!(import.status.code(), Some(0));
    assert!(String::from_utf8_lossy(&import.stderr).contains("is a copy with the id"));
    assert_eq!(ok(&["ledger", "head", &copy]), later);
    assert_eq!(json(&["ledger", "import", &copy, &export])["charged"], 0);
    assert_eq!(ok(&["ledger", "export", &ledger, "--format", "csv"]).lines().count(), 9);
    // `account` computes the same number from the exported rounds.
    let rounds = directory.file("rounds.jsonl");
    std::fs::write(&rounds, ok(&["ledger", "export", &ledger, "--format", "rounds"])).unwrap();
    let from_rounds = json(&["account", &rounds, "--delta", "1e-5"]);
    let from_ledger = json(&["account", &ledger, "--delta", "1e-5"]);
    assert_eq!(from_rounds["epsilon"], from_ledger["epsilon"]);
    // A head that this ledger does not have.
    let other = Directory::new("other");
    let stranger = ok(&["ledger", "head", &create(&other)]);
    refused(&["ledger", "verify", &ledger, "--against", stranger.trim()], 4, "is of ledger");
    refused(&["ledger", "verify", &ledger, "--against", "nonsense"], 2, "nonsense");
}

#[test]
fn what_is_no_ledger_has_exit_code_4_and_stays_as_it_is() {
    let directory = Directory::new("refused");
    let ledger = create(&directory);
    refused(&["ledger", "verify", &directory.file("none.db")], 4, "No such file");
    let text = directory.file("text.db");
    std::fs::write(&text, "certainly no database ".repeat(100)).unwrap();
    refused(&["ledger", "verify", &text], 4, "is not a ledger");
    let anchor = format!("{ledger}.anchor");
    let saved = std::fs::read(&anchor).unwrap();
    std::fs::remove_file(&anchor).unwrap();
    refused(&["ledger", "verify", &ledger], 4, "missing");
    std::fs::write(&anchor, &saved[..100]).unwrap();
    refused(&["ledger", "verify", &ledger], 4, "no slot");
    std::fs::write(&anchor, saved).unwrap();
    ok(&["ledger", "verify", &ledger]);
}

#[test]
fn no_command_serves_or_changes_what_is_no_ledger() {
    let directory = Directory::new("bad");
    let good = create(&directory);
    let export = directory.file("export.jsonl");
    std::fs::write(&export, ok(&["ledger", "export", &good])).unwrap();
    let database = |name: &str, script: &str| {
        let path = directory.file(name);
        rusqlite::Connection::open(&path).unwrap().execute_batch(script).unwrap();
        path
    };
    let foreign = database("foreign.db", "CREATE TABLE t (x)");
    let script = "PRAGMA application_id = 0x5665694c; PRAGMA user_version = 9; CREATE TABLE t (x)";
    let future = database("future.db", script);
    let (text, empty, folder) =
        (directory.file("text.db"), directory.file("empty.db"), directory.file("folder"));
    std::fs::write(&text, "certainly no database ".repeat(100)).unwrap();
    std::fs::write(&empty, "").unwrap();
    std::fs::create_dir(&folder).unwrap();
    // Two copies of a ledger that diverged: the database of one with the anchor of the other.
    let (one, two) = (directory.file("one.db"), directory.file("two.db"));
    for branch in [&one, &two] {
        ok(&["ledger", "import", branch, &export]);
        charge(branch, 3);
    }
    std::fs::copy(format!("{one}.anchor"), format!("{two}.anchor")).unwrap();
    let bad = [
        (&foreign, "another program's database"),
        (&future, "schema 9"),
        (&text, "is not a database"),
        (&empty, "is empty"),
        (&folder, "is not a file"),
        (&two, "is not the one that was anchored"),
    ];
    let list = || {
        let mut files: Vec<(PathBuf, Vec<u8>)> = std::fs::read_dir(&directory.0)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            // The index of a WAL holds locks, not rows.
            .filter(|path| path.extension().is_none_or(|end| end != "db-shm"))
            .map(|path| (path.clone(), std::fs::read(&path).unwrap_or_default()))
            .filter(|(path, bytes)| {
                !bytes.is_empty() || path.extension().is_none_or(|end| end != "db-wal")
            })
            .collect();
        files.sort();
        files
    };
    let before = list();
    for (path, why) in bad {
        for command in [
            vec!["ledger", "list", path],
            vec!["ledger", "show", path],
            vec!["ledger", "verify", path],
            vec!["ledger", "head", path],
            vec!["ledger", "export", path],
            vec!["ledger", "import", path, &export],
            vec!["budget", "list", "--ledger", path],
            vec!["budget", "show", "mnist", "--ledger", path],
            vec!["budget", "tighten", "mnist", "--epsilon", "1", "--ledger", path],
            vec!["budget", "create", "x", "--epsilon", "1", "--delta", "1e-5", "--ledger", path],
        ] {
            refused(&command, 4, why);
        }
    }
    let after = list();
    let names = |files: &[(PathBuf, Vec<u8>)]| -> Vec<PathBuf> {
        files.iter().map(|(path, _)| path.clone()).collect()
    };
    assert_eq!(names(&before), names(&after));
    assert!(before == after, "a file was changed");
}

#[test]
fn backups_hold_their_head_are_imported_and_never_charged() {
    let directory = Directory::new("ledger-backup");
    let ledger = create(&directory);
    charge(&ledger, 100);
    let copy = directory.file("copy.db");
    let head = ok(&["ledger", "head", &ledger]);
    let printed = ok(&["ledger", "backup", &ledger, &copy]);
    assert!(printed.contains(&format!("head {head}")), "{printed}");
    assert_eq!(json(&["ledger", "verify", &copy])["warnings"], serde_json::json!([]));
    refused(&["ledger", "backup", &ledger, &copy], 4, "exists");
    refused(&["budget", "tighten", "mnist", "--epsilon", "2", "--ledger", &copy], 4, "is a backup");
    charge(&ledger, 100);
    let newer = ok(&["ledger", "head", &ledger]);
    refused(&["ledger", "verify", &copy, "--against", newer.trim()], 4, "rolled back");
    // Imported into its own ledger it adds nothing; without a ledger it creates one.
    assert_eq!(json(&["ledger", "import", &ledger, &copy])["charged"], 0);
    let restored = directory.file("restored.db");
    ok(&["ledger", "import", &restored, &copy]);
    assert_eq!(ok(&["ledger", "head", &restored]), head);
    ok(&["budget", "tighten", "mnist", "--epsilon", "2", "--ledger", &restored]);
}

#[test]
fn a_cut_export_is_refused_and_an_old_one_needs_a_flag() {
    let directory = Directory::new("ledger-cut");
    let ledger = create(&directory);
    charge(&ledger, 100);
    let export = ok(&["ledger", "export", &ledger]);
    let head = ok(&["ledger", "head", &ledger]);
    assert!(export.ends_with(&format!("{{\"head\":\"{}\"}}\n", head.trim())), "{export}");
    let rows: Vec<&str> = export.lines().collect();
    let (file, new) = (directory.file("export.jsonl"), directory.file("new.db"));
    std::fs::write(&file, rows[..rows.len() - 1].join("\n")).unwrap();
    refused(&["ledger", "import", &new, &file], 4, "does not end with its head");
    assert!(!Path::new(&new).exists());
    ok(&["ledger", "import", &new, &file, "--allow-no-head"]);
    assert_eq!(ok(&["ledger", "head", &new]), head);
}

#[test]
fn a_witness_gets_the_head_of_every_row_from_commands() {
    let directory = Directory::new("ledger-witness");
    let (ledger, heads) = (directory.file("ledger.db"), directory.file("heads"));
    let budget = ["budget", "create", "mnist", "--epsilon", "3", "--delta", "1e-5", "--ledger"];
    ok(&[&budget[..], &[&ledger, "--witness", &heads]].concat());
    let head = ok(&["ledger", "head", &ledger]);
    assert_eq!(std::fs::read_to_string(&heads).unwrap(), head);
    let tighten = ["budget", "tighten", "mnist", "--epsilon", "2", "--ledger", &ledger];
    let run = Command::new(env!("CARGO_BIN_EXE_veilgrad"))
        .args(tighten)
        .env("VEILGRAD_WITNESS", format!("|cat >> '{heads}'"))
        .output()
        .unwrap();
    assert!(run.status.success(), "{run:?}");
    let text = std::fs::read_to_string(&heads).unwrap();
    assert_eq!(text.lines().count(), 2);
    assert_eq!(text.lines().last(), Some(ok(&["ledger", "head", &ledger]).trim()));
    let lower = ["budget", "tighten", "mnist", "--epsilon", "1", "--ledger", &ledger];
    refused(&[&lower[..], &["--witness", "|false"]].concat(), 4, "row 4 stands");
    assert_eq!(json(&["budget", "show", "mnist", "--ledger", &ledger])["epsilon"], 1.0);
    refused(&[&lower[..], &["--witness", "|"]].concat(), 2, "witness is empty");
}

#[test]
fn a_damaged_ledger_is_repaired_into_a_new_one() {
    let directory = Directory::new("ledger-repair");
    let (ledger, new) = (create(&directory), directory.file("new.db"));
    let repair = ["ledger", "repair", &ledger, &new];
    refused(&repair, 4, "nothing to repair");
    std::fs::remove_file(format!("{ledger}.anchor")).unwrap();
    refused(&["budget", "show", "mnist", "--ledger", &ledger], 4, "its anchor");
    let repaired = json(&repair);
    assert!(repaired["lost"].as_str().unwrap().contains("no anchor"), "{repaired}");
    assert_eq!(repaired["head"], ok(&["ledger", "head", &new]).trim());
    refused(&["budget", "show", "mnist", "--ledger", &new], 7, "rows of the ledger were lost");
    // A repair never overwrites a file.
    refused(&repair, 4, "exists");
}
