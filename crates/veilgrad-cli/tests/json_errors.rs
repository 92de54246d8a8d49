//! With `--json`, an error is a JSON document on stdout, too.

use crate::common::{Directory, config, table, veilgrad};
use serde_json::Value;

/// Runs a command that fails; returns its code and the one document on stdout.
fn failed(arguments: &[&str]) -> (i32, Value) {
    let output = veilgrad(arguments);
    let (stdout, stderr) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(stderr.contains("error"), "{stderr}");
    let document =
        serde_json::from_str(&stdout).unwrap_or_else(|_| panic!("{arguments:?}: {stdout}"));
    (output.status.code().unwrap(), document)
}

#[test]
fn errors_are_documents_with_kind_reason_and_exit_code() {
    let directory = Directory::new("json-errors");
    let (none, text) = (directory.file("none"), directory.file("text"));
    std::fs::write(&text, "not a ledger").unwrap();
    for (arguments, code, error, reason) in [
        (&["plan", "--json", "--delta", "7"][..], 2, "usage", "delta"),
        (&["plan", "--json", "--delta", "1e-5"], 2, "usage", "are missing"),
        (&["plan", "--jsno", "--json"], 2, "usage", "--jsno"),
        (&["account", &none, "--delta", "1e-5", "--json"], 1, "failure", "none"),
        (&["budget", "list", "--ledger", &text, "--json"], 4, "ledger", "text"),
        (&["predict", &text, &text, "--json"], 5, "data", "text"),
    ] {
        let (found, document) = failed(arguments);
        assert_eq!((found, &document["error"]), (code, &error.into()), "{document}");
        assert_eq!((&document["exit_code"], &document["schema"]), (&code.into(), &1.into()));
        assert_eq!(document["valid"], false);
        let text = document["reason"].as_str().unwrap();
        assert!(text.contains(reason) && !text.contains("Usage:"), "{reason}: {text}");
    }
    // Without the flag there is nothing on stdout.
    assert!(veilgrad(&["plan", "--delta", "7"]).stdout.is_empty());
    assert!(veilgrad(&["predict", "--", "--json", "x"]).stdout.is_empty());
}

#[test]
fn a_busy_ledger_and_a_missing_answer_are_documents() {
    let directory = Directory::new("json-busy");
    table(&directory.file("data.csv"), 400);
    let (config, ledger) = (config(&directory, 4, ""), directory.file("ledger.db"));
    let create = ["budget", "create", "toy", "--delta", "1e-5", "--ledger", &ledger];
    veilgrad(&[&create[..], &["--epsilon", "2"]].concat());
    let anchor = veilgrad_ledger::Ledger::anchor_path(std::path::Path::new(&ledger));
    let anchor = std::fs::File::open(anchor).unwrap();
    anchor.lock().unwrap();
    let out = directory.file("out");
    let train =
        ["train", &config, "--json", "-q", "--out", &out, "--ledger", &ledger, "--wait", "0"];
    let (code, document) = failed(&train);
    assert_eq!((code, &document["error"], &document["exit_code"]), (6, &"busy".into(), &6.into()));
    anchor.unlock().unwrap();
    // A plan that has no answer prints it once, with the reason.
    let text = std::fs::read_to_string(&config).unwrap();
    std::fs::write(
        &config,
        text.replace("epsilon = 2.0\ndelta = 1e-5", "epsilon = 1e-9\ndelta = 1e-300"),
    )
    .unwrap();
    let (code, document) = failed(&train);
    assert_eq!((code, &document["valid"]), (7, &false.into()), "{document}");
    assert!(document["reason"].as_str().unwrap().contains("no noise multiplier"), "{document}");
}

#[test]
fn a_spent_budget_is_a_document_and_no_answer_is_printed_once() {
    let directory = Directory::new("json-budget");
    table(&directory.file("data.csv"), 400);
    let (config, ledger) = (config(&directory, 4, ""), directory.file("ledger.db"));
    let train = |out: &str| {
        let out = directory.file(out);
        veilgrad(&["train", &config, "--json", "--quiet", "--out", &out, "--ledger", &ledger])
    };
    let first = train("one");
    let report: Value = serde_json::from_slice(&first.stdout).unwrap();
    assert_eq!((first.status.code(), &report["valid"]), (Some(0), &true.into()));
    let second = train("two");
    let document: Value = serde_json::from_slice(&second.stdout).unwrap();
    assert_eq!(second.status.code(), Some(3));
    assert_eq!(document["error"], "budget-exceeded", "{document}");
    // The answer itself says that there is none.
    let (code, document) = failed(&[
        "plan",
        "--rate",
        "0.5",
        "--delta",
        "1e-5",
        "--noise-multiplier",
        "0.3",
        "--epsilon",
        "0.001",
        "--json",
    ]);
    assert!(
        code == 7 && document["reason"].as_str().unwrap().contains("not one round"),
        "{document}"
    );
    assert!(document["error"].is_null() && document["solved"] == "steps");
}
