//! The number that is reported, and who computes it.

use veilgrad_events::{
    Adjacency, Delta, Epsilon, FixedBatch, Folded, NoiseMultiplier, SampleRate, Sampling,
};

use crate::profile::{Certified, Method};
use crate::{Composition, Interval, Unsupported, profile, rdp};

/// An epsilon at a delta: what may be claimed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Guarantee {
    /// Never below the truth, its own numerical error included.
    pub epsilon: f64,
    /// Never above what the events cost the unluckiest neighbours; absent where this is not known.
    pub epsilon_lower: Option<f64>,
    /// The delta at which the epsilon holds; never below the truth if it was asked for.
    pub delta: f64,
    /// The name of the accountant that found it.
    pub accountant: &'static str,
    /// How, if it was the privacy profile.
    pub method: Option<Method>,
}

/// A privacy accountant: computes epsilon for a delta, and delta for an epsilon, of a composition.
///
/// # Guarantee
/// Whatever an accountant returns is never below the true value, and does not depend on the order of rounds;
/// [`check_accountant`] tests that.
pub trait Accountant {
    /// A short name, as on the command line.
    fn name(&self) -> &'static str;

    /// The smallest epsilon for `delta` that it can vouch for.
    ///
    /// # Errors
    /// When it cannot vouch for any.
    fn epsilon(&self, composition: &Composition, delta: Delta) -> Result<Guarantee, Unsupported>;

    /// The smallest delta at `epsilon` that it can vouch for; 1 if there is no smaller one.
    fn delta(&self, composition: &Composition, epsilon: Epsilon) -> Guarantee;
}

/// Lower bounds of epsilon are lowered by this times `1 + epsilon`, because folding rounded noise multipliers down, by at
/// most 1e-9 where lower bounds are reported. A Gaussian of mu gains `mu phi(a)/(e^eps Phi(-b))` in epsilon from a
/// relative change of its noise, `b = eps/mu + mu/2`: at most `eps + mu^2/2 + mu`, about.
const LOWER_BOUND_MARGIN: f64 = 1e-8;

/// The privacy profile itself.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pld;

impl Accountant for Pld {
    fn name(&self) -> &'static str {
        "pld"
    }

    fn epsilon(&self, composition: &Composition, delta: Delta) -> Result<Guarantee, Unsupported> {
        let Certified { bounds: Interval { lower, upper }, method } =
            profile::epsilon(composition, delta)?;
        let lower = (lower - LOWER_BOUND_MARGIN * (1.0 + lower)).max(0.0);
        let epsilon_lower = composition.attained().then_some(lower);
        let (delta, accountant, method) = (delta.get(), self.name(), Some(method));
        Ok(Guarantee { epsilon: upper, epsilon_lower, delta, accountant, method })
    }

    fn delta(&self, composition: &Composition, epsilon: Epsilon) -> Guarantee {
        let Certified { bounds, method } = profile::delta(composition, epsilon);
        let (epsilon, accountant, method) = (epsilon.get(), self.name(), Some(method));
        Guarantee { epsilon, epsilon_lower: None, delta: bounds.upper, accountant, method }
    }
}

/// Rényi divergences, at the best order.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Rdp;

impl Accountant for Rdp {
    fn name(&self) -> &'static str {
        "rdp"
    }

    fn epsilon(&self, composition: &Composition, delta: Delta) -> Result<Guarantee, Unsupported> {
        let epsilon = rdp::epsilon(composition, delta)?.epsilon.get();
        let (delta, accountant) = (delta.get(), self.name());
        Ok(Guarantee { epsilon, epsilon_lower: None, delta, accountant, method: None })
    }

    fn delta(&self, composition: &Composition, epsilon: Epsilon) -> Guarantee {
        let delta = rdp::delta(composition, epsilon);
        let (epsilon, accountant) = (epsilon.get(), self.name());
        Guarantee { epsilon, epsilon_lower: None, delta, accountant, method: None }
    }
}

/// The smaller of [`Pld`]'s and [`Rdp`]'s numbers: both are sound, so it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tightest;

impl Accountant for Tightest {
    fn name(&self) -> &'static str {
        "best"
    }

    fn epsilon(&self, composition: &Composition, delta: Delta) -> Result<Guarantee, Unsupported> {
        let Ok(found) = Pld.epsilon(composition, delta) else {
            return Rdp.epsilon(composition, delta);
        };
        // Closed forms are exact, and contours where their lower bound shows it: not where rounds had to be joined from
        // above, or where there is no work left. So are lattices of thousands of distinct rounds, whose Rényi divergences
        // take long.
        let is_exact = found.method == Some(Method::ClosedForm)
            || ((found.method == Some(Method::Contour) || composition.has_surrogates())
                && found.epsilon_lower.is_some_and(|lower| lower >= 0.99 * found.epsilon));
        if is_exact {
            return Ok(found);
        }
        match Rdp.epsilon(composition, delta) {
            Ok(other) if other.epsilon < found.epsilon => {
                Ok(Guarantee { epsilon_lower: found.epsilon_lower, ..other })
            }
            _ => Ok(found),
        }
    }

    fn delta(&self, composition: &Composition, epsilon: Epsilon) -> Guarantee {
        let (one, other) = (Pld.delta(composition, epsilon), Rdp.delta(composition, epsilon));
        if other.delta < one.delta { other } else { one }
    }
}

/// Tries the contract of an accountant: nothing below exact values, nothing that falls with more rounds
/// or less noise, no dependence on order, and a delta that agrees with its epsilon.
///
/// # Errors
/// Says what did not hold.
pub fn check_accountant(accountant: &dyn Accountant) -> Result<(), String> {
    check(accountant).map_err(|error| error.to_string())
}

fn check(accountant: &dyn Accountant) -> Result<(), Box<dyn std::error::Error>> {
    let delta = Delta::new(1e-5)?;
    let rounds = |q: f64, z: f64, count: u64| {
        let (rate, noise) = (SampleRate::new(q)?, NoiseMultiplier::new(z)?);
        Composition::poisson(rate, noise, count, Adjacency::AddRemove)
    };
    let epsilon = |composition: &Composition| {
        accountant.epsilon(composition, delta).map(|found| found.epsilon)
    };
    // Near-exact values, good to 1e-9.
    for (q, z, count, exact) in [
        (1.0, 1.0, 1, 4.377_178_095),
        (1.0, 10.0, 1000, 17.856_586_83),
        (0.01, 1.0, 1000, 1.828_236_666),
        (0.05, 1.5, 2000, 8.231_268_979),
    ] {
        let found = epsilon(&rounds(q, z, count)?)?;
        if !(found >= exact) {
            return Err(format!("q {q} z {z} T {count}: epsilon {found} is below {exact}").into());
        }
    }
    // Run 1 has one round at z 10, run 2 one at z 10 and two at z 1, in epochs of two rounds: a record may be in
    // three of them, and one Gaussian of 1/z^2 = 2.01 is exact.
    let sampling = Sampling::Shuffle(FixedBatch::new(4, 2)?);
    let shuffled = |z: f64, count: u64| {
        NoiseMultiplier::new(z).map(|noise_multiplier| Folded { count, sampling, noise_multiplier })
    };
    let runs = [vec![shuffled(10.0, 1)?], vec![shuffled(10.0, 1)?, shuffled(1.0, 2)?]];
    let (found, exact) =
        (epsilon(&Composition::of_runs(runs, Adjacency::ZeroOut)?)?, 6.592_505_563);
    if !(found >= exact) {
        return Err(format!("shuffled runs: epsilon {found} is below {exact}").into());
    }
    let base = epsilon(&rounds(0.02, 1.2, 500)?)?;
    for (what, more) in [
        ("a higher rate", rounds(0.021, 1.2, 500)?),
        ("less noise", rounds(0.02, 1.15, 500)?),
        ("more rounds", rounds(0.02, 1.2, 520)?),
    ] {
        let found = epsilon(&more)?;
        if !(found >= base) {
            return Err(format!("{what} lowers epsilon from {base} to {found}").into());
        }
    }
    let mut parts = [rounds(0.02, 1.2, 500)?, rounds(0.01, 0.9, 200)?, rounds(1.0, 20.0, 3)?];
    let there = epsilon(&Composition::join(&parts))?;
    parts.reverse();
    let back = epsilon(&Composition::join(&parts))?;
    if !((there - back).abs() <= 1e-6 * there) {
        return Err(format!("the order of rounds changes epsilon from {there} to {back}").into());
    }
    let found = accountant.delta(&rounds(0.02, 1.2, 500)?, Epsilon::new(base)?).delta;
    if !(found <= delta.get() * 1.01) {
        return Err(format!("delta {found} at the epsilon of delta {}", delta.get()).into());
    }
    Ok(())
}
