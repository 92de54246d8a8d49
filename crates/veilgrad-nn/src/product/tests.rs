//! Sums of dense and outer-product gradients: unusable records add nothing, and sums are additive over records.

use veilgrad_events::{ClipNorm, IntegerGrid, NoiseMultiplier};
use veilgrad_mechanism::insecure::{self, look_inside};
use veilgrad_mechanism::{Allocation, Group, OuterProducts, RecordVector, RoundPlan, Structure};

use super::RoundedProducts;
use crate::model::Prepared;
use crate::test::{SplitMix64, begin_part, vectors_of};
use crate::tile::Tile;
use crate::{Conv2d, Layer, Loss, Model};

#[test]
fn a_gradient_that_overflows_adds_nothing_though_its_loss_is_finite() {
    // First layer zero, second layer huge: the output is zero, and the gradient overflows f32.
    let layers = [Conv2d::new(3, 1).into(), Layer::Flatten, Layer::linear(2)];
    let mut model = Model::new(&[1, 1, 1], layers, 1).unwrap();
    model.parameter_mut("conv1.weight").unwrap().fill(0.0);
    let behind = [1e10, -1e10, 0.0, 0.0, 0.0, 0.0];
    model.parameter_mut("linear1.weight").unwrap().copy_from_slice(&behind);
    let plan = finest(&model);
    let mut prepared = Prepared::default();
    prepared.prepare(&model);
    let mut tile = Tile::new(&model, Loss::SoftmaxCrossEntropy, 1, false);
    tile.load(1, |_, input, _| input[0] = 1e37);
    tile.forward(&model, &prepared);
    tile.backward(&model, &prepared);
    assert!(tile.judgements[0].is_some());
    let mut part = begin_part(&model, &plan);
    part.add(&vectors_of(&model, &tile, 0)).unwrap();
    let inside = look_inside(part).unwrap();
    assert!(!inside.norms[0].is_finite());
    assert_eq!(inside.certified, [0]);
    assert!(inside.sums[0].iter().all(|u| *u == 0));
}

/// One flat group, on a grid of the largest sensitivity.
fn finest(model: &Model) -> RoundPlan {
    let named = model.parameters().map(|(name, _, values)| (name, values.len()));
    let group = Group::new("g", ["*"], ClipNorm::new(1.0).unwrap());
    let noise = Allocation::Proportional(NoiseMultiplier::new(1.0).unwrap());
    RoundPlan::new(Structure::new(named).unwrap(), vec![group], noise).unwrap()
}

/// The sum of some records, in their order, and how many were certified.
fn sum_of(model: &Model, plan: &RoundPlan, records: &[(Vec<f32>, f32)]) -> (Vec<i64>, usize) {
    let mut prepared = Prepared::default();
    prepared.prepare(model);
    let mut tile = Tile::new(model, Loss::SoftmaxCrossEntropy, 5, false);
    let mut sum = begin_part(model, plan);
    for part in records.chunks(5) {
        tile.load(part.len(), |row, input, target| {
            input.copy_from_slice(&part[row].0);
            target[0] = part[row].1;
        });
        tile.forward(model, &prepared);
        tile.backward(model, &prepared);
        for row in (0..part.len()).filter(|row| tile.judgements[*row].is_some()) {
            sum.add(&vectors_of(model, &tile, row)).unwrap();
        }
    }
    let mut inside = look_inside(sum).unwrap();
    (inside.sums.remove(0), inside.certified[0] as usize)
}

#[test]
fn a_sum_of_many_records_is_the_sum_of_sums_of_one() {
    let layers = [Layer::linear(5), Layer::Relu, Layer::linear(3)];
    let model = Model::new(&[9], layers, 2).unwrap();
    let mut random = SplitMix64(5);
    let mut records: Vec<(Vec<f32>, f32)> = (0..37)
        .map(|_| ((0..9).map(|_| random.normal()).collect(), (random.next() % 3) as f32))
        .collect();
    for (index, value) in [(5, 0.0), (6, -0.0), (9, 1e-41), (11, 1e19), (12, 1e30), (13, 0.0)] {
        records[index].0.fill(value);
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
    // All but the NaN; records of zeros move biases.
    assert!(moving >= 34 && certified >= moving, "{moving} {certified}");
}

#[test]
fn sums_of_one_coordinate_do_not_overflow_between_flushes() {
    // All of the norm is in the single weight of the convolution: a dense coordinate at its largest value.
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

#[test]
fn a_left_factor_that_is_not_finite_adds_nothing_and_the_next_record_counts() {
    let structure = Structure::new([("w", 6), ("b", 3)]).unwrap();
    let group = Group::new("g", ["*"], ClipNorm::new(1.0).unwrap());
    let noise = Allocation::Proportional(NoiseMultiplier::new(1.0).unwrap());
    let plan = RoundPlan::new(structure, vec![group], noise).unwrap();
    let s_int = plan.grid("g").unwrap().s_int();
    let sum = |lefts: &[[f32; 2]]| {
        let mut part = insecure::begin_part(&plan, |name| {
            let products: Box<dyn OuterProducts> = Box::new(RoundedProducts::new(2, 3, s_int));
            (name == "w").then_some(products)
        });
        let right = [0.25f32, -0.5, 1.0];
        for left in lefts {
            part.add(&[RecordVector::Outer(left, &right), RecordVector::Values(&right)]).unwrap();
        }
        let mut inside = look_inside(part).unwrap();
        (inside.sums.remove(0), inside.certified[0])
    };
    let good = [0.5, -0.125];
    let alone = sum(&[good]);
    assert!(alone.1 == 1 && alone.0[..6].iter().all(|u| *u != 0));
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for left in [[bad, 0.0], [1.0, bad], [bad, bad]] {
            assert_eq!(sum(&[left]), (vec![0; 9], 0), "{left:?}");
            assert_eq!(sum(&[left, good]), alone, "{left:?} before");
            assert_eq!(sum(&[good, left]), alone, "{left:?} after");
        }
    }
}

/// Factors of two extreme numbers each, on coarse and fine grids: the certificate is the exact squared norm of what is
/// added, and every factor fits its bits.
#[test]
fn the_certificate_is_the_squared_norm_of_what_is_added_for_all_extreme_factors() {
    use veilgrad_mechanism::exact::Part;
    let extremes =
        [0.0, 1.0, -1.0, 0.3, -7e-3, 1e-45, -1e-38, 1e-20, 1e19, -1e38, f32::MAX, f32::MIN];
    let pairs: Vec<[f32; 2]> = extremes.iter().flat_map(|a| extremes.map(|b| [*a, b])).collect();
    for s_int in [1, 5, 1 << 13, 1 << 27] {
        let mut products = RoundedProducts::new(2, 2, s_int);
        for left in &pairs {
            for right in pairs.iter().step_by(3) {
                let squared = products.squared_norm(left, right);
                assert!(!squared.is_nan(), "finite factors {left:?} {right:?}");
                for factor in [0.0, 1e-30, 1.0, f64::from(s_int) / squared.sqrt(), 1e30] {
                    let factor = if factor.is_finite() { factor } else { 1.0 };
                    let certificate = products.round(right, factor);
                    products.restart();
                    products.add();
                    products.finish();
                    let sums: Vec<i64> = match products.sum() {
                        Part::Narrow(values) => values.iter().map(|v| i64::from(*v)).collect(),
                        Part::Wide(values) => values.to_vec(),
                    };
                    let norm: u128 = sums.iter().map(|v| u128::from(v.unsigned_abs()).pow(2)).sum();
                    assert_eq!(norm, certificate, "{left:?} {right:?} {factor}");
                    let fits = |factor: &[i16], most: f32| {
                        factor.iter().all(|v| i32::from(*v).abs() <= most as i32)
                    };
                    assert!(fits(&products.left, crate::outer::LEFT_MAX));
                    assert!(fits(&products.right, crate::outer::RIGHT_MAX));
                }
            }
        }
    }
}
