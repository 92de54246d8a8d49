//! `evaluate` and `predict` on public examples.

use crate::common::{Directory, config, npy, ok, refused, table, veilgrad};
use serde_json::Value;

/// A model of the toy table.
fn trained(directory: &Directory) -> String {
    table(&directory.file("data.csv"), 400);
    let out = directory.file("out");
    ok(&["train", &config(directory, 12, ""), "--out", &out, "--quiet"]);
    format!("{out}/model.safetensors")
}

fn json(arguments: &[&str]) -> Value {
    serde_json::from_str(&ok(arguments)).unwrap()
}

#[test]
fn an_evaluation_agrees_with_the_report_and_with_predictions() {
    let directory = Directory::new("evaluate");
    let model = trained(&directory);
    let public = directory.file("test.csv");
    let found = json(&["evaluate", &model, &public, "--json"]);
    assert_eq!((&found["schema"], &found["private"]), (&1.into(), &false.into()));
    let report = std::fs::read_to_string(directory.file("out/report.json")).unwrap();
    let report: Value = serde_json::from_str(&report).unwrap();
    assert_eq!(found["accuracy"], report["test_accuracy"]);
    assert_eq!((&found["examples"], &found["evaluated"]), (&100.into(), &100.into()));
    // Counted from the predictions and the table.
    let predicted = ok(&["predict", &model, &public, "--id", "class"]);
    let count = |class: &str, predicted_class: &str| {
        let line = format!("{class},{predicted_class},");
        predicted.lines().skip(1).filter(|found| found.starts_with(&line)).count()
    };
    for (row, class) in ["a", "b"].iter().enumerate() {
        for (column, predicted) in ["a", "b"].iter().enumerate() {
            assert_eq!(found["confusion_matrix"][row][column], count(class, predicted));
        }
    }
    let text = ok(&["evaluate", &model, &public]);
    assert!(text.starts_with("NOT PRIVATE: these numbers are exact."), "{text}");
    for shown in ["accuracy", "AUC", "log loss", "Brier score", "calibration error", "confusion"] {
        assert!(text.contains(shown), "{shown}: {text}");
    }
    // The page and the picture.
    let (page, picture) = (directory.file("page.html"), directory.file("picture.svg"));
    ok(&["evaluate", &model, &public, "--html", &page]);
    ok(&["evaluate", &model, &public, "--svg", &picture]);
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.contains("NOT PRIVATE") && page.matches("<svg").count() == 3, "{page}");
    assert!(!page.contains("http"), "the page needs no network");
    let picture = std::fs::read_to_string(picture).unwrap();
    assert!(picture.starts_with("<svg xmlns") && picture.contains("ROC curve"));
    let both = ["evaluate", &model, &public, "--html", "a", "--svg", "b"];
    refused(&both, 2, "cannot be used with");
}

#[test]
fn labels_are_found_as_in_training() {
    let directory = Directory::new("evaluate-labels");
    let model = trained(&directory);
    // A table whose label has another name.
    let text = std::fs::read_to_string(directory.file("test.csv")).unwrap();
    let renamed = directory.file("renamed.csv");
    std::fs::write(&renamed, text.replace("class", "truth")).unwrap();
    refused(&["evaluate", &model, &renamed], 5, "has no column \"class\"");
    let found = json(&["evaluate", &model, &renamed, "--label", "truth", "--json"]);
    assert_eq!(found["examples"], 100);
    // Examples without a declared class do not count.
    let unknown = directory.file("unknown.csv");
    std::fs::write(&unknown, text.replace(",b\n", ",c\n")).unwrap();
    let found = json(&["evaluate", &model, &unknown, "--json"]);
    let left_out = found["without_label"].as_u64().unwrap();
    assert!(left_out > 10 && found["evaluated"].as_u64().unwrap() + left_out == 100);
    assert!(found["auc"].is_null() && found["auc_reason"].is_string());
    std::fs::write(&unknown, text.replace(",b\n", ",c\n").replace(",a\n", ",c\n")).unwrap();
    refused(&["evaluate", &model, &unknown], 5, "no example with a declared label");
    // Arrays.
    let images = format!("{}/tests/first_edition/images.npy", env!("CARGO_MANIFEST_DIR"));
    let cnn = format!("{}/tests/first_edition/cnn.safetensors", env!("CARGO_MANIFEST_DIR"));
    refused(&["evaluate", &cnn, &images], 2, "pass --labels");
    let predictions = ok(&["predict", &cnn, &images]);
    let count = predictions.lines().count() - 1;
    let labels = directory.file("labels.npy");
    std::fs::write(&labels, npy(&format!("{count},"), &vec![0.0; count])).unwrap();
    let found = json(&["evaluate", &cnn, &images, "--labels", &labels, "--json"]);
    assert_eq!(found["examples"], count);
    std::fs::write(&labels, npy("1,", &[0.0])).unwrap();
    refused(&["evaluate", &cnn, &images, "--labels", &labels], 5, "not as many labels");
    // A table of a model that does not say which column is the label.
    let linear = format!("{}/tests/first_edition/linear.safetensors", env!("CARGO_MANIFEST_DIR"));
    refused(&["evaluate", &linear, &directory.file("test.csv")], 2, "pass --label");
}

/// The report of a run, `evaluate` and scikit-learn's `accuracy_score` of what `predict` prints agree on rows without a
/// declared class and on a model whose outputs are all equal.
#[test]
fn one_file_has_one_accuracy_with_ties_and_undeclared_labels() {
    let directory = Directory::new("evaluate-ties");
    table(&directory.file("data.csv"), 400);
    // With a learning rate that changes no bit, the model stays all zeros.
    let path = config(&directory, 12, "");
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.contains("lr = 2.0"));
    std::fs::write(&path, text.replace("lr = 2.0", "lr = 1e-45")).unwrap();
    let public = directory.file("test.csv");
    let rows = "x,y,word,class\n0.9,0.1,w,a\n0.1,0.9,w,b\n0.2,0.9,w,b\n0.3,0.9,w,c\n0.4,0.8,w,\n";
    std::fs::write(&public, rows).unwrap();
    let out = directory.file("out");
    ok(&["train", &path, "--out", &out, "--quiet"]);
    let model = format!("{out}/model.safetensors");
    let predicted = ok(&["predict", &model, &public]);
    assert!(predicted.lines().skip(1).all(|line| line == "a,0.500000"), "{predicted}");
    let found = json(&["evaluate", &model, &public, "--json"]);
    assert_eq!(found["accuracy"], 1.0 / 3.0);
    let report = std::fs::read_to_string(format!("{out}/report.json")).unwrap();
    let report: Value = serde_json::from_str(&report).unwrap();
    assert_eq!(report["test_accuracy"], found["accuracy"]);
}

#[test]
fn predictions_have_probabilities_and_ids_on_request() {
    let directory = Directory::new("predict-id");
    let model = trained(&directory);
    let data = directory.file("new.csv");
    let rows = "who,x,y,word,class\n=1+2,0.9,0.1,w,a\n,0.1,0.9,w,a\nc\u{1b}[31m,nothing,0.5,w,a\n";
    std::fs::write(&data, rows).unwrap();
    let plain = ok(&["predict", &model, &data]);
    assert!(plain.starts_with("class,probability\n"), "{plain}");
    let text = ok(&["predict", &model, &data, "--probabilities", "--id", "who"]);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "who,class,probability,probability of a,probability of b");
    // A formula becomes text, a missing id is empty, and an escape is spelled out.
    assert!(lines[1].starts_with("\"'=1+2\",") && lines[2].starts_with(','), "{text}");
    assert_eq!(lines[3], "c\\u001b[31m,,,,");
    let found = json(&["predict", &model, &data, "--probabilities", "--id", "who", "--json"]);
    assert_eq!(found["classes"], serde_json::json!(["a", "b"]));
    let rows = found["predictions"].as_array().unwrap();
    assert_eq!((&rows[0]["id"], &rows[1]["id"]), (&"=1+2".into(), &Value::Null));
    assert!(rows[2]["class"].is_null() && rows[2]["probabilities"].is_null());
    let all: Vec<f64> =
        rows[0]["probabilities"].as_array().unwrap().iter().map(|p| p.as_f64().unwrap()).collect();
    assert!((all.iter().sum::<f64>() - 1.0).abs() < 1e-12);
    assert_eq!(rows[0]["probability"].as_f64().unwrap(), all[0].max(all[1]));
    let plain = json(&["predict", &model, &data, "--json"]);
    assert!(plain["predictions"][0].get("id").is_none() && plain.get("classes").is_none());
    refused(&["predict", &model, &data, "--id", "nobody"], 5, "has no column \"nobody\"");
    let images = format!("{}/tests/first_edition/images.npy", env!("CARGO_MANIFEST_DIR"));
    let cnn = format!("{}/tests/first_edition/cnn.safetensors", env!("CARGO_MANIFEST_DIR"));
    refused(&["predict", &cnn, &images, "--id", "who"], 5, "is not a table");
}

#[test]
fn names_in_an_evaluation_cannot_move_the_cursor_or_leave_their_element() {
    let directory = Directory::new("evaluate-names");
    let model = trained(&directory);
    let bytes = std::fs::read(&model).unwrap();
    // Names of the same length, so that the file stays valid.
    let text = String::from_utf8_lossy(&bytes).into_owned();
    assert!(text.contains("\\\"classes\\\":[\\\"a\\\",\\\"b\\\"]"));
    let forged = replace(
        &bytes,
        b"\\\"classes\\\":[\\\"a\\\",\\\"b\\\"]",
        b"\\\"classes\\\":[\\\"<\\\",\\\"b\\\"]",
    );
    let place = directory.file("forged.safetensors");
    std::fs::write(&place, forged).unwrap();
    let page = directory.file("page.html");
    let output = veilgrad(&["evaluate", &place, &directory.file("test.csv"), "--html", &page]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.contains("<td>&lt;</td>") && !page.contains("<td><</td>"));
}

/// All occurrences of some bytes replaced by as many others.
fn replace(bytes: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    assert_eq!(from.len(), to.len());
    let mut replaced = bytes.to_vec();
    let places: Vec<usize> =
        bytes.windows(from.len()).enumerate().filter(|(_, w)| *w == from).map(|(i, _)| i).collect();
    for place in places {
        replaced[place..place + to.len()].copy_from_slice(to);
    }
    replaced
}
