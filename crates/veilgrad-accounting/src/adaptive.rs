//! Rounds whose parameters were chosen from earlier outputs.

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

/// Limits, declared before the first round, within which later rounds may be chosen from earlier
/// outputs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Envelope {
    /// No round samples at a higher rate.
    pub rate: SampleRate,
    /// No round has less noise.
    pub noise_multiplier: NoiseMultiplier,
    /// There are not more rounds.
    pub rounds: u64,
}

impl Envelope {
    /// The most that can happen: all rounds, each at both limits.
    ///
    /// # Guarantee
    /// Dominates every adaptive choice within the envelope: a lower rate and more noise are
    /// post-processing of a higher rate and less noise.
    ///
    /// # Errors
    /// When a round is outside of it, or no Poisson sample.
    pub fn composition(
        &self,
        rounds: &[Rounds],
        adjacency: Adjacency,
    ) -> Result<Composition, Unsupported> {
        // Folding rounds noise down, so that a round at the limit may fall a little below it: what is priced is that.
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

/// A budget at one order, declared before the first round, under which every later round may be chosen
/// from earlier outputs (Feldman, Zrnic 2021).
///
/// # Guarantee
/// As long as every round is admitted before it runs, all rounds together cost at most
/// [`epsilon`](Self::epsilon) at the declared delta, however they were chosen.
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

    /// The filter for a budget that lets most rounds like these through.
    ///
    /// # Errors
    /// When no order leaves room for any.
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

    /// The Rényi divergence that all rounds together may have at that order.
    pub const fn divergence(&self) -> f64 {
        self.divergence
    }

    /// The order of the budget.
    pub const fn order(&self) -> f64 {
        self.order
    }

    /// What all admitted rounds cost at most.
    pub const fn epsilon(&self) -> Epsilon {
        self.epsilon
    }

    /// The delta for which this was declared.
    pub const fn delta(&self) -> Delta {
        self.delta
    }
}
