//! The fingerprint of a plan: equal exactly for plans whose sums may be added.

use sha2::{Digest, Sha256};
use veilgrad_events::Hash;

use crate::RoundPlan;
use crate::clip::ClipRule;
use crate::group::Estimator;
use crate::planned::{Member, Plan, PlannedContent, PlannedGroup};
use crate::quantile::{Quantile, Source};

impl RoundPlan {
    /// The fingerprint of the plan: SHA-256 of its structure, groups, grids, clip norms and quantile estimates.
    ///
    /// Two plans have the same fingerprint if their sums may be added, and otherwise not (unless SHA-256 has a
    /// collision). It is public, like the plan. It changes when a clip norm adapts.
    ///
    /// # Example
    /// ```
    /// use veilgrad_events::{ClipNorm, NoiseMultiplier};
    /// use veilgrad_mechanism::{Allocation, Group, RoundPlan, Structure};
    ///
    /// let plan = |clip| -> Result<RoundPlan, Box<dyn std::error::Error>> {
    ///     let groups = vec![Group::new("x", ["x"], ClipNorm::new(clip)?)];
    ///     let noise = Allocation::Proportional(NoiseMultiplier::new(1.0)?);
    ///     Ok(RoundPlan::new(Structure::new([("x", 3)])?, groups, noise)?)
    /// };
    /// assert_eq!(plan(1.0)?.fingerprint(), plan(1.0)?.fingerprint());
    /// assert_ne!(plan(1.0)?.fingerprint(), plan(2.0)?.fingerprint());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn fingerprint(&self) -> Hash {
        // `round` counts updates and `strategy` is for the noise: no sum depends on them.
        let Plan { structure, groups, round: _, strategy: _ } = &*self.inner;
        let mut fields = Fields(Sha256::new_with_prefix("veilgrad round plan 1"));
        fields.count(structure.vectors().count());
        for (name, dimension) in structure.vectors() {
            fields.text(name);
            fields.count(dimension);
        }
        fields.count(groups.len());
        groups.iter().for_each(|group| fields.group(group));
        Hash(fields.0.finalize().into())
    }
}

/// Hashes fields one after the other. Texts and lists begin with their length, and alternatives with a number, so that
/// different plans are different bytes.
struct Fields(Sha256);

impl Fields {
    fn count(&mut self, count: usize) {
        self.0.update((count as u64).to_le_bytes());
    }

    fn text(&mut self, text: &str) {
        self.count(text.len());
        self.0.update(text);
    }

    fn real(&mut self, value: f64) {
        self.0.update(value.to_bits().to_le_bytes());
    }

    fn choice(&mut self, number: u8) {
        self.0.update([number]);
    }

    fn group(&mut self, group: &PlannedGroup) {
        let PlannedGroup { name, dimension, grid, content, estimator } = group;
        self.text(name);
        self.count(*dimension);
        self.0.update(grid.s_int().to_le_bytes());
        self.choice(grid.k());
        match content {
            PlannedContent::Vectors { members, clip, rule, weight } => {
                self.choice(0);
                self.count(members.len());
                for Member { vector, alpha, range } in members {
                    self.count(*vector);
                    self.real(alpha.get());
                    self.count(range.start);
                    self.count(range.end);
                }
                self.real(clip.get());
                self.choice(match rule {
                    ClipRule::Shorten => 0,
                    ClipRule::Normalise => 1,
                });
                self.choice(u8::from(weight.is_some()));
                weight.iter().for_each(|bound| self.real(bound.get()));
            }
            PlannedContent::Weight(bound) => {
                self.choice(1);
                self.real(bound.get());
            }
            PlannedContent::QuantileOfNorm(quantile, target, floor) => {
                self.choice(2);
                self.quantile(quantile);
                self.count(*target);
                self.real(floor.get());
            }
            PlannedContent::QuantileOfValue(quantile, vector, estimate) => {
                self.choice(3);
                self.quantile(quantile);
                self.count(*vector);
                self.real(*estimate);
            }
        }
        match estimator {
            Estimator::Sum => self.choice(0),
            Estimator::Average(denominator) => {
                self.choice(1);
                self.real(denominator.get());
            }
            Estimator::AverageOver { group, minimum } => {
                self.choice(2);
                self.count(*group);
                self.real(minimum.get());
            }
        }
    }

    fn quantile(&mut self, quantile: &Quantile) {
        match &quantile.source {
            Source::Norm { group, floor } => {
                self.choice(0);
                self.text(group);
                self.real(floor.get());
            }
            Source::Value { vector, initial } => {
                self.choice(1);
                self.text(vector);
                self.real(*initial);
            }
        }
        let (numbers, switches) = quantile.settings();
        numbers.into_iter().for_each(|number| self.real(number));
        switches.into_iter().for_each(|switch| self.choice(u8::from(switch)));
    }
}
