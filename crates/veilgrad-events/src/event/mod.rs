//! Events as plain data: values that are validated, stored and read.

mod budget;
mod entry;
mod grid;
mod jsonl;
mod query;
mod record;
mod round;
mod run_count;
mod sampling;
mod strategy;
mod tag_first;
mod unit;

pub use budget::Budget;
pub use entry::{Close, Event, Insecure, Mode, NoiseMechanism, Numerics, Reservation, RunHeader};
pub use grid::{GridError, IntegerGrid};
pub use jsonl::{LineError, RoundsFile, rounds_to_jsonl};
pub use query::{QueryError, SumQuery};
pub use record::{Adjacency, RecordUnit};
pub use round::{Folded, Round, RoundError, Rounds, run_length};
pub use run_count::{RawCount, RunCount, RunCountError};
pub use sampling::{BatchError, FixedBatch, Sampling, TruncatedPoisson};
pub use strategy::{BandedStrategy, StrategyError};
pub use tag_first::TagFirst;
pub use unit::{
    BudgetShare, ClipNorm, Delta, Epsilon, JointScale, NoiseMultiplier, NoiseStd, PublicCount,
    SampleRate, UnitError, WeightBound,
};
