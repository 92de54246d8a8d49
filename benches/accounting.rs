//! Speed of Veilgrad's accountants and of dp_accounting's, in one run.
//!
//! `benches/accounting.sh` installs dp_accounting into a virtual environment and runs this with it;
//! `cargo bench -p veilgrad-benches --bench accounting [-- --quick]` runs it without. With `--all`,
//! dp_accounting's PLD also runs workload e, which takes about 5 minutes.
#![allow(clippy::print_stdout, missing_docs)]

use std::error::Error;
use std::hint::black_box;
use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use veilgrad_accounting::{
    Accountant, Composition, Pld, PrivacyTarget, Rdp, Tightest, advantage, true_positive_rate,
};
use veilgrad_events::{
    Adjacency, ClipNorm, Delta, Epsilon, NoiseMultiplier, NoiseStd, Round, Rounds, SampleRate,
    Sampling, SumQuery,
};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Veilgrad's accountants are repeated for this long, to measure microseconds accurately.
const LEAST: Duration = Duration::from_millis(20);
const ADJACENCY: Adjacency = Adjacency::AddRemove;

struct Workload {
    name: &'static str,
    delta: Delta,
    question: Question,
}

enum Question {
    /// The epsilon of these rounds: rate, noise multiplier, number of rounds.
    Epsilon(Vec<(f64, f64, u64)>),
    /// The smallest noise multiplier that keeps these rounds within the budget.
    Noise { epsilon: Epsilon, rate: SampleRate, rounds: u64 },
}

struct Answer {
    value: f64,
    lower: Option<f64>,
}

fn main() -> Result<()> {
    let given = |flag: &str| std::env::args().any(|argument| argument == flag);
    let (quick, all) = (given("--quick"), given("--all"));
    let repetitions = if quick { 1 } else { 3 };
    let mut peer = Peer::start()?;

    println!("median of {repetitions} alternating runs, wall time; ratio: theirs / ours");
    println!(
        "{:<42}{:<5}{:>15}{:>15}{:>11}{:>11}{:>9}  ours is within",
        "workload", "", "ours", "dp_accounting", "ours", "theirs", "ratio"
    );
    for workload in workloads()? {
        let many = matches!(&workload.question, Question::Epsilon(steps) if steps.len() > 1);
        for accountant in [&Pld as &dyn Accountant, &Rdp] {
            let is_pld = accountant.name() == Pld.name();
            // How often dp_accounting runs, and what to print if it does not.
            let (turns, why) = match (many, is_pld) {
                (true, true) => (usize::from(all), "theirs takes 5 minutes: --all"),
                (true, false) => (usize::from(!quick), "theirs takes 30 s: not --quick"),
                (false, _) => (repetitions, ""),
            };
            let (mut ours, mut theirs, mut ratios) = (vec![], vec![], vec![]);
            let (mut answer, mut their_value) = (None, None);
            for turn in 0..repetitions {
                let (seconds, found) = time(|| workload.answer(accountant))?;
                ours.push(seconds);
                answer = Some(found);
                if let Some(peer) = peer.as_mut().filter(|_| turn < turns) {
                    let (peer_seconds, value) = peer.run(&workload.job(accountant))?;
                    theirs.push(peer_seconds);
                    ratios.push(peer_seconds / seconds);
                    their_value = Some(value);
                }
            }
            let answer = answer.ok_or("no repetition")?;
            let skipped = peer.is_some() && turns == 0;
            let interval =
                answer.lower.map_or(String::new(), |l| format!("[{l:.10}, {:.10}]", answer.value));
            let line = format!(
                "{:<42}{:<5}{:>15.9}{:>15}{:>11}{:>11}{:>9}  {interval} {}",
                workload.name,
                accountant.name(),
                answer.value,
                their_value.map_or(String::new(), |value| format!("{value:.9}")),
                median(ours).map_or(String::new(), duration),
                median(theirs)
                    .map_or_else(|| if skipped { "skipped" } else { "" }.into(), duration),
                median(ratios).map_or(String::new(), ratio),
                if skipped { why } else { "" },
            );
            println!("{}", line.trim_end());
        }
    }
    let mut plans = vec![];
    for _ in 0..repetitions {
        plans.push(time(mnist_plan)?.0);
    }
    let plan = median(plans).map_or(String::new(), duration);
    println!("{:<77}{plan:>11}", "MNIST plan (a): epsilon, advantage and true positive rate");
    if peer.is_none() {
        println!("dp_accounting: not measured; run benches/accounting.sh");
    }
    Ok(())
}

/// The compositions and calibrations that are timed.
fn workloads() -> Result<Vec<Workload>> {
    let distinct = (0..1000u32).map(|i| {
        let rate = 0.001 + 0.019 * f64::from(i) / 999.0;
        (rate, 0.8 + 1.2 * f64::from((37 * i) % 1000) / 999.0, 10)
    });
    let epsilon = |name, steps, delta| -> Result<Workload> {
        Ok(Workload { name, delta: Delta::new(delta)?, question: Question::Epsilon(steps) })
    };
    Ok(vec![
        epsilon("a q=256/60000 z=1.1 T=14040 delta=1e-5", vec![MNIST], 1e-5)?,
        epsilon("b q=0.01 z=0.6 T=1e4 delta=1e-6", vec![(0.01, 0.6, 10_000)], 1e-6)?,
        epsilon("c q=1e-4 z=0.5 T=1e6 delta=1e-8", vec![(1e-4, 0.5, 1_000_000)], 1e-8)?,
        epsilon("d q=1 z=10 T=1000 delta=1e-5", vec![(1.0, 10.0, 1000)], 1e-5)?,
        epsilon("e 1000 distinct (q, z), T=10 each", distinct.collect(), 1e-5)?,
        Workload {
            name: "f z for eps=2 delta=1e-5 q=0.01 T=5000",
            delta: Delta::new(1e-5)?,
            question: Question::Noise {
                epsilon: Epsilon::new(2.0)?,
                rate: SampleRate::new(0.01)?,
                rounds: 5000,
            },
        },
    ])
}

const MNIST: (f64, f64, u64) = (256.0 / 60000.0, 1.1, 14040);

impl Workload {
    fn answer(&self, accountant: &dyn Accountant) -> Result<Answer> {
        match &self.question {
            Question::Epsilon(steps) => {
                let found = accountant.epsilon(&composition(steps)?, self.delta)?;
                Ok(Answer { value: found.epsilon, lower: found.epsilon_lower })
            }
            Question::Noise { epsilon, rate, rounds } => {
                let target = PrivacyTarget { epsilon: *epsilon, delta: self.delta, accountant };
                let with = |z| Composition::poisson(*rate, z, *rounds, ADJACENCY);
                Ok(Answer { value: target.noise_multiplier(with)?.get(), lower: None })
            }
        }
    }

    /// The same job for benches/accounting.py.
    fn job(&self, accountant: &dyn Accountant) -> Value {
        let (accountant, delta) = (accountant.name(), self.delta.get());
        match &self.question {
            Question::Epsilon(steps) => {
                json!({ "accountant": accountant, "delta": delta, "steps": steps })
            }
            Question::Noise { epsilon, rate, rounds } => json!({
                "accountant": accountant,
                "delta": delta,
                "epsilon": epsilon.get(),
                "rate": rate.get(),
                "rounds": rounds,
            }),
        }
    }
}

fn composition(steps: &[(f64, f64, u64)]) -> Result<Composition> {
    if let [(rate, noise, count)] = *steps {
        let (rate, noise) = (SampleRate::new(rate)?, NoiseMultiplier::new(noise)?);
        return Ok(Composition::poisson(rate, noise, count, ADJACENCY)?);
    }
    let rounds = |&(rate, noise, count): &(f64, f64, u64)| -> Result<Rounds> {
        let query = SumQuery::new("all", ClipNorm::new(1.0)?, NoiseStd::new(noise)?);
        let sampling = Sampling::Poisson { rate: SampleRate::new(rate)? };
        Ok(Rounds { count, round: Round::new(sampling, vec![query])? })
    };
    let rounds = steps.iter().map(rounds).collect::<Result<Vec<Rounds>>>()?;
    Ok(Composition::fold(&rounds, ADJACENCY)?)
}

/// The results that a user sees when planning a run: epsilon and the success of attacks.
fn mnist_plan() -> Result<f64> {
    let composition = composition(&[MNIST])?;
    let found = Tightest.epsilon(&composition, Delta::new(1e-5)?)?;
    Ok(found.epsilon + advantage(&composition) + true_positive_rate(&composition, 0.01))
}

/// Seconds per call, and the result of the last call.
fn time<T>(mut call: impl FnMut() -> Result<T>) -> Result<(f64, T)> {
    let start = Instant::now();
    let mut calls = 0;
    loop {
        let found = black_box(call()?);
        calls += 1;
        let elapsed = start.elapsed();
        if elapsed >= LEAST {
            return Ok((elapsed.as_secs_f64() / f64::from(calls), found));
        }
    }
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

fn ratio(ratio: f64) -> String {
    if ratio < 100.0 { format!("{ratio:.1}") } else { format!("{ratio:.0}") }
}

fn duration(seconds: f64) -> String {
    match seconds {
        s if s < 1e-3 => format!("{:.2} us", s * 1e6),
        s if s < 1.0 => format!("{:.2} ms", s * 1e3),
        s => format!("{s:.2} s"),
    }
}

/// A Python process with dp_accounting that reads jobs from its input, and exits when the input is closed.
struct Peer {
    jobs: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
    _process: Child,
}

impl Peer {
    /// Starts it, if VEILGRAD_PYTHON names a Python that has dp_accounting.
    fn start() -> Result<Option<Self>> {
        let Some(python) = std::env::var_os("VEILGRAD_PYTHON") else { return Ok(None) };
        let mut process = Command::new(python)
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/accounting.py"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let jobs = process.stdin.take().ok_or("no input")?;
        let answers = BufReader::new(process.stdout.take().ok_or("no output")?).lines();
        let mut peer = Self { jobs, answers, _process: process };
        match peer.answer()?.as_str() {
            Some("ready") => Ok(Some(peer)),
            _ => Err("dp_accounting did not start".into()),
        }
    }

    /// The seconds of a job, and its result.
    fn run(&mut self, job: &Value) -> Result<(f64, f64)> {
        writeln!(self.jobs, "{job}")?;
        let answer = self.answer()?;
        let number = |key: &str| answer.get(key).and_then(Value::as_f64).ok_or("no number");
        Ok((number("seconds")?, number("value")?))
    }

    fn answer(&mut self) -> Result<Value> {
        let line = self.answers.next().ok_or("dp_accounting stopped")??;
        Ok(serde_json::from_str(&line)?)
    }
}
