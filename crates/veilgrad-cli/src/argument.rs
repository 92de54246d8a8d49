//! What people type.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use veilgrad_accounting::{Accountant, Best, Pld, Rdp};
use veilgrad_events::{Adjacency, Delta, Epsilon, NoiseMultiplier};

/// Differential privacy for iterative training.
#[derive(Debug, Parser)]
#[command(name = "veilgrad", version)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What every command takes.
#[derive(Debug, Args)]
pub(crate) struct Common {
    /// Print one JSON document instead of a table.
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Say less on stderr.
    #[arg(short, long, global = true)]
    pub(crate) quiet: bool,
    /// Say more on stderr.
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Solve for one of noise multiplier, rate, steps or epsilon.
    Plan(Plan),
    /// Epsilon of a rounds file, post hoc, by any accountant.
    Account(Account),
}

/// What is known of a run; what is missing is solved for.
#[derive(Debug, Args)]
pub(crate) struct Plan {
    /// Probability with which a record takes part in a round.
    #[arg(long, value_parser = probability)]
    pub(crate) rate: Option<f64>,
    /// Number of records.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) records: Option<u64>,
    /// Batch: the expected one for poisson, the exact one for fixed and shuffle.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) batch: Option<u64>,
    /// Number of rounds.
    #[arg(long, conflicts_with = "epochs")]
    pub(crate) steps: Option<u64>,
    /// Number of epochs: rounds times rate, rounded up to whole rounds.
    #[arg(long, value_parser = positive)]
    pub(crate) epochs: Option<f64>,
    /// The delta of the guarantee.
    #[arg(long, value_parser = delta)]
    pub(crate) delta: Delta,
    /// The epsilon that must not be exceeded.
    #[arg(long, value_parser = epsilon)]
    pub(crate) epsilon: Option<Epsilon>,
    /// Standard deviation of the noise over the clip norm.
    #[arg(long, value_parser = noise_multiplier)]
    pub(crate) noise_multiplier: Option<NoiseMultiplier>,
    /// What to solve for; by default what is missing.
    #[arg(long, value_enum)]
    pub(crate) solve: Option<Solve>,
    /// How batches are drawn.
    #[arg(long, value_enum, default_value_t = Sampler::Poisson)]
    pub(crate) sampling: Sampler,
    #[command(flatten)]
    pub(crate) view: View,
    /// Write curves to this file.
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
}

/// The rounds to account for.
#[derive(Debug, Args)]
pub(crate) struct Account {
    /// Rounds as JSON Lines; '-' is stdin.
    pub(crate) file: PathBuf,
    /// Give the epsilon for this delta.
    #[arg(long, value_parser = delta, required_unless_present = "epsilon", conflicts_with = "epsilon")]
    pub(crate) delta: Option<Delta>,
    /// Give the delta at this epsilon.
    #[arg(long, value_parser = epsilon)]
    pub(crate) epsilon: Option<Epsilon>,
    #[command(flatten)]
    pub(crate) view: View,
}

/// Under which eyes.
#[derive(Debug, Args)]
pub(crate) struct View {
    /// Which datasets are neighbours.
    #[arg(long, value_enum, default_value_t = Neighbours::AddRemove)]
    pub(crate) adjacency: Neighbours,
    /// Who accounts; by default whoever gives the smaller sound bound.
    #[arg(long, value_enum)]
    pub(crate) accountant: Option<Accounting>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Solve {
    Noise,
    Rate,
    Steps,
    Epsilon,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Sampler {
    Poisson,
    Fixed,
    Shuffle,
    All,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Neighbours {
    AddRemove,
    ReplaceOne,
    ZeroOut,
}

impl Neighbours {
    pub(crate) const fn adjacency(self) -> Adjacency {
        match self {
            Self::AddRemove => Adjacency::AddRemove,
            Self::ReplaceOne => Adjacency::ReplaceOne,
            Self::ZeroOut => Adjacency::ZeroOut,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Accounting {
    Pld,
    Rdp,
}

impl View {
    pub(crate) fn accountant(&self) -> &'static dyn Accountant {
        match self.accountant {
            None => &Best,
            Some(Accounting::Pld) => &Pld,
            Some(Accounting::Rdp) => &Rdp,
        }
    }
}

fn number(text: &str) -> Result<f64, String> {
    text.parse().map_err(|_| format!("{text:?} is not a number"))
}

/// A rate may be 0 here: then nothing is ever sampled.
fn probability(text: &str) -> Result<f64, String> {
    let value = number(text)?;
    if (0.0..=1.0).contains(&value) {
        Ok(value)
    } else {
        Err(format!("rate {value} is not in [0, 1]"))
    }
}

fn positive(text: &str) -> Result<f64, String> {
    let value = number(text)?;
    if value.is_finite() && value >= 0.0 {
        Ok(value)
    } else {
        Err(format!("{value} is not a number of at least 0"))
    }
}

fn delta(text: &str) -> Result<Delta, String> {
    Delta::new(number(text)?).map_err(|error| error.to_string())
}

fn epsilon(text: &str) -> Result<Epsilon, String> {
    Epsilon::new(number(text)?).map_err(|error| error.to_string())
}

fn noise_multiplier(text: &str) -> Result<NoiseMultiplier, String> {
    NoiseMultiplier::new(number(text)?).map_err(|error| error.to_string())
}
