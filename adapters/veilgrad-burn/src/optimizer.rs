//! Burn optimizers on released estimates.

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::optim::{GradientsParams, LearningRate, ModuleOptimizer};
use burn::tensor::{Tensor, TensorData};
use veilgrad_mechanism::{Estimates, Released};

use crate::inspect::ModulePath;
use crate::tape::numbers;

/// A Burn optimizer that accepts only released estimates.
///
/// ```
/// # use burn::optim::SgdConfig;
/// # use veilgrad_burn::PrivateOptimizer;
/// # use veilgrad_mechanism::{Estimates, Released};
/// # fn step<M: burn::module::Module>(model: M, released: Released<Estimates>) -> M {
/// let mut optimizer = PrivateOptimizer::new(SgdConfig::new().init());
/// optimizer.step(0.1, model, &released)
/// # }
/// ```
///
/// Raw gradients do not compile:
///
/// ```compile_fail,E0308
/// # use burn::optim::{GradientsParams, SgdConfig};
/// # use veilgrad_burn::PrivateOptimizer;
/// # fn step<M: burn::module::Module>(model: M, raw: GradientsParams) -> M {
/// let mut optimizer = PrivateOptimizer::new(SgdConfig::new().init());
/// optimizer.step(0.1, model, &raw)
/// # }
/// ```
#[derive(Clone)]
pub struct PrivateOptimizer {
    pub(crate) optimizer: ModuleOptimizer,
    pub(crate) momentum: f32,
}

impl PrivateOptimizer {
    /// Wraps an optimizer: `AdamConfig::new().init()`, or any other.
    pub fn new(optimizer: impl Into<ModuleOptimizer>) -> Self {
        Self { optimizer: optimizer.into(), momentum: 0.1 }
    }

    /// Sets the momentum of the running statistics of private batch norm; 0.1 by default.
    #[must_use]
    pub const fn statistics_momentum(mut self, momentum: f32) -> Self {
        self.momentum = momentum;
        self
    }

    /// Updates a model from the released estimates of a round: weights by the wrapped optimizer, running
    /// statistics towards the released averages.
    ///
    /// # Guarantee
    /// Post-processing: the new model is a function of the old one and of released estimates.
    pub fn step<M: Module>(
        &mut self,
        rate: LearningRate,
        model: M,
        released: &Released<Estimates>,
    ) -> M {
        let mut visitor = Decode {
            path: ModulePath::default(),
            released,
            gradients: GradientsParams::new(),
            statistics: Vec::new(),
        };
        model.visit(&mut visitor);
        let Decode { gradients, statistics, .. } = visitor;
        let model = self.optimizer.step(rate, model, gradients);
        if statistics.is_empty() {
            return model;
        }
        let moved = follow(&statistics, released, self.momentum);
        model.map(&mut Replace { path: ModulePath::default(), moved })
    }
}

/// Converts estimates to gradients, and collects the current running statistics.
struct Decode<'a> {
    path: ModulePath,
    released: &'a Released<Estimates>,
    gradients: GradientsParams,
    statistics: Vec<(String, Vec<f32>)>,
}

impl ModuleVisitor for Decode<'_> {
    fn enter_module(&mut self, name: &str, container_type: &str) {
        self.path.enter(name, container_type);
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.exit();
    }

    fn visit_float<const D: usize>(&mut self, parameter: &Param<Tensor<D>>) {
        let name = self.path.name();
        if self.path.is_statistic() {
            self.statistics.push((name, numbers(parameter.val())));
            return;
        }
        let Some(estimate) = self.released.vector(&name) else { return };
        let mut values = Vec::with_capacity(parameter.val().shape().num_elements());
        estimate.for_each_run(|_, run| values.extend_from_slice(run));
        let (shape, device) = (parameter.val().shape(), parameter.val().device().inner());
        let gradient = Tensor::<D>::from_data(TensorData::new(values, shape), &device);
        self.gradients.register(parameter.id, gradient);
    }
}

/// The running statistics after a round: mean and mean square move towards the estimates, and the variance is
/// computed from both.
fn follow(
    statistics: &[(String, Vec<f32>)],
    released: &Released<Estimates>,
    momentum: f32,
) -> Vec<(String, Vec<f32>)> {
    let mut moved = Vec::new();
    for (mean_name, mean) in statistics.iter().filter(|(name, _)| name.ends_with("running_mean")) {
        let name = mean_name.replace("running_mean", "running_var");
        let Some((_, variance)) = statistics.iter().find(|(n, _)| *n == name) else { continue };
        let estimates = released.vector(mean_name).zip(released.vector(&name));
        let Some((means, mean_squares)) = estimates else { continue };
        let (mut new_mean, mut new_variance) = (mean.clone(), variance.clone());
        let estimates = means.iter().zip(mean_squares.iter());
        for ((mean, variance), (to_mean, to_square)) in
            new_mean.iter_mut().zip(&mut new_variance).zip(estimates)
        {
            let square = *variance + *mean * *mean;
            let square = square + momentum * (to_square as f32 - square);
            *mean += momentum * (to_mean as f32 - *mean);
            // Noise may make the difference negative.
            *variance = (square - *mean * *mean).max(0.0);
        }
        moved.extend([(mean_name.clone(), new_mean), (name, new_variance)]);
    }
    moved
}

/// Replaces the values of running statistics.
struct Replace {
    path: ModulePath,
    moved: Vec<(String, Vec<f32>)>,
}

impl ModuleMapper for Replace {
    fn enter_module(&mut self, name: &str, container_type: &str) {
        self.path.enter(name, container_type);
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.exit();
    }

    fn map_float<const D: usize>(&mut self, parameter: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let name = self.path.name();
        let Some((_, values)) = self.moved.iter().find(|(n, _)| *n == name) else {
            return parameter;
        };
        let values = values.clone();
        parameter.map(|old| {
            Tensor::from_data(TensorData::new(values, old.shape()), &old.device()).detach()
        })
    }
}
