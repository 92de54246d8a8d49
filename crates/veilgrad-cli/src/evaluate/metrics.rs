//! Metrics of classifiers, defined as in scikit-learn.

use crate::prediction::Judged;

/// How many bins the reliability of probabilities is shown in.
const BINS: usize = 10;

/// The metrics of a model on public examples.
pub(crate) struct Metrics {
    pub(crate) accuracy: f64,
    pub(crate) classes: Vec<ClassMetrics>,
    /// Examples by class (outer) and predicted class (inner).
    pub(crate) confusion: Vec<Vec<u64>>,
    /// The area under the ROC curve of the second of two classes; of several classes, the mean of the areas of each against
    /// all others. `None` if a class has no examples, or all.
    pub(crate) auc: Option<f64>,
    /// The ROC curve of the second of two classes: false and true positive rates.
    pub(crate) roc: Vec<(f64, f64)>,
    /// The mean negative logarithm of the probability of the right class.
    pub(crate) log_loss: f64,
    /// The mean squared error of probabilities: of the second of two classes, or summed over several.
    pub(crate) brier: f64,
    pub(crate) calibration: Calibration,
}

/// The metrics of one class. A ratio without examples is 0.
pub(crate) struct ClassMetrics {
    pub(crate) precision: f64,
    pub(crate) recall: f64,
    pub(crate) f1: f64,
    /// How many examples have this class.
    pub(crate) support: u64,
}

/// How often predictions with a probability are right: of the second of two classes, or of the predicted class of several.
pub(crate) struct Calibration {
    pub(crate) bins: Vec<Bin>,
    /// The expected calibration error: the mean distance of probability and fraction, over all examples.
    pub(crate) error: f64,
}

/// Probabilities above `low` and up to `high`; the first bin includes 0.
pub(crate) struct Bin {
    pub(crate) low: f64,
    pub(crate) high: f64,
    pub(crate) count: u64,
    /// The mean probability, and the fraction that is right. NaN for an empty bin.
    pub(crate) probability: f64,
    pub(crate) fraction: f64,
}

impl Metrics {
    /// The metrics of at least one example of at least two classes.
    pub(crate) fn new(examples: &[Judged], classes: usize) -> Self {
        let mut confusion = vec![vec![0u64; classes]; classes];
        for Judged { label, predicted, .. } in examples {
            if let Some(cell) = confusion.get_mut(*label).and_then(|row| row.get_mut(*predicted)) {
                *cell += 1;
            }
        }
        let count = examples.len() as f64;
        let mean = |value: &dyn Fn(&Judged) -> f64| examples.iter().map(value).sum::<f64>() / count;
        let brier = mean(&|example| {
            let squares = example.probabilities.iter().enumerate().map(|(class, probability)| {
                (probability - f64::from(u8::from(class == example.label))).powi(2)
            });
            squares.sum()
        });
        let (auc, roc) = areas(examples, classes);
        Self {
            accuracy: mean(&|example| f64::from(u8::from(example.predicted == example.label))),
            classes: (0..classes).map(|class| ClassMetrics::new(&confusion, class)).collect(),
            confusion,
            auc,
            roc,
            log_loss: mean(&|example| {
                let right = example.probabilities.get(example.label).copied().unwrap_or(0.0);
                -right.clamp(f64::EPSILON, 1.0 - f64::EPSILON).ln()
            }),
            // Both classes of two have the same error.
            brier: if classes == 2 { 0.5 * brier } else { brier },
            calibration: Calibration::new(examples, classes),
        }
    }

    /// The mean over classes.
    pub(crate) fn macro_mean(&self, of: impl Fn(&ClassMetrics) -> f64) -> f64 {
        self.classes.iter().map(of).sum::<f64>() / self.classes.len() as f64
    }
}

impl ClassMetrics {
    fn new(confusion: &[Vec<u64>], class: usize) -> Self {
        let cell = |row: &Vec<u64>| row.get(class).copied().unwrap_or(0);
        let right = confusion.get(class).map_or(0, cell);
        let support: u64 = confusion.get(class).map_or(0, |row| row.iter().sum());
        let predicted: u64 = confusion.iter().map(cell).sum();
        let ratio = |part: u64, all: u64| if all == 0 { 0.0 } else { part as f64 / all as f64 };
        Self {
            precision: ratio(right, predicted),
            recall: ratio(right, support),
            f1: ratio(2 * right, support + predicted),
            support,
        }
    }
}

/// The area under the ROC curve, and the curve if there are two classes.
fn areas(examples: &[Judged], classes: usize) -> (Option<f64>, Vec<(f64, f64)>) {
    let scores_of = |class: usize| -> Vec<(f64, bool)> {
        let score = |example: &Judged| {
            let score = example.probabilities.get(class).copied().unwrap_or(0.0);
            (score, example.label == class)
        };
        examples.iter().map(score).collect()
    };
    if classes == 2 {
        let curve = roc(scores_of(1));
        return (curve.as_deref().map(area), curve.unwrap_or_default());
    }
    let areas: Option<Vec<f64>> =
        (0..classes).map(|class| roc(scores_of(class)).as_deref().map(area)).collect();
    (areas.map(|areas| areas.iter().sum::<f64>() / classes as f64), Vec::new())
}

/// The ROC curve of scores and whether they are positive: one point for every distinct score, so that ties are a straight
/// line. `None` without positive or without negative examples.
fn roc(mut scores: Vec<(f64, bool)>) -> Option<Vec<(f64, f64)>> {
    scores.sort_by(|a, b| b.0.total_cmp(&a.0));
    let positive = scores.iter().filter(|(_, positive)| *positive).count();
    let negative = scores.len() - positive;
    if positive == 0 || negative == 0 {
        return None;
    }
    let (mut above, mut below) = (0usize, 0usize);
    let mut curve = vec![(0.0, 0.0)];
    for tied in scores.chunk_by(|a, b| a.0 == b.0) {
        let hits = tied.iter().filter(|(_, positive)| *positive).count();
        above += hits;
        below += tied.len() - hits;
        curve.push((below as f64 / negative as f64, above as f64 / positive as f64));
    }
    Some(curve)
}

/// The area under a curve, by trapezoids.
fn area(curve: &[(f64, f64)]) -> f64 {
    let trapezoid = |pair: &[(f64, f64)]| match pair {
        [(x0, y0), (x1, y1)] => 0.5 * (x1 - x0) * (y0 + y1),
        _ => 0.0,
    };
    curve.windows(2).map(trapezoid).sum()
}

impl Calibration {
    fn new(examples: &[Judged], classes: usize) -> Self {
        let edge = |bin: usize| if bin == BINS { 1.0 } else { bin as f64 * (1.0 / BINS as f64) };
        let mut sums = [(0u64, 0.0, 0.0); BINS];
        for example in examples {
            let class = if classes == 2 { 1 } else { example.predicted };
            let probability = example.probabilities.get(class).copied().unwrap_or(0.0);
            let bin = (1..BINS).filter(|bin| edge(*bin) < probability).count();
            if let Some((count, probabilities, right)) = sums.get_mut(bin) {
                *count += 1;
                *probabilities += probability;
                *right += f64::from(u8::from(example.label == class));
            }
        }
        let bins: Vec<Bin> = sums
            .iter()
            .enumerate()
            .map(|(bin, (count, probabilities, right))| Bin {
                low: edge(bin),
                high: edge(bin + 1),
                count: *count,
                probability: probabilities / *count as f64,
                fraction: right / *count as f64,
            })
            .collect();
        let filled = bins.iter().filter(|bin| bin.count > 0);
        let errors = filled.map(|bin| bin.count as f64 * (bin.fraction - bin.probability).abs());
        let error = errors.sum::<f64>() / examples.len() as f64;
        Self { bins, error }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    /// Cases with the results of scikit-learn; `tests/evaluate/cases.py` made them.
    const CASES: &str =
        include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/evaluate/cases.json"));

    fn close(name: &str, found: f64, expected: &Value) {
        let expected = expected.as_f64().unwrap();
        assert!((found - expected).abs() < 1e-9, "{name}: {found} for {expected}");
    }

    #[test]
    fn metrics_are_those_of_scikit_learn() {
        let cases: Value = serde_json::from_str(CASES).unwrap();
        let cases = cases.as_array().unwrap();
        assert!(cases.len() >= 6);
        for case in cases {
            let name = case["name"].as_str().unwrap();
            let classes = case["probabilities"][0].as_array().unwrap().len();
            let rows = case["probabilities"].as_array().unwrap().iter();
            let labels = case["labels"].as_array().unwrap().iter();
            let predicted = case["predicted"].as_array().unwrap().iter();
            let number = |value: &Value| value.as_u64().unwrap() as usize;
            let examples: Vec<Judged> = rows
                .zip(labels)
                .zip(predicted)
                .map(|((row, label), predicted)| Judged {
                    label: number(label),
                    predicted: number(predicted),
                    probabilities: row
                        .as_array()
                        .unwrap()
                        .iter()
                        .map(|p| p.as_f64().unwrap())
                        .collect(),
                })
                .collect();
            let found = Metrics::new(&examples, classes);
            let expected = &case["expected"];
            close(name, found.accuracy, &expected["accuracy"]);
            close(name, found.log_loss, &expected["log_loss"]);
            close(name, found.brier, &expected["brier"]);
            match found.auc {
                None => assert!(expected["auc"].is_null(), "{name}"),
                Some(auc) => close(name, auc, &expected["auc"]),
            }
            for (class, found) in found.classes.iter().enumerate() {
                close(name, found.precision, &expected["precision"][class]);
                close(name, found.recall, &expected["recall"][class]);
                close(name, found.f1, &expected["f1"][class]);
            }
            close(name, found.macro_mean(|class| class.f1), &expected["macro_f1"]);
            assert_eq!(serde_json::json!(found.confusion), expected["confusion"], "{name}");
            let filled: Vec<&Bin> =
                found.calibration.bins.iter().filter(|bin| bin.count > 0).collect();
            assert_eq!(filled.len(), expected["bin_fraction"].as_array().unwrap().len(), "{name}");
            for (place, bin) in filled.iter().enumerate() {
                close(name, bin.fraction, &expected["bin_fraction"][place]);
                close(name, bin.probability, &expected["bin_probability"][place]);
                assert_eq!(expected["bin_count"][place], bin.count, "{name}");
            }
            close(name, found.calibration.error, &expected["calibration_error"]);
        }
    }

    #[test]
    fn a_perfect_order_has_area_one_and_equal_scores_have_one_half() {
        let perfect = roc(vec![(0.9, true), (0.8, true), (0.1, false)]).unwrap();
        assert_eq!(area(&perfect), 1.0);
        let tied = roc(vec![(0.5, true), (0.5, false), (0.5, false)]).unwrap();
        assert_eq!((area(&tied), tied.len()), (0.5, 2));
        assert!(roc(vec![(0.5, true)]).is_none());
    }
}
