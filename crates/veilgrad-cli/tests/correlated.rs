//! Training with noise that is correlated between rounds: what is charged, what is refused, and what an interruption costs.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use crate::common::{Directory, command, config, ok, refused, table, veilgrad};
use serde_json::{Value, json};
use veilgrad_nn::UnverifiedCheckpoint;

/// A configuration with batches of 10 of 400 records and this number of bands.
fn correlated(directory: &Directory, rounds: u64, bands: &str) -> String {
    table(&directory.file("data.csv"), 400);
    let path = config(directory, rounds, "");
    let text = std::fs::read_to_string(&path).unwrap();
    let text = text
        .replace("expected_batch = 100", "expected_batch = 10")
        .replace("[train]", &format!("[privacy.correlated]\nbands = {bands}\n\n[train]"));
    std::fs::write(&path, text).unwrap();
    path
}

fn read(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

/// The lines of the charged rounds of every run.
pub(crate) fn charged(ledger: &str) -> Vec<Vec<Value>> {
    let mut runs = vec![Vec::new()];
    for line in ok(&["ledger", "export", ledger, "--format", "rounds"]).lines().map(read) {
        if line["run"].is_u64() {
            runs.push(Vec::new());
        }
        if line["rounds"].is_u64() {
            runs.last_mut().unwrap().push(line);
        }
    }
    runs.retain(|run| !run.is_empty());
    runs
}

pub(crate) fn epsilon_of(file: &str) -> f64 {
    let account = read(&ok(&["account", file, "--delta", "1e-5", "--json"]));
    account["epsilon"].as_f64().unwrap()
}

#[test]
fn the_ledger_has_the_strategy_and_the_target_is_kept() {
    let directory = Directory::new("correlated");
    let config = correlated(&directory, 200, "\"auto\"");
    let (out, ledger) = (directory.file("out"), directory.file("ledger.db"));
    let trained = veilgrad(&["train", &config, "--out", &out, "--ledger", &ledger, "--json"]);
    let announced = String::from_utf8(trained.stderr).unwrap();
    assert_eq!(trained.status.code(), Some(0), "{announced}");
    assert!(announced.contains("of the error of plain noise"), "{announced}");
    let runs = charged(&ledger);
    let [run] = &runs[..] else { panic!("{runs:?}") };
    let groups = run[0]["sampling"]["groups"].as_u64().unwrap();
    assert!(groups > 1 && run.iter().all(|line| line["sampling"]["policy"] == "cyclic-poisson"));
    let entries = run[0]["queries"][0]["strategy"]["m"].as_array().unwrap();
    assert_eq!((entries.len() as u64, &entries[0]), (groups, &json!(4096)));
    let rate = run[0]["sampling"]["rate"].as_f64().unwrap();
    assert_eq!(rate, 10.0 / 400.0 * groups as f64);
    let epsilon = epsilon_of(&ledger);
    assert!(epsilon <= 2.0 && epsilon > 1.99, "{epsilon}");
    let statement = std::fs::read_to_string(Path::new(&out).join("statement.txt")).unwrap();
    assert!(statement.contains("cyclic Poisson sampling"), "{statement}");
    // What the ledger knows is said as it is, and the noise of a turn is not called that of a sum.
    let before = format!("is correlated with that of up to {} rounds before it", groups - 1);
    assert!(statement.contains(&before) && !statement.contains("may be correlated"), "{statement}");
    assert!(statement.contains("for each turn of a record)"), "{statement}");
    assert!(!statement.contains("on the sum)"), "{statement}");
    let report = std::fs::read_to_string(Path::new(&out).join("report.json")).unwrap();
    let group = &read(&report)["groups"][0];
    assert_eq!(group["correlated"]["bands"], groups);
    let (turn, sum) = (group["noise"].as_f64(), group["correlated"]["noise_on_sum"].as_f64());
    assert!(sum.unwrap() > 1.2 * turn.unwrap(), "{group}");
    let page = std::fs::read_to_string(Path::new(&out).join("report.html")).unwrap();
    assert!(page.contains("Noise for each turn of a record"), "{page}");
}

/// The announcement of a run, before its first round.
fn announced(directory: &Directory, config: &str, name: &str) -> String {
    let (out, ledger) = (directory.file(name), directory.file(&format!("{name}.db")));
    let trained = veilgrad(&["train", config, "--out", &out, "--ledger", &ledger, "--json", "-v"]);
    let text = String::from_utf8(trained.stderr).unwrap();
    assert_eq!(trained.status.code(), Some(0), "{text}");
    text
}

#[test]
fn adaptive_optimizers_get_plain_noise_unless_bands_are_a_number() {
    let directory = Directory::new("correlated-adaptive");
    let path = correlated(&directory, 60, "\"auto\"");
    let sgd = std::fs::read_to_string(&path).unwrap();
    let optimizer = sgd.lines().find(|line| line.starts_with("optimizer")).unwrap();
    for kind in ["adam", "adamw", "yogi", "adagrad", "rmsprop"] {
        let text =
            sgd.replace(optimizer, &format!("optimizer = {{ kind = \"{kind}\", lr = 0.01 }}"));
        std::fs::write(&path, &text).unwrap();
        let said = announced(&directory, &path, kind);
        assert!(said.contains("plain noise is used: this optimizer divides"), "{said}");
        assert!(!said.contains("of the error of plain noise"), "{said}");
        let ledger = directory.file(&format!("{kind}.db"));
        assert_eq!(charged(&ledger)[0][0]["sampling"]["policy"], "poisson");
        // Whoever gives a number gets it, without a promise.
        std::fs::write(&path, text.replace("\"auto\"", "4")).unwrap();
        let said = announced(&directory, &path, &format!("{kind}-four"));
        assert!(said.contains("over 4 rounds, of which little cancels"), "{said}");
        assert!(!said.contains("of the error of plain noise"), "{said}");
        assert!(said.contains("for each turn of a record"), "{said}");
    }
}

/// The strategy is that of the learning rates of the run, and not that of a constant one.
#[test]
fn the_strategy_follows_the_schedule_and_the_ratio_says_what_it_rests_on() {
    let directory = Directory::new("correlated-schedule");
    let path = correlated(&directory, 60, "4");
    let constant = std::fs::read_to_string(&path).unwrap();
    let entries = |name: &str, text: &str| {
        std::fs::write(&path, text).unwrap();
        let said = announced(&directory, &path, name);
        let ledger = directory.file(&format!("{name}.db"));
        (charged(&ledger)[0][0]["queries"][0]["strategy"]["m"].clone(), said)
    };
    let (plain, said) = entries("constant", &constant);
    assert!(said.contains("of the error of plain noise\n"), "{said}");
    let linear = constant.replace("[train]\n", "[train]\nschedule = \"linear\"\n");
    assert_ne!(entries("linear", &linear).0, plain);
    let adaptive = "[privacy.adaptive]\nfloor = 0.01\nshare = 0.05\n\n[train]";
    let (_, said) = entries("adaptive", &constant.replace("[train]", adaptive));
    assert!(
        said.contains("of the error of plain noise if clip norms stayed as they are"),
        "{said}"
    );
}

#[test]
fn plain_noise_is_used_where_it_is_as_good() {
    let directory = Directory::new("correlated-plain");
    let config = correlated(&directory, 300, "\"auto\"");
    let text = std::fs::read_to_string(&config).unwrap().replace("batch = 10\n", "batch = 200\n");
    std::fs::write(&config, text).unwrap();
    let (out, ledger) = (directory.file("out"), directory.file("ledger.db"));
    let trained = veilgrad(&["train", &config, "--out", &out, "--ledger", &ledger, "--json"]);
    let announced = String::from_utf8(trained.stderr).unwrap();
    assert!(announced.contains("plain noise is as good here"), "{announced}");
    assert_eq!(charged(&ledger)[0][0]["sampling"]["policy"], "poisson");
}

#[test]
fn a_plan_says_which_noise_has_less_error() {
    let plan = |batch: &str, rest: &[&str]| {
        let words = ["plan", "--records", "60000", "--batch", batch, "--steps", "300", "--delta"];
        ok(&[&words[..], &["1e-5"], rest].concat())
    };
    let choice = |batch, rest: &[&str]| read(&plan(batch, &[rest, &["--json"]].concat()));
    let found = &choice("256", &["--epsilon", "3"])["correlated"];
    assert!(found["bands"].as_u64().unwrap() > 1, "{found}");
    assert!(found["error_ratio"].as_f64().unwrap() < 0.6, "{found}");
    let found = choice("8192", &["--epsilon", "1"]);
    assert_eq!(found["correlated"]["bands"], 1);
    assert_eq!(found["correlated"]["noise_multiplier"], found["noise_multiplier"]);
    assert!(plan("8192", &["--epsilon", "1"]).contains("Use plain noise"));
    // There is nothing to compare if the noise is given, samples are not Poisson's, or the best of many runs is planned.
    for rest in [
        &["--noise-multiplier", "1"][..],
        &["--epsilon", "3", "--sampling", "fixed"],
        &["--epsilon", "3", "--tuning-mean-runs", "10"],
        &["--epsilon", "3", "--group", "2"],
    ] {
        assert_eq!(choice("256", rest)["correlated"], Value::Null, "{rest:?}");
    }
    let directory = Directory::new("correlated-plan");
    let page = directory.file("plan.html");
    plan("256", &["--epsilon", "3", "--html", &page]);
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.contains("<h2>Correlated noise</h2>") && page.contains("of the error of plain"));
}

#[test]
fn what_cannot_be_correlated_is_refused_by_name() {
    let directory = Directory::new("correlated-refused");
    let path = correlated(&directory, 200, "16");
    let text = std::fs::read_to_string(&path).unwrap();
    for (from, to, what) in [
        (
            "bands = 16",
            "bands = 0",
            "bands: expected a whole number of 1 or more, or \"auto\", found 0",
        ),
        ("bands = 16", "bands = 41", "bands 41 is not between 1 and 40"),
        ("bands = 16", "bands = \"best\"", "expected a whole number of 1 or more"),
        ("bands = 16", "bands = 16\nwidth = 2", "has no key `width`"),
        ("rounds = 200", "rounds = 15", "bands 16 is not between 1 and 15"),
        ("delta = 1e-5", "delta = 1e-5\nsampling = \"fixed\"", "is for sampling = \"poisson\""),
        ("[train]", "[audit]\ncanaries = 10\n[train]", "canaries"),
    ] {
        assert!(text.contains(from), "{from}");
        std::fs::write(&path, text.replace(from, to)).unwrap();
        refused(&["train", &path, "--out", &directory.file("out")], 2, what);
    }
    let auto =
        text.replace("epsilon = 2.0", "noise_multiplier = 2.0").replace("= 16", "= \"auto\"");
    std::fs::write(&path, auto).unwrap();
    refused(&["train", &path, "--out", &directory.file("out")], 2, "needs [privacy] epsilon");
}

/// A run that is killed nine times: every part is a run of its own in the ledger, begins its own segment, and pays for every
/// turn that it began. The epsilon is that of as many Poisson rounds as there were turns, and stays within the budget.
#[test]
fn a_run_that_is_killed_nine_times_pays_for_the_turns_of_every_segment() {
    let directory = Directory::new("correlated-killed");
    let config = correlated(&directory, 2000, "16");
    let (out, ledger) = (directory.file("out"), directory.file("ledger.db"));
    let checkpoint = Path::new(&out).join("checkpoint.safetensors");
    let saved =
        || UnverifiedCheckpoint::read(&checkpoint).and_then(|found| found.round()).unwrap_or(0);
    for kill in 0..9u64 {
        let mut words = vec!["train", &config, "--out", &out, "--ledger", &ledger, "-q"];
        if kill > 0 {
            words.push("--resume");
        }
        let before = saved();
        let mut child =
            command(&words).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        while saved() < before + 20 + kill {
            assert!(child.try_wait().unwrap().is_none(), "it ended before kill {kill}");
            std::thread::sleep(Duration::from_millis(1));
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
    ok(&["train", &config, "--out", &out, "--ledger", &ledger, "--resume", "-q"]);
    ok(&["ledger", "verify", &ledger]);
    let runs = charged(&ledger);
    assert_eq!(runs.len(), 10);
    let mut turns = 0;
    for run in &runs {
        assert!(run.iter().all(|line| line["sampling"] == run[0]["sampling"]));
        assert_eq!(run[0]["sampling"]["first_round"], 0);
        let rounds: u64 = run.iter().map(|line| line["rounds"].as_u64().unwrap()).sum();
        turns += rounds.div_ceil(16);
    }
    let mut poisson = runs[0][0].clone();
    poisson["rounds"] = json!(turns);
    poisson["sampling"] = json!({ "policy": "poisson", "rate": runs[0][0]["sampling"]["rate"] });
    let query = &mut poisson["queries"][0];
    for key in ["dimension", "s_int", "k", "strategy"] {
        query.as_object_mut().unwrap().remove(key);
    }
    let file = directory.file("turns.jsonl");
    std::fs::write(&file, format!("{{\"mode\": \"planned\"}}\n{poisson}\n")).unwrap();
    let (found, expected) = (epsilon_of(&ledger), epsilon_of(&file));
    // The query without integers has its noise rounded down.
    assert!(found <= expected && found > expected * (1.0 - 1e-9), "{found} {expected}");
    assert!(found <= 2.0, "{found}");
}
