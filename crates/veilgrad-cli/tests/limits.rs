//! Very large declared numbers cost neither time nor memory.

use crate::common::{Directory, config, ok, refused, table, veilgrad};
use serde_json::Value;

/// The configuration with users as records, each of at most `max_examples` examples.
fn users(directory: &Directory, name: &str, max_examples: u32) -> String {
    let more = format!("record = {{ user = \"who\", max_examples = {max_examples} }}");
    let path = config(directory, 5, &more);
    let text = std::fs::read_to_string(path).unwrap();
    let text = text.replace("records = 400", "records = 40").replace("batch = 100", "batch = 10");
    let path = directory.file(name);
    std::fs::write(&path, text).unwrap();
    path
}

#[test]
fn work_follows_the_data_and_not_the_declared_number_of_examples() {
    let directory = Directory::new("max-examples");
    table(&directory.file("data.csv"), 400);
    let many = users(&directory, "many.toml", 4_000_000_000);
    let (out, ledger) = (directory.file("many"), directory.file("many.db"));
    // Work proportional to the declared number of examples would never end.
    ok(&["train", &many, "--out", &out, "--ledger", &ledger]);
    let few = users(&directory, "few.toml", 10);
    let (out, ledger) = (directory.file("few"), directory.file("few.db"));
    ok(&["train", &few, "--out", &out, "--ledger", &ledger]);
}

#[test]
fn threads_beyond_those_of_the_machine_are_not_used_and_change_nothing() {
    let directory = Directory::new("threads");
    table(&directory.file("data.csv"), 400);
    let path = config(&directory, 5, "");
    let (out, ledger) = (directory.file("out"), directory.file("ledger.db"));
    let arguments = ["train", &path, "--out", &out, "--ledger", &ledger, "--threads", "100000"];
    let output = veilgrad(&arguments);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{error}");
    assert!(error.contains("threads are used: the machine has no more"), "{error}");
    let report: Value = serde_json::from_str(&ok(&["report", &out, "--json"])).unwrap();
    assert_eq!(report["rounds"], 5);
    refused(&["train", &path, "--threads", "0"], 2, "threads");
}
