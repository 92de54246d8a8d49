//! Predicted classes and their probabilities, from the outputs of a model; beside the labels of public examples, the accuracy.

/// The predicted class of an example, and the probabilities of all classes.
pub(crate) struct Prediction {
    pub(crate) class: usize,
    pub(crate) probabilities: Vec<f64>,
}

impl Prediction {
    /// The class of the largest output, and the softmax of all outputs for one example. Of equal outputs the first is
    /// predicted, as in scikit-learn. `None` if an output is NaN: an example that is not finite has no prediction.
    pub(crate) fn new(outputs: &[f32]) -> Option<Self> {
        if outputs.iter().any(|value| value.is_nan()) {
            return None;
        }
        let most = outputs.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let class = outputs.iter().position(|value| *value == most)?;
        let powers: Vec<f64> = outputs.iter().map(|value| f64::from(value - most).exp()).collect();
        let sum: f64 = powers.iter().sum();
        Some(Self { class, probabilities: powers.iter().map(|power| power / sum).collect() })
    }

    /// The probability of the predicted class.
    pub(crate) fn probability(&self) -> f64 {
        self.probabilities.get(self.class).copied().unwrap_or(0.0)
    }
}

/// An example with its class and the prediction of a model.
pub(crate) struct Judged {
    pub(crate) label: usize,
    pub(crate) predicted: usize,
    pub(crate) probabilities: Vec<f64>,
}

/// The predictions of a model for **public** examples, beside their labels. An example without a declared class or without a
/// prediction counts neither as right nor as wrong.
pub(crate) struct Judgement {
    /// The examples that count.
    pub(crate) judged: Vec<Judged>,
    /// How many examples have a label that is none of the declared classes.
    pub(crate) without_label: usize,
    /// How many examples have a class, but are not finite, so that the model predicts nothing.
    pub(crate) without_prediction: usize,
}

impl Judgement {
    /// From `classes` outputs per example, example after example, and one label each.
    pub(crate) fn new(classes: usize, outputs: &[f32], labels: &[f32]) -> Self {
        let mut found = Self { judged: Vec::new(), without_label: 0, without_prediction: 0 };
        for (outputs, label) in outputs.chunks_exact(classes.max(1)).zip(labels) {
            let class = *label as usize;
            let known = class as f32 == *label && class < classes;
            match Prediction::new(outputs) {
                _ if !known => found.without_label += 1,
                None => found.without_prediction += 1,
                Some(Prediction { class: predicted, probabilities }) => {
                    found.judged.push(Judged { label: class, predicted, probabilities });
                }
            }
        }
        found
    }

    /// The share of examples whose class is predicted; `None` if no example counts.
    pub(crate) fn accuracy(&self) -> Option<f64> {
        let right = self.judged.iter().filter(|example| example.predicted == example.label).count();
        (!self.judged.is_empty()).then(|| right as f64 / self.judged.len() as f64)
    }
}

/// The prediction of a number, from an output of the model: scaled back to its bounds, and clamped to them. `None` for NaN.
pub(crate) fn number(output: f32, [low, high]: [f64; 2]) -> Option<f64> {
    let scaled = f64::from(output).clamp(-1.0, 1.0);
    let value = (0.5 * low + 0.5 * high) + scaled * (0.5 * high - 0.5 * low);
    (!output.is_nan()).then(|| value.clamp(low, high))
}

/// The predictions of a model for **public** examples, beside their labels, which are numbers. An example without a number or
/// without a prediction does not count.
pub(crate) struct NumberJudgement {
    /// Label and prediction of the examples that count, in the unit of the label. Predictions are within the bounds; labels
    /// need not be.
    pub(crate) pairs: Vec<(f64, f64)>,
    /// How many examples have a label that is not a finite number.
    pub(crate) without_label: usize,
    /// How many examples have a label, but are not finite, so that the model predicts nothing.
    pub(crate) without_prediction: usize,
}

impl NumberJudgement {
    /// From one output and one label per example.
    pub(crate) fn new(bounds: [f64; 2], outputs: &[f32], labels: &[f64]) -> Self {
        let mut found = Self { pairs: Vec::new(), without_label: 0, without_prediction: 0 };
        for (output, label) in outputs.iter().zip(labels) {
            match number(*output, bounds) {
                _ if !label.is_finite() => found.without_label += 1,
                None => found.without_prediction += 1,
                Some(predicted) => found.pairs.push((*label, predicted)),
            }
        }
        found
    }

    /// `None` if no example counts.
    pub(crate) fn mean_absolute_error(&self) -> Option<f64> {
        let errors = self.pairs.iter().map(|(label, predicted)| (label - predicted).abs());
        (!self.pairs.is_empty()).then(|| errors.sum::<f64>() / self.pairs.len() as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `numpy.argmax`, by which scikit-learn predicts, takes the first of equal values; 0 and -0 are equal.
    #[test]
    fn the_first_of_equal_outputs_is_predicted() {
        let class = |outputs: &[f32]| Prediction::new(outputs).map(|found| found.class);
        assert_eq!(class(&[0.0, 0.0, 0.0]), Some(0));
        assert_eq!(class(&[-1.0, 2.0, 2.0]), Some(1));
        assert_eq!(class(&[-0.0, 0.0]), Some(0));
        assert_eq!(class(&[0.0, f32::NAN]), None);
        assert_eq!(class(&[]), None);
    }

    #[test]
    fn a_model_of_zeros_is_right_for_the_first_class_alone() {
        let found = Judgement::new(3, &[0.0; 12], &[0.0, 1.0, 2.0, 1.0]);
        assert_eq!(found.accuracy(), Some(0.25));
    }

    #[test]
    fn examples_without_a_declared_class_or_a_prediction_are_neither_right_nor_wrong() {
        let outputs = [1.0, 0.0, 0.0, 1.0, f32::NAN, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0];
        let labels = [0.0, 0.0, 0.0, f32::NAN, 2.0, 0.5];
        let found = Judgement::new(2, &outputs, &labels);
        assert_eq!((found.judged.len(), found.without_label, found.without_prediction), (2, 3, 1));
        assert_eq!(found.accuracy(), Some(0.5));
        assert_eq!(Judgement::new(2, &outputs, &[f32::NAN; 6]).accuracy(), None);
    }
}
