//! Rounds of private training, for any framework that computes gradients.
//!
//! [`Engine`] runs a round. A [`Backend`] supplies what differs between frameworks: per-record gradients, statistics and
//! metrics. [`drive`] is the training loop: it charges and runs rounds and saves checkpoints.
//!
//! These are wiped: sums without noise and factors of outer products when they are handed over or dropped; averages and
//! tiles of records at the end of their round, and when a worker fails or panics. Freed but not wiped: the weights of local
//! SGD, and copies that a framework keeps (Burn's tensors).

mod backend;
mod checkpoint;
mod driver;
mod engine;
mod error;
mod peers;
mod plan;
mod quiet;
mod vector;
mod worker;

pub use backend::{Backend, ExampleId};
pub use checkpoint::{Checkpoint, Position, UnverifiedCheckpoint};
pub use driver::{DriveError, Hooks, Pace, Trains, drive, drive_shown};
pub use engine::{Engine, Performance, Progress};
pub use error::TrainError;
pub use peers::{EMPTY_SLOT, PeerError, Peers, SharedRound, deal, share_of};
pub use plan::{Clipping, Contribution, Denominator, TrainingPlan, Unit};
pub use quiet::quietly;
pub use vector::{Vector, Vectors};
pub(crate) use worker::{Averages, average};
