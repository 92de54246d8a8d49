//! A slow reference: one record at a time, in f64, by finite differences and naive loops.
//!
//! Tests compare outputs, gradients, norms and exact sums of every layer with it, and each record with
//! the same record beside other neighbours.

mod naive;

use naive::naive;
use proptest::prelude::*;
use veilgrad_events::{ClipNorm, JointScale, NoiseMultiplier, PublicCount};
use veilgrad_mechanism::insecure::look_inside;
use veilgrad_mechanism::{
    Allocation, Group, PartialSum, RecordVector, RoundPlan, SparseRows, Structure,
};

use crate::layer::Role;
use crate::model::Prepared;
use crate::test::SplitMix64;
use crate::tile::Tile;
use crate::{Conv2d, EmbeddedColumn, Layer, Loss, Model, Padding};

/// A random model. Together, they have every layer.
fn any_model(random: &mut SplitMix64) -> Model {
    any_layers(random).0
}

fn any_layers(random: &mut SplitMix64) -> (Model, Vec<Layer>) {
    let mut pick = |from: usize, to: usize| from + random.next() as usize % (to - from + 1);
    let padding = |kind: usize, size: usize| match kind {
        0 => Padding::Valid,
        1 => Padding::Same,
        _ => Padding::Explicit(size, size / 2),
    };
    let smooth = |kind: usize| if kind == 0 { Layer::Tanh } else { Layer::Gelu };
    let (input, layers): (Vec<usize>, Vec<Layer>) = match pick(0, 11) {
        0 => (
            vec![pick(1, 20)],
            vec![Layer::linear(pick(1, 20)), smooth(pick(0, 1)), Layer::linear(3)],
        ),
        1 => {
            // A sequence: the gradient of a linear layer is a sum over positions.
            let layers = vec![
                Layer::linear(pick(1, 9)),
                smooth(pick(0, 1)),
                Layer::LayerNorm,
                Layer::linear(pick(1, 5)),
                Layer::Flatten,
                Layer::linear(3),
            ];
            (vec![pick(2, 5), pick(1, 7)], layers)
        }
        2 => {
            let mut conv = Conv2d::new(pick(1, 5), pick(1, 3)).stride(pick(1, 3));
            conv.kernel.1 = pick(1, 3);
            conv.padding = padding(pick(0, 2), pick(0, 2));
            let layers = vec![
                conv.into(),
                smooth(pick(0, 1)),
                Conv2d::new(4, 2).padding(Padding::Same).into(),
                Layer::GroupNorm { groups: 2 },
                Layer::average_pool(1 + pick(0, 1), 1),
                Layer::Flatten,
                Layer::linear(3),
            ];
            (vec![pick(7, 9), pick(7, 9), pick(1, 3)], layers)
        }
        3 => {
            let layers = vec![
                Layer::Embedding { entries: 6, dimension: pick(1, 5) },
                Layer::Tanh,
                Layer::GlobalAverage,
                Layer::linear(3),
            ];
            (vec![pick(1, 6)], layers)
        }
        4 => {
            let layers = vec![
                Conv2d::new(pick(1, 6), 3).stride(pick(1, 2)).into(),
                Layer::BatchNorm,
                Layer::Gelu,
                Layer::Flatten,
                Layer::linear(3),
            ];
            (vec![6, 6, pick(1, 2)], layers)
        }
        5 => {
            let layers = vec![
                Conv2d::new(pick(1, 20), 2).into(),
                Layer::Relu,
                Layer::max_pool(pick(1, 2), pick(1, 2)),
                Layer::Flatten,
                Layer::linear(3),
            ];
            (vec![pick(3, 6), pick(3, 6), 1], layers)
        }
        6 => {
            // A maximum of values that may all be negative.
            let layers = vec![
                Conv2d::new(pick(1, 20), 2).into(),
                Layer::Tanh,
                Layer::max_pool(pick(1, 3), pick(1, 2)),
                Layer::Flatten,
                Layer::linear(3),
            ];
            (vec![pick(4, 6), pick(4, 6), 1], layers)
        }
        7 => {
            let layers =
                vec![Layer::max_pool(pick(1, 3), pick(1, 2)), Layer::Flatten, Layer::linear(3)];
            (vec![pick(3, 6), pick(3, 6), pick(1, 20)], layers)
        }
        8 => {
            let (heads, width) = (pick(1, 3), pick(1, 6));
            let layers = vec![
                Layer::Embedding { entries: 6, dimension: pick(1, 40) },
                Layer::linear(3 * heads * width),
                Layer::Attention { heads },
                Layer::LayerNorm,
                Layer::Tanh,
                Layer::GlobalAverage,
                Layer::linear(3),
            ];
            (vec![pick(1, 20)], layers)
        }
        9 => {
            let layers = vec![
                Conv2d::new(20, 2).into(),
                smooth(pick(0, 1)),
                Layer::average_pool(3, 2),
                Layer::Flatten,
                Layer::linear(3),
            ];
            (vec![pick(4, 8), pick(4, 8), 1], layers)
        }
        10 => {
            // Two columns of three to six, at any places.
            let (kept, between, after) = (pick(0, 2), pick(0, 1), pick(0, 1));
            let column = |column, dimension| EmbeddedColumn { column, entries: 6, dimension };
            let columns = vec![column(kept, pick(1, 4)), column(kept + 1 + between, pick(1, 4))];
            let layers = vec![
                Layer::EmbedColumns(columns),
                smooth(pick(0, 1)),
                Layer::linear(pick(1, 5)),
                Layer::linear(3),
            ];
            (vec![kept + between + after + 2], layers)
        }
        _ => {
            let layers = vec![
                Layer::linear(18),
                Layer::LayerNorm,
                Layer::Relu,
                Layer::linear(17),
                Layer::GroupNorm { groups: 17 },
                Layer::linear(3),
            ];
            (vec![pick(1, 40)], layers)
        }
    };
    let mut model = Model::new(&input, layers.clone(), random.next()).unwrap();
    // Biases, scales and statistics begin as constants: random values make them matter.
    for values in &mut model.values {
        values.iter_mut().for_each(|value| *value += 0.2 * random.unit());
    }
    (model, layers)
}

/// Random inputs in the range of the model, and targets.
fn any_records(model: &Model, count: usize, random: &mut SplitMix64) -> Vec<(Vec<f32>, f32)> {
    let length = model.network.inputs();
    let embeds = model.network.parameters[0].name.starts_with("embedding");
    // Columns may have no entry: -1.
    let none = u8::from(model.network.parameters[0].name == "embedding1.weight1");
    // Half of the time inputs are whole numbers, so that maxima have ties.
    let tied = random.next().is_multiple_of(2);
    (0..count)
        .map(|_| {
            let input = (0..length).map(|_| match (embeds, tied) {
                (true, _) => (random.next() % (6 + u64::from(none))) as f32 - f32::from(none),
                (false, true) => random.normal().round(),
                (false, false) => random.normal(),
            });
            (input.collect(), (random.next() % 3) as f32)
        })
        .collect()
}

fn tile_of(model: &Model, records: &[(Vec<f32>, f32)], capacity: usize) -> Tile {
    let mut prepared = Prepared::default();
    prepared.prepare(model);
    let mut tile = Tile::new(model, Loss::SoftmaxCrossEntropy, capacity, false);
    tile.load(records.len(), |row, input, target| {
        input.copy_from_slice(&records[row].0);
        target[0] = records[row].1;
    });
    tile.forward(model, &prepared);
    tile.backward(model, &prepared);
    tile
}

/// A record's gradient of a parameter, with outer products and tables written out.
fn gradient(tile: &Tile, parameter: usize, row: usize) -> Vec<f64> {
    match tile.vector(parameter, row) {
        RecordVector::Outer(left, right) => {
            let product =
                |a: &f32| right.iter().map(|b| f64::from(*a) * f64::from(*b)).collect::<Vec<_>>();
            left.iter().flat_map(product).collect()
        }
        RecordVector::Values(values) => values.iter().map(|g| f64::from(*g)).collect(),
        RecordVector::Rows(SparseRows { length, width, rows, values }) => {
            let mut table = vec![0.0; length];
            for (row, values) in rows.iter().zip(values.chunks_exact(width)) {
                for (to, from) in table[*row as usize * width..].iter_mut().zip(values) {
                    *to = f64::from(*from);
                }
            }
            table
        }
    }
}

/// The loss of one record in f64: in f32, rounding errors would hide the differences of large losses.
fn loss_of(model: &Model, layers: &[Layer], (input, class): &(Vec<f32>, f32)) -> f64 {
    let outputs = naive(model, layers, input);
    let largest = outputs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = outputs.iter().map(|output| (output - largest).exp()).sum();
    largest + sum.ln() - outputs[*class as usize]
}

fn flat_plan(model: &Model, clip: f64) -> RoundPlan {
    let trained = model.network.parameters.iter().filter(|p| p.role == Role::Weight);
    let structure = Structure::new(trained.map(|p| (p.name.as_str(), p.length()))).unwrap();
    let group = Group::new("gradient", ["*"], ClipNorm::new(clip).unwrap());
    let group = group.average(PublicCount::new(1.0).unwrap());
    let noise = Allocation::Proportional(NoiseMultiplier::new(1.1).unwrap());
    RoundPlan::new(structure, vec![group], noise).unwrap()
}

/// The integers that one record of a tile contributes to all groups, and its norms.
fn integers(model: &Model, plan: &RoundPlan, tile: &Tile, row: usize) -> (Vec<Vec<i64>>, Vec<f64>) {
    let mut part = crate::test::begin_part(model, plan);
    part.add(&crate::test::vectors_of(model, tile, row)).unwrap();
    let inside = look_inside(part).unwrap();
    (inside.sums, inside.norms)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn outputs_are_what_the_definitions_of_the_layers_say(seed: u64) {
        let mut random = SplitMix64(seed);
        let (model, layers) = any_layers(&mut random);
        let records = any_records(&model, 2, &mut random);
        let tile = tile_of(&model, &records, 3);
        let outputs = model.network.outputs();
        for (row, (input, _)) in records.iter().enumerate() {
            let found = &tile.values.last().unwrap()[row * outputs..][..outputs];
            for (found, expected) in found.iter().zip(naive(&model, &layers, input)) {
                prop_assert!((f64::from(*found) - expected).abs() < 2e-4 * (1.0 + expected.abs()), "{layers:?} {found} {expected}");
            }
        }
    }

    #[test]
    fn statistics_are_channel_means_and_mean_squares(seed: u64, channels in 1usize..5) {
        let mut random = SplitMix64(seed);
        let layers = [Layer::BatchNorm, Layer::Flatten, Layer::linear(3)];
        let model = Model::new(&[2, 3, channels], layers, 1).unwrap();
        let records = any_records(&model, 2, &mut random);
        let tile = tile_of(&model, &records, 2);
        for (row, (x, _)) in records.iter().enumerate() {
            for c in 0..channels {
                let values: Vec<f64> = x.iter().skip(c).step_by(channels).map(|x| f64::from(*x)).collect();
                let mean = values.iter().sum::<f64>() / 6.0;
                let square = values.iter().map(|x| x * x).sum::<f64>() / 6.0;
                prop_assert!((f64::from(tile.gradient(2, row)[c]) - mean).abs() < 1e-5);
                prop_assert!((f64::from(tile.gradient(3, row)[c]) - square).abs() < 1e-4);
            }
        }
    }

    #[test]
    fn gradients_agree_with_finite_differences_of_a_records_loss(seed: u64) {
        let mut random = SplitMix64(seed);
        let (model, layers) = any_layers(&mut random);
        let record = any_records(&model, 1, &mut random).remove(0);
        let tile = tile_of(&model, std::slice::from_ref(&record), 4);
        for (parameter, named) in model.network.parameters.iter().enumerate() {
            if named.role == Role::Statistic {
                continue;
            }
            let gradient = gradient(&tile, parameter, 0);
            for _ in 0..3 {
                let j = random.next() as usize % gradient.len();
                let loss_after = |step: f32| {
                    let mut moved = model.clone();
                    moved.values[parameter][j] += step;
                    loss_of(&moved, &layers, &record)
                };
                const H: f32 = 1e-3;
                let (left, here, right) = (loss_after(-H), loss_of(&model, &layers, &record), loss_after(H));
                let fine = (right - left) / (2.0 * f64::from(H));
                // Skips kinks and sharp bends, where the slopes on the two sides differ.
                if (right - 2.0 * here + left).abs() / f64::from(H) < 5e-3 {
                    let error = (fine - gradient[j]).abs();
                    prop_assert!(error < 6e-3 * (1.0 + fine.abs()), "{} {j}: {fine} {}", named.name, gradient[j]);
                }
            }
        }
    }

    #[test]
    fn a_record_in_any_company_gives_the_same_bits(seed: u64, count in 2usize..9) {
        let mut random = SplitMix64(seed);
        let model = any_model(&mut random);
        let mut records = any_records(&model, count, &mut random);
        // One neighbour whose values overflow.
        records[0].0.iter_mut().for_each(|x| *x *= 1e30);
        let together = tile_of(&model, &records, count);
        let plan = flat_plan(&model, 0.7);
        let mut order: Vec<usize> = (0..count).collect();
        order.sort_by_key(|_| random.next());
        // Permuted, with one dropped, in a larger tile.
        let dropped: Vec<_> = order[1..].iter().map(|&i| records[i].clone()).collect();
        let shuffled = tile_of(&model, &dropped, count + 5);
        for (row, &record) in order[1..].iter().enumerate() {
            let alone = tile_of(&model, &records[record..=record], 1);
            let expected = integers(&model, &plan, &alone, 0);
            let bits = |(sums, norms): (Vec<Vec<i64>>, Vec<f64>)| {
                (sums, norms.iter().map(|n| n.to_bits()).collect::<Vec<_>>())
            };
            let expected = bits(expected);
            prop_assert_eq!(&expected, &bits(integers(&model, &plan, &together, record)));
            prop_assert_eq!(&expected, &bits(integers(&model, &plan, &shuffled, row)));
            for parameter in 0..model.values.len() {
                let bits = |tile: &Tile, row: usize| -> Vec<u32> {
                    tile.gradient(parameter, row).iter().map(|g| g.to_bits()).collect()
                };
                prop_assert_eq!(bits(&alone, 0), bits(&together, record));
            }
        }
    }

    #[test]
    fn the_rows_of_a_table_give_the_bits_of_the_whole_table(
        seed: u64, dimension in 1usize..70, positions in 1usize..9,
    ) {
        let mut random = SplitMix64(seed);
        let layers = [
            Layer::Embedding { entries: 6, dimension },
            Layer::Tanh,
            Layer::GlobalAverage,
            Layer::linear(3),
        ];
        let model = Model::new(&[positions], layers, random.next()).unwrap();
        let records = any_records(&model, 5, &mut random);
        let (tile, plan) = (tile_of(&model, &records, 5), flat_plan(&model, 0.01));
        let sums = |add: &dyn Fn(&mut PartialSum, usize)| {
            let mut part = crate::test::begin_part(&model, &plan);
            (0..5).for_each(|row| add(&mut part, row));
            look_inside(part).unwrap()
        };
        let sparse = sums(&|part, row| {
            part.add(&crate::test::vectors_of(&model, &tile, row)).unwrap();
        });
        let whole = sums(&|part, row| {
            // As a table that begins with zeros and gets the output gradient of one position after the other.
            let mut table = vec![0f32; 6 * dimension];
            let dy = &tile.slopes[1][row * positions * dimension..];
            for (number, dy) in records[row].0.iter().zip(dy.chunks_exact(dimension)) {
                let entry = &mut table[*number as usize * dimension..];
                entry.iter_mut().zip(dy).for_each(|(sum, dy)| *sum += dy);
            }
            let mut vectors = crate::test::vectors_of(&model, &tile, row);
            vectors[0] = RecordVector::Values(&table);
            part.add(&vectors).unwrap();
        });
        prop_assert!(sparse.sums[0].iter().any(|sum| *sum != 0));
        prop_assert_eq!(sparse.sums, whole.sums);
        let bits = |norms: &[f64]| norms.iter().map(|norm| norm.to_bits()).collect::<Vec<_>>();
        prop_assert_eq!(bits(&sparse.norms), bits(&whole.norms));
    }

    #[test]
    fn norms_and_integers_are_those_of_the_clipped_gradient(seed: u64, clip in 0.01f64..3.0) {
        let mut random = SplitMix64(seed);
        let model = any_model(&mut random);
        let records = any_records(&model, 3, &mut random);
        let tile = tile_of(&model, &records, 3);
        let plan = flat_plan(&model, clip);
        let s_int = f64::from(plan.grid("gradient").unwrap().s_int());
        for row in 0..3 {
            let parameters = 0..model.values.len();
            let trained = parameters.filter(|i| model.network.parameters[*i].role == Role::Weight);
            let gradients: Vec<f64> = trained.flat_map(|i| gradient(&tile, i, row)).collect();
            let norm = gradients.iter().map(|g| g * g).sum::<f64>().sqrt();
            let (sums, norms) = integers(&model, &plan, &tile, row);
            // The left factors have about 13 bits.
            prop_assert!((norms[0] / norm - 1.0).abs() < 2e-3 || norm < 1e-12, "{} {norm}", norms[0]);
            let factor = (clip / norm).min(1.0) * s_int / clip;
            let error: f64 = gradients.iter().zip(&sums[0]).map(|(g, u)| (g * factor - *u as f64).powi(2)).sum();
            prop_assert!(error.sqrt() < 4e-3 * s_int, "{} of {s_int}", error.sqrt());
            let squared: i128 = sums[0].iter().map(|u| i128::from(*u) * i128::from(*u)).sum();
            prop_assert!(squared as f64 <= s_int * s_int);
        }
    }

    #[test]
    fn no_record_is_longer_than_the_sensitivity_in_any_group(seed: u64, power in -30i32..30, scale in -8f64..8.0) {
        let mut random = SplitMix64(seed);
        let model = any_model(&mut random);
        let mut records = any_records(&model, 2, &mut random);
        if !model.network.parameters[0].name.starts_with("embedding") {
            records.iter_mut().for_each(|(x, _)| x.iter_mut().for_each(|x| *x *= 10f32.powi(power)));
        }
        let tile = tile_of(&model, &records, 2);
        let trained: Vec<_> = model.network.parameters.iter().filter(|p| p.role == Role::Weight).collect();
        let structure = Structure::new(trained.iter().map(|p| (p.name.as_str(), p.length()))).unwrap();
        let clip = ClipNorm::new(10f64.powf(scale)).unwrap();
        let one = PublicCount::new(1.0).unwrap();
        let alpha = |random: &mut SplitMix64| JointScale::new(10f64.powi((random.next() % 7) as i32 - 3)).unwrap();
        // One joint group of the first parameters, and one group of the rest.
        let cut = trained.len() / 2;
        let joint = trained[..cut].iter().map(|p| (p.name.clone(), alpha(&mut random))).collect::<Vec<_>>();
        let rest = trained[cut..].iter().map(|p| p.name.clone());
        let mut groups = vec![Group::new("rest", rest, clip).average(one)];
        if cut > 0 {
            let group = Group::joint("joint", joint, clip).average(one);
            groups.push(if seed % 2 == 0 { group.normalised() } else { group });
        }
        let z = NoiseMultiplier::new(0.3 + f64::from(random.unit()) * 4.0).unwrap();
        let plan = RoundPlan::new(structure, groups, Allocation::Proportional(z)).unwrap();
        for row in 0..2 {
            let (sums, norms) = integers(&model, &plan, &tile, row);
            for ((name, sums), norm) in plan.group_names().zip(sums).zip(&norms) {
                let s_int = i128::from(plan.grid(name).unwrap().s_int());
                let squared: i128 = sums.iter().map(|u| i128::from(*u) * i128::from(*u)).sum();
                prop_assert!(squared <= s_int * s_int, "{name}");
                let all_finite = norms.iter().all(|n| n.is_finite());
                prop_assert!(all_finite || squared == 0);
                if all_finite && *norm > clip.get() * 1.001 && clip.get() > 1e-6 {
                    // A clipped record has nearly the full norm: it loses only what rounding the factors costs.
                    prop_assert!(squared as f64 > 0.98 * (s_int * s_int) as f64, "{name} {norm} {} {squared} {s_int}", clip.get());
                }
            }
        }
    }
}
