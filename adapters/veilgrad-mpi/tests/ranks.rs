//! The same bits, events and exit codes for any number of ranks; a rank that panics ends the job.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use veilgrad_ledger::{Ledger, Options};

/// `mpirun`, also on a machine with fewer cores than ranks, and in a container.
fn mpirun(ranks: usize, program: &Path) -> Command {
    let mut command = Command::new("mpirun");
    command.args(["--oversubscribe", "--allow-run-as-root", "--bind-to", "none"]);
    // Containers forbid the system call of the default.
    command.args(["--mca", "btl_vader_single_copy_mechanism", "none"]);
    command.args(["-n", &ranks.to_string()]).arg(program);
    command
}

fn program(name: &str) -> PathBuf {
    let command = PathBuf::from(env!("CARGO_BIN_EXE_veilgrad-mpi"));
    match name {
        "veilgrad-mpi" => command,
        example => command.with_file_name("examples").join(example),
    }
}

fn text(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// A hash of everything that 50 rounds released, without MPI and on 1 to 4 ranks.
fn same_bits(model: &str, options: &[&str]) {
    let bits = program("bits");
    let alone = Command::new(&bits).args([model, "50", "alone"]).args(options).output().unwrap();
    let alone = text(&alone);
    assert_eq!(alone.len(), 16, "{alone}");
    for ranks in 1..=4 {
        let output = mpirun(ranks, &bits).args([model, "50"]).args(options).output().unwrap();
        assert_eq!(text(&output), alone, "model {model} on {ranks} ranks");
    }
}

#[test]
fn truncated_samples_have_the_same_bits_on_any_number_of_ranks() {
    same_bits("b", &["truncated"]);
}

#[test]
fn a_run_that_goes_on_with_another_number_of_ranks_has_the_weights_of_one_process() {
    let place = scratch("resume");
    let bits = program("bits");
    for model in ["a", "batch-norm"] {
        let option =
            |name: &str| format!("checkpoint={}", place.join(format!("{model}-{name}")).display());
        let alone = [model, "30", "alone", &option("alone")];
        let alone = text(&Command::new(&bits).args(alone).output().unwrap());
        let mut found = Vec::new();
        for (ranks, rounds) in [(3, "10"), (2, "20"), (1, "25"), (4, "30")] {
            let run = [model, rounds, &option("ranks")];
            found.push(text(&mpirun(ranks, &bits).args(run).output().unwrap()));
        }
        assert_eq!(found[3], alone, "{model}");
        found.dedup();
        assert_eq!(found.len(), 4, "every part trains");
    }
    std::fs::remove_dir_all(place).unwrap();
}

#[test]
fn model_a_has_the_same_bits_on_any_number_of_ranks() {
    same_bits("a", &[]);
}

#[test]
fn model_b_has_the_same_bits_on_any_number_of_ranks() {
    same_bits("b", &[]);
}

#[test]
fn users_have_the_same_bits_on_any_number_of_ranks() {
    same_bits("users", &[]);
}

#[test]
fn microbatches_have_the_same_bits_on_any_number_of_ranks() {
    same_bits("microbatches", &[]);
}

#[test]
fn batch_norm_has_the_same_bits_on_any_number_of_ranks() {
    same_bits("batch-norm", &[]);
}

#[test]
fn a_rank_that_panics_ends_the_job_and_prints_no_value() {
    let output = mpirun(3, &program("bits")).args(["b", "50", "panic"]).output().unwrap();
    assert_eq!(output.status.code(), Some(101));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("a rank panicked") && !said.contains("private value"), "{said}");
    assert!(output.stdout.is_empty());
}

/// A directory for one test.
fn scratch(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("veilgrad-mpi-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&path).unwrap();
    path
}

/// The table of the guide, whose records are users, with fewer rounds.
fn config(place: &Path, more: &str) -> PathBuf {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let table = examples.join("tabular/visits.csv").canonicalize().unwrap();
    let text = std::fs::read_to_string(examples.join("tabular.toml")).unwrap();
    let text = text.replace("tabular/visits.csv", &table.display().to_string());
    let text = text.replace("rounds = 100", "rounds = 10").replace("[privacy]\n", more);
    let path = place.join("tabular.toml");
    std::fs::write(&path, text).unwrap();
    path
}

/// The header and the rounds of the only run in a ledger.
fn events(ledger: &Path) -> String {
    let ledger = Ledger::read(ledger, Options::default()).unwrap();
    let dataset = ledger.state().find("tabular").unwrap();
    let runs = dataset.runs.values().map(|run| (&run.header, &run.rounds, run.closed));
    format!("{:?} {:?}", dataset.budget, runs.collect::<Vec<_>>())
}

/// A report without what is drawn at random, or depends on it.
fn report(place: &Path) -> serde_json::Value {
    let text = std::fs::read_to_string(place.join("report.json")).unwrap();
    let mut report: serde_json::Value = serde_json::from_str(&text).unwrap();
    let object = report.as_object_mut().unwrap();
    for random in ["ledger", "model", "metrics", "run_ids", "statement"] {
        object.remove(random);
    }
    report
}

#[test]
fn the_command_writes_the_same_events_and_report_on_any_number_of_ranks() {
    same_events("events", "[privacy]\n", "");
}

#[test]
fn correlated_noise_has_the_same_events_and_report_on_any_number_of_ranks() {
    same_events("correlated", "[privacy]\ncorrelated = { bands = 3 }\n", "CyclicPoisson");
}

/// Compares what the command writes without MPI and on 1 to 3 ranks. The events contain this word.
fn same_events(name: &str, more: &str, word: &str) {
    let place = scratch(name);
    let config = config(&place, more);
    let mut found = Vec::new();
    for ranks in 0..=3 {
        let (out, ledger) = (place.join(ranks.to_string()), place.join(format!("{ranks}.db")));
        let words =
            ["train".into(), config.clone().into_os_string(), "--out".into(), out.clone().into()];
        let words =
            words.into_iter().chain(["--ledger".into(), ledger.clone().into(), "-q".into()]);
        match ranks {
            0 => veilgrad_cli::run(["veilgrad".into()].into_iter().chain(words), None).unwrap(),
            _ => {
                text(&mpirun(ranks, &program("veilgrad-mpi")).args(words).output().unwrap());
            }
        }
        found.push((events(&ledger), report(&out)));
    }
    assert!(found.iter().all(|other| *other == found[0]), "{found:#?}");
    assert!(found[0].0.contains(word), "{}", found[0].0);
    std::fs::remove_dir_all(place).unwrap();
}

#[test]
fn preconditioned_inputs_are_whitened_on_every_rank() {
    let place = scratch("precondition");
    let config = config(&place, "[privacy]\nprecondition = { directions = 2, rounds = 2 }\n");
    let text = std::fs::read_to_string(&config).unwrap();
    let text = text.replace("record = { user = \"person\", max_examples = 8 }\n", "");
    let text = text.replace("kind = \"linear\"", "kind = \"linear\"\ninput_norm = 8.0");
    std::fs::write(&config, text).unwrap();
    let output = mpirun(2, &program("veilgrad-mpi"))
        .args([
            "train".as_ref(),
            config.as_os_str(),
            "--out".as_ref(),
            place.join("run").as_os_str(),
        ])
        .args(["--ledger".as_ref(), place.join("ledger.db").as_os_str()])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(place.join("run/model.safetensors").exists());
    std::fs::remove_dir_all(place).unwrap();
}

#[test]
fn refusals_have_the_exit_code_of_the_command_and_leave_no_rank_waiting() {
    let place = scratch("refusals");
    let config = config(&place, "[privacy]\n");
    let train = |config: &Path, more: &[&str]| {
        let mut command = mpirun(3, &program("veilgrad-mpi"));
        command.arg("train").arg(config).args(["-q", "--out"]).arg(place.join("run"));
        command.arg("--ledger").arg(place.join("ledger.db")).args(more).output().unwrap()
    };
    let code = |output: Output| output.status.code();
    assert_eq!(code(train(&place.join("missing.toml"), &[])), Some(1));
    assert_eq!(code(train(&config, &["--resume"])), Some(2));
    assert_eq!(
        code(mpirun(2, &program("veilgrad-mpi")).args(["plan", "--help"]).output().unwrap()),
        Some(0)
    );
    // The files are missing for every rank; only rank 0 says so.
    let text = std::fs::read_to_string(&config).unwrap().replace("visits.csv", "nothing.csv");
    std::fs::write(&config, text).unwrap();
    let output = train(&config, &[]);
    assert_ne!(output.status.code(), Some(0));
    std::fs::remove_dir_all(place).unwrap();
}
