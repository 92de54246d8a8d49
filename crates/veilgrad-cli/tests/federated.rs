//! Federated runs of the command: users as records, local steps, weights, denominators, dropouts, made-up users.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use crate::common::{Directory, command, config, frozen, ok, refused, safetensors, table};
use serde_json::Value;
use veilgrad_ledger::{Ledger, Options};

const USERS: &str = "record = { user = \"who\", max_examples = 12 }";
/// Every key of a federated run.
const ALL: &str = r#"
[privacy.weights]
bound = 12
[privacy.denominator]
floor = 100
share = 0.05
[privacy.adaptive]
floor = 0.01
share = 0.05
lr = 0.3
quantile = 0.6
[train]
local = { lr = 0.5, batch = 4, epochs = 2 }
simulate = { availability = 0.9, dropout = 0.1 }
"#;

/// A configuration of 40 users with about ten rows each, all in one file.
fn federated(directory: &Directory, rounds: u64, more: &str) -> String {
    table(&directory.file("data.csv"), 400);
    let path = config(directory, rounds, USERS);
    let text = std::fs::read_to_string(&path).unwrap();
    let text = text
        .replace("records = 400", "records = 40")
        .replace("expected_batch = 100", "expected_batch = 20")
        .replace("lr = 2.0, momentum = 0.5", "lr = 1.0")
        .replace("epsilon = 2.0", "epsilon = 20.0")
        .replace("[train]\n", if more.is_empty() { "[train]\n" } else { more });
    std::fs::write(&path, text).unwrap();
    path
}

fn changed(path: &str, from: &str, to: &str) {
    let text = std::fs::read_to_string(path).unwrap();
    assert!(text.contains(from), "{from}");
    std::fs::write(path, text.replace(from, to)).unwrap();
}

#[test]
fn a_federated_run_protects_users_and_says_so_everywhere() {
    let directory = Directory::new("federated");
    let (config, out) = (federated(&directory, 30, ALL), directory.file("out"));
    let report: Value =
        serde_json::from_str(&ok(&["train", &config, "--out", &out, "--json"])).unwrap();
    assert_eq!((&report["unit"], &report["rounds"]), (&"user".into(), &30.into()), "{report}");
    let epsilon = report["epsilon"].as_f64().unwrap();
    assert!(epsilon <= 20.0 && epsilon > 19.0, "{epsilon}");
    // The private denominator and the quantile are groups of the round; the sensitivity of updates has the largest weight.
    let groups = report["groups"].as_array().unwrap();
    let names: Vec<&str> = groups.iter().map(|group| group["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["gradient", "denominator", "norms of gradient"]);
    assert_eq!(groups[1]["clip"], 12.0);
    assert!(report["test_accuracy"].as_f64().unwrap() > 0.5, "{report}");
    let statement = std::fs::read_to_string(format!("{out}/statement.txt")).unwrap();
    assert!(statement.contains("all examples of one user"), "{statement}");
    assert!(!statement.contains("EXPERIMENT"), "{statement}");
    let ledger = Ledger::read(Path::new(&format!("{out}/ledger.db")), Options::default()).unwrap();
    let dataset = &ledger.state().datasets()["toy"];
    assert_eq!(dataset.budget.unit, veilgrad_events::RecordUnit::User);
    assert_eq!(dataset.runs.values().map(|run| run.charged()).sum::<u64>(), 30);
}

#[test]
fn clip_norms_adapt_in_a_planned_run_and_its_epsilon_stays() {
    let directory = Directory::new("federated-adaptive");
    let (config, out) = (federated(&directory, 30, ALL), directory.file("out"));
    changed(&config, "expected_batch = 20", "expected_batch = 20\nclip = 50.0");
    let report: Value =
        serde_json::from_str(&ok(&["train", &config, "--out", &out, "--json"])).unwrap();
    // Updates of local steps are far below 50, so that the clip norm of the last charge is, too.
    let clip = report["groups"][0]["clip"].as_f64().unwrap() / 12.0;
    assert!(clip < 30.0, "{clip}");
    assert!(report["epsilon"].as_f64().unwrap() <= 20.0);
    ok(&["ledger", "verify", &format!("{out}/ledger.db")]);
}

#[test]
fn any_number_of_threads_trains_the_same_federated_model() {
    let directory = Directory::new("federated-threads");
    let (config, library) = (federated(&directory, 12, ALL), frozen(&directory));
    let model = |threads: &str| {
        let out = directory.file(&format!("out-{threads}"));
        let words = ["train", &config, "--out", &out, "--threads", threads, "-q"];
        let run = command(&words).env("LD_PRELOAD", &library).output().unwrap();
        assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
        safetensors(&std::fs::read(format!("{out}/model.safetensors")).unwrap()).1
    };
    let one = model("1");
    assert!(one == model("2"));
    assert!(one.values().flatten().any(|byte| *byte != 0));
}

/// Weights after one round on all users, with too little noise to matter.
fn weights_after_one_round(directory: &Directory, name: &str, rows: &[&str]) -> Vec<f32> {
    let rows = format!("who,x,y,word,class\n{}\n", rows.join("\n"));
    let config = federated(directory, 1, "");
    std::fs::write(directory.file("data.csv"), rows).unwrap();
    changed(&config, "records = 40", "records = 2");
    changed(&config, "expected_batch = 20", "expected_batch = 2");
    changed(&config, "epsilon = 20.0", "noise_multiplier = 1e-3");
    let out = directory.file(name);
    ok(&["train", &config, "--out", &out, "-q"]);
    let (_, values) = safetensors(&std::fs::read(format!("{out}/model.safetensors")).unwrap());
    let numbers = values.values().flat_map(|bytes| bytes.chunks_exact(4));
    numbers.map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect()
}

#[test]
fn a_user_counts_once_however_many_rows_it_has() {
    let directory = Directory::new("federated-once");
    let (ann, bob) = ("ann,0.9,0.1,declared,a", "bob,0.2,0.7,declared,b");
    let once = weights_after_one_round(&directory, "once", &[ann, bob]);
    let often = weights_after_one_round(&directory, "often", &[bob, ann, bob, bob, ann, bob, bob]);
    assert!(once.iter().any(|weight| weight.abs() > 0.05), "{once:?}");
    for (once, often) in once.iter().zip(&often) {
        assert!((once - often).abs() < 5e-3, "{once} {often}");
    }
}

#[test]
fn fixed_cohorts_are_refused_under_add_remove_with_the_reason() {
    let directory = Directory::new("federated-fixed");
    let (config, out) = (federated(&directory, 4, ""), directory.file("out"));
    changed(&config, "expected_batch = 20", "expected_batch = 20\nsampling = \"fixed\"");
    let words = ["train", &config, "--out", &out];
    refused(&words, 2, "a known number of records, which is private under add-remove");
    assert!(!Path::new(&out).exists());
    // Where the number of users is public, the same cohorts are charged as what they are.
    changed(&config, "sampling = \"fixed\"", "sampling = \"fixed\"\nadjacency = \"replace-one\"");
    let report: Value = serde_json::from_str(&ok(&[&words[..], &["--json"]].concat())).unwrap();
    assert_eq!(
        (&report["sampling"], &report["adjacency"]),
        (&"fixed".into(), &"replace-one".into())
    );
}

#[test]
fn a_killed_federated_run_goes_on_and_stays_charged() {
    let directory = Directory::new("federated-killed");
    let (config, out) = (federated(&directory, 2000, ALL), directory.file("out"));
    changed(&config, "block = 4", "block = 4\ncheckpoint_rounds = 3");
    let mut child = command(&["train", &config, "--out", &out, "-q"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let ledger = format!("{out}/ledger.db");
    let log = format!("{ledger}-wal");
    let checkpoint = format!("{out}/checkpoint.safetensors");
    while !std::fs::metadata(&log).is_ok_and(|log| log.len() > 40_000)
        || !Path::new(&checkpoint).exists()
    {
        std::thread::sleep(Duration::from_millis(2));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let charged = || {
        let ledger = Ledger::read(Path::new(&ledger), Options::default()).unwrap();
        let runs = ledger.state().datasets()["toy"].runs.values();
        runs.map(|run| run.charged()).collect::<Vec<_>>()
    };
    let before = charged();
    assert!(before.len() == 1 && before[0] > 0, "{before:?}");
    ok(&["train", &config, "--out", &out, "--resume", "-q"]);
    let after = charged();
    assert_eq!((after.len(), after[0]), (2, before[0]));
    let shown: Value =
        serde_json::from_str(&ok(&["budget", "show", "toy", "--ledger", &ledger, "--json"]))
            .unwrap();
    assert!(shown["spent"].as_f64().unwrap() <= 20.0, "{shown}");
    ok(&["ledger", "verify", &ledger]);
}

#[test]
fn made_up_users_are_marked_as_an_experiment() {
    let directory = Directory::new("federated-made-up");
    for (how, more) in [
        ("uniform", ""),
        ("by-class", ", classes_per_user = 1"),
        ("dirichlet", ", concentration = 0.3, seed = 4"),
    ] {
        let config = federated(&directory, 4, "");
        let made_up =
            format!("record = {{ partition = \"{how}\", users = 40, max_examples = 8{more} }}");
        changed(&config, USERS, &made_up);
        let out = directory.file(how);
        let run = command(&["train", &config, "--out", &out]).output().unwrap();
        let error = String::from_utf8_lossy(&run.stderr).into_owned();
        assert!(run.status.success(), "{error}");
        assert!(error.contains("40 made up from public data, for experiments"), "{error}");
        for name in ["statement.txt", "report.html"] {
            let text = std::fs::read_to_string(format!("{out}/{name}")).unwrap();
            assert!(text.contains("No user is a person"), "{name}");
        }
        assert!(ok(&["statement", &out]).contains("EXPERIMENT."));
    }
}

#[test]
fn what_is_wrong_with_a_federated_configuration_is_named() {
    let directory = Directory::new("federated-wrong");
    let (path, out) = (federated(&directory, 4, ALL), directory.file("out"));
    let text = std::fs::read_to_string(&path).unwrap();
    let made_up =
        "record = { partition = \"uniform\", users = 39, max_examples = 8, concentration = 1 }";
    for (from, to, what) in [
        (USERS, "", "[train] local is for records that are users"),
        (USERS, "", "[train] simulate is for records that are users"),
        (USERS, "", "[privacy] weights is for records that are users"),
        (USERS, made_up, "users is 39, and [data] records is 40"),
        (USERS, made_up, "concentration is for partition = \"dirichlet\""),
        ("bound = 12", "bound = 0", "[privacy] weights: weight bound 0 is not"),
        ("bound = 12", "bound = 12\nexpected = 3", "expected is for a public denominator"),
        ("[privacy.denominator]\nfloor = 100\nshare = 0.05", "", "weights: needs expected"),
        ("floor = 100", "floor = 0", "denominator: floor:"),
        ("floor = 100\nshare = 0.05", "floor = 100\nshare = 1.5", "denominator: budget share 1.5"),
        ("floor = 0.01", "floor = 2.0", "floor 2 is above the clip norm 1"),
        ("quantile = 0.6", "quantile = 1.0", "quantile 1 is not in (0, 1)"),
        ("lr = 0.3", "lr = -1.0", "adaptive: learning rate -1"),
        ("lr = 0.5, batch", "lr = 0.0, batch", "[train] local: lr 0 is not a positive number"),
        ("availability = 0.9", "availability = 0.0", "availability 0 is not in (0, 1]"),
        ("dropout = 0.1", "dropout = 1.0", "dropout 1 is not in [0, 1)"),
        ("[train]\n", "[audit]\ncanaries = 10\n[train]\n", "canaries would change clip norms"),
    ] {
        assert!(text.contains(from), "{from}");
        std::fs::write(&path, text.replacen(from, to, 1)).unwrap();
        refused(&["train", &path, "--out", &out], 2, what);
    }
}
