//! Tests of preconditioning: sensitivity, restarts, and the released values.

use veilgrad_events::{MemoryLedger, Run};
use veilgrad_mechanism::insecure::no_noise;

use super::*;
use crate::InMemory;
use crate::test::SplitMix64;

const WIDTH: usize = 12;

fn plan() -> PreconditionPlan {
    PreconditionPlan {
        width: WIDTH,
        records: PublicCount::new(60.0).unwrap(),
        mean: NoiseMultiplier::new(1e-4).unwrap(),
        directions: NoiseMultiplier::new(1e-4).unwrap(),
        count: 3,
        rounds: 3,
        floor: 0.02,
    }
}

fn phase() -> Preconditioning {
    Preconditioning::new(plan(), Performance { threads: 2, tile: 0 }).unwrap()
}

/// Inputs with a mean and two strong directions.
fn inputs(count: usize) -> Vec<f32> {
    let mut random = SplitMix64(5);
    let mut values = Vec::new();
    for _ in 0..count {
        let (a, b) = (random.unit() - 0.5, random.unit() - 0.5);
        let value = |i: usize| 1.0 + 3.0 * a * (i as f32).sin() + 2.0 * b * (2.0 * i as f32).cos();
        values.extend((0..WIDTH).map(value).map(|x| x + 0.3 * (random.unit() - 0.5)));
    }
    values
}

fn records(inputs: Vec<f32>) -> InMemory {
    let count = inputs.len() / WIDTH;
    InMemory::new(inputs, WIDTH, vec![0.0; count], 1)
}

/// A run in which rounds have no noise.
fn run(phase: &Preconditioning) -> Run<MemoryLedger> {
    let header = phase.header(Adjacency::AddRemove);
    Run::open_insecure(MemoryLedger::new(), header, "no noise").unwrap()
}

fn advance(phase: &mut Preconditioning, run: &mut Run<MemoryLedger>, records: &InMemory) {
    let permit = run.reserve(&phase.event().unwrap().unwrap(), 1).unwrap().next().unwrap();
    let noise = no_noise(&phase.round_plan().unwrap());
    phase.round_insecure(permit, records, None, noise).unwrap();
}

fn finished(records: &InMemory) -> Preconditioning {
    let mut phase = phase();
    let mut run = run(&phase);
    while !phase.is_done() {
        advance(&mut phase, &mut run, records);
    }
    phase
}

/// The sum of the next round over these records, without noise.
fn sum(phase: &Preconditioning, records: &InMemory) -> Vec<f64> {
    let mut phase = phase.clone();
    let mut run = run(&phase);
    let permit = run.reserve(&phase.event().unwrap().unwrap(), 1).unwrap().next().unwrap();
    let noise = no_noise(&phase.round_plan().unwrap());
    let mut sum = Vec::new();
    let name = ["mean", "first-directions", "directions"][phase.done.min(2)];
    phase
        .step(records, None, |engine, backend| {
            engine.round_insecure(backend, permit, &mut AllRecords, noise)?;
            let estimates = engine.estimates().unwrap();
            sum = estimates.vector(name).unwrap().iter().map(|x| 60.0 * x).collect();
            Ok(())
        })
        .unwrap();
    sum
}

#[test]
fn adding_a_record_moves_every_rounds_sum_by_at_most_its_clip_norm() {
    let data = inputs(60);
    let mut extremes: Vec<Vec<f32>> =
        vec![vec![0.0; WIDTH], vec![1e30; WIDTH], vec![-1e-30; WIDTH]];
    extremes.extend((0..WIDTH).map(|i| {
        let mut one = vec![0.0; WIDTH];
        one[i] = if i % 2 == 0 { 1e6 } else { -1.0 };
        one
    }));
    extremes.push(vec![f32::MAX; WIDTH]);
    let mut phase = phase();
    let mut run = run(&phase);
    let mut largest = Vec::new();
    while let Some(round) = phase.event().unwrap() {
        let clip = round.queries()[0].clip().get();
        let without = sum(&phase, &records(data.clone()));
        let mut most = 0.0f64;
        for extreme in &extremes {
            let with = sum(&phase, &records([data.clone(), extreme.clone()].concat()));
            let moved = with.iter().zip(&without).map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt();
            assert!(moved <= clip * (1.0 + 1e-9), "{moved} of {clip}");
            most = most.max(moved / clip);
        }
        largest.push(most);
        advance(&mut phase, &mut run, &records(data.clone()));
    }
    assert_eq!(largest.len(), 4);
    assert!(largest[0] > 0.99, "{largest:?}");
}

#[test]
fn a_record_that_is_not_finite_contributes_nothing() {
    let data = inputs(60);
    let mut phase = phase();
    let mut run = run(&phase);
    while !phase.is_done() {
        let without = sum(&phase, &records(data.clone()));
        for bad in [f32::NAN, f32::INFINITY] {
            let mut row = vec![0.5; WIDTH];
            row[3] = bad;
            assert!(sum(&phase, &records([data.clone(), row].concat())) == without);
        }
        advance(&mut phase, &mut run, &records(data.clone()));
    }
}

#[test]
fn the_order_of_records_and_threads_do_not_change_a_bit() {
    let data = inputs(60);
    let reversed: Vec<f32> = data.chunks_exact(WIDTH).rev().flatten().copied().collect();
    let (a, b) = (finished(&records(data)), finished(&records(reversed)));
    assert!(a.mean == b.mean && a.directions == b.directions && a.variances == b.variances);
}

/// The mean, the covariance of centred inputs and its largest eigenvectors, by the definition, in f64.
#[test]
fn without_noise_the_mean_and_the_directions_are_those_of_the_inputs() {
    let data = inputs(60);
    let found = finished(&records(data.clone()));
    let normalise = |row: &mut Vec<f64>| {
        let norm = row.iter().map(|x| x * x).sum::<f64>().sqrt();
        row.iter_mut().for_each(|x| *x /= norm);
    };
    let mut rows: Vec<Vec<f64>> =
        data.chunks_exact(WIDTH).map(|row| row.iter().map(|x| f64::from(*x)).collect()).collect();
    rows.iter_mut().for_each(normalise);
    let mean: Vec<f64> =
        (0..WIDTH).map(|i| rows.iter().map(|row| row[i]).sum::<f64>() / 60.0).collect();
    for (found, mean) in found.mean.iter().zip(&mean) {
        assert!((f64::from(*found) - mean).abs() < 1e-5);
    }
    for row in &mut rows {
        row.iter_mut().zip(&mean).for_each(|(x, mean)| *x -= mean);
        normalise(row);
    }
    // The variance along the first two directions, which are far above the others.
    for j in 0..2 {
        let direction = &found.directions[j * WIDTH..(j + 1) * WIDTH];
        let project = |row: &Vec<f64>| -> f64 {
            row.iter().zip(direction).map(|(x, u)| x * f64::from(*u)).sum()
        };
        let variance = rows.iter().map(|row| project(row).powi(2)).sum::<f64>() / 60.0;
        let stated = f64::from(found.variances[j]);
        assert!((variance - stated).abs() < 0.02 * variance, "{variance} {stated}");
    }
    assert!(found.variances[0] > 0.3 && found.variances[1] > 0.1, "{:?}", found.variances);
    // Whitened inputs, by the definition: directions with more than the floor's variance are scaled down to it.
    let whitening = found.whitening().unwrap();
    let mut whitened = data;
    whitening.apply(&mut whitened);
    for (row, whitened) in rows.iter().zip(whitened.chunks_exact(WIDTH)) {
        let mut expected = row.clone();
        for (j, variance) in found.variances.iter().enumerate() {
            let direction = &found.directions[j * WIDTH..(j + 1) * WIDTH];
            let projection: f64 = row.iter().zip(direction).map(|(x, u)| x * f64::from(*u)).sum();
            let scale = (0.02 / f64::from(*variance)).sqrt().min(1.0);
            let change = (scale - 1.0) * projection;
            expected.iter_mut().zip(direction).for_each(|(x, u)| *x += change * f64::from(*u));
        }
        normalise(&mut expected);
        for (found, expected) in whitened.iter().zip(&expected) {
            assert!((f64::from(*found) - expected).abs() < 1e-4, "{found} for {expected}");
        }
    }
}

#[test]
fn a_whitened_row_does_not_depend_on_its_neighbours() {
    let data = inputs(60);
    let whitening = finished(&records(data.clone())).whitening().unwrap();
    let mut all = data.clone();
    whitening.apply(&mut all);
    for (row, together) in data.chunks_exact(WIDTH).zip(all.chunks_exact(WIDTH)) {
        let mut alone = row.to_vec();
        whitening.apply(&mut alone);
        assert!(alone == together);
    }
}

#[test]
fn a_restored_phase_continues_from_its_checkpoint() {
    let data = records(inputs(60));
    let whole = finished(&data);
    for stop in 0..=4 {
        let mut first = phase();
        let mut begun = run(&first);
        for _ in 0..stop {
            advance(&mut first, &mut begun, &data);
        }
        let bytes = first.to_bytes().unwrap();
        let mut second = phase();
        second.restore(&bytes).unwrap();
        assert_eq!(second.rounds(), stop);
        let mut resumed = run(&second);
        while !second.is_done() {
            advance(&mut second, &mut resumed, &data);
        }
        assert!(second.directions == whole.directions && second.mean == whole.mean);
        for cut in [0, 10, bytes.len() / 2, bytes.len() - 1] {
            assert!(phase().restore(&bytes[..cut]).is_err());
        }
        let other = PreconditionPlan { count: 2, ..plan() };
        let mut other = Preconditioning::new(other, Performance::default()).unwrap();
        assert!(other.restore(&bytes).is_err());
    }
}

#[test]
fn the_memory_of_a_round_holds_nothing_of_its_records_afterwards() {
    let (data, found) = (records(inputs(60)), finished(&records(inputs(60))));
    let backend = found.inputs(&data, &found.mean, &found.directions);
    let mut memory = backend.memory();
    let examples = [ExampleId { record: 0, example: 0 }, ExampleId { record: 7, example: 0 }];
    assert!(backend.run(&mut memory, &examples));
    let is_zero = |values: &[f32]| values.iter().all(|value| *value == 0.0);
    assert!(!is_zero(&memory.rows) && !is_zero(&memory.projected));
    backend.end(&mut memory);
    assert!(is_zero(&memory.rows) && is_zero(&memory.projected));
}

#[test]
fn a_round_that_leaves_no_estimates_is_an_error_and_changes_nothing() {
    let mut phase = phase();
    let mut run = run(&phase);
    let data = records(inputs(60));
    while !phase.is_done() {
        let before = phase.to_bytes().unwrap();
        let silent = phase.step(&data, None, |_, _| Ok(()));
        assert!(matches!(silent, Err(TrainError::NoEstimates)));
        assert!(phase.to_bytes().unwrap() == before);
        advance(&mut phase, &mut run, &data);
    }
}

#[test]
fn the_remaining_rounds_are_those_that_will_be_charged() {
    let data = records(inputs(60));
    let mut phase = phase();
    let mut planned = phase.events().unwrap();
    assert_eq!(planned.iter().map(|part| part.count).collect::<Vec<_>>(), [1, 1, 2]);
    let mut header = phase.header(Adjacency::AddRemove);
    header.plan = Some(planned.clone());
    let mut run = Run::open_insecure(MemoryLedger::new(), header, "no noise").unwrap();
    while !phase.is_done() {
        assert_eq!(phase.events().unwrap(), planned);
        advance(&mut phase, &mut run, &data);
        planned[0].count -= 1;
        planned.retain(|part| part.count > 0);
    }
    assert!(phase.event().unwrap().is_none() && phase.events().unwrap().is_empty());
    assert!(matches!(phase.step(&data, None, |_, _| Ok(())), Err(TrainError::Finished)));
    let rounds = run.store().rounds();
    assert!(rounds.iter().all(|part| part.round.sampling() == veilgrad_events::Sampling::All {}));
}

#[test]
fn settings_out_of_range_are_refused_with_the_rule() {
    let refused =
        |plan| Preconditioning::new(plan, Performance::default()).unwrap_err().to_string();
    for count in [0, WIDTH + 1] {
        let error = refused(PreconditionPlan { count, ..plan() });
        assert!(error.contains("must be 1 to 12"), "{error}");
    }
    for rounds in [0, 65] {
        let error = refused(PreconditionPlan { rounds, ..plan() });
        assert!(error.contains("must be 1 to 64"), "{error}");
    }
    for floor in [0.0, -1.0, 1.5, f64::NAN] {
        let error = refused(PreconditionPlan { floor, ..plan() });
        assert!(error.contains("is not in (0, 1]"), "{error}");
    }
}

#[test]
fn a_model_file_keeps_the_whitening_and_no_other_arrays() {
    use crate::{Layer, Model};
    let whitening = finished(&records(inputs(60))).whitening().unwrap();
    let mut model = Model::new(&[WIDTH], [Layer::linear(2)], 1).unwrap();
    let bytes = model.to_safetensors_preconditioned("text".to_owned(), &whitening).unwrap();
    assert!(model.load_safetensors(&bytes).is_err(), "the whitening must not be lost silently");
    let found = model.load_preconditioned(&bytes).unwrap().unwrap();
    let (mut a, mut b) = (inputs(3), inputs(3));
    whitening.apply(&mut a);
    found.apply(&mut b);
    assert!(a == b);
    let plain = model.to_safetensors().unwrap();
    assert!(model.load_preconditioned(&plain).unwrap().is_none());
}
