//! Kills random ranks, and now and then mpirun itself, at random times, and goes on with another number of ranks.
//!
//! `cargo run --example kills [KILLS] [SEED]` needs the program `veilgrad-mpi` beside it. KILLS counts those of ranks; those of
//! mpirun come in addition. After every kill it checks that all
//! processes ended within 10 s, that no round was released that is not charged in the ledger on disk, and that the run
//! resumes. Exits with 1 if a check fails.
#![allow(clippy::print_stdout)]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use veilgrad_ledger::{Ledger, Options};
use veilgrad_nn::UnverifiedCheckpoint;

#[path = "training/mod.rs"]
mod training;

use training::{Made, scramble};

/// How long all processes of a job may take to end after one was killed.
const PATIENCE: Duration = Duration::from_secs(10);

const CONFIG: &str = r#"
[data]
dataset = "kills"
train = "people.csv"
label = "sick"
classes = ["no", "yes"]
records = 400
record = { user = "person", max_examples = 4 }

[[data.columns]]
name = "x"
bounds = [0, 1]

[[data.columns]]
name = "y"
bounds = [0, 1]

[model]
kind = "mlp"
hidden = [64]

[privacy]
noise_multiplier = 4.0
delta = 1e-5
expected_batch = 200
clip = 1.0

[train]
rounds = 100
optimizer = { kind = "sgd", lr = 0.5 }
block = 8
checkpoint_rounds = 1
"#;

fn main() -> Made<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let number = |place: usize, default| words.get(place).map_or(Ok(default), |word| word.parse());
    let (kills, seed) = (number(0, 100u64)?, number(1, 1u64)?);
    let home = std::env::temp_dir().join(format!("veilgrad-kills-{}", std::process::id()));
    std::fs::create_dir_all(&home)?;
    let outcome = Sweep::new(&home, seed)?.run(kills);
    std::fs::remove_dir_all(&home)?;
    outcome
}

struct Sweep {
    program: PathBuf,
    config: PathBuf,
    ledger: PathBuf,
    out: PathBuf,
    random: u64,
    /// The rounds that were charged before the present run began; it may have been resumed since.
    before: u64,
}

impl Sweep {
    fn new(home: &Path, seed: u64) -> Made<Self> {
        let examples = std::env::current_exe()?;
        let program = examples.parent().and_then(Path::parent).ok_or("no directory")?;
        let program = program.join("veilgrad-mpi");
        let (config, ledger) = (home.join("kills.toml"), home.join("ledger.db"));
        std::fs::write(&config, CONFIG)?;
        let mut table = "person,x,y,sick\n".to_owned();
        for row in 0..1200u64 {
            let word = scramble(row);
            let (x, y) = ((word % 997) as f64 / 997.0, (word / 997 % 991) as f64 / 991.0);
            let sick = if x > y { "yes" } else { "no" };
            table += &format!("p{},{x:.3},{y:.3},{sick}\n", row % 400);
        }
        std::fs::write(home.join("people.csv"), table)?;
        // Room for all rounds that kills waste.
        let create =
            ["veilgrad", "budget", "create", "kills", "--epsilon", "1000", "--delta", "1e-5"];
        let unit = ["--unit", "user", "--ledger"];
        let words = create.iter().chain(&unit).map(Into::into).chain([ledger.clone().into()]);
        veilgrad_cli::run(words, None)?;
        Ok(Self { program, config, ledger, out: home.join("run"), random: seed, before: 0 })
    }

    fn draw(&mut self, below: u64) -> u64 {
        self.random = scramble(self.random);
        self.random % below.max(1)
    }

    fn run(&mut self, kills: u64) -> Made<()> {
        let (mut killed, mut finished, mut longest) = (0, 0, Duration::ZERO);
        let (mut victims, mut while_charged) = ([0u64; 3], 0u64);
        let (mut most_unused, mut runs) = (0, 0u64);
        let typical = self.whole_run()?;
        println!("a whole run takes {:.1} s", typical.as_secs_f64());
        while killed < kills {
            let ranks = 1 + self.draw(4);
            let mut job = self.start(ranks)?;
            runs += 1;
            let wait = typical.mul_f64(self.draw(1000) as f64 / 1000.0);
            if ends_within(&mut job, wait)? {
                let status = job.wait()?;
                if !status.success() {
                    return Err(format!("a run that nobody killed ended with {status}").into());
                }
                finished += 1;
                std::fs::remove_dir_all(&self.out)?;
                continue;
            }
            let all = processes(&job)?;
            let victim = self.draw(all.len() as u64) as usize;
            victims[victim.min(2)] += 1;
            kill(all[victim]);
            // The first process is mpirun.
            killed += u64::from(victim > 0);
            let since = Instant::now();
            if !ends_within(&mut job, PATIENCE)? {
                return Err(
                    format!("mpirun did not end after kill {killed} of process {victim}").into()
                );
            }
            job.wait()?;
            while all.iter().any(|process| is_alive(*process)) {
                if since.elapsed() > PATIENCE {
                    return Err(format!(
                        "a rank did not end after kill {killed} of process {victim}"
                    )
                    .into());
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            longest = longest.max(since.elapsed());
            let (charged, released) = (self.charged()? - self.before, self.released()?);
            if released > charged {
                return Err(format!("{released} rounds released, {charged} charged").into());
            }
            while_charged += u64::from(charged > 0);
            most_unused = most_unused.max(charged - released);
        }
        // Whatever was left goes on to its end.
        let mut job = self.start(2)?;
        if !job.wait()?.success() {
            return Err("the last run does not resume".into());
        }
        let verify = ["veilgrad", "ledger", "verify"].map(Into::into);
        veilgrad_cli::run(verify.into_iter().chain([self.ledger.clone().into()]), None)?;
        println!(
            "{killed} kills of ranks ({} of rank 0, {} of others) and {} of mpirun in {runs} runs, {while_charged} after the \
             first charge; {finished} runs finished between them, and the last one",
            victims[1], victims[2], victims[0]
        );
        println!(
            "{} rounds are charged in the ledger; no run released more than it had charged, and none had charged more \
             than {most_unused} that it did not release",
            self.charged()?
        );
        println!("0 hangs: the slowest job ended {:.2} s after its kill", longest.as_secs_f64());
        Ok(())
    }

    /// The time of a run that nobody kills.
    fn whole_run(&mut self) -> Made<Duration> {
        let start = Instant::now();
        let status = self.start(2)?.wait()?;
        if !status.success() {
            return Err(format!("a whole run ended with {status}").into());
        }
        std::fs::remove_dir_all(&self.out)?;
        Ok(start.elapsed())
    }

    /// Starts a run on this many ranks, or goes on with it.
    fn start(&mut self, ranks: u64) -> Made<Child> {
        let mut command = Command::new("mpirun");
        command.args(["--oversubscribe", "--allow-run-as-root", "--bind-to", "none"]);
        command.args([
            "--mca",
            "btl_vader_single_copy_mechanism",
            "none",
            "-n",
            &ranks.to_string(),
        ]);
        command.arg(&self.program).arg("train").arg(&self.config).arg("--out").arg(&self.out);
        command.arg("--quiet").arg("--ledger").arg(&self.ledger);
        if self.out.join("checkpoint.safetensors").exists() {
            command.arg("--resume");
        } else {
            // A new run, or one that was killed before its first checkpoint or after its last.
            command.arg("--overwrite");
            self.before = self.charged()?;
        }
        Ok(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?)
    }

    /// How many rounds the ledger on disk has charged.
    fn charged(&self) -> Made<u64> {
        let ledger = Ledger::read(&self.ledger, Options::default())?;
        let runs = ledger.state().find("kills")?.runs.values();
        Ok(runs.map(|run| run.charged()).sum())
    }

    /// The rounds that the checkpoint has.
    fn released(&self) -> Made<u64> {
        let checkpoint = self.out.join("checkpoint.safetensors");
        match checkpoint.exists() {
            true => Ok(UnverifiedCheckpoint::read(&checkpoint)?.round()?),
            false => Ok(0),
        }
    }
}

/// Whether a job ends within this time.
fn ends_within(job: &mut Child, time: Duration) -> Made<bool> {
    let start = Instant::now();
    while job.try_wait()?.is_none() {
        if start.elapsed() > time {
            return Ok(false);
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(true)
}

/// mpirun and its ranks.
fn processes(job: &Child) -> Made<Vec<u32>> {
    let id = job.id();
    let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children"))?;
    let children = children.split_whitespace().filter_map(|child| child.parse().ok());
    Ok(std::iter::once(id).chain(children).collect())
}

fn kill(process: u32) {
    if let Some(process) = i32::try_from(process).ok().and_then(Pid::from_raw) {
        // It may just have ended by itself.
        let _ = kill_process(process, Signal::KILL);
    }
}

/// Whether a process runs; not if it only waits for its parent to look at how it ended.
fn is_alive(process: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    status.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z'))
}
