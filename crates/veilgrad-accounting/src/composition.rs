//! Rounds, folded to one Gaussian each.

use veilgrad_events::{Adjacency, Rounds, Sampling};

/// Everything that an accountant needs to know of a ledger.
#[derive(Debug, Clone, PartialEq)]
pub struct Composition {
    steps: Vec<(Step, u64)>,
}

/// One round: a Gaussian of sensitivity 1 on a sample.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Step {
    /// How often a record takes part.
    pub sampled: Sampled,
    /// The noise multiplier: standard deviation over the L2 distance that neighbours can have.
    pub z: f64,
}

/// How the record in which neighbours differ takes part.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Sampled {
    /// In every round.
    Always,
    /// Independently with this probability, below 1; neighbours differ in one record more or less.
    Poisson(f64),
}

/// The accountant cannot speak about these events.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("unsupported: {0}")]
pub struct Unsupported(String);

impl Unsupported {
    pub(crate) fn new(why: impl Into<String>) -> Self {
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
    pub fn fold(rounds: &[Rounds], adjacency: Adjacency) -> Result<Self, Unsupported> {
        let mut steps: Vec<(Step, u64)> = Vec::new();
        let mut always = 0.0;
        for rounds in rounds.iter().filter(|rounds| rounds.count > 0) {
            let z = rounds.round.noise_multiplier().map_err(|e| Unsupported::new(e.to_string()))?;
            let z = z.get();
            let (step, count) = match (rounds.round.sampling(), adjacency) {
                // The whole Gaussian, at the distance that neighbours have.
                (Sampling::All {}, _) => {
                    let z = z / f64::from(adjacency.sensitivity());
                    (Step { sampled: Sampled::Always, z }, rounds.count)
                }
                (Sampling::Poisson { rate }, Adjacency::AddRemove | Adjacency::ZeroOut) => {
                    let sampled = match rate.get() {
                        q if q < 1.0 => Sampled::Poisson(q),
                        _ => Sampled::Always,
                    };
                    (Step { sampled, z }, rounds.count)
                }
                (policy, adjacency) => {
                    return Err(Unsupported::new(format!(
                        "{policy:?} under {adjacency} adjacency has no analysis here yet"
                    )));
                }
            };
            if step.sampled == Sampled::Always {
                // Gaussians compose to one Gaussian: 1/z^2 adds up.
                always += count as f64 / (step.z * step.z);
                continue;
            }
            match steps.iter_mut().find(|(known, _)| *known == step) {
                Some((_, known)) => {
                    *known = known
                        .checked_add(count)
                        .ok_or_else(|| Unsupported::new("more than 2^64 rounds"))?;
                }
                None => steps.push((step, count)),
            }
        }
        if always > 0.0 {
            // Rounded down, for as many additions as there were entries.
            let z = always.sqrt().recip() * (1.0 - (rounds.len() as f64 + 8.0) * f64::EPSILON);
            steps.push((Step { sampled: Sampled::Always, z }, 1));
        }
        Ok(Self { steps })
    }

    /// The distinct steps, each with its number.
    #[must_use]
    pub fn steps(&self) -> &[(Step, u64)] {
        &self.steps
    }
}
