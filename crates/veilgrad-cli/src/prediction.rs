//! Predicted classes and their probabilities, from the outputs of a model.

/// The predicted class of an example, and the probabilities of all classes.
pub(crate) struct Prediction {
    pub(crate) class: usize,
    pub(crate) probabilities: Vec<f64>,
}

impl Prediction {
    /// The softmax of a model's outputs for one example. `None` if an output is NaN: an example that is not finite has no
    /// prediction.
    pub(crate) fn new(outputs: &[f32]) -> Option<Self> {
        if outputs.iter().any(|value| value.is_nan()) {
            return None;
        }
        let most = outputs.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let powers: Vec<f64> = outputs.iter().map(|value| f64::from(value - most).exp()).collect();
        let sum: f64 = powers.iter().sum();
        let (class, _) = outputs.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1))?;
        Some(Self { class, probabilities: powers.iter().map(|power| power / sum).collect() })
    }

    /// The probability of the predicted class.
    pub(crate) fn probability(&self) -> f64 {
        self.probabilities.get(self.class).copied().unwrap_or(0.0)
    }
}
