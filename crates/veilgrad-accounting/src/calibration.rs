//! Calibration: the noise multiplier, sampling rate or number of rounds that keeps a budget.

use std::ops::RangeInclusive;

use veilgrad_events::{Delta, Epsilon, NoiseMultiplier, SampleRate};

use crate::guarantee::{Accountant, Guarantee, Rdp, advantage, true_positive_rate};
use crate::guess::Guess;
use crate::profile::Method;
use crate::work::{self, Allowance};
use crate::{Composition, Unsupported};

/// Relative distance of an answer from the optimum.
const TOLERANCE: f64 = 1e-6;
/// Smallest and largest tolerance where the accountant's bounds on epsilon are further apart than `TOLERANCE`.
const ROUGH_TOLERANCE: (f64, f64) = (2e-5, 3e-3);
/// How many times as far as they are apart rough bounds must be from the budget, so that the next secant point hardly changes.
const CLEARANCE: f64 = 3.0;
/// First relative step of the search, which starts at a guess.
const FIRST_STRIDE: f64 = 0.05;
/// Relative tolerance of that starting point.
const GUESS_TOLERANCE: f64 = 0.01;
/// Budgets that get the full amount of work; others get less.
const USUAL_EPSILON: RangeInclusive<f64> = 1e-2..=50.0;
const USUAL_DELTA: RangeInclusive<f64> = 1e-20..=1e-2;
const NOISE: (f64, f64) = (1e-2, 1e7);
const LEAST_RATE: f64 = 1e-12;
/// A search for rounds begins here at least: fewer rounds take longest to account for, and are rarely the answer.
const FEW_ROUNDS: u64 = 64;
/// A search for rounds that gets this far reports that any number of rounds fits.
const UNLIMITED_ROUNDS: u64 = 1 << 53;

/// A target (epsilon, delta) to calibrate for: finds the noise multiplier, sampling rate or number of rounds that keeps
/// it.
///
/// # Example
/// ```
/// use veilgrad_accounting::{Composition, PrivacyTarget, Tightest};
/// use veilgrad_events::{Adjacency, Delta, Epsilon, SampleRate};
///
/// let target = PrivacyTarget { epsilon: Epsilon::new(3.0)?, delta: Delta::new(1e-5)?, accountant: &Tightest };
/// let rate = SampleRate::new(0.01)?;
/// let noise = target.noise_multiplier(|noise| Composition::poisson(rate, noise, 1000, Adjacency::AddRemove))?;
/// assert!((0.81..0.82).contains(&noise.get()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy)]
pub struct PrivacyTarget<'a> {
    /// The budget.
    pub epsilon: Epsilon,
    /// The delta at which it holds.
    pub delta: Delta,
    /// The accountant that computes epsilon.
    pub accountant: &'a dyn Accountant,
}

impl PrivacyTarget<'_> {
    /// By how much a composition exceeds the budget; infinite if the accountant fails.
    fn excess_over_budget(
        &self,
        composition: Result<Composition, Unsupported>,
        least_tolerance: f64,
    ) -> Excess {
        let found = composition.and_then(|composition| {
            let ask = |units| {
                let _allowance = Allowance::for_steps(units, composition.distinct());
                self.accountant.epsilon(&composition, self.delta)
            };
            let units = self.share_of(work::SEARCH_QUESTION);
            let rough = units / work::ROUGH;
            // Far from the budget, rough bounds are enough; a bound from one side decides nothing.
            if self.accountant.bounds_from_below()
                && composition.attained()
                && least_tolerance <= TOLERANCE
                && work::left() > rough
                && let Ok(found) = ask(rough)
                && self.is_decided_by(&found)
            {
                return Ok((found.epsilon, TOLERANCE));
            }
            ask(units).map(|found| (found.epsilon, self.tolerance(&found)))
        });
        let (epsilon, tolerance) = found.unwrap_or((f64::INFINITY, TOLERANCE));
        let epsilon = if epsilon.is_nan() { f64::INFINITY } else { epsilon };
        Excess { value: epsilon - self.epsilon.get(), tolerance: tolerance.max(least_tolerance) }
    }

    /// Whether bounds tell which side of the budget a composition is on, by more than they are apart.
    fn is_decided_by(&self, found: &Guarantee) -> bool {
        let Some(lower) = found.epsilon_lower else { return false };
        let (budget, clearance) = (self.epsilon.get(), CLEARANCE * (found.epsilon - lower));
        lower - budget > clearance || budget - found.epsilon > clearance
    }

    /// The work that a search may take: less for budgets outside the usual range.
    fn share_of(&self, units: u64) -> u64 {
        let (epsilon, delta) = (self.epsilon.get(), self.delta.get());
        let usual = USUAL_EPSILON.contains(&epsilon) && USUAL_DELTA.contains(&delta);
        if usual { units } else { units / work::UNUSUAL }
    }

    /// The tolerance of a search: not below the accuracy of the accountant's own bounds.
    fn tolerance(&self, found: &Guarantee) -> f64 {
        let (least, most) = ROUGH_TOLERANCE;
        match found.epsilon_lower {
            Some(lower) if found.method == Some(Method::ClosedForm) || !(lower > 0.0) => TOLERANCE,
            Some(lower) => {
                let gap = (found.epsilon - lower) / found.epsilon;
                match found.method {
                    _ if gap < TOLERANCE => TOLERANCE,
                    // A smoothed contour's upper bound is about a hundred times closer to the truth than its lower one.
                    Some(Method::Contour) => least,
                    _ => (0.3 * gap).clamp(least, most),
                }
            }
            // The RDP bound, after everything else failed.
            None if found.accountant != self.accountant.name() => 10.0 * least,
            None if found.method == Some(Method::Lattice) => least,
            None => TOLERANCE,
        }
    }

    /// The smallest noise multiplier that keeps the budget.
    ///
    /// # Guarantee
    /// Accounting for the answer gives at most the target. The answer is within a relative 1e-6 of the smallest multiplier
    /// for which the accountant says so, or within 3e-3 where the accountant's upper and lower bound are further apart
    /// than 1e-6. The epsilon of `with` must decrease with the noise.
    ///
    /// # Errors
    /// When no multiplier keeps the budget, or the accountant does not support the rounds.
    pub fn noise_multiplier(
        &self,
        with: impl Fn(NoiseMultiplier) -> Result<Composition, Unsupported>,
    ) -> Result<NoiseMultiplier, Unsupported> {
        solve_noise(self, with)
    }

    /// The largest sampling rate that keeps the budget.
    ///
    /// # Guarantee
    /// As for [`noise_multiplier`](Self::noise_multiplier). The epsilon of `with` must increase with the rate.
    ///
    /// # Errors
    /// When no rate keeps the budget, or the accountant does not support the rounds.
    pub fn rate(
        &self,
        with: impl Fn(SampleRate) -> Result<Composition, Unsupported>,
    ) -> Result<SampleRate, Unsupported> {
        solve_rate(self, with)
    }

    /// The largest number of rounds that keeps the budget; 0 if one round exceeds it. If `with` appends the rounds to
    /// those of a ledger, this is how many more fit.
    ///
    /// # Guarantee
    /// Accounting for the answer gives at most the target, and one more round exceeds it. Where the accountant's upper and
    /// lower bound are further apart than a relative 1e-6, the answer may be too small by a relative 3e-3.
    ///
    /// # Errors
    /// When the accountant does not support the rounds, or the budget is never used up, whatever the number of rounds.
    pub fn rounds(
        &self,
        with: impl Fn(u64) -> Result<Composition, Unsupported>,
    ) -> Result<u64, Unsupported> {
        solve_rounds(self, with)
    }
}

/// A target for the worst attacker: finds the noise multiplier, sampling rate or number of rounds that keeps any membership
/// inference attack on one record within it.
///
/// # Example
/// ```
/// use veilgrad_accounting::{Composition, RiskTarget, advantage};
/// use veilgrad_events::{Adjacency, SampleRate};
///
/// let rate = SampleRate::new(0.01)?;
/// let rounds = |noise| Composition::poisson(rate, noise, 1000, Adjacency::AddRemove);
/// let noise = RiskTarget::advantage(0.2)?.noise_multiplier(rounds)?;
/// assert!(advantage(&rounds(noise)?) <= 0.2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RiskTarget {
    /// The false positive rate at which the true positive rate is limited; `None` limits the advantage.
    false_positive_rate: Option<f64>,
    /// The largest true positive rate or advantage.
    most: f64,
}

impl RiskTarget {
    /// Limits the advantage: the true positive rate of any attack minus its false positive rate.
    ///
    /// # Errors
    /// When it is not in (0, 1).
    pub fn advantage(most: f64) -> Result<Self, Unsupported> {
        match most > 0.0 && most < 1.0 {
            true => Ok(Self { false_positive_rate: None, most }),
            false => Err(Unsupported::new(format!("advantage {most} is not in (0, 1)"))),
        }
    }

    /// Limits the true positive rate of any attack with this false positive rate.
    ///
    /// # Errors
    /// When the rates are not in (0, 1), or guessing at random exceeds the limit.
    pub fn true_positive_rate(most: f64, false_positive_rate: f64) -> Result<Self, Unsupported> {
        match 0.0 < false_positive_rate && false_positive_rate < most && most < 1.0 {
            true => Ok(Self { false_positive_rate: Some(false_positive_rate), most }),
            false => Err(Unsupported::new(format!(
                "true positive rate {most} at false positive rate {false_positive_rate}: both must be in (0, 1) and \
                 the first one larger, since guessing at random attains equality"
            ))),
        }
    }

    /// Limits what an attacker comes to believe: one who takes it for `prior` likely that the record is in the data, and who
    /// accuses with this false positive rate, takes it for at most `most` likely after accusing, whatever the attack.
    ///
    /// By Bayes' rule that is a limit on the true positive rate: `T = most/(1 - most) (1 - prior)/prior F`.
    ///
    /// # Errors
    /// When the numbers are not in (0, 1), `most` is not above `prior`, or no attack could exceed the limit.
    ///
    /// # Example
    /// ```
    /// use veilgrad_accounting::RiskTarget;
    ///
    /// // From 10 % to at most 40 %: odds may rise from 1:9 to 2:3, six times.
    /// let target = RiskTarget::posterior(0.1, 0.4, 0.01)?;
    /// assert!((target.limit() / 0.06 - 1.0).abs() < 1e-12);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn posterior(prior: f64, most: f64, false_positive_rate: f64) -> Result<Self, Unsupported> {
        let is_open = |value: f64| value > 0.0 && value < 1.0;
        if !(is_open(prior) && is_open(most) && is_open(false_positive_rate) && prior < most) {
            return Err(Unsupported::new(format!(
                "posterior {most} from prior {prior} at false positive rate {false_positive_rate}: all must be in (0, 1) \
                 and the posterior above the prior, since an attacker who guesses keeps the prior"
            )));
        }
        let odds = most / (1.0 - most) * ((1.0 - prior) / prior);
        // Rounded down, so that the target is kept.
        let rate = odds * false_positive_rate * (1.0 - 8.0 * f64::EPSILON);
        if rate >= 1.0 {
            return Err(Unsupported::new(format!(
                "no attack with false positive rate {false_positive_rate} turns a prior of {prior} into more than {most}, \
                 whatever the noise: choose a smaller false positive rate"
            )));
        }
        Self::true_positive_rate(rate, false_positive_rate)
    }

    /// The largest true positive rate or advantage.
    #[must_use]
    pub const fn limit(&self) -> f64 {
        self.most
    }

    /// The false positive rate at which the true positive rate is limited; `None` if the advantage is.
    #[must_use]
    pub const fn false_positive_rate(&self) -> Option<f64> {
        self.false_positive_rate
    }

    /// What the worst attacker achieves, rounded up: the advantage or the true positive rate.
    pub fn risk(&self, composition: &Composition) -> f64 {
        match self.false_positive_rate {
            None => advantage(composition),
            Some(rate) => true_positive_rate(composition, rate),
        }
    }

    /// The smallest noise multiplier that keeps the target.
    ///
    /// # Guarantee
    /// The risk at the answer is at most the target. It is within about a relative 1e-4 of the smallest such multiplier. The risk
    /// of `with` must decrease with the noise.
    ///
    /// # Errors
    /// When no multiplier keeps the target, or the rounds are not supported.
    pub fn noise_multiplier(
        &self,
        with: impl Fn(NoiseMultiplier) -> Result<Composition, Unsupported>,
    ) -> Result<NoiseMultiplier, Unsupported> {
        solve_noise(self, with)
    }

    /// The largest sampling rate that keeps the target.
    ///
    /// # Errors
    /// When no rate keeps the target, or the rounds are not supported.
    pub fn rate(
        &self,
        with: impl Fn(SampleRate) -> Result<Composition, Unsupported>,
    ) -> Result<SampleRate, Unsupported> {
        solve_rate(self, with)
    }

    /// The largest number of rounds that keeps the target; 0 if one round exceeds it.
    ///
    /// # Errors
    /// When the rounds are not supported, or the target is never reached, whatever the number of rounds.
    pub fn rounds(
        &self,
        with: impl Fn(u64) -> Result<Composition, Unsupported>,
    ) -> Result<u64, Unsupported> {
        solve_rounds(self, with)
    }
}

/// The tolerance of searches for a risk: that of its upper bounds.
const RISK_TOLERANCE: f64 = 1e-4;

/// What a search must keep. Methods other than `excess` decide only how long it takes.
trait Goal {
    /// By how much a composition exceeds the goal; infinite if that cannot be computed.
    fn excess(&self, composition: Result<Composition, Unsupported>, least_tolerance: f64)
    -> Excess;

    /// The work that the search may take.
    fn work(&self) -> u64;

    /// The goal in words, after "keeps".
    fn words(&self) -> String;

    /// A goal that is quicker to check and gives a starting point, if there is one.
    fn quick(&self) -> Option<PrivacyTarget<'static>>;
}

impl Goal for PrivacyTarget<'_> {
    fn excess(
        &self,
        composition: Result<Composition, Unsupported>,
        least_tolerance: f64,
    ) -> Excess {
        self.excess_over_budget(composition, least_tolerance)
    }

    fn work(&self) -> u64 {
        self.share_of(work::SEARCH)
    }

    fn words(&self) -> String {
        format!("epsilon {} at delta {:e}", self.epsilon.get(), self.delta.get())
    }

    fn quick(&self) -> Option<PrivacyTarget<'static>> {
        Some(PrivacyTarget { epsilon: self.epsilon, delta: self.delta, accountant: &Guess })
    }
}

impl Goal for RiskTarget {
    fn excess(
        &self,
        composition: Result<Composition, Unsupported>,
        least_tolerance: f64,
    ) -> Excess {
        let risk = composition.map_or(f64::INFINITY, |composition| self.risk(&composition));
        let value = if risk.is_nan() { f64::INFINITY } else { risk - self.most };
        Excess { value, tolerance: RISK_TOLERANCE.max(least_tolerance) }
    }

    fn work(&self) -> u64 {
        work::SEARCH
    }

    fn words(&self) -> String {
        match self.false_positive_rate {
            None => format!("the advantage within {}", self.most),
            Some(rate) => {
                format!("the true positive rate within {} at false positive rate {rate}", self.most)
            }
        }
    }

    fn quick(&self) -> Option<PrivacyTarget<'static>> {
        // An advantage of a means epsilon 0 at delta a; a true positive rate allows a little more.
        let delta = Delta::new(0.9 * (self.most - self.false_positive_rate.unwrap_or(0.0))).ok()?;
        Some(PrivacyTarget { epsilon: Epsilon::new(0.0).ok()?, delta, accountant: &Rdp })
    }
}

fn solve_noise(
    goal: &dyn Goal,
    with: impl Fn(NoiseMultiplier) -> Result<Composition, Unsupported>,
) -> Result<NoiseMultiplier, Unsupported> {
    let multiplier = |log: f64| NoiseMultiplier::new(log.exp()).map_err(Unsupported::from);
    let with = |log: f64| multiplier(log).and_then(&with);
    let none = || format!("no noise multiplier up to {:e}", NOISE.1);
    multiplier(search(goal, with, 0.0, 0.0, (NOISE.0.ln(), NOISE.1.ln()), none)?)
}

fn solve_rate(
    goal: &dyn Goal,
    with: impl Fn(SampleRate) -> Result<Composition, Unsupported>,
) -> Result<SampleRate, Unsupported> {
    // The search variable is x = -log q, so that epsilon decreases in x.
    let rate = |x: f64| SampleRate::new((-x).exp().min(1.0)).map_err(Unsupported::from);
    let with = |x: f64| rate(x).and_then(&with);
    let none = || format!("no rate down to {LEAST_RATE:e}");
    rate(search(goal, with, -0.5f64.ln(), 4.0, (0.0, -LEAST_RATE.ln()), none)?)
}

fn solve_rounds(
    goal: &dyn Goal,
    with: impl Fn(u64) -> Result<Composition, Unsupported>,
) -> Result<u64, Unsupported> {
    let _allowance = allowance(goal, &with(1)?);
    let quick = goal.quick().and_then(|quick| most_rounds(&quick, &with, 1, GUESS_TOLERANCE));
    most_rounds(goal, &with, quick.unwrap_or(1).max(FEW_ROUNDS), TOLERANCE).ok_or_else(|| {
        Unsupported::new("the budget is never used up, whatever the number of rounds")
    })
}

/// The work for one search: twice as much for random allocation and for what is analysed change by change. Their lattices take
/// less than half of the time for a unit.
fn allowance(goal: &dyn Goal, typical: &Composition) -> Allowance {
    let twice = typical.needs_lattices() || typical.one_change().is_some();
    let work = if twice { 2 * goal.work() } else { goal.work() };
    Allowance::for_steps(work, typical.distinct())
}

/// The smallest x in `ends` at which the budget is kept; starts at a guess.
fn search(
    goal: &dyn Goal,
    with: impl Fn(f64) -> Result<Composition, Unsupported>,
    typical: f64,
    begin: f64,
    ends: (f64, f64),
    none: impl Fn() -> String,
) -> Result<f64, Unsupported> {
    // Unsupported rounds are an error right away, not a failed search.
    let _allowance = allowance(goal, &with(typical)?);
    let guess = |quick| smallest(&quick, &with, begin, 1.0, ends, GUESS_TOLERANCE);
    let begin = goal.quick().and_then(guess).unwrap_or(begin);
    smallest(goal, &with, begin, FIRST_STRIDE, ends, TOLERANCE)
        .ok_or_else(|| Unsupported::new(format!("{} keeps {}", none(), goal.words())))
}

/// The search of rounds from a first guess; `None` if any number fits.
fn most_rounds(
    goal: &dyn Goal,
    with: impl Fn(u64) -> Result<Composition, Unsupported>,
    begin: u64,
    least_tolerance: f64,
) -> Option<u64> {
    let evaluate = |rounds: u64| (rounds, goal.excess(with(rounds), least_tolerance));
    let mut low = evaluate(begin);
    let mut high = low;
    let mut factor: f64 = 1.05;
    while high.1.value <= 0.0 {
        if high.0 >= UNLIMITED_ROUNDS {
            return None;
        }
        low = high;
        high = evaluate(((low.0 as f64 * factor) as u64).clamp(low.0 + 1, UNLIMITED_ROUNDS));
        factor = (factor * factor).min(64.0);
    }
    factor = 1.05;
    while low.1.value > 0.0 {
        if low.0 <= 1 {
            return Some(0);
        }
        high = low;
        low = evaluate(((high.0 as f64 / factor) as u64).clamp(1, high.0 - 1));
        factor = (factor * factor).min(64.0);
    }
    let mut halve = false;
    loop {
        let gap = high.0 - low.0;
        let tolerance = high.1.tolerance.max(low.1.tolerance);
        let rough = tolerance > TOLERANCE;
        let allowed_gap = if rough { (tolerance * low.0 as f64) as u64 } else { 0 };
        if gap <= allowed_gap.max(1) {
            return Some(low.0);
        }
        let secant = -low.1.value / (high.1.value - low.1.value);
        let usable = !halve && secant.is_finite();
        let fraction = if usable { secant.clamp(0.0, 1.0) } else { 0.5 };
        // Slightly past the secant point, so that both ends of the bracket move.
        let sign = if fraction < 0.5 { 1.0 } else { -1.0 };
        let margin = if rough { 0.3 * allowed_gap as f64 / gap as f64 } else { 0.0 };
        let fraction = fraction + sign * margin;
        let next = evaluate(low.0 + ((gap as f64 * fraction) as u64).clamp(1, gap - 1));
        if next.1.value <= 0.0 {
            low = next
        } else {
            high = next
        }
        halve = high.0 - low.0 > gap / 2;
    }
}

/// The smallest x in `[first, last]` at which the budget is kept, bracketed from a first guess in growing strides;
/// `None` if even `last` exceeds the budget.
fn smallest(
    goal: &dyn Goal,
    with: impl Fn(f64) -> Result<Composition, Unsupported>,
    begin: f64,
    stride: f64,
    (first, last): (f64, f64),
    least_tolerance: f64,
) -> Option<f64> {
    let evaluate = |x: f64| End { x, excess: goal.excess(with(x), least_tolerance) };
    let mut high = evaluate(begin.clamp(first, last));
    let mut low = high;
    let mut step = stride;
    while high.excess.value > 0.0 {
        if high.x >= last {
            return None;
        }
        (low, high) = (high, evaluate((high.x + step).min(last)));
        step *= 2.0;
    }
    step = stride;
    while low.excess.value <= 0.0 {
        if low.x <= first {
            return Some(low.x);
        }
        (low, high) = (evaluate((low.x - step).max(first)), low);
        step *= 2.0;
    }
    Some(shrink(evaluate, low, high))
}

/// By how much a budget is exceeded, and the tolerance of the search there.
#[derive(Clone, Copy)]
struct Excess {
    value: f64,
    tolerance: f64,
}

/// An end of the bracket: the value that was tried and its excess over the budget.
#[derive(Clone, Copy)]
struct End {
    x: f64,
    excess: Excess,
}

/// Shrinks a bracket to the tolerance and returns its right end, which keeps the budget.
fn shrink(evaluate: impl Fn(f64) -> End, mut left: End, mut right: End) -> f64 {
    let mut halve = false;
    loop {
        let tolerance = left.excess.tolerance.max(right.excess.tolerance);
        let before = right.x - left.x;
        if before <= tolerance {
            return right.x;
        }
        // Slightly right of the secant point, so that both ends move; bisection where secants converge slowly.
        let (above, below) = (left.excess.value, right.excess.value);
        let secant = right.x - below * before / (below - above);
        let usable = !halve && above.is_finite() && secant > left.x && secant < right.x;
        let next = if usable {
            let room = 0.3 * tolerance;
            evaluate((secant + room).min(right.x - room).max(left.x + room))
        } else {
            evaluate(0.5 * (left.x + right.x))
        };
        if next.excess.value <= 0.0 {
            right = next
        } else {
            left = next
        }
        halve = right.x - left.x > 0.5 * before;
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use veilgrad_events::Adjacency;

    use super::*;

    /// The inverse of the noise, with an upper bound that more work makes larger, and more accurate.
    #[derive(Default)]
    struct Inverse {
        noise: Cell<f64>,
        rough: Cell<u32>,
        full: Cell<u32>,
    }

    impl Accountant for Inverse {
        fn name(&self) -> &'static str {
            "inverse"
        }

        fn epsilon(&self, _: &Composition, delta: Delta) -> Result<Guarantee, Unsupported> {
            let truth = 1.0 / self.noise.get();
            let is_rough = work::left() < work::SEARCH_QUESTION;
            let count = if is_rough { &self.rough } else { &self.full };
            count.set(count.get() + 1);
            let (lower, epsilon) =
                if is_rough { (0.98 * truth, truth) } else { (truth, truth * (1.0 + 1e-4)) };
            let (delta, accountant) = (delta.get(), self.name());
            Ok(Guarantee { epsilon, epsilon_lower: Some(lower), delta, accountant, method: None })
        }

        fn delta(&self, _: &Composition, _: Epsilon) -> Guarantee {
            unreachable!("searches ask for epsilon")
        }

        fn bounds_from_below(&self) -> bool {
            true
        }
    }

    #[test]
    fn rough_bounds_never_decide_close_to_the_budget() {
        let accountant = Inverse::default();
        let (epsilon, delta) = (Epsilon::new(0.8).unwrap(), Delta::new(1e-5).unwrap());
        let target = PrivacyTarget { epsilon, delta, accountant: &accountant };
        let rate = SampleRate::new(0.01).unwrap();
        let with = |noise: NoiseMultiplier| {
            accountant.noise.set(noise.get());
            Composition::poisson(rate, noise, 1000, Adjacency::AddRemove)
        };
        let noise = target.noise_multiplier(with).unwrap().get();
        let least = (1.0 + 1e-4) / 0.8;
        assert!((1.0..1.0 + 1e-4).contains(&(noise / least)), "{noise} instead of {least}");
        // Some points were decided by rough bounds alone.
        assert!(accountant.full.get() < accountant.rough.get());
    }
}
