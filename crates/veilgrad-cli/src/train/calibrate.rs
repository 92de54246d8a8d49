//! The temperature of class probabilities, fitted on public examples.

use veilgrad_nn::Model;

/// Temperatures outside of this range are taken for this range.
const HOTTEST: f64 = 100.0;

/// The temperature that makes the log loss of softmax(outputs / temperature) on **public** examples smallest (Guo et al. 2017),
/// to 1e-9. Examples without a label or outputs are left out; `None` if these are all.
pub(crate) fn temperature(outputs: &[f32], labels: &[f32], classes: usize) -> Option<f64> {
    let rows: Vec<(Vec<f64>, usize)> = outputs
        .chunks_exact(classes.max(1))
        .zip(labels)
        .filter(|(row, label)| row.iter().all(|x| x.is_finite()) && !label.is_nan())
        .filter_map(|(row, label)| {
            let class = *label as usize;
            let known = class as f32 == *label && class < classes;
            known.then(|| (row.iter().map(|x| f64::from(*x)).collect(), class))
        })
        .collect();
    if rows.is_empty() {
        return None;
    }
    // By the inverse temperature, the loss is convex: its slope is the sum of (mean output - output of the class).
    let slope = |inverse: f64| {
        let of_row = |(row, class): &(Vec<f64>, usize)| {
            let most = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = row.iter().map(|x| (inverse * (x - most)).exp()).collect();
            let mean = row.iter().zip(&weights).map(|(x, weight)| x * weight).sum::<f64>();
            mean / weights.iter().sum::<f64>() - row.get(*class).copied().unwrap_or(0.0)
        };
        rows.iter().map(of_row).sum::<f64>()
    };
    let (mut low, mut high) = (1.0 / HOTTEST, HOTTEST);
    while high / low > 1.0 + 1e-9 {
        let middle = (low * high).sqrt();
        if slope(middle) < 0.0 { low = middle } else { high = middle }
    }
    Some(1.0 / (low * high).sqrt())
}

/// Divides the outputs of a model by a temperature: the last layer is linear, so its parameters are divided.
pub(crate) fn divide_outputs(model: &mut Model, temperature: f64) {
    let names: Vec<String> = model.parameters().map(|(name, ..)| name.to_owned()).collect();
    for name in names.iter().rev().take(2) {
        let values = model.parameter_mut(name).unwrap_or_default();
        values.iter_mut().for_each(|value| *value = (f64::from(*value) / temperature) as f32);
    }
}

/// The parameters of the last layer.
pub(crate) fn last_layer(model: &Model) -> impl Iterator<Item = &str> {
    let names: Vec<&str> = model.parameters().map(|(name, ..)| name).collect();
    names.into_iter().rev().take(2)
}

#[cfg(test)]
mod tests {
    use veilgrad_nn::{InMemory, Layer, public};

    use super::*;

    /// Log-odds of 2 with a class that is right in this many of 100 examples.
    fn examples(right: usize) -> (Vec<f32>, Vec<f32>) {
        let outputs = (0..100).flat_map(|_| [0.0, 2.0]).collect();
        (outputs, (0..100).map(|i| if i < right { 1.0 } else { 0.0 }).collect())
    }

    #[test]
    fn probabilities_become_the_frequencies_of_public_examples() {
        for right in [60, 75, 88, 95] {
            let (outputs, labels) = examples(right);
            let temperature = temperature(&outputs, &labels, 2).unwrap();
            let probability = 1.0 / (1.0 + (-2.0 / temperature).exp());
            assert!((probability - right as f64 / 100.0).abs() < 1e-7, "{right}: {probability}");
        }
    }

    #[test]
    fn examples_without_a_label_or_outputs_are_left_out_and_extremes_are_bounded() {
        let (mut outputs, mut labels) = examples(75);
        let expected = temperature(&outputs, &labels, 2).unwrap();
        outputs.extend([f32::NAN, 1.0, 5.0, 1.0, 5.0, 1.0]);
        labels.extend([1.0, f32::NAN, 7.0]);
        assert_eq!(temperature(&outputs, &labels, 2), Some(expected));
        assert_eq!(temperature(&[], &[], 2), None);
        assert_eq!(temperature(&[1.0, 2.0], &[f32::NAN], 2), None);
        let (outputs, labels) = examples(100);
        // Certain probabilities, as far as f64 can tell.
        assert!((1.0 / HOTTEST..0.2).contains(&temperature(&outputs, &labels, 2).unwrap()));
        let (outputs, labels) = examples(20);
        assert!((temperature(&outputs, &labels, 2).unwrap() / HOTTEST - 1.0).abs() < 1e-6);
    }

    #[test]
    fn dividing_the_last_layer_divides_the_outputs_and_changes_no_class() {
        let layers = [Layer::linear(4), Layer::Relu, Layer::linear(3)];
        let mut model = Model::new(&[2], layers, 5).unwrap();
        let records = InMemory::new(vec![0.5, -1.0, 2.0, 0.25], 2, vec![0.0; 2], 1);
        let before = public::outputs(&model, &records);
        divide_outputs(&mut model, 2.5);
        let after = public::outputs(&model, &records);
        for (before, after) in before.iter().zip(&after) {
            assert!((before / 2.5 - after).abs() < 1e-6, "{before} {after}");
        }
        assert_eq!(last_layer(&model).collect::<Vec<_>>(), ["linear2.bias", "linear2.weight"]);
    }
}
