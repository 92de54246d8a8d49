//! Compositions: the rounds of runs, each folded to one Gaussian.

use std::num::NonZeroU64;

use veilgrad_events::{Adjacency, Folded, NoiseMultiplier, Rounds, SampleRate, Sampling};

mod error;
pub(crate) mod grouping;
pub(crate) mod participation;
mod step;
mod truncation;

pub use error::Unsupported;
pub(crate) use step::StepKey;
pub use step::{Sampled, Step, TruncatedSample};

use grouping::{Grouped, join, largest};
use participation::{Cost, Neighbours, RunSoFar};

/// With more distinct steps than this, methods whose time grows with every distinct step (lattices, smoothed contours)
/// use compositions of at most FEW_STEPS groups of similar steps.
const MOST_STEPS: usize = 2048;
const FEW_STEPS: usize = 1024;
/// With more distinct steps than this, bounds are computed for at most this many groups, unless that is estimated to widen
/// the bounds on epsilon by more than the relative LOOSEST.
const MANY_STEPS: usize = 1 << 13;
const LOOSEST: f64 = 3e-4;
/// Lower bounds from groups leave out the cheapest groups, with together this share of the cost.
const NEGLIGIBLE: f64 = 1e-4;
/// A sample of the steps holds this many of the most expensive ones, and as many that represent all others.
const LARGEST_STEPS: usize = 96;

/// The rounds of one or more runs as steps (sampled Gaussians) with their counts: the input of every accountant.
#[derive(Debug, Clone, PartialEq)]
pub struct Composition {
    steps: Vec<(Step, u64)>,
    /// See [`attained`](Self::attained).
    attained: bool,
    /// Smaller compositions that bound or approximate this one, if it has thousands of distinct steps.
    surrogates: Option<Box<Surrogates>>,
    /// See [`one_change`](Self::one_change).
    one_change: Option<Box<OneChange>>,
}

/// The same rounds for neighbours that one change of a record separates, and how many such changes separate the neighbours of the
/// composition.
#[derive(Debug, Clone, PartialEq)]
struct OneChange {
    composition: Composition,
    count: u64,
}

/// Smaller compositions in place of one with thousands of distinct steps: one that costs at least as much, and one that
/// costs at most as much.
#[derive(Debug, Clone, PartialEq)]
struct Surrogates {
    above: Composition,
    below: Composition,
    /// A composition of typical steps that is about as expensive (not a bound). `None` if `above` and `below` are used in
    /// place of this one by all methods: they may have surrogates of their own.
    sample: Option<Composition>,
}

impl Composition {
    /// Composes the rounds of one run. The queries of each round are folded to one Gaussian on its sample.
    ///
    /// # Guarantee
    /// All queries of a round share one sample, so they become one Gaussian with
    /// `z = (sum_g (S_g/sigma_g)^2)^(-1/2)`, rounded down. Composing them as if each had drawn its own
    /// sample would give a smaller, wrong epsilon.
    ///
    /// # Errors
    /// When a policy has no sound analysis under the adjacency, or a noise multiplier underflows.
    pub fn fold<'a>(
        rounds: impl IntoIterator<Item = &'a Rounds>,
        adjacency: Adjacency,
    ) -> Result<Self, Unsupported> {
        let folded: Result<Vec<_>, _> = rounds.into_iter().map(Folded::try_from).collect();
        Self::of(folded?, adjacency)
    }

    /// Composes the rounds of one run, already folded and in order.
    ///
    /// # Errors
    /// As for [`fold`](Self::fold).
    pub fn of(
        rounds: impl IntoIterator<Item = Folded>,
        adjacency: Adjacency,
    ) -> Result<Self, Unsupported> {
        Self::of_runs(std::iter::once(rounds), adjacency)
    }

    /// Composes several runs, each with its folded rounds in order.
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
        Self::of_group(runs, adjacency, NonZeroU64::MIN)
    }

    /// Composes several runs for neighbours that differ in `records` records: what they cost a person with that many.
    ///
    /// # Guarantee
    /// With Poisson samples, under add-remove and zero-out, the privacy loss of the worst such neighbours (docs/accounting.md).
    ///
    /// # Errors
    /// As for [`fold`](Self::fold), and for several records where a policy has no analysis of groups; then
    /// [`ByTriangle`](crate::ByTriangle) bounds their cost.
    pub fn of_group<R: IntoIterator<Item = Folded>>(
        runs: impl IntoIterator<Item = R>,
        adjacency: Adjacency,
        records: NonZeroU64,
    ) -> Result<Self, Unsupported> {
        let neighbours = Neighbours { adjacency, records };
        let runs: Vec<Vec<Folded>> =
            runs.into_iter().map(|rounds| rounds.into_iter().collect()).collect();
        let mut composition = Self::of_neighbours(&runs, neighbours)?;
        // Random allocation protects a record only if its neighbour lacks it.
        let is_allocated = |rounds: &Folded| matches!(rounds.sampling, Sampling::Allocation { .. });
        let (one, count) = neighbours.one_change();
        if count > 1 && runs.iter().flatten().any(is_allocated) {
            let found = Self::of_neighbours(&runs, one).ok();
            let one_change = found.map(|composition| Box::new(OneChange { composition, count }));
            // `above` stands for the composition where only an upper bound is needed.
            if let Some(found) = composition.surrogates.as_deref_mut()
                && found.sample.is_none()
            {
                found.above.one_change.clone_from(&one_change);
            }
            composition.one_change = one_change;
        }
        Ok(composition)
    }

    fn of_neighbours(runs: &[Vec<Folded>], neighbours: Neighbours) -> Result<Self, Unsupported> {
        let mut fold = Fold::default();
        for rounds in runs {
            let mut run = RunSoFar::default();
            for rounds in rounds {
                fold.add(run.add(rounds, neighbours)?);
            }
            fold.not_attained |= !run.has_whole_epochs();
        }
        Ok(fold.finish())
    }

    /// `rounds` equal rounds with Poisson samples.
    ///
    /// # Errors
    /// As for [`fold`](Self::fold).
    ///
    /// # Example
    /// ```
    /// use veilgrad_accounting::{Accountant, Composition, Tightest};
    /// use veilgrad_events::{Adjacency, Delta, NoiseMultiplier, SampleRate};
    ///
    /// let (rate, noise) = (SampleRate::new(0.01)?, NoiseMultiplier::new(1.0)?);
    /// let rounds = Composition::poisson(rate, noise, 1000, Adjacency::AddRemove)?;
    /// assert!(Tightest.epsilon(&rounds, Delta::new(1e-5)?)?.epsilon < 1.83);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
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
        Self { steps: vec![(step, 1)], attained: true, surrogates: None, one_change: None }
    }

    /// Composes compositions: the runs of one dataset, for example. Where random allocation protects several records, or a
    /// replaced one, only [`of_group`](Self::of_group) and what calls it count that as protection.
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

    /// The mu of Gaussian differential privacy, rounded up; `None` if any step is sampled.
    ///
    /// # Guarantee
    /// The rounds are mu-GDP. Sampling does not lower this mu, because the far tails of a sampled Gaussian are those of one
    /// without sampling; so none is reported for sampled steps.
    pub fn mu(&self) -> Option<f64> {
        if self.one_change.is_some() { None } else { self.mu_of_steps() }
    }

    /// The mu of the steps, rounded up; `None` if any of them is sampled.
    pub(crate) fn mu_of_steps(&self) -> Option<f64> {
        match self.steps.as_slice() {
            [] => Some(0.0),
            [(Step { sampled: Sampled::Always, z }, 1)] => Some(1.0 / z * (1.0 + f64::EPSILON)),
            _ => None,
        }
    }

    /// The same rounds for neighbours that one change of a record separates, and how many of these changes separate the neighbours
    /// of this composition, if its steps do not count random allocation as protection.
    pub(crate) fn one_change(&self) -> Option<(&Self, u64)> {
        self.one_change.as_deref().map(|one| (&one.composition, one.count))
    }

    /// One Gaussian that costs at least as much, if there is random allocation and otherwise no sampling: an epoch costs at most
    /// as much as one round without sampling.
    pub(crate) fn without_allocation(&self) -> Option<Self> {
        let is_allocated = |step: &Step| matches!(step.sampled, Sampled::Allocated(_));
        if !self.steps.iter().any(|(step, _)| is_allocated(step)) {
            return None;
        }
        let mut fold = Fold { not_attained: true, ..Fold::default() };
        for (step, count) in &self.steps {
            let sampled = if is_allocated(step) { Sampled::Always } else { step.sampled };
            fold.step(Step { sampled, ..*step }, *count);
        }
        Some(fold.finish()).filter(|found| found.mu().is_some())
    }

    /// The steps with a property, and all others.
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
        let tight = self.surrogates.as_deref().filter(|found| found.sample.is_none())?;
        Some((&tight.above, &tight.below))
    }

    /// The upper of the [`enclosing`](Self::enclosing) compositions, or this one.
    pub(crate) fn above(&self) -> &Self {
        self.enclosing().map_or(self, |(above, _)| above)
    }

    /// A composition of few steps that costs at least as much: this one, unless it has thousands of distinct steps.
    pub(crate) fn coarse(&self) -> &Self {
        self.surrogates.as_deref().map_or(self, |found| found.above.coarse())
    }

    /// A composition of few steps that costs at most as much.
    pub(crate) fn coarse_below(&self) -> &Self {
        self.surrogates.as_deref().map_or(self, |found| found.below.coarse_below())
    }

    /// A composition of few steps that costs about as much, if there are thousands of distinct ones. Not a bound.
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

    /// Whether adding a record costs as much as removing one.
    pub(crate) fn is_symmetric(&self) -> bool {
        self.steps.iter().all(|(step, _)| match step.sampled {
            Sampled::Always | Sampled::PoissonReplaced(_) | Sampled::FixedReplaced(_) => true,
            Sampled::Truncated(sample) => sample.replaced,
            Sampled::Poisson(_) | Sampled::Allocated(_) | Sampled::PoissonGroup { .. } => false,
        })
    }

    /// About how many standard deviations neighbours are apart, if all losses together were Gaussian. Not a bound.
    pub(crate) fn distance(&self) -> f64 {
        let squares = self.steps.iter().map(|(step, count)| *count as f64 * step.variance());
        squares.sum::<f64>().sqrt()
    }

    pub(crate) fn rounds(&self) -> f64 {
        self.steps.iter().map(|(_, count)| *count as f64).sum()
    }

    /// Whether only a lattice can compose some steps, so that both directions need one.
    pub(crate) fn needs_lattices(&self) -> bool {
        !self.steps.iter().all(|(step, _)| step.has_two_parameters())
    }

    /// How many distinct steps decide what a question may cost: transforms take only so many epochs of random allocation
    /// ([`with_fewer_epochs`](Self::with_fewer_epochs)).
    pub(crate) fn distinct(&self) -> usize {
        let epochs = self.steps.iter().filter(|(step, _)| step.epoch_rounds().is_some()).count();
        self.steps.len() - epochs + epochs.min(grouping::MOST_EPOCHS)
    }

    /// A composition with fewer distinct epochs of random allocation that costs at least as much: similar epochs have the least
    /// noise and the fewest rounds among them. `fits` says whether groups, given by their rounds per epoch, are few enough. `None`
    /// if not even one group is.
    pub(crate) fn with_fewer_epochs(&self, fits: impl Fn(&[u64]) -> bool) -> Option<Self> {
        let steps = grouping::join_epochs(&self.steps, fits)?;
        Some(Self { steps, attained: false, surrogates: None, one_change: None })
    }

    /// The distinct steps, each with its count.
    pub fn steps(&self) -> &[(Step, u64)] {
        &self.steps
    }
}

#[derive(Default)]
struct Fold {
    steps: Vec<(Step, u64)>,
    /// The sum of 1/z^2 of all Gaussians without sampling, which compose to one Gaussian.
    always: f64,
    /// The number of terms of that sum, for its rounding error.
    terms: u64,
    /// Whether some step may cost less than its analysis says.
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
            // Keeps two rows if the count would overflow.
            let joined = sum.checked_add(*count).filter(|_| step.key() == known.key());
            joined.map(|joined| *sum = joined).is_some()
        });
    }

    fn finish(mut self) -> Composition {
        self.join();
        let mut always = None;
        if self.always > 0.0 {
            // Every term is rounded at most three times: its square, a difference, the sum.
            let slack = (3.0 * self.terms as f64 + 8.0) * f64::EPSILON;
            let z = self.always.sqrt().recip() * (1.0 - slack);
            always = Some((Step { sampled: Sampled::Always, z }, 1));
            // A larger slack would exceed the margin of lower bounds.
            self.not_attained |= slack > 1e-9;
        }
        let attained = !self.not_attained;
        let (steps, mut others): (Vec<_>, Vec<_>) =
            self.steps.into_iter().partition(|(step, _)| step.has_two_parameters());
        others.extend(always);
        let is_truncated = |(step, _): &(Step, u64)| matches!(step.sampled, Sampled::Truncated(_));
        if !others.iter().any(is_truncated) {
            return compose(steps, &others, attained, MANY_STEPS);
        }
        let below = |(step, count): &(Step, u64)| match step.sampled {
            Sampled::Truncated(sample) => (Step { sampled: sample.below(), ..*step }, *count),
            _ => (*step, *count),
        };
        let cheaper = steps.iter().chain(&others).map(below);
        let (plain, rest): (Vec<_>, Vec<_>) = cheaper
            .partition(|(step, _)| step.has_two_parameters() && step.sampled != Sampled::Always);
        let below = compose(plain, &rest, attained, MANY_STEPS);
        let above = compose(steps, &others, attained, MANY_STEPS);
        let steps = above.steps.clone();
        let surrogates = Some(Box::new(Surrogates { above, below, sample: None }));
        Composition { steps, attained, surrogates, one_change: None }
    }
}

/// Composes steps of two parameters with others, which are never grouped. Above `many` distinct steps, tight groups are tried as
/// surrogates.
fn compose(
    mut steps: Vec<(Step, u64)>,
    others: &[(Step, u64)],
    attained: bool,
    many: usize,
) -> Composition {
    let without_surrogates = |mut steps: Vec<(Step, u64)>| {
        steps.extend_from_slice(others);
        Composition { steps, attained, surrogates: None, one_change: None }
    };
    let surrogates = if steps.len() > MOST_STEPS {
        let tight = if steps.len() > many { join(&steps, many, LOOSEST) } else { None };
        match tight {
            Some(Grouped { above, below }) => {
                let [above, below] =
                    [above, below].map(|steps| compose(steps, others, attained, usize::MAX));
                Some(Surrogates { above, below, sample: None })
            }
            None => join(&steps, FEW_STEPS, f64::INFINITY).map(|Grouped { above, below }| {
                let [above, below, sample] =
                    [above, largest(below, NEGLIGIBLE), sample(&steps)].map(without_surrogates);
                Surrogates { above, below, sample: Some(sample) }
            }),
        }
    } else {
        None
    };
    steps.extend_from_slice(others);
    Composition { steps, attained, surrogates: surrogates.map(Box::new), one_change: None }
}

/// The steps with the largest second moments, and for every chunk of similar others one step at their mean rate and noise, with
/// the count of the chunk. Chunks have equal shares of the expected number of times that a record is sampled.
fn sample(steps: &[(Step, u64)]) -> Vec<(Step, u64)> {
    let moment = |(step, count): &(Step, u64)| {
        let q = step.rate();
        *count as f64 * q * q * libm::expm1((1.0 / (step.z * step.z)).min(50.0))
    };
    let mut steps = steps.to_vec();
    steps.sort_by(|a, b| moment(b).total_cmp(&moment(a)));
    let mut others = steps.split_off(LARGEST_STEPS.min(steps.len()));
    let octaves_of_noise = |step: &Step| libm::floor(4.0 * libm::log2(step.z)) as i32;
    let key = |(step, _): &(Step, u64)| (step.kind_and_rate().0, octaves_of_noise(step));
    let by_rate = |a: &(Step, u64), b: &(Step, u64)| a.0.rate().total_cmp(&b.0.rate());
    others.sort_by(|a, b| key(a).cmp(&key(b)).then_with(|| by_rate(a, b)));
    let sampled = |(step, count): &(Step, u64)| *count as f64 * step.rate();
    let share = others.iter().map(sampled).sum::<f64>() / LARGEST_STEPS as f64;
    let mut sum = 0.0;
    // A chunk ends where the sum passes a multiple of the share, or where steps are of another kind or noise.
    let chunks = others.chunk_by(|a, b| {
        let before = libm::floor(sum / share);
        sum += sampled(a);
        key(a) == key(b) && libm::floor(sum / share) <= before
    });
    let representative = |chunk: &[(Step, u64)]| {
        let (step, _) = chunk.first()?;
        let count = chunk.iter().fold(0u64, |sum, (_, n)| sum.saturating_add(*n));
        let rate = chunk.iter().map(sampled).sum::<f64>() / count as f64;
        let exponents = chunk.iter().map(|row| sampled(row) / (row.0.z * row.0.z));
        let z = (rate * count as f64 / exponents.sum::<f64>()).sqrt();
        Some((step.with(rate, z), count))
    };
    let representatives: Vec<_> = chunks.filter_map(representative).collect();
    steps.into_iter().chain(representatives).collect()
}
