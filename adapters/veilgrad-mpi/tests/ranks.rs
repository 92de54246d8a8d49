//! The same bits, events and exit codes for any number of ranks; a rank that panics ends the job.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use veilgrad_accounting::Workload;
use veilgrad_cli::Trained;
use veilgrad_ledger::{Ledger, Options};
use veilgrad_nn::UnverifiedCheckpoint;

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
    same_output("bits", &[&[model, "50"], options].concat());
}

/// What an example prints, without MPI and on 1 to 4 ranks.
fn same_output(example: &str, words: &[&str]) {
    let program = program(example);
    let alone = text(&Command::new(&program).args(words).arg("alone").output().unwrap());
    assert_eq!(alone.len(), 16, "{alone}");
    for ranks in 1..=4 {
        let output = mpirun(ranks, &program).args(words).output().unwrap();
        assert_eq!(text(&output), alone, "{example} {words:?} on {ranks} ranks");
    }
}

#[test]
fn a_loop_of_ones_own_has_the_same_bits_on_any_number_of_ranks() {
    same_output("own_loop", &["6"]);
}

#[test]
fn threads_do_not_change_the_bits_on_any_number_of_ranks() {
    let bits = program("bits");
    let alone = text(&Command::new(&bits).args(["b", "20", "alone"]).output().unwrap());
    for ranks in [1, 2, 3] {
        let output = mpirun(ranks, &bits).args(["b", "20", "threads=2"]).output().unwrap();
        assert_eq!(text(&output), alone, "{ranks} ranks with two threads");
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
    for option in ["panic", "panic-on-thread"] {
        let output = mpirun(3, &program("bits")).args(["b", "50", option]).output().unwrap();
        assert_eq!(output.status.code(), Some(101), "{option}");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("a rank panicked") && !said.contains("private value"), "{said}");
        assert!(output.stdout.is_empty());
    }
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
    same_events_of(name, more, word, |text| text);
}

/// The same, with changes to the configuration.
fn same_events_of(name: &str, more: &str, word: &str, change: impl Fn(String) -> String) {
    let place = scratch(name);
    let config = config(&place, more);
    let text_of = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, change(text_of)).unwrap();
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

const CATEGORIES: usize = 3000;
const ROUNDS: usize = 24;

/// The mean square of the weights after rounds of almost nothing but noise, of standard deviation 300 on each sum, in units of
/// that of plain noise in one round. With bands, noise is correlated.
fn noise_in_weights(place: &Path, ranks: usize, bands: Option<usize>) -> f64 {
    let categories: Vec<String> = (0..CATEGORIES).map(|i| format!("\"{i}\"")).collect();
    let correlated = bands.map_or(String::new(), |b| format!("correlated = {{ bands = {b} }}\n"));
    let settings = format!(
        "[data]\ndataset = \"noise\"\ntrain = \"noise.csv\"\nlabel = \"y\"\nclasses = [\"a\", \"b\"]\n\
         records = 400\n[[data.columns]]\nname = \"x\"\ncategories = [{}]\n\
         [model]\nkind = \"linear\"\n[privacy]\nnoise_multiplier = 300.0\ndelta = 1e-5\n\
         expected_batch = 20\nclip = 1.0\n{correlated}[train]\nrounds = {ROUNDS}\n\
         optimizer = {{ kind = \"sgd\", lr = 20.0 }}\n",
        categories.join(", ")
    );
    let config = place.join("noise.toml");
    std::fs::write(&config, settings).unwrap();
    let rows: Vec<String> = (0..400).map(|i| format!("{i},{}\n", ["a", "b"][i % 2])).collect();
    std::fs::write(place.join("noise.csv"), format!("x,y\n{}", rows.concat())).unwrap();
    let name = format!("{ranks}-{}", bands.unwrap_or(1));
    let (out, ledger) = (place.join(&name), place.join(format!("{name}.db")));
    let mut command = mpirun(ranks, &program("veilgrad-mpi"));
    command.arg("train").arg(&config).arg("-q").arg("--out").arg(&out).arg("--ledger").arg(ledger);
    text(&command.output().unwrap());
    let trained = Trained::read(&out.join("model.safetensors")).unwrap();
    let weights: Vec<f64> = trained
        .model()
        .parameters()
        .flat_map(|(_, _, values)| values.iter().map(|value| f64::from(*value)))
        .collect();
    assert_eq!(weights.len(), 2 * (CATEGORIES + 1));
    weights.iter().map(|w| w * w).sum::<f64>() / weights.len() as f64 / 300f64.powi(2)
}

/// A mean over 6002 weights has a relative standard deviation of 0.018: 13 % are 7 of them, with false alarms below 1e-10. Noise
/// once per rank would have three times the variance, and plain noise a multiple of that of correlated noise.
#[test]
fn noise_is_added_once_and_cancels_between_rounds_on_any_number_of_ranks() {
    let place = scratch("noise");
    let bands = 8;
    let strategy = Workload::prefix_sums(ROUNDS).strategy(bands).unwrap();
    let one = f64::from(strategy.entries()[0]);
    let c: Vec<f64> = strategy.entries().iter().map(|m| f64::from(*m) / one).collect();
    // The sum of all rounds has the sums of the first coefficients of 1/c.
    let (mut inverse, mut sum, mut squares) = (Vec::new(), 0.0, 0.0);
    for t in 0..ROUNDS {
        let earlier: f64 = (1..bands.min(t + 1)).map(|j| c[j] * inverse[t - j]).sum();
        inverse.push(if t == 0 { 1.0 } else { -earlier });
        sum += inverse[t];
        squares += sum * sum;
    }
    let correlated = squares * c.iter().map(|c| c * c).sum::<f64>();
    assert!(correlated < 0.5 * ROUNDS as f64, "{correlated}");
    for ranks in [1, 3] {
        for (bands, expected) in [(None, ROUNDS as f64), (Some(bands), correlated)] {
            let found = noise_in_weights(&place, ranks, bands);
            let ratio = found / expected;
            assert!((ratio - 1.0).abs() < 0.13, "{ranks} ranks, {bands:?} bands: {ratio}");
        }
    }
    std::fs::remove_dir_all(place).unwrap();
}

#[test]
fn preconditioned_inputs_are_whitened_on_every_rank() {
    // What its rounds release has the same bits on any number of ranks,
    same_output("bits", &["precondition", "4"]);
    same_output("bits", &["precondition", "4", "threads=2"]);
    // and the command trains on inputs that they whiten.
    let privacy = "[privacy]\nprecondition = { directions = 2, rounds = 2 }\n";
    same_events_of("precondition", privacy, "first-directions", |text| {
        let text = text.replace("record = { user = \"person\", max_examples = 8 }\n", "");
        text.replace("kind = \"linear\"", "kind = \"linear\"\ninput_norm = 8.0")
    });
}

#[test]
fn an_interrupted_run_finishes_its_round_and_is_saved() {
    let place = scratch("interrupted");
    let config = config(&place, "[privacy]\n");
    let text = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, text.replace("rounds = 10", "rounds = 100000")).unwrap();
    let (out, ledger) = (place.join("run"), place.join("ledger.db"));
    let start = |more: &[&str]| {
        let mut command = mpirun(2, &program("veilgrad-mpi"));
        command.arg("train").arg(&config).arg("-q").arg("--out").arg(&out);
        command.arg("--ledger").arg(&ledger).args(more);
        command.stderr(std::process::Stdio::piped()).spawn().unwrap()
    };
    let mut released = 0;
    for more in [&[][..], &["--resume"]] {
        let mut job = start(more);
        let checkpoint = out.join("checkpoint.safetensors");
        let rounds = || {
            let found = UnverifiedCheckpoint::read(&checkpoint).ok();
            found.and_then(|found| found.round().ok()).unwrap_or(0)
        };
        // Within the rounds of this job.
        while rounds() <= released {
            assert!(job.try_wait().unwrap().is_none(), "the job ended by itself");
            std::thread::sleep(Duration::from_millis(5));
        }
        // As Ctrl-C does it: every rank gets the signal.
        let children = format!("/proc/{0}/task/{0}/children", job.id());
        let ranks = std::fs::read_to_string(children).unwrap();
        let ranks: Vec<i32> = ranks.split_whitespace().map(|rank| rank.parse().unwrap()).collect();
        assert_eq!(ranks.len(), 2);
        for rank in ranks {
            let _ = kill_process(Pid::from_raw(rank).unwrap(), Signal::INT);
        }
        let output = job.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(130), "{said}");
        let charged = Ledger::read(&ledger, Options::default()).unwrap();
        let runs = charged.state().find("tabular").unwrap().runs.values();
        let charged: u64 = runs.map(|run| run.charged()).sum();
        assert!(rounds() > released && rounds() <= charged, "{} of {charged}", rounds());
        released = rounds();
    }
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
    let text = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, text.replace("visits.csv", "nothing.csv")).unwrap();
    let output = train(&config, &[]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(5), "{said}");
    assert_eq!(said.matches("nothing.csv").count(), 1, "{said}");
    assert_eq!(said.matches("error:").count(), 1, "{said}");
    // One rank alone cannot read them; rank 0 says which.
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let table = examples.join("tabular/visits.csv").canonicalize().unwrap();
    let text = text.replace(&table.display().to_string(), "visits.csv");
    let gone = place.join("gone");
    std::fs::create_dir(&gone).unwrap();
    std::fs::copy(&table, place.join("visits.csv")).unwrap();
    std::fs::write(gone.join("visits.csv"), "").unwrap();
    std::fs::write(&config, &text).unwrap();
    std::fs::write(gone.join("tabular.toml"), &text).unwrap();
    // The last rank works in a directory with the same configuration and an empty table.
    let mut command = mpirun(3, Path::new("sh"));
    let script = "[ $OMPI_COMM_WORLD_RANK != 2 ] || cd gone; exec \"$@\"";
    command.current_dir(&place).args(["-c", script, "sh"]).arg(program("veilgrad-mpi"));
    command.args(["train", "tabular.toml", "-q", "--overwrite", "--out"]).arg(place.join("run"));
    let output = command.arg("--ledger").arg(place.join("ledger.db")).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert_eq!(said.matches("error: rank 2: ").count(), 1, "{said}");
    std::fs::remove_dir_all(place).unwrap();
}
