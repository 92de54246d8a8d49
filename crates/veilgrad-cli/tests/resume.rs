//! Runs that stop before they are done: what they keep, how they go on, and models that cost nothing more.

use std::path::Path;
use std::process::{Child, Output, Stdio};
use std::time::{Duration, Instant};

use crate::common::{Directory, command, config, ok, refused, table, veilgrad};
use serde_json::Value;
use veilgrad_ledger::{Ledger, Options};
use veilgrad_nn::UnverifiedCheckpoint;

const ROUNDS: u64 = 3000;

/// A run that has been begun in a directory of its own.
struct Begun {
    directory: Directory,
    config: String,
    out: String,
    ledger: String,
}

impl Begun {
    fn new(name: &str) -> Self {
        let directory = Directory::new(&format!("resume-{name}"));
        table(&directory.file("data.csv"), 400);
        let config = config(&directory, ROUNDS, "");
        let out = directory.file("out");
        let ledger = format!("{out}/ledger.db");
        Self { directory, config, out, ledger }
    }

    /// Starts the command, and waits until rounds are charged and a checkpoint is there.
    fn start(&self, more: &[&str]) -> Child {
        let words = [&["train", &self.config, "--out", &self.out], more].concat();
        let child = command(&words).stderr(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let log = format!("{}-wal", self.ledger);
        while !std::fs::metadata(&log).is_ok_and(|log| log.len() > 40_000)
            || !self.checkpoint().exists()
        {
            std::thread::sleep(Duration::from_millis(2));
        }
        child
    }

    fn checkpoint(&self) -> std::path::PathBuf {
        Path::new(&self.out).join("checkpoint.safetensors")
    }

    /// The rounds of the checkpoint that is there.
    fn saved(&self) -> u64 {
        UnverifiedCheckpoint::read(&self.checkpoint()).unwrap().round().unwrap()
    }

    /// The files of the ledger, some of which are not always there.
    fn ledger_files(&self) -> [(std::path::PathBuf, Option<Vec<u8>>); 3] {
        let anchor = Ledger::anchor_path(Path::new(&self.ledger));
        let log = format!("{}-wal", self.ledger);
        [self.ledger.clone().into(), log.into(), anchor]
            .map(|path| (path.clone(), std::fs::read(path).ok()))
    }

    /// Starts the command and interrupts it.
    fn interrupted(name: &str) -> Self {
        let run = Self::new(name);
        let child = run.start(&[]);
        signal("INT", &child);
        assert_eq!(child.wait_with_output().unwrap().status.code(), Some(130));
        run
    }

    fn resume(&self) -> Output {
        veilgrad(&["train", &self.config, "--out", &self.out, "--resume", "--json"])
    }

    /// The same configuration with something replaced.
    fn changed(&self, from: &str, to: &str) -> String {
        let text = std::fs::read_to_string(&self.config).unwrap();
        assert!(text.contains(from), "{from}");
        let path = self.directory.file("changed.toml");
        std::fs::write(&path, text.replace(from, to)).unwrap();
        path
    }

    fn head(&self) -> String {
        ok(&["ledger", "head", &self.ledger])
    }

    fn charged(&self) -> u64 {
        charged(&self.ledger)
    }

    /// Waits until a checkpoint has more rounds than this.
    fn wait_for_saved(&self, rounds: u64) {
        while self.saved() <= rounds {
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// That there is a model with all that belongs to it, and nothing to go on with.
    fn is_finished(&self) -> Value {
        for name in ["model.safetensors", "report.json", "report.html", "statement.txt"] {
            assert!(Path::new(&self.out).join(name).exists(), "{name}");
        }
        for name in ["checkpoint.safetensors", "run.json"] {
            assert!(!Path::new(&self.out).join(name).exists(), "{name}");
        }
        ok(&["ledger", "verify", &self.ledger]);
        let report = std::fs::read(Path::new(&self.out).join("report.json")).unwrap();
        serde_json::from_slice(&report).unwrap()
    }
}

/// The number of rounds that were charged in a ledger.
fn charged(ledger: &str) -> u64 {
    let ledger = Ledger::read(Path::new(ledger), Options::default()).unwrap();
    let datasets = ledger.state().datasets().values();
    datasets.flat_map(|dataset| dataset.runs.values()).map(|run| run.charged()).sum()
}

fn signal(name: &str, child: &Child) {
    let words = [format!("-{name}"), child.id().to_string()];
    assert!(std::process::Command::new("kill").args(words).status().unwrap().success());
}

/// Stops all threads of a process where they are, as a copy of the whole machine would find them.
fn freeze(child: &Child) {
    signal("STOP", child);
    let is_stopped = |thread: std::fs::DirEntry| {
        let state = std::fs::read_to_string(thread.path().join("stat")).unwrap();
        state.rsplit_once(')').unwrap().1.starts_with(" T")
    };
    let threads = format!("/proc/{}/task", child.id());
    while !std::fs::read_dir(&threads).unwrap().all(|thread| is_stopped(thread.unwrap())) {
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn going_on_with_another_configuration_is_refused_and_the_key_is_named() {
    let run = Begun::interrupted("configuration");
    let head = run.head();
    for (from, to, what) in [
        ("batch = 100", "batch = 50", "[privacy] expected_batch was 100.0, and is 50.0"),
        (
            "[\"a\", \"b\"]",
            "[\"b\", \"a\"]",
            "[data] classes was [\"a\",\"b\"], and is [\"b\",\"a\"]",
        ),
        ("\"x\"\nbounds = [0, 1]", "\"x\"\nbounds = [0, 2]", "[data] columns 1: bounds was"),
        ("epsilon = 2.0", "epsilon = 2.5", "[privacy] epsilon was 2.0, and is 2.5"),
        ("records = 400", "records = 500", "[data] records was 400, and is 500"),
        ("lr = 2.0", "lr = 1.0", "[train] optimizer.lr was 2.0, and is 1.0"),
        ("dataset = \"toy\"", "dataset = \"tin\"", "[data] dataset was \"toy\", and is \"tin\""),
    ] {
        let other = run.changed(from, to);
        refused(&["train", &other, "--out", &run.out, "--resume"], 2, what);
    }
    let words = ["train", &run.config, "--out", &run.out, "--resume", "--epsilon", "1.5"];
    refused(&words, 2, "[privacy] epsilon was 2.0, and is 1.5");
    // Nothing was begun or charged for any of these.
    assert_eq!(run.head(), head);
    // No path is in the checkpoint.
    let bytes = std::fs::read(run.checkpoint()).unwrap();
    let place = run.directory.0.display().to_string();
    assert!(!bytes.windows(place.len()).any(|window| window == place.as_bytes()));
    // How rounds are charged and saved may change.
    let other = run.changed("block = 4", "block = 8\ncheckpoint_rounds = 100");
    ok(&["train", &other, "--out", &run.out, "--resume", "--threads", "1", "-q"]);
    run.is_finished();
}

#[test]
fn a_busy_ledger_is_waited_for_and_the_run_is_kept_when_patience_ends() {
    let run = Begun::new("busy");
    let child = run.start(&["--wait", "1"]);
    let anchor = std::fs::File::open(Ledger::anchor_path(Path::new(&run.ledger))).unwrap();
    anchor.lock().unwrap();
    let output = child.wait_with_output().unwrap();
    let error = text(&output);
    assert_eq!(output.status.code(), Some(6), "{error}");
    assert_eq!(error.matches("the ledger is busy: waiting").count(), 1, "{error}");
    assert!(error.contains("go on with --resume"), "{error}");
    // Reading is enough to make a model; writing is not possible now.
    let words = ["train", &run.config, "--out", &run.out, "--resume", "--wait", "0"];
    refused(&words, 6, "the ledger is busy");
    let before = std::fs::read(&run.ledger).unwrap();
    ok(&["finish", &run.out, "-q"]);
    let report = run.is_finished();
    assert!((1..ROUNDS).contains(&report["rounds"].as_u64().unwrap()), "{report}");
    assert_eq!(std::fs::read(&run.ledger).unwrap(), before);
    anchor.unlock().unwrap();
}

#[test]
fn an_interrupted_run_is_a_document_with_exit_code_130() {
    let run = Begun::new("document");
    let child = run.start(&["--json"]);
    signal("INT", &child);
    let output = child.wait_with_output().unwrap();
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((output.status.code(), &document["exit_code"]), (Some(130), &130.into()));
    assert_eq!((&document["error"], &document["valid"]), (&"interrupted".into(), &false.into()));
    assert!(document["reason"].as_str().unwrap().contains("--resume"), "{document}");
}

#[test]
fn two_processes_never_train_in_one_directory() {
    let run = Begun::new("alone");
    let mut child = run.start(&[]);
    let words = ["train", &run.config, "--out", &run.out];
    let busy = "another process trains in";
    refused(&words, 6, busy);
    refused(&[&words[..], &["--resume"]].concat(), 6, busy);
    refused(&["finish", &run.out], 6, busy);
    run.wait_for_saved(0);
    child.kill().unwrap();
    child.wait().unwrap();
    ok(&["finish", &run.out, "-q"]);
    run.is_finished();
}

#[test]
fn every_charge_of_a_run_is_written_elsewhere() {
    let run = Begun::new("witness");
    let heads = run.directory.file("heads");
    let words = ["train", &run.config, "--out", &run.out, "-q", "--witness"];
    ok(&[&words[..], &[&heads]].concat());
    let heads = std::fs::read_to_string(&heads).unwrap();
    assert_eq!(heads.lines().last(), Some(run.head().trim()));
    let rows = |head: &str| head.split(':').nth(1).unwrap().parse::<u64>().unwrap();
    let rows: Vec<u64> = heads.lines().map(rows).collect();
    assert!(rows.len() as u64 >= ROUNDS / 4 && rows.is_sorted(), "{}", rows.len());
}

#[test]
fn a_ledger_from_a_backup_that_lacks_charges_of_the_checkpoint_is_refused() {
    let run = Begun::new("rolled-back");
    let child = run.start(&[]);
    freeze(&child);
    // Database and anchor agree in this copy: alone, it is a whole ledger of the same run.
    let older = run.ledger_files();
    let copy = run.directory.file("copy");
    std::fs::create_dir(&copy).unwrap();
    for (path, bytes) in &older {
        if let Some(bytes) = bytes {
            std::fs::write(Path::new(&copy).join(path.file_name().unwrap()), bytes).unwrap();
        }
    }
    signal("CONT", &child);
    // So that rounds were charged that the copy does not have.
    run.wait_for_saved(charged(&format!("{copy}/ledger.db")));
    signal("INT", &child);
    assert_eq!(child.wait_with_output().unwrap().status.code(), Some(130));
    let (newer, charged) = (run.ledger_files(), run.charged());
    let restore = |files: &[(std::path::PathBuf, Option<Vec<u8>>)]| {
        let _ = std::fs::remove_file(format!("{}-shm", run.ledger));
        for (path, bytes) in files {
            match bytes {
                Some(bytes) => std::fs::write(path, bytes).unwrap(),
                None => drop(std::fs::remove_file(path)),
            }
        }
    };
    restore(&older);
    ok(&["ledger", "verify", &run.ledger]);
    assert!(run.charged() < charged, "{charged}");
    refused(&["train", &run.config, "--out", &run.out, "--resume"], 4, "it was rolled back");
    refused(&["finish", &run.out], 4, "it was rolled back");
    // With the ledger that has all charges, the run goes on.
    restore(&newer);
    let output = run.resume();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    run.is_finished();
}

#[test]
fn a_model_is_made_from_a_checkpoint_without_data_and_without_a_charge() {
    let run = Begun::interrupted("finish");
    let (head, charged) = (run.head(), run.charged());
    std::fs::remove_file(run.directory.file("data.csv")).unwrap();
    let report: Value = serde_json::from_str(&ok(&["finish", &run.out, "--json"])).unwrap();
    assert_eq!(run.is_finished()["rounds"], report["rounds"]);
    let rounds = report["rounds"].as_u64().unwrap();
    assert!(rounds > 0 && rounds <= charged && charged < ROUNDS, "{rounds} of {charged}");
    assert_eq!((run.head(), run.charged()), (head, charged));
    // Fewer rounds than planned do not lower what is promised.
    assert!(report["epsilon"].as_f64().unwrap() > 1.9, "{report}");
    // A second time there is nothing to do; without a run, nothing to make a model from.
    assert_eq!(ok(&["finish", &run.out]), "");
    refused(&["finish", &run.directory.file("none")], 2, "has no checkpoint");
}

#[test]
fn a_run_whose_budget_is_spent_still_gives_its_model() {
    let run = Begun::interrupted("spent");
    ok(&["budget", "tighten", "toy", "--epsilon", "0.01", "--ledger", &run.ledger]);
    let head = run.head();
    let output = run.resume();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    assert!(text(&output).contains("has room for 0 of the"), "{}", text(&output));
    assert!(run.is_finished()["rounds"].as_u64().unwrap() < ROUNDS);
    assert_eq!(run.head(), head);
}

/// A block is charged before its rounds run, and a process that is killed then leaves the checkpoint from before them: the
/// initial model, which is all zeros and predicts the first class.
#[test]
fn charged_rounds_that_were_not_saved_give_no_model() {
    let mut run = Begun::new("unsaved");
    run.config = run.changed("block = 4", "block = 4\ncheckpoint_rounds = 100000");
    let mut child = run.start(&[]);
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(run.saved(), 0);
    assert!(run.charged() > 0);
    let head = run.head();
    refused(&["finish", &run.out], 2, "before its first round, so there is no model yet");
    assert!(!Path::new(&run.out).join("model.safetensors").exists());
    assert_eq!(run.head(), head);
    // Going on is possible as long as the budget has room for a round.
    ok(&["budget", "tighten", "toy", "--epsilon", "0.01", "--ledger", &run.ledger]);
    let words = ["train", &run.config, "--out", &run.out, "--resume"];
    refused(&words, 3, "has no room for a round, and the checkpoint is from before the first one");
    assert!(run.checkpoint().exists() && !Path::new(&run.out).join("model.safetensors").exists());
}

#[test]
fn a_budget_that_ends_in_the_middle_of_a_run_leaves_a_checkpoint() {
    let run = Begun::new("tightened");
    let child = run.start(&[]);
    ok(&["budget", "tighten", "toy", "--epsilon", "0.01", "--ledger", &run.ledger]);
    let output = child.wait_with_output().unwrap();
    // Not 3: that says that nothing was run and the data was not opened.
    assert_eq!(output.status.code(), Some(4), "{}", text(&output));
    assert!(text(&output).contains("veilgrad finish"), "{}", text(&output));
    ok(&["finish", &run.out, "-q"]);
    // All rounds that were charged were done and kept.
    assert_eq!(run.is_finished()["rounds"].as_u64().unwrap(), run.charged());
}

#[test]
fn a_checkpoint_that_cannot_be_written_leaves_the_one_before() {
    let mut run = Begun::new("unwritable");
    run.config = run.changed("block = 4", "block = 4\ncheckpoint_rounds = 20");
    let child = run.start(&[]);
    // A directory is where the new one is to be written, as full disks are hard to come by.
    let obstacle = format!("{}/checkpoint.safetensors.partial", run.out);
    while std::fs::create_dir(&obstacle).is_err() {}
    let output = child.wait_with_output().unwrap();
    let error = text(&output);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains("could not be written") && error.contains("is whole"), "{error}");
    std::fs::remove_dir(&obstacle).unwrap();
    let output = run.resume();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    run.is_finished();
}

#[test]
fn a_run_that_is_killed_at_any_moment_is_never_stranded() {
    let run = Begun::new("killed");
    let text = std::fs::read_to_string(&run.config).unwrap();
    std::fs::write(&run.config, text.replace("rounds = 3000", "rounds = 300")).unwrap();
    let kills = std::env::var("VEILGRAD_KILLS").map_or(12, |kills| kills.parse::<u32>().unwrap());
    let start = Instant::now();
    ok(&["train", &run.config, "--out", &run.out, "-q"]);
    let whole = start.elapsed();
    for attempt in 0..kills {
        let out = run.directory.file(&format!("out-{attempt}"));
        let ledger = format!("{out}.db");
        let words = ["train", &run.config, "--out", &out, "--ledger", &ledger, "-q"];
        let mut child =
            command(&words).stderr(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
        // From before there is a ledger until after there is a model.
        std::thread::sleep(whole * attempt / kills);
        child.kill().unwrap();
        child.wait().unwrap();
        let place = Path::new(&out);
        match (place.join("checkpoint.safetensors").exists(), attempt % 2) {
            (true, 0) => {
                // Only where no round is saved there is no model to make.
                let finished = veilgrad(&["finish", &out, "-q"]);
                if finished.status.code() != Some(0) {
                    let error = String::from_utf8_lossy(&finished.stderr).into_owned();
                    assert!(error.contains("so there is no model yet"), "{error}");
                    ok(&[&words[..], &["--resume"]].concat());
                }
            }
            (true, _) => drop(ok(&[&words[..], &["--resume"]].concat())),
            // Before the first checkpoint nothing is charged; after the last, all is done.
            (false, _) if !place.join("model.safetensors").exists() => drop(ok(&words)),
            (false, _) => drop(ok(&["finish", &out])),
        }
        let model = format!("{out}/model.safetensors");
        ok(&["predict", &model, &run.directory.file("data.csv")]);
        ok(&["ledger", "verify", &ledger]);
        let shown: Value =
            serde_json::from_str(&ok(&["budget", "show", "toy", "--ledger", &ledger, "--json"]))
                .unwrap();
        assert!(shown["spent"].as_f64().unwrap() <= 2.0, "{shown}");
    }
}

#[test]
fn a_second_run_that_fits_alone_but_not_with_the_first_is_refused_before_it_starts() {
    let run = Begun::new("hold");
    std::fs::create_dir(&run.out).unwrap();
    let create = ["budget", "create", "toy", "--epsilon", "2.5", "--delta", "1e-5", "--ledger"];
    ok(&[&create[..], &[&run.ledger]].concat());
    let mut first = run.start(&[]);
    // Data that is not there would be missed by a run that looks for it.
    let second = run.changed("data.csv", "gone.csv");
    let out = run.directory.file("second");
    let words = ["train", &second, "--out", &out, "--ledger", &run.ledger, "-q"];
    let error = refused(&words, 3, "the data was not opened");
    assert!(error.contains("running plan"), "{error}");
    // Checking says the same before anything begins.
    let check = ["check", &run.config, "--ledger", &run.ledger];
    assert!(refused(&check, 3, "nothing was charged").contains("running plan"));
    // What a process held that died is free; what it charged is not.
    first.kill().unwrap();
    first.wait().unwrap();
    let charged = run.charged();
    assert!(charged > 0 && charged < ROUNDS, "{charged}");
    refused(&words, 5, "gone.csv");
    // The first goes on with all that it had.
    let output = run.resume();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    run.is_finished();
    refused(&words, 3, "epsilon would be");
}
