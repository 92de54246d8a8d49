//! Unusable records (values that are not finite or out of range) contribute zero to every group, with outer products and
//! with materialised gradients.

use crate::common::{
    bits, distance, examples, in_memory, plain_trainer, plan, train_exactly, trainer,
};
use veilgrad_events::{BudgetShare, ClipNorm, NoiseMultiplier, NoiseStd, PublicCount};
use veilgrad_mechanism::{Group, Metric, Quantile};
use veilgrad_nn::{
    Clipping, Conv2d, InMemory, Layer, Loss, Model, Performance, Records, Schedule, Sgd, Trainer,
    TrainingPlan,
};

const ONE_THREAD: Performance = Performance { threads: 1, tile: 32 };

#[test]
fn a_record_whose_statistics_overflow_counts_in_no_group() {
    let layers = || [Layer::BatchNorm, Layer::Flatten, Layer::linear(3)];
    let model = Model::new(&[6, 6, 1], layers(), 4).unwrap();
    let share = BudgetShare::new(0.1).unwrap();
    for materialised in [false, true] {
        let run = |data: &[_]| {
            let plan = plan(1.0, 1.0)
                .statistics(ClipNorm::new(1.0).unwrap(), share)
                .metric(Metric::class_counts("classes", 3), share);
            let plan = if materialised { plan.materialised() } else { plan };
            let mut trainer = plain_trainer(&model, plan, 1.0, ONE_THREAD).unwrap();
            let progress = train_exactly(&mut trainer, &in_memory(data), 1).unwrap();
            let counts: Vec<u64> =
                progress.metric("classes").unwrap().iter().map(|count| count.to_bits()).collect();
            (bits(trainer.model()), counts)
        };
        let sound = examples(3, 8);
        let expected = run(&sound);
        for label in [0.0, 1.0, 2.0] {
            // Its square is not finite, but its loss and its gradient are.
            let mut large = sound[0].clone();
            (large.0[0], large.1) = (1e25, label);
            let with: Vec<_> = sound.iter().cloned().chain([large]).collect();
            assert_eq!(run(&with), expected, "materialised: {materialised}, label {label}");
        }
    }
}

#[test]
fn unusable_records_change_nothing() {
    let sound = examples(40, 5);
    let pixels = |value: f32| vec![value; crate::common::INPUT];
    let share = BudgetShare::new(0.1).unwrap();
    let layers =
        [Conv2d::new(4, 3).into(), Layer::BatchNorm, Layer::Relu, Layer::Flatten, Layer::linear(3)];
    let model = Model::new(&[6, 6, 1], layers, 4).unwrap();
    for materialised in [false, true] {
        let run = |data: &[_]| {
            let (expected, floor) = (PublicCount::new(40.0).unwrap(), ClipNorm::new(0.01).unwrap());
            let quantile = Quantile::of_norm("gradient", 0.5, expected, floor).unwrap();
            let plan = plan(0.3, 40.0)
                .statistics(ClipNorm::new(1.0).unwrap(), share)
                .metric(Metric::loss(4.0).unwrap(), share)
                .metric(Metric::class_counts("classes", 3), share)
                .group(Group::quantile("median", quantile).noise(NoiseStd::new(9.0).unwrap()));
            let plan = if materialised { plan.materialised() } else { plan };
            let mut trainer = plain_trainer(&model, plan, 0.5, ONE_THREAD).unwrap();
            let progress = train_exactly(&mut trainer, &in_memory(data), 4).unwrap();
            let metric = |name| progress.metric(name).unwrap().iter();
            let metrics = metric("loss").chain(metric("classes"));
            let metrics: Vec<u64> = metrics.map(|x| x.to_bits()).collect();
            (bits(trainer.model()), metrics, trainer.plan().adapted())
        };
        let expected = run(&sound);
        assert!(expected.0.iter().all(|bits| f32::from_bits(*bits).is_finite()));
        let mut hostile = sound.clone();
        for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            hostile.insert(7, (pixels(value), 1.0));
            let mut one = pixels(0.5);
            one[3] = value;
            hostile.push((one, 0.0));
        }
        assert_eq!(run(&hostile), expected, "inputs, materialised: {materialised}");
        for label in [-1.0, 3.0, 0.5, 1e30, f32::NAN, f32::NEG_INFINITY] {
            hostile.insert(0, (pixels(0.5), label));
        }
        assert_eq!(run(&hostile), expected, "labels, materialised: {materialised}");
        // One more valid record changes everything.
        hostile.push((pixels(0.5), 1.0));
        let more = run(&hostile);
        assert!(more.0 != expected.0 && more.1 != expected.1 && more.2 != expected.2);
        // Huge values may or may not overflow f32; the weights stay finite either way.
        hostile.extend([f32::MAX, 1e38, 1e19].map(|value| (pixels(value), 1.0)));
        assert!(run(&hostile).0.iter().all(|bits| f32::from_bits(*bits).is_finite()));
    }
}

#[test]
fn a_record_alone_that_is_far_too_large_has_exactly_the_clip_norm() {
    let mut data = examples(1, 6);
    data[0].0.iter_mut().for_each(|x| *x *= 1e30);
    for materialised in [false, true] {
        let plan = plan(0.3, 1.0);
        let plan = if materialised { plan.materialised() } else { plan };
        let rate = Schedule::Constant(1.0);
        let model = crate::common::model();
        let mut trainer = Trainer::new(
            model.clone(),
            Loss::SoftmaxCrossEntropy,
            plan,
            Sgd::plain(),
            rate,
            ONE_THREAD,
        )
        .unwrap();
        train_exactly(&mut trainer, &in_memory(&data), 1);
        let moved = distance(&model, trainer.model());
        assert!(moved > 0.29 && moved < 0.3 * (1.0 + 1e-6), "{materialised}: {moved}");
    }
}

#[test]
fn a_gradient_that_overflows_in_one_group_counts_in_none() {
    // First layer zero, second layer huge: the loss is finite, and the gradient of the first layer overflows f32.
    let layers = [Conv2d::new(3, 1).into(), Layer::Flatten, Layer::linear(2)];
    let mut model = Model::new(&[1, 1, 1], layers, 1).unwrap();
    model.parameter_mut("conv1.weight").unwrap().fill(0.0);
    let weights = [1e10, -1e10, 0.0, 0.0, 0.0, 0.0];
    model.parameter_mut("linear1.weight").unwrap().copy_from_slice(&weights);
    let clip = ClipNorm::new(1.0).unwrap();
    let share = BudgetShare::new(0.1).unwrap();
    for materialised in [false, true] {
        let run = |pixels: &[f32]| {
            let groups = ["linear*", "conv*"].map(|name| Group::new(name, [name], clip));
            let (noise, one) = (NoiseMultiplier::new(1.0).unwrap(), PublicCount::new(1.0).unwrap());
            let clipping = Clipping::Groups(groups.to_vec());
            let plan = TrainingPlan::new(clipping, noise, one)
                .metric(Metric::class_counts("classes", 2), share);
            let plan = if materialised { plan.materialised() } else { plan };
            let mut trainer = plain_trainer(&model, plan, 1.0, ONE_THREAD).unwrap();
            let data = InMemory::new(pixels.to_vec(), 1, vec![0.0; pixels.len()], 1);
            let progress = train_exactly(&mut trainer, &data, 1).unwrap();
            let counts = progress.metric("classes").unwrap();
            (bits(trainer.model()), counts.iter().map(|x| x.to_bits()).collect::<Vec<_>>())
        };
        assert_eq!(run(&[0.5, 1e37]), run(&[0.5]), "materialised: {materialised}");
        assert_ne!(run(&[0.5, 0.25]), run(&[0.5]));
    }
}

#[test]
fn a_record_with_an_unknown_entry_contributes_zero() {
    let layers = [Layer::Embedding { entries: 6, dimension: 4 }, Layer::Flatten, Layer::linear(3)];
    let model = Model::new(&[2], layers, 4).unwrap();
    for materialised in [false, true] {
        let run = |inputs: &[f32]| {
            let plan = plan(0.3, 1.0);
            let plan = if materialised { plan.materialised() } else { plan };
            let mut trainer = plain_trainer(&model, plan, 1.0, ONE_THREAD).unwrap();
            let data = InMemory::new(inputs.to_vec(), 2, vec![1.0; inputs.len() / 2], 1);
            train_exactly(&mut trainer, &data, 1);
            bits(trainer.model())
        };
        let expected = run(&[0.0, 5.0]);
        for unknown in [6.0, -1.0, 0.5, 1e30, f32::MIN] {
            assert_eq!(run(&[0.0, 5.0, 1.0, unknown]), expected, "{unknown}");
        }
        assert_ne!(run(&[0.0, 5.0, 1.0, 4.0]), expected);
    }
}

/// Records that may have fewer numbers than the model's input.
struct Ragged(Vec<Vec<f32>>);

impl Records for Ragged {
    fn count(&self) -> u64 {
        self.0.len() as u64
    }

    fn read(&self, record: u64, _: usize, input: &mut [f32], target: &mut [f32]) {
        let values = &self.0[record as usize];
        input.iter_mut().zip(values).for_each(|(to, from)| *to = *from);
        if values.len() > 4 {
            target[0] = 1.0;
        }
    }
}

#[test]
fn a_short_record_does_not_see_the_one_before_it() {
    let run = |records: &[Vec<f32>], tile| {
        let mut trainer = trainer(plan(0.3, 2.0), Performance { threads: 1, tile });
        train_exactly(&mut trainer, &Ragged(records.to_vec()), 1);
        bits(trainer.model())
    };
    let (long, short) = (vec![1.0; crate::common::INPUT], vec![0.5; 4]);
    let expected = run(&[short.clone(), long.clone()], 1);
    assert_eq!(run(&[long.clone(), short.clone()], 1), expected);
    assert_eq!(run(&[long.clone(), short.clone()], 2), expected);
    let mut whole = short;
    whole.resize(crate::common::INPUT, 0.0);
    assert_ne!(run(&[long.clone(), long], 1), expected);
    assert_ne!(run(&[whole.clone(), whole], 1), expected);
}

/// Records of which one panics when it is read.
struct Panics(InMemory, u64);

impl Records for Panics {
    fn count(&self) -> u64 {
        self.0.count()
    }

    fn read(&self, record: u64, example: usize, input: &mut [f32], target: &mut [f32]) {
        assert_ne!(record, self.1, "{input:?}");
        self.0.read(record, example, input, target);
    }
}

#[test]
fn a_record_that_cannot_be_read_contributes_zero_on_any_number_of_threads() {
    let data = examples(40, 3);
    let mut others = data.clone();
    others.remove(7);
    for materialised in [false, true] {
        let plan = if materialised { plan(0.3, 40.0).materialised() } else { plan(0.3, 40.0) };
        let after = |records: &dyn Fn(&mut Trainer<_>), threads| {
            let mut trainer = trainer(plan.clone(), Performance { threads, tile: 8 });
            records(&mut trainer);
            bits(trainer.model())
        };
        let expected = after(&|trainer| drop(train_exactly(trainer, &in_memory(&others), 2)), 1);
        for threads in [1, 4] {
            let found =
                after(&|t| drop(train_exactly(t, &Panics(in_memory(&data), 7), 2)), threads);
            assert_eq!(found, expected, "{threads} threads");
        }
    }
}
