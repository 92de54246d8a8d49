//! Command-line arguments.

mod init;
mod store;
mod vary;

use std::num::NonZeroU64;
use std::path::PathBuf;
use std::sync::Arc;

use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{Args, Parser, Subcommand, ValueEnum, ValueHint};
use veilgrad_accounting::{Accountant, Pld, Rdp, Tightest, Tuning};
use veilgrad_events::{Adjacency, Delta, Epsilon, NoiseMultiplier, RecordUnit, UnitError};
use veilgrad_ledger::{Location, Options, Witness};
use veilgrad_random::run_count;

pub(crate) use init::{Init, Words, bounds, words};
pub(crate) use store::{
    Backup, Budget, BudgetMode, CreateBudget, Export, Format, Import, Ledger, Move, Repair, Verify,
};
pub(crate) use vary::Varied;

use crate::error::Error;
use crate::example;
use crate::watch::Watch;

/// Differential privacy for iterative training.
#[derive(Debug, Parser)]
#[command(name = "veilgrad", version, after_help = example::ALL)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Options of all commands.
#[derive(Debug, Args)]
pub(crate) struct Common {
    /// Print one JSON document instead of a table.
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Print less to stderr.
    #[arg(short, long, global = true)]
    pub(crate) quiet: bool,
    /// Print more to stderr.
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
    /// Allow ledgers on network file systems.
    #[arg(long, global = true)]
    pub(crate) allow_network: bool,
    /// Where to write the head of the ledger after every charge: a file, or a command after '|' or 'cmd:' that gets it
    /// on stdin.
    #[arg(long, global = true, value_name = "FILE|COMMAND", env = "VEILGRAD_WITNESS")]
    pub(crate) witness: Option<Witness>,
    /// Progress and stop flag for a program that runs the command in its own process.
    #[arg(skip)]
    pub(crate) watch: Option<Arc<Watch>>,
}

impl Common {
    pub(crate) fn options(&self) -> Options {
        let witness = self.witness.clone();
        Options { allow_network: self.allow_network, witness, ..Options::default() }
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Write a commented configuration from declarations, without opening the private data.
    #[command(after_help = example::INIT)]
    Init(Box<Init>),
    /// Train a model privately: writes a model, a ledger and a report.
    #[command(after_help = example::TRAIN)]
    Train(Train),
    /// Train with random settings and release only the best of a secret number of runs; charged once, ahead.
    #[command(after_help = example::TUNE)]
    Tune(Tune),
    /// Make the model and the report of a run from its checkpoint, when nothing more can or should be charged.
    #[command(after_help = example::FINISH)]
    Finish(Finish),
    /// Audit this installation, or a training run: lower bounds on the privacy loss from canaries, next to the claim.
    #[command(
        after_help = example::AUDIT
    )]
    Audit(Audit),
    /// Check a configuration and list all problems, without touching a budget.
    #[command(after_help = example::CHECK)]
    Check(Check),
    /// Predict classes with a trained model.
    #[command(after_help = example::PREDICT)]
    Predict(Predict),
    /// Evaluate a model on public data: accuracy, precision and recall, AUC, confusion matrix, calibration. The output is
    /// exact and not private: never evaluate on the training data.
    #[command(after_help = example::EVALUATE)]
    Evaluate(Evaluate),
    /// Write a trained model in the format of other runtimes, with its scaling and features.
    #[command(after_help = example::EXPORT)]
    Export(ExportModel),
    /// Compare runs: accuracy, epsilon, rounds, noise, batch, and what each added to the budget of its dataset.
    #[command(after_help = example::COMPARE)]
    Compare(Compare),
    /// The report of a run as a self-contained HTML page.
    #[command(after_help = example::REPORT)]
    Report(ReportOf),
    /// A planner page, and a read-only view of the ledgers and reports of a directory, for a browser on this machine.
    #[command(after_help = example::SERVE)]
    Serve(Serve),
    /// The privacy guarantee of a run in plain words, with its conditions.
    #[command(after_help = example::STATEMENT)]
    Statement(RunOf),
    /// Solve for one of noise multiplier, rate, steps or epsilon.
    #[command(after_help = example::PLAN)]
    Plan(Plan),
    /// Compute epsilon of a ledger or a rounds file, with any accountant.
    #[command(after_help = example::ACCOUNT)]
    Account(Account),
    /// Create, show and lower the budgets of datasets.
    #[command(subcommand, after_help = example::BUDGET)]
    Budget(Budget),
    /// Inspect, verify and move ledgers.
    #[command(subcommand, after_help = example::LEDGER)]
    Ledger(Ledger),
    /// A script that completes commands in a shell.
    #[command(after_help = example::COMPLETIONS)]
    Completions(Completions),
    /// A manual page, for man.
    #[command(after_help = example::MAN)]
    Man(Man),
}

/// A training run.
#[derive(Debug, Args)]
pub(crate) struct Train {
    /// The configuration, in TOML.
    pub(crate) config: PathBuf,
    #[command(flatten)]
    pub(crate) run: RunOptions,
}

/// A private tuning.
#[derive(Debug, Args)]
pub(crate) struct Tune {
    /// The configuration, in TOML. Its epsilon is that of the whole tuning.
    pub(crate) config: PathBuf,
    /// A key of the configuration and the values that runs may have, such as train.optimizer.lr=0.5,1,2. Every run draws one
    /// combination at random.
    #[arg(long, value_name = "KEY=V1,V2,...", required = true)]
    pub(crate) vary: Vec<Varied>,
    /// The mean of the random number of runs. The number itself stays secret.
    #[arg(long, value_name = "K", value_parser = positive)]
    pub(crate) mean_runs: f64,
    /// How that number is distributed. With poisson there may be no run at all.
    #[arg(long, value_enum, default_value_t = Drawn::Logarithmic)]
    pub(crate) distribution: Drawn,
    #[command(flatten)]
    pub(crate) run: RunOptions,
}

/// The distributions of a number of runs that can be drawn exactly.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Drawn {
    Geometric,
    Logarithmic,
    Poisson,
}

impl Tune {
    /// The tuning. A Poisson mean is rounded to one that can be drawn exactly.
    pub(crate) fn tuning(&self) -> Result<Tuning, Error> {
        let mean = self.mean_runs;
        let tuning = match self.distribution {
            Drawn::Geometric => Tuning::geometric(mean),
            Drawn::Logarithmic => Tuning::logarithmic(mean),
            Drawn::Poisson => Tuning::poisson(run_count::poisson_mean(mean)),
        };
        tuning.map_err(|error| Error::Usage(format!("--mean-runs: {error}")))
    }
}

/// An audit.
#[derive(Debug, Args)]
pub(crate) struct Audit {
    /// The configuration of a run, in TOML: it is trained and charged as by `train`, with canaries added to its records.
    /// Without one, the installation is audited; no data is needed.
    pub(crate) config: Option<PathBuf>,
    /// The number of canaries of a run, unless its configuration has one.
    #[arg(
        long, value_name = "M", default_value_t = 1000, requires = "config",
        value_parser = clap::value_parser!(u32).range(1..=100_000)
    )]
    pub(crate) canaries: u32,
    /// The number of releases in each part of the audit of an installation.
    #[arg(
        long, value_name = "N", default_value_t = 100_000, conflicts_with = "config",
        value_parser = clap::value_parser!(u64).range(1000..=100_000_000)
    )]
    pub(crate) releases: u64,
    #[command(flatten)]
    pub(crate) run: RunOptions,
}

/// Where a training run charges and writes, and how it continues.
#[derive(Debug, Args)]
pub(crate) struct RunOptions {
    /// Where results go; by default runs/ and the configuration's name.
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// The ledger of the data; by default $VEILGRAD_LEDGER, else veilgrad/ledger.db in $XDG_STATE_HOME
    /// (~/.local/state). postgres://USER@HOST/DATABASE is a ledger that hosts share. Runs on the same data must use the
    /// same ledger.
    #[arg(long, value_name = "FILE|URL", value_parser = location(), value_hint = ValueHint::AnyPath)]
    pub(crate) ledger: Option<Location>,
    /// Continue an interrupted run, with its own ledger unless --ledger names one.
    #[arg(long)]
    pub(crate) resume: bool,
    /// Replace the results of a finished run.
    #[arg(long, conflicts_with = "resume")]
    pub(crate) overwrite: bool,
    /// Charge a different ledger than the one that the results in the directory were charged to: what was spent there then
    /// does not count.
    #[arg(long, conflicts_with = "resume")]
    pub(crate) new_budget: bool,
    /// How many seconds to wait for a ledger that another process holds.
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    pub(crate) wait: u64,
    /// The target epsilon of the run, instead of the one in the configuration.
    #[arg(long, value_parser = target_epsilon)]
    pub(crate) epsilon: Option<Epsilon>,
    /// The number of threads; by default, and at most, as many as the machine has.
    #[arg(long)]
    pub(crate) threads: Option<std::num::NonZeroUsize>,
}

impl RunOptions {
    /// Whether no option of a run was given.
    pub(crate) const fn is_default(&self) -> bool {
        let flags = self.resume || self.overwrite || self.new_budget;
        let values = self.epsilon.is_some() || self.threads.is_some();
        !flags && !values && self.out.is_none() && self.ledger.is_none()
    }
}

#[derive(Debug, Args)]
pub(crate) struct Finish {
    /// The directory of the run.
    pub(crate) run: PathBuf,
    /// The ledger of the run, if it is no longer where it was.
    #[arg(long, value_name = "FILE|URL", value_parser = location(), value_hint = ValueHint::AnyPath)]
    pub(crate) ledger: Option<Location>,
}

#[derive(Debug, Args)]
pub(crate) struct Check {
    /// The configuration, in TOML.
    pub(crate) config: PathBuf,
    /// List the rows of the training data that are not as declared. The list depends on private records: it is for the
    /// owner of the data only.
    #[arg(long)]
    pub(crate) show_rows: bool,
    /// The ledger whose budget the run must fit; by default as for `train`. It is only read.
    #[arg(long, value_name = "FILE|URL", value_parser = location(), value_hint = ValueHint::AnyPath)]
    pub(crate) ledger: Option<Location>,
}

#[derive(Debug, Args)]
pub(crate) struct Predict {
    /// The model.safetensors of a run.
    pub(crate) model: PathBuf,
    /// Examples in the format of the training data, without labels if they are in a separate file.
    pub(crate) data: PathBuf,
    /// Print the probabilities of all classes, too.
    #[arg(long)]
    pub(crate) probabilities: bool,
    /// Copy this column of a table in front of each prediction.
    #[arg(long, value_name = "COLUMN")]
    pub(crate) id: Option<String>,
}

/// A model, and public data to evaluate it on.
#[derive(Debug, Args)]
pub(crate) struct Evaluate {
    /// The model.safetensors of a run.
    pub(crate) model: PathBuf,
    /// Public examples in the format of the training data. By naming them here you declare that they are public.
    pub(crate) data: PathBuf,
    /// The labels of arrays, if they are in a separate file.
    #[arg(long, value_name = "FILE")]
    pub(crate) labels: Option<PathBuf>,
    /// The column of a table or the array in an .npz file with the labels; by default as in training.
    #[arg(long, value_name = "NAME")]
    pub(crate) label: Option<String>,
    /// Write tables and charts to this file, as an HTML page.
    #[arg(long, value_name = "FILE", conflicts_with = "svg")]
    pub(crate) html: Option<PathBuf>,
    /// Write the charts to this file, as an SVG picture.
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
}

/// A model to export.
#[derive(Debug, Args)]
pub(crate) struct ExportModel {
    /// The model.safetensors of a run.
    pub(crate) model: PathBuf,
    /// The format.
    #[arg(long, value_enum)]
    pub(crate) to: ExportFormat,
    /// Where to write the model.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: PathBuf,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExportFormat {
    Onnx,
}

/// Runs to compare.
#[derive(Debug, Args)]
pub(crate) struct Compare {
    /// The directories of runs, or their report.json.
    #[arg(required = true, value_name = "RUN")]
    pub(crate) runs: Vec<PathBuf>,
    /// Write the comparison to this file, as an HTML page.
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct ReportOf {
    #[command(flatten)]
    pub(crate) of: RunOf,
    /// Where to write the page; stdout by default.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}

/// A page for a browser on this machine.
#[derive(Debug, Args)]
pub(crate) struct Serve {
    /// The directory whose ledgers and reports are shown.
    #[arg(value_name = "DIR", default_value = ".")]
    pub(crate) directory: PathBuf,
    /// The port on the loopback interface; 0 is any that is free.
    #[arg(long, value_name = "PORT", default_value_t = 0)]
    pub(crate) port: u16,
}

#[derive(Debug, Args)]
pub(crate) struct RunOf {
    /// The directory of a run, its report.json, or the ledger of any run.
    #[arg(value_parser = location(), value_hint = ValueHint::AnyPath)]
    pub(crate) run: Location,
    /// The dataset, if the ledger has several.
    #[arg(long, value_name = "NAME")]
    pub(crate) dataset: Option<String>,
    /// The ledger of a run's directory, if it was moved.
    #[arg(
        long,
        value_name = "FILE|URL",
        conflicts_with = "unverified",
        value_parser = location(),
        value_hint = ValueHint::AnyPath
    )]
    pub(crate) ledger: Option<Location>,
    /// Print what is stored with the results, without the ledger, labelled as not computed again.
    #[arg(long)]
    pub(crate) unverified: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Completions {
    /// The shell.
    #[arg(value_enum)]
    pub(crate) shell: clap_complete::Shell,
}

#[derive(Debug, Args)]
pub(crate) struct Man {
    /// The command; by default the page of all commands. `configuration` is the reference of configurations, in Markdown.
    pub(crate) command: Vec<String>,
}

/// The parameters of a run; the missing one is solved for.
#[derive(Debug, Args)]
#[command(allow_negative_numbers = true)]
pub(crate) struct Plan {
    /// Probability with which a record takes part in a round.
    #[arg(long, value_parser = probability)]
    pub(crate) rate: Option<f64>,
    /// Number of records.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) records: Option<u64>,
    /// Batch size: expected for poisson, truncated and allocation, exact for fixed and shuffle.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) batch: Option<u64>,
    /// Number of rounds.
    #[arg(long, conflicts_with = "epochs")]
    pub(crate) steps: Option<u64>,
    /// Number of epochs: rounds times rate, rounded up to whole rounds.
    #[arg(long, value_parser = non_negative)]
    pub(crate) epochs: Option<f64>,
    /// The delta of the guarantee.
    #[arg(long, value_parser = checked::<Delta>)]
    pub(crate) delta: Delta,
    /// The epsilon that must not be exceeded.
    #[arg(long, value_parser = target_epsilon)]
    pub(crate) epsilon: Option<Epsilon>,
    /// Standard deviation of the noise over the clip norm.
    #[arg(long, value_parser = checked::<NoiseMultiplier>)]
    pub(crate) noise_multiplier: Option<NoiseMultiplier>,
    /// What to solve for; by default the missing one.
    #[arg(long, value_enum)]
    pub(crate) solve: Option<Solve>,
    /// How batches are drawn.
    #[arg(long, value_enum, default_value_t = Sampler::Poisson)]
    pub(crate) sampling: Sampler,
    /// The largest batch of truncated sampling; by default the expected one plus six times its square root.
    #[arg(long, value_name = "M", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) max_batch: Option<u64>,
    /// In place of epsilon: the largest advantage of an attacker, true positive rate minus false positive rate.
    #[arg(long, value_name = "A", value_parser = open_probability, conflicts_with_all = ["epsilon", "tpr"])]
    pub(crate) advantage: Option<f64>,
    /// In place of epsilon: the largest true positive rate of an attacker, at the false positive rate of --fpr.
    #[arg(long, value_name = "T", value_parser = open_probability, requires = "fpr", conflicts_with = "epsilon")]
    pub(crate) tpr: Option<f64>,
    /// The false positive rate for --tpr, and for --posterior (0.01 by default).
    #[arg(long, value_name = "F", value_parser = open_probability)]
    pub(crate) fpr: Option<f64>,
    /// How likely an attacker takes it to be, beforehand, that the record is in the data; for --posterior.
    #[arg(long, value_name = "P", value_parser = open_probability, requires = "posterior")]
    pub(crate) prior: Option<f64>,
    /// In place of epsilon: how likely at most an attacker with the prior of --prior may take it to be after an accusation, at
    /// the false positive rate of --fpr.
    #[arg(long, value_name = "P", value_parser = open_probability, requires = "prior", conflicts_with_all = ["epsilon", "tpr", "advantage"])]
    pub(crate) posterior: Option<f64>,
    #[command(flatten)]
    pub(crate) view: View,
    /// Write the privacy curves to this file, as an HTML page.
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// Write the privacy curves to this file, as an SVG picture.
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
}

/// The rounds to account for.
#[derive(Debug, Args)]
#[command(allow_negative_numbers = true)]
pub(crate) struct Account {
    /// A ledger, or rounds as JSON Lines; '-' is stdin.
    #[arg(value_parser = location(), value_hint = ValueHint::AnyPath)]
    pub(crate) file: Location,
    /// The dataset, if the ledger has several.
    #[arg(long)]
    pub(crate) dataset: Option<String>,
    /// Give the epsilon for this delta.
    #[arg(long, value_parser = checked::<Delta>, required_unless_present = "epsilon", conflicts_with = "epsilon")]
    pub(crate) delta: Option<Delta>,
    /// Give the delta at this epsilon.
    #[arg(long, value_parser = checked::<Epsilon>)]
    pub(crate) epsilon: Option<Epsilon>,
    /// Also give the true positive rate of an attacker with this false positive rate, at most.
    #[arg(long, value_name = "F", value_parser = open_probability)]
    pub(crate) fpr: Option<f64>,
    /// Also give how likely at most an attacker takes it to be, after an accusation, that the record is in the data, who took it
    /// for this likely beforehand; at the false positive rate of --fpr, or 0.01.
    #[arg(long, value_name = "P", value_parser = open_probability)]
    pub(crate) prior: Option<f64>,
    #[command(flatten)]
    pub(crate) view: View,
}

/// How rounds are accounted for: adjacency and accountant.
#[derive(Debug, Args)]
pub(crate) struct View {
    /// Which datasets are neighbours; by default add-remove, or what a ledger's budget says.
    #[arg(long, value_enum)]
    pub(crate) adjacency: Option<Neighbours>,
    /// The accountant; by default the one with the smallest sound bound.
    #[arg(long, value_enum)]
    pub(crate) accountant: Option<Accounting>,
    /// The cost for a person with this many records.
    #[arg(long, value_name = "K", default_value_t = NonZeroU64::MIN)]
    pub(crate) group: NonZeroU64,
    /// The cost of releasing only the best of a random number of such runs, with this mean.
    #[arg(long, value_name = "K", value_parser = positive)]
    pub(crate) tuning_mean_runs: Option<f64>,
    /// How that number is distributed: geometric, logarithmic, poisson, or the eta of a truncated negative binomial.
    #[arg(long, value_name = "DISTRIBUTION", requires = "tuning_mean_runs", default_value = "logarithmic", value_parser = distribution)]
    pub(crate) tuning_distribution: Distribution,
}

/// The distribution of the number of runs of a tuning.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Distribution {
    /// Truncated negative binomial with this eta.
    NegativeBinomial(f64),
    Poisson,
}

impl Distribution {
    pub(crate) fn tuning(self, mean_runs: f64) -> Result<Tuning, Error> {
        let tuning = match self {
            Self::NegativeBinomial(eta) => Tuning::negative_binomial(eta, mean_runs),
            Self::Poisson => Tuning::poisson(mean_runs),
        };
        tuning.map_err(|error| Error::Usage(error.to_string()))
    }

    pub(crate) fn name(self) -> String {
        match self {
            Self::NegativeBinomial(1.0) => "geometric".to_owned(),
            Self::NegativeBinomial(0.0) => "logarithmic".to_owned(),
            Self::NegativeBinomial(eta) => eta.to_string(),
            Self::Poisson => "poisson".to_owned(),
        }
    }
}

pub(crate) fn distribution(text: &str) -> Result<Distribution, String> {
    match text {
        "geometric" => Ok(Distribution::NegativeBinomial(1.0)),
        "logarithmic" => Ok(Distribution::NegativeBinomial(0.0)),
        "poisson" => Ok(Distribution::Poisson),
        _ => match text.parse::<f64>() {
            Ok(eta) if eta > -1.0 && eta.is_finite() => Ok(Distribution::NegativeBinomial(eta)),
            Ok(eta) => Err(format!("eta {eta} is not above -1")),
            Err(_) => {
                Err(format!("{text:?} is not geometric, logarithmic, poisson or a number (eta)"))
            }
        },
    }
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
    /// Poisson with a largest batch, for batches of a fixed shape.
    Truncated,
    /// Every record in one round of each epoch, drawn independently: once per epoch, with amplification.
    Allocation,
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
    pub(crate) fn adjacency(&self) -> Adjacency {
        self.adjacency.map_or(Adjacency::AddRemove, Neighbours::adjacency)
    }

    pub(crate) fn accountant(&self) -> &'static dyn Accountant {
        match self.accountant {
            None => &Tightest,
            Some(Accounting::Pld) => &Pld,
            Some(Accounting::Rdp) => &Rdp,
        }
    }
}

fn number(text: &str) -> Result<f64, String> {
    text.parse().map_err(|_| format!("{text:?} is not a number"))
}

/// Rate 0 is allowed here: then nothing is ever sampled.
fn probability(text: &str) -> Result<f64, String> {
    match number(text)? {
        rate if (0.0..=1.0).contains(&rate) => Ok(rate),
        rate => Err(format!("rate {rate} is not in [0, 1]")),
    }
}

fn open_probability(text: &str) -> Result<f64, String> {
    match number(text)? {
        rate if rate > 0.0 && rate < 1.0 => Ok(rate),
        rate => Err(format!("{rate} is not in (0, 1)")),
    }
}

pub(crate) fn positive(text: &str) -> Result<f64, String> {
    match number(text)? {
        value if value.is_finite() && value > 0.0 => Ok(value),
        value => Err(format!("{value} is not a finite number above 0")),
    }
}

fn non_negative(text: &str) -> Result<f64, String> {
    match number(text)? {
        value if value.is_finite() && value >= 0.0 => Ok(value),
        value => Err(format!("{value} is not a finite number of at least 0")),
    }
}

/// Parses the location of a ledger. It refuses nothing, because an error would print a password.
fn location() -> impl TypedValueParser<Value = Location> {
    OsStringValueParser::new().map(Location::from)
}

/// A number, checked by the constructor of its unit type.
fn checked<T: TryFrom<f64, Error = UnitError>>(text: &str) -> Result<T, String> {
    T::try_from(number(text)?).map_err(|error| error.to_string())
}

/// A target epsilon, which must be above 0: no round fits 0.
fn target_epsilon(text: &str) -> Result<Epsilon, String> {
    match checked::<Epsilon>(text)? {
        zero if zero.get() == 0.0 => {
            Err("epsilon 0 is not greater than 0: no round fits it".to_owned())
        }
        epsilon => Ok(epsilon),
    }
}

fn unit(text: &str) -> Result<RecordUnit, String> {
    match text.split_once(':') {
        None if text == "example" => Ok(RecordUnit::Example),
        None if text == "user" => Ok(RecordUnit::User),
        None if text == "node" => Ok(RecordUnit::Node),
        Some(("microbatch", examples)) => {
            let examples = examples.parse().map_err(|_| format!("microbatch of {examples:?}"))?;
            Ok(RecordUnit::Microbatch { examples })
        }
        _ => Err(format!("unit {text:?} is not example, user, node or microbatch:N")),
    }
}
