//! Frozen parameters, class weights, and models that start from the parameters of others.

use crate::common::{examples, in_memory, model, plain_trainer, plan, train_exactly};
use veilgrad_mechanism::AllRecords;
use veilgrad_nn::{InMemory, Layer, Model, ModelError, Performance, Sgd, Trainer, Unit};

const ONE_THREAD: Performance = Performance { threads: 1, tile: 16 };

/// The bits of the parameters whose name matches, or does not.
fn bits_of(model: &Model, is_wanted: impl Fn(&str) -> bool) -> Vec<u32> {
    let wanted = model.parameters().filter(|(name, ..)| is_wanted(name));
    wanted.flat_map(|(_, _, values)| values.iter().map(|value| value.to_bits())).collect()
}

fn is_convolution(name: &str) -> bool {
    name.starts_with("conv") || name.starts_with("group_norm")
}

/// The model with its first layers frozen. One of their weights is -0.0, which an average would turn into 0.0.
fn frozen() -> Model {
    let mut model = model();
    model.parameter_mut("conv1.weight").unwrap()[0] = -0.0;
    model.freeze("conv1.*").unwrap();
    model.freeze("group_norm1.*").unwrap();
    model
}

#[test]
fn frozen_parameters_keep_their_bits_and_have_no_place_in_a_round() {
    let before = frozen();
    let records = in_memory(&examples(40, 3));
    let micro = Unit::Microbatch { examples: std::num::NonZeroU32::MIN };
    for plan in [plan(0.5, 40.0), plan(0.5, 40.0).unit(micro), plan(0.5, 40.0).materialised()] {
        let trainer = plain_trainer(&before, plan, 0.5, ONE_THREAD).unwrap();
        let mut trainer = trainer.averaging(0.5);
        let event = trainer.event(&AllRecords).unwrap();
        assert_eq!(event.queries()[0].dimension(), Some(before.size() as u64));
        train_exactly(&mut trainer, &records, 3);
        let (after, average) = (trainer.model(), trainer.averaged_model().unwrap());
        for after in [after, &average] {
            assert_eq!(bits_of(&before, is_convolution), bits_of(after, is_convolution));
            let moved =
                |name: &str| bits_of(&before, |n| n == name) != bits_of(after, |n| n == name);
            for name in ["linear1.weight", "linear1.bias", "linear2.weight", "linear2.bias"] {
                assert!(moved(name), "{name}");
            }
        }
    }
}

#[test]
fn the_gradients_of_what_is_trained_are_those_of_the_whole_model() {
    let (part, mut whole) = (frozen(), model());
    whole.parameter_mut("conv1.weight").unwrap()[0] = -0.0;
    let records = in_memory(&examples(40, 5));
    let trained = |model: &Model| {
        // No record is clipped.
        let mut trainer = plain_trainer(model, plan(1e3, 40.0), 0.5, ONE_THREAD).unwrap();
        train_exactly(&mut trainer, &records, 1);
        trainer.model().clone()
    };
    let (part, whole) = (trained(&part), trained(&whole));
    for ((name, _, one), (_, _, other)) in part.parameters().zip(whole.parameters()) {
        if !is_convolution(name) {
            let close = one.iter().zip(other).all(|(one, other)| (one - other).abs() < 1e-4);
            assert!(close, "{name}");
        }
    }
}

#[test]
fn what_cannot_be_frozen_is_refused_and_changes_nothing() {
    let mut model = model();
    let size = model.size();
    let error = model.freeze("cnv*").unwrap_err();
    assert!(
        error.to_string().contains("'cnv*' matches no parameter; they are conv1.weight"),
        "{error}"
    );
    assert_eq!(model.freeze("*"), Err(ModelError::AllFrozen));
    assert_eq!(model.size(), size);
    model.freeze("conv1.weight").unwrap();
    assert!(model.is_frozen("conv1.weight") && !model.is_frozen("conv1.bias"));
}

#[test]
fn a_checkpoint_of_a_frozen_model_is_restored() {
    let path = std::env::temp_dir().join(format!("veilgrad-frozen-{}", std::process::id()));
    let rate = veilgrad_nn::Schedule::Constant(0.1);
    let loss = veilgrad_nn::Loss::SoftmaxCrossEntropy;
    let make = || {
        let momentum = Sgd::with_momentum(0.5);
        Trainer::new(frozen(), loss, plan(0.5, 40.0), momentum, rate, ONE_THREAD)
            .unwrap()
            .averaging(0.5)
    };
    let mut trainer = make();
    train_exactly(&mut trainer, &in_memory(&examples(40, 3)), 2);
    trainer.save(&path, None).unwrap();
    let mut restored = make();
    restored.resume(&path, None).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert_eq!(crate::common::bits(restored.model()), crate::common::bits(trainer.model()));
}

#[test]
fn frozen_statistics_of_batch_norm_are_not_released() {
    let layers = [Layer::linear(4), Layer::BatchNorm, Layer::linear(3)];
    let mut model = Model::new(&[2], layers, 3).unwrap();
    let records = InMemory::new(vec![0.5; 40], 2, vec![1.0; 20], 1);
    // Without a group for statistics, a model with batch norm is refused.
    assert!(plain_trainer(&model, plan(0.5, 20.0), 0.5, ONE_THREAD).is_err());
    model.freeze("batch_norm1.mean*").unwrap();
    let mut trainer = plain_trainer(&model, plan(0.5, 20.0), 0.5, ONE_THREAD).unwrap();
    train_exactly(&mut trainer, &records, 2);
    let statistics = |model: &Model| bits_of(model, |name| name.contains("mean"));
    assert_eq!(statistics(&model), statistics(trainer.model()));
}

#[test]
fn a_weight_counts_examples_of_its_class_as_often() {
    let data = examples(60, 9);
    let repeated: Vec<_> = data
        .iter()
        .flat_map(|example| vec![example.clone(); if example.1 == 1.0 { 3 } else { 1 }])
        .collect();
    let train = |data: &[_], weights: &[f32]| {
        // No record is clipped.
        let start = Model::new(&[crate::common::INPUT], [Layer::linear(3)], 1).unwrap();
        let trainer = plain_trainer(&start, plan(30.0, 60.0), 0.2, ONE_THREAD).unwrap();
        let mut trainer = trainer.class_weights(weights);
        train_exactly(&mut trainer, &in_memory(data), 3);
        trainer.model().clone()
    };
    let weighted = train(&data, &[1.0, 3.0, 1.0]);
    // Up to the rounding of sums, which is relative to the clip norm.
    let same = crate::common::distance(&weighted, &train(&repeated, &[]));
    let other = crate::common::distance(&weighted, &train(&data, &[]));
    assert!(other > 1e-2 && same < 0.05 * other, "{same} {other}");
    // Weights of 1 change nothing.
    assert_eq!(
        crate::common::bits(&train(&data, &[1.0; 3])),
        crate::common::bits(&train(&data, &[]))
    );
    // Examples of classes without a finite weight contribute zero.
    let others: Vec<_> = data.iter().filter(|(_, class)| *class == 0.0).cloned().collect();
    let alone = crate::common::bits(&train(&others, &[]));
    assert_eq!(crate::common::bits(&train(&data, &[1.0, f32::NAN, f32::INFINITY])), alone);
    assert_eq!(crate::common::bits(&train(&data, &[1.0])), alone);
}

#[test]
fn a_weight_does_not_lift_a_record_above_the_clip_norm() {
    let data = examples(1, 4);
    let start = model();
    let trainer = plain_trainer(&start, plan(0.3, 1.0), 1.0, ONE_THREAD).unwrap();
    let mut trainer = trainer.class_weights(&[1e6; 3]);
    train_exactly(&mut trainer, &in_memory(&data), 1);
    let moved = crate::common::distance(&model(), trainer.model());
    assert!(moved > 0.29 && moved <= 0.3 * (1.0 + 1e-6), "{moved}");
}

#[test]
fn parameters_are_loaded_by_name_and_shape_except_fresh_ones() {
    let old = Model::new(&[4], [Layer::linear(5), Layer::Relu, Layer::linear(3)], 1).unwrap();
    let bytes = old.to_safetensors().unwrap();
    let new = || Model::new(&[4], [Layer::linear(5), Layer::Relu, Layer::linear(2)], 2).unwrap();
    let fresh = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let mut model = new();
    model.load_safetensors_except(&bytes, &fresh(&["linear2.*"])).unwrap();
    let is_first = |name: &str| name.starts_with("linear1");
    assert_eq!(bits_of(&model, is_first), bits_of(&old, is_first));
    assert_eq!(bits_of(&model, |n| !is_first(n)), bits_of(&new(), |n| !is_first(n)));
    for (names, what) in [
        (&[][..], "parameter 'linear2.weight' is missing, unknown or has another shape"),
        (&["linear2.weight"][..], "'linear2.bias'"),
        (&["linear3.*"][..], "'linear3.*' matches no parameter"),
    ] {
        let error = new().load_safetensors_except(&bytes, &fresh(names)).unwrap_err().to_string();
        assert!(error.contains(what), "{error}");
    }
}
