//! The cases that ship with the repository.

use veilgrad_conformance::run;

#[test]
fn every_shipped_case_of_a_covered_kind_holds() {
    let report = run(include_str!("../cases.json")).unwrap();
    assert_eq!(report.failures(), Vec::<String>::new());
    assert_eq!((report.passed(), report.skipped()), (85, 46), "{report}");
    assert!(!report.to_string().contains("unknown kind"), "{report}");
}

/// The runner can fail: nearly every case whose expected values are changed fails.
#[test]
fn a_changed_expectation_is_noticed() {
    let text = include_str!("../cases.json");
    let mut file: serde_json::Value = serde_json::from_str(text).unwrap();
    let cases = file["cases"].as_array_mut().unwrap();
    for case in cases.iter_mut() {
        change(&mut case["expected"]);
    }
    let report = run(&file.to_string()).unwrap();
    // The rest are errors and rules given as text, which have no number to change.
    assert!(report.passed() <= 8, "{report}");
}

/// Epsilons are compared from both sides, within the known looseness of each accountant: an error of one
/// percent fails.
#[test]
fn an_epsilon_that_is_a_hundredth_off_is_noticed() {
    let file: serde_json::Value = serde_json::from_str(include_str!("../cases.json")).unwrap();
    let kinds = ["accountant", "calibration", "statement"];
    let cases = file["cases"].as_array().unwrap().iter();
    let cases: Vec<_> =
        cases.filter(|case| kinds.iter().any(|kind| case["kind"] == *kind)).collect();
    for factor in [0.99, 1.01] {
        let mut changed = serde_json::json!({ "cases": cases });
        for case in changed["cases"].as_array_mut().unwrap() {
            for value in case["expected"].as_object_mut().unwrap().values_mut() {
                if let Some(number) = value.as_f64() {
                    *value = (factor * number).into();
                }
            }
        }
        let report = run(&changed.to_string()).unwrap();
        assert_eq!((report.passed(), report.failures().len()), (0, 19), "{factor}: {report}");
    }
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
