//! What may be claimed about a dataset: the one place that decides it.

use std::num::NonZeroU64;

use veilgrad_events::{
    Adjacency, Budget, Delta, Folded, Mode, Numerics, Pricing, Rounds, RunCount, RunRounds,
};

use super::accountant::{Accountant, Guarantee, Tightest};
use super::attack::{Attack, bound_against_the_record, bound_for_the_record};
use super::triangle::ByTriangle;
use super::tuning::{Tuned, Tuning};
use crate::Composition;
use crate::display::up;

/// The false positive rate at which attacks are quoted.
pub const FALSE_POSITIVE_RATE: f64 = 0.01;

/// One run, as [`claim`] needs it.
#[derive(Debug, Clone)]
pub struct ClaimedRun<'a> {
    /// The rounds that it charged.
    pub charges: Vec<RunRounds<'a>>,
    /// All rounds that it may charge, if they were declared when it was opened and no others were charged.
    pub plan: Option<&'a [Rounds]>,
    /// Why the run is stamped INSECURE, if it is.
    pub insecure: Option<&'a str>,
    /// Whether its arithmetic is proven to keep records apart.
    pub numerics: Numerics,
    /// If it is a tuning, the distribution of the number of its runs. Plan and charges are those of one of them.
    pub tuning: Option<RunCount>,
}

/// Why nothing may be claimed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NoClaim(pub String);

/// Where the epsilon of a claim comes from.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Basis {
    /// There is one run, and its whole plan was declared before its first round.
    Plan {
        /// Which accountant computed the cost of the plan.
        accountant: &'static str,
    },
    /// The epsilon of the budget, which all runs together keep.
    Cap,
    /// What is spent, which is more than the budget now allows.
    AboveCap {
        /// What the budget allows.
        cap: f64,
    },
    /// What is spent, where there is no budget.
    Spent {
        /// Which accountant computed it.
        accountant: &'static str,
    },
}

/// An (epsilon, delta) that may be claimed of everything that was released, and why.
#[derive(Debug, Clone, PartialEq)]
pub struct Claim {
    /// Never below what is spent.
    pub epsilon: f64,
    /// The delta of the claim.
    pub delta: f64,
    /// The epsilon of everything that is charged so far.
    pub spent: f64,
    /// Where the epsilon comes from.
    pub basis: Basis,
    /// What must hold for the claim to be true, in addition to what every statement assumes.
    pub conditions: Vec<&'static str>,
    /// The tunings among what was charged: of each, only the best of a secret number of runs was released.
    pub tunings: Vec<Tuning>,
    /// Whether no round can have been chosen from outputs of its run.
    planned: bool,
    /// The rounds of the plan, or of all runs if all were planned and none was a tuning.
    composition: Option<Composition>,
    /// The rounds of the plan, if it is the basis, and which datasets are neighbours.
    plan: Option<(Vec<Folded>, Adjacency)>,
}

/// The condition of runs with unverified numerics.
const UNVERIFIED: &str = "a record's contribution depends on that record alone in floating-point arithmetic, which was \
                          not established (numerics: unverified)";
/// The condition of several planned runs.
const NOT_CHOSEN: &str = "no run's sampling, noise or number of rounds was chosen from what earlier runs released, and \
                          no run was stopped because of what it had released";
/// The condition of a claim that is the budget, or what is spent above it.
const NOT_LOWERED: &str = "the budget was not lowered, and no runs of other ledgers were added, because of what had \
                           been released";
/// The condition of unplanned rounds without a budget.
const NOT_STOPPED: &str = "the number of rounds was not chosen from what they released";

/// The epsilon that may be claimed about a dataset with this budget, given all of its runs.
///
/// # Guarantee
/// - If a run is stamped INSECURE, nothing may be claimed.
/// - A single run that declared its plan costs at most what the whole plan costs, however much of it was charged.
/// - Otherwise the claim is the budget, since no charge above it is granted. Where more is spent than the budget allows
///   (it was lowered, or runs of another ledger were added, after that was spent), the claim is what is spent.
/// - The claim is never below what is spent.
///
/// # Errors
/// The reason why nothing may be claimed.
pub fn claim(terms: &Budget, runs: &[ClaimedRun<'_>]) -> Result<Claim, NoClaim> {
    if let Some(reason) = runs.iter().find_map(|run| run.insecure) {
        return Err(NoClaim(format!("a run protects nothing: {reason}")));
    }
    let charges = all_charges(runs);
    let planned = terms.mode == Mode::Planned && charges.iter().all(|run| run.planned);
    let price = || Tightest.price(terms, &charges).map_err(NoClaim);
    let mut conditions = unverified(runs);
    let no_claim = |error: crate::Unsupported| NoClaim(error.to_string());
    let compose = || {
        let runs = charges.iter().map(|run| run.rounds.iter().copied());
        Composition::of_runs(runs, terms.adjacency).map_err(no_claim)
    };
    if let ([ClaimedRun { plan: Some(plan), tuning, .. }], true) = (runs, planned) {
        let composition = Composition::fold(*plan, terms.adjacency).map_err(no_claim)?;
        let tunings: Vec<Tuning> = tuning.map(Tuning::of).into_iter().collect();
        let found = match tunings.first() {
            None => Tightest.epsilon(composition.above(), terms.delta),
            Some(tuning) => Tuned { inner: &Tightest, tuning: *tuning }
                .epsilon(composition.above(), terms.delta),
        };
        let found = found.map_err(no_claim)?;
        let is_done = compose()? == composition;
        let spent = if is_done { found.epsilon } else { price()? };
        let basis = Basis::Plan { accountant: found.accountant };
        let (epsilon, composition) = (found.epsilon.max(spent), Some(composition));
        let folded: Result<Vec<_>, _> = plan.iter().map(Folded::try_from).collect();
        let plan = folded.ok().map(|rounds| (rounds, terms.adjacency));
        let delta = terms.delta.get();
        return Ok(Claim {
            epsilon,
            delta,
            spent,
            basis,
            conditions,
            tunings,
            planned,
            composition,
            plan,
        });
    }
    let spent = price()?;
    if planned {
        conditions.push(NOT_CHOSEN);
    }
    let cap = terms.epsilon.get();
    let basis = if spent <= cap { Basis::Cap } else { Basis::AboveCap { cap } };
    conditions.push(NOT_LOWERED);
    let tunings: Vec<Tuning> =
        charges.iter().filter_map(|run| run.tuning.map(Tuning::of)).collect();
    let composition = (planned && tunings.is_empty()).then(compose).transpose()?;
    let (epsilon, delta) = (cap.max(spent), terms.delta.get());
    let plan = None;
    Ok(Claim { epsilon, delta, spent, basis, conditions, tunings, planned, composition, plan })
}

/// [`claim`] for a ledger without a budget. Nothing limits later charges, so the claim is what is spent.
pub(crate) fn claim_without_budget(
    terms: &Budget,
    runs: &[ClaimedRun<'_>],
) -> Result<Claim, NoClaim> {
    let found = claim(terms, runs)?;
    if matches!(found.basis, Basis::Plan { .. }) {
        return Ok(found);
    }
    let planned = all_charges(runs).iter().all(|run| run.planned);
    let accountant = if planned { Tightest.name() } else { "rdp" };
    let mut conditions = unverified(runs);
    conditions.push(if planned { NOT_CHOSEN } else { NOT_STOPPED });
    Ok(Claim { epsilon: found.spent, basis: Basis::Spent { accountant }, conditions, ..found })
}

fn all_charges<'a>(runs: &[ClaimedRun<'a>]) -> Vec<RunRounds<'a>> {
    let charges = runs.iter().flat_map(|run| run.charges.iter().copied());
    // A run without charges does not decide how the others are priced.
    charges.filter(|run| !run.rounds.is_empty()).collect()
}

fn unverified(runs: &[ClaimedRun<'_>]) -> Vec<&'static str> {
    let exact = runs.iter().all(|run| run.numerics == Numerics::Exact);
    if exact { Vec::new() } else { vec![UNVERIFIED] }
}

impl Claim {
    /// The name of the accountant behind the epsilon; "budget" where the budget itself is the claim.
    pub const fn accountant(&self) -> &'static str {
        match self.basis {
            Basis::Plan { accountant } | Basis::Spent { accountant } => accountant,
            Basis::Cap | Basis::AboveCap { .. } => "budget",
        }
    }

    /// Whether the rounds of every run were declared before its first, so that none can have been chosen from outputs
    /// of the run.
    pub const fn is_planned(&self) -> bool {
        self.planned
    }

    /// Why this epsilon may be claimed, in words.
    pub fn why(&self) -> String {
        match self.basis {
            Basis::Plan { accountant } if !self.tunings.is_empty() => format!(
                "there is one tuning, which declared the rounds of its runs before the first and released the best of a \
                 secret number of them, and the accountant '{accountant}' bounds the cost of all of it; a further run \
                 would raise it"
            ),
            Basis::Plan { accountant } => format!(
                "there is one run, which declared all of its rounds before the first, and the accountant \
                 '{accountant}' bounds the cost of all of them; a further run would raise it"
            ),
            Basis::Cap => "the budget: no round is granted that would lift all runs together above it, whatever is \
                           still charged"
                .to_owned(),
            Basis::AboveCap { cap } => format!(
                "more is spent than the budget of {cap} allows: it was lowered, or runs of another ledger were \
                 added, after that was spent; what is spent is the claim"
            ),
            Basis::Spent { accountant } => format!(
                "there is no budget; the accountant '{accountant}' bounds the cost of what is charged so far, and \
                 further rounds raise it"
            ),
        }
    }

    /// The epsilon, at the delta of the claim, for a person with this many records, if the claim is the cost of a plan.
    /// Larger than the claim: it protects a single record.
    ///
    /// Poisson samples and rounds without sampling have an analysis of their own; others are bounded by going from
    /// neighbour to neighbour. `None` if neither gives an answer.
    pub fn for_group(&self, records: NonZeroU64) -> Option<f64> {
        let (rounds, adjacency) = self.plan.as_ref()?;
        let delta = Delta::new(self.delta).ok()?;
        let tuned = self.tunings.first().map(|tuning| Tuned { inner: &Tightest, tuning: *tuning });
        let inner: &dyn Accountant = tuned.as_ref().map_or(&Tightest, |tuned| tuned);
        let all = [rounds.iter().copied()];
        let found = match Composition::of_group(all, *adjacency, records) {
            Ok(group) => inner.epsilon(group.above(), delta),
            Err(_) => {
                let one = self.composition.as_ref()?;
                ByTriangle { inner, records }.epsilon(one.above(), delta)
            }
        };
        found.ok().map(|found| found.epsilon.max(self.epsilon)).filter(|found| found.is_finite())
    }

    /// Upper bounds on membership inference from what was released.
    pub fn attacker(&self) -> Attacker {
        let claimed = Attacker::allowed_by(self.epsilon, self.delta);
        let Some(composition) = &self.composition else { return claimed };
        // Both are sound, so the smaller of each is.
        let found = match self.tunings.first() {
            None => Attacker::of(composition),
            Some(tuning) => Attacker::by(&Tuned { inner: &Tightest, tuning: *tuning }, composition),
        };
        Attacker {
            advantage: found.advantage.min(claimed.advantage),
            true_positive_rate: found.true_positive_rate.min(claimed.true_positive_rate),
        }
    }
}

/// Upper bounds on the best membership inference attack on one record.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Attacker {
    /// The true positive rate minus the false positive rate of any test.
    pub advantage: f64,
    /// The true positive rate of any test with a false positive rate of [`FALSE_POSITIVE_RATE`].
    pub true_positive_rate: f64,
}

impl Attacker {
    /// The bounds that follow from a composition's privacy profile.
    pub fn of(composition: &Composition) -> Self {
        let mut attack = Attack::new(composition);
        let advantage = attack.delta(0.0);
        Self { advantage, true_positive_rate: attack.true_positive_rate(FALSE_POSITIVE_RATE) }
    }

    /// The bounds that follow from what an accountant says at several deltas, for accountants of more than the composition
    /// itself: of a choice among runs, or of several records.
    pub fn by(accountant: &dyn Accountant, composition: &Composition) -> Self {
        let mut best = Self { advantage: 1.0, true_positive_rate: 1.0 };
        for found in guarantees(accountant, composition) {
            let allowed = Self::allowed_by(found.epsilon, found.delta);
            best.advantage = best.advantage.min(allowed.advantage);
            best.true_positive_rate = best.true_positive_rate.min(allowed.true_positive_rate);
        }
        best
    }

    /// The bounds that follow from (epsilon, delta) alone: Kairouz, Oh, Viswanath (2015), theorem 2.1.
    pub fn allowed_by(epsilon: f64, delta: f64) -> Self {
        // (e^eps - 1 + 2 delta) / (e^eps + 1) = tanh(eps/2) + 2 delta / (e^eps + 1), rounded up below.
        let advantage = libm::tanh(0.5 * epsilon) + 2.0 * delta / (1.0 + libm::exp(epsilon));
        Self {
            advantage: at_most_1(advantage * (1.0 + 16.0 * f64::EPSILON)),
            true_positive_rate: allowed_rate(epsilon, delta, FALSE_POSITIVE_RATE),
        }
    }

    /// How likely at most an attacker takes it to be that a record is in the data after naming it with a false positive rate of
    /// [`FALSE_POSITIVE_RATE`], if it was `prior` likely before.
    #[must_use]
    pub fn posterior(&self, prior: f64) -> f64 {
        posterior(prior, self.true_positive_rate, FALSE_POSITIVE_RATE)
    }

    /// The grade of these numbers: the worse of the two.
    pub fn protection(&self) -> Protection {
        use Protection::{Moderate, None, Strong, VeryStrong, Weak};
        // Largest advantage and true positive rate of each grade. Random guessing has 0 and 0.01.
        let grades = [
            (VeryStrong, 0.15, 0.03),
            (Strong, 0.35, 0.10),
            (Moderate, 0.60, 0.30),
            (Weak, 0.95, 0.80),
        ];
        let fits = |(_, advantage, rate): &&(Protection, f64, f64)| {
            self.advantage <= *advantage && self.true_positive_rate <= *rate
        };
        grades.iter().find(fits).map_or(None, |(grade, _, _)| *grade)
    }
}

fn at_most_1(rate: f64) -> f64 {
    if rate < 1.0 { rate } else { 1.0 }
}

/// The true positive rate of any test with this false positive rate that (epsilon, delta) alone allows.
pub fn allowed_rate(epsilon: f64, delta: f64, false_positive_rate: f64) -> f64 {
    let fpr = false_positive_rate;
    let rate = bound_for_the_record(epsilon, delta, fpr)
        .min(bound_against_the_record(epsilon, delta, fpr));
    at_most_1(rate)
}

/// The true positive rate of any test with this false positive rate that an accountant allows, from what it says at several deltas:
/// for accountants of more than the composition itself.
pub fn rate_by(
    accountant: &dyn Accountant,
    composition: &Composition,
    false_positive_rate: f64,
) -> f64 {
    let found = guarantees(accountant, composition).into_iter();
    found
        .map(|found| allowed_rate(found.epsilon, found.delta, false_positive_rate))
        .fold(1.0, f64::min)
}

/// What an accountant says of a composition at several deltas.
fn guarantees(accountant: &dyn Accountant, composition: &Composition) -> Vec<Guarantee> {
    let prepared = accountant.prepared(composition);
    let accountant = prepared.as_deref().unwrap_or(accountant);
    let deltas = [1e-6, 1e-4, 1e-3, 1e-2, 0.05, 0.1, 0.2, 0.4];
    let at = |delta: f64| accountant.epsilon(composition, Delta::new(delta).ok()?).ok();
    deltas.into_iter().filter_map(at).collect()
}

/// What an attacker believes after an accusation: the probability that the record is in the data, rounded up, if it was `prior`
/// before and the attack has these rates. By Bayes' rule `P T / (P T + (1 - P) F)`.
///
/// # Example
/// ```
/// // From 10 %, an attack that is right six times as often as it is wrong makes 40 %.
/// let belief = veilgrad_accounting::claim::posterior(0.1, 0.06, 0.01);
/// assert!((belief - 0.4).abs() < 1e-12);
/// ```
#[must_use]
pub fn posterior(prior: f64, true_positive_rate: f64, false_positive_rate: f64) -> f64 {
    let (right, wrong) = (prior * true_positive_rate, (1.0 - prior) * false_positive_rate);
    at_most_1(right / (right + wrong) * (1.0 + 8.0 * f64::EPSILON))
}

/// How strong a protection is, in words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Protection {
    /// Attacks are little better than guessing.
    VeryStrong,
    /// Attacks are better than guessing, and seldom right about a record.
    Strong,
    /// Attacks are right about some records.
    Moderate,
    /// Attacks may be right about most records.
    Weak,
    /// Attacks may be right about all records.
    None,
}

impl Protection {
    /// The grade as a phrase.
    #[must_use]
    pub const fn phrase(self) -> &'static str {
        match self {
            Self::VeryStrong => "very strong protection",
            Self::Strong => "strong protection",
            Self::Moderate => "moderate protection",
            Self::Weak => "weak protection",
            Self::None => "no meaningful protection",
        }
    }
}

/// Warnings about a weak guarantee: an epsilon above 10, or a delta above one over the number of records.
pub fn warnings(epsilon: f64, delta: f64, records: Option<u64>) -> Vec<String> {
    let mut warnings = Vec::new();
    if epsilon > 10.0 {
        warnings.push(format!(
            "epsilon {} is above 10: by itself such an epsilon rules out almost no attack",
            up(epsilon)
        ));
    }
    if let Some(records) = records.filter(|records| delta * *records as f64 > 1.0) {
        warnings.push(format!(
            "delta {delta:e} is above one over the declared number of records ({records}): a program that publishes \
             some records as they are could keep this promise"
        ));
    }
    warnings
}

/// A Rényi order that depends on delta alone, so that no output can have influenced it: the best one for a Gaussian with
/// epsilon 2, `1 + 2 ln(1/delta) / epsilon`.
pub(crate) fn order_without_budget(delta: Delta) -> f64 {
    1.0 - delta.get().ln()
}
