//! Adaptive composition: rounds whose parameters were chosen from earlier outputs.

use veilgrad_events::{
    Adjacency, Delta, Epsilon, Mode, NoiseMultiplier, Rounds, SampleRate, Sampling,
};

use crate::rdp::{conversion, divergence};
use crate::{Composition, Unsupported};

/// The composition that bounds these rounds: the rounds themselves if they were planned, else the declared envelope.
///
/// # Errors
/// In adaptive mode, when there is no envelope or the rounds are outside of it: then only an
/// [RDP filter](Filter), declared before the first round, bounds them.
pub fn composition(
    mode: Mode,
    rounds: &[Rounds],
    adjacency: Adjacency,
    envelope: Option<&Envelope>,
) -> Result<Composition, Unsupported> {
    match (mode, envelope) {
        (Mode::Planned, _) => Composition::fold(rounds, adjacency),
        (Mode::Adaptive, Some(envelope)) => envelope.composition(rounds, adjacency),
        (Mode::Adaptive, None) => Err(Unsupported::new(
            "sampling or noise was chosen from earlier outputs: only a filter or an envelope that was \
             declared before the first round bounds that",
        )),
    }
}

/// Limits on rate, noise and number of rounds, declared before the first round. Within them, rounds may be chosen from
/// earlier outputs.
///
/// # Example
/// ```
/// use veilgrad_accounting::{Accountant, Envelope, Tightest};
/// use veilgrad_events::{Adjacency, Delta, NoiseMultiplier, SampleRate};
///
/// let (rate, noise_multiplier) = (SampleRate::new(0.01)?, NoiseMultiplier::new(1.0)?);
/// let envelope = Envelope { rate, noise_multiplier, rounds: 1000 };
/// let worst_case = envelope.composition(&[], Adjacency::AddRemove)?;
/// assert!(Tightest.epsilon(&worst_case, Delta::new(1e-5)?)?.epsilon < 1.83);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Envelope {
    /// The highest sampling rate of a round.
    pub rate: SampleRate,
    /// The lowest noise multiplier of a round.
    pub noise_multiplier: NoiseMultiplier,
    /// The largest number of rounds.
    pub rounds: u64,
}

impl Envelope {
    /// The worst case: all rounds, each at the highest rate and the lowest noise.
    ///
    /// # Guarantee
    /// Dominates every adaptive choice within the envelope: a lower rate and more noise are
    /// post-processing of a higher rate and less noise.
    ///
    /// # Errors
    /// When a round is outside the envelope, or not Poisson sampled.
    pub fn composition(
        &self,
        rounds: &[Rounds],
        adjacency: Adjacency,
    ) -> Result<Composition, Unsupported> {
        // Folding rounds noise multipliers down, so a round at the limit may fall slightly below it. Price that.
        let least = NoiseMultiplier::new(self.noise_multiplier.get() * (1.0 - 1e-12))?;
        let mut count: u64 = 0;
        for entry in rounds.iter().filter(|entry| entry.count > 0) {
            count = count.saturating_add(entry.count);
            let Sampling::Poisson { rate } = entry.round.sampling() else {
                return Err(Unsupported::new("an envelope covers Poisson samples only"));
            };
            let z = entry.round.noise_multiplier()?.get();
            if rate.get() > self.rate.get() || z < least.get() || count > self.rounds {
                return Err(Unsupported::new(format!(
                    "rate {}, noise multiplier {z}, {count} rounds: outside the declared envelope \
                     of rate {}, noise multiplier {}, {} rounds",
                    rate.get(),
                    self.rate.get(),
                    self.noise_multiplier.get(),
                    self.rounds
                )));
            }
        }
        Composition::poisson(self.rate, least, self.rounds, adjacency)
    }
}

/// A Rényi filter: a budget at one order, declared before the first round, under which every later round may be chosen
/// from earlier outputs (Feldman, Zrnic 2021).
///
/// # Guarantee
/// As long as every round is admitted before it runs, all rounds together cost at most
/// [`epsilon`](Self::epsilon) at the declared delta, however they were chosen.
///
/// # Example
/// ```
/// use veilgrad_accounting::{Composition, adaptive::Filter};
/// use veilgrad_events::{Adjacency, Delta, Epsilon, NoiseMultiplier, SampleRate};
///
/// let (rate, noise) = (SampleRate::new(0.01)?, NoiseMultiplier::new(1.0)?);
/// let rounds = |count| Composition::poisson(rate, noise, count, Adjacency::AddRemove);
/// let filter = Filter::for_rounds_like(&rounds(1)?, Epsilon::new(2.0)?, Delta::new(1e-5)?)?;
/// assert!(filter.admits(&rounds(500)?) && !filter.admits(&rounds(2000)?));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Filter {
    order: f64,
    divergence: f64,
    epsilon: Epsilon,
    delta: Delta,
}

impl Filter {
    /// The filter at `order` whose budget is exactly (epsilon, delta).
    ///
    /// # Errors
    /// When the order is not above 1, or too low for any divergence to give this epsilon.
    pub fn new(order: f64, epsilon: Epsilon, delta: Delta) -> Result<Self, Unsupported> {
        if !(order > 1.0 && order.is_finite()) {
            return Err(Unsupported::new(format!("order {order}: must be above 1")));
        }
        let tilt = order - 1.0;
        let conversion_cost = (conversion(tilt).value - delta.get().ln()) / tilt;
        // Rounded down.
        let divergence =
            (epsilon.get() - conversion_cost) - 1e-14 * (epsilon.get() + conversion_cost.abs());
        if !(divergence > 0.0) {
            return Err(Unsupported::new(format!(
                "order {order}: the conversion to (epsilon, delta) alone costs {conversion_cost}, more than {}",
                epsilon.get()
            )));
        }
        Ok(Self { order, divergence, epsilon, delta })
    }

    /// The filter whose order admits the most rounds like `typical` under this budget.
    ///
    /// # Errors
    /// When no order leaves room for any round.
    pub fn for_rounds_like(
        typical: &Composition,
        epsilon: Epsilon,
        delta: Delta,
    ) -> Result<Self, Unsupported> {
        let orders = (0..=80).map(|i| 1.0 + (f64::from(i) * 0.1 - 1.0).exp());
        let share = |filter: &Self| filter.divergence / divergence(typical, filter.order);
        orders
            .filter_map(|order| Self::new(order, epsilon, delta).ok())
            .max_by(|a, b| share(a).total_cmp(&share(b)))
            .ok_or_else(|| Unsupported::new("no order leaves room for any round"))
    }

    /// Whether all these rounds, the next ones included, stay within the budget.
    pub fn admits(&self, rounds: &Composition) -> bool {
        divergence(rounds, self.order) <= self.divergence
    }

    /// The Rényi divergence that all rounds together may have at the filter's order.
    pub const fn divergence(&self) -> f64 {
        self.divergence
    }

    /// The order of the budget.
    pub const fn order(&self) -> f64 {
        self.order
    }

    /// An upper bound on the epsilon of all admitted rounds.
    pub const fn epsilon(&self) -> Epsilon {
        self.epsilon
    }

    /// The declared delta.
    pub const fn delta(&self) -> Delta {
        self.delta
    }
}
