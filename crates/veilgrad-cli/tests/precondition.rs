//! Runs that begin with private preconditioning: what is charged, what is kept, what is predicted.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::common::{Directory, command, config, ok, refused, table, veilgrad};
use serde_json::Value;
use veilgrad_nn::UnverifiedCheckpoint;

/// A configuration with preconditioning for the table `data.csv`.
fn preconditioned(directory: &Directory, rounds: u64) -> String {
    table(&directory.file("data.csv"), 400);
    let path = config(directory, rounds, "");
    let text = std::fs::read_to_string(&path).unwrap();
    let text = text.replace("kind = \"linear\"", "kind = \"linear\"\ninput_norm = 2.0").replace(
        "[train]",
        "[privacy.precondition]\nmean_share = 0.1\ndirections_share = 0.2\ndirections = 2\nrounds = 2\n\
         floor = 0.2\n[train]\nschedule = \"linear\"",
    );
    std::fs::write(&path, text).unwrap();
    path
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

/// Policy, first group and count of the rounds that a ledger charged, in order; equal neighbours are one.
fn charged(ledger: &str) -> Vec<(String, String, u64)> {
    let mut parts: Vec<(String, String, u64)> = Vec::new();
    for line in ok(&["ledger", "export", ledger, "--format", "rounds"]).lines() {
        let line = json(line);
        let Some(count) = line["rounds"].as_u64() else { continue };
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let (policy, group) =
            (text(&line["sampling"]["policy"]), text(&line["queries"][0]["group"]));
        match parts.last_mut().filter(|part| (&part.0, &part.1) == (&policy, &group)) {
            Some(part) => part.2 += count,
            None => parts.push((policy, group, count)),
        }
    }
    parts
}

fn part(policy: &str, group: &str, count: u64) -> (String, String, u64) {
    (policy.to_owned(), group.to_owned(), count)
}

#[test]
fn the_rounds_of_the_ledger_cost_at_most_the_target_and_predictions_are_those_of_training() {
    let directory = Directory::new("precondition");
    let config = preconditioned(&directory, 30);
    let (out, ledger) = (directory.file("out"), directory.file("ledger.db"));
    let trained = veilgrad(&["train", &config, "--out", &out, "--ledger", &ledger, "--json"]);
    assert_eq!(trained.status.code(), Some(0));
    let report = json(&String::from_utf8(trained.stdout).unwrap());
    // What is announced covers all rounds, those of preconditioning included.
    let announced = String::from_utf8(trained.stderr).unwrap();
    let announced = announced.lines().find(|line| line.starts_with("epsilon")).unwrap();
    let announced: f64 = announced.split_whitespace().nth(1).unwrap().parse().unwrap();
    assert!(announced >= report["epsilon"].as_f64().unwrap(), "{announced}");
    assert_eq!(
        charged(&ledger),
        [
            part("all", "mean", 1),
            part("all", "first-directions", 1),
            part("all", "directions", 1),
            part("poisson", "gradient", 30),
        ]
    );
    let account = json(&ok(&["account", &ledger, "--delta", "1e-5", "--json"]));
    let epsilon = account["epsilon"].as_f64().unwrap();
    assert!(epsilon <= 2.0 && epsilon > 1.99, "{epsilon}");
    assert!((report["epsilon"].as_f64().unwrap() - epsilon).abs() < 1e-9);
    assert_eq!((report["rounds"].as_u64(), report["charged"].as_u64()), (Some(33), Some(33)));
    let groups = report["groups"].as_array().unwrap();
    let names: Vec<&str> = groups.iter().map(|group| group["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["gradient", "mean", "first-directions", "directions"]);

    let model = format!("{out}/model.safetensors");
    let predictions = json(&ok(&["predict", &model, &directory.file("test.csv"), "--json"]));
    let table = std::fs::read_to_string(directory.file("test.csv")).unwrap();
    let classes = table.lines().skip(1).map(|line| line.rsplit(',').next().unwrap());
    let predicted = predictions["predictions"].as_array().unwrap().iter();
    let right = predicted.zip(classes).filter(|(p, class)| p["class"].as_str() == Some(class));
    let accuracy = right.count() as f64 / 100.0;
    assert_eq!(report["test_accuracy"].as_f64().unwrap(), accuracy);
}

#[test]
fn a_run_that_goes_on_after_preconditioning_does_not_charge_it_again() {
    let directory = Directory::new("precondition-resume");
    let config = preconditioned(&directory, 3000);
    let (out, ledger) = (directory.file("out"), directory.file("ledger.db"));
    let words = ["train", &config, "--out", &out, "--ledger", &ledger, "-q"];
    let child = command(&words).stderr(Stdio::null()).stdout(Stdio::null()).spawn();
    let mut child = child.unwrap();
    let checkpoint = Path::new(&out).join("checkpoint.safetensors");
    let saved = || UnverifiedCheckpoint::read(&checkpoint).and_then(|found| found.round());
    while !saved().is_ok_and(|round| round > 0) {
        std::thread::sleep(Duration::from_millis(2));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    ok(&[&words[..], &["--resume"]].concat());
    let charged = charged(&ledger);
    let before =
        [part("all", "mean", 1), part("all", "first-directions", 1), part("all", "directions", 1)];
    assert_eq!(charged[..3], before);
    assert_eq!(charged.len(), 4, "{charged:?}");
    let account = json(&ok(&["account", &ledger, "--delta", "1e-5", "--json"]));
    assert!(account["epsilon"].as_f64().unwrap() <= 2.0);
}

/// Ends the process at a call for randomness, as a crash would.
const CRASH: &str = r#"
#define _GNU_SOURCE
#include <stddef.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>
ssize_t getrandom(void *to, size_t length, unsigned flags) {
    static int calls;
    if (++calls == atoi(getenv("CRASH_AT"))) _exit(99);
    return syscall(SYS_getrandom, to, length, flags);
}
"#;

#[test]
fn a_crash_during_preconditioning_costs_at_most_one_round_more() {
    let directory = Directory::new("precondition-crash");
    let config = preconditioned(&directory, 30);
    let (source, library) = (directory.file("crash.c"), directory.file("crash.so"));
    std::fs::write(&source, CRASH).unwrap();
    let made = Command::new("cc").args(["-shared", "-fPIC", "-o", &library, &source]).status();
    assert!(made.unwrap().success());
    let before = |ledger: &str| -> u64 {
        let all = charged(ledger).into_iter().filter(|(policy, ..)| policy == "all");
        all.map(|(.., count)| count).sum()
    };
    // How often a run was stopped with so many rounds of preconditioning charged.
    let mut stopped = [0; 4];
    for call in 1..100 {
        let place = directory.0.join(call.to_string());
        let (out, ledger) = (place.display().to_string(), directory.file(&format!("{call}.db")));
        let words = ["train", &config, "--out", &out, "--ledger", &ledger, "-q", "--threads", "1"];
        let mut train = command(&words);
        train.env("LD_PRELOAD", &library).env("CRASH_AT", call.to_string());
        if train.output().unwrap().status.code() != Some(99) {
            break;
        }
        // Before the first charge there is nothing to go on with.
        if !place.join("checkpoint.safetensors").exists() {
            continue;
        }
        let rounds = before(&ledger);
        stopped[rounds as usize] += 1;
        ok(&[&words[..], &["--resume"]].concat());
        assert!(before(&ledger) <= 4, "{call}: {:?}", charged(&ledger));
        if rounds == 3 && stopped[3] > 2 {
            break;
        }
    }
    assert!(stopped[1..].iter().all(|count| *count > 0), "{stopped:?}");
}

#[test]
fn a_plan_that_the_budget_does_not_cover_is_refused_before_data_is_opened() {
    let directory = Directory::new("precondition-budget");
    let config = preconditioned(&directory, 30);
    std::fs::remove_file(directory.file("data.csv")).unwrap();
    let (out, ledger) = (directory.file("out"), directory.file("ledger.db"));
    ok(&["budget", "create", "toy", "--epsilon", "1.9", "--delta", "1e-5", "--ledger", &ledger]);
    refused(&["train", &config, "--out", &out, "--ledger", &ledger], 3, "the data was not opened");
    assert_eq!(charged(&ledger), []);
}
