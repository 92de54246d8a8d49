//! The samples that a run draws are those of its configuration, and those that its ledger charges.
//!
//! Each record of the toy data has a category that no other record has. With little noise and a small learning rate, the
//! weight of that category in a linear model shows in how many rounds the record was, and so which sampler ran.

use std::num::NonZeroU64;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use crate::common::{Directory, command, config, ok, table};
use crate::correlated::{charged, epsilon_of};
use serde_json::{Value, json};
use veilgrad_cli::Trained;
use veilgrad_events::{FixedBatch, SampleRate, Sampling, TruncatedPoisson};
use veilgrad_ledger::{Ledger, Options};
use veilgrad_nn::UnverifiedCheckpoint;

const LEARNING_RATE: f32 = 1e-3;

/// A run on as many records as `file` says, while `declared` is what the configuration says.
struct Setting {
    file: usize,
    declared: usize,
    batch: u32,
    rounds: u64,
    noise: f64,
    sampling: &'static str,
    adjacency: &'static str,
}

/// What a run left: how often each record was in a sample, what was charged, and the report.
struct Outcome {
    /// Whole numbers but for the noise, of standard deviation `2 noise sqrt(rounds)`.
    uses: Vec<f32>,
    /// What was declared before the first round, and what was charged.
    planned: Vec<Sampling>,
    charged: Vec<(Sampling, u64)>,
    report: Value,
}

fn train(name: &str, setting: &Setting) -> Outcome {
    let &Setting { file, declared, batch, rounds, noise, sampling, adjacency } = setting;
    let directory = Directory::new(name);
    let words: Vec<String> = (0..file).map(|record| format!("word{record}")).collect();
    let rows = words.iter().enumerate();
    let rows = rows.map(|(record, word)| format!("{word},{}\n", ["a", "b"][record % 2]));
    std::fs::write(directory.file("data.csv"), format!("word,class\n{}", rows.collect::<String>()))
        .unwrap();
    let config = directory.file("config.toml");
    let text = format!(
        "[data]\ntrain = \"data.csv\"\ndataset = \"toy\"\nrecords = {declared}\nlabel = \"class\"\n\
         classes = [\"a\", \"b\"]\n[[data.columns]]\nname = \"word\"\ncategories = {words:?}\n\
         [model]\nkind = \"linear\"\n[privacy]\nnoise_multiplier = {noise}\ndelta = 1e-5\nclip = 1.0\n\
         expected_batch = {batch}\nsampling = \"{sampling}\"\nadjacency = \"{adjacency}\"\n\
         [train]\nrounds = {rounds}\noptimizer = {{ kind = \"sgd\", lr = {LEARNING_RATE} }}\n"
    );
    std::fs::write(&config, text).unwrap();
    let out = directory.file("out");
    let report = ok(&["train", &config, "--out", &out, "--json"]);

    let trained = Trained::read(&Path::new(&out).join("model.safetensors")).unwrap();
    // One record after the other, and none at the end, which leaves the bias.
    let mut inputs = vec![0.0; file * (file + 1)];
    (0..file).for_each(|record| inputs[record * (file + 1)] = 1.0);
    let outputs = trained.outputs(inputs, 1).unwrap();
    let differences: Vec<f32> = outputs.chunks_exact(2).map(|pair| pair[0] - pair[1]).collect();
    let (bias, weights) = differences.split_last().unwrap();
    // At even odds, a record moves the difference by 1 times the learning rate over the batch.
    let unit = LEARNING_RATE / batch as f32;
    let uses = weights.iter().enumerate();
    let uses = uses.map(|(record, weight)| [1.0, -1.0][record % 2] * (weight - bias) / unit);

    let ledger = Ledger::read(Path::new(&format!("{out}/ledger.db")), Options::default()).unwrap();
    let [run] = &ledger.state().datasets()["toy"].runs.values().collect::<Vec<_>>()[..] else {
        panic!("one run was opened");
    };
    let plan = run.header.plan.as_ref().unwrap();
    Outcome {
        uses: uses.collect(),
        planned: plan.iter().map(|rounds| rounds.round.sampling()).collect(),
        charged: run.rounds.iter().map(|rounds| (rounds.sampling, rounds.count)).collect(),
        report: serde_json::from_str(&report).unwrap(),
    }
}

#[test]
fn the_rate_that_is_planned_charged_and_drawn_is_the_declared_one() {
    // The file has fewer records than declared: its own rate would be a third.
    let (file, declared, batch, rounds) = (300, 400, 100, 40);
    let (noise, sampling, adjacency) = (0.2, "poisson", "add-remove");
    let setting = Setting { file, declared, batch, rounds, noise, sampling, adjacency };
    let Outcome { uses, planned, charged, report } = train("rate", &setting);
    let quarter = Sampling::Poisson { rate: SampleRate::new(0.25).unwrap() };
    assert_eq!((planned, charged), (vec![quarter], vec![(quarter, rounds)]));
    assert_eq!(report["sampling"], sampling);
    // 12000 draws: the standard deviation of their share is 0.004, with noise 0.0048 (that of the bias cancels). By chance
    // beyond 0.03 once in 10^9 runs.
    let share = uses.iter().sum::<f32>() / (file as f32 * rounds as f32);
    assert!((share - 0.25).abs() < 0.03, "{share}");
}

#[test]
fn a_shuffled_epoch_takes_every_record_once_and_is_charged_as_one() {
    let (file, declared, batch, rounds) = (60, 60, 10, 6);
    let (noise, sampling, adjacency) = (0.01, "shuffle", "replace-one");
    let setting = Setting { file, declared, batch, rounds, noise, sampling, adjacency };
    let Outcome { uses, planned, charged, report } = train("shuffle", &setting);
    let shuffle = Sampling::Shuffle(FixedBatch::new(60, 10).unwrap());
    assert_eq!((planned, charged), (vec![shuffle], vec![(shuffle, rounds)]));
    assert_eq!(report["sampling"], sampling);
    assert!(uses.iter().all(|uses| uses.round() == 1.0), "{uses:?}");
}

#[test]
fn an_allocated_epoch_takes_every_record_once_and_is_charged_as_one() {
    let (file, declared, batch, rounds) = (57, 60, 10, 6);
    let (noise, sampling, adjacency) = (0.01, "allocation", "add-remove");
    let setting = Setting { file, declared, batch, rounds, noise, sampling, adjacency };
    let Outcome { uses, planned, charged, report } = train("allocation", &setting);
    let allocation = Sampling::Allocation { rounds_per_epoch: NonZeroU64::new(6).unwrap() };
    assert_eq!((planned, charged), (vec![allocation], vec![(allocation, rounds)]));
    assert_eq!(report["sampling"], sampling);
    assert!(uses.iter().all(|uses| uses.round() == 1.0), "{uses:?}");
}

#[test]
fn truncated_samples_are_drawn_and_charged_so() {
    let (file, declared, batch, rounds) = (60, 60, 10, 6);
    let (noise, sampling, adjacency) = (0.1, "truncated", "replace-one");
    let setting = Setting { file, declared, batch, rounds, noise, sampling, adjacency };
    let Outcome { uses, planned, charged, report } = train("truncated", &setting);
    let rate = SampleRate::new(10.0 / 60.0).unwrap();
    let truncated = Sampling::TruncatedPoisson(TruncatedPoisson::new(rate, 60, 29).unwrap());
    assert_eq!((planned, charged), (vec![truncated], vec![(truncated, rounds)]));
    assert_eq!(report["sampling"], sampling);
    // 360 draws at rate 1/6: beyond 8 standard deviations of 7 once in 10^14 runs.
    let total = uses.iter().map(|uses| uses.round()).sum::<f32>();
    assert!((total - 60.0).abs() < 57.0, "{uses:?}");
}

#[test]
fn batches_of_a_fixed_size_are_drawn_afresh_and_charged_so() {
    let (file, declared, batch, rounds) = (60, 60, 10, 6);
    let (noise, sampling, adjacency) = (0.01, "fixed", "replace-one");
    let setting = Setting { file, declared, batch, rounds, noise, sampling, adjacency };
    let Outcome { uses, planned, charged, report } = train("fixed", &setting);
    let fixed = Sampling::Fixed(FixedBatch::new(60, 10).unwrap());
    assert_eq!((planned, charged), (vec![fixed], vec![(fixed, rounds)]));
    assert_eq!(report["sampling"], sampling);
    // As many as six batches have; and by chance not once in 10^20 runs every record the same number of times.
    assert_eq!(uses.iter().map(|uses| uses.round()).sum::<f32>(), 60.0, "{uses:?}");
    assert!(uses.iter().any(|uses| uses.round() != 1.0), "{uses:?}");
}

/// A run that is killed within an epoch: who is in which of its rounds is forgotten, so the rest of the epoch never takes place. The
/// resumed run begins an epoch of its own, and both are paid for as whole ones.
#[test]
fn an_epoch_in_which_a_run_is_killed_is_paid_for_as_a_whole_one() {
    let length = 40;
    let directory = Directory::new("allocation-killed");
    table(&directory.file("data.csv"), 400);
    let path = config(&directory, 50 * length, "");
    let text = std::fs::read_to_string(&path).unwrap();
    let text = text
        .replace("epsilon = 2.0", "noise_multiplier = 2.0\nsampling = \"allocation\"")
        .replace("expected_batch = 100", "expected_batch = 10");
    std::fs::write(&path, text).unwrap();
    let (out, ledger) = (directory.file("out"), directory.file("ledger.db"));
    let budget = ["budget", "create", "toy", "--epsilon", "100", "--delta", "1e-5", "--ledger"];
    ok(&[&budget[..], &[&ledger]].concat());
    let words = ["train", &path, "--out", &out, "--ledger", &ledger, "-q"];
    let checkpoint = Path::new(&out).join("checkpoint.safetensors");
    let saved =
        || UnverifiedCheckpoint::read(&checkpoint).and_then(|found| found.round()).unwrap_or(0);
    let mut child = command(&words).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    // Early in an epoch, and not the first one.
    while saved() < length || saved() % length > length / 4 {
        assert!(child.try_wait().unwrap().is_none(), "it ended before it was killed");
        std::thread::sleep(Duration::from_millis(1));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    ok(&[&words[..], &["--resume"]].concat());
    ok(&["ledger", "verify", &ledger]);
    let runs = charged(&ledger);
    let rounds = |run: &Vec<Value>| run.iter().map(|line| line["rounds"].as_u64().unwrap()).sum();
    let rounds: Vec<u64> = runs.iter().map(rounds).collect();
    assert_eq!(rounds.len(), 2, "{rounds:?}");
    let epochs: u64 = rounds.iter().map(|rounds| rounds.div_ceil(length)).sum();
    assert!(epochs > 50, "{rounds:?}");
    let mut whole = runs[0][0].clone();
    assert_eq!(whole["sampling"], json!({ "policy": "allocation", "rounds_per_epoch": length }));
    whole["rounds"] = json!(epochs * length);
    let query = whole["queries"][0].as_object_mut().unwrap();
    for key in ["dimension", "s_int", "k"] {
        query.remove(key);
    }
    let file = directory.file("epochs.jsonl");
    std::fs::write(&file, format!("{{\"mode\": \"planned\"}}\n{whole}\n")).unwrap();
    let (found, expected) = (epsilon_of(&ledger), epsilon_of(&file));
    // The query without integers has its noise rounded down.
    assert!(found <= expected && found > expected * (1.0 - 1e-9), "{found} {expected}");
}
