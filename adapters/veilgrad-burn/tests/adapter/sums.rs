//! Clipped sums, compared with `veilgrad-nn` and with Burn's gradients of one record at a time.

use std::num::NonZeroU32;

use burn::module::Module;
use burn::tensor::Device;
use veilgrad_burn::TrainingPlan;
use veilgrad_events::{
    Adjacency, BudgetShare, JointScale, MemoryLedger, NoiseMultiplier, PublicCount, Run,
};
use veilgrad_mechanism::insecure::no_noise;
use veilgrad_mechanism::{AllRecords, Group};
use veilgrad_nn::{
    Clipping, Conv2d, InMemory, Layer, Loss, Microbatches, Model, Padding, Performance, Schedule,
    Sgd, Trainer, Unit,
};

use crate::common::{
    Bag, Classify, Convs, Images, Mlp, Points, Sequence, Text, Tied, all_integers, backends, clip,
    flat, integers, judge, released,
};

fn statistics(plan: TrainingPlan) -> TrainingPlan {
    plan.statistics(clip(2.0), BudgetShare::new(0.1).unwrap())
}

/// A record's contribution is the same when others are dropped, permuted or padded.
fn adds_up<M: Classify>(backend: &str, model: &M, points: &Points, plan: &TrainingPlan) {
    let sums = |points: &Points, tile| all_integers(&released(model, points, plan.clone(), tile));
    let whole = sums(points, 8);
    assert_eq!(sums(points, 5), whole, "{backend}: another tile");
    let mut turned = points.clone();
    turned.rows.reverse();
    assert_eq!(sums(&turned, 8), whole, "{backend}: another order");
    for dropped in [0, 3, points.rows.len() - 1] {
        let (mut without, mut alone) = (points.clone(), points.clone());
        alone.rows = vec![without.rows.remove(dropped)];
        let parts = sums(&without, 8).into_iter().zip(sums(&alone, 8)).map(|(a, b)| a + b);
        assert_eq!(parts.collect::<Vec<_>>(), whole, "{backend}: without record {dropped}");
    }
}

#[test]
fn dropping_a_record_takes_away_what_it_adds_alone_on_every_backend() {
    for (backend, device) in backends() {
        adds_up(backend, &Mlp::new(&device), &Points::new(21, 12, None), &flat(0.5));
        adds_up(backend, &Sequence::new(&device), &Points::new(21, 12, None), &flat(0.5));
        let plan = statistics(flat(0.5));
        adds_up(backend, &Convs::new(&device), &Points::new(21, 36, None), &plan);
        adds_up(backend, &Text::new(&device), &Points::new(21, 6, Some(9)), &flat(0.5));
    }
}

/// A trainer keeps kernels from round to round, but not the weights of earlier rounds.
fn second_round_is_like_a_first<M: Classify>(
    old: &M,
    new: &M,
    points: &Points,
    plan: &TrainingPlan,
) {
    let mut trainer = veilgrad_burn::Trainer::new(old, points, plan.clone(), judge).unwrap();
    let header = trainer.header(Adjacency::ZeroOut);
    let mut run = Run::open_insecure(MemoryLedger::new(), header, "test").unwrap();
    let mut sampler = AllRecords;
    let rounds = trainer.plan().clone();
    // `new` is the same model with other initial values.
    let mut sums = |model: &M| {
        let permit = run.reserve(&trainer.event(&sampler).unwrap(), 1).unwrap().next().unwrap();
        let noise = no_noise(&rounds);
        trainer.round_insecure(model, permit, &mut sampler, noise).unwrap();
        all_integers(&(trainer.estimates().unwrap().clone(), rounds.clone()))
    };
    let (first, second) = (sums(old), sums(new));
    assert_ne!(first, second);
    assert_eq!(second, all_integers(&released(new, points, plan.clone(), 0)));
    assert_eq!(sums(old), first);
}

#[test]
fn weights_of_an_older_round_are_not_used_again() {
    fn moved<M: Module + Sync>(model: &M) -> M {
        struct Move;
        impl burn::module::ModuleMapper for Move {
            fn map_float<const D: usize>(
                &mut self,
                parameter: burn::module::Param<burn::tensor::Tensor<D>>,
            ) -> burn::module::Param<burn::tensor::Tensor<D>> {
                parameter.map(|values| {
                    let tracked = values.is_require_grad();
                    let moved = values.inner() * 1.25 + 0.125;
                    burn::tensor::Tensor::from_inner(moved).set_require_grad(tracked)
                })
            }
        }
        model.clone().map(&mut Move)
    }
    for (_, device) in backends() {
        let (mlp, points) = (Mlp::new(&device), Points::new(9, 12, None));
        second_round_is_like_a_first(&mlp, &moved(&mlp), &points, &flat(0.5));
        let (convs, points) = (Convs::new(&device), Points::new(9, 36, None));
        second_round_is_like_a_first(&convs, &moved(&convs), &points, &statistics(flat(0.5)));
        let (text, points) = (Text::new(&device), Points::new(9, 6, Some(9)));
        second_round_is_like_a_first(&text, &moved(&text), &points, &flat(0.5));
    }
}

/// Compares the sums of recorded gradients with those of Burn's autodiff, record by record.
fn agrees_with_brute_force<M: Classify>(model: &M, points: &Points, plan: TrainingPlan) {
    let fast = released(model, points, plan.clone(), 8);
    let slow = released(model, points, plan.materialised(), 1);
    let norm = |v: &[i64]| v.iter().map(|x| (*x as f64).powi(2)).sum::<f64>().sqrt();
    for (name, _) in slow.1.structure().vectors() {
        let (a, b) = (integers(&fast.0, &fast.1, name), integers(&slow.0, &slow.1, name));
        let apart: Vec<i64> = a.iter().zip(&b).map(|(a, b)| a - b).collect();
        // Rounding the right factor moves a record by up to half the norm of the left factor per output.
        let outer = ["first.weight", "second.weight", "last.weight"].contains(&name);
        let rounding = if outer { 16_384.0 } else { 100.0 };
        let slack = 2e-3 * norm(&b) + points.rows.len() as f64 * rounding;
        assert!(norm(&apart) <= slack, "{name}: {} of {}", norm(&apart), norm(&b));
        // The bias of the keys shifts all scores equally and does not change the attention weights.
        assert!(norm(&b) > 4.0 * slack || name == "attention.key.bias", "{name} has a gradient");
    }
}

#[test]
fn recorded_sums_are_those_of_brute_force() {
    for (_, device) in backends() {
        for bound in [0.3, 10.0] {
            agrees_with_brute_force(&Mlp::new(&device), &Points::new(11, 12, None), flat(bound));
            let points = Points::new(11, 12, None);
            agrees_with_brute_force(&Sequence::new(&device), &points, flat(bound));
            let points = Points::new(11, 6, Some(9));
            agrees_with_brute_force(&Text::new(&device), &points, flat(bound));
            agrees_with_brute_force(&Bag::new(&device), &points, flat(bound));
            agrees_with_brute_force(&Tied::new(&device), &points, flat(bound));
            let points = Points::new(11, 36, None);
            agrees_with_brute_force(&Images::new(&device), &points, flat(bound));
        }
    }
}

#[test]
fn groups_joint_scales_and_layers_are_clipped_as_by_brute_force() {
    let device = Device::flex().autodiff();
    let scale = |value| JointScale::new(value).unwrap();
    let joint =
        Group::joint("a", [("first.*", scale(1.0)), ("second.bias", scale(10.0))], clip(0.2));
    let groups = vec![joint, Group::new("b", ["second.weight"], clip(0.1))];
    for clipping in [
        Clipping::PerLayer(clip(0.3)),
        Clipping::DimensionAware(clip(0.3)),
        Clipping::Groups(groups),
    ] {
        let (noise, one) = (NoiseMultiplier::new(1.0).unwrap(), PublicCount::new(1.0).unwrap());
        let plan = TrainingPlan::new(clipping, noise, one);
        let points = Points::new(11, 12, None);
        let fast = released(&Mlp::new(&device), &points, plan.clone(), 8);
        assert_eq!(fast.1.group_names().count(), plan_groups(&plan, &points, &device));
        agrees_with_brute_force(&Mlp::new(&device), &points, plan);
    }
}

fn plan_groups(plan: &TrainingPlan, points: &Points, device: &Device) -> usize {
    let materialised = plan.clone().materialised();
    released(&Mlp::new(device), points, materialised, 1).1.group_names().count()
}

/// The parameters of a Burn model by path.
fn values<M: Module + Sync>(model: &M) -> Vec<(String, Vec<f32>)> {
    struct Values(Vec<String>, Vec<(String, Vec<f32>)>);
    impl burn::module::ModuleVisitor for Values {
        fn enter_module(&mut self, name: &str, _: &str) {
            self.0.push(name.to_owned());
        }
        fn exit_module(&mut self, _: &str, _: &str) {
            self.0.pop();
        }
        fn visit_float<const D: usize>(
            &mut self,
            p: &burn::module::Param<burn::tensor::Tensor<D>>,
        ) {
            self.1.push((self.0.join("."), p.val().into_data().iter::<f32>().collect()));
        }
    }
    let mut values = Values(Vec::new(), Vec::new());
    model.visit(&mut values);
    values.1
}

/// Converts a convolution's weights from Burn's memory order to the native one.
fn turned<T: Copy + Default>(values: &[T], filters: usize, channels: usize) -> Vec<T> {
    let places = values.len() / filters / channels;
    let mut turned = vec![T::default(); values.len()];
    for (index, value) in values.iter().enumerate() {
        let (filter, rest) = (index / (channels * places), index % (channels * places));
        let (channel, place) = (rest / places, rest % places);
        turned[(place * channels + channel) * filters + filter] = *value;
    }
    turned
}

/// One native round without noise.
fn native(
    model: Model,
    points: &Points,
    plan: veilgrad_nn::TrainingPlan,
) -> Trainer<impl veilgrad_nn::Optimizer> {
    let rows = points.rows.iter().flat_map(|(x, _)| x.clone()).collect();
    let classes = points.rows.iter().map(|(_, y)| *y as f32).collect();
    let records = InMemory::new(rows, points.width, classes, 1);
    let size = NonZeroU32::new(points.examples as u32).unwrap();
    let records = Microbatches::new(records, size);
    let performance = Performance { threads: 1, tile: 8 };
    let rate = Schedule::Constant(0.0);
    let mut trainer =
        Trainer::new(model, Loss::SoftmaxCrossEntropy, plan, Sgd::plain(), rate, performance)
            .unwrap();
    let header = trainer.header(Adjacency::ZeroOut);
    let mut run = Run::open_insecure(MemoryLedger::new(), header, "test").unwrap();
    let permit = run.reserve(&trainer.event(&AllRecords).unwrap(), 1).unwrap().next().unwrap();
    let noise = no_noise(trainer.plan());
    trainer.round_insecure(permit, &mut AllRecords, &records, noise).unwrap();
    trainer
}

#[test]
fn sums_are_those_of_the_native_engine() {
    let (noise, one) = (NoiseMultiplier::new(1.0).unwrap(), PublicCount::new(1.0).unwrap());
    let native_plan = veilgrad_nn::TrainingPlan::new(Clipping::Flat(clip(0.5)), noise, one);
    for (_, device) in backends() {
        let (mlp, points) = (Mlp::new(&device), Points::new(21, 12, None));
        let layers = [Layer::linear(7), Layer::Relu, Layer::linear(3)];
        let names = [("linear1", "first"), ("linear2", "second")];
        let model = Model::new(&[12], layers, 1).unwrap();
        compare(&mlp, model, &names, &points, flat(0.5), native_plan.clone(), &[]);

        let (convs, points) = (Convs::new(&device), Points::new(21, 36, None));
        let layers = [
            Conv2d::new(4, 3).stride(2).padding(Padding::Same).into(),
            Layer::Relu,
            Layer::max_pool(2, 1),
            Layer::GroupNorm { groups: 2 },
            Conv2d::new(5, 2).into(),
            Layer::BatchNorm,
            Layer::Flatten,
            Layer::LayerNorm,
            Layer::Relu,
            Layer::linear(3),
        ];
        let names = [
            ("conv1", "first"),
            ("group_norm1", "group"),
            ("conv2", "second"),
            ("batch_norm1", "batch"),
            ("layer_norm1", "layer"),
            ("linear1", "last"),
        ];
        let model = Model::new(&[6, 6, 1], layers, 1).unwrap();
        let share = BudgetShare::new(0.1).unwrap();
        let native_plan = native_plan.clone().statistics(clip(2.0), share);
        let turned = [("first.weight", 4, 1), ("second.weight", 5, 4)];
        compare(&convs, model, &names, &points, statistics(flat(0.5)), native_plan, &turned);
    }
}

#[test]
fn sums_of_embeddings_are_those_of_the_native_engine() {
    let (noise, one) = (NoiseMultiplier::new(1.0).unwrap(), PublicCount::new(1.0).unwrap());
    let native_plan = veilgrad_nn::TrainingPlan::new(Clipping::Flat(clip(0.5)), noise, one);
    for (_, device) in backends() {
        let layers =
            [Layer::Embedding { entries: 9, dimension: 4 }, Layer::Flatten, Layer::linear(3)];
        let names = [("embedding1", "embedding"), ("linear1", "last")];
        let model = Model::new(&[6], layers, 1).unwrap();
        let points = Points::new(21, 6, Some(9));
        let bag = Bag::new(&device);
        compare(&bag, model, &names, &points, flat(0.5), native_plan.clone(), &[]);
    }
}

#[test]
fn sums_of_microbatches_are_those_of_the_native_engine_and_averages() {
    let examples = NonZeroU32::new(3).unwrap();
    let unit = Unit::Microbatch { examples };
    let (noise, one) = (NoiseMultiplier::new(1.0).unwrap(), PublicCount::new(1.0).unwrap());
    let mut points = Points::new(21, 12, None);
    for (_, device) in backends() {
        let mlp = Mlp::new(&device);
        for bound in [0.2, 10.0] {
            let clipping = Clipping::Flat(clip(bound));
            let native_plan = veilgrad_nn::TrainingPlan::new(clipping, noise, one).unit(unit);
            let layers = [Layer::linear(7), Layer::Relu, Layer::linear(3)];
            let names = [("linear1", "first"), ("linear2", "second")];
            let model = Model::new(&[12], layers, 1).unwrap();
            points.examples = 3;
            let plan = flat(bound).unit(unit);
            compare(&mlp, model.clone(), &names, &points, plan.clone(), native_plan.clone(), &[]);
            // Unusable examples are left out, and the others of their microbatch are not.
            let mut spoiled = points.clone();
            spoiled.rows[1].1 = 9;
            spoiled.rows[3].0[0] = f32::NAN;
            spoiled.rows[7].0[2] = f32::INFINITY;
            (9..12).for_each(|row| spoiled.rows[row].1 = -1);
            compare(&mlp, model, &names, &spoiled, plan.clone(), native_plan, &[]);
            let all = all_integers(&released(&mlp, &points, plan.clone(), 1));
            assert_ne!(all_integers(&released(&mlp, &spoiled, plan, 1)), all);
        }
        // Without clipping, the sum of three averages of three examples is a third of the sum of nine gradients.
        points.examples = 3;
        let averages = all_integers(&released(&mlp, &points, flat(10.0).unit(unit), 1));
        points.examples = 1;
        let all = all_integers(&released(&mlp, &points, flat(10.0).materialised(), 1));
        let near = |(a, b): (&i64, &i64)| (3 * a - b).abs() <= 200 + b.abs() / 10_000;
        assert!(averages.iter().zip(&all).all(near) && all.iter().any(|sum| sum.abs() > 10_000));
    }
}

/// Runs both on the same weights and records.
fn compare<M: Classify>(
    burn: &M,
    mut model: Model,
    names: &[(&str, &str)],
    points: &Points,
    plan: TrainingPlan,
    native_plan: veilgrad_nn::TrainingPlan,
    conv: &[(&str, usize, usize)],
) {
    let kinds = [
        (".scale", ".gamma"),
        (".shift", ".beta"),
        (".mean_square", ".running_var"),
        (".mean", ".running_mean"),
    ];
    let ours = |native: &str| {
        let (layer, kind) = native.split_once('.').unwrap();
        let layer = names.iter().find(|(n, _)| *n == layer).unwrap().1;
        let kind = format!(".{kind}");
        let kind =
            kinds.iter().find(|(n, _)| **n == *kind).map_or(kind.as_str(), |(_, ours)| *ours);
        format!("{layer}{kind}")
    };
    let weights = values(burn);
    let parameters: Vec<String> = model.parameters().map(|(name, _, _)| name.to_owned()).collect();
    for name in &parameters {
        let ours = ours(name);
        let (_, values) = weights.iter().find(|(n, _)| *n == ours).unwrap();
        let values = match conv.iter().find(|(n, _, _)| *n == ours) {
            Some((_, filters, channels)) => turned(values, *filters, *channels),
            None => values.clone(),
        };
        model.parameter_mut(name).unwrap().copy_from_slice(&values);
    }
    let theirs = native(model, points, native_plan);
    let fast = released(burn, points, plan, 8);
    for name in &parameters {
        let ours = ours(name);
        let mut found = integers(&fast.0, &fast.1, &ours);
        if let Some((_, filters, channels)) = conv.iter().find(|(n, _, _)| *n == ours) {
            found = turned(&found, *filters, *channels);
        }
        let expected = integers(theirs.estimates().unwrap(), theirs.plan(), name);
        // Burn's softmax, and norms summed in another order, may change the last bits of a gradient: one step of
        // one factor of an outer product is up to 2^13.
        let step =
            if name.starts_with("linear") && name.ends_with("weight") { 1 << 14 } else { 64 };
        let near =
            found.iter().zip(&expected).all(|(a, b)| (a - b).abs() <= step + b.abs() / 100_000);
        assert!(near && expected.iter().any(|x| *x != 0), "{name}: {found:?} {expected:?}");
    }
}

#[test]
fn threads_and_tiles_do_not_change_a_bit() {
    let device = Device::flex().autodiff();
    let (model, points) = (Mlp::new(&device), Points::new(45, 12, None));
    for plan in [flat(0.4), flat(0.4).materialised()] {
        let sums = |threads, tile| {
            let performance = Performance { threads, tile };
            let trainer =
                veilgrad_burn::Trainer::with(&model, &points, plan.clone(), judge, performance);
            all_integers(&crate::common::round(trainer.unwrap(), &model))
        };
        let expected = sums(1, 8);
        for (threads, tile) in [(2, 8), (5, 8), (3, 16)] {
            assert_eq!(sums(threads, tile), expected, "{threads} threads, tiles of {tile}");
        }
    }
}
