//! Models: a list of layers, and the values of their parameters.

use std::sync::Arc;

use veilgrad_mechanism::{Estimates, Released};

use crate::error::ModelError;
use crate::gemm::Panels;
use crate::layer::{EPSILON, Initial, Layer, Operation, Packed, Parameter, Role};

/// A sequential model: a list of layers, and the values of their parameters.
///
/// Parameters are named after their layer, counted per kind: `conv1.weight`, `linear2.bias`. Clipping
/// groups and files use these names. The shape of a linear weight is `[inputs, outputs]`, that of a
/// convolution's `[height, width, channels, filters]`.
///
/// # Example
/// ```
/// use veilgrad_nn::{Conv2d, Layer, Model};
///
/// let layers = [Conv2d::new(4, 3).into(), Layer::Relu, Layer::Flatten, Layer::linear(10)];
/// let model = Model::new(&[8, 8, 1], layers, 7)?; // images of 8 x 8, and a public seed
/// assert_eq!(model.output(), [10]);
/// assert_eq!(model.size(), (9 * 4 + 4) + (6 * 6 * 4 * 10 + 10));
/// let names: Vec<&str> = model.parameters().map(|(name, ..)| name).collect();
/// assert_eq!(names, ["conv1.weight", "conv1.bias", "linear1.weight", "linear1.bias"]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Model {
    pub(crate) network: Arc<Network>,
    pub(crate) values: Vec<Vec<f32>>,
    /// Which parameters are not trained.
    pub(crate) frozen: Vec<bool>,
}

/// The compiled layers of a model: all that training does not change.
pub(crate) struct Network {
    pub(crate) input: Vec<usize>,
    pub(crate) output: Vec<usize>,
    pub(crate) steps: Vec<Step>,
    pub(crate) parameters: Vec<Parameter>,
    places: Vec<Place>,
}

/// A layer with its name and the shapes of its input and output.
struct Place {
    layer: Layer,
    name: String,
    input: Vec<usize>,
    output: Vec<usize>,
}

/// A layer of a model, in its place.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PlacedLayer<'a> {
    /// The layer.
    pub layer: &'a Layer,
    /// The prefix of the names of its parameters, such as `conv1`; empty if it has none.
    pub name: &'a str,
    /// The shape of its input for one record.
    pub input: &'a [usize],
    /// The shape of its output for one record.
    pub output: &'a [usize],
}

/// An operation, the lengths of its input and output, and the indices of its parameters in the network.
pub(crate) struct Step {
    pub(crate) operation: Box<dyn Operation>,
    pub(crate) inputs: usize,
    pub(crate) outputs: usize,
    pub(crate) parameters: std::ops::Range<usize>,
}

impl Model {
    /// A model of these layers for records of shape `input`, with initial weights from a public seed. The
    /// same seed gives the same weights on every machine.
    ///
    /// # Errors
    /// When a layer does not fit its input.
    pub fn new(
        input: &[usize],
        layers: impl IntoIterator<Item = impl Into<Layer>>,
        seed: u64,
    ) -> Result<Self, ModelError> {
        let layers: Vec<Layer> = layers.into_iter().map(Into::into).collect();
        let network = Network::new(input, &layers)?;
        let mut random = SplitMix64(seed);
        let values = network.parameters.iter().map(|parameter| {
            let value = |_| match parameter.initial {
                Initial::Constant(value) => value,
                Initial::Uniform(limit) => limit * (2.0 * random.unit() - 1.0),
            };
            (0..parameter.length()).map(value).collect()
        });
        let values = values.collect();
        let frozen = vec![false; network.parameters.len()];
        Ok(Self { network: Arc::new(network), values, frozen })
    }

    /// Names, shapes and values of all parameters, including running statistics.
    pub fn parameters(&self) -> impl Iterator<Item = (&str, &[usize], &[f32])> {
        let parameters = self.network.parameters.iter().zip(&self.values);
        parameters.map(|(p, values)| (p.name.as_str(), p.shape.as_slice(), values.as_slice()))
    }

    /// The layers in order, with their names and shapes: for programs that write the model in another format.
    ///
    /// # Example
    /// ```
    /// use veilgrad_nn::{Layer, Model};
    ///
    /// let model = Model::new(&[4], [Layer::linear(8), Layer::Relu, Layer::linear(2)], 1)?;
    /// let layers: Vec<_> = model.layers().map(|layer| (layer.name, layer.output)).collect();
    /// assert_eq!(layers, [("linear1", &[8][..]), ("", &[8]), ("linear2", &[2])]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn layers(&self) -> impl Iterator<Item = PlacedLayer<'_>> {
        self.network.places.iter().map(|place| PlacedLayer {
            layer: &place.layer,
            name: &place.name,
            input: &place.input,
            output: &place.output,
        })
    }

    /// The values of a parameter, by name.
    pub fn parameter(&self, name: &str) -> Option<&[f32]> {
        self.parameters().find(|(known, ..)| *known == name).map(|(.., values)| values)
    }

    /// The values of a parameter, mutable. Never set values that depend on private data other than
    /// through a release: that voids the guarantee.
    pub fn parameter_mut(&mut self, name: &str) -> Option<&mut [f32]> {
        let index = self.network.parameters.iter().position(|p| p.name == name)?;
        self.values.get_mut(index).map(Vec::as_mut_slice)
    }

    /// The number of trained parameters.
    pub fn size(&self) -> usize {
        self.with_role(Role::Weight).map(|(_, parameter)| parameter.length()).sum()
    }

    /// The names of the parameters that match a name or a glob. The exact name of a parameter matches that one only.
    ///
    /// # Errors
    /// When none matches.
    pub fn matching(&self, pattern: &str) -> Result<Vec<String>, ModelError> {
        let names = || self.network.parameters.iter().map(|parameter| parameter.name.as_str());
        let found: Vec<String> = if names().any(|name| name == pattern) {
            vec![pattern.to_owned()]
        } else {
            let glob = glob::Pattern::new(pattern).ok();
            let matches = |name: &&str| glob.as_ref().is_some_and(|glob| glob.matches(name));
            names().filter(matches).map(str::to_owned).collect()
        };
        match found.is_empty() {
            true => {
                Err(ModelError::Pattern(pattern.to_owned(), names().collect::<Vec<_>>().join(", ")))
            }
            false => Ok(found),
        }
    }

    /// Freezes the parameters that match a name or a glob: they are not trained.
    ///
    /// # Guarantee
    /// A frozen parameter keeps its bits. It has no gradient, so that no noise is spent on it, and running statistics that
    /// are frozen are not released.
    ///
    /// # Errors
    /// When none matches, or nothing is left to train; the model is then unchanged.
    ///
    /// # Example
    /// ```
    /// use veilgrad_nn::{Layer, Model};
    ///
    /// let mut model = Model::new(&[4], [Layer::linear(8), Layer::Relu, Layer::linear(2)], 1)?;
    /// model.freeze("linear1.*")?;
    /// assert_eq!(model.size(), 8 * 2 + 2);
    /// assert!(model.freeze("*").is_err() && model.freeze("conv*").is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn freeze(&mut self, pattern: &str) -> Result<(), ModelError> {
        let names = self.matching(pattern)?;
        let mut frozen = self.frozen.clone();
        for (frozen, parameter) in frozen.iter_mut().zip(&self.network.parameters) {
            *frozen |= names.contains(&parameter.name);
        }
        let before = std::mem::replace(&mut self.frozen, frozen);
        if self.size() == 0 {
            self.frozen = before;
            return Err(ModelError::AllFrozen);
        }
        Ok(())
    }

    /// Whether a parameter is frozen.
    #[must_use]
    pub fn is_frozen(&self, name: &str) -> bool {
        let mut parameters = self.network.parameters.iter().zip(&self.frozen);
        parameters.any(|(parameter, frozen)| *frozen && parameter.name == name)
    }

    /// The parameters of a role that are not frozen, with their indices.
    pub(crate) fn with_role(&self, role: Role) -> impl Iterator<Item = (usize, &Parameter)> {
        let parameters = self.network.parameters.iter().enumerate().zip(&self.frozen);
        parameters
            .filter(move |((_, parameter), frozen)| parameter.role == role && !**frozen)
            .map(|(parameter, _)| parameter)
    }

    /// The first step with a parameter that is not frozen: gradients of steps before it are not needed.
    pub(crate) fn first_trained(&self) -> usize {
        let trained = |step: &Step| step.parameters.clone().any(|index| !self.frozen[index]);
        self.network.steps.iter().position(trained).unwrap_or(0)
    }

    /// Moves running statistics towards the released averages of a round.
    pub(crate) fn update_statistics(&mut self, estimates: &Released<Estimates>, momentum: f32) {
        let Self { network, values, frozen } = self;
        let parameters = network.parameters.iter().zip(values).zip(frozen);
        let parameters = parameters.filter(|(_, frozen)| !**frozen).map(|(parameter, _)| parameter);
        for (parameter, values) in parameters.filter(|(p, _)| p.role == Role::Statistic) {
            let Some(estimate) = estimates.vector(&parameter.name) else { continue };
            for (value, estimate) in values.iter_mut().zip(estimate.iter()) {
                *value += momentum * (estimate as f32 - *value);
            }
        }
    }

    /// A plain SGD step on the weights; gradients come with the index of their parameter.
    pub(crate) fn sgd_step<'a>(
        &mut self,
        gradients: impl Iterator<Item = (usize, &'a Vec<f32>)>,
        rate: f32,
    ) {
        for (parameter, gradient) in gradients {
            let trained = self.network.parameters[parameter].role == Role::Weight;
            if trained && !self.frozen[parameter] {
                let pairs = self.values[parameter].iter_mut().zip(gradient);
                pairs.for_each(|(value, gradient)| *value -= rate * gradient);
            }
        }
    }

    /// The shape of a record.
    pub fn input(&self) -> &[usize] {
        &self.network.input
    }

    /// The shape of the output for one record.
    pub fn output(&self) -> &[usize] {
        &self.network.output
    }
}

impl Network {
    fn new(input: &[usize], layers: &[Layer]) -> Result<Self, ModelError> {
        let check_axes = |shape: &[usize]| match shape.contains(&0) {
            true => Err(ModelError::Shape(format!("shape {shape:?} has an axis of length 0"))),
            false => Ok(()),
        };
        check_axes(input)?;
        let mut shape = input.to_vec();
        let (mut steps, mut parameters, mut names) = (Vec::new(), Vec::new(), Vec::new());
        let mut places = Vec::new();
        let mut rest = layers;
        while let Some((layer, after)) = rest.split_first() {
            let fused = after.first().and_then(|next| layer.fused(next, &shape));
            let next = after.first().filter(|_| fused.is_some());
            rest = if fused.is_some() { &after[1..] } else { after };
            let (operation, output) = match fused {
                Some(fused) => fused,
                None => layer.operation(&shape, EPSILON)?,
            };
            check_axes(&output)?;
            let inputs = shape.iter().product();
            let input = std::mem::replace(&mut shape, output);
            let name = layer.name();
            names.push(name);
            let number = names.iter().filter(|other| **other == name).count();
            let place = |layer: &Layer, input: &[usize], output: &[usize]| Place {
                layer: layer.clone(),
                name: if name.is_empty() { String::new() } else { format!("{name}{number}") },
                input: input.to_vec(),
                output: output.to_vec(),
            };
            match next {
                None => places.push(place(layer, &input, &shape)),
                // The first of two layers in one operation leaves the shape as it is.
                Some(next) => {
                    places.extend([place(layer, &input, &input), place(next, &input, &shape)]);
                }
            }
            let Some(operation) = operation else { continue };
            let first = parameters.len();
            let with_layer =
                |p: Parameter| Parameter { name: format!("{name}{number}.{}", p.name), ..p };
            parameters.extend(operation.parameters().into_iter().map(with_layer));
            let (outputs, parameters) = (shape.iter().product(), first..parameters.len());
            steps.push(Step { operation, inputs, outputs, parameters });
        }
        if parameters.is_empty() {
            return Err(ModelError::NoParameters);
        }
        Ok(Self { input: input.to_vec(), output: shape, steps, parameters, places })
    }

    /// The number of weights, frozen or not.
    pub(crate) fn weights(&self) -> usize {
        let weights = self.parameters.iter().filter(|p| p.role == Role::Weight);
        weights.map(Parameter::length).sum()
    }

    pub(crate) fn inputs(&self) -> usize {
        self.input.iter().product()
    }

    pub(crate) fn outputs(&self) -> usize {
        self.output.iter().product()
    }
}

/// Parameters packed for the kernels, once per round.
#[derive(Default)]
pub(crate) struct Prepared {
    panels: Vec<Vec<Panels>>,
}

impl Prepared {
    pub(crate) fn prepare(&mut self, model: &Model) {
        self.panels.resize_with(model.network.steps.len(), Vec::new);
        for (index, (step, panels)) in model.network.steps.iter().zip(&mut self.panels).enumerate()
        {
            step.operation.prepare(&model.values[step.parameters.clone()], index > 0, panels);
        }
    }

    pub(crate) fn packed<'a>(&'a self, model: &'a Model, step: usize) -> Packed<'a> {
        let parameters = model.network.steps[step].parameters.clone();
        Packed { values: &model.values[parameters], panels: &self.panels[step] }
    }
}

/// Pseudorandom numbers from a public seed, for initial weights and tests. Never used for noise or samples.
pub(crate) struct SplitMix64(pub(crate) u64);

impl SplitMix64 {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in [0, 1).
    pub(crate) fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 24) as f32
    }
}
