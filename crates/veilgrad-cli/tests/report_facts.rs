//! A report says when, from what and with which settings a model was made; and progress in a log has no times.

use crate::common::{Directory, config, ok, refused, table, veilgrad};
use serde_json::Value;

const GROUPS: &str = r#"
[[privacy.groups]]
vectors = ["accuracy"]
clip = 1.0
share = 0.05
[[privacy.groups]]
vectors = ["classes"]
clip = 1.0
share = 0.05
"#;

fn trained(directory: &Directory) -> (String, Value) {
    table(&directory.file("data.csv"), 400);
    let path = config(directory, 40, "");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace("[train]", &format!("{GROUPS}[train]"))).unwrap();
    let out = directory.file("out");
    ok(&["train", &path, "--out", &out, "--quiet"]);
    let report = std::fs::read(format!("{out}/report.json")).unwrap();
    (out, serde_json::from_slice(&report).unwrap())
}

fn hash(path: &str) -> String {
    let output = std::process::Command::new("sha256sum").arg(path).output().unwrap();
    String::from_utf8(output.stdout).unwrap().split(' ').next().unwrap().to_owned()
}

#[test]
fn the_report_has_date_sizes_hashes_and_configuration() {
    let directory = Directory::new("report-facts");
    let (out, report) = trained(&directory);
    let date = report["date"].as_str().unwrap();
    let parts: Vec<u32> = date.split('-').map(|part| part.parse().unwrap()).collect();
    assert!(date.len() == 10 && parts[0] >= 2025 && (1..=12).contains(&parts[1]), "{date}");
    assert_eq!((&report["records"], &report["expected_batch"]), (&400.into(), &100.0.into()));
    let model = hash(&format!("{out}/model.safetensors"));
    assert_eq!(report["model"]["sha256"], model.as_str());
    // The ledger has the hash of the configuration.
    let exported = ok(&["ledger", "export", &format!("{out}/ledger.db")]);
    let configuration = report["configuration_sha256"].as_str().unwrap();
    assert!(exported.contains(configuration), "{exported}");
    assert_eq!(report["configuration"]["train"]["rounds"], 40);
    let settings = report["configuration"].to_string();
    assert!(!settings.contains("data.csv") && !settings.contains("test.csv"), "{settings}");
    let page = std::fs::read_to_string(format!("{out}/report.html")).unwrap();
    for shown in [
        date,
        &model,
        configuration,
        "400 examples",
        "100 expected",
        "rounds = 40",
        "<h2>What an attacker can learn</h2>",
        "1 of 100 examples that are not in it",
        "(private estimate)",
    ] {
        assert!(page.contains(shown), "{shown}: {page}");
    }
    // Computed from the ledger again, it is the same page.
    assert_eq!(ok(&["report", &out]), page);
    // One format for percentages: two decimals.
    let text = page.split("<style>").chain(page.split("</style>").skip(1)).last().unwrap();
    for (place, _) in text.match_indices(" %") {
        let before: String = text[..place].chars().rev().take(3).collect();
        let decimals = before.chars().rev().collect::<String>();
        assert!(decimals.starts_with('.'), "{}", &text[place.saturating_sub(40)..place + 2]);
    }
}

#[test]
fn estimates_have_the_error_of_their_noise_and_sample() {
    let directory = Directory::new("report-errors");
    let (_, report) = trained(&directory);
    let group = |name: &str, key: &str| {
        let groups = report["groups"].as_array().unwrap();
        groups.iter().find(|group| group["name"] == name).unwrap()[key].as_f64().unwrap()
    };
    let error = |name: &str| {
        let metrics = report["metrics"].as_array().unwrap();
        let metric = metrics.iter().find(|metric| metric["name"] == name).unwrap();
        metric["standard_error"].as_f64().unwrap()
    };
    // A record is right or wrong, half a unit from the middle: the standard deviation of a sum over 100 of 400 records is
    // at most sqrt(100) / 2, of the average a hundredth of that.
    assert_eq!(group("accuracy", "clip"), 0.5);
    let (noise, sample) = (group("accuracy", "noise") / 100.0, 0.05_f64);
    assert!((error("accuracy") - (noise * noise + sample * sample).sqrt()).abs() < 1e-12);
    assert_eq!(error("classes"), group("classes", "noise"));
}

#[test]
fn another_model_or_configuration_beside_a_report_is_noticed() {
    let directory = Directory::new("report-tampered");
    let (out, report) = trained(&directory);
    let model = format!("{out}/model.safetensors");
    let mut bytes = std::fs::read(&model).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&model, bytes).unwrap();
    assert!(ok(&["report", &out]).contains("is not the file that the report was written with"));
    let mut edited = report;
    edited["configuration"]["train"]["rounds"] = 41.into();
    std::fs::write(format!("{out}/report.json"), edited.to_string()).unwrap();
    refused(&["report", &out], 4, "another configuration");
    // Reports of older versions have none.
    for key in ["configuration", "configuration_sha256", "date", "expected_batch", "model"] {
        edited.as_object_mut().unwrap().remove(key);
    }
    for metric in edited["metrics"].as_array_mut().unwrap() {
        metric.as_object_mut().unwrap().remove("standard_error");
    }
    std::fs::write(format!("{out}/report.json"), edited.to_string()).unwrap();
    assert!(ok(&["report", &out]).contains("100 expected"));
    assert!(ok(&["report", &out, "--unverified"]).contains("NOT COMPUTED AGAIN"));
}

#[test]
fn a_log_has_lines_of_progress_without_times() {
    let directory = Directory::new("report-log");
    table(&directory.file("data.csv"), 400);
    let (path, out) = (config(&directory, 40, ""), directory.file("out"));
    let output = veilgrad(&["train", &path, "--out", &out]);
    let text = String::from_utf8(output.stderr).unwrap();
    let lines: Vec<&str> =
        text.lines().filter(|line| line.contains("/40 rounds, epsilon ")).collect();
    assert_eq!(lines.len(), 20, "{text}");
    assert!(
        lines[0].starts_with("2/40 ") && lines[19].starts_with("40/40 rounds, epsilon "),
        "{text}"
    );
    assert!(lines.iter().all(|line| !line.contains(" left") && !line.contains(" s")), "{text}");
}

#[test]
fn the_page_of_a_plan_says_as_much_as_a_report() {
    let directory = Directory::new("plan-page");
    let path = directory.file("plan.html");
    ok(&[
        "plan",
        "--records",
        "60000",
        "--batch",
        "256",
        "--steps",
        "1000",
        "--delta",
        "1e-5",
        "--epsilon",
        "3",
        "--html",
        &path,
    ]);
    let page = std::fs::read_to_string(&path).unwrap();
    for shown in [
        "<b>3</b>",
        "noise multiplier (solved)",
        "batch, of 60000 records",
        "What an attacker can learn",
        "Other batch sizes",
        "expected_batch = 256.0",
        "rounds = 1000",
        "epsilon = 3.0",
    ] {
        assert!(page.contains(shown), "{shown}: {page}");
    }
    assert!(
        page.matches("<svg").count() == 3 && !page.contains("<script") && !page.contains("http"),
        "{page}"
    );
    // Above 10 there is a warning, as in a report.
    ok(&[
        "plan",
        "--rate",
        "0.1",
        "--steps",
        "100",
        "--delta",
        "1e-5",
        "--noise-multiplier",
        "0.4",
        "--html",
        &path,
    ]);
    assert!(std::fs::read_to_string(&path).unwrap().contains("is above 10"));
}
