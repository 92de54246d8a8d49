//! Privacy accountants and the epsilon that they report.

use veilgrad_events::{
    Adjacency, Delta, Epsilon, FixedBatch, Folded, NoiseMultiplier, SampleRate, Sampling,
};

use crate::profile::{Certified, Method};
use crate::{Composition, Interval, Unsupported, profile, rdp};

/// An (epsilon, delta) guarantee of a composition, and the accountant that found it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Guarantee {
    /// An upper bound on the true epsilon, numerical error included.
    pub epsilon: f64,
    /// A lower bound on the epsilon of the worst pair of neighbours; `None` where none is known.
    pub epsilon_lower: Option<f64>,
    /// The delta at which the epsilon holds. If delta was computed, an upper bound on the true one.
    pub delta: f64,
    /// The name of the accountant that found it.
    pub accountant: &'static str,
    /// The method, if the privacy profile was computed.
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

    /// The smallest certified epsilon at `delta`.
    ///
    /// # Errors
    /// When no epsilon can be certified.
    fn epsilon(&self, composition: &Composition, delta: Delta) -> Result<Guarantee, Unsupported>;

    /// The smallest certified delta at `epsilon`; 1 if none below 1 can be certified.
    fn delta(&self, composition: &Composition, epsilon: Epsilon) -> Guarantee;

    /// Whether it gives lower bounds on epsilon, too. Searches then ask for rough bounds first, with less work. By default it does not.
    fn bounds_from_below(&self) -> bool {
        false
    }

    /// An accountant that gives the same answers and is quicker when it is asked about this composition again and again: it
    /// computes only once what does not depend on epsilon or delta. `None` if there is nothing to keep, which is the default.
    fn prepared<'a>(&'a self, _: &'a Composition) -> Option<Box<dyn Accountant + 'a>> {
        None
    }
}

/// Lower bounds on epsilon are lowered by this times `1 + epsilon`, because folding rounded noise multipliers down: by at
/// most 1e-9 for all rounds without sampling together, or nothing is reported, and for a sampled round by a few roundings for
/// each of its queries, less than that for a million of them. The derivative of a Gaussian's epsilon in the log of its noise is
/// `mu phi(a)/(e^eps Phi(-b))` with `b = eps/mu + mu/2`: at most about `eps + mu^2/2 + mu`.
const LOWER_BOUND_MARGIN: f64 = 1e-8;

/// The accountant that computes the privacy profile: nearly exact, with a certified numerical error.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pld;

impl Accountant for Pld {
    fn name(&self) -> &'static str {
        "pld"
    }

    fn bounds_from_below(&self) -> bool {
        true
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

/// The Rényi accountant: RDP at the best order.
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

/// The recommended accountant: the smaller of the bounds of [`Pld`] and [`Rdp`], which are both sound.
///
/// # Example
/// ```
/// use veilgrad_accounting::{Accountant, Composition, Tightest};
/// use veilgrad_events::{Adjacency, Delta, NoiseMultiplier, SampleRate};
///
/// let (rate, noise) = (SampleRate::new(256.0 / 60_000.0)?, NoiseMultiplier::new(1.1)?);
/// let rounds = Composition::poisson(rate, noise, 14_040, Adjacency::AddRemove)?;
/// let found = Tightest.epsilon(&rounds, Delta::new(1e-5)?)?;
/// assert!((2.379..2.38).contains(&found.epsilon));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tightest;

impl Accountant for Tightest {
    fn name(&self) -> &'static str {
        "best"
    }

    fn bounds_from_below(&self) -> bool {
        true
    }

    fn epsilon(&self, composition: &Composition, delta: Delta) -> Result<Guarantee, Unsupported> {
        let Ok(found) = Pld.epsilon(composition, delta) else {
            return Rdp.epsilon(composition, delta);
        };
        // Closed forms are exact. Contours are, and lattices of thousands of distinct rounds (whose Rényi divergences take
        // long), if their lower bound shows it: not where rounds were grouped from above, or where the work limit was reached.
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

/// Tests the contract of an accountant: no epsilon below known values, none that falls with more rounds, a higher rate or
/// less noise, no dependence on the order of rounds, and a delta that agrees with its epsilon.
///
/// # Errors
/// The first property that does not hold.
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
    // Nearly exact values, to a relative 1e-9.
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
    let forward = epsilon(&Composition::join(&parts))?;
    parts.reverse();
    let reversed = epsilon(&Composition::join(&parts))?;
    if !((forward - reversed).abs() <= 1e-6 * forward) {
        let error = format!("the order of rounds changes epsilon from {forward} to {reversed}");
        return Err(error.into());
    }
    let found = accountant.delta(&rounds(0.02, 1.2, 500)?, Epsilon::new(base)?).delta;
    if !(found <= delta.get() * 1.01) {
        return Err(format!("delta {found} at the epsilon of delta {}", delta.get()).into());
    }
    Ok(())
}
