//! Optimizers and learning rate schedules. Optimizers see released estimates and nothing else.

use std::collections::BTreeMap;

use veilgrad_mechanism::{Estimates, Released};

use crate::layer::Role;
use crate::{Model, ModelError};

/// An optimizer: updates weights from the released gradients of a round. Open for implementors.
pub trait Optimizer {
    /// Takes one step. `round` counts from 1; the gradient of parameter `name` is
    /// `released.vector(name)`, an average over the public expected number of records.
    fn step(&mut self, weights: Weights<'_>, released: &Released<Estimates>, rate: f64, round: u64);

    /// The state to save in a checkpoint, by name.
    fn state(&self) -> BTreeMap<String, Vec<f32>> {
        BTreeMap::new()
    }

    /// The format of [`state`](Optimizer::state): an optimizer restores only states of its own kind.
    fn kind(&self) -> String;

    /// Restores a [`state`](Optimizer::state) that was saved with the same model.
    ///
    /// # Errors
    /// When the state does not fit the model or is not finite. The optimizer must then be unchanged.
    fn restore(
        &mut self,
        _state: BTreeMap<String, Vec<f32>>,
        _model: &Model,
    ) -> Result<(), ModelError> {
        Ok(())
    }
}

impl<O: Optimizer + ?Sized> Optimizer for Box<O> {
    fn step(
        &mut self,
        weights: Weights<'_>,
        released: &Released<Estimates>,
        rate: f64,
        round: u64,
    ) {
        (**self).step(weights, released, rate, round);
    }

    fn state(&self) -> BTreeMap<String, Vec<f32>> {
        (**self).state()
    }

    fn kind(&self) -> String {
        (**self).kind()
    }

    fn restore(
        &mut self,
        state: BTreeMap<String, Vec<f32>>,
        model: &Model,
    ) -> Result<(), ModelError> {
        (**self).restore(state, model)
    }
}

/// The trained parameters of a model, for an [`Optimizer`] to update.
pub struct Weights<'a>(pub(crate) &'a mut Model);

impl Weights<'_> {
    /// Names and values of the parameters.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (&str, &mut [f32])> {
        let Model { network, values, frozen } = &mut *self.0;
        let parameters = network.parameters.iter().zip(values).zip(frozen);
        let trained = parameters.filter(|((p, _), frozen)| p.role == Role::Weight && !**frozen);
        trained.map(|((p, values), _)| (p.name.as_str(), values.as_mut_slice()))
    }
}

/// An update rule for one weight, with a state of `N` numbers per weight.
///
/// # Example
/// ```
/// use veilgrad_nn::{Optimizer, PerWeight, Rule, Step};
///
/// struct SignSgd;
///
/// impl Rule<0> for SignSgd {
///     const NAME: &'static str = "sign-sgd";
///
///     fn update(&self, weight: f32, gradient: f32, _: &mut [f32; 0], step: Step) -> f32 {
///         weight - step.rate * gradient.signum()
///     }
/// }
///
/// assert_eq!(PerWeight::new(SignSgd).kind(), "sign-sgd/0");
/// ```
pub trait Rule<const N: usize> {
    /// The name of the rule in checkpoints.
    const NAME: &'static str;

    /// The weight after a step.
    fn update(&self, weight: f32, gradient: f32, memory: &mut [f32; N], step: Step) -> f32;
}

/// The learning rate and the round number of an optimizer step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Step {
    /// The learning rate.
    pub rate: f32,
    /// The number of the round, from 1.
    pub round: u64,
}

/// An optimizer that applies one [`Rule`] to every weight.
#[derive(Debug, Clone)]
pub struct PerWeight<R, const N: usize> {
    rule: R,
    memory: BTreeMap<String, Vec<[f32; N]>>,
}

impl<R: Rule<N>, const N: usize> PerWeight<R, N> {
    /// An optimizer with an empty state.
    pub const fn new(rule: R) -> Self {
        Self { rule, memory: BTreeMap::new() }
    }

    /// Updates the weights of one parameter from the released vector of its name; leaves them as they are if there is none.
    /// For servers whose model is not a [`Model`]; [`Optimizer::step`] does this for all parameters of one.
    ///
    /// # Example
    /// ```
    /// use veilgrad_mechanism::{Estimates, Released};
    /// use veilgrad_nn::{PerWeight, Step, Yogi};
    ///
    /// fn server_step(
    ///     weights: &mut [f32],
    ///     server: &mut PerWeight<Yogi, 2>,
    ///     released: &Released<Estimates>,
    ///     round: u64,
    /// ) {
    ///     server.update("weight", weights, released, Step { rate: 0.01, round });
    /// }
    /// ```
    pub fn update(
        &mut self,
        name: &str,
        weights: &mut [f32],
        released: &Released<Estimates>,
        step: Step,
    ) {
        let Some(gradient) = released.vector(name) else { return };
        let memory = self.memory.entry(name.to_owned()).or_default();
        memory.resize(weights.len(), [0.0; N]);
        gradient.for_each_run(|first, gradient| {
            let weights = weights.iter_mut().skip(first).zip(memory.iter_mut().skip(first));
            for ((weight, memory), gradient) in weights.zip(gradient) {
                *weight = self.rule.update(*weight, *gradient, memory, step);
            }
        });
    }
}

impl<R: Rule<N>, const N: usize> Optimizer for PerWeight<R, N> {
    fn step(
        &mut self,
        mut weights: Weights<'_>,
        released: &Released<Estimates>,
        rate: f64,
        round: u64,
    ) {
        let step = Step { rate: rate as f32, round };
        for (name, weights) in weights.iter_mut() {
            self.update(name, weights, released, step);
        }
    }

    fn state(&self) -> BTreeMap<String, Vec<f32>> {
        let flat = |(name, memory): (&String, &Vec<[f32; N]>)| {
            (name.clone(), memory.iter().flatten().copied().collect())
        };
        self.memory.iter().map(flat).collect()
    }

    fn kind(&self) -> String {
        format!("{}/{N}", R::NAME)
    }

    fn restore(
        &mut self,
        state: BTreeMap<String, Vec<f32>>,
        model: &Model,
    ) -> Result<(), ModelError> {
        let weights = model.with_role(Role::Weight);
        let lengths: BTreeMap<&str, usize> =
            weights.map(|(_, p)| (p.name.as_str(), p.length())).collect();
        let wrong = |name: &str| ModelError::State(name.to_owned());
        // Before the first step there is no state; afterwards, every weight has one.
        if let Some(name) = lengths.keys().find(|n| !state.is_empty() && !state.contains_key(**n)) {
            return Err(wrong(name));
        }
        for (name, values) in &state {
            let fits = lengths.get(name.as_str()).is_some_and(|length| values.len() == N * length);
            if !fits || values.iter().any(|value| !value.is_finite()) {
                return Err(wrong(name));
            }
        }
        let memory = |(name, values): (String, Vec<f32>)| {
            let per_weight =
                values.chunks_exact(N.max(1)).filter_map(|state| state.try_into().ok());
            (name, per_weight.collect())
        };
        self.memory = state.into_iter().map(memory).collect();
        Ok(())
    }
}

/// Plain SGD, without momentum; see [`Sgd::plain`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GradientDescent;

/// SGD with momentum.
///
/// # Example
/// ```
/// use veilgrad_nn::{Adam, Optimizer, Sgd};
///
/// let optimizers: [Box<dyn Optimizer>; 3] =
///     [Box::new(Sgd::plain()), Box::new(Sgd::with_momentum(0.9)), Box::new(Adam::standard())];
/// assert_eq!(optimizers.map(|optimizer| optimizer.kind()), ["plain/0", "sgd/1", "adam/2"]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sgd {
    /// The momentum coefficient.
    pub momentum: f32,
    /// Whether it is Nesterov momentum.
    pub nesterov: bool,
}

/// Adam (Kingma and Ba 2015), or AdamW (Loshchilov and Hutter 2019) with weight decay.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Adam {
    /// Decay of the first moment.
    pub beta1: f32,
    /// Decay of the second moment.
    pub beta2: f32,
    /// Added to the denominator.
    pub epsilon: f32,
    /// Decoupled weight decay.
    pub decay: f32,
}

/// Yogi (Zaheer et al. 2018): like Adam, but its mean square changes by a bounded amount, so that rates do not grow
/// suddenly after small gradients. A server optimizer of federated learning (Reddi et al. 2021).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Yogi {
    /// Decay of the first moment.
    pub beta1: f32,
    /// Decay of the second moment.
    pub beta2: f32,
    /// Added to the denominator.
    pub epsilon: f32,
}

/// Adagrad (Duchi et al. 2011).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Adagrad {
    /// Added to the denominator.
    pub epsilon: f32,
}

/// RMSprop (Tieleman and Hinton 2012).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RmsProp {
    /// Decay of the mean square.
    pub decay: f32,
    /// Added to the denominator.
    pub epsilon: f32,
}

impl Sgd {
    /// SGD without momentum.
    pub const fn plain() -> PerWeight<GradientDescent, 0> {
        PerWeight::new(GradientDescent)
    }

    /// SGD with momentum.
    pub const fn with_momentum(momentum: f32) -> PerWeight<Self, 1> {
        PerWeight::new(Self { momentum, nesterov: false })
    }

    /// SGD with Nesterov momentum.
    pub const fn nesterov(momentum: f32) -> PerWeight<Self, 1> {
        PerWeight::new(Self { momentum, nesterov: true })
    }
}

impl Adam {
    /// Adam with its authors' settings.
    pub const fn standard() -> PerWeight<Self, 2> {
        Self::with_decay(0.0)
    }

    /// AdamW with this weight decay, otherwise as [`standard`](Self::standard).
    pub const fn with_decay(decay: f32) -> PerWeight<Self, 2> {
        PerWeight::new(Self { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, decay })
    }
}

impl Yogi {
    /// Yogi with its authors' settings.
    pub const fn standard() -> PerWeight<Self, 2> {
        PerWeight::new(Self { beta1: 0.9, beta2: 0.999, epsilon: 1e-3 })
    }
}

impl Adagrad {
    /// Adagrad with epsilon 1e-10.
    pub const fn standard() -> PerWeight<Self, 1> {
        PerWeight::new(Self { epsilon: 1e-10 })
    }
}

impl RmsProp {
    /// RMSprop with decay 0.99 and epsilon 1e-8.
    pub const fn standard() -> PerWeight<Self, 1> {
        PerWeight::new(Self { decay: 0.99, epsilon: 1e-8 })
    }
}

impl Rule<0> for GradientDescent {
    const NAME: &'static str = "plain";

    fn update(&self, weight: f32, gradient: f32, _: &mut [f32; 0], step: Step) -> f32 {
        weight - step.rate * gradient
    }
}

impl Rule<1> for Sgd {
    const NAME: &'static str = "sgd";

    fn update(&self, weight: f32, gradient: f32, velocity: &mut [f32; 1], step: Step) -> f32 {
        velocity[0] = self.momentum * velocity[0] + gradient;
        let direction =
            if self.nesterov { gradient + self.momentum * velocity[0] } else { velocity[0] };
        weight - step.rate * direction
    }
}

impl Rule<2> for Adam {
    const NAME: &'static str = "adam";

    fn update(&self, weight: f32, gradient: f32, memory: &mut [f32; 2], step: Step) -> f32 {
        let [mean, square] = memory;
        *mean = self.beta1 * *mean + (1.0 - self.beta1) * gradient;
        *square = self.beta2 * *square + (1.0 - self.beta2) * gradient * gradient;
        let round = i32::try_from(step.round).unwrap_or(i32::MAX);
        let mean = *mean / (1.0 - self.beta1.powi(round));
        let square = *square / (1.0 - self.beta2.powi(round));
        let weight = weight - step.rate * self.decay * weight;
        weight - step.rate * mean / (square.sqrt() + self.epsilon)
    }
}

impl Rule<2> for Yogi {
    const NAME: &'static str = "yogi";

    fn update(&self, weight: f32, gradient: f32, memory: &mut [f32; 2], step: Step) -> f32 {
        let [mean, square] = memory;
        *mean = self.beta1 * *mean + (1.0 - self.beta1) * gradient;
        let new = gradient * gradient;
        let direction = f32::from(*square < new) - f32::from(*square > new);
        *square += direction * (1.0 - self.beta2) * new;
        let round = i32::try_from(step.round).unwrap_or(i32::MAX);
        let mean = *mean / (1.0 - self.beta1.powi(round));
        let square = *square / (1.0 - self.beta2.powi(round));
        weight - step.rate * mean / (square.sqrt() + self.epsilon)
    }
}

impl Rule<1> for Adagrad {
    const NAME: &'static str = "adagrad";

    fn update(&self, weight: f32, gradient: f32, squares: &mut [f32; 1], step: Step) -> f32 {
        squares[0] += gradient * gradient;
        weight - step.rate * gradient / (squares[0].sqrt() + self.epsilon)
    }
}

impl Rule<1> for RmsProp {
    const NAME: &'static str = "rmsprop";

    fn update(&self, weight: f32, gradient: f32, square: &mut [f32; 1], step: Step) -> f32 {
        square[0] = self.decay * square[0] + (1.0 - self.decay) * gradient * gradient;
        weight - step.rate * gradient / (square[0].sqrt() + self.epsilon)
    }
}

/// A learning rate schedule: a function of the round number alone.
///
/// # Example
/// ```
/// use veilgrad_nn::Schedule;
///
/// let rate = Schedule::Cosine { first: 0.5, last: 0.0, warmup: 10, rounds: 100 };
/// assert_eq!(rate.rate(9), 0.5); // after the warmup
/// assert!(rate.rate(99) < 0.001); // at the end
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Schedule {
    /// A constant rate.
    Constant(f64),
    /// Step decay: multiplied by `factor` after every `every` rounds.
    Steps {
        /// The rate of the first round.
        first: f64,
        /// The factor of a step.
        factor: f64,
        /// Rounds between steps.
        every: u64,
    },
    /// Linear warmup, then cosine decay.
    Cosine {
        /// The rate after the warmup.
        first: f64,
        /// The rate at the end.
        last: f64,
        /// Rounds of the warmup.
        warmup: u64,
        /// Rounds in all, including the warmup.
        rounds: u64,
    },
    /// Linear decay from `first` to `last` over `rounds`.
    Linear {
        /// The rate of the first round.
        first: f64,
        /// The rate at the end.
        last: f64,
        /// Rounds in all.
        rounds: u64,
    },
}

impl Schedule {
    /// The rate of a round, counted from 0.
    pub fn rate(&self, round: u64) -> f64 {
        let fraction = |round: u64, total: u64| (round as f64 / total.max(1) as f64).min(1.0);
        match *self {
            Self::Constant(rate) => rate,
            Self::Steps { first, factor, every } => {
                first * factor.powf((round / every.max(1)) as f64)
            }
            Self::Cosine { first, warmup, .. } if round < warmup => {
                first * (round + 1) as f64 / warmup as f64
            }
            Self::Cosine { first, last, warmup, rounds } => {
                let done = fraction(round - warmup, rounds.saturating_sub(warmup));
                last + (first - last) * (1.0 + (std::f64::consts::PI * done).cos()) / 2.0
            }
            Self::Linear { first, last, rounds } => {
                first + (last - first) * fraction(round, rounds)
            }
        }
    }
}

/// An exponential moving average of weights.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct WeightAverage {
    pub(crate) decay: f32,
    pub(crate) values: Vec<Vec<f32>>,
}

impl WeightAverage {
    pub(crate) fn add(&mut self, model: &Model, round: u64) {
        // A smaller decay in early rounds, so that the average forgets the initial weights.
        let early = (1.0 + round as f32) / (10.0 + round as f32);
        let decay = if early < self.decay { early } else { self.decay };
        // Frozen parameters keep their bits: an average of two values -0.0 would be 0.0.
        let pairs = self.values.iter_mut().zip(&model.values).zip(&model.frozen);
        for ((average, values), _) in pairs.filter(|(_, frozen)| !**frozen) {
            for (average, value) in average.iter_mut().zip(values) {
                *average += (1.0 - decay) * (value - *average);
            }
        }
    }
}

#[cfg(test)]
mod tests;
