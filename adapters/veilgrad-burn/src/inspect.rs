//! Lists the parameters of a model, and finds layers that private training cannot use.

use burn::module::{Flag, Module, ModuleVisitor, Param, ParamId};
use burn::tensor::{Gradients, Tensor};

use crate::error::ModelError;
use crate::tape::numbers;

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Parameter {
    /// Its path: the name of its vector in the plan.
    pub(crate) name: String,
    pub(crate) id: ParamId,
    pub(crate) length: usize,
    /// The type that holds it.
    owner: String,
}

#[derive(Debug, Default)]
pub(crate) struct Parameters {
    pub(crate) trained: Vec<Parameter>,
    /// Running statistics of private batch norm.
    pub(crate) statistics: Vec<Parameter>,
    refused: Option<(String, String)>,
    path: ModulePath,
}

/// The current path of a module visitor: names and types of the enclosing modules.
#[derive(Debug, Default)]
pub(crate) struct ModulePath(Vec<(String, String)>);

impl ModulePath {
    pub(crate) fn enter(&mut self, name: &str, container: &str) {
        self.0.push((name.to_owned(), container.to_owned()));
    }

    pub(crate) fn exit(&mut self) {
        self.0.pop();
    }

    pub(crate) fn name(&self) -> String {
        let names: Vec<&str> = self.0.iter().map(|(name, _)| name.as_str()).collect();
        names.join(".")
    }

    /// The type of the innermost module.
    fn owner(&self) -> &str {
        let owner = self.0.last().map_or("", |(_, container)| container.as_str());
        owner.rsplit(':').next().unwrap_or(owner)
    }

    /// Whether the current parameter is a running statistic of private batch norm.
    pub(crate) fn is_statistic(&self) -> bool {
        let last = self.0.last().is_some_and(|(name, _)| name.starts_with("running_"));
        last && self.owner() == "PrivateBatchNorm"
    }
}

/// Burn's layers that have a private counterpart.
const WITH_PRIVATE: &[(&str, &str)] = &[
    ("Linear", "LinearConfig::private"),
    ("Conv1d", "Conv1dConfig::private"),
    ("Conv2d", "Conv2dConfig::private"),
    ("Embedding", "EmbeddingConfig::private"),
    ("LayerNorm", "LayerNormConfig::private"),
    ("GroupNorm", "GroupNormConfig::private"),
    ("InstanceNorm", "GroupNormConfig::private with as many groups as channels"),
    ("MultiHeadAttention", "MultiHeadAttentionConfig::private"),
    ("PositionWiseFeedForward", "two LinearConfig::private"),
];

impl Parameters {
    /// The parameters of a model. If `recorded`, all trained parameters must be in private layers.
    pub(crate) fn of<M: Module>(model: &M, recorded: bool) -> Result<Self, ModelError> {
        let mut parameters = Self::default();
        model.visit(&mut parameters);
        if let Some((layer, instead)) = parameters.refused {
            return Err(ModelError::Layer { layer, instead });
        }
        if parameters.trained.is_empty() {
            return Err(ModelError::NothingTrained);
        }
        let foreign = |p: &&Parameter| !p.owner.starts_with("Private");
        if recorded && let Some(parameter) = parameters.trained.iter().find(foreign) {
            return Err(foreign_layer(parameter));
        }
        Ok(parameters)
    }

    /// Trained parameters, then statistics.
    pub(crate) fn all(&self) -> Vec<Parameter> {
        self.trained.iter().chain(&self.statistics).cloned().collect()
    }
}

/// The error for a trained parameter outside of private layers.
fn foreign_layer(parameter: &Parameter) -> ModelError {
    let known = WITH_PRIVATE.iter().find(|(name, _)| *name == parameter.owner);
    let instead = match known {
        Some((_, instead)) => format!("use {instead}, or TrainingPlan::materialised"),
        None => "it has no private layer; freeze it, build it from private layers, or use \
                 TrainingPlan::materialised"
            .to_owned(),
    };
    ModelError::Layer { layer: format!("'{}' of {}", parameter.name, parameter.owner), instead }
}

impl ModuleVisitor for Parameters {
    fn enter_module(&mut self, name: &str, container_type: &str) {
        self.path.enter(name, container_type);
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.exit();
    }

    fn visit_float<const D: usize>(&mut self, parameter: &Param<Tensor<D>>) {
        let (name, owner) = (self.path.name(), self.path.owner().to_owned());
        let length = parameter.lazy_shape().num_elements();
        let found = Parameter { name, id: parameter.id, length, owner };
        let known = self.trained.iter().chain(&self.statistics).any(|p| p.id == found.id);
        if known {
            return;
        }
        if self.path.is_statistic() {
            self.statistics.push(found);
        } else if parameter.val().is_require_grad() {
            self.trained.push(found);
        }
    }

    fn visit_flag(&mut self, flag: &Param<Flag>) {
        // Burn's batch norm is refused in training mode.
        if self.path.owner() == "BatchNorm" && flag.is_enabled() {
            // The last name of the path is the flag's.
            let name = self.path.name();
            let layer = format!("'{}', a BatchNorm", name.rsplit_once('.').map_or("", |(l, _)| l));
            let instead = "it mixes records; use BatchNormConfig::private with \
                           TrainingPlan::statistics, or a group norm";
            self.refused.get_or_insert((layer, instead.to_owned()));
        }
    }
}

/// Collects the gradients that autodiff computed, in the order of `wanted`.
pub(crate) struct Tracked<'a> {
    gradients: &'a mut Gradients,
    wanted: &'a [Parameter],
    pub(crate) found: Vec<Vec<f32>>,
}

impl<'a> Tracked<'a> {
    pub(crate) fn of<M: Module>(
        model: &M,
        gradients: &'a mut Gradients,
        wanted: &'a [Parameter],
    ) -> Vec<Vec<f32>> {
        let found = wanted.iter().map(|_| Vec::new()).collect();
        let mut tracked = Self { gradients, wanted, found };
        model.visit(&mut tracked);
        tracked.found
    }
}

impl ModuleVisitor for Tracked<'_> {
    fn visit_float<const D: usize>(&mut self, parameter: &Param<Tensor<D>>) {
        let Some(index) = self.wanted.iter().position(|p| p.id == parameter.id) else { return };
        if let Some(gradient) = parameter.val().grad_remove(self.gradients) {
            self.found[index] = numbers(gradient);
        }
    }
}

/// Refuses a model that uses trained parameters outside of private layers.
pub(crate) fn check_untracked<M: Module>(
    model: &M,
    gradients: &mut Gradients,
    trained: &[Parameter],
) -> Result<(), ModelError> {
    let tracked = Tracked::of(model, gradients, trained);
    match trained.iter().zip(tracked).find(|(_, gradient)| !gradient.is_empty()) {
        Some((parameter, _)) => Err(foreign_layer(parameter)),
        None => Ok(()),
    }
}
