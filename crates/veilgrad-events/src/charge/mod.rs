//! Charging rounds: ledger stores, runs and their permits, and the privacy cost of rounds.

mod head;
mod memory;
mod permit;
mod pricing;
mod process;
mod run;
mod store;
mod tuning;

pub use head::{Hash, Head, History};
pub use memory::MemoryLedger;
pub use permit::{Permits, RoundPermit};
pub use pricing::{Meter, Pricing, RunRounds};
pub use process::{ProcessIdentity, UnknownProcess};
pub use run::{PlanEnds, Run};
pub use store::{LedgerError, LedgerKind, LedgerStore, check_ledger_store};
pub use tuning::{ChargedAhead, TuningRun};
