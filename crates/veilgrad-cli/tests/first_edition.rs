//! Files of the first version of the program are still readable and mean the same.
//!
//! They are two ledgers, an export, and three models with their predictions. They must never be regenerated: a change that
//! breaks them needs a new version of the format.

use std::path::Path;

use crate::common::{Directory, ok, refused};
use serde_json::Value;

fn kept(name: &str) -> String {
    format!("{}/tests/first_edition/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// A copy of a ledger, since opening one may write files next to it.
fn ledger(directory: &Directory, name: &str) -> String {
    for suffix in ["", ".anchor"] {
        let name = format!("{name}{suffix}");
        std::fs::copy(kept(&name), Path::new(&directory.file(&name))).unwrap();
    }
    directory.file(name)
}

#[test]
fn ledgers_verify_and_cost_what_they_cost() {
    let directory = Directory::new("first-edition");
    for (name, head, epsilon) in [
        ("ledger.db", ":7:b339a9b4fa82ae1b", 0.999_999_985_841),
        ("shuffle.db", ":8:fe8be53e1a5c52db", 2.499_999_956_542),
    ] {
        let ledger = ledger(&directory, name);
        ok(&["ledger", "verify", &ledger]);
        assert!(ok(&["ledger", "head", &ledger]).contains(head));
        let words = ["account", &ledger, "--delta", "1e-5", "--json"];
        let cost: Value = serde_json::from_str(&ok(&words)).unwrap();
        let found = cost["epsilon"].as_f64().unwrap();
        assert!((found - epsilon).abs() < 1e-9, "{name}: {found}");
        assert_eq!(cost["mode"], "planned");
        // It can still be charged.
        ok(&["budget", "tighten", "toy", "--epsilon", "0.5", "--ledger", &ledger]);
        ok(&["ledger", "verify", &ledger]);
    }
}

#[test]
fn an_export_without_its_head_is_taken_only_on_request() {
    let directory = Directory::new("first-edition-export");
    let (export, new) = (kept("ledger.jsonl"), directory.file("new.db"));
    refused(&["ledger", "import", &new, &export], 4, "does not end with its head");
    ok(&["ledger", "import", &new, &export, "--allow-no-head"]);
    assert!(ok(&["ledger", "head", &new]).contains(":7:b339a9b4fa82ae1b"));
}

#[test]
fn models_predict_what_they_predicted() {
    for (model, data) in [("linear", "data.csv"), ("mlp", "data.csv"), ("cnn", "images.npy")] {
        let predicted = ok(&["predict", &kept(&format!("{model}.safetensors")), &kept(data)]);
        let expected = std::fs::read_to_string(kept(&format!("{model}.csv"))).unwrap();
        assert_eq!(predicted, expected, "{model}");
    }
}
