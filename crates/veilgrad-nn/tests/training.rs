//! Rounds: the same bits for any number of threads, huge records, private statistics and metrics.

use crate::common::{bits, distance, examples, in_memory, model, plan, train_exactly, trainer};
use veilgrad_events::{
    Adjacency, BudgetShare, ClipNorm, Event, JointScale, MemoryLedger, NoiseStd, PublicCount, Run,
    SampleRate,
};
use veilgrad_mechanism::insecure::no_noise;
use veilgrad_mechanism::{AllRecords, Group, LearningRate, Metric, PoissonSampler, Quantile};
use veilgrad_nn::{
    Clipping, Conv2d, InMemory, Layer, Loss, Model, Performance, Schedule, Sgd, TrainError,
    Trainer, TrainingPlan, public,
};

const ONE_THREAD: Performance = Performance { threads: 1, tile: 32 };

#[test]
fn threads_tiles_and_the_order_of_records_do_not_change_a_bit() {
    let mut data = examples(101, 3);
    let share = BudgetShare::new(0.1).unwrap();
    let run = |data: &[_], threads, tile| {
        let plan = plan(0.3, 101.0).metric(Metric::accuracy().unwrap(), share);
        let mut trainer = trainer(plan, Performance { threads, tile });
        let progress = train_exactly(&mut trainer, &in_memory(data), 5).unwrap();
        (bits(trainer.model()), progress.metric("accuracy").unwrap()[0].to_bits())
    };
    let expected = run(&data, 1, 32);
    for (threads, tile) in [(2, 32), (4, 32), (1, 1), (3, 7), (2, 101), (4, 1000)] {
        assert_eq!(run(&data, threads, tile), expected, "{threads} threads, tiles of {tile}");
    }
    data.reverse();
    assert_eq!(run(&data, 2, 16), expected);
}

#[test]
fn a_record_far_too_large_is_clipped_like_any_other() {
    let mut data = examples(10, 6);
    data[4].0.iter_mut().for_each(|x| *x *= 1e30);
    let mut trainer = trainer(plan(0.3, 10.0), ONE_THREAD);
    let before = trainer.model().clone();
    train_exactly(&mut trainer, &in_memory(&data), 1);
    // Ten records of norm 0.3, averaged over 10, at rate 0.5.
    let moved = distance(&before, trainer.model());
    assert!(moved > 0.0 && moved <= 0.15 * (1.0 + 1e-6), "{moved}");
}

#[test]
fn zero_gradients_and_empty_samples_are_ordinary_rounds() {
    // Inputs and targets are zero, and so is the output: all gradients are zero.
    let layers = [Layer::linear(2)];
    let zero = Model::new(&[3], layers, 1).unwrap();
    let data = InMemory::new(vec![0.0; 30], 3, vec![0.0; 20], 2);
    let clip = Clipping::Flat(ClipNorm::new(1.0).unwrap());
    let noise = veilgrad_events::NoiseMultiplier::new(1.0).unwrap();
    let expected = PublicCount::new(10.0).unwrap();
    let plan = TrainingPlan::new(clip, noise, expected);
    let rate = Schedule::Constant(1.0);
    let mut trainer =
        Trainer::new(zero.clone(), Loss::SquaredError, plan, Sgd::plain(), rate, ONE_THREAD)
            .unwrap();
    train_exactly(&mut trainer, &data, 2);
    // Decoding rounds to the middle of a grid cell, which is far below any gradient.
    assert!(distance(&zero, trainer.model()) < 1e-6);

    // At this rate the sample is empty; the noise is not.
    let mut trainer = crate::common::trainer(crate::common::plan(1.0, 1.0), ONE_THREAD);
    let before = trainer.model().clone();
    let mut sampler = PoissonSampler::new(SampleRate::new(1e-9).unwrap());
    let mut run = Run::open(MemoryLedger::new(), trainer.header(Adjacency::AddRemove)).unwrap();
    trainer.train(&mut run, &mut sampler, &in_memory(&examples(9, 1)), 3, 2, |_, _| ()).unwrap();
    assert!(distance(&before, trainer.model()) > 0.1);
    assert_eq!(run.close().unwrap().rounds().iter().map(|r| r.count).sum::<u64>(), 3);
}

#[test]
fn both_routes_and_all_kinds_of_clipping_agree_up_to_rounding() {
    let clip = ClipNorm::new(0.2).unwrap();
    let alpha = |a| JointScale::new(a).unwrap();
    let by_name = vec![
        Group::joint("head", [("linear*.weight", alpha(2.0)), ("linear*.bias", alpha(0.5))], clip),
        Group::new("body", ["conv*", "group_norm*"], clip),
    ];
    for clipping in [
        Clipping::Flat(clip),
        Clipping::PerLayer(clip),
        Clipping::DimensionAware(clip),
        Clipping::Groups(by_name),
        Clipping::Groups(vec![Group::new("g", ["*"], clip).normalised()]),
    ] {
        let expected = PublicCount::new(50.0).unwrap();
        let noise = veilgrad_events::NoiseMultiplier::new(0.9).unwrap();
        let exact = TrainingPlan::new(clipping.clone(), noise, expected);
        let (mut fast, mut slow) =
            (trainer(exact.clone(), ONE_THREAD), trainer(exact.materialised(), ONE_THREAD));
        let start = fast.model().clone();
        let data = in_memory(&examples(50, 2));
        train_exactly(&mut fast, &data, 3);
        train_exactly(&mut slow, &data, 3);
        let (moved, apart) = (distance(&start, fast.model()), distance(fast.model(), slow.model()));
        assert!(moved > 0.02 && apart < 2e-3 * moved, "{clipping:?}: {moved} {apart}");
    }
}

#[test]
fn training_learns_and_private_metrics_show_it() {
    let data = examples(300, 9);
    let share = BudgetShare::new(0.1).unwrap();
    let plan = plan(1.0, 300.0)
        .metric(Metric::accuracy().unwrap(), share)
        .metric(Metric::loss(5.0).unwrap(), share)
        .metric(Metric::class_counts("classes", 3), share);
    let mut trainer = trainer(plan, Performance::default()).averaging(0.9);
    let progress = train_exactly(&mut trainer, &in_memory(&data), 60).unwrap();
    assert!(progress.metric("accuracy").unwrap()[0] > 0.95);
    assert!(progress.metric("loss").unwrap()[0] < 0.4);
    let counts = progress.metric("classes").unwrap();
    for (class, count) in counts.iter().enumerate() {
        let exact = data.iter().filter(|(_, y)| *y == class as f32).count() as f64;
        assert!((count - exact).abs() < 1e-3, "{counts:?}");
    }
    let test = in_memory(&examples(200, 77));
    let found = public::evaluate(trainer.model(), Loss::SoftmaxCrossEntropy, &test);
    assert!(found.accuracy > 0.95 && found.loss < 0.5, "{found:?}");
    let averaged = trainer.averaged_model().unwrap();
    assert!(public::evaluate(&averaged, Loss::SoftmaxCrossEntropy, &test).accuracy > 0.95);
}

fn with_batch_norm() -> Model {
    let layers =
        [Conv2d::new(4, 3).into(), Layer::BatchNorm, Layer::Relu, Layer::Flatten, Layer::linear(3)];
    Model::new(&[6, 6, 1], layers, 4).unwrap()
}

#[test]
fn statistics_gradients_and_metrics_are_groups_of_one_charged_round() {
    let (share, clip) = (BudgetShare::new(0.05).unwrap(), ClipNorm::new(8.0).unwrap());
    let plan = plan(1.0, 50.0).statistics(clip, share).metric(Metric::accuracy().unwrap(), share);
    let rate = Schedule::Constant(0.1);
    let mut trainer = Trainer::new(
        with_batch_norm(),
        Loss::SoftmaxCrossEntropy,
        plan,
        Sgd::plain(),
        rate,
        Performance::default(),
    )
    .unwrap();
    let mut sampler = PoissonSampler::new(SampleRate::new(0.5).unwrap());
    let mut run = Run::open(MemoryLedger::new(), trainer.header(Adjacency::AddRemove)).unwrap();
    let data = in_memory(&examples(100, 8));
    trainer.train(&mut run, &mut sampler, &data, 10, 4, |_, _| ()).unwrap();
    let ledger = run.close().unwrap();
    let [rounds] = &ledger.rounds()[..] else { panic!("one kind of round") };
    assert_eq!(rounds.count, 10);
    let groups: Vec<&str> = rounds.round.queries().iter().map(|q| q.group()).collect();
    assert_eq!(groups, ["gradient", "statistics", "accuracy"]);
    // All groups together have the noise multiplier of the plan.
    let z = rounds.round.noise_multiplier().unwrap().get();
    assert!((1.1..1.1 * (1.0 + 1e-6)).contains(&z), "{z}");
    let model = trainer.model();
    assert!(model.parameters().all(|(_, _, values)| values.iter().all(|v| v.is_finite())));
}

#[test]
fn running_statistics_follow_those_of_the_records() {
    let (share, clip) = (BudgetShare::new(0.5).unwrap(), ClipNorm::new(1e3).unwrap());
    let layers = [Layer::BatchNorm, Layer::Flatten, Layer::linear(3)];
    let model = Model::new(&[6, 6, 1], layers, 4).unwrap();
    let plan = plan(1e-3, 80.0).statistics(clip, share);
    let rate = Schedule::Constant(0.0);
    let mut trainer =
        Trainer::new(model, Loss::SoftmaxCrossEntropy, plan, Sgd::plain(), rate, ONE_THREAD)
            .unwrap()
            .statistics_momentum(0.5);
    let data = examples(80, 8);
    train_exactly(&mut trainer, &in_memory(&data), 40);
    let all: Vec<f64> = data.iter().flat_map(|(x, _)| x.iter().map(|x| f64::from(*x))).collect();
    let mean = all.iter().sum::<f64>() / all.len() as f64;
    let square = all.iter().map(|x| x * x).sum::<f64>() / all.len() as f64;
    for (name, expected) in [("batch_norm1.mean", mean), ("batch_norm1.mean_square", square)] {
        let (_, _, values) = trainer.model().parameters().find(|(n, _, _)| *n == name).unwrap();
        assert!((f64::from(values[0]) - expected).abs() < 1e-4, "{name}: {} {expected}", values[0]);
    }
}

#[test]
fn a_model_with_batch_norm_needs_a_plan_for_its_statistics() {
    let rate = Schedule::Constant(0.1);
    let made = Trainer::new(
        with_batch_norm(),
        Loss::SoftmaxCrossEntropy,
        plan(1.0, 9.0),
        Sgd::plain(),
        rate,
        ONE_THREAD,
    );
    assert!(matches!(made.err(), Some(TrainError::Statistics)));
    let plan =
        plan(1.0, 9.0).statistics(ClipNorm::new(1.0).unwrap(), BudgetShare::new(0.1).unwrap());
    let made =
        Trainer::new(model(), Loss::SoftmaxCrossEntropy, plan, Sgd::plain(), rate, ONE_THREAD);
    assert!(matches!(made.err(), Some(TrainError::Statistics)));
}

#[test]
fn an_adaptive_clip_norm_follows_the_norms_and_stops_at_its_floor() {
    for materialised in [false, true] {
        let expected = PublicCount::new(60.0).unwrap();
        let floor = ClipNorm::new(0.05).unwrap();
        let quantile = Quantile::of_norm("gradient", 0.5, expected, floor).unwrap();
        let quantile = quantile.learning_rate(LearningRate::constant(0.5).unwrap());
        let group = Group::quantile("median", quantile).noise(NoiseStd::new(3.0).unwrap());
        let plan = plan(20.0, 60.0).group(group);
        let adaptive = if materialised { plan.materialised() } else { plan };
        let (plan, rate) = (adaptive.clone(), Schedule::Constant(0.0));
        let mut trainer =
            Trainer::new(model(), Loss::SoftmaxCrossEntropy, plan, Sgd::plain(), rate, ONE_THREAD)
                .unwrap();
        train_exactly(&mut trainer, &in_memory(&examples(60, 12)), 80);
        let adapted = trainer.plan().clip_norm("gradient").unwrap().get();
        // Half of the norms are below the clip norm: the next round releases a fraction near 1/2.
        train_exactly(&mut trainer, &in_memory(&examples(60, 12)), 1);
        let below = trainer.estimates().unwrap().scalar("median").unwrap();
        assert!((below - 0.5).abs() < 0.1 && adapted < 19.0, "{below} at {adapted}");
        // Records with tiny gradients lower it to the floor and not below.
        let mut sure = model();
        sure.parameter_mut("linear2.weight").unwrap().fill(0.0);
        sure.parameter_mut("linear2.bias").unwrap().copy_from_slice(&[60.0, 0.0, 0.0]);
        let mut trainer =
            Trainer::new(sure, Loss::SoftmaxCrossEntropy, adaptive, Sgd::plain(), rate, ONE_THREAD)
                .unwrap();
        let dull: Vec<_> = examples(60, 12).into_iter().map(|(x, _)| (x, 0.0)).collect();
        train_exactly(&mut trainer, &in_memory(&dull), 10);
        assert!(trainer.plan().clip_norm("gradient").unwrap() > floor);
        train_exactly(&mut trainer, &in_memory(&dull), 60);
        assert_eq!(trainer.plan().clip_norm("gradient").unwrap(), floor);
    }
}

#[test]
fn the_ledger_is_charged_before_and_a_spent_budget_touches_no_data() {
    let mut trainer = trainer(plan(1.0, 10.0), ONE_THREAD);
    let mut sampler = PoissonSampler::new(SampleRate::new(0.1).unwrap());
    let store = MemoryLedger::with_round_limit(5);
    let mut run = Run::open(store, trainer.header(Adjacency::AddRemove)).unwrap();
    let data = in_memory(&examples(100, 2));
    trainer.train(&mut run, &mut sampler, &data, 4, 2, |_, _| ()).unwrap();
    let before = bits(trainer.model());
    let stopped = trainer.train(&mut run, &mut sampler, &data, 2, 2, |_, _| ());
    assert!(matches!(stopped, Err(TrainError::Ledger(_))));
    assert_eq!(bits(trainer.model()), before);
    assert_eq!(trainer.rounds(), 4);
    let ledger = run.close().unwrap();
    assert!(!ledger.events().iter().any(|event| matches!(event, Event::Insecure(_))));
}

#[test]
fn the_sums_of_a_round_that_failed_do_not_enter_the_next() {
    let data = in_memory(&examples(40, 5));
    for threads in [1, 2] {
        let performance = Performance { threads, tile: 4 };
        let mut sound = trainer(plan(0.3, 40.0), performance);
        train_exactly(&mut sound, &data, 1);
        let mut shaken = trainer(plan(0.3, 40.0), performance);
        // The round fails after all records are added: the run is not stamped, so noise for tests is refused.
        let header = shaken.header(Adjacency::ZeroOut);
        let mut run = Run::open(MemoryLedger::new(), header).unwrap();
        let permit = run.reserve(&shaken.event(&AllRecords).unwrap(), 1).unwrap().next().unwrap();
        let noise = no_noise(shaken.plan());
        let failed = shaken.round_insecure(permit, &mut AllRecords, &data, noise);
        assert!(matches!(failed, Err(TrainError::Release(_))));
        assert_eq!(shaken.rounds(), 0);
        train_exactly(&mut shaken, &data, 1);
        assert_eq!(bits(shaken.model()), bits(sound.model()), "{threads} threads");
    }
}
