//! Charging rounds: stores, runs, the permits that they grant, and what rounds cost.

mod head;
mod memory;
mod permit;
mod pricing;
mod process;
mod run;
mod store;

pub use head::{Hash, Head, History};
pub use memory::MemoryLedger;
pub use permit::{Permits, RoundPermit};
pub use pricing::{Meter, Pricing, RunRounds};
pub use process::{ProcessIdentity, UnknownProcess};
pub use run::{PlanEnds, Run};
pub use store::{LedgerError, LedgerKind, LedgerStore, check_ledger_store};
