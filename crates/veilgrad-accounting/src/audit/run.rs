//! The audit of one training run: the number of guesses is fixed beforehand, a bound follows afterwards.

use veilgrad_events::{Adjacency, Delta, Folded};

use super::confidence::Confidence;
use super::curve::Curve;
use super::normal::{normal, quantile};
use super::one_run::{Guesses, contradicts};
use crate::Unsupported;
use crate::guarantee::{Guarantee, RunVerdict};

/// The search multiplies or divides the noise by this factor, then bisects `HALVINGS` times: to about one part in 700.
const STRIDE: f64 = std::f64::consts::SQRT_2;
const HALVINGS: usize = 8;
/// The search covers noise up to this many times less or more than that of the rounds.
const MOST_FACTOR: f64 = 32.0;

/// An audit of one training run with canaries, planned before the run: the claim, and how many guesses will be made.
///
/// # Guarantee
/// The number of guesses depends on the rounds, the number of canaries and the confidence alone. If the run is as private
/// as its rounds say, [`judge`](Self::judge) finds a contradiction with probability at most that of a false alarm.
///
/// # Example
/// ```
/// use veilgrad_accounting::audit::{Confidence, RunAudit};
/// use veilgrad_events::{Adjacency, Delta, Folded, NoiseMultiplier, Sampling};
///
/// // One round of a Gaussian with noise multiplier 1, and 500 canaries.
/// let noise_multiplier = NoiseMultiplier::new(1.0)?;
/// let rounds = [Folded { count: 1, sampling: Sampling::All {}, noise_multiplier }];
/// let delta = Delta::new(1e-5)?;
/// let audit = RunAudit::plan(&rounds, Adjacency::AddRemove, delta, 500, Confidence::STANDARD)?;
///
/// // Here the release reveals every canary: the score is positive if it is in, negative if it is not.
/// let included: Vec<bool> = (0..500).map(|canary| canary % 2 == 0).collect();
/// let scores: Vec<f64> = included.iter().map(|is_in| if *is_in { 1.0 } else { -1.0 }).collect();
/// let verdict = audit.judge(&scores, &included)?;
/// assert!(verdict.contradicted && verdict.epsilon_lower > verdict.claimed);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct RunAudit {
    rounds: Vec<Folded>,
    adjacency: Adjacency,
    delta: Delta,
    confidence: Confidence,
    canaries: u64,
    guesses: u64,
    curve: Curve,
    claim: Guarantee,
}

impl RunAudit {
    /// Plans the audit of a run of these rounds with a number of canaries.
    ///
    /// # Errors
    /// When no accountant supports the rounds, or there are no canaries.
    pub fn plan(
        rounds: &[Folded],
        adjacency: Adjacency,
        delta: Delta,
        canaries: u64,
        confidence: Confidence,
    ) -> Result<Self, Unsupported> {
        if canaries == 0 {
            return Err(Unsupported::new("an audit needs at least one canary"));
        }
        let (curve, claim) = Curve::of_rounds(rounds, 1.0, adjacency, delta)?;
        let guesses = best_number_of_guesses(canaries, &curve, confidence);
        let rounds = rounds.to_vec();
        Ok(Self { rounds, adjacency, delta, confidence, canaries, guesses, curve, claim })
    }

    /// How many guesses will be made.
    #[must_use]
    pub const fn guesses(&self) -> u64 {
        self.guesses
    }

    /// The guarantee that is claimed for the rounds.
    #[must_use]
    pub const fn claim(&self) -> &Guarantee {
        &self.claim
    }

    /// Guesses which canaries are in, compares the guesses with the truth (`included`), and the outcome with the claim. Half
    /// of the guesses say that the canaries with the highest scores are in, half that those with the lowest are not. A
    /// score is any function of what the run released.
    ///
    /// # Errors
    /// When there is not one score and one `included` for each canary.
    pub fn judge(&self, scores: &[f64], included: &[bool]) -> Result<RunVerdict, Unsupported> {
        let all = usize::try_from(self.canaries).unwrap_or(usize::MAX);
        if scores.len() != all || included.len() != all {
            return Err(Unsupported::new("each canary needs one score and one coin"));
        }
        let guesses = Guesses {
            canaries: self.canaries,
            made: self.guesses,
            right: right_guesses(scores, included, self.guesses),
        };
        let contradicted = contradicts(guesses, &self.curve, self.confidence);
        let bound = self.bound(guesses, contradicted);
        let claimed = self.claim.epsilon;
        let epsilon_lower = if contradicted { bound.max(claimed) } else { bound.min(claimed) };
        Ok(RunVerdict {
            canaries: self.canaries,
            guesses: guesses.made,
            correct: guesses.right,
            epsilon_lower,
            confidence: self.confidence.get(),
            claimed: self.claim.epsilon,
            delta: self.delta.get(),
            contradicted,
        })
    }

    /// The epsilon of the rounds at the least noise that the guesses contradict; 0 if they contradict none. `contradicted`
    /// says whether they contradict the rounds' own noise.
    fn bound(&self, guesses: Guesses, contradicted: bool) -> f64 {
        let curve = |factor| Curve::of_rounds(&self.rounds, factor, self.adjacency, self.delta);
        // Rounds with very little noise may have no certified curve; these count as not contradicted.
        let refuted = |factor: f64| match curve(factor) {
            Ok((curve, found)) if contradicts(guesses, &curve, self.confidence) => {
                Some(found.epsilon_lower.unwrap_or(found.epsilon))
            }
            _ => None,
        };
        // Starts at the rounds' own noise and moves in one direction until the answer changes.
        let (mut low, mut high, mut epsilon) = (1.0, 1.0, self.claim.epsilon);
        loop {
            if contradicted {
                low /= STRIDE;
                match refuted(low) {
                    Some(found) => (high, epsilon) = (low, found),
                    None => break,
                }
            } else {
                high *= STRIDE;
                match refuted(high) {
                    Some(found) => {
                        epsilon = found;
                        break;
                    }
                    None => low = high,
                }
            }
            if !(1.0 / MOST_FACTOR..=MOST_FACTOR).contains(&(low * high).sqrt()) {
                return if contradicted { epsilon } else { 0.0 };
            }
        }
        for _ in 0..HALVINGS {
            let middle = (low * high).sqrt();
            match refuted(middle) {
                Some(found) => (high, epsilon) = (middle, found),
                None => low = middle,
            }
        }
        epsilon
    }
}

/// How many guesses are right if the highest scores are guessed to be in and the lowest to be out.
fn right_guesses(scores: &[f64], included: &[bool], guesses: u64) -> u64 {
    let mut order: Vec<(f64, bool)> =
        scores.iter().copied().zip(included.iter().copied()).collect();
    order.sort_by(|one, other| one.0.total_cmp(&other.0));
    let (out, within) = halves(guesses);
    let lowest = order.iter().take(out).filter(|(_, is_in)| !is_in).count();
    let highest = order.iter().rev().take(within).filter(|(_, is_in)| *is_in).count();
    (lowest + highest) as u64
}

fn halves(guesses: u64) -> (usize, usize) {
    let guesses = usize::try_from(guesses).unwrap_or(usize::MAX);
    (guesses / 2, guesses - guesses / 2)
}

/// The number of guesses with the largest expected bound, if scores were Gaussian with the curve's advantage. Any number
/// is sound; this choice makes the bound tight.
fn best_number_of_guesses(canaries: u64, curve: &Curve, confidence: Confidence) -> u64 {
    let mu = 2.0 * quantile((0.5 * (1.0 + curve.advantage())).min(1.0 - 1e-12));
    let m = canaries as f64;
    // Fractions of the canaries, from a few certain guesses to all of them.
    let numbers = (1..=24).map(|i| (m * f64::from(i * i) / 576.0).ceil().clamp(1.0, m));
    let mut best = (f64::NEG_INFINITY, canaries);
    for made in numbers {
        let expected = expected_right(made, m, mu).floor() as u64;
        let bound = gaussian_bound(canaries, made as u64, expected, confidence);
        if bound > best.0 {
            best = (bound, made as u64);
        }
    }
    best.1
}

/// The expected number of right guesses where scores are N(mu, 1) for canaries that are in and N(0, 1) for the others.
fn expected_right(made: f64, canaries: f64, mu: f64) -> f64 {
    let share = 0.5 * made / canaries;
    // The threshold x with P(score > x) = share; the lower end is symmetric.
    let above = |x: f64| 0.5 * (normal(-x) + normal(mu - x));
    let (mut low, mut high) = (0.5 * mu - 40.0, mu + 40.0);
    for _ in 0..60 {
        let middle = 0.5 * (low + high);
        if above(middle) > share { low = middle } else { high = middle }
    }
    made * 0.5 * normal(mu - low) / share
}

/// The largest mu whose Gaussian curve this many right guesses contradict.
fn gaussian_bound(canaries: u64, made: u64, right: u64, confidence: Confidence) -> f64 {
    let refuted =
        |mu: f64| contradicts(Guesses { canaries, made, right }, &Curve::gaussian(mu), confidence);
    let (mut low, mut high) = (0.0, 16.0);
    if !refuted(low) {
        return f64::NEG_INFINITY;
    }
    for _ in 0..12 {
        let middle = 0.5 * (low + high);
        if refuted(middle) { low = middle } else { high = middle }
    }
    low
}
