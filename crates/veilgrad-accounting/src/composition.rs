//! Rounds, folded to one Gaussian each.

use std::collections::HashMap;

use veilgrad_events::{
    Adjacency, FixedBatch, Folded, NoiseMultiplier, Rounds, SampleRate, Sampling,
};

/// More distinct steps than this are joined, from above.
const MOST_STEPS: usize = 2048;

/// Everything that an accountant needs to know of a ledger.
#[derive(Debug, Clone, PartialEq)]
pub struct Composition {
    steps: Vec<(Step, u64)>,
    attained: bool,
}

/// One round: a Gaussian on a sample.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Step {
    /// How often a record takes part.
    pub sampled: Sampled,
    /// The noise multiplier, in units that [`Sampled`] says.
    pub z: f64,
}

/// How the record in which neighbours differ takes part.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Sampled {
    /// In every round; z is in units of the distance that neighbours have.
    Always,
    /// Independently with this probability, below 1; without the record there is none, and with it the
    /// sum moves by at most 1.
    Poisson(f64),
    /// Independently with this probability, below 1; neighbours have different records there, each of
    /// norm at most 1.
    PoissonReplaced(f64),
    /// In a sample of fixed size with this probability, below 1; neighbours have different records
    /// there, and z is in units of the distance 2 that this makes.
    FixedReplaced(f64),
}

/// The accountant cannot speak about these events.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unsupported: {0}")]
pub struct Unsupported(String);

impl Unsupported {
    /// An error that says why.
    pub fn new(why: impl Into<String>) -> Self {
        Self(why.into())
    }
}

impl Composition {
    /// Folds the queries of every round to one Gaussian and notes how its sample was drawn.
    ///
    /// # Guarantee
    /// All queries of a round share one sample, so they become one Gaussian with
    /// `z = (sum_g (S_g/sigma_g)^2)^(-1/2)`, rounded down. Composing them as if each had drawn its own
    /// sample would give a smaller, wrong epsilon.
    ///
    /// # Errors
    /// When a policy has no sound analysis under the adjacency, or noise is too small to be a number.
    pub fn fold<'a>(
        rounds: impl IntoIterator<Item = &'a Rounds>,
        adjacency: Adjacency,
    ) -> Result<Self, Unsupported> {
        let folded: Result<Vec<Folded>, _> = rounds.into_iter().map(Folded::try_from).collect();
        Self::of(folded.map_err(|error| Unsupported::new(error.to_string()))?, adjacency)
    }

    /// What rounds that are folded already compose to.
    ///
    /// # Errors
    /// As for [`fold`](Self::fold).
    pub fn of(
        rounds: impl IntoIterator<Item = Folded>,
        adjacency: Adjacency,
    ) -> Result<Self, Unsupported> {
        let mut fold = Fold::default();
        let mut entries = 0;
        for rounds in rounds.into_iter().filter(|rounds| rounds.count > 0) {
            entries += 1;
            let z = rounds.noise_multiplier.get();
            let whole = z / f64::from(adjacency.sensitivity());
            let count = rounds.count;
            match (rounds.sampling, adjacency) {
                (Sampling::All {}, _) => fold.always(whole, count),
                (Sampling::Poisson { rate }, _) => fold.poisson(rate.get(), z, count, adjacency)?,
                // A sample with everybody is everybody.
                (Sampling::Fixed(batch), Adjacency::ZeroOut | Adjacency::ReplaceOne)
                    if batch.batch() == batch.records() =>
                {
                    fold.always(whole, count);
                }
                // Whoever is left out is replaced by somebody else, which moves the sum by 2.
                (Sampling::Fixed(batch), Adjacency::AddRemove) => {
                    match rate(batch) {
                        q if q < 1.0 => fold.step(Sampled::Poisson(q), 0.5 * z, count),
                        // Nobody can be missing from a sample of everybody.
                        _ => {
                            fold.not_attained = true;
                            fold.always(0.5 * z, count);
                        }
                    };
                }
                // To put zero in a record's place is to replace it.
                (Sampling::Fixed(batch), Adjacency::ZeroOut | Adjacency::ReplaceOne) => {
                    fold.not_attained = true;
                    fold.step(Sampled::FixedReplaced(rate(batch)), 0.5 * z, count);
                }
                (Sampling::Shuffle(batch), Adjacency::ZeroOut | Adjacency::ReplaceOne) => {
                    let uses = fold.epochs_touched(batch, count)?;
                    fold.not_attained = true;
                    fold.always(whole, uses);
                }
                (Sampling::Shuffle(_), Adjacency::AddRemove) => {
                    return Err(Unsupported::new(
                        "shuffled batches under add-remove adjacency: how many batches an epoch has \
                         depends on how many records there are; use zero-out or replace-one",
                    ));
                }
                (policy, adjacency) => {
                    return Err(Unsupported::new(format!(
                        "{policy:?} under {adjacency} adjacency has no analysis here"
                    )));
                }
            }
        }
        Ok(fold.finish(entries))
    }

    /// Rounds with Poisson samples, all alike.
    ///
    /// # Errors
    /// As for [`fold`](Self::fold).
    pub fn poisson(
        rate: SampleRate,
        noise_multiplier: NoiseMultiplier,
        rounds: u64,
        adjacency: Adjacency,
    ) -> Result<Self, Unsupported> {
        let mut fold = Fold::default();
        if rounds > 0 {
            fold.poisson(rate.get(), noise_multiplier.get(), rounds, adjacency)?;
        }
        Ok(fold.finish(1))
    }

    /// The steps of all of these, one after another: the runs of one dataset, say.
    #[must_use]
    pub fn join(parts: &[Self]) -> Self {
        let not_attained = parts.iter().any(|part| !part.attained);
        let mut fold = Fold { not_attained, ..Fold::default() };
        for (step, count) in parts.iter().flat_map(|part| &part.steps) {
            match step.sampled {
                Sampled::Always => fold.always(step.z, *count),
                sampled => fold.step(sampled, step.z, *count),
            }
        }
        fold.finish(parts.len())
    }

    /// The mu of Gaussian differential privacy, rounded up; none if any step is sampled.
    ///
    /// # Guarantee
    /// The Gaussian trade-off curve of mu dominates these rounds at every delta. The far tails of a sampled
    /// Gaussian are those of one that is always sampled, so sampling never lowers such a mu: there is none
    /// to report then.
    #[must_use]
    pub fn mu(&self) -> Option<f64> {
        match self.steps.as_slice() {
            [] => Some(0.0),
            [(Step { sampled: Sampled::Always, z }, 1)] => Some(1.0 / z * (1.0 + f64::EPSILON)),
            _ => None,
        }
    }

    /// Whether there are neighbours that these steps cost as much as their analysis says.
    pub(crate) const fn attained(&self) -> bool {
        self.attained
    }

    /// Whether both directions cost the same.
    pub(crate) fn is_symmetric(&self) -> bool {
        self.steps.iter().all(|(step, _)| !matches!(step.sampled, Sampled::Poisson(_)))
    }

    /// How many rounds there are, about.
    pub(crate) fn rounds(&self) -> f64 {
        self.steps.iter().map(|(_, count)| *count as f64).sum()
    }

    /// The distinct steps, each with its number.
    #[must_use]
    pub fn steps(&self) -> &[(Step, u64)] {
        &self.steps
    }
}

impl Step {
    /// The noise multiplier of a Gaussian without sampling that costs at least as much.
    pub(crate) fn without_sampling(&self) -> f64 {
        match self.sampled {
            Sampled::Always | Sampled::Poisson(_) | Sampled::FixedReplaced(_) => self.z,
            Sampled::PoissonReplaced(_) => 0.5 * self.z,
        }
    }

    fn key(&self) -> (u8, u64, u64) {
        let (kind, q) = match self.sampled {
            Sampled::Always => (0, 1.0),
            Sampled::Poisson(q) => (1, q),
            Sampled::PoissonReplaced(q) => (2, q),
            Sampled::FixedReplaced(q) => (3, q),
        };
        (kind, q.to_bits(), self.z.to_bits())
    }
}

/// The chance of a record to be in a batch, rounded up.
fn rate(batch: FixedBatch) -> f64 {
    (batch.batch() as f64 / batch.records() as f64 * (1.0 + 2.0 * f64::EPSILON)).min(1.0)
}

/// What was folded so far.
#[derive(Default)]
struct Fold {
    steps: Vec<(Step, u64)>,
    /// The sum of 1/z^2 of all Gaussians without sampling: together they are one.
    always: f64,
    /// Rounds since the start of shuffling, for every kind of batch.
    shuffled: HashMap<(u64, u64), u64>,
    /// Some steps may cost less than their analysis says.
    not_attained: bool,
}

impl Fold {
    fn always(&mut self, z: f64, count: u64) {
        // Never nothing: the square of a huge multiplier is no number.
        self.always += (count as f64 / (z * z)).max(f64::MIN_POSITIVE);
    }

    fn poisson(
        &mut self,
        q: f64,
        z: f64,
        count: u64,
        adjacency: Adjacency,
    ) -> Result<(), Unsupported> {
        if q >= 1.0 {
            self.always(z / f64::from(adjacency.sensitivity()), count);
            return Ok(());
        }
        let sampled = match adjacency {
            Adjacency::AddRemove | Adjacency::ZeroOut => Sampled::Poisson(q),
            Adjacency::ReplaceOne => Sampled::PoissonReplaced(q),
            other => {
                return Err(Unsupported::new(format!("{other} adjacency has no analysis here")));
            }
        };
        self.step(sampled, z, count);
        Ok(())
    }

    fn step(&mut self, sampled: Sampled, z: f64, count: u64) {
        self.steps.push((Step { sampled, z }, count));
    }

    /// In how many epochs these rounds lie, the first and the last perhaps in part: a record is in at
    /// most one batch of each.
    fn epochs_touched(&mut self, batch: FixedBatch, count: u64) -> Result<u64, Unsupported> {
        let rounds = batch.records() / batch.batch();
        let before = self.shuffled.entry((batch.records(), batch.batch())).or_default();
        let after =
            before.checked_add(count).ok_or_else(|| Unsupported::new("more than 2^64 rounds"))?;
        let touched = after.div_ceil(rounds) - *before / rounds;
        *before = after;
        Ok(touched)
    }

    /// Joins steps that are alike.
    fn join(&mut self) {
        self.steps.sort_unstable_by_key(|(step, _)| step.key());
        self.steps.dedup_by(|(step, count), (known, sum)| {
            // Two rows where the numbers would not fit one.
            let joined = sum.checked_add(*count).filter(|_| step.key() == known.key());
            joined.map(|joined| *sum = joined).is_some()
        });
    }

    /// Joins steps that are nearly alike, each at the higher rate and the lower noise of both, until
    /// there are few enough to compute with.
    ///
    /// Less sampling and more noise are post-processing of more sampling and less noise, so nothing is
    /// lost but tightness.
    fn coarsen(&mut self) {
        let mut grain = 1e-5;
        while self.steps.len() > MOST_STEPS {
            self.not_attained = true;
            for (step, _) in &mut self.steps {
                let up = |q: f64| {
                    // Never above 1, never below what it was.
                    let rounded = libm::exp((libm::log(q) / grain).ceil() * grain);
                    rounded.max(q).min(1.0 - f64::EPSILON).max(q)
                };
                let sampled = match step.sampled {
                    Sampled::Always => Sampled::Always,
                    Sampled::Poisson(q) => Sampled::Poisson(up(q)),
                    Sampled::PoissonReplaced(q) => Sampled::PoissonReplaced(up(q)),
                    Sampled::FixedReplaced(q) => Sampled::FixedReplaced(up(q)),
                };
                let z = libm::exp((libm::log(step.z) / grain).floor() * grain).min(step.z);
                *step = Step { sampled, z };
            }
            self.join();
            grain *= 4.0;
        }
    }

    /// `entries` bounds the number of additions that were rounded.
    fn finish(mut self, entries: usize) -> Composition {
        self.join();
        self.coarsen();
        if self.always > 0.0 {
            let z = self.always.sqrt().recip() * (1.0 - (entries as f64 + 8.0) * f64::EPSILON);
            self.steps.push((Step { sampled: Sampled::Always, z }, 1));
        }
        Composition { steps: self.steps, attained: !self.not_attained }
    }
}
