//! Metrics of predicted numbers on public examples.

use serde_json::{Value, json};

use super::evaluation::NOTICE;
use crate::output::{significant, table};
use crate::prediction::NumberJudgement;

/// The significant digits of errors in tables.
const DIGITS: usize = 6;
/// How many points a chart of errors has at most.
const MOST_POINTS: usize = 200;
/// How many groups of examples with similar labels a chart has at most.
const MOST_GROUPS: usize = 10;

/// The metrics of a model whose label is a number, in the unit of the label; with the definitions of scikit-learn.
pub(super) struct Regression {
    /// How many examples the file has.
    examples: usize,
    /// The examples that count, and how many do not.
    judgement: NumberJudgement,
    mean_absolute_error: f64,
    root_mean_squared_error: f64,
    /// The share of the variance that is explained; `None` if all labels are equal.
    r2: Option<f64>,
}

impl Regression {
    /// `None` if no example has both a label and a prediction. Predictions are within the bounds; labels need not be.
    pub(super) fn new(outputs: &[f32], labels: &[f64], bounds: [f64; 2]) -> Option<Self> {
        let judgement = NumberJudgement::new(bounds, outputs, labels);
        let mean_absolute_error = judgement.mean_absolute_error()?;
        let pairs = &judgement.pairs;
        let count = pairs.len() as f64;
        let mean = |of: &dyn Fn(&(f64, f64)) -> f64| pairs.iter().map(of).sum::<f64>() / count;
        let mean_label = mean(&|(label, _)| *label);
        let variance = mean(&|(label, _)| (label - mean_label).powi(2));
        let mean_square = mean(&|(label, predicted)| (label - predicted).powi(2));
        Some(Self {
            examples: labels.len(),
            mean_absolute_error,
            root_mean_squared_error: mean_square.sqrt(),
            r2: (variance > 0.0).then(|| 1.0 - mean_square / variance),
            judgement,
        })
    }

    /// The share of examples whose absolute error is at most a value, as points of a curve.
    pub(super) fn error_curve(&self) -> Vec<(f64, f64)> {
        let pairs = &self.judgement.pairs;
        let mut errors: Vec<f64> =
            pairs.iter().map(|(label, found)| (label - found).abs()).collect();
        errors.sort_by(f64::total_cmp);
        let (count, every) = (errors.len(), errors.len().div_ceil(MOST_POINTS).max(1));
        let drawn = |(place, _): &(usize, f64)| place % every == 0 || *place == count;
        let points = (1..).zip(errors).filter(drawn);
        let points = points.map(|(place, error)| (error, place as f64 / count as f64));
        std::iter::once((0.0, 0.0)).chain(points).collect()
    }

    /// Mean label and mean prediction of groups of examples with similar labels, in the order of labels.
    pub(super) fn groups(&self) -> Vec<(f64, f64)> {
        let mut pairs = self.judgement.pairs.clone();
        pairs.sort_by(|one, other| one.0.total_cmp(&other.0));
        let groups = pairs.chunks(pairs.len().div_ceil(MOST_GROUPS).max(1));
        let mean = |group: &[(f64, f64)]| {
            let sum = group.iter().fold((0.0, 0.0), |sum, pair| (sum.0 + pair.0, sum.1 + pair.1));
            (sum.0 / group.len() as f64, sum.1 / group.len() as f64)
        };
        groups.map(mean).collect()
    }

    pub(super) fn document(&self) -> Value {
        json!({
            "schema": 1,
            "private": false,
            "notice": NOTICE,
            "examples": self.examples,
            "evaluated": self.judgement.pairs.len(),
            "without_label": self.judgement.without_label,
            "without_prediction": self.judgement.without_prediction,
            "mean_absolute_error": self.mean_absolute_error,
            "root_mean_squared_error": self.root_mean_squared_error,
            "r2": self.r2,
        })
    }

    /// The figures of the model, by name.
    pub(super) fn figures(&self) -> Vec<(&'static str, String)> {
        let left_out = match (self.judgement.without_label, self.judgement.without_prediction) {
            (0, 0) => String::new(),
            (labels, predictions) => format!(
                ", of which {labels} without a label and {predictions} without a prediction do not count"
            ),
        };
        let r2 = self.r2.map_or("none: all labels are equal".to_owned(), |r2| format!("{r2:.4}"));
        vec![
            ("examples", format!("{}{left_out}", self.examples)),
            ("mean absolute error", significant(self.mean_absolute_error, DIGITS)),
            ("root mean squared error", significant(self.root_mean_squared_error, DIGITS)),
            ("R squared", r2),
        ]
    }

    pub(super) fn text(&self) -> String {
        format!("{NOTICE}\n{}", table(&self.figures()))
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
        let labels = [1.0, 5.0, 9.0, 12.0, f64::NAN];
        let found = Regression::new(&outputs, &labels, [0.0, 10.0]).unwrap();
        let (examples, judgement) = (found.examples, &found.judgement);
        assert_eq!((examples, judgement.without_label, judgement.without_prediction), (5, 1, 0));
        assert!((found.mean_absolute_error - 1.0).abs() < 1e-6);
        assert!((found.root_mean_squared_error - 1.5f64.sqrt()).abs() < 1e-6);
        assert!((found.r2.unwrap() - (1.0 - 6.0 / 68.75)).abs() < 1e-6);
        assert!(Regression::new(&[f32::NAN], &[0.5], [0.0, 1.0]).is_none());
        assert_eq!(Regression::new(&[0.5], &[0.5], [0.0, 1.0]).unwrap().r2, None);
    }

    /// Single precision has 0.1 with an error of 1.5e-9; scaled from [0, 500000], labels near 0 have one of 0.01.
    #[test]
    fn labels_are_not_rounded() {
        let labels = [0.1, 123_456.7];
        let found = Regression::new(&[-1.0, 1.0], &labels, [0.0, 500_000.0]).unwrap();
        let expected = 0.5 * (0.1 + (500_000.0 - 123_456.7));
        assert!((found.mean_absolute_error - expected).abs() < 1e-9);
    }

    #[test]
    fn charts_have_the_share_of_small_errors_and_the_means_of_groups() {
        let labels: Vec<f64> = (0..1000).map(f64::from).collect();
        // All predictions are 500.
        let found = Regression::new(&vec![0.0; 1000], &labels, [0.0, 1000.0]).unwrap();
        let curve = found.error_curve();
        assert!(
            curve.len() <= MOST_POINTS + 1 && curve.is_sorted_by(|a, b| a.0 <= b.0 && a.1 < b.1)
        );
        assert_eq!((curve[0], curve[curve.len() - 1]), ((0.0, 0.0), (500.0, 1.0)));
        let groups = found.groups();
        assert_eq!((groups.len(), groups[0]), (10, (49.5, 500.0)));
    }

    #[test]
    fn errors_in_small_units_are_not_zero() {
        let found = Regression::new(&[0.0], &[1e-9], [-1e-6, 1e-6]).unwrap();
        assert!(found.text().contains("1e-9"), "{}", found.text());
    }
}
