//! The progress line: rounds done, epsilon spent, time left; no loss and no accuracy.

use std::io::IsTerminal;
use std::sync::Arc;
use std::time::{Duration, Instant};

use veilgrad_accounting::display::up;
use veilgrad_accounting::{Accountant, Composition, Tightest};
use veilgrad_events::{Adjacency, Delta, Rounds};

use super::job::Job;
use crate::argument::Common;
use crate::output::{say, say_over};
use crate::watch::Watch;

/// The time between updates of the line.
const PAUSE: Duration = Duration::from_millis(500);

pub(crate) struct Progress {
    rounds: Rounds,
    /// The rounds of preconditioning.
    before: Vec<Rounds>,
    delta: Delta,
    adjacency: Adjacency,
    start: Instant,
    last: Option<Instant>,
    done: u64,
    shown: bool,
    /// The last private estimate of every metric.
    pub(crate) metrics: Vec<(String, Vec<f64>)>,
    watch: Option<Arc<Watch>>,
}

impl Progress {
    pub(crate) fn new(common: &Common, job: &Job) -> Self {
        Self {
            rounds: job.rounds.clone(),
            before: job.before.clone(),
            delta: job.delta,
            adjacency: job.config.privacy.adjacency,
            start: Instant::now(),
            last: None,
            done: 0,
            shown: !common.quiet && std::io::stderr().is_terminal(),
            metrics: Vec::new(),
            watch: common.watch.clone(),
        }
    }

    pub(crate) fn show(&mut self, round: &veilgrad_nn::Progress) {
        self.done += 1;
        if let Some(watch) = &self.watch {
            watch.show(round.round, self.rounds.count);
        }
        for name in ["accuracy", "loss", "classes"] {
            if let Some(values) = round.metric(name) {
                self.metrics.retain(|(known, _)| known != name);
                self.metrics.push((name.to_owned(), values.to_vec()));
            }
        }
        if !self.shown || self.last.is_some_and(|last| last.elapsed() < PAUSE) {
            return;
        }
        self.last = Some(Instant::now());
        let spent = Rounds { count: round.round, round: self.rounds.round.clone() };
        let epsilon = Composition::fold(self.before.iter().chain([&spent]), self.adjacency)
            .and_then(|composition| Tightest.epsilon(&composition, self.delta))
            .map_or("unknown".to_owned(), |found| up(found.epsilon));
        let all = self.rounds.count;
        let rate = self.done as f64 / self.start.elapsed().as_secs_f64().max(1e-9);
        let left = all.saturating_sub(round.round) as f64 / rate;
        let (round, left) = (round.round, time(left));
        let filled = ((round as f64 / all.max(1) as f64 * 24.0) as usize).min(24);
        let bar = "#".repeat(filled) + &".".repeat(24 - filled);
        say_over(&format!("[{bar}] {round}/{all} rounds, epsilon {epsilon}, {left} left   "));
    }

    pub(crate) fn end(&self) {
        if self.shown {
            say("\n");
        }
    }
}

pub(crate) fn time(seconds: f64) -> String {
    let seconds = seconds.round() as u64;
    match seconds {
        0..60 => format!("{seconds} s"),
        60..7200 => format!("{} min {} s", seconds / 60, seconds % 60),
        7200..172_800 => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
        _ => format!("{} days", seconds / 86_400),
    }
}
