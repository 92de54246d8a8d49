//! `compare` reads privacy from ledgers, not from stored reports.

use crate::common::{Directory, config, ok, refused, table, veilgrad};
use serde_json::Value;

fn json(arguments: &[&str]) -> Value {
    serde_json::from_str(&ok(arguments)).unwrap()
}

/// Two runs on one dataset with one ledger.
fn two_runs(directory: &Directory) -> [String; 2] {
    table(&directory.file("data.csv"), 400);
    let (config, ledger) = (config(directory, 8, ""), directory.file("ledger.db"));
    ok(&["budget", "create", "toy", "--epsilon", "4", "--delta", "1e-5", "--ledger", &ledger]);
    let runs = ["one", "two"].map(|name| directory.file(name));
    for (run, epsilon) in runs.iter().zip(["1", "2"]) {
        ok(&["train", &config, "--out", run, "--ledger", &ledger, "--epsilon", epsilon, "--quiet"]);
    }
    runs
}

#[test]
fn runs_stand_side_by_side_with_what_each_added() {
    let directory = Directory::new("compare");
    let [one, two] = two_runs(&directory);
    let found = json(&["compare", &one, &two, "--json"]);
    assert_eq!(found["schema"], 1);
    let rows = found["runs"].as_array().unwrap();
    let number = |row: usize, key: &str| rows[row][key].as_f64().unwrap();
    let budget =
        json(&["budget", "show", "toy", "--ledger", &directory.file("ledger.db"), "--json"]);
    let spent = budget["spent"].as_f64().unwrap();
    // The second begins where the first ended, and together they are what is spent.
    assert_eq!(number(0, "spent_before"), 0.0);
    assert_eq!(number(0, "spent_after"), number(1, "spent_before"));
    assert_eq!(number(1, "spent_after"), spent);
    let sum = number(0, "added") + number(1, "added");
    assert!((sum - spent).abs() < 1e-12, "{sum} {spent}");
    // Alone, a run costs what the ledger says, and composition is cheaper than the sum.
    for row in 0..2 {
        assert_eq!(rows[row]["alone"], budget["runs"][row]["epsilon"]);
        assert_eq!(number(row, "batch"), 100.0);
        assert_eq!((number(row, "rounds"), number(row, "budget")), (8.0, 4.0));
        assert!(rows[row]["seconds"].is_null() && rows[row]["verified"] == true);
    }
    assert!(number(1, "added") < number(1, "alone"));
    let (text, page) = (ok(&["compare", &one, &two]), directory.file("page.html"));
    assert!(text.starts_with("run ") && text.contains("There are no times"), "{text}");
    ok(&["compare", &one, &two, "--html", &page]);
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.matches("<svg").count() == 2 && !page.contains("http"), "{page}");
    refused(&["compare"], 2, "RUN");
    refused(&["compare", &directory.file("nowhere")], 1, "nowhere");
}

#[test]
fn an_edited_report_changes_nothing_that_the_ledger_knows() {
    let directory = Directory::new("compare-edited");
    let [one, two] = two_runs(&directory);
    let before = json(&["compare", &one, &two, "--json"]);
    let path = format!("{one}/report.json");
    let mut report: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    report["epsilon"] = 0.01.into();
    report["noise_multiplier"] = 99.0.into();
    report["rate"] = 0.001.into();
    std::fs::write(&path, report.to_string()).unwrap();
    assert_eq!(json(&["compare", &one, &two, "--json"]), before);
    // A run that the ledger does not have.
    report["run_ids"] = serde_json::json!(["0123"]);
    std::fs::write(&path, report.to_string()).unwrap();
    refused(&["compare", &one, &two], 4, "which the ledger does not have");
}

#[test]
fn a_missing_ledger_is_said_and_nothing_is_claimed_to_be_checked() {
    let directory = Directory::new("compare-missing");
    let [one, two] = two_runs(&directory);
    for suffix in ["", ".anchor"] {
        let from = directory.file(&format!("ledger.db{suffix}"));
        std::fs::rename(&from, format!("{from}.away")).unwrap();
    }
    let found = json(&["compare", &one, &two, "--json"]);
    for row in found["runs"].as_array().unwrap() {
        assert_eq!(row["verified"], false);
        assert!(row["reason"].as_str().unwrap().contains("the ledger is not where"));
        assert!(row["added"].is_null() && row["alone"].is_null());
    }
    let text = ok(&["compare", &one, &two]);
    assert!(text.contains("was not checked") && text.contains("unknown"), "{text}");
}

#[test]
fn names_cannot_move_the_cursor() {
    let directory = Directory::new("compare-names");
    let [one, _] = two_runs(&directory);
    let strange = directory.file("\u{1b}[31m<b>");
    std::os::unix::fs::symlink(&one, &strange).unwrap();
    let page = directory.file("page.html");
    let output = veilgrad(&["compare", &strange, "--html", &page]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(!output.stdout.contains(&0x1b));
    let page = std::fs::read_to_string(page).unwrap();
    assert!(!page.contains('\u{1b}') && !page.contains("<b>one"), "{page}");
}
