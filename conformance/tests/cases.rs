//! The cases that ship with the repository.

use veilgrad_conformance::run;

#[test]
fn every_shipped_case_of_a_covered_kind_holds() {
    let report = run(include_str!("../cases.json")).unwrap();
    assert_eq!(report.failures(), Vec::<String>::new());
    assert_eq!((report.passed(), report.skipped()), (58, 65), "{report}");
    assert!(!report.to_string().contains("unknown kind"), "{report}");
}

/// The runner can fail: every expectation of a case that is run, changed, is noticed.
#[test]
fn a_changed_expectation_is_noticed() {
    let text = include_str!("../cases.json");
    let mut file: serde_json::Value = serde_json::from_str(text).unwrap();
    let cases = file["cases"].as_array_mut().unwrap();
    for case in cases.iter_mut() {
        change(&mut case["expected"]);
    }
    let report = run(&file.to_string()).unwrap();
    // Left over: errors, and rules in words, which have no number to change.
    assert!(report.passed() <= 8, "{report}");
}

fn change(value: &mut serde_json::Value) {
    use serde_json::Value;
    match value {
        Value::Number(number) => *value = (number.as_f64().unwrap() * 3.0 + 7.0).into(),
        Value::Array(items) => items.iter_mut().for_each(change),
        Value::Object(fields) => fields.values_mut().for_each(change),
        _ => {}
    }
}
