//! Gradient groups in plans that also have statistics and metrics.

use crate::common::{distance, examples, in_memory, model, plain_trainer, train_exactly};
use veilgrad_events::{BudgetShare, ClipNorm, NoiseMultiplier, PublicCount, WeightBound};
use veilgrad_mechanism::{Group, Metric};
use veilgrad_nn::{
    Clipping, Layer, Loss, Model, Performance, Schedule, Sgd, TrainError, Trainer, TrainingPlan,
};

const ONE_THREAD: Performance = Performance { threads: 1, tile: 32 };

fn clip(norm: f64) -> ClipNorm {
    ClipNorm::new(norm).unwrap()
}

fn plan(groups: Vec<Group>) -> TrainingPlan {
    let (noise, expected) = (NoiseMultiplier::new(1.0).unwrap(), PublicCount::new(50.0).unwrap());
    TrainingPlan::new(Clipping::Groups(groups), noise, expected)
}

#[test]
fn globs_choose_gradients_beside_statistics_and_metrics() {
    let share = BudgetShare::new(0.1).unwrap();
    let layers = [Layer::BatchNorm, Layer::Flatten, Layer::linear(3)];
    let normed = Model::new(&[6, 6, 1], layers, 4).unwrap();
    let data = in_memory(&examples(50, 2));
    for groups in [
        vec![Group::new("g", ["*"], clip(1.0))],
        vec![Group::new("body", ["batch_norm*"], clip(1.0)), Group::new("head", ["l*"], clip(1.0))],
    ] {
        let names: Vec<String> = (if groups.len() == 1 { &["g"][..] } else { &["body", "head"] })
            .iter()
            .chain(&["statistics", "accuracy", "loss"])
            .map(|name| (*name).to_owned())
            .collect();
        let plan = plan(groups)
            .statistics(clip(1.0), share)
            .metric(Metric::accuracy().unwrap(), share)
            .metric(Metric::loss(4.0).unwrap(), share);
        let mut trainer = plain_trainer(&normed, plan, 0.1, ONE_THREAD).unwrap();
        assert!(trainer.plan().group_names().eq(names.iter()));
        let statistics: Vec<_> = trainer.plan().vectors("statistics").map(str::to_owned).collect();
        assert_eq!(statistics, ["batch_norm1.mean", "batch_norm1.mean_square"]);
        train_exactly(&mut trainer, &data, 1);
        assert!(distance(&normed, trainer.model()) > 0.01);
    }
    // A gradient group cannot contain a statistic or a metric.
    for pattern in ["accuracy", "batch_norm1.mean"] {
        let groups = vec![Group::new("g", ["*"], clip(1.0)), Group::new("h", [pattern], clip(1.0))];
        let plan =
            plan(groups).statistics(clip(1.0), share).metric(Metric::accuracy().unwrap(), share);
        let made = plain_trainer(&normed, plan, 0.1, ONE_THREAD);
        assert!(matches!(made.err(), Some(TrainError::Plan(_))), "{pattern}");
    }
}

#[test]
fn a_group_with_its_own_average_keeps_it() {
    let data = in_memory(&examples(50, 2));
    let moved = |group: Group, materialised: bool| {
        let weights = Group::weight("weights", WeightBound::new(1.0).unwrap());
        let plan = plan(vec![group]).group(weights);
        let plan = if materialised { plan.materialised() } else { plan };
        let rate = Schedule::Constant(1.0);
        let mut trainer =
            Trainer::new(model(), Loss::SoftmaxCrossEntropy, plan, Sgd::plain(), rate, ONE_THREAD)
                .unwrap();
        train_exactly(&mut trainer, &data, 1);
        distance(&model(), trainer.model())
    };
    let group = || Group::new("g", ["*"], clip(0.1));
    let count = |count| PublicCount::new(count).unwrap();
    for materialised in [false, true] {
        let usual = moved(group(), materialised);
        assert!(usual > 0.01);
        for (asked, factor) in [
            (group().average(count(25.0)), 2.0),
            // The total weight of fifty records is 50; a larger minimum replaces it.
            (group().average_over("weights", count(10.0)), 1.0),
            (group().average_over("weights", count(500.0)), 0.1),
        ] {
            let found = moved(asked, materialised) / usual;
            assert!((found - factor).abs() < 1e-3 * factor, "{found} for {factor}");
        }
    }
}

#[test]
fn presets_give_every_parameter_the_bound_they_say() {
    let total: usize = model().parameters().map(|(_, _, values)| values.len()).sum();
    let count = model().parameters().count() as f64;
    let bound = |clipping: Clipping, name: &str| {
        let (noise, one) = (NoiseMultiplier::new(1.0).unwrap(), PublicCount::new(1.0).unwrap());
        let plan = TrainingPlan::new(clipping, noise, one);
        let rate = Schedule::Constant(1.0);
        let trainer =
            Trainer::new(model(), Loss::SoftmaxCrossEntropy, plan, Sgd::plain(), rate, ONE_THREAD)
                .unwrap();
        trainer.plan().clip_norm(name).unwrap().get()
    };
    for (name, _, values) in model().parameters() {
        let per_layer = bound(Clipping::PerLayer(clip(2.0)), name);
        assert!((per_layer * count.sqrt() / 2.0 - 1.0).abs() < 1e-12, "{name}: {per_layer}");
        let aware = bound(Clipping::DimensionAware(clip(2.0)), name);
        let expected = 2.0 * (values.len() as f64 / total as f64).sqrt();
        assert!((aware / expected - 1.0).abs() < 1e-12, "{name}: {aware}");
    }
}

#[test]
fn statistics_and_metrics_get_their_shares_of_a_round() {
    let layers = [Layer::BatchNorm, Layer::Flatten, Layer::linear(3)];
    let normed = Model::new(&[6, 6, 1], layers, 4).unwrap();
    let share = |part| BudgetShare::new(part).unwrap();
    let plan = plan(vec![Group::new("g", ["*"], clip(1.0))])
        .statistics(clip(3.0), share(0.2))
        .metric(Metric::accuracy().unwrap(), share(0.05));
    let rate = Schedule::Constant(1.0);
    let trainer =
        Trainer::new(normed, Loss::SoftmaxCrossEntropy, plan, Sgd::plain(), rate, ONE_THREAD)
            .unwrap();
    // A group of noise multiplier z has 1/z^2 of the privacy loss; here they add up to 1.
    for (name, expected) in [("g", 0.75), ("statistics", 0.2), ("accuracy", 0.05)] {
        let part = trainer.plan().grid(name).unwrap().noise_multiplier().powi(-2);
        assert!((part / expected - 1.0).abs() < 1e-6, "{name}: {part}");
    }
}
