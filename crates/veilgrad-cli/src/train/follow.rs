//! A process that adds up its share of the records of every round, and has neither ledger nor noise.

use serde::{Deserialize, Serialize};
use veilgrad_accounting::Tightest;
use veilgrad_events::{BandedStrategy, Delta, NoiseMultiplier};
use veilgrad_nn::Trainer;

use super::build::{self, AnyOptimizer};
use super::config::Config;
use super::data::{self, Process, TrainingRecords};
use super::job::{Job, precondition};
use super::start;
use crate::error::Error;
use crate::team::{Follower, Order};

/// The announcement that training begins. All of it is public.
#[derive(Serialize, Deserialize)]
struct Setup {
    config: Config,
    /// The bits of the noise multiplier that the leader found for the target epsilon.
    noise: u64,
    /// How the leader correlates noise between rounds: the grid of the sums depends on it.
    strategy: Option<BandedStrategy>,
    threads: usize,
}

/// What the leader announces before it reads the data, once the budget covers the plan.
pub(crate) fn setup(job: &Job) -> Result<Vec<u8>, Error> {
    let (config, noise) = (job.config.clone(), job.noise.get().to_bits());
    let strategy = job.correlated.as_ref().map(|chosen| chosen.strategy.clone());
    let setup = Setup { config, noise, strategy, threads: job.threads };
    serde_json::to_vec(&setup).map_err(Error::failure)
}

/// The model and the records of this process.
struct Training {
    config: Config,
    trainer: Trainer<AnyOptimizer>,
    records: TrainingRecords,
    threads: usize,
}

impl Training {
    fn begin(message: &[u8], follower: &dyn Follower) -> Result<Self, Error> {
        let Setup { mut config, noise, strategy, threads } =
            serde_json::from_slice(message).map_err(Error::failure)?;
        let noise = NoiseMultiplier::new(f64::from_bits(noise)).map_err(Error::failure)?;
        let threads = build::threads(Some(threads));
        let mut model = build::model(&config.declaration())?;
        start::apply(&mut config.model, &mut model)?;
        let trainer = build::trainer(&config, model, noise, strategy.as_ref(), threads)?;
        let process = Process { rank: follower.rank(), size: follower.size() };
        let records =
            data::private(&config, process)?.into_records(&config.declaration(), threads)?;
        Ok(Self { config, trainer, records, threads })
    }

    /// Whitens the inputs by what preconditioning released.
    fn whiten(&mut self, released: &[u8]) -> Result<(), Error> {
        let delta = Delta::new(self.config.privacy.delta).map_err(Error::failure)?;
        let mut phase = precondition(&self.config, delta, self.threads, &Tightest)?;
        let phase = phase.as_mut().ok_or_else(|| Error::failure("an unknown announcement"))?;
        phase.restore(released).map_err(Error::failure)?;
        if let Some(whitening) = phase.whitening() {
            self.records.whiten(&whitening, self.threads);
        }
        Ok(())
    }
}

/// Follows the orders of the leader until training ends.
pub(crate) fn follow(follower: &mut dyn Follower) -> Result<(), Error> {
    let mut training: Option<Training> = None;
    loop {
        match (follower.next().map_err(Error::failure)?, &mut training) {
            (Order::End, _) => return Ok(()),
            (Order::Message(setup), None) => training = Some(Training::begin(&setup, follower)?),
            (Order::Message(released), Some(training)) => training.whiten(&released)?,
            (Order::Round(..), None) => return Err(Error::failure("a round before its data")),
            (Order::Round(round, ids), Some(training)) => {
                let Training { trainer, records, .. } = training;
                let part = trainer.part(round, ids, records).map_err(Error::failure)?;
                follower.give(part).map_err(Error::failure)?;
            }
        }
    }
}
