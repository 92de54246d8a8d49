//! Checking `[privacy.correlated]`.

use veilgrad_events::BandedStrategy;

use crate::problem::Problems;
use crate::train::config::{Bands, Config, Correlated, Sampling};

const TABLE: &str = "privacy.correlated";
const BANDS: &str = "privacy.correlated.bands";

impl Config {
    pub(super) fn check_correlated(&self, problems: &mut Problems) {
        let Some(Correlated { bands }) = self.privacy.correlated else { return };
        let privacy = &self.privacy;
        problems.refuse(
            privacy.sampling != Sampling::Poisson,
            TABLE,
            "[privacy.correlated] is for sampling = \"poisson\", which it makes cyclic",
        );
        problems.refuse(
            privacy.precondition.is_some(),
            TABLE,
            "[privacy.correlated] cannot follow [privacy.precondition]: its groups of records are drawn for the first round \
             of a run",
        );
        problems.refuse(
            self.canaries() > 0,
            TABLE,
            "[privacy.correlated] cannot be audited by canaries, whose scores assume independent rounds",
        );
        let Bands::Number(bands) = bands else {
            problems.refuse(
                privacy.epsilon.is_none(),
                BANDS,
                "[privacy.correlated] bands = \"auto\" needs [privacy] epsilon: the best number of bands depends on it",
            );
            return;
        };
        let most = self.most_bands();
        if !(1..=most).contains(&bands) {
            let text = format!(
                "[privacy.correlated] bands {bands} is not between 1 and {most}: there are at most {}, no more than rounds, \
                 and each of as many groups of records has at least an expected batch",
                BandedStrategy::MAX_BANDS
            );
            problems.add(BANDS, text);
        }
    }

    fn most_bands(&self) -> usize {
        let groups = (self.data.records as f64 / self.privacy.expected_batch) as usize;
        let rounds = usize::try_from(self.rounds()).unwrap_or(usize::MAX);
        BandedStrategy::MAX_BANDS.min(groups).min(rounds)
    }
}
