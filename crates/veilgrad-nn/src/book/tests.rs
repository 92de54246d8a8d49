//! Books: what is in a sum, what is not, and that records add up.

use veilgrad_events::{ClipNorm, NoiseMultiplier};
use veilgrad_mechanism::{Allocation, Group, Structure};

use super::*;
use crate::model::Prepared;
use crate::test::Words;
use crate::tile::{Tile, vectors};
use crate::{Conv2d, Layer, Loss, Model};

/// A model with a dense and an outer gradient, one record in a tile, and an empty book.
fn book_of(change: impl Fn(&mut Model), pixel: f32) -> (Book, RoundPlan, Tile) {
    let layers = [Conv2d::new(3, 1).into(), Layer::Flatten, Layer::linear(2)];
    let mut model = Model::new(&[1, 1, 1], layers, 1).unwrap();
    change(&mut model);
    let named = model.parameters().map(|(name, _, values)| (name, values.len()));
    let structure = Structure::new(named).unwrap();
    let group = Group::new("g", ["*"], ClipNorm::new(1.0).unwrap()).summed_outside();
    let noise = Allocation::Proportional(NoiseMultiplier::new(1.0).unwrap());
    let plan = RoundPlan::new(structure, vec![group], noise).unwrap();
    let mut prepared = Prepared::default();
    prepared.prepare(&model);
    let mut tile = Tile::new(&model, Loss::SoftmaxCrossEntropy, 1, false);
    tile.load(1, |_, input, _| input[0] = pixel);
    tile.forward(&model, &prepared);
    tile.backward(&model, &prepared);
    (Book::new(&vectors(&model), &plan, &["g".to_owned()]), plan, tile)
}

fn squared(book: &mut Book) -> i128 {
    book.finish();
    book.sums()[0].iter().map(|u| i128::from(*u) * i128::from(*u)).sum()
}

#[test]
fn a_record_without_a_certificate_leaves_nothing_behind() {
    let (mut book, plan, tile) = book_of(|_| (), 2.0);
    let group = &mut book.groups[0];
    let norm = group.squared_norm(&tile, 0);
    // As if the record were shorter than it is, by little: dense and outer part each fit alone.
    group.add(&plan, &tile, 0, norm * 0.98);
    assert!(group.certificates.is_empty());
    assert_eq!(squared(&mut book), 0);
    // And by its true norm it fits.
    let group = &mut book.groups[0];
    group.add(&plan, &tile, 0, norm);
    assert_eq!(group.certificates.len(), 1);
    let s_int = i128::from(plan.grid("g").unwrap().s_int());
    let squared = squared(&mut book);
    assert!(squared <= s_int * s_int && squared as f64 > 0.99 * (s_int * s_int) as f64);
}

#[test]
fn a_gradient_that_overflows_adds_nothing_though_its_loss_is_sound() {
    // Weights of zero in front, huge ones behind: no output, and gradients beyond f32.
    let change = |model: &mut Model| {
        model.parameter_mut("conv1.weight").unwrap().fill(0.0);
        model
            .parameter_mut("linear1.weight")
            .unwrap()
            .copy_from_slice(&[1e10, -1e10, 0.0, 0.0, 0.0, 0.0]);
    };
    let (mut book, plan, tile) = book_of(change, 1e37);
    assert!(tile.judgements[0].is_some());
    let mut norms = Vec::new();
    book.add(&plan, &tile, 0, &mut norms);
    assert!(!norms[0].is_finite());
    assert!(book.groups[0].certificates.is_empty());
    assert_eq!(squared(&mut book), 0);
}

/// One flat group, on a grid of the largest sensitivity.
fn finest(model: &Model) -> RoundPlan {
    let named = model.parameters().map(|(name, _, values)| (name, values.len()));
    let group = Group::new("g", ["*"], ClipNorm::new(1.0).unwrap()).summed_outside();
    let noise = Allocation::Proportional(NoiseMultiplier::new(1.0).unwrap());
    RoundPlan::new(Structure::new(named).unwrap(), vec![group], noise).unwrap()
}

/// The sums of some records in one book, in their order.
fn sum_of(model: &Model, plan: &RoundPlan, records: &[(Vec<f32>, f32)]) -> (Vec<i64>, usize) {
    let mut prepared = Prepared::default();
    prepared.prepare(model);
    let mut tile = Tile::new(model, Loss::SoftmaxCrossEntropy, 5, false);
    let (mut book, mut norms) = (Book::new(&vectors(model), plan, &["g".to_owned()]), Vec::new());
    for part in records.chunks(5) {
        tile.load(part.len(), |row, input, target| {
            input.copy_from_slice(&part[row].0);
            target[0] = part[row].1;
        });
        tile.forward(model, &prepared);
        tile.backward(model, &prepared);
        for row in (0..part.len()).filter(|row| tile.judgements[*row].is_some()) {
            book.add(plan, &tile, row, &mut norms);
        }
    }
    book.finish();
    (book.sums().remove(0), book.groups[0].certificates.len())
}

#[test]
fn a_book_of_many_records_is_the_sum_of_books_of_one() {
    let layers = [Layer::linear(5), Layer::Relu, Layer::linear(3)];
    let model = Model::new(&[9], layers, 2).unwrap();
    let mut words = Words(5);
    let mut records: Vec<(Vec<f32>, f32)> = (0..37)
        .map(|_| ((0..9).map(|_| words.normal()).collect(), (words.next() % 3) as f32))
        .collect();
    for (at, value) in [(5, 0.0), (6, -0.0), (9, 1e-41), (11, 1e19), (12, 1e30), (13, 0.0)] {
        records[at].0.fill(value);
    }
    records[20].0.iter_mut().for_each(|x| *x *= 1e30);
    records[21].0.iter_mut().for_each(|x| *x *= 1e-42);
    records[22].0[3] = f32::NAN;
    let plan = finest(&model);
    let (whole, certified) = sum_of(&model, &plan, &records);
    let mut sum = vec![0i64; whole.len()];
    let (mut counted, mut moving) = (0, 0);
    for (index, record) in records.iter().enumerate() {
        let (one, certificates) = sum_of(&model, &plan, std::slice::from_ref(record));
        sum.iter_mut().zip(&one).for_each(|(sum, u)| *sum += u);
        counted += certificates;
        moving += usize::from(one.iter().any(|u| *u != 0));
        let mut others = records.clone();
        others.remove(index);
        let (without, _) = sum_of(&model, &plan, &others);
        let moved: Vec<i64> = whole.iter().zip(&without).map(|(all, rest)| all - rest).collect();
        assert_eq!(moved, one, "record {index}");
    }
    assert_eq!(whole, sum);
    assert_eq!(certified, counted);
    // All but the one that is no number; records of zeros move biases.
    assert!(moving >= 34 && certified >= moving, "{moving} {certified}");
}

#[test]
fn sums_of_one_coordinate_do_not_overflow_between_flushes() {
    // All of the norm is in the one weight of the convolution: a dense coordinate, at its largest.
    let layers = [Conv2d::new(1, 1).into(), Layer::Flatten, Layer::linear(2)];
    let mut model = Model::new(&[1, 1, 1], layers, 1).unwrap();
    model.parameter_mut("conv1.weight").unwrap().fill(0.0);
    model.parameter_mut("linear1.weight").unwrap().copy_from_slice(&[1e6, -1e6]);
    let plan = finest(&model);
    let s_int = i64::from(plan.grid("g").unwrap().s_int());
    assert!(s_int >= i64::from(IntegerGrid::MAX_SENSITIVITY) - 1, "{s_int}");
    let record = (vec![1e4f32], 0.0);
    let (one, _) = sum_of(&model, &plan, std::slice::from_ref(&record));
    let largest = one.iter().map(|u| u.abs()).max().unwrap();
    assert!(largest as f64 > 0.99 * s_int as f64, "{largest} of {s_int}");
    let (many, certified) = sum_of(&model, &plan, &vec![record; 40]);
    assert_eq!(certified, 40);
    assert_eq!(many, one.iter().map(|u| 40 * u).collect::<Vec<_>>());
}
