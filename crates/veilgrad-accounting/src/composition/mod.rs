//! Rounds, folded to one Gaussian each.

use veilgrad_events::{Adjacency, Folded, NoiseMultiplier, Rounds, SampleRate, Sampling};

mod error;
pub(crate) mod grouping;
pub(crate) mod participation;
mod step;

pub use error::Unsupported;
pub use step::{Sampled, Step};

use grouping::{Grouped, join, largest};
use participation::{Cost, RunSoFar};

/// With more distinct steps than this, methods whose time grows with every distinct step (lattices, smoothed contours)
/// use compositions of at most FEW_STEPS groups of similar steps.
const MOST_STEPS: usize = 2048;
const FEW_STEPS: usize = 1024;
/// With more distinct steps than this, bounds are computed for at most this many groups, unless that would widen those
/// of epsilon by more than LOOSEST, relatively, by estimate.
const MANY_STEPS: usize = 1 << 13;
const LOOSEST: f64 = 3e-4;
/// Lower bounds from groups leave out the cheapest of them, with together this share of the cost.
const NEGLIGIBLE: f64 = 1e-4;
/// A sample of the steps holds this many of the most expensive ones, and as many that represent all others.
const LARGEST_STEPS: usize = 96;

/// The rounds of one or more runs as steps (sampled Gaussians) with their counts: the input of every accountant.
#[derive(Debug, Clone, PartialEq)]
pub struct Composition {
    steps: Vec<(Step, u64)>,
    attained: bool,
    /// Smaller compositions that bound or approximate this one, if it has thousands of distinct steps.
    surrogates: Option<Box<Surrogates>>,
}

/// Smaller compositions in place of one with thousands of distinct steps: one that costs at least as much, and one that
/// costs at most as much.
#[derive(Debug, Clone, PartialEq)]
struct Surrogates {
    above: Composition,
    below: Composition,
    /// About as expensive (no bound), if these have at most FEW_STEPS groups; else they have up to MANY_STEPS, and
    /// surrogates of their own.
    sample: Option<Composition>,
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
        let folded: Result<Vec<_>, _> = rounds.into_iter().map(Folded::try_from).collect();
        Self::of(folded?, adjacency)
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

    pub(crate) fn of_step(step: Step) -> Self {
        Self { steps: vec![(step, 1)], attained: true, surrogates: None }
    }

    /// The steps of all of these, one after another: the runs of one dataset, say.
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
    pub fn mu(&self) -> Option<f64> {
        match self.steps.as_slice() {
            [] => Some(0.0),
            [(Step { sampled: Sampled::Always, z }, 1)] => Some(1.0 / z * (1.0 + f64::EPSILON)),
            _ => None,
        }
    }

    pub(crate) fn split(&self, holds: impl Fn(&Step) -> bool) -> (Self, Self) {
        let (mut some, mut others) = (Fold::default(), Fold::default());
        for (step, count) in &self.steps {
            let part = if holds(step) { &mut some } else { &mut others };
            part.not_attained = !self.attained;
            part.step(*step, *count);
        }
        (some.finish(), others.finish())
    }

    /// Two compositions of at most MANY_STEPS groups, one that costs at least as much as this one and one that costs at
    /// most as much; `None` if this one is small enough for all methods.
    pub(crate) fn enclosing(&self) -> Option<(&Self, &Self)> {
        let close = self.surrogates.as_deref().filter(|found| found.sample.is_none())?;
        Some((&close.above, &close.below))
    }

    /// The upper of the [`enclosing`](Self::enclosing) compositions, or this one.
    pub(crate) fn above(&self) -> &Self {
        self.enclosing().map_or(self, |(above, _)| above)
    }

    /// A composition of few steps that costs at least as much: this one, unless it has thousands of distinct steps.
    pub(crate) fn coarse(&self) -> &Self {
        self.surrogates.as_deref().map_or(self, |found| found.above.coarse())
    }

    /// Few steps that cost at most as much.
    pub(crate) fn coarse_below(&self) -> &Self {
        self.surrogates.as_deref().map_or(self, |found| found.below.coarse_below())
    }

    /// Few steps that cost about as much, where there are thousands of distinct ones. No bound.
    pub(crate) fn sample(&self) -> Option<&Self> {
        let found = self.surrogates.as_deref()?;
        found.sample.as_ref().or_else(|| found.above.sample())
    }

    /// Whether there are thousands of distinct steps.
    pub(crate) const fn has_surrogates(&self) -> bool {
        self.surrogates.is_some()
    }

    /// Whether some pair of neighbouring datasets attains the cost of every step, so that lower bounds are meaningful.
    pub(crate) const fn attained(&self) -> bool {
        self.attained
    }

    pub(crate) fn is_symmetric(&self) -> bool {
        self.steps.iter().all(|(step, _)| !matches!(step.sampled, Sampled::Poisson(_)))
    }

    pub(crate) fn rounds(&self) -> f64 {
        self.steps.iter().map(|(_, count)| *count as f64).sum()
    }

    /// The distinct steps, each with its number.
    pub fn steps(&self) -> &[(Step, u64)] {
        &self.steps
    }
}

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
    fn add(&mut self, (cost, attained): (Cost, bool)) {
        self.not_attained |= !attained;
        match cost {
            Cost::Nothing => {}
            Cost::Always(squares) => self.always(squares),
            Cost::Sampled(step, count) => self.steps.push((step, count)),
        }
    }

    fn step(&mut self, step: Step, count: u64) {
        match step.sampled {
            Sampled::Always => self.always(count as f64 / step.z / step.z),
            _ => self.steps.push((step, count)),
        }
    }

    fn always(&mut self, squares: f64) {
        self.terms += 1;
        // At least the smallest positive number: the square of a huge multiplier overflows to infinity.
        self.always += squares.max(f64::MIN_POSITIVE);
    }

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
        Composition { steps, attained, surrogates: None }
    };
    let surrogates = if steps.len() > MOST_STEPS {
        let close = if steps.len() > many { join(&steps, many, LOOSEST) } else { None };
        match close {
            Some(Grouped { above, below }) => {
                let [above, below] =
                    [above, below].map(|steps| compose(steps, always, attained, usize::MAX));
                Some(Surrogates { above, below, sample: None })
            }
            None => join(&steps, FEW_STEPS, f64::INFINITY).map(|Grouped { above, below }| {
                let (below, sample) = (largest(below, NEGLIGIBLE), Some(few(sample(&steps))));
                Surrogates { above: few(above), below: few(below), sample }
            }),
        }
    } else {
        None
    };
    steps.extend(always);
    Composition { steps, attained, surrogates: surrogates.map(Box::new) }
}

/// The steps with the largest second moments, and of the others one for every so many.
fn sample(steps: &[(Step, u64)]) -> Vec<(Step, u64)> {
    let moment = |(step, count): &(Step, u64)| {
        let q = step.rate();
        *count as f64 * q * q * libm::expm1((1.0 / (step.z * step.z)).min(50.0))
    };
    let mut steps = steps.to_vec();
    steps.sort_by(|a, b| moment(b).total_cmp(&moment(a)));
    let (largest, others) = steps.split_at(LARGEST_STEPS.min(steps.len()));
    let chunks = others.chunks(others.len().div_ceil(LARGEST_STEPS).max(1));
    let middle = |chunk: &[(Step, u64)]| {
        let count = chunk.iter().fold(0u64, |sum, (_, n)| sum.saturating_add(*n));
        chunk.get(chunk.len() / 2).map(|(step, _)| (*step, count))
    };
    largest.iter().copied().chain(chunks.filter_map(middle)).collect()
}
