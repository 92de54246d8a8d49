//! A process that adds up its share of the records of every round, and has neither ledger nor noise.

use serde::{Deserialize, Serialize};
use veilgrad_data::Scattering;
use veilgrad_events::{BandedStrategy, NoiseMultiplier};
use veilgrad_mechanism::PartialSum;
use veilgrad_nn::round::SharedRound;
use veilgrad_nn::{Preconditioning, Trainer};
use zeroize::Zeroizing;

use super::build::{self, AnyOptimizer};
use super::config::{Config, Features};
use super::data::{self, Process, TrainingRecords};
use super::job::{Job, precondition_with};
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
    /// The bits of the noise multipliers of the mean and the directions, if rounds of preconditioning come first.
    precondition: Option<[u64; 2]>,
    /// The instruction sets of the leader's processor, if features depend on them.
    instruction_sets: Option<String>,
    threads: usize,
}

/// The instruction sets of this process's processor, if the features of this configuration depend on them.
fn instruction_sets(config: &Config) -> Option<String> {
    (config.model.features == Features::Scattering).then(Scattering::instruction_sets)
}

/// What the leader announces before it reads the data, once the budget covers the plan.
pub(crate) fn setup(job: &Job) -> Result<Vec<u8>, Error> {
    let (config, noise) = (job.config.clone(), job.noise.get().to_bits());
    let strategy = job.correlated.as_ref().map(|chosen| chosen.strategy.clone());
    let plan = job.precondition.as_ref().map(Preconditioning::plan);
    let precondition = plan.map(|plan| [plan.mean, plan.directions].map(|z| z.get().to_bits()));
    let instruction_sets = instruction_sets(&config);
    let threads = job.threads;
    let setup = Setup { config, noise, strategy, precondition, instruction_sets, threads };
    serde_json::to_vec(&setup).map_err(Error::failure)
}

/// The model and the records of this process.
struct Training {
    /// The rounds of preconditioning, until the leader announces what they released.
    phase: Option<Preconditioning>,
    trainer: Trainer<AnyOptimizer>,
    records: TrainingRecords,
    threads: usize,
}

impl Training {
    fn begin(message: &[u8], follower: &dyn Follower) -> Result<Self, Error> {
        let setup: Setup = serde_json::from_slice(message).map_err(Error::failure)?;
        let Setup { mut config, noise, strategy, precondition, threads, .. } = setup;
        let here = instruction_sets(&config);
        if here != setup.instruction_sets {
            let name = |sets: Option<String>| sets.unwrap_or_default();
            return Err(Error::Failure(format!(
                "scattering features have other bits here: this host's processor has {}, and that of rank 0 has {}; use \
                 hosts with the same processor",
                name(here),
                name(setup.instruction_sets)
            )));
        }
        let noise_of = |bits| NoiseMultiplier::new(f64::from_bits(bits)).map_err(Error::failure);
        let noise = noise_of(noise)?;
        let threads = build::threads(Some(threads));
        let mut model = build::model(&config.declaration())?;
        start::apply(&mut config.model, &mut model)?;
        let trainer = build::trainer(&config, model, noise, strategy.as_ref(), threads)?;
        let phase = match precondition {
            Some([mean, directions]) => {
                precondition_with(&config, threads, noise_of(mean)?, noise_of(directions)?)?
            }
            None => None,
        };
        let process = Process { rank: follower.rank(), size: follower.size() };
        let records =
            data::private(&config, process)?.into_records(&config.declaration(), threads)?;
        Ok(Self { phase, trainer, records, threads })
    }

    /// Whitens the inputs by what preconditioning released, which ends it.
    fn whiten(&mut self, released: &[u8]) -> Result<(), Error> {
        let phase = self.phase.take();
        let mut phase = phase.ok_or_else(|| Error::failure("an unknown announcement"))?;
        phase.restore(released).map_err(Error::failure)?;
        if let Some(whitening) = phase.whitening() {
            self.records.whiten(&whitening, self.threads);
        }
        Ok(())
    }

    /// Adds up this process's records of a round, of preconditioning or of training.
    fn part(&mut self, round: SharedRound, ids: Zeroizing<Vec<u64>>) -> Result<PartialSum, Error> {
        let part = match &self.phase {
            Some(phase) => phase.part(&round, ids, &self.records),
            None => self.trainer.part(round, ids, &self.records),
        };
        part.map_err(Error::failure)
    }
}

/// Follows the orders of the leader until training ends.
pub(crate) fn follow(follower: &mut dyn Follower) -> Result<(), Error> {
    let mut training: Option<Training> = None;
    loop {
        match (follower.next().map_err(Error::failure)?, &mut training) {
            (Order::End, _) => return Ok(()),
            (Order::Message(setup), None) => {
                let begun = Training::begin(&setup, follower);
                // The leader prints it once for all processes, and ends this one.
                let failure = begun.as_ref().err().map(ToString::to_string);
                follower.report(failure.as_deref()).map_err(Error::failure)?;
                training = begun.ok();
            }
            (Order::Message(released), Some(training)) => training.whiten(&released)?,
            (Order::Round(..), None) => return Err(Error::failure("a round before its data")),
            (Order::Round(round, ids), Some(training)) => {
                let part = training.part(round, ids)?;
                follower.give(part).map_err(Error::failure)?;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use veilgrad_nn::round::PeerError;

    use super::*;
    use crate::train::check::Source;

    /// Rank 1 of 2, which is only asked for its number.
    struct Second;

    impl Follower for Second {
        fn rank(&self) -> u64 {
            1
        }

        fn size(&self) -> u64 {
            2
        }

        fn next(&mut self) -> Result<Order, PeerError> {
            Ok(Order::End)
        }

        fn report(&mut self, _: Option<&str>) -> Result<(), PeerError> {
            Ok(())
        }

        fn give(&mut self, _: PartialSum) -> Result<(), PeerError> {
            Ok(())
        }
    }

    #[test]
    fn a_host_whose_scattering_features_have_other_bits_is_refused_before_it_reads_data() {
        let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
        let setup_of = |name: &str| {
            let config = Source::read(&examples.join(name)).unwrap().checked().unwrap();
            setup(&Job::new(config, Some(1)).unwrap()).unwrap()
        };
        let begin = |setup: &serde_json::Value| {
            let message = serde_json::to_vec(setup).unwrap();
            Training::begin(&message, &Second).err().unwrap().to_string()
        };
        let message = setup_of("mnist-eps8.toml");
        let mut message: serde_json::Value = serde_json::from_slice(&message).unwrap();
        let here = message["instruction_sets"].as_str().unwrap().to_owned();
        assert!(here.starts_with(std::env::consts::ARCH), "{here}");
        // No data, so that whoever is not refused fails for another reason.
        message["config"]["data"]["train"] = "nothing-is-here".into();
        assert!(!begin(&message).contains("processor"), "{}", begin(&message));
        message["instruction_sets"] = format!("{here} other").into();
        assert!(begin(&message).contains("rank 0 has"), "{}", begin(&message));
        // Other features do not depend on the processor.
        let message = setup_of("tabular.toml");
        let message: serde_json::Value = serde_json::from_slice(&message).unwrap();
        assert!(message["instruction_sets"].is_null());
    }
}
