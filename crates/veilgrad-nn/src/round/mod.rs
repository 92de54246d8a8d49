//! Rounds of training, whatever computes the gradients.
//!
//! A round is written once, in [`Engine`]. A [`Backend`] supplies what differs between frameworks: the vectors of a
//! model by name, and what the model makes of examples. [`drive`] charges, runs, shows and saves rounds.
//!
//! What is wiped: sums without noise and factors of outer products when they are handed over or dropped, averages and
//! tiles of records at the end of their round, and all of it when a round fails. Copies that a framework keeps (Burn's
//! tensors) are freed, not wiped.

mod backend;
mod checkpoint;
mod driver;
mod engine;
mod error;
mod plan;
mod quiet;
mod vector;

pub use backend::{Backend, ExampleId};
pub use checkpoint::{Checkpoint, Position, UnverifiedCheckpoint};
pub use driver::{DriveError, Hooks, Pace, Trains, drive, drive_shown};
pub(crate) use engine::{Averages, average};
pub use engine::{Engine, Performance, Progress};
pub use error::TrainError;
pub use plan::{Clipping, Contribution, TrainingPlan, Unit};
pub use quiet::quietly;
pub use vector::{Vector, Vectors};
