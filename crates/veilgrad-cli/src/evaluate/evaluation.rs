//! The metrics of a model with the file that they were computed from: as JSON and as a table.

use serde_json::{Value, json};
use veilgrad_accounting::display::percent;

use super::metrics::Metrics;
use crate::output::table;
use crate::prediction::Judgement;

/// The first line of everything that is printed or drawn.
pub(super) const NOTICE: &str = "NOT PRIVATE: these numbers are exact. They may be shown only if the examples are public; never evaluate on \
                      the training data.";

/// How many classes have a confusion matrix in the table; the JSON document and the page have all.
const MOST_COLUMNS: usize = 12;

/// The metrics of a model, with what they were computed from.
pub(super) struct Evaluation {
    pub(super) classes: Vec<String>,
    /// How many examples the file has.
    examples: usize,
    /// Examples whose label is none of the declared classes. They do not count.
    without_label: usize,
    /// Examples that are not finite, so that the model predicts nothing. They do not count.
    without_prediction: usize,
    pub(super) metrics: Metrics,
}

impl Evaluation {
    /// `None` if no example has both a label and a prediction.
    pub(super) fn new(classes: Vec<String>, outputs: &[f32], labels: &[f32]) -> Option<Self> {
        let Judgement { judged, without_label, without_prediction } =
            Judgement::new(classes.len(), outputs, labels);
        if judged.is_empty() {
            return None;
        }
        let metrics = Metrics::new(&judged, classes.len());
        Some(Self { classes, examples: labels.len(), without_label, without_prediction, metrics })
    }

    /// What the reliability of probabilities is measured on.
    pub(super) fn calibrated(&self) -> String {
        match self.classes.as_slice() {
            [_, second] => format!("the probability of {second}"),
            _ => "the probability of the predicted class".to_owned(),
        }
    }

    pub(super) fn document(&self) -> Value {
        let metrics = &self.metrics;
        let classes = self.classes.iter().zip(&metrics.classes).map(|(name, class)| {
            json!({
                "class": name,
                "precision": class.precision,
                "recall": class.recall,
                "f1": class.f1,
                "support": class.support,
            })
        });
        // NaN, of an empty bin, becomes null.
        let bins = metrics.calibration.bins.iter().map(|bin| {
            json!({
                "low": bin.low,
                "high": bin.high,
                "count": bin.count,
                "probability": bin.probability,
                "fraction": bin.fraction,
            })
        });
        let mut document = json!({
            "schema": 1,
            "private": false,
            "notice": NOTICE,
            "examples": self.examples,
            "evaluated": self.examples - self.without_label - self.without_prediction,
            "without_label": self.without_label,
            "without_prediction": self.without_prediction,
            "accuracy": metrics.accuracy,
            "classes": classes.collect::<Vec<Value>>(),
            "macro": {
                "precision": metrics.macro_mean(|class| class.precision),
                "recall": metrics.macro_mean(|class| class.recall),
                "f1": metrics.macro_mean(|class| class.f1),
            },
            "auc": metrics.auc,
            "confusion_matrix": metrics.confusion,
            "log_loss": metrics.log_loss,
            "brier": metrics.brier,
            "calibration": {
                "of": self.calibrated(),
                "error": metrics.calibration.error,
                "bins": bins.collect::<Vec<Value>>(),
            },
        });
        if metrics.auc.is_none() {
            document["auc_reason"] = json!(NO_AUC);
        }
        document
    }

    /// The figures of the whole model, by name.
    pub(super) fn figures(&self) -> Vec<(&'static str, String)> {
        let metrics = &self.metrics;
        let number = |value: f64| format!("{value:.4}");
        let left_out = match (self.without_label, self.without_prediction) {
            (0, 0) => String::new(),
            (labels, predictions) => format!(
                ", of which {labels} without a declared class and {predictions} without a prediction do not count"
            ),
        };
        let auc = match metrics.auc {
            Some(auc) if self.classes.len() == 2 => number(auc),
            Some(auc) => format!("{} (mean of each class against all others)", number(auc)),
            None => format!("none: {NO_AUC}"),
        };
        let error = number(metrics.calibration.error);
        vec![
            ("examples", format!("{}{left_out}", self.examples)),
            ("accuracy", percent(metrics.accuracy)),
            ("AUC", auc),
            ("log loss", number(metrics.log_loss)),
            ("Brier score", number(metrics.brier)),
            ("calibration error", format!("{error} ({})", self.calibrated())),
        ]
    }

    pub(super) fn text(&self) -> String {
        let mut text = format!("{NOTICE}\n{}", table(&self.figures()));
        let width = self.classes.iter().map(|name| name.chars().count()).max().unwrap_or(0).max(5);
        text.push_str(&format!(
            "\n{:<width$}  {:>9}  {:>9}  {:>9}  {:>9}\n",
            "class", "precision", "recall", "F1", "examples"
        ));
        for (name, class) in self.classes.iter().zip(&self.metrics.classes) {
            text.push_str(&format!(
                "{name:<width$}  {:>9}  {:>9}  {:>9}  {:>9}\n",
                percent(class.precision),
                percent(class.recall),
                percent(class.f1),
                class.support
            ));
        }
        if self.classes.len() > MOST_COLUMNS {
            text.push_str(
                "\nThe confusion matrix is too wide for a table: see --json or --html.\n",
            );
            return text;
        }
        text.push_str("\nconfusion matrix: rows are classes, columns are predictions\n");
        let line = |name: &str, cells: &mut dyn Iterator<Item = String>| {
            let cells: String = cells.map(|cell| format!("  {cell:>9}")).collect();
            format!("{name:<width$}{cells}\n")
        };
        let short = |name: &String| name.chars().take(9).collect::<String>();
        text.push_str(&line("", &mut self.classes.iter().map(short)));
        for (name, row) in self.classes.iter().zip(&self.metrics.confusion) {
            text.push_str(&line(name, &mut row.iter().map(u64::to_string)));
        }
        text
    }
}

/// Why there is no area under the ROC curve.
const NO_AUC: &str = "a class has no examples, or all of them";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_without_class_or_prediction_are_counted_and_left_out() {
        let names = vec!["a".to_owned(), "b".to_owned()];
        let outputs = [1.0, 0.0, 0.0, 1.0, f32::NAN, 0.0, 1.0, 0.0, 1.0, 0.0];
        let found = Evaluation::new(names.clone(), &outputs, &[0.0, 0.0, 0.0, f32::NAN, 2.0]);
        let found = found.unwrap();
        assert_eq!((found.examples, found.without_label, found.without_prediction), (5, 2, 1));
        assert_eq!(found.metrics.accuracy, 0.5);
        assert_eq!(found.document()["evaluated"], 2);
        assert!(found.document()["auc"].is_null());
        assert!(found.document()["calibration"]["bins"][5]["fraction"].is_null());
        assert!(found.text().starts_with("NOT PRIVATE"));
        assert!(Evaluation::new(names, &[f32::NAN, 0.0], &[0.0]).is_none());
    }
}
