//! One step of a composition.

/// What distinguishes steps: equal for steps that are equal in every bit.
pub(crate) type StepKey = (u8, [u64; 6]);

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
    /// One whole epoch of random allocation with this many rounds, at least 2: the record is in one of them, chosen
    /// uniformly. One neighbour lacks the record, which moves the sum of its round by at most 1.
    Allocated(u64),
    /// A Poisson sample of at most a fixed size.
    Truncated(TruncatedSample),
    /// Several records of one person, each sampled independently with this probability, below 1. One neighbour lacks all of
    /// them; each moves the sum by at most 1.
    PoissonGroup {
        /// The probability of each record.
        rate: f64,
        /// The number of records, at least 2.
        records: u64,
    },
}

/// A Poisson sample that is cut to a maximum size, as a mixture of simpler rounds (docs/accounting.md). Which of them runs
/// has the same probability for both neighbours. Weights are rounded up.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TruncatedSample {
    /// The probability of a record before truncation.
    pub rate: f64,
    /// Whether neighbours have different records in the place of one, and not one record less or a zero.
    pub replaced: bool,
    /// Whether neighbours have the same number of records: under zero-out and replace-one.
    pub same_size: bool,
    /// The probability that the sample is not cut: a round with Poisson samples.
    pub untruncated: f64,
    /// The probability that it is cut and the record holds a slot: a round without sampling.
    pub held: f64,
    /// The probability that it is cut, where it is not revealed whether the record or another one in its place holds a slot: a
    /// sample at most at this rate, in which sums differ by at most 2.
    pub exchanged: f64,
    /// The probability that it is cut and the record holds no slot: the round shows nothing of it.
    pub absent: f64,
    /// The probability that the record is in the sample, rounded down.
    pub inclusion: f64,
    /// An upper bound on how much the bounds on the probabilities differ, relative to the probability that the sample is cut.
    pub error: f64,
}

impl TruncatedSample {
    /// The rounds of the mixture with noise multiplier `z`, and their weights; [`absent`](Self::absent) has no round.
    pub(crate) fn parts(&self, z: f64) -> impl Iterator<Item = (f64, Step)> {
        let Self { rate, replaced, same_size, untruncated, held, exchanged, .. } = *self;
        let always = |z: f64| Step { sampled: Sampled::Always, z };
        let whole = if replaced { 0.5 * z } else { z };
        let poisson = |z: f64| match replaced {
            _ if rate >= 1.0 => always(if replaced { 0.5 * z } else { z }),
            true => Step { sampled: Sampled::PoissonReplaced(rate), z },
            false => Step { sampled: Sampled::Poisson(rate), z },
        };
        let exchanged_as = match same_size {
            _ if rate >= 1.0 => Sampled::Always,
            true => Sampled::FixedReplaced(rate),
            false => Sampled::Poisson(rate),
        };
        let exchanged_step = Step { sampled: exchanged_as, z: 0.5 * z };
        let parts = [(untruncated, poisson(z)), (held, always(whole)), (exchanged, exchanged_step)];
        parts.into_iter().filter(|(weight, _)| *weight > 0.0)
    }

    /// The same weights rounded down, in the order of [`parts`](Self::parts) and then that of [`absent`](Self::absent).
    pub(crate) fn least_weights(&self) -> (Vec<f64>, f64) {
        let Self { untruncated, held, exchanged, absent, error, .. } = *self;
        let others = held + exchanged + absent;
        let slack = 4.0 * error * others;
        let untruncated_down = 1.0 - others * (1.0 + 1e-15);
        let weights =
            [(untruncated, untruncated_down), (held, held - slack), (exchanged, exchanged - slack)];
        let down = weights.into_iter().filter(|(up, _)| *up > 0.0).map(|(_, down)| down.max(0.0));
        (down.collect(), (absent - slack).max(0.0))
    }

    /// A round that costs at most as much: that of neighbours whose other records are all zero.
    pub(crate) const fn below(&self) -> Sampled {
        match self.replaced {
            true => Sampled::PoissonReplaced(self.inclusion),
            false => Sampled::Poisson(self.inclusion),
        }
    }
}

impl Step {
    /// The noise multiplier of a Gaussian without sampling that costs at least as much.
    pub(crate) fn without_sampling(&self) -> f64 {
        match self.sampled {
            Sampled::Always
            | Sampled::Poisson(_)
            | Sampled::FixedReplaced(_)
            | Sampled::Allocated(_) => self.z,
            Sampled::PoissonReplaced(_) | Sampled::Truncated(_) => 0.5 * self.z,
            Sampled::PoissonGroup { records, .. } => self.z / records as f64,
        }
    }

    /// About the variance of the likelihood ratio, at most the squared distance without sampling. Not a bound.
    pub(super) fn variance(&self) -> f64 {
        let z = self.without_sampling();
        let square = 1.0 / (z * z);
        let whole = libm::expm1(square.min(50.0));
        let variance = match self.sampled {
            Sampled::PoissonGroup { rate, records } => group_variance(rate, records, self.z),
            Sampled::Allocated(rounds) => whole / rounds as f64,
            _ => self.rate() * self.rate() * whole,
        };
        variance.min(square)
    }

    /// If the step is an epoch of random allocation, the number of its rounds.
    pub(crate) const fn epoch_rounds(&self) -> Option<u64> {
        match self.sampled {
            Sampled::Allocated(rounds) => Some(rounds),
            _ => None,
        }
    }

    /// Whether rate and noise alone describe the step, so that similar ones can be grouped and interpolated.
    pub(crate) const fn has_two_parameters(&self) -> bool {
        matches!(
            self.sampled,
            Sampled::Always
                | Sampled::Poisson(_)
                | Sampled::PoissonReplaced(_)
                | Sampled::FixedReplaced(_)
        )
    }

    /// A number for the kind of sampling, and an upper bound on the probability that a record takes part.
    pub(crate) fn kind_and_rate(&self) -> (u8, f64) {
        match self.sampled {
            Sampled::Always => (0, 1.0),
            Sampled::Poisson(q) => (1, q),
            Sampled::PoissonReplaced(q) => (2, q),
            Sampled::FixedReplaced(q) => (3, q),
            Sampled::Allocated(_) => (4, 1.0),
            Sampled::Truncated(sample) => (5, sample.rate),
            Sampled::PoissonGroup { rate, records } => {
                (6, (rate * records as f64 * (1.0 + f64::EPSILON)).min(1.0))
            }
        }
    }

    /// An upper bound on the probability that a record takes part.
    pub(crate) fn rate(&self) -> f64 {
        self.kind_and_rate().1
    }

    /// The same kind of sampling with another rate and noise; a step without [two parameters](Self::has_two_parameters) only
    /// gets the noise.
    pub(crate) const fn with(&self, q: f64, z: f64) -> Self {
        let sampled = match self.sampled {
            Sampled::Poisson(_) => Sampled::Poisson(q),
            Sampled::PoissonReplaced(_) => Sampled::PoissonReplaced(q),
            Sampled::FixedReplaced(_) => Sampled::FixedReplaced(q),
            other => other,
        };
        Self { sampled, z }
    }

    /// A hash key: equal for steps that are equal in every bit.
    pub(crate) fn key(&self) -> StepKey {
        let (kind, q) = self.kind_and_rate();
        let (q, z) = (q.to_bits(), self.z.to_bits());
        let rest = match self.sampled {
            Sampled::Allocated(rounds) => [rounds, 0, 0, 0],
            Sampled::Truncated(sample) => {
                [sample.untruncated, sample.held, sample.exchanged, sample.absent].map(f64::to_bits)
            }
            Sampled::PoissonGroup { rate, records } => [rate.to_bits(), records, 0, 0],
            _ => [0; 4],
        };
        let form = match self.sampled {
            Sampled::Truncated(sample) => {
                16 * u8::from(sample.replaced) + 32 * u8::from(sample.same_size)
            }
            _ => 0,
        };
        let [a, b, c, d] = rest;
        (kind + form, [q, z, a, b, c, d])
    }
}

/// The variance of the likelihood ratio of a Poisson sample with several records of one person.
fn group_variance(rate: f64, records: u64, z: f64) -> f64 {
    let (mut weight, mut variance) = ((1.0 - rate).powf(records as f64), 0.0);
    for j in 1..=records {
        weight *= (records - j + 1) as f64 / j as f64 * rate / (1.0 - rate);
        let grown = libm::log1p(rate * libm::expm1(j as f64 / (z * z)));
        variance += weight * libm::expm1(records as f64 * grown);
    }
    variance
}
