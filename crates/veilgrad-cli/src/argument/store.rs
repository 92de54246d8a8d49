//! Arguments of `budget` and `ledger`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use veilgrad_events::{Delta, Epsilon, RecordUnit};
use veilgrad_ledger::Head;

use super::{Neighbours, checked, target_epsilon, unit};
use crate::error::Error;
use crate::{example, ledger_place};

/// Subcommands of `budget`.
#[derive(Debug, Subcommand)]
pub(crate) enum Budget {
    /// Create a dataset with its budget, in a new ledger if there is none.
    #[command(after_help = example::BUDGET_CREATE)]
    Create(CreateBudget),
    /// Show what a dataset has spent, and what is left.
    #[command(after_help = example::BUDGET_SHOW)]
    Show(OneBudget),
    /// List all datasets of a ledger.
    #[command(after_help = example::BUDGET_LIST)]
    List(LedgerFile),
    /// Lower a budget. A budget cannot be raised.
    #[command(after_help = example::BUDGET_TIGHTEN)]
    Tighten(TightenBudget),
}

#[derive(Debug, Args)]
pub(crate) struct LedgerFile {
    /// The ledger database; by default $VEILGRAD_LEDGER, else veilgrad/ledger.db in $XDG_STATE_HOME
    /// (~/.local/state).
    #[arg(long, value_name = "FILE")]
    ledger: Option<PathBuf>,
}

impl LedgerFile {
    pub(crate) fn to_read(&self) -> Result<PathBuf, Error> {
        ledger_place::to_read(self.ledger.as_deref())
    }

    pub(crate) fn to_write(&self) -> Result<PathBuf, Error> {
        ledger_place::to_write(self.ledger.as_deref())
    }
}

#[derive(Debug, Args)]
pub(crate) struct OneBudget {
    /// The dataset.
    pub(crate) dataset: String,
    #[command(flatten)]
    pub(crate) file: LedgerFile,
}

#[derive(Debug, Args)]
pub(crate) struct TightenBudget {
    /// The dataset.
    pub(crate) dataset: String,
    /// The new, smaller epsilon.
    #[arg(long, value_parser = checked::<Epsilon>)]
    pub(crate) epsilon: Epsilon,
    #[command(flatten)]
    pub(crate) file: LedgerFile,
}

#[derive(Debug, Args)]
pub(crate) struct CreateBudget {
    /// A name for the dataset; not a hash of it.
    pub(crate) dataset: String,
    /// The epsilon that all runs together must not exceed.
    #[arg(long, value_parser = target_epsilon)]
    pub(crate) epsilon: Epsilon,
    /// The delta of the guarantee.
    #[arg(long, value_parser = checked::<Delta>)]
    pub(crate) delta: Delta,
    /// Which datasets are neighbours.
    #[arg(long, value_enum, default_value_t = Neighbours::AddRemove)]
    pub(crate) adjacency: Neighbours,
    /// What a record is: example, user, or microbatch:N.
    #[arg(long, default_value = "example", value_parser = unit)]
    pub(crate) unit: RecordUnit,
    /// Whether rounds may be chosen from earlier outputs.
    #[arg(long, value_enum, default_value_t = BudgetMode::Planned)]
    pub(crate) mode: BudgetMode,
    #[command(flatten)]
    pub(crate) file: LedgerFile,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum BudgetMode {
    Planned,
    Adaptive,
}

/// Subcommands of `ledger`.
#[derive(Debug, Subcommand)]
pub(crate) enum Ledger {
    /// List all runs.
    #[command(after_help = example::LEDGER_LIST)]
    List(LedgerPath),
    /// Show what is spent of every dataset's budget.
    #[command(after_help = example::LEDGER_SHOW)]
    Show(LedgerPath),
    /// Check every row, the head and the anchor.
    #[command(after_help = example::LEDGER_VERIFY)]
    Verify(Verify),
    /// Print the head: one line to publish elsewhere, with which anybody can detect that the ledger was rolled back.
    #[command(after_help = example::LEDGER_HEAD)]
    Head(LedgerPath),
    /// Write all rows, or the rounds, to stdout.
    #[command(after_help = example::LEDGER_EXPORT)]
    Export(Export),
    /// Charge the rows of an export or a backup that the ledger does not have yet.
    #[command(after_help = example::LEDGER_IMPORT)]
    Import(Import),
    /// Write a verified copy, even while others charge. It can be read and imported, not charged.
    #[command(after_help = example::LEDGER_BACKUP)]
    Backup(Backup),
    /// Write a new ledger from the provable rows of a damaged one. A repair never lowers a charge.
    #[command(after_help = example::LEDGER_REPAIR)]
    Repair(Repair),
}

#[derive(Debug, Args)]
pub(crate) struct Repair {
    /// The damaged ledger; its files are left as they are.
    pub(crate) ledger: PathBuf,
    /// The new file; an existing file is never overwritten.
    pub(crate) destination: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct Backup {
    /// The ledger database.
    pub(crate) ledger: PathBuf,
    /// The new file; an existing file is never overwritten.
    pub(crate) destination: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct LedgerPath {
    /// The ledger database.
    pub(crate) ledger: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct Verify {
    /// The ledger database.
    pub(crate) ledger: PathBuf,
    /// A head that was published or kept in a checkpoint: the ledger must contain it.
    #[arg(long, value_name = "HEAD")]
    pub(crate) against: Option<Head>,
}

#[derive(Debug, Args)]
pub(crate) struct Export {
    /// The ledger database.
    pub(crate) ledger: PathBuf,
    /// jsonl: every row with its hash, to import; csv: the same for spreadsheets; rounds: what
    /// `account` reads.
    #[arg(long, value_enum, default_value_t = Format::Jsonl)]
    pub(crate) format: Format,
    /// Only this dataset's rounds.
    #[arg(long)]
    pub(crate) dataset: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    Jsonl,
    Csv,
    Rounds,
}

#[derive(Debug, Args)]
pub(crate) struct Import {
    /// The ledger database; a new one if there is none.
    pub(crate) ledger: PathBuf,
    /// An export in JSON Lines, or a backup; '-' is stdin.
    pub(crate) file: PathBuf,
    /// Accept an export of an earlier version, which does not end with its head. You must know that no row is missing.
    #[arg(long)]
    pub(crate) allow_no_head: bool,
}
