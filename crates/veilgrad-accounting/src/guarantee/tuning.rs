//! Private tuning: the cost of a random number of runs of which only the best one is released.

use veilgrad_events::{Delta, Epsilon, RawCount, RunCount, RunCountError};

use super::accountant::{Accountant, Guarantee};
use crate::number::bisect;
use crate::profile::Deltas;
use crate::{Composition, Unsupported, work};

/// The distribution of the number of runs. It is public; the number itself is secret.
///
/// # Example
/// ```
/// use veilgrad_accounting::{Accountant, Composition, Tightest, Tuned, Tuning};
/// use veilgrad_events::{Adjacency, Delta, NoiseMultiplier, SampleRate};
///
/// let (rate, noise) = (SampleRate::new(0.01)?, NoiseMultiplier::new(1.0)?);
/// let one_run = Composition::poisson(rate, noise, 1000, Adjacency::AddRemove)?;
/// let tuning = Tuning::logarithmic(10.0)?;
/// let best_of_ten = Tuned { inner: &Tightest, tuning }.epsilon(&one_run, Delta::new(1e-5)?)?;
/// // One run costs 1.83; ten of them, each released, would cost 6.96.
/// assert!(best_of_ten.epsilon > 2.0 && best_of_ten.epsilon < 3.5);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tuning {
    law: RunLaw,
    mean: f64,
}

/// The family of a distribution of the number of runs, with its parameters.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum RunLaw {
    /// The truncated negative binomial distribution: K = 1, 2, ... with probability in proportion to
    /// `(1 - gamma)^k` times the product of `(l + eta)/(l + 1)` over `l = 0, ..., k - 1` (for `eta = 0`: to `(1 - gamma)^k / k`).
    NegativeBinomial {
        /// The shape, above -1: 1 for the geometric distribution, 0 for the logarithmic one.
        eta: f64,
        /// In (0, 1].
        gamma: f64,
    },
    /// The Poisson distribution. There may be no run at all, and then nothing is released.
    Poisson,
}

impl Tuning {
    /// The truncated negative binomial distribution with this shape and mean.
    ///
    /// # Errors
    /// When eta is not above -1 or the mean not at least 1, or either is so large that the distribution is out of range.
    pub fn negative_binomial(eta: f64, mean: f64) -> Result<Self, Unsupported> {
        if !(eta > -1.0 && eta <= 1000.0) {
            return Err(Unsupported::new(format!("eta {eta} is not above -1 and at most 1000")));
        }
        if !(1.0..=1e9).contains(&mean) {
            return Err(Unsupported::new(format!(
                "a mean of {mean} runs is not between 1 and 1e9: at least one run takes place"
            )));
        }
        // The mean decreases with gamma, from infinity at 0 to 1 at 1.
        let is_above = |log: f64| expected_runs(eta, log.exp()) > mean;
        let (_, log) = bisect((-700.0, 0.0), 200, is_above);
        let gamma = if mean == 1.0 { 1.0 } else { log.exp() };
        let law = RunLaw::NegativeBinomial { eta, gamma };
        // What counts is the mean at this gamma.
        let mean = if gamma == 1.0 { 1.0 } else { expected_runs(eta, gamma) };
        Ok(Self { law, mean })
    }

    /// The geometric distribution with this mean.
    ///
    /// # Errors
    /// When the mean is below 1.
    pub fn geometric(mean: f64) -> Result<Self, Unsupported> {
        Self::negative_binomial(1.0, mean)
    }

    /// The logarithmic distribution with this mean.
    ///
    /// # Errors
    /// When the mean is below 1.
    pub fn logarithmic(mean: f64) -> Result<Self, Unsupported> {
        Self::negative_binomial(0.0, mean)
    }

    /// The Poisson distribution with this mean.
    ///
    /// # Errors
    /// When the mean is not positive.
    pub fn poisson(mean: f64) -> Result<Self, Unsupported> {
        match mean > 0.0 && mean <= 1e9 {
            true => Ok(Self { law: RunLaw::Poisson, mean }),
            false => Err(Unsupported::new(format!("a mean of {mean} runs is not in (0, 1e9]"))),
        }
    }

    /// The tuning whose number of runs has this distribution, as a ledger stores it.
    #[must_use]
    pub fn of(count: RunCount) -> Self {
        let negative_binomial = |eta, gamma| Self {
            law: RunLaw::NegativeBinomial { eta, gamma },
            mean: if gamma == 1.0 { 1.0 } else { expected_runs(eta, gamma) },
        };
        match count.raw() {
            RawCount::Geometric { gamma } => negative_binomial(1.0, gamma),
            RawCount::Logarithmic { gamma } => negative_binomial(0.0, gamma),
            RawCount::Poisson { mean } => Self { law: RunLaw::Poisson, mean },
        }
    }

    /// The distribution, for a ledger and to draw from: [`of`](Self::of) gives back this tuning.
    ///
    /// # Errors
    /// When the number of runs cannot be drawn exactly: for an eta other than 0 and 1, and for a Poisson mean that is not
    /// a multiple of 2^-20.
    pub fn run_count(&self) -> Result<RunCount, Unsupported> {
        let found = match self.law {
            RunLaw::Poisson => RunCount::poisson(self.mean),
            RunLaw::NegativeBinomial { eta: 1.0, gamma } => RunCount::geometric(gamma),
            RunLaw::NegativeBinomial { eta: 0.0, gamma } => RunCount::logarithmic(gamma),
            RunLaw::NegativeBinomial { eta, .. } => {
                return Err(Unsupported::new(format!(
                    "a number of runs with eta {eta} cannot be drawn: use the geometric, logarithmic or Poisson \
                     distribution"
                )));
            }
        };
        found.map_err(|error: RunCountError| Unsupported::new(error.to_string()))
    }

    /// The expected number of runs.
    #[must_use]
    pub const fn mean_runs(&self) -> f64 {
        self.mean
    }

    /// The distribution.
    #[must_use]
    pub const fn law(&self) -> RunLaw {
        self.law
    }

    /// What the choice adds to the epsilon of one run at `delta / mean`, rounded up.
    fn choice(&self, one_run: &Composition) -> f64 {
        let mut deltas = Deltas::new(one_run, LATTICES, work::PROFILE);
        match self.law {
            RunLaw::Poisson => self.mean * deltas.at(0.0) * ROUNDED,
            RunLaw::NegativeBinomial { gamma: 1.0, .. } => 0.0,
            RunLaw::NegativeBinomial { eta, gamma } => {
                let odds = (1.0 - gamma) / gamma * ROUNDED;
                // Any epsilon gives a bound; the best one is where both terms of the maximum are equal.
                let mut ratio = |epsilon: f64| libm::log1p(odds * deltas.at(epsilon)) * ROUNDED;
                let at_zero = ratio(0.0);
                let (mut low, mut high, mut best) = (0.0, at_zero, at_zero);
                for _ in 0..HALVINGS {
                    let middle = 0.5 * (low + high);
                    let found = ratio(middle);
                    best = f64::min(best, found.max(middle));
                    if found > middle { low = middle } else { high = middle }
                }
                (1.0 + eta) * best * ROUNDED
            }
        }
    }
}

/// Lattices in each direction for the profile of one run.
const LATTICES: usize = 3;
/// Halvings of the interval in which the best epsilon of a choice lies.
const HALVINGS: u32 = 24;
/// Covers the rounding errors of a few operations.
const ROUNDED: f64 = 1.0 + 1e-13;

/// The mean of the truncated negative binomial distribution.
fn expected_runs(eta: f64, gamma: f64) -> f64 {
    let log = gamma.ln();
    let factor = if eta == 0.0 { -1.0 / log } else { -eta / libm::expm1(eta * log) };
    (1.0 - gamma) / gamma * factor
}

/// The accountant of a tuning: for compositions of one run it gives the cost of releasing the best of a random number of
/// such runs.
///
/// # Guarantee
/// An upper bound on the epsilon of everything that leaves the tuning, if only the output of the run with the best score does,
/// every run is independent of the others, the number of runs is drawn from the distribution and stays secret, and scores
/// come from public data or from the run itself (docs/accounting.md).
#[derive(Clone, Copy)]
pub struct Tuned<'a> {
    /// The accountant of one run. It must be one of the composition itself: for several records of one person that have no
    /// composition of their own, put [`ByTriangle`](super::triangle::ByTriangle) around the tuning, not into it.
    pub inner: &'a dyn Accountant,
    /// How many runs there are.
    pub tuning: Tuning,
}

impl Tuned<'_> {
    /// The guarantee at `delta`, given what the choice adds to the epsilon of one run.
    fn epsilon_with(
        &self,
        choice: f64,
        composition: &Composition,
        delta: Delta,
    ) -> Result<Guarantee, Unsupported> {
        let share = delta.get() / (self.tuning.mean * ROUNDED).max(f64::MIN_POSITIVE);
        // A delta of 1 or more would be no guarantee at all.
        let share = Delta::new(if share < 0.5 { share } else { 0.5 })?;
        let found = self.inner.epsilon(composition, share)?;
        let epsilon = (found.epsilon + choice) * ROUNDED;
        Ok(Guarantee { epsilon, epsilon_lower: None, delta: delta.get(), ..found })
    }

    /// The guarantee at `epsilon`, given what the choice adds to the epsilon of one run.
    fn delta_with(&self, choice: f64, composition: &Composition, epsilon: Epsilon) -> Guarantee {
        // What the choice leaves of epsilon, for one run.
        let left = epsilon.get() / ROUNDED - choice;
        let one = Epsilon::new(left).map_or(1.0, |left| self.inner.delta(composition, left).delta);
        let delta = one * self.tuning.mean * ROUNDED;
        let delta = if delta < 1.0 { delta } else { 1.0 };
        let (epsilon, accountant) = (epsilon.get(), self.name());
        Guarantee { epsilon, epsilon_lower: None, delta, accountant, method: None }
    }
}

impl Accountant for Tuned<'_> {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn epsilon(&self, composition: &Composition, delta: Delta) -> Result<Guarantee, Unsupported> {
        self.epsilon_with(self.tuning.choice(composition), composition, delta)
    }

    fn delta(&self, composition: &Composition, epsilon: Epsilon) -> Guarantee {
        self.delta_with(self.tuning.choice(composition), composition, epsilon)
    }

    fn prepared<'a>(&'a self, composition: &'a Composition) -> Option<Box<dyn Accountant + 'a>> {
        let choice = self.tuning.choice(composition);
        Some(Box::new(TunedOnce { tuned: *self, composition, choice }))
    }
}

/// A [`Tuned`] that knows what the choice adds for one composition.
struct TunedOnce<'a> {
    tuned: Tuned<'a>,
    composition: &'a Composition,
    choice: f64,
}

impl TunedOnce<'_> {
    fn choice(&self, composition: &Composition) -> f64 {
        match std::ptr::eq(self.composition, composition) || self.composition == composition {
            true => self.choice,
            false => self.tuned.tuning.choice(composition),
        }
    }
}

impl Accountant for TunedOnce<'_> {
    fn name(&self) -> &'static str {
        self.tuned.name()
    }

    fn epsilon(&self, composition: &Composition, delta: Delta) -> Result<Guarantee, Unsupported> {
        self.tuned.epsilon_with(self.choice(composition), composition, delta)
    }

    fn delta(&self, composition: &Composition, epsilon: Epsilon) -> Guarantee {
        self.tuned.delta_with(self.choice(composition), composition, epsilon)
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use super::*;
    use crate::Tightest;
    use crate::guarantee::claim::Attacker;
    use crate::guarantee::triangle::ByTriangle;
    use veilgrad_events::{Adjacency, NoiseMultiplier, SampleRate};

    fn base() -> Composition {
        let (rate, noise) =
            (SampleRate::new(256.0 / 60000.0).unwrap(), NoiseMultiplier::new(1.1).unwrap());
        Composition::poisson(rate, noise, 14040, Adjacency::AddRemove).unwrap()
    }

    /// Prints its table with `--nocapture`.
    #[allow(clippy::print_stdout)]
    #[test]
    fn tuned_epsilons_are_those_of_the_closed_formula() {
        let rows = [
            (0.0, [2.958, 3.478, 3.892]),
            (-0.5, [2.885, 3.302, 3.632]),
            (1.0, [3.026, 3.714, 4.315]),
        ];
        let delta = Delta::new(1e-5).unwrap();
        let (mut found_rows, mut expected_rows) = (Vec::new(), Vec::new());
        for (eta, expected) in rows {
            for (mean, expected) in [3.0, 10.0, 30.0].into_iter().zip(expected) {
                let tuning = Tuning::negative_binomial(eta, mean).unwrap();
                assert!((tuning.mean_runs() / mean - 1.0).abs() < 1e-9);
                let found = Tuned { inner: &Tightest, tuning }.epsilon(&base(), delta).unwrap();
                println!("eta {eta:>4}, mean {mean:>2}: {:.4}, expected {expected}", found.epsilon);
                // All are rounded up but one, 2.88500..., which is rounded to the nearest number.
                let digits = 1e3 * found.epsilon;
                let rounded = if expected == 2.885 { digits.round() } else { digits.ceil() };
                found_rows.push((eta, mean, rounded / 1e3));
                expected_rows.push((eta, mean, expected));
            }
        }
        assert_eq!(found_rows, expected_rows);
    }

    /// The choice among runs takes more work than the cost of one run, and does not depend on delta.
    #[test]
    fn what_a_choice_adds_is_computed_once_for_many_deltas() {
        let tuned = Tuned { inner: &Tightest, tuning: Tuning::logarithmic(10.0).unwrap() };
        let (base, zero) = (base(), Epsilon::new(3.0).unwrap());
        let spent = |question: &dyn Fn()| {
            let before = work::spent();
            question();
            work::spent() - before
        };
        let choice = spent(&|| _ = tuned.tuning.choice(&base));
        let attack = spent(&|| _ = Attacker::by(&tuned, &base));
        let plain = spent(&|| _ = Attacker::by(&Tightest, &base));
        assert!(choice > 0 && attack < 2 * plain + 2 * choice, "{choice} {attack} {plain}");
        let group = ByTriangle { inner: &tuned, records: NonZeroU64::new(3).unwrap() };
        let delta = Delta::new(1e-5).unwrap();
        let by_tuned = spent(&|| _ = group.epsilon(&base, delta));
        let group = ByTriangle { inner: &Tightest, ..group };
        let by_one = spent(&|| _ = group.epsilon(&base, delta));
        assert!(by_tuned < 2 * by_one + 2 * choice, "{choice} {by_tuned} {by_one}");
        // The same answers, for the composition and for any other.
        let other = Composition::join(&[base.clone(), base.clone()]);
        let prepared = tuned.prepared(&base).unwrap();
        for rounds in [&base, &other] {
            assert_eq!(prepared.epsilon(rounds, delta), tuned.epsilon(rounds, delta));
            assert_eq!(prepared.delta(rounds, zero), tuned.delta(rounds, zero));
        }
    }

    #[test]
    fn more_runs_less_noise_more_rounds_and_a_smaller_delta_cost_more() {
        let cost = |mean: f64, z: f64, rounds: u64, delta: f64| {
            let (rate, noise) = (SampleRate::new(0.01).unwrap(), NoiseMultiplier::new(z).unwrap());
            let one = Composition::poisson(rate, noise, rounds, Adjacency::AddRemove).unwrap();
            let delta = Delta::new(delta).unwrap();
            [Tuning::logarithmic(mean), Tuning::geometric(mean), Tuning::poisson(mean)].map(
                |tuning| {
                    let tuned = Tuned { inner: &Tightest, tuning: tuning.unwrap() };
                    tuned.epsilon(&one, delta).unwrap().epsilon
                },
            )
        };
        let base = cost(5.0, 1.0, 500, 1e-5);
        for (what, found) in [
            ("more runs", cost(6.0, 1.0, 500, 1e-5)),
            ("less noise", cost(5.0, 0.95, 500, 1e-5)),
            ("more rounds", cost(5.0, 1.0, 550, 1e-5)),
            ("a smaller delta", cost(5.0, 1.0, 500, 0.8e-5)),
        ] {
            assert!(
                found.iter().zip(base).all(|(found, base)| *found > base),
                "{what}: {found:?} {base:?}"
            );
        }
    }

    #[test]
    fn delta_is_the_inverse_of_epsilon() {
        let (delta, zero) = (Delta::new(1e-5).unwrap(), Epsilon::new(0.0).unwrap());
        for tuning in [Tuning::logarithmic(10.0), Tuning::geometric(3.0), Tuning::poisson(5.0)] {
            let tuning = tuning.unwrap();
            let tuned = Tuned { inner: &Tightest, tuning };
            let epsilon = tuned.epsilon(&base(), delta).unwrap().epsilon;
            let found = tuned.delta(&base(), Epsilon::new(epsilon).unwrap()).delta;
            assert!((found / 1e-5 - 1.0).abs() < 1e-3, "{tuning:?}: {found}");
            // The choice alone costs more than nothing.
            assert_eq!(tuned.delta(&base(), zero).delta, 1.0);
        }
    }

    /// The mean from the probabilities of the distribution.
    #[test]
    fn means_are_those_of_the_probabilities() {
        for (eta, mean) in [(0.0, 3.0), (1.0, 10.0), (-0.5, 2.5), (2.0, 7.0), (0.5, 1.2)] {
            let tuning = Tuning::negative_binomial(eta, mean).unwrap();
            let RunLaw::NegativeBinomial { gamma, .. } = tuning.law() else { panic!() };
            let (mut weight, mut total, mut first) = (1.0, 0.0, 0.0);
            for k in 1..200_000 {
                let k = f64::from(k);
                total += weight;
                first += k * weight;
                weight *= (1.0 - gamma) * (k + eta) / (k + 1.0);
            }
            assert!((first / total - mean).abs() < 1e-8 * mean, "{eta} {mean}: {}", first / total);
        }
        assert_eq!(Tuning::geometric(1.0).unwrap().mean_runs(), 1.0);
        for (eta, mean) in [(-1.0, 3.0), (f64::NAN, 3.0), (0.0, 0.9), (0.0, f64::NAN)] {
            assert!(Tuning::negative_binomial(eta, mean).is_err(), "{eta} {mean}");
        }
        assert!(Tuning::poisson(0.0).is_err() && Tuning::poisson(0.1).is_ok());
    }

    #[test]
    fn what_a_ledger_stores_is_the_tuning_that_was_planned() {
        for mean in [1.0, 1.5, 10.0, 300.0] {
            for tuning in
                [Tuning::geometric(mean), Tuning::logarithmic(mean), Tuning::poisson(mean)]
            {
                let tuning = tuning.unwrap();
                assert_eq!(Tuning::of(tuning.run_count().unwrap()), tuning, "{mean}");
            }
        }
        assert!(Tuning::negative_binomial(0.5, 3.0).unwrap().run_count().is_err());
        assert!(Tuning::poisson(0.1).unwrap().run_count().is_err());
    }

    /// A mechanism with two outputs, and the exact law of the best of K of them.
    #[test]
    fn no_tuned_randomised_response_exceeds_the_bound() {
        // Randomised response with epsilon 1 has a profile of tanh(1/2)-like closed form; its best-of-K law is explicit.
        for (eta, mean) in [(0.0, 5.0), (1.0, 4.0), (-0.5, 3.0)] {
            let tuning = Tuning::negative_binomial(eta, mean).unwrap();
            let RunLaw::NegativeBinomial { gamma, .. } = tuning.law() else { panic!() };
            let e = 1f64.exp();
            let (p, q) = (e / (1.0 + e), 1.0 / (1.0 + e));
            // P(K runs all give the worse output): the generating function at its probability.
            let all_worse = |worse: f64| {
                let (mut weight, mut total, mut sum, mut power) = (1.0, 0.0, 0.0, worse);
                for k in 1..100_000 {
                    let k = f64::from(k);
                    total += weight;
                    sum += weight * power;
                    power *= worse;
                    weight *= (1.0 - gamma) * (k + eta) / (k + 1.0);
                }
                sum / total
            };
            let (with, without) = (1.0 - all_worse(q), 1.0 - all_worse(p));
            // The formula with the profile (p - e^x q)_+ of randomised response.
            let profile = |x: f64| (p - x.exp() * q).max(0.0);
            let odds = 1.0 / gamma - 1.0;
            let (low, high) = bisect((0.0, 5.0), 60, |x| x.exp_m1() < odds * profile(x));
            let choice = (1.0 + eta) * high.max(low);
            for delta in [0.01, 0.05, 0.2] {
                let share = delta / tuning.mean_runs();
                let (_, one) = bisect((0.0, 1.0), 60, |x| profile(x) > share);
                let bound = choice + one;
                for (a, b) in [(with, without), (1.0 - without, 1.0 - with)] {
                    let exact = a - bound.exp() * b;
                    assert!(exact <= delta + 1e-12, "{eta} {mean} {delta}: {exact}");
                }
            }
        }
    }
}
