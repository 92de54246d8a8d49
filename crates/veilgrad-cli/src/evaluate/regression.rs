//! Metrics of predicted numbers on public examples.

use serde_json::{Value, json};

use super::evaluation::NOTICE;
use crate::output::table;
use crate::train::data::{label_number, number};

/// The metrics of a model whose label is a number, in the unit of the label; with the definitions of scikit-learn.
pub(super) struct Regression {
    /// How many examples the file has.
    examples: usize,
    /// Examples whose label is not a number. They do not count.
    without_label: usize,
    /// Examples that are not finite, so that the model predicts nothing. They do not count.
    without_prediction: usize,
    mean_absolute_error: f64,
    root_mean_squared_error: f64,
    /// The share of the variance that is explained; `None` if all labels are equal.
    r2: Option<f64>,
}

impl Regression {
    /// `None` if no example has both a label and a prediction. Predictions are within the bounds; labels need not be.
    pub(super) fn new(outputs: &[f32], labels: &[f32], bounds: [f64; 2]) -> Option<Self> {
        let (mut pairs, mut without_label, mut without_prediction) = (Vec::new(), 0, 0);
        for (output, label) in outputs.iter().zip(labels) {
            match (label_number(*label, bounds), number(*output, bounds)) {
                (None, _) => without_label += 1,
                (_, None) => without_prediction += 1,
                (Some(label), Some(predicted)) => pairs.push((label, predicted)),
            }
        }
        if pairs.is_empty() {
            return None;
        }
        let count = pairs.len() as f64;
        let mean = |of: &dyn Fn(&(f64, f64)) -> f64| pairs.iter().map(of).sum::<f64>() / count;
        let mean_label = mean(&|(label, _)| *label);
        let variance = mean(&|(label, _)| (label - mean_label).powi(2));
        let mean_square = mean(&|(label, predicted)| (label - predicted).powi(2));
        Some(Self {
            examples: labels.len(),
            without_label,
            without_prediction,
            mean_absolute_error: mean(&|(label, predicted)| (label - predicted).abs()),
            root_mean_squared_error: mean_square.sqrt(),
            r2: (variance > 0.0).then(|| 1.0 - mean_square / variance),
        })
    }

    pub(super) fn document(&self) -> Value {
        json!({
            "schema": 1,
            "private": false,
            "notice": NOTICE,
            "examples": self.examples,
            "evaluated": self.examples - self.without_label - self.without_prediction,
            "without_label": self.without_label,
            "without_prediction": self.without_prediction,
            "mean_absolute_error": self.mean_absolute_error,
            "root_mean_squared_error": self.root_mean_squared_error,
            "r2": self.r2,
        })
    }

    pub(super) fn text(&self) -> String {
        let left_out = match (self.without_label, self.without_prediction) {
            (0, 0) => String::new(),
            (labels, predictions) => format!(
                ", of which {labels} without a label and {predictions} without a prediction do not count"
            ),
        };
        let r2 = self.r2.map_or("none: all labels are equal".to_owned(), |r2| format!("{r2:.4}"));
        let rows = [
            ("examples", format!("{}{left_out}", self.examples)),
            ("mean absolute error", format!("{:.6}", self.mean_absolute_error)),
            ("root mean squared error", format!("{:.6}", self.root_mean_squared_error)),
            ("R squared", r2),
        ];
        format!("{NOTICE}\n{}", table(&rows))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values of scikit-learn's mean_absolute_error, mean_squared_error and r2_score.
    #[test]
    fn errors_have_the_definitions_of_scikit_learn() {
        // Bounds 0 and 10: labels 1, 5, 9, 12 (outside) and NaN; predictions 2, 5, 10 (clamped), 10 and 3.
        let outputs = [-0.6, 0.0, 1.4, 1.0, -0.4];
        let labels = [-0.8, 0.0, 0.8, 1.4, f32::NAN];
        let found = Regression::new(&outputs, &labels, [0.0, 10.0]).unwrap();
        assert_eq!((found.examples, found.without_label, found.without_prediction), (5, 1, 0));
        assert!((found.mean_absolute_error - 1.0).abs() < 1e-6);
        assert!((found.root_mean_squared_error - 1.5f64.sqrt()).abs() < 1e-6);
        assert!((found.r2.unwrap() - (1.0 - 6.0 / 68.75)).abs() < 1e-6);
        assert!(Regression::new(&[f32::NAN], &[0.5], [0.0, 1.0]).is_none());
        assert_eq!(Regression::new(&[0.5], &[0.5], [0.0, 1.0]).unwrap().r2, None);
    }
}
