//! Names come from untrusted files: they must not control terminals or run as formulas in spreadsheets.

use crate::common::{Directory, config, ok, refused, table};
use serde_json::Value;

/// The class `a` of a model under another name, as JSON in JSON spells it.
fn renamed(directory: &Directory, model: &str, name: &str) -> String {
    let bytes = std::fs::read(model).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header = String::from_utf8(bytes[8..8 + length].to_vec()).unwrap();
    let changed = header.replace("[\\\"a\\\",", &format!("[\\\"{name}\\\","));
    assert_ne!(header, changed);
    let path = directory.file("renamed.safetensors");
    let size = (changed.len() as u64).to_le_bytes();
    std::fs::write(&path, [&size[..], changed.as_bytes(), &bytes[8 + length..]].concat()).unwrap();
    path
}

#[test]
fn predictions_neither_colour_terminals_nor_run_in_spreadsheets() {
    let directory = Directory::new("names-predict");
    let data = directory.file("data.csv");
    table(&data, 400);
    let (path, out) = (config(&directory, 30, ""), directory.file("out"));
    ok(&["train", &path, "--out", &out, "--ledger", &directory.file("ledger.db"), "-q"]);
    let model = format!("{out}/model.safetensors");
    let name = "=1+2\\\\u001b[31m\\\\u202e";
    let predictions = ok(&["predict", &renamed(&directory, &model, name), &data]);
    assert!(predictions.contains("\n\"'=1+2\\u001b[31m\\u202e\",0."), "{predictions}");
    assert!(predictions.is_ascii() && !predictions.contains('\x1b'), "{predictions}");
    // Parsed JSON has the name unchanged.
    let document = ok(&["predict", &renamed(&directory, &model, name), &data, "--json"]);
    assert!(document.is_ascii(), "{document}");
    let document: Value = serde_json::from_str(&document).unwrap();
    let classes: Vec<&str> = document["predictions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|prediction| prediction["class"].as_str().unwrap())
        .collect();
    assert!(classes.contains(&"=1+2\x1b[31m\u{202e}"));
    // Numbers are not formulas.
    let predictions = ok(&["predict", &renamed(&directory, &model, "-1"), &data]);
    assert!(predictions.contains("\n-1,0."), "{predictions}");
}

#[test]
fn a_table_of_a_ledger_has_no_formulas() {
    let directory = Directory::new("names-ledger");
    let ledger = directory.file("ledger.db");
    let name = "=HYPERLINK(1)";
    ok(&["budget", "create", name, "--epsilon", "1", "--delta", "1e-5", "--ledger", &ledger]);
    let table = ok(&["ledger", "export", &ledger, "--format", "csv"]);
    assert!(table.contains(",\"'=HYPERLINK(1)\","), "{table}");
}

#[test]
fn errors_spell_out_what_cannot_be_seen() {
    let directory = Directory::new("names-errors");
    let error = refused(&["train", &directory.file("no\x1b[31m\u{202e}.toml")], 1, "No such file");
    assert!(error.contains("no\\u001b[31m\\u202e.toml") && error.is_ascii(), "{error}");
}
