//! Rounds, folded to one Gaussian each.

use veilgrad_events::{Adjacency, Folded, NoiseMultiplier, Rounds, SampleRate, Sampling};

use crate::participation::{Added, Cost, RunSoFar};

/// With more distinct steps than this, those that are nearly alike are joined where steps are computed one by one.
const MOST_STEPS: usize = 2048;
/// At most so many are left then.
const FEW_STEPS: usize = 512;
/// So many of the largest are in a sample, and as many of all the others.
const LARGEST_STEPS: usize = 96;

/// Everything that an accountant needs to know of a ledger.
#[derive(Debug, Clone, PartialEq)]
pub struct Composition {
    steps: Vec<(Step, u64)>,
    attained: bool,
    /// What stands for the steps where there are thousands of distinct ones.
    stand_ins: Option<Box<StandIns>>,
}

/// Compositions of few steps beside one of many.
#[derive(Debug, Clone, PartialEq)]
struct StandIns {
    coarse: Composition,
    sample: Composition,
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

    /// What the rounds of one run compose to, folded already and in their order.
    ///
    /// # Errors
    /// As for [`fold`](Self::fold).
    pub fn of(
        rounds: impl IntoIterator<Item = Folded>,
        adjacency: Adjacency,
    ) -> Result<Self, Unsupported> {
        Self::of_runs(std::iter::once(rounds), adjacency)
    }

    /// What several runs compose to, each with its rounds in their order.
    ///
    /// # Guarantee
    /// Shuffled epochs are counted from the beginning of each run, as the sampler draws them.
    ///
    /// # Errors
    /// As for [`fold`](Self::fold).
    pub fn of_runs<R: IntoIterator<Item = Folded>>(
        runs: impl IntoIterator<Item = R>,
        adjacency: Adjacency,
    ) -> Result<Self, Unsupported> {
        let mut fold = Fold::default();
        for rounds in runs {
            let mut run = RunSoFar::default();
            for rounds in rounds {
                fold.add(run.add(&rounds, adjacency)?);
            }
        }
        Ok(fold.finish())
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
        let sampling = Sampling::Poisson { rate };
        Self::of([Folded { count: rounds, sampling, noise_multiplier }], adjacency)
    }

    /// One step.
    pub(crate) fn of_step(step: Step) -> Self {
        Self { steps: vec![(step, 1)], attained: true, stand_ins: None }
    }

    /// The steps of all of these, one after another: the runs of one dataset, say.
    #[must_use]
    pub fn join(parts: &[Self]) -> Self {
        let mut fold = Fold::default();
        for part in parts {
            fold.not_attained |= !part.attained;
            for (step, count) in &part.steps {
                fold.step(*step, *count);
            }
        }
        fold.finish()
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

    /// The steps for which this holds, and the others.
    pub(crate) fn split(&self, holds: impl Fn(&Step) -> bool) -> (Self, Self) {
        let (mut some, mut others) = (Fold::default(), Fold::default());
        for (step, count) in &self.steps {
            let part = if holds(step) { &mut some } else { &mut others };
            part.not_attained = !self.attained;
            part.step(*step, *count);
        }
        (some.finish(), others.finish())
    }

    /// Few steps that cost at least as much: these themselves, unless there are thousands of distinct ones.
    pub(crate) fn coarse(&self) -> &Self {
        self.stand_ins.as_ref().map_or(self, |stand_ins| &stand_ins.coarse)
    }

    /// Few steps that cost about as much, where there are thousands of distinct ones. No bound.
    pub(crate) fn sample(&self) -> Option<&Self> {
        self.stand_ins.as_ref().map(|stand_ins| &stand_ins.sample)
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

/// What was folded so far.
#[derive(Default)]
struct Fold {
    steps: Vec<(Step, u64)>,
    /// The sum of 1/z^2 of all Gaussians without sampling: together they are one.
    always: f64,
    /// How many terms that sum has: each was rounded.
    terms: u64,
    /// Some steps may cost less than their analysis says.
    not_attained: bool,
}

impl Fold {
    fn add(&mut self, added: Added) {
        self.not_attained |= !added.attained;
        match added.cost {
            Cost::Nothing => {}
            Cost::Always(squares) => self.always(squares),
            Cost::Sampled(step, count) => self.steps.push((step, count)),
        }
    }

    fn step(&mut self, step: Step, count: u64) {
        match step.sampled {
            Sampled::Always => self.always(count as f64 / (step.z * step.z)),
            _ => self.steps.push((step, count)),
        }
    }

    fn always(&mut self, squares: f64) {
        self.terms += 1;
        // At least the smallest positive number: the square of a huge multiplier overflows to infinity.
        self.always += squares.max(f64::MIN_POSITIVE);
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
    /// there are few.
    ///
    /// Less sampling and more noise are post-processing of more sampling and less noise, so nothing is
    /// lost but tightness.
    fn coarsen(&mut self) {
        let mut grain = 1e-3;
        while self.steps.len() > FEW_STEPS {
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
            grain *= 1.5;
        }
    }

    /// The steps with the largest second moments, and of the others one for every so many.
    fn sample(&self) -> Vec<(Step, u64)> {
        let moment = |(step, count): &(Step, u64)| {
            let q = match step.sampled {
                Sampled::Always => 1.0,
                Sampled::Poisson(q) | Sampled::PoissonReplaced(q) | Sampled::FixedReplaced(q) => q,
            };
            *count as f64 * q * q * libm::expm1((1.0 / (step.z * step.z)).min(50.0))
        };
        let mut steps = self.steps.clone();
        steps.sort_by(|a, b| moment(b).total_cmp(&moment(a)));
        let (largest, others) = steps.split_at(LARGEST_STEPS.min(steps.len()));
        let chunks = others.chunks(others.len().div_ceil(LARGEST_STEPS).max(1));
        let one = |chunk: &[(Step, u64)]| {
            let count = chunk.iter().fold(0u64, |sum, (_, n)| sum.saturating_add(*n));
            chunk.get(chunk.len() / 2).map(|(step, _)| (*step, count))
        };
        largest.iter().copied().chain(chunks.filter_map(one)).collect()
    }

    fn finish(mut self) -> Composition {
        self.join();
        let many = self.steps.len() > MOST_STEPS;
        let attained = !self.not_attained;
        let few = |steps, attained| Composition { steps, attained, stand_ins: None };
        let mut stand_ins = many.then(|| {
            let mut coarse = Self { steps: self.steps.clone(), ..Self::default() };
            coarse.coarsen();
            Box::new(StandIns {
                coarse: few(coarse.steps, false),
                sample: few(self.sample(), false),
            })
        });
        if self.always > 0.0 {
            // Three roundings at most for every term: its square, a difference, the sum.
            let slack = (3.0 * self.terms as f64 + 8.0) * f64::EPSILON;
            // Lower bounds take back less than that.
            self.not_attained |= slack > 1e-9;
            let z = self.always.sqrt().recip() * (1.0 - slack);
            let step = (Step { sampled: Sampled::Always, z }, 1);
            self.steps.push(step);
            if let Some(stand_ins) = &mut stand_ins {
                stand_ins.coarse.steps.push(step);
                stand_ins.sample.steps.push(step);
            }
        }
        Composition { steps: self.steps, attained, stand_ins }
    }
}
