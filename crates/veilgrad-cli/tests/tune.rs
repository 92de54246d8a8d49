//! `tune`: charged once and ahead; only the best of a secret number of runs leaves.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use crate::common::{Directory, command, config, files, ok, refused, table, veilgrad};
use serde_json::Value;

const VARY: [&str; 4] = ["--vary", "train.optimizer.lr=0.5,2.0,4.0", "--vary", "train.ema=0.5,0.9"];

fn toy(name: &str) -> (Directory, String) {
    let directory = Directory::new(name);
    table(&directory.file("data.csv"), 400);
    let config = config(&directory, 12, "");
    (directory, config)
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is not a number"))
}

fn json(arguments: &[&str]) -> Value {
    serde_json::from_str(&ok(&[arguments, &["--json", "-q"]].concat())).unwrap()
}

#[test]
fn the_ledger_and_the_report_have_the_epsilon_of_the_plan() {
    let (directory, config) = toy("tune");
    let out = directory.file("run");
    let arguments = [&["tune", &config, "--out", &out, "--mean-runs", "3"], VARY.as_slice()];
    let report = json(&arguments.concat());
    let epsilon = number(&report["epsilon"]);
    assert!(epsilon <= 2.0 && epsilon > 1.9, "{report}");
    assert_eq!(report["tuning"]["distribution"], "logarithmic");
    assert!((number(&report["tuning"]["mean_runs"]) - 3.0).abs() < 1e-6);
    let setting = &report["tuning"]["setting"];
    assert!([0.5, 2.0, 4.0].contains(&number(&setting["train.optimizer.lr"])), "{setting}");
    assert!([0.5, 0.9].contains(&number(&setting["train.ema"])), "{setting}");
    // The rounds are those of one run, and so is their noise.
    assert_eq!(report["charged"], 12);
    // The same from `plan`, with the noise multiplier of the ledger.
    let noise = report["noise_multiplier"].to_string();
    let plan = json(&[
        "plan",
        "--records",
        "400",
        "--batch",
        "100",
        "--steps",
        "12",
        "--delta",
        "1e-5",
        "--noise-multiplier",
        &noise,
        "--tuning-mean-runs",
        "3",
    ]);
    assert_eq!(number(&plan["epsilon"]), epsilon, "{plan}");
    // And from the budget and a report that is computed again.
    let ledger = format!("{out}/ledger.db");
    let budget = json(&["budget", "show", "--ledger", &ledger, "toy"]);
    assert_eq!(number(&budget["guarantee"]["epsilon"]), epsilon, "{budget}");
    let again = json(&["report", &out]);
    assert_eq!((&again["epsilon"], &again["tuning"]), (&report["epsilon"], &report["tuning"]));
    let page = ok(&["report", &out]);
    let selected =
        "accuracy on the public test set (chosen as the best of several runs: optimistic)";
    assert!(page.contains(selected));
    let statement = ok(&["statement", &out]);
    assert!(statement.contains("the best of a secret number of runs, on average 3"), "{statement}");
    // The cost of the rounds alone, which is lower, is not shown as the cost of the data.
    refused(&["account", &ledger, "--delta", "1e-5"], 7, "tuning");
    refused(&["ledger", "export", &ledger, "--format", "rounds"], 2, "tuning");
}

/// The text without ids, hashes and dates (all words of ten or more digits, the letters a to f, and the marks of a date).
fn blanked(text: &str) -> String {
    let is_mark = |c: char| c.is_ascii_hexdigit() || matches!(c, '-' | ':' | 'T' | 'Z');
    let (mut blanked, mut word) = (String::new(), String::new());
    for c in text.chars().chain(['\n']) {
        if is_mark(c) {
            word.push(c);
            continue;
        }
        blanked.push_str(if word.len() < 10 { &word } else { "#" });
        blanked.push(c);
        word.clear();
    }
    blanked
}

/// The document without ids, hashes, dates, and numbers that tell how good the model is.
fn without_scores(document: &mut Value) {
    match document {
        Value::Object(map) => {
            for (key, value) in map {
                match key.as_str() {
                    "test_accuracy" | "metrics" | "date" => *value = Value::Null,
                    _ => without_scores(value),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(without_scores),
        Value::String(text) => *text = blanked(text),
        _ => {}
    }
}

/// With one setting and one configuration, everything that leaves is the same for any number of runs, but for ids, hashes, dates
/// and what the model is.
#[test]
fn the_number_of_runs_is_in_no_output() {
    let (directory, config) = toy("tune-secret");
    let mut seen: Vec<Vec<(String, String)>> = Vec::new();
    for number in 0..6 {
        let out = directory.file(&format!("run-{number}"));
        let output = veilgrad(&[
            "tune",
            &config,
            "--out",
            &out,
            "--mean-runs",
            "4",
            "--distribution",
            "geometric",
            "--vary",
            "train.optimizer.lr=2.0",
        ]);
        assert_eq!(output.status.code(), Some(0));
        let text =
            |bytes: Vec<u8>| blanked(&String::from_utf8(bytes).unwrap().replace(&out, "OUT"));
        // The estimated time of one run depends on the machine, the accuracy on the model.
        let lines = |text: String, without: &str| {
            text.lines().filter(|line| !line.starts_with(without)).collect::<Vec<_>>().join("\n")
        };
        let read = |name: &str| std::fs::read_to_string(format!("{out}/{name}")).unwrap();
        let mut report: Value = serde_json::from_str(&read("report.json")).unwrap();
        assert_eq!((&report["rounds"], &report["charged"]), (&12.into(), &12.into()));
        without_scores(&mut report);
        let statement = blanked(&read("statement.txt").replace(&out, "OUT"));
        let mut all = vec![
            ("stdout".to_owned(), lines(text(output.stdout), "test accuracy")),
            ("stderr".to_owned(), lines(text(output.stderr), "time")),
            ("report".to_owned(), serde_json::to_string_pretty(&report).unwrap()),
            ("statement".to_owned(), statement),
        ];
        for row in ok(&["ledger", "export", &format!("{out}/ledger.db")]).lines() {
            all.push(("row of the ledger".to_owned(), blanked(row)));
        }
        // The database is as large as its pages; numbers in text have different lengths.
        for (path, bytes) in files(out.as_ref()) {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            let fixed = name.ends_with(".anchor") || name.ends_with(".safetensors");
            all.push((name, if fixed { bytes.len().to_string() } else { String::new() }));
        }
        all[4..].sort();
        seen.push(all);
    }
    for one in &seen {
        assert_eq!(one.len(), seen[0].len());
        for (found, expected) in one.iter().zip(&seen[0]) {
            assert_eq!(found, expected);
        }
    }
}

#[test]
fn a_tuning_beyond_the_budget_or_its_rules_charges_nothing() {
    let (directory, config) = toy("tune-refused");
    let out = directory.file("run");
    let tune = |more: &[&str], code: i32, what: &str| {
        refused(&[&["tune", &config, "--out", &out, "--mean-runs", "3"], more].concat(), code, what)
    };
    tune(&["--vary", "train.rounds=5,10"], 2, "a charge of its own");
    tune(&["--vary", "privacy.clip=0.5,1.0"], 2, "a charge of its own");
    tune(&["--vary", "privacy.noise_multiplier=1,2"], 2, "privacy.noise_multiplier");
    tune(&["--vary", "train.optimizer.lr=fast"], 2, "fast");
    tune(&["--vary", "train.optimizer.weight_decay=0.1"], 2, "weight_decay");
    tune(&[&VARY[..2], &["--vary", "train.optimizer.lr=1"]].concat(), 2, "twice");
    tune(&[&VARY[..2], &["--resume"]].concat(), 2, "--resume");
    refused(&["tune", &config, "--out", &out, "--mean-runs", "0.5", VARY[0], VARY[1]], 2, "mean");
    assert!(!directory.0.join("run/ledger.db").exists());
    // The whole budget is spent by one tuning; the second is refused before the data is opened.
    let all =
        [&["tune", &config, "--out", &out, "--mean-runs", "3", "-q"], VARY.as_slice()].concat();
    ok(&all);
    std::fs::remove_file(directory.file("data.csv")).unwrap();
    table(&directory.file("data.csv"), 10);
    let error = tune(&[&VARY[..2], &["--overwrite"]].concat(), 3, "epsilon would be");
    assert!(error.contains("the data was not opened"), "{error}");
    // So is a run of `train`, whatever it would cost by itself.
    refused(&["train", &config, "--out", &out, "--overwrite"], 3, "epsilon would be");
}

#[test]
fn a_poisson_number_of_runs_may_be_zero_and_then_the_model_is_untrained() {
    let (directory, config) = toy("tune-poisson");
    let out = directory.file("run");
    let text = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, text.replace("epsilon = 2.0", "noise_multiplier = 2.0")).unwrap();
    // There is a run once in a million times.
    let report = json(&[
        "tune",
        &config,
        "--out",
        &out,
        "--mean-runs",
        "0.000001",
        "--distribution",
        "poisson",
        VARY[0],
        VARY[1],
    ]);
    assert_eq!((&report["rounds"], &report["charged"]), (&0.into(), &12.into()));
    assert!(report["tuning"]["setting"].is_null(), "{report}");
    assert!(number(&report["epsilon"]) <= 2.0);
}

/// However a tuning ends, its whole charge is in the ledger before the data is opened, and nothing of its runs is kept.
#[test]
fn a_tuning_that_is_killed_or_interrupted_stays_charged_and_leaves_nothing() {
    for (signal, code) in [("-KILL", None), ("-INT", Some(130))] {
        let (directory, config) = toy(&format!("tune{signal}"));
        let text = std::fs::read_to_string(&config).unwrap();
        std::fs::write(&config, text.replace("rounds = 12", "rounds = 20000")).unwrap();
        let out = directory.file("run");
        let arguments =
            [&["tune", &config, "--out", &out, "--mean-runs", "50"], VARY.as_slice()].concat();
        let mut child = command(&arguments).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        // This line comes after the charge.
        assert!(lines.any(|line| line.unwrap().starts_with("tuning")));
        let id = child.id().to_string();
        assert!(Command::new("kill").args([signal, &id]).status().unwrap().success());
        let rest: Vec<String> = lines.map(Result::unwrap).collect();
        assert_eq!(child.wait().unwrap().code(), code, "{rest:?}");
        for name in ["model.safetensors", "report.json", "checkpoint.safetensors", "statement.txt"]
        {
            assert!(!directory.0.join("run").join(name).exists(), "{name}");
        }
        let ledger = format!("{out}/ledger.db");
        let budget = json(&["budget", "show", "--ledger", &ledger, "toy"]);
        let spent = number(&budget["spent"]);
        assert!(spent > 1.99 && spent <= 2.0, "{budget}");
        assert_eq!(number(&budget["guarantee"]["epsilon"]), spent, "{budget}");
        // There is nothing to go on with, and the budget has no room for the same again.
        refused(&[arguments.as_slice(), &["--resume"]].concat(), 2, "--resume");
        refused(&arguments, 3, "the data was not opened");
    }
}

#[test]
fn without_a_public_test_set_the_score_is_a_private_query_of_the_charged_rounds() {
    let (directory, config) = toy("tune-private-score");
    let out = directory.file("run");
    let text = std::fs::read_to_string(&config).unwrap();
    let test = text.lines().find(|line| line.starts_with("test = ")).unwrap().to_owned();
    let no_test = text.replace(&test, "");
    std::fs::write(&config, &no_test).unwrap();
    let arguments =
        [&["tune", &config, "--out", &out, "--mean-runs", "2"], VARY.as_slice()].concat();
    refused(&arguments, 2, "tune needs a score");
    let groups = "[[privacy.groups]]\nvectors = [\"*\"]\nclip = 1.0\n[[privacy.groups]]\nvectors = [\"accuracy\"]\n\
                  clip = 1.0\nshare = 0.05\n[train]";
    std::fs::write(&config, no_test.replace("[train]", groups)).unwrap();
    let report = json(&arguments);
    assert!(report["test_accuracy"].is_null(), "{report}");
    // The estimate that chose the run has no error that would hold for it.
    let metrics = report["metrics"].as_array().unwrap();
    let score = metrics.iter().find(|metric| metric["name"] == "accuracy").unwrap();
    assert!(score["selected"] == true && score["standard_error"].is_null(), "{score}");
    let page = std::fs::read_to_string(format!("{out}/report.html")).unwrap();
    assert!(page.contains("chosen as the best of several runs: optimistic"));
    assert!(!page.contains("95 of 100"));
    let names: Vec<&str> =
        report["groups"].as_array().unwrap().iter().filter_map(|g| g["name"].as_str()).collect();
    assert!(names.contains(&"accuracy"), "{names:?}");
    assert!(number(&report["epsilon"]) <= 2.0);
}

#[test]
fn every_run_of_a_tuning_may_begin_with_its_own_preconditioning() {
    let (directory, config) = toy("tune-precondition");
    let text = std::fs::read_to_string(&config).unwrap();
    let text = text.replace("kind = \"linear\"", "kind = \"linear\"\ninput_norm = 2.0").replace(
        "[train]",
        "[privacy.precondition]\nmean_share = 0.1\ndirections_share = 0.2\ndirections = 2\nrounds = 2\n\
         floor = 0.2\n[train]",
    );
    std::fs::write(&config, text).unwrap();
    let out = directory.file("run");
    let tune = ["tune", &config, "--out", &out, "--mean-runs", "3"];
    let poisson = [&tune, VARY.as_slice(), &["--distribution", "poisson"]].concat();
    refused(&poisson, 2, "there may be no run");
    let report = json(&[&tune, VARY.as_slice()].concat());
    // A mean, two rounds of directions, and twelve of training.
    assert_eq!((&report["rounds"], &report["charged"]), (&15.into(), &15.into()));
    let epsilon = number(&report["epsilon"]);
    assert!(epsilon <= 2.0 && epsilon > 1.9, "{report}");
    let budget = json(&["budget", "show", "--ledger", &format!("{out}/ledger.db"), "toy"]);
    assert_eq!(number(&budget["guarantee"]["epsilon"]), epsilon, "{budget}");
    // The model file has the whitening of its run: predictions are those of the report.
    let metrics =
        json(&["evaluate", &format!("{out}/model.safetensors"), &directory.file("test.csv")]);
    assert_eq!(metrics["accuracy"], report["test_accuracy"], "{metrics}");
}

/// The bundled images at a small size: the same command as in docs/tuning.md, with fewer and smaller rounds.
#[test]
fn a_tuned_mnist_run_costs_what_the_plan_says() {
    let directory = Directory::new("tune-mnist");
    let data = concat!(env!("CARGO_MANIFEST_DIR"), "/../../data/mnist");
    let text = std::fs::read_to_string(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../examples/mnist-tune.toml"
    ));
    let text = text.unwrap().replace("../data/mnist", data);
    let (before, train) = text.split_once("[train]").unwrap();
    let optimizer = train.lines().find(|line| line.starts_with("optimizer")).unwrap();
    let small = before
        .lines()
        .map(|line| if line.starts_with("expected_batch") { "expected_batch = 256" } else { line })
        .collect::<Vec<_>>()
        .join("\n");
    let config = directory.file("mnist.toml");
    std::fs::write(&config, format!("{small}\n[train]\nrounds = 8\n{optimizer}\n")).unwrap();
    let out = directory.file("run");
    let report = json(&[
        "tune",
        &config,
        "--out",
        &out,
        "--mean-runs",
        "2",
        "--vary",
        "train.optimizer.lr=0.25,0.5",
    ]);
    let epsilon = number(&report["epsilon"]);
    assert!(number(&report["test_accuracy"]) > 0.15, "{report}");
    let noise = report["noise_multiplier"].to_string();
    let plan = json(&[
        "plan",
        "--records",
        "60000",
        "--batch",
        "256",
        "--steps",
        "8",
        "--delta",
        "1e-5",
        "--noise-multiplier",
        &noise,
        "--tuning-mean-runs",
        "2",
    ]);
    assert_eq!(number(&plan["epsilon"]), epsilon, "{plan}");
    let ledger = format!("{out}/ledger.db");
    let budget = json(&["budget", "show", "--ledger", &ledger, "mnist"]);
    assert_eq!(number(&budget["spent"]), epsilon, "{budget}");
}
