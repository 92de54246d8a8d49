//! `tune`: charged once and ahead; only the best of a secret number of runs leaves.

mod common;

use common::{Directory, config, files, ok, refused, table, veilgrad};
use serde_json::Value;

const VARY: [&str; 4] = ["--vary", "train.optimizer.lr=0.5,2.0,4.0", "--vary", "train.ema=0.5,0.9"];

fn toy(name: &str) -> (Directory, String) {
    let directory = Directory::new(name);
    table(&directory.file("data.csv"), 400);
    let config = config(&directory, 12, "");
    (directory, config)
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
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
    assert!((number(&plan["epsilon"]) - epsilon).abs() < 1e-6 * epsilon, "{plan}");
    // And from the budget and a report that is computed again.
    let ledger = format!("{out}/ledger.db");
    let budget = json(&["budget", "show", "--ledger", &ledger, "toy"]);
    assert_eq!(number(&budget["guarantee"]["epsilon"]), epsilon, "{budget}");
    let again = json(&["report", &out]);
    assert_eq!((&again["epsilon"], &again["tuning"]), (&report["epsilon"], &report["tuning"]));
    let statement = ok(&["statement", &out]);
    assert!(statement.contains("the best of a secret number of runs, on average 3"), "{statement}");
    // The cost of the rounds alone, which is lower, is not shown as the cost of the data.
    refused(&["account", &ledger, "--delta", "1e-5"], 7, "tuning");
    refused(&["ledger", "export", &ledger, "--format", "rounds"], 2, "tuning");
}

/// Another setting has another score, so what leaves differs; everything else must be as large and as many for any number
/// of runs.
#[test]
fn the_number_of_runs_is_in_no_output() {
    let (directory, config) = toy("tune-secret");
    let mut seen = Vec::new();
    for number in 0..6 {
        let out = directory.file(&format!("run-{number}"));
        let vary = ["--vary", "train.optimizer.lr=2.0"];
        let output = veilgrad(
            &[
                &[
                    "tune",
                    &config,
                    "--out",
                    &out,
                    "--mean-runs",
                    "4",
                    "--distribution",
                    "geometric",
                ],
                vary.as_slice(),
            ]
            .concat(),
        );
        assert_eq!(output.status.code(), Some(0));
        let messages = String::from_utf8(output.stderr).unwrap().replace(&out, "OUT");
        let mut names: Vec<_> = files(out.as_ref())
            .into_iter()
            .map(|(path, bytes)| {
                let name = path.file_name().unwrap().to_string_lossy().into_owned();
                // Numbers in text have different lengths; the size of the model and of the ledger's anchor do not.
                let fixed = name.ends_with(".anchor");
                (name, if fixed { bytes.len() } else { 0 })
            })
            .collect();
        names.sort();
        seen.push((messages, names));
    }
    for one in &seen {
        // The estimated time of one run depends on the machine.
        let without_time = |text: &str| {
            text.lines().filter(|line| !line.starts_with("time")).collect::<Vec<_>>().join("\n")
        };
        assert_eq!(without_time(&one.0), without_time(&seen[0].0));
        assert_eq!(one.1, seen[0].1);
    }
}

#[test]
fn a_tuning_beyond_the_budget_or_its_rules_charges_nothing() {
    let (directory, config) = toy("tune-refused");
    let out = directory.file("run");
    let tune = |more: &[&str], code: i32, what: &str| {
        refused(&[&["tune", &config, "--out", &out, "--mean-runs", "3"], more].concat(), code, what)
    };
    tune(&["--vary", "train.rounds=5,10"], 2, "same rounds");
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
