//! Numerics are exact only if records are isolated by construction, or alone in their tile.

use burn::module::Module;
use burn::nn::LinearConfig;
use burn::nn::attention::MultiHeadAttentionConfig;
use burn::nn::pool::MaxPool2dConfig;
use burn::tensor::{Device, Tensor};
use veilgrad_burn::{
    Outcome, PerRecord, PerRecordModel, PrivateConfig, PrivateLinear, PrivateMaxPool2d,
    PrivateMultiHeadAttention, Trainer, TrainingPlan, cross_entropy,
};
use veilgrad_events::{Adjacency, BudgetShare, Numerics};
use veilgrad_mechanism::Metric;
use veilgrad_nn::{Loss, Performance};

use crate::common::{
    Bag, Batch, Classify, Convs, Mlp, Points, Sequence, Text, Tied, all_integers, backends, clip,
    example, flat, judge, released, repeatable, round, tiles,
};

fn device() -> Device {
    Device::flex().autodiff()
}

/// Losses that couple records in a way that made-up records, whose losses are small, do not reveal.
const COUPLED: [fn(Tensor<1>) -> Tensor<1>; 2] = [
    |losses| losses.clone() / losses.max().clamp_min(10.0),
    // Only a large loss affects other records.
    |losses| losses.clone() * (losses.max() - 20.0).clamp_min(0.0).add_scalar(1.0),
];

/// Couples records in a layer if its outputs are large.
#[derive(Module, Debug)]
struct Scaled {
    first: PrivateLinear,
    last: PrivateLinear,
}

impl Classify for Scaled {
    fn logits(&self, x: Tensor<2>) -> Tensor<2> {
        let x = self.first.forward(x);
        let largest = x.clone().abs().max().clamp_min(10.0).unsqueeze::<2>();
        self.last.forward(x / largest)
    }
}

/// A dataset in which one record has a large loss and large activations.
fn with_a_large_one() -> Points {
    let mut points = Points::new(9, 12, None);
    points.rows[4].0.iter_mut().for_each(|x| *x *= 1e4);
    // Chooses the class with a large loss.
    let sizes = [0, 1, 2].map(|class| {
        points.rows[4].1 = class;
        let alone = Points { rows: vec![points.rows[4].clone()], ..points.clone() };
        let sums = all_integers(&released(&mlp(), &alone, flat(0.5), 1));
        sums.iter().map(|sum| sum.unsigned_abs()).max().unwrap_or(0)
    });
    let class = (0..3).max_by_key(|class| sizes[*class]).unwrap();
    points.rows[4].1 = class as i64;
    points
}

fn mlp() -> Mlp {
    Mlp::new(&device())
}

fn sums<M: Module + Sync>(
    model: &M,
    points: &Points,
    plan: TrainingPlan,
    tile: usize,
    loss: &(impl Fn(&M, Batch) -> Outcome + Sync),
) -> (Vec<i64>, Numerics) {
    // One thread, so that coupled records share a tile.
    let performance = Performance { threads: 1, tile };
    let trainer = Trainer::with(model, points, plan, loss, performance).unwrap();
    let numerics = trainer.numerics();
    assert_eq!(trainer.header(Adjacency::AddRemove).numerics, numerics);
    (all_integers(&round(trainer, model)), numerics)
}

/// Whether the sums equal those without the large record plus those of the large record alone.
fn adds_up<M: Module + Sync>(
    model: &M,
    plan: &TrainingPlan,
    tile: usize,
    loss: &(impl Fn(&M, Batch) -> Outcome + Sync),
) -> (bool, Numerics) {
    let points = with_a_large_one();
    let (mut without, mut alone) = (points.clone(), points.clone());
    alone.rows = vec![without.rows.remove(4)];
    let of = |points: &Points| sums(model, points, plan.clone(), tile, loss);
    let ((whole, numerics), (without, _), (alone, _)) = (of(&points), of(&without), of(&alone));
    let parts: Vec<i64> = without.iter().zip(&alone).map(|(a, b)| a + b).collect();
    (parts == whole, numerics)
}

/// In tiles, records are coupled and no check detects it: the run must not be called exact.
fn coupled_is_not_exact<M: Module + Sync>(
    model: &M,
    loss: &(impl Fn(&M, Batch) -> Outcome + Sync),
) {
    assert_eq!(adds_up(model, &flat(0.5), 16, loss), (false, Numerics::Unverified));
    assert_eq!(adds_up(model, &flat(0.5), 1, loss), (true, Numerics::Exact));
    assert_eq!(adds_up(model, &flat(0.5).materialised(), 0, loss), (true, Numerics::Exact));
}

#[test]
fn losses_that_couple_records_only_where_they_are_large_are_not_exact_unless_records_are_alone() {
    for coupled in COUPLED {
        let loss = |model: &Mlp, batch: Batch| {
            Outcome::new(coupled(cross_entropy(model.logits(batch.x), batch.y)))
        };
        coupled_is_not_exact(&mlp(), &loss);
    }
}

#[test]
fn layers_that_couple_records_only_where_they_are_large_are_not_exact_unless_records_are_alone() {
    let linear = |inputs, outputs| LinearConfig::new(inputs, outputs).private(&device());
    let model = repeatable(Scaled { first: linear(12, 7), last: linear(7, 3) });
    coupled_is_not_exact(&model, &judge);
}

#[test]
fn models_of_tensors_are_exact_only_one_record_at_a_time() {
    fn check<M: Classify>(model: &M, points: &Points, plan: &TrainingPlan) {
        for (tile, expected) in
            [(0, Numerics::Unverified), (8, Numerics::Unverified), (1, Numerics::Exact)]
        {
            let trainer = Trainer::with(model, points, plan.clone(), judge, tiles(tile)).unwrap();
            assert_eq!(trainer.numerics(), expected, "{tile}");
        }
    }
    for (_, device) in backends() {
        check(&Mlp::new(&device), &Points::new(1, 12, None), &flat(1.0));
        check(&Text::new(&device), &Points::new(1, 6, Some(9)), &flat(1.0));
    }
}

const LOSS: Loss = Loss::SoftmaxCrossEntropy;

/// The sums of a model whose types isolate records.
fn typed<M: PerRecordModel + Sync>(
    model: &M,
    points: &Points,
    plan: &TrainingPlan,
    tile: usize,
) -> Vec<i64> {
    let trainer =
        Trainer::per_record_with(model, points, plan.clone(), LOSS, example, tiles(tile)).unwrap();
    assert_eq!(trainer.header(Adjacency::AddRemove).numerics, Numerics::Exact);
    all_integers(&round(trainer, model))
}

/// Exact in tiles with any other records; and the same outputs as the model written with tensors.
fn exact_by_type<M: PerRecordModel + Classify>(model: &M, mut points: Points, plan: &TrainingPlan) {
    let fits = typed(model, &points, plan, 8);
    let tensors = all_integers(&released(model, &points, plan.clone(), 8));
    let norm = |v: &mut dyn Iterator<Item = i64>| v.map(|x| (x as f64).powi(2)).sum::<f64>().sqrt();
    let apart = norm(&mut fits.iter().zip(&tensors).map(|(a, b)| a - b));
    assert!(apart <= 1e-3 * norm(&mut tensors.iter().copied()), "{apart}");

    points.rows[1].0.fill(f32::NAN);
    points.rows[2].0.fill(1e30);
    points.rows[3].1 = 99;
    points.rows[5].0.pop();
    points.rows[6].0.clear();
    let whole = typed(model, &points, plan, 8);
    for tile in [0, 1, 5] {
        assert_eq!(typed(model, &points, plan, tile), whole, "tile {tile}");
    }
    let mut turned = points.clone();
    turned.rows.reverse();
    assert_eq!(typed(model, &turned, plan, 8), whole);
    for dropped in 0..8 {
        let (mut without, mut alone) = (points.clone(), points.clone());
        alone.rows = vec![without.rows.remove(dropped)];
        let (without, alone) = (typed(model, &without, plan, 8), typed(model, &alone, plan, 8));
        let parts: Vec<i64> = without.iter().zip(&alone).map(|(a, b)| a + b).collect();
        assert_eq!(parts, whole, "without record {dropped}");
        if [1, 3, 5, 6].contains(&dropped) {
            assert!(alone.iter().all(|sum| *sum == 0), "record {dropped} is unusable");
        }
    }
}

#[test]
fn models_that_keep_records_apart_by_their_types_are_exact_in_tiles_on_every_backend() {
    for (_, device) in backends() {
        exact_by_type(&Mlp::new(&device), Points::new(21, 12, None), &flat(0.5));
        exact_by_type(&Sequence::new(&device), Points::new(21, 12, None), &flat(0.5));
        exact_by_type(&Bag::new(&device), Points::new(21, 6, Some(9)), &flat(0.5));
        exact_by_type(&Tied::new(&device), Points::new(21, 6, Some(9)), &flat(0.5));
        exact_by_type(&Text::new(&device), Points::new(21, 6, Some(9)), &flat(0.5));
        let plan = flat(0.5).statistics(clip(2.0), BudgetShare::new(0.1).unwrap());
        exact_by_type(&Convs::new(&device), Points::new(21, 36, None), &plan);
    }
}

#[test]
fn metrics_of_typed_models_are_estimated_in_the_round() {
    let (model, points) = (Mlp::new(&device()), Points::new(21, 12, None));
    let share = BudgetShare::new(0.1).unwrap();
    let plan = flat(0.5).metric(Metric::bounded("accuracy", 0.0, 1.0).unwrap(), share);
    let judged = |model: &Mlp, batch: Batch| {
        let right = veilgrad_burn::accuracy(model.logits(batch.x.clone()), batch.y.clone());
        judge(model, batch).metric("accuracy", right)
    };
    let (tensors, _) = sums(&model, &points, plan.clone(), 8, &judged);
    // The metric comes last.
    assert_eq!(typed(&model, &points, &plan, 8).last(), tensors.last());
    let unknown = flat(0.5).metric(Metric::bounded("luck", 0.0, 1.0).unwrap(), share);
    let error = Trainer::per_record(&model, &points, unknown, LOSS, example).err().unwrap();
    assert!(error.to_string().contains("metric 'luck'"), "{error}");
}

#[test]
fn targets_that_do_not_fit_the_loss_are_refused() {
    let (model, points) = (Mlp::new(&device()), Points::new(5, 12, None));
    let loss = Loss::SquaredError;
    let error = Trainer::per_record(&model, &points, flat(1.0), loss, example).err().unwrap();
    assert!(error.to_string().contains("1 targets, but the loss needs 3"), "{error}");
}

/// A model with a pool that has no native kernel.
#[derive(Module, Debug)]
struct Oblong {
    pool: PrivateMaxPool2d,
    last: PrivateLinear,
}

impl PerRecordModel for Oblong {
    fn each(&self, x: PerRecord<2>) -> PerRecord<2> {
        self.last.each(self.pool.each(x.reshape(&[1, 6, 6])).flatten())
    }
}

/// A model whose attention drops weights at random.
#[derive(Module, Debug)]
struct Random {
    attention: PrivateMultiHeadAttention,
    last: PrivateLinear,
}

impl PerRecordModel for Random {
    fn each(&self, x: PerRecord<2>) -> PerRecord<2> {
        self.last.each(self.attention.each(x.reshape(&[9, 4])).average())
    }
}

#[test]
fn a_typed_model_takes_no_attention_with_dropout() {
    let model = Random {
        attention: MultiHeadAttentionConfig::new(4, 2).with_dropout(0.1).private(&device()),
        last: LinearConfig::new(4, 3).private(&device()),
    };
    let points = Points::new(5, 36, None);
    let error = Trainer::per_record(&model, &points, flat(1.0), LOSS, example).err().unwrap();
    assert!(error.to_string().contains("without dropout"), "{error}");
}

#[test]
fn a_typed_model_takes_no_layer_without_a_native_kernel() {
    let model = Oblong {
        pool: MaxPool2dConfig::new([1, 2]).with_strides([1, 2]).private(&device()),
        last: LinearConfig::new(18, 3).private(&device()),
    };
    let points = Points::new(5, 36, None);
    let error = Trainer::per_record(&model, &points, flat(1.0), LOSS, example).err().unwrap();
    assert!(error.to_string().contains("only square windows"), "{error}");
}
