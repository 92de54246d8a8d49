//! Progress: rounds done and epsilon spent; no loss and no accuracy. On a terminal it is one line, with the time left.
//! Elsewhere it is a line after every twentieth of the rounds, whenever that is: a log keeps no times, because they depend
//! on private sample sizes.

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
/// The number of lines where stderr is not a terminal.
const LINES: u64 = 20;
/// The width of a terminal that does not say how wide it is.
const WIDTH: usize = 80;

/// Where progress goes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Output {
    Nowhere,
    Terminal,
    /// A file or another program.
    Log,
}

pub(crate) struct Progress {
    rounds: Rounds,
    /// The rounds of preconditioning.
    before: Vec<Rounds>,
    delta: Delta,
    adjacency: Adjacency,
    start: Instant,
    last: Option<Instant>,
    done: u64,
    output: Output,
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
            output: match (common.quiet, std::io::stderr().is_terminal()) {
                (true, _) => Output::Nowhere,
                (false, true) => Output::Terminal,
                (false, false) => Output::Log,
            },
            metrics: Vec::new(),
            watch: common.watch.clone(),
        }
    }

    pub(crate) fn show(&mut self, round: &veilgrad_nn::Progress) {
        self.done += 1;
        if let Some(watch) = &self.watch {
            watch.show(round.round, self.rounds.count);
        }
        keep(&mut self.metrics, round);
        let all = self.rounds.count;
        let due = match self.output {
            Output::Nowhere => false,
            Output::Terminal => self.last.is_none_or(|last| last.elapsed() >= PAUSE),
            Output::Log => is_due(round.round, all),
        };
        if !due {
            return;
        }
        self.last = Some(Instant::now());
        let spent = Rounds { count: round.round, round: self.rounds.round.clone() };
        let epsilon = Composition::fold(self.before.iter().chain([&spent]), self.adjacency)
            .and_then(|composition| Tightest.epsilon(&composition, self.delta))
            .map_or("unknown".to_owned(), |found| up(found.epsilon));
        if self.output == Output::Log {
            say(&format!("{}/{all} rounds, epsilon {epsilon}\n", round.round));
            return;
        }
        let rate = self.done as f64 / self.start.elapsed().as_secs_f64().max(1e-9);
        let left = all.saturating_sub(round.round) as f64 / rate;
        say_over(&line(round.round, all, &epsilon, &time(left), width()));
    }

    pub(crate) fn end(&self) {
        if self.output == Output::Terminal {
            say("\n");
        }
    }
}

/// Replaces the private estimates by those of this round.
pub(crate) fn keep(metrics: &mut Vec<(String, Vec<f64>)>, round: &veilgrad_nn::Progress) {
    for name in ["accuracy", "loss", "classes"] {
        if let Some(values) = round.metric(name) {
            metrics.retain(|(known, _)| known != name);
            metrics.push((name.to_owned(), values.to_vec()));
        }
    }
}

/// Whether a log gets a line after this round: after every twentieth of all rounds, and the last.
const fn is_due(round: u64, all: u64) -> bool {
    let before = round.saturating_sub(1);
    all > 0
        && (round as u128 * LINES as u128) / all as u128
            != (before as u128 * LINES as u128) / all as u128
}

/// The number of columns of the terminal.
fn width() -> usize {
    let size = rustix::termios::tcgetwinsize(std::io::stderr());
    size.map(|size| usize::from(size.ws_col)).ok().filter(|columns| *columns > 0).unwrap_or(WIDTH)
}

/// A line for a terminal with this many columns, padded so that it covers the one before. It stays one column shorter: some
/// terminals begin a new line after the last. What does not fit is left out.
fn line(round: u64, all: u64, epsilon: &str, left: &str, width: usize) -> String {
    let room = width.saturating_sub(1);
    let bar = |cells: usize| {
        let filled = ((round as f64 / all.max(1) as f64 * cells as f64) as usize).min(cells);
        format!("[{}{}]", "#".repeat(filled), ".".repeat(cells - filled))
    };
    let lines = [
        format!("{} {round}/{all} rounds, epsilon {epsilon}, {left} left", bar(24)),
        format!("{} {round}/{all}, epsilon {epsilon}, {left}", bar(8)),
        format!("{round}/{all}, epsilon {epsilon}, {left}"),
        format!("{round}/{all}, epsilon {epsilon}"),
        format!("{round}/{all} {epsilon}"),
    ];
    let fits = lines.iter().find(|line| line.len() <= room);
    let line: String =
        fits.or(lines.last()).into_iter().flat_map(|line| line.chars()).take(room).collect();
    format!("{line:<room$}")
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_fits_every_terminal() {
        for width in [0, 1, 10, 40, 60, 80, 200] {
            for (round, all) in [(0, 0), (1, 700), (700, 700), (123_456, 1_000_000)] {
                let line = line(round, all, "12.346", "119 min 59 s", width);
                assert_eq!(line.chars().count(), width.saturating_sub(1), "{line:?}");
            }
        }
        // Forty columns are enough for rounds, epsilon and time of usual runs.
        let narrow = line(350, 700, "2.9999", "12 min 5 s", 40);
        assert_eq!(narrow.trim_end(), "350/700, epsilon 2.9999, 12 min 5 s");
        let wide = line(350, 700, "2.9999", "12 min 5 s", 80);
        assert!(
            wide.starts_with("[############............] 350/700 rounds, epsilon 2.9999, 12 min")
        );
    }

    #[test]
    fn a_log_gets_at_most_twenty_lines_and_one_after_the_last_round() {
        for all in [1, 3, 19, 20, 21, 700, 1_000_003] {
            let due: Vec<u64> = (1..=all).filter(|round| is_due(*round, all)).collect();
            assert_eq!(due.len() as u64, all.min(LINES), "{all}");
            assert_eq!(due.last(), Some(&all));
        }
        assert!(!is_due(0, 0) && !is_due(1, 0));
    }
}
