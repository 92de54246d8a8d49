//! Records that are microbatches or users.

use std::num::NonZeroU32;

use crate::common::{
    bits, distance, examples, in_memory, plain_trainer, plan, train_exactly, trainer,
};
use veilgrad_events::{Adjacency, BudgetShare, ClipNorm, MemoryLedger, RecordUnit, Run, RunHeader};
use veilgrad_mechanism::{AllRecords, Metric};
use veilgrad_nn::{
    Contribution, Conv2d, Layer, Microbatches, Model, Performance, Records, TrainError, Unit,
};

const ONE_THREAD: Performance = Performance { threads: 1, tile: 4 };

fn number(n: u32) -> NonZeroU32 {
    NonZeroU32::new(n).unwrap()
}

/// Users with several examples each.
struct Users(Vec<Vec<(Vec<f32>, f32)>>);

impl Records for Users {
    fn count(&self) -> u64 {
        self.0.len() as u64
    }

    fn examples(&self, record: u64) -> usize {
        self.0[record as usize].len()
    }

    fn read(&self, record: u64, example: usize, input: &mut [f32], target: &mut [f32]) {
        let (x, y) = &self.0[record as usize][example];
        input.copy_from_slice(x);
        target[0] = *y;
    }
}

#[test]
fn a_microbatch_of_one_is_an_example() {
    let data = in_memory(&examples(30, 1));
    let mut reference = trainer(plan(0.3, 30.0).materialised(), ONE_THREAD);
    train_exactly(&mut reference, &data, 3);
    let unit = Unit::Microbatch { examples: number(1) };
    let mut single = trainer(plan(0.3, 30.0).unit(unit), ONE_THREAD);
    train_exactly(&mut single, &Microbatches::new(&data, number(1)), 3);
    assert_eq!(bits(reference.model()), bits(single.model()));
    let header = single.header(Adjacency::AddRemove);
    assert_eq!(header.unit, RecordUnit::Microbatch { examples: number(1) });
}

#[test]
fn copies_of_an_example_are_averaged_before_clipping_and_the_record_stays_an_example() {
    let all = examples(30, 1);
    let records = Users(all.chunks(3).map(<[_]>::to_vec).collect());
    let unit = Unit::Microbatch { examples: number(3) };
    let mut reference = trainer(plan(0.3, 10.0).unit(unit), ONE_THREAD);
    train_exactly(&mut reference, &records, 3);
    for performance in [ONE_THREAD, Performance { threads: 2, tile: 2 }] {
        let mut copies = trainer(plan(0.3, 10.0).copies(number(3)), performance);
        assert_eq!(copies.header(Adjacency::AddRemove).unit, RecordUnit::Example);
        train_exactly(&mut copies, &records, 3);
        assert_eq!(bits(reference.model()), bits(copies.model()));
    }
    // Examples beyond the declared number of copies are not used.
    let first = Users(all.chunks(3).map(|copies| copies[..1].to_vec()).collect());
    let run = |records: &Users| {
        let mut trainer = trainer(plan(0.3, 10.0).copies(number(1)), ONE_THREAD);
        train_exactly(&mut trainer, records, 2);
        bits(trainer.model())
    };
    assert_eq!(run(&records), run(&first));
}

#[test]
fn unclipped_microbatches_average_to_the_batch_gradient_whatever_the_tile() {
    let data = in_memory(&examples(160, 1));
    // Nothing is clipped at 1000.
    let mut by_example = trainer(plan(1000.0, 160.0).materialised(), ONE_THREAD);
    train_exactly(&mut by_example, &data, 2);
    let start = trainer(plan(1000.0, 1.0), ONE_THREAD);
    let moved = distance(start.model(), by_example.model());
    // The last is larger than a tile.
    for size in [2, 5, 16, 160] {
        let unit = Unit::Microbatch { examples: number(size) };
        let mut batches = trainer(plan(1000.0, 160.0 / f64::from(size)).unit(unit), ONE_THREAD);
        train_exactly(&mut batches, &Microbatches::new(&data, number(size)), 2);
        let apart = distance(by_example.model(), batches.model());
        assert!(apart < 1e-3 * moved, "{size}: {apart} of {moved}");
    }
}

#[test]
fn an_example_whose_gradient_overflows_leaves_the_others_of_its_record_as_they_are() {
    // First layer zero, second layer huge: the loss is finite, and for a large pixel the gradient of the first layer
    // overflows f32.
    let layers = [Conv2d::new(3, 1).into(), Layer::Flatten, Layer::linear(2)];
    let mut model = Model::new(&[1, 1, 1], layers, 1).unwrap();
    model.parameter_mut("conv1.weight").unwrap().fill(0.0);
    let weights = [1e10, -1e10, 0.0, 0.0, 0.0, 0.0];
    model.parameter_mut("linear1.weight").unwrap().copy_from_slice(&weights);
    let run = |pixels: &[f32]| {
        let user = pixels.iter().map(|pixel| (vec![*pixel], 0.0)).collect();
        let unit = Unit::User { examples: number(9), contribution: Contribution::Average };
        let plan = plan(1.0, 1.0).unit(unit);
        let mut trainer = plain_trainer(&model, plan, 1.0, ONE_THREAD).unwrap();
        train_exactly(&mut trainer, &Users(vec![user]), 1);
        trainer.model().clone()
    };
    let (start, sound) = (run(&[1e37]), run(&[0.5, 0.25, 0.125]));
    assert_eq!(bits(&start), bits(&run(&[])));
    let moved = distance(&start, &sound);
    assert!(moved > 0.9);
    for place in 0..4 {
        let mut pixels = vec![0.5, 0.25, 0.125];
        pixels.insert(place, 1e37);
        assert!(distance(&run(&pixels), &sound) < 1e-5 * moved, "at {place}");
    }
}

#[test]
fn only_so_many_examples_of_a_user_count_and_bad_ones_do_not() {
    let all = examples(10, 4);
    let average = Contribution::Average;
    let run = |users: Vec<Vec<(Vec<f32>, f32)>>, bound| {
        let unit = Unit::User { examples: number(bound), contribution: average };
        let share = BudgetShare::new(0.1).unwrap();
        let plan = plan(0.3, 2.0).unit(unit).metric(Metric::accuracy().unwrap(), share);
        let mut trainer = trainer(plan, ONE_THREAD);
        assert_eq!(trainer.header(Adjacency::AddRemove).unit, RecordUnit::User);
        let progress = train_exactly(&mut trainer, &Users(users), 2).unwrap();
        (bits(trainer.model()), progress.metric("accuracy").unwrap()[0].to_bits())
    };
    let few = run(vec![all[..5].to_vec(), all[5..7].to_vec()], 5);
    assert_eq!(few, run(vec![all.clone(), all[5..7].to_vec()], 5));
    assert_ne!(few, run(vec![all.clone(), all[5..7].to_vec()], 10));
    // A user without examples, and one with unusable examples only.
    let mut bad = all[0].clone();
    bad.0[0] = f32::NAN;
    assert_eq!(few, run(vec![all.clone(), all[5..7].to_vec(), vec![], vec![bad.clone(); 3]], 5));
    let mut with_bad = all[5..7].to_vec();
    with_bad.push(bad);
    assert_eq!(few, run(vec![all, with_bad], 5));
}

#[test]
fn one_local_step_on_all_examples_is_the_average_gradient() {
    let users = vec![examples(6, 1), examples(5, 2), examples(3, 3)];
    let run = |contribution, rate: f32| {
        let unit = Unit::User { examples: number(6), contribution };
        let mut trainer = trainer(plan(100.0, 3.0 * f64::from(rate)).unit(unit), ONE_THREAD);
        train_exactly(&mut trainer, &Users(users.clone()), 2);
        trainer.model().clone()
    };
    let average = run(Contribution::Average, 1.0);
    let step = |batch, epochs| {
        let (batch, epochs) = (number(batch), number(epochs));
        run(Contribution::LocalSgd { rate: 0.25, batch, epochs }, 0.25)
    };
    let start = crate::common::model();
    let moved = distance(&start, &average);
    assert!(distance(&step(6, 1), &average) < 1e-3 * moved);
    // More steps go further.
    assert!(distance(&start, &step(2, 3)) > 1.5 * moved);
}

#[test]
fn a_run_opened_for_other_records_is_refused() {
    let unit = Unit::User { examples: number(3), contribution: Contribution::Average };
    let mut trainer = trainer(plan(0.3, 2.0).unit(unit), ONE_THREAD);
    // A custom header instead of Trainer::header: the ledger would name the wrong record unit.
    let header = RunHeader::new(RecordUnit::Example, Adjacency::AddRemove);
    let mut run = Run::open(MemoryLedger::new(), header).unwrap();
    let users = Users(vec![examples(3, 1)]);
    let before = bits(trainer.model());
    let refused = trainer.train(&mut run, &mut AllRecords, &users, 1, 1, |_, _| ());
    assert!(matches!(refused, Err(TrainError::Unit { .. })));
    assert_eq!(bits(trainer.model()), before);
}

#[test]
fn threads_do_not_change_what_users_and_microbatches_bring() {
    let users: Vec<_> = (0..23).map(|seed| examples(1 + seed as usize % 5, seed)).collect();
    let local = Contribution::LocalSgd { rate: 0.1, batch: number(2), epochs: number(2) };
    for contribution in [Contribution::Average, local] {
        let run = |threads, tile| {
            let unit = Unit::User { examples: number(4), contribution };
            let share = BudgetShare::new(0.1).unwrap();
            let plan = plan(0.3, 23.0).unit(unit).metric(Metric::accuracy().unwrap(), share);
            let mut trainer = trainer(plan, Performance { threads, tile });
            let progress = train_exactly(&mut trainer, &Users(users.clone()), 3).unwrap();
            (bits(trainer.model()), progress.metric("accuracy").unwrap()[0].to_bits())
        };
        let expected = run(1, 4);
        assert_eq!(run(2, 4), expected, "{contribution:?}");
        assert_eq!(run(3, 4), expected, "{contribution:?}");
    }
}

#[test]
fn local_steps_release_the_statistics_and_metrics_of_one_pass() {
    let layers =
        [Conv2d::new(4, 3).into(), Layer::BatchNorm, Layer::Relu, Layer::Flatten, Layer::linear(3)];
    let model = Model::new(&[6, 6, 1], layers, 4).unwrap();
    let users: Vec<_> = (0..4).map(|seed| examples(5, seed)).collect();
    let run = |contribution| {
        let unit = Unit::User { examples: number(5), contribution };
        let share = BudgetShare::new(0.1).unwrap();
        let plan = plan(0.3, 4.0)
            .unit(unit)
            .statistics(ClipNorm::new(100.0).unwrap(), share)
            .metric(Metric::loss(4.0).unwrap(), share);
        let mut trainer = plain_trainer(&model, plan, 1.0, ONE_THREAD).unwrap();
        let progress = train_exactly(&mut trainer, &Users(users.clone()), 1).unwrap();
        let released = trainer.estimates().unwrap();
        let bits_of = |name| -> Vec<u64> {
            released.vector(name).unwrap().iter().map(f64::to_bits).collect()
        };
        let statistics = ["batch_norm1.mean", "batch_norm1.mean_square"].map(bits_of);
        let gradient = bits_of("conv1.weight");
        (statistics, progress.metric("loss").unwrap()[0].to_bits(), gradient)
    };
    let average = run(Contribution::Average);
    // Large steps, which change the inputs of the norm; the last step of an epoch has one example.
    let (batch, epochs) = (number(2), number(3));
    let local = run(Contribution::LocalSgd { rate: 1.0, batch, epochs });
    assert_eq!((&local.0, local.1), (&average.0, average.1));
    assert_ne!(local.2, average.2);
}
