//! One step of a composition.

/// A sampled Gaussian: one round of a composition.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Step {
    /// How the record takes part.
    pub sampled: Sampled,
    /// The noise multiplier, in the units that [`Sampled`] documents.
    pub z: f64,
}

/// How the record in which neighbours differ takes part.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Sampled {
    /// In every round; z is in units of the distance between the sums of neighbours.
    Always,
    /// Independently with this probability, below 1. One neighbour lacks the record; where it is sampled it moves the sum by at
    /// most 1.
    Poisson(f64),
    /// Independently with this probability, below 1. Neighbours have different records in its place, each of norm at most 1.
    PoissonReplaced(f64),
    /// In a sample of fixed size with this probability, below 1. Neighbours have different records in its place, and z is in
    /// units of their distance, 2.
    FixedReplaced(f64),
}

impl Step {
    /// The noise multiplier of a Gaussian without sampling that costs at least as much.
    pub(crate) fn without_sampling(&self) -> f64 {
        match self.sampled {
            Sampled::Always | Sampled::Poisson(_) | Sampled::FixedReplaced(_) => self.z,
            Sampled::PoissonReplaced(_) => 0.5 * self.z,
        }
    }

    /// A number for the kind of sampling, and the probability that a record takes part.
    pub(crate) const fn kind_and_rate(&self) -> (u8, f64) {
        match self.sampled {
            Sampled::Always => (0, 1.0),
            Sampled::Poisson(q) => (1, q),
            Sampled::PoissonReplaced(q) => (2, q),
            Sampled::FixedReplaced(q) => (3, q),
        }
    }

    /// The probability that a record takes part.
    pub(crate) const fn rate(&self) -> f64 {
        self.kind_and_rate().1
    }

    /// The same kind of sampling with another rate and noise.
    pub(crate) const fn with(&self, q: f64, z: f64) -> Self {
        let sampled = match self.sampled {
            Sampled::Always => Sampled::Always,
            Sampled::Poisson(_) => Sampled::Poisson(q),
            Sampled::PoissonReplaced(_) => Sampled::PoissonReplaced(q),
            Sampled::FixedReplaced(_) => Sampled::FixedReplaced(q),
        };
        Self { sampled, z }
    }

    /// A hash key: equal for steps that are equal in every bit.
    pub(crate) fn key(&self) -> (u8, u64, u64) {
        let (kind, q) = self.kind_and_rate();
        (kind, q.to_bits(), self.z.to_bits())
    }
}
