//! Shapes that are refused, and outputs for inputs or statistics out of range.

use veilgrad_nn::{Conv2d, InMemory, Layer, Model, ModelError, Padding, public};

#[test]
fn an_axis_of_length_zero_is_refused_wherever_it_comes_from() {
    let linear = || vec![Layer::Flatten, Layer::linear(3)];
    for input in [&[0][..], &[0, 4], &[4, 0], &[6, 6, 0]] {
        let made = Model::new(input, linear(), 1);
        assert!(matches!(made.err(), Some(ModelError::Shape(_))), "{input:?}");
        // A linear layer would replace the last axis.
        let made = Model::new(input, [Layer::linear(3)], 1);
        assert!(matches!(made.err(), Some(ModelError::Shape(_))), "{input:?}");
    }
    // Layers whose output would have no axis of length 0.
    let average = vec![Layer::GlobalAverage, Layer::linear(3)];
    let padded = Conv2d::new(2, 1).padding(Padding::Explicit(1, 1));
    for (input, layers) in [
        (&[0, 4][..], average),
        (&[0, 4, 1], vec![padded.into(), Layer::Flatten, Layer::linear(3)]),
    ] {
        let made = Model::new(input, layers, 1);
        assert!(matches!(made.err(), Some(ModelError::Shape(_))), "{input:?}");
    }
    for layers in [
        vec![Layer::Flatten, Layer::linear(0), Layer::linear(3)],
        vec![Layer::Flatten, Layer::linear(0)],
        vec![Conv2d::new(0, 3).into(), Layer::Flatten, Layer::linear(3)],
        vec![Conv2d::new(2, 7).into(), Layer::Flatten, Layer::linear(3)],
    ] {
        let made = Model::new(&[6, 6, 1], layers.clone(), 1);
        assert!(matches!(made.err(), Some(ModelError::Shape(_))), "{layers:?}");
    }
    assert!(Model::new(&[6, 6, 1], linear(), 1).is_ok());
}

#[test]
fn outputs_for_inputs_that_are_not_finite_are_nan() {
    let layers = [Layer::max_pool(2, 1), Layer::Flatten, Layer::Relu, Layer::linear(2)];
    let mut model = Model::new(&[2, 2, 1], layers, 1).unwrap();
    model.parameter_mut("linear1.weight").unwrap().copy_from_slice(&[1.0, -1.0]);
    model.parameter_mut("linear1.bias").unwrap().fill(0.5);
    let mut inputs = vec![1.0, 2.0, 3.0, -5.0];
    for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        inputs.extend([value, 2.0, 3.0, 4.0]);
    }
    inputs.extend([0.0, -1.0, 0.0, 0.25]);
    // Targets are ignored.
    let targets = vec![f32::NAN, 0.0, 1.0, 0.0, -7.0];
    let found = public::outputs(&model, &InMemory::new(inputs, 4, targets, 1));
    assert_eq!(found[..2], [3.5, -2.5]);
    assert!(found[2..8].iter().all(|value| value.is_nan()), "{found:?}");
    assert_eq!(found[8..], [0.75, 0.25]);
}

#[test]
fn a_variance_that_noise_made_negative_counts_as_zero() {
    let mut model =
        Model::new(&[1, 1, 1], [Layer::BatchNorm, Layer::Flatten, Layer::linear(1)], 1).unwrap();
    model.parameter_mut("linear1.weight").unwrap().fill(1.0);
    let mut output = |mean: f32, mean_square: f32| {
        model.parameter_mut("batch_norm1.mean").unwrap().fill(mean);
        model.parameter_mut("batch_norm1.mean_square").unwrap().fill(mean_square);
        public::outputs(&model, &InMemory::new(vec![2.5], 1, vec![0.0], 1))[0]
    };
    let none = output(2.0, 4.0);
    // 0.5 divided by the square root of the layer's epsilon, 1e-5.
    assert!((none - 0.5 / 1e-5f32.sqrt()).abs() < 1e-2, "{none}");
    for mean_square in [3.9, 0.0, -7.0] {
        assert_eq!(output(2.0, mean_square), none);
    }
}
