//! Arguments of `budget` and `ledger`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum, ValueHint};
use veilgrad_events::{Delta, Epsilon, RecordUnit};
use veilgrad_ledger::{Head, Location};

use super::{Neighbours, checked, location, target_epsilon, unit};
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
    /// The ledger: a file, or postgres://USER@HOST/DATABASE; by default $VEILGRAD_LEDGER, else veilgrad/ledger.db in
    /// $XDG_STATE_HOME (~/.local/state).
    #[arg(long, value_name = "FILE|URL", value_parser = location(), value_hint = ValueHint::AnyPath)]
    ledger: Option<Location>,
}

impl LedgerFile {
    pub(crate) fn to_read(&self) -> Result<Location, Error> {
        ledger_place::to_read(self.ledger.as_ref())
    }

    pub(crate) fn to_write(&self) -> Result<Location, Error> {
        ledger_place::to_write(self.ledger.as_ref())
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
    /// Move a ledger, such as from a file to PostgreSQL and back: the same rows and hashes. The old one can still be read, and
    /// refuses charges.
    #[command(after_help = example::LEDGER_MOVE)]
    Move(Move),
    /// Print the SQL that makes the tables, functions and roles of a ledger on PostgreSQL.
    #[command(after_help = example::LEDGER_MIGRATION)]
    Migration,
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
    /// The ledger: a file, or postgres://USER@HOST/DATABASE.
    #[arg(value_parser = location(), value_hint = ValueHint::AnyPath)]
    pub(crate) ledger: Location,
    /// The new file; an existing file is never overwritten.
    pub(crate) destination: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct Move {
    /// The ledger to move.
    #[arg(value_parser = location(), value_hint = ValueHint::AnyPath)]
    pub(crate) from: Location,
    /// A new file, or postgres://USER@HOST/DATABASE with the tables of `ledger migration` and no ledger.
    #[arg(value_parser = location(), value_hint = ValueHint::AnyPath)]
    pub(crate) to: Location,
}

#[derive(Debug, Args)]
pub(crate) struct LedgerPath {
    /// The ledger: a file, or postgres://USER@HOST/DATABASE.
    #[arg(value_parser = location(), value_hint = ValueHint::AnyPath)]
    pub(crate) ledger: Location,
}

#[derive(Debug, Args)]
pub(crate) struct Verify {
    /// The ledger: a file, or postgres://USER@HOST/DATABASE.
    #[arg(value_parser = location(), value_hint = ValueHint::AnyPath)]
    pub(crate) ledger: Location,
    /// A head that was published or kept in a checkpoint: the ledger must contain it.
    #[arg(long, value_name = "HEAD")]
    pub(crate) against: Option<Head>,
}

#[derive(Debug, Args)]
pub(crate) struct Export {
    /// The ledger: a file, or postgres://USER@HOST/DATABASE.
    #[arg(value_parser = location(), value_hint = ValueHint::AnyPath)]
    pub(crate) ledger: Location,
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
    /// The ledger: a file, or postgres://USER@HOST/DATABASE; a new one if there is none.
    #[arg(value_parser = location(), value_hint = ValueHint::AnyPath)]
    pub(crate) ledger: Location,
    /// An export in JSON Lines, a backup, or another ledger; '-' is stdin.
    #[arg(value_parser = location(), value_hint = ValueHint::AnyPath)]
    pub(crate) file: Location,
    /// Accept an export of an earlier version, which does not end with its head. You must know that no row is missing.
    #[arg(long)]
    pub(crate) allow_no_head: bool,
}
