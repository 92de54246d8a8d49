//! Rounds, folded to one Gaussian each.

use veilgrad_events::{Adjacency, Folded, NoiseMultiplier, Rounds, SampleRate, Sampling};

use crate::joined::{Joined, join, largest};
use crate::participation::{Added, Cost, RunSoFar};

/// With more distinct steps than this, those that are nearly alike are joined where steps are computed one by one.
const MOST_STEPS: usize = 2048;
/// At most so many are left then.
const FEW_STEPS: usize = 1024;
/// With more distinct steps than this, those that are nearly alike are joined to at most so many before anything else,
/// unless that would loosen bounds of epsilon by more than the part after it, about.
const MANY_STEPS: usize = 1 << 13;
const LOOSEST: f64 = 3e-4;
/// The share of the cost that is left out of lower bounds where few steps stand for thousands.
const NEGLIGIBLE: f64 = 1e-4;
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

/// Compositions of fewer steps beside one of many.
#[derive(Debug, Clone, PartialEq)]
enum StandIns {
    /// Of thousands of steps: what encloses them closely.
    Close { above: Composition, below: Composition },
    /// Of few steps: what encloses all of them, and what is like them.
    Few { above: Composition, below: Composition, sample: Composition },
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

    /// Fewer steps that cost at least as much, and as many that cost at most as much, where there are so many distinct
    /// ones that these are joined before anything else.
    pub(crate) fn enclosing(&self) -> Option<(&Self, &Self)> {
        match self.stand_ins.as_deref() {
            Some(StandIns::Close { above, below }) => Some((above, below)),
            _ => None,
        }
    }

    /// The first of these, or the steps themselves.
    pub(crate) fn above(&self) -> &Self {
        self.enclosing().map_or(self, |(above, _)| above)
    }

    /// Few steps that cost at least as much: these themselves, unless there are thousands of distinct ones.
    pub(crate) fn coarse(&self) -> &Self {
        match self.stand_ins.as_deref() {
            None => self,
            Some(StandIns::Close { above, .. }) => above.coarse(),
            Some(StandIns::Few { above, .. }) => above,
        }
    }

    /// Few steps that cost at most as much.
    pub(crate) fn coarse_below(&self) -> &Self {
        match self.stand_ins.as_deref() {
            None => self,
            Some(StandIns::Close { below, .. }) => below.coarse_below(),
            Some(StandIns::Few { below, .. }) => below,
        }
    }

    /// Few steps that cost about as much, where there are thousands of distinct ones. No bound.
    pub(crate) fn sample(&self) -> Option<&Self> {
        match self.stand_ins.as_deref()? {
            StandIns::Close { above, .. } => above.sample(),
            StandIns::Few { sample, .. } => Some(sample),
        }
    }

    /// Whether there are thousands of distinct steps.
    pub(crate) const fn is_many(&self) -> bool {
        self.stand_ins.is_some()
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

    fn finish(mut self) -> Composition {
        self.join();
        let mut always = None;
        if self.always > 0.0 {
            // Three roundings at most for every term: its square, a difference, the sum.
            let slack = (3.0 * self.terms as f64 + 8.0) * f64::EPSILON;
            let z = self.always.sqrt().recip() * (1.0 - slack);
            always = Some((Step { sampled: Sampled::Always, z }, 1));
            // Lower bounds take back less than that.
            self.not_attained |= slack > 1e-9;
        }
        compose(self.steps, always, !self.not_attained, MANY_STEPS)
    }
}

/// What these steps and one that is always sampled compose to; more than `many` distinct ones are joined.
fn compose(
    mut steps: Vec<(Step, u64)>,
    always: Option<(Step, u64)>,
    attained: bool,
    many: usize,
) -> Composition {
    let few = |mut steps: Vec<(Step, u64)>| {
        steps.extend(always);
        Composition { steps, attained, stand_ins: None }
    };
    let stand_ins = if steps.len() > MOST_STEPS {
        let close = if steps.len() > many { join(&steps, many, LOOSEST) } else { None };
        match close {
            Some(Joined { above, below }) => {
                let [above, below] =
                    [above, below].map(|steps| compose(steps, always, attained, usize::MAX));
                Some(StandIns::Close { above, below })
            }
            None => join(&steps, FEW_STEPS, f64::INFINITY).map(|Joined { above, below }| {
                let (below, sample) = (largest(below, NEGLIGIBLE), few(sample(&steps)));
                StandIns::Few { above: few(above), below: few(below), sample }
            }),
        }
    } else {
        None
    };
    steps.extend(always);
    Composition { steps, attained, stand_ins: stand_ins.map(Box::new) }
}

/// The steps with the largest second moments, and of the others one for every so many.
fn sample(steps: &[(Step, u64)]) -> Vec<(Step, u64)> {
    let moment = |(step, count): &(Step, u64)| {
        let q = match step.sampled {
            Sampled::Always => 1.0,
            Sampled::Poisson(q) | Sampled::PoissonReplaced(q) | Sampled::FixedReplaced(q) => q,
        };
        *count as f64 * q * q * libm::expm1((1.0 / (step.z * step.z)).min(50.0))
    };
    let mut steps = steps.to_vec();
    steps.sort_by(|a, b| moment(b).total_cmp(&moment(a)));
    let (largest, others) = steps.split_at(LARGEST_STEPS.min(steps.len()));
    let chunks = others.chunks(others.len().div_ceil(LARGEST_STEPS).max(1));
    let one = |chunk: &[(Step, u64)]| {
        let count = chunk.iter().fold(0u64, |sum, (_, n)| sum.saturating_add(*n));
        chunk.get(chunk.len() / 2).map(|(step, _)| (*step, count))
    };
    largest.iter().copied().chain(chunks.filter_map(one)).collect()
}
