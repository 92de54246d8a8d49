//! Statements and reports of a run's directory, which are computed from its ledger.

use crate::common::{Directory, config, ok, refused, table, veilgrad};
use serde_json::{Value, json};

/// A run with a budget for several, whose ledger is next to the directory of results.
struct Trained {
    directory: Directory,
    config: String,
    ledger: String,
    out: String,
}

impl Trained {
    fn new(name: &str) -> Self {
        let directory = Directory::new(name);
        table(&directory.file("data.csv"), 400);
        let config = config(&directory, 5, "");
        let (ledger, out) = (directory.file("ledger.db"), directory.file("out"));
        ok(&["budget", "create", "toy", "--epsilon", "9", "--delta", "1e-5", "--ledger", &ledger]);
        let trained = Self { directory, config, ledger, out };
        trained.train("out");
        trained
    }

    fn train(&self, out: &str) {
        let out = self.directory.file(out);
        ok(&["train", &self.config, "--out", &out, "--ledger", &self.ledger, "-q"]);
    }

    /// Changes what is stored with the results.
    fn edit(&self, change: impl FnOnce(&mut Value)) {
        let path = format!("{}/report.json", self.out);
        let mut report: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        change(&mut report);
        std::fs::write(path, report.to_string()).unwrap();
    }
}

#[test]
fn a_statement_does_not_repeat_an_edited_report() {
    let trained = Trained::new("statement-edited");
    let statement = ok(&["statement", &trained.out]);
    let report = ok(&["report", &trained.out, "--json"]);
    trained.edit(|report| {
        report["epsilon"] = json!(0.125);
        report["epsilon_running"] = json!(0.125);
        report["delta"] = json!(1e-9);
        report["runs"] = json!(17);
        report["ledger"]["sequence"] = json!(12345);
        report["noise_multiplier"] = json!(77.0);
        report["statement"] = json!("What is promised. Everything.");
        report["rounds"] = json!(1_000_000);
        report["unit"] = json!("user");
    });
    assert_eq!(ok(&["statement", &trained.out]), statement);
    assert_eq!(ok(&["report", &trained.out, "--json"]), report);
    // The stored statement is printed only with --unverified, and labelled.
    let stored = ok(&["statement", &trained.out, "--unverified"]);
    assert!(stored.starts_with("NOT COMPUTED AGAIN."), "{stored}");
    assert!(ok(&["report", &trained.out, "--unverified"]).contains("NOT COMPUTED AGAIN"));
}

#[test]
fn a_statement_says_as_of_which_head_and_what_changed_since() {
    let trained = Trained::new("statement-newer");
    let json = |arguments: &[&str]| -> Value {
        serde_json::from_str(&ok(&[arguments, &["--json"]].concat())).unwrap()
    };
    let before = ok(&["statement", &trained.out]);
    assert!(before.contains("This ledger has one run on this data."), "{before}");
    let first = json(&["report", &trained.out]);
    assert!(first["epsilon"].as_f64().unwrap() <= 2.0 && first.get("newer").is_none(), "{first}");
    assert_eq!(first["ledger"]["path"], "../ledger.db");
    trained.train("second");
    let after = ok(&["statement", &trained.out]);
    assert!(after.contains("This ledger has 2 runs on this data"), "{after}");
    assert!(after.contains("1 more run(s) began on this data"), "{after}");
    let head = ok(&["ledger", "head", &trained.ledger]);
    assert!(after.contains(head.trim()), "{after}");
    let second = json(&["report", &trained.out]);
    assert_eq!((&second["runs"], &second["epsilon"]), (&2.into(), &9.0.into()));
    assert!(second["ledger"]["sequence"].as_u64() > first["ledger"]["sequence"].as_u64());
    assert_eq!(second["newer"]["changes"][0], "1 more run(s) began on this data");
    // Facts that do not affect the guarantee are still those of the first run.
    for key in ["test_accuracy", "model", "rounds", "run_ids"] {
        assert_eq!(second[key], first[key], "{key}");
    }
    ok(&["budget", "tighten", "toy", "--epsilon", "1.5", "--ledger", &trained.ledger]);
    let tightened = ok(&["statement", &trained.out]);
    assert!(tightened.contains("the budget was lowered to epsilon 1.5"), "{tightened}");
    assert!(tightened.contains("more is spent than the budget of 1.5 allows"), "{tightened}");
}

#[test]
fn without_its_ledger_a_statement_is_refused() {
    let trained = Trained::new("statement-gone");
    let statement = ok(&["statement", &trained.out]);
    let moved = trained.directory.file("moved.db");
    for end in ["", ".anchor", "-wal", "-shm"] {
        let from = format!("{}{end}", trained.ledger);
        if std::fs::exists(&from).unwrap() {
            std::fs::rename(from, format!("{moved}{end}")).unwrap();
        }
    }
    let error = refused(&["statement", &trained.out], 4, "--ledger FILE");
    assert!(error.contains("ledger.db") && error.contains("--unverified"), "{error}");
    refused(&["report", &trained.out], 4, "--ledger FILE");
    assert_eq!(ok(&["statement", &trained.out, "--ledger", &moved]), statement);
    // Another ledger, or a head that this one does not have.
    let other = trained.directory.file("other.db");
    ok(&["budget", "create", "toy", "--epsilon", "9", "--delta", "1e-5", "--ledger", &other]);
    refused(&["statement", &trained.out, "--ledger", &other], 4, "is of ledger");
    trained.edit(|report| {
        let head = report["ledger"]["head"].as_str().unwrap().to_owned();
        let (rest, hash) = head.rsplit_once(':').unwrap();
        report["ledger"]["head"] = json!(format!("{rest}:{}", "0".repeat(hash.len())));
    });
    refused(&["statement", &trained.out, "--ledger", &moved], 4, "another branch");
    trained.edit(|report| report["ledger"]["head"] = json!("nonsense"));
    refused(&["statement", &trained.out, "--ledger", &moved], 5, "nonsense");
}

#[test]
fn a_delta_above_one_over_the_declared_records_is_warned_of() {
    let directory = Directory::new("statement-delta");
    table(&directory.file("data.csv"), 400);
    let path = config(&directory, 5, "");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace("delta = 1e-5", "delta = 0.01")).unwrap();
    let (out, ledger) = (directory.file("out"), directory.file("ledger.db"));
    let trained = veilgrad(&["train", &path, "--out", &out, "--ledger", &ledger]);
    assert_eq!(trained.status.code(), Some(0));
    let said = String::from_utf8(trained.stdout).unwrap();
    assert!(said.contains("above one over the declared number of records (400)"), "{said}");
    // The noise of the run is printed rounded down.
    let report: Value = serde_json::from_str(&ok(&["report", &out, "--json"])).unwrap();
    let announced = String::from_utf8(trained.stderr).unwrap();
    let line = announced.lines().find(|line| line.starts_with("noise multiplier")).unwrap();
    let noise: f64 = line.split_whitespace().nth(2).unwrap().parse().unwrap();
    assert!(noise <= report["noise_multiplier"].as_f64().unwrap(), "{line} {report}");
    let statement = ok(&["statement", &out]);
    assert!(statement.contains("WARNING.") && statement.contains("records (400)"), "{statement}");
}

#[test]
fn a_statement_says_what_people_with_several_records_are_promised() {
    let trained = Trained::new("statement-groups");
    let report: Value = serde_json::from_str(&ok(&["report", &trained.out, "--json"])).unwrap();
    let rows = report["group_epsilons"].as_array().unwrap();
    let numbers: Vec<(u64, f64)> = rows
        .iter()
        .map(|row| (row["records"].as_u64().unwrap(), row["epsilon"].as_f64().unwrap()))
        .collect();
    let one = report["epsilon"].as_f64().unwrap();
    assert_eq!(numbers.iter().map(|(records, _)| *records).collect::<Vec<_>>(), [2, 5]);
    assert!(numbers[0].1 > 1.5 * one && numbers[1].1 > 2.0 * numbers[0].1, "{numbers:?} {one}");
    let statement = ok(&["statement", &trained.out]);
    assert!(
        statement.contains("People with several records.") && statement.contains("for 5 records")
    );
    // A second run makes the budget the claim, which has no profile.
    trained.train("second");
    let report: Value = serde_json::from_str(&ok(&["report", &trained.out, "--json"])).unwrap();
    assert!(report.get("group_epsilons").is_none(), "{report}");
}
