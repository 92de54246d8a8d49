//! Small models and datasets, and rounds without noise.

use burn::module::{Module, ModuleMapper, Param};
use burn::nn::conv::{Conv1dConfig, Conv2dConfig};
use burn::nn::pool::MaxPool2dConfig;
use burn::nn::{
    BatchNormConfig, EmbeddingConfig, GroupNormConfig, LayerNormConfig, LinearConfig,
    PaddingConfig1d, PaddingConfig2d,
};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Int, Tensor, TensorData};
use veilgrad_burn::{
    Outcome, PerRecord, PerRecordModel, PrivateBatchNorm, PrivateConfig, PrivateConv1d,
    PrivateConv2d, PrivateEmbedding, PrivateGroupNorm, PrivateLayerNorm, PrivateLinear,
    PrivateMaxPool2d, PrivateMultiHeadAttention, Records, Trainer, TrainingPlan, cross_entropy,
};
use veilgrad_events::{Adjacency, ClipNorm, MemoryLedger, NoiseMultiplier, PublicCount, Run};
use veilgrad_mechanism::insecure::no_noise;
use veilgrad_mechanism::{AllRecords, Estimates, Released, RoundPlan};
use veilgrad_nn::{Clipping, Performance};

/// The supported devices.
#[allow(deprecated)]
pub(crate) fn backends() -> [(&'static str, Device); 2] {
    [("flex", Device::flex().autodiff()), ("ndarray", Device::ndarray().autodiff())]
}

/// The model with the same values in every run. Burn's seed does not suffice: its generator is global to the
/// process, and other tests draw from it at the same time.
pub(crate) fn repeatable<M: Module>(model: M) -> M {
    struct Repeat(u64);
    impl ModuleMapper for Repeat {
        fn map_float<const D: usize>(&mut self, parameter: Param<Tensor<D>>) -> Param<Tensor<D>> {
            self.0 += 1;
            parameter.map(|old| {
                let (dims, device) = (old.dims(), old.device());
                let first = old.to_data().iter::<f32>().next();
                // Keeps the initial ones and zeros of norms.
                if old.to_data().iter::<f32>().all(|x| Some(x) == first) {
                    return old;
                }
                let inputs = match D {
                    2 => dims[0],
                    _ => dims[1..].iter().product(),
                };
                let scale = 2.0 * (inputs as f32).powf(-0.5);
                let values = numbers(self.0, dims.iter().product()).into_iter().map(|x| x * scale);
                let new = TensorData::new(values.collect::<Vec<_>>(), dims);
                Tensor::from_data(new, &device).set_require_grad(old.is_require_grad())
            })
        }
    }
    model.map(&mut Repeat(0))
}

/// Pseudorandom numbers in [-1, 1).
pub(crate) fn numbers(seed: u64, count: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// A dataset of rows of numbers with classes.
#[derive(Clone)]
pub(crate) struct Points {
    pub(crate) rows: Vec<(Vec<f32>, i64)>,
    pub(crate) width: usize,
    /// If set, inputs are indices below this.
    pub(crate) entries: Option<u32>,
    /// Rows per record.
    pub(crate) examples: usize,
}

impl Points {
    pub(crate) fn new(count: usize, width: usize, entries: Option<u32>) -> Self {
        let mut points = Self { rows: Vec::new(), width, entries, examples: 1 };
        points.rows = (0..count as u64).map(|i| points.row(i + 1_000)).collect();
        points
    }

    fn row(&self, seed: u64) -> (Vec<f32>, i64) {
        let values = numbers(seed, self.width);
        let entry = |x: f32, entries: u32| ((x + 1.0) / 2.0 * entries as f32).floor();
        let values = match self.entries {
            Some(entries) => values.into_iter().map(|x| entry(x, entries)).collect(),
            None => values,
        };
        (values, (seed % 3) as i64)
    }
}

pub(crate) struct Batch {
    pub(crate) x: Tensor<2>,
    pub(crate) y: Tensor<1, Int>,
}

impl Records for Points {
    type Example = (Vec<f32>, i64);
    type Batch = Batch;

    fn count(&self) -> u64 {
        (self.rows.len() / self.examples) as u64
    }

    fn examples(&self, _: u64) -> usize {
        self.examples
    }

    fn read(&self, record: u64, example: usize) -> Self::Example {
        self.rows[record as usize * self.examples + example].clone()
    }

    fn made_up(&self, number: u64) -> Self::Example {
        self.row(number + 1)
    }

    fn batch(&self, examples: Vec<Self::Example>, device: &Device) -> Batch {
        let (count, width) = (examples.len(), self.width);
        let (rows, classes): (Vec<_>, Vec<_>) = examples.into_iter().unzip();
        let x = TensorData::new(rows.concat(), [count, width]);
        Batch {
            x: Tensor::from_data(x, device),
            y: Tensor::from_data(TensorData::new(classes, [count]), device),
        }
    }
}

/// The inputs and the target of one point.
pub(crate) fn example((x, y): &(Vec<f32>, i64)) -> (Vec<f32>, Vec<f32>) {
    (x.clone(), vec![*y as f32])
}

/// The interface of the test models.
pub(crate) trait Classify: Module + Sync {
    fn logits(&self, x: Tensor<2>) -> Tensor<2>;
}

pub(crate) fn judge<M: Classify>(model: &M, batch: Batch) -> Outcome {
    Outcome::new(cross_entropy(model.logits(batch.x), batch.y))
}

#[derive(Module, Debug)]
pub(crate) struct Mlp {
    pub(crate) first: PrivateLinear,
    pub(crate) second: PrivateLinear,
}

impl Mlp {
    pub(crate) fn new(device: &Device) -> Self {
        repeatable(Self {
            first: LinearConfig::new(12, 7).private(device),
            second: LinearConfig::new(7, 3).private(device),
        })
    }
}

impl Classify for Mlp {
    fn logits(&self, x: Tensor<2>) -> Tensor<2> {
        self.second.forward(relu(self.first.forward(x)))
    }
}

impl PerRecordModel for Mlp {
    fn each(&self, x: PerRecord<2>) -> PerRecord<2> {
        self.second.each(self.first.each(x).relu())
    }
}

/// Convolutions with all kinds of padding, a pool, and the three norms, on 6 x 6 images.
#[derive(Module, Debug)]
pub(crate) struct Convs {
    pub(crate) first: PrivateConv2d,
    pub(crate) pool: PrivateMaxPool2d,
    pub(crate) group: PrivateGroupNorm,
    pub(crate) second: PrivateConv2d,
    pub(crate) batch: PrivateBatchNorm,
    pub(crate) layer: PrivateLayerNorm,
    pub(crate) last: PrivateLinear,
}

impl Convs {
    pub(crate) fn new(device: &Device) -> Self {
        repeatable({
            let same = Conv2dConfig::new([1, 4], [3, 3]).with_stride([2, 2]);
            let pool = MaxPool2dConfig::new([2, 2]).with_strides([1, 1]);
            Self {
                first: same.with_padding(PaddingConfig2d::Same).private(device),
                pool: pool.private(device).rectified(),
                group: GroupNormConfig::new(2, 4).private(device),
                second: Conv2dConfig::new([4, 5], [2, 2]).private(device),
                batch: BatchNormConfig::new(5).private(device),
                layer: LayerNormConfig::new(5).private(device),
                last: LinearConfig::new(5, 3).private(device),
            }
        })
    }
}

impl Classify for Convs {
    fn logits(&self, x: Tensor<2>) -> Tensor<2> {
        let [records, _] = x.dims();
        let x = self.pool.forward(self.first.forward(x.reshape([records, 1, 6, 6])));
        let x = self.batch.forward(self.second.forward(self.group.forward(x)));
        self.last.forward(relu(self.layer.forward(x.reshape([records, 5]))))
    }
}

impl PerRecordModel for Convs {
    fn each(&self, x: PerRecord<2>) -> PerRecord<2> {
        let x = self.pool.each(self.first.each(x.reshape(&[1, 6, 6])));
        let x = self.batch.each(self.second.each(self.group.each(x)));
        self.last.each(self.layer.each(x.flatten()).relu())
    }
}

/// A convolution with asymmetric padding and strides, and a group norm: also works with materialised gradients.
#[derive(Module, Debug)]
pub(crate) struct Images {
    pub(crate) first: PrivateConv2d,
    pub(crate) group: PrivateGroupNorm,
    pub(crate) conv: PrivateConv2d,
    pub(crate) last: PrivateLinear,
}

impl Images {
    pub(crate) fn new(device: &Device) -> Self {
        repeatable({
            let first = Conv2dConfig::new([1, 4], [3, 2]).with_stride([2, 1]);
            Self {
                first: first.with_padding(PaddingConfig2d::Explicit(1, 0, 2, 3)).private(device),
                group: GroupNormConfig::new(2, 4).private(device),
                conv: Conv2dConfig::new([4, 5], [2, 2]).with_bias(false).private(device),
                last: LinearConfig::new(5, 3).private(device),
            }
        })
    }
}

impl Classify for Images {
    fn logits(&self, x: Tensor<2>) -> Tensor<2> {
        let [records, _] = x.dims();
        let x = self.first.forward(x.reshape([records, 1, 6, 6]));
        let x = self.conv.forward(relu(self.group.forward(x)));
        // The average over all positions of a filter.
        let x = x.flatten::<3>(2, 3).mean_dim(2).squeeze_dim::<2>(2);
        self.last.forward(relu(x))
    }
}

/// An embedding and a linear layer over all of its numbers.
#[derive(Module, Debug)]
pub(crate) struct Bag {
    pub(crate) embedding: PrivateEmbedding,
    pub(crate) last: PrivateLinear,
}

impl Bag {
    pub(crate) fn new(device: &Device) -> Self {
        repeatable(Self {
            embedding: EmbeddingConfig::new(9, 4).private(device),
            last: LinearConfig::new(24, 3).private(device),
        })
    }
}

impl Classify for Bag {
    fn logits(&self, x: Tensor<2>) -> Tensor<2> {
        self.last.forward(self.embedding.forward(x.int()).flatten(1, 2))
    }
}

impl PerRecordModel for Bag {
    fn each(&self, x: PerRecord<2>) -> PerRecord<2> {
        self.last.each(self.embedding.each(x).flatten())
    }
}

/// A convolution over sequences with asymmetric padding and no bias, and a norm without shift.
#[derive(Module, Debug)]
pub(crate) struct Sequence {
    pub(crate) conv: PrivateConv1d,
    pub(crate) norm: PrivateLayerNorm,
    pub(crate) last: PrivateLinear,
}

impl Sequence {
    pub(crate) fn new(device: &Device) -> Self {
        repeatable({
            let conv = Conv1dConfig::new(2, 3, 4).with_padding(PaddingConfig1d::Same);
            Self {
                conv: conv.with_bias(false).private(device),
                norm: LayerNormConfig::new(6).with_bias(false).with_epsilon(1e-2).private(device),
                last: LinearConfig::new(18, 3).private(device),
            }
        })
    }
}

impl Classify for Sequence {
    fn logits(&self, x: Tensor<2>) -> Tensor<2> {
        let [records, _] = x.dims();
        let x = self.norm.forward(self.conv.forward(x.reshape([records, 2, 6])));
        self.last.forward(relu(x).flatten(1, 2))
    }
}

impl PerRecordModel for Sequence {
    fn each(&self, x: PerRecord<2>) -> PerRecord<2> {
        let x = self.norm.each(self.conv.each(x.reshape(&[2, 6])));
        self.last.each(x.relu().flatten())
    }
}

/// The indices of the positions of a record.
fn positions(x: &Tensor<2>) -> Tensor<2, Int> {
    let [records, length] = x.dims();
    Tensor::<1, Int>::arange(0..length as i64, &x.device()).unsqueeze::<2>().repeat_dim(0, records)
}

/// One table for indices and positions: its gradient is written out.
#[derive(Module, Debug)]
pub(crate) struct Tied {
    pub(crate) embedding: PrivateEmbedding,
    pub(crate) last: PrivateLinear,
}

impl Tied {
    pub(crate) fn new(device: &Device) -> Self {
        repeatable(Self {
            embedding: EmbeddingConfig::new(9, 4).private(device),
            last: LinearConfig::new(24, 3).private(device),
        })
    }
}

impl Classify for Tied {
    fn logits(&self, x: Tensor<2>) -> Tensor<2> {
        let places = self.embedding.forward(positions(&x));
        self.last.forward(relu(self.embedding.forward(x.int()) + places).flatten(1, 2))
    }
}

impl PerRecordModel for Tied {
    fn each(&self, x: PerRecord<2>) -> PerRecord<2> {
        let places = self.embedding.each(x.positions());
        self.last.each((self.embedding.each(x) + places).relu().flatten())
    }
}

/// A transformer: embeddings of indices and positions, attention, and a linear layer that is used twice.
#[derive(Module, Debug)]
pub(crate) struct Text {
    pub(crate) embedding: PrivateEmbedding,
    pub(crate) places: PrivateEmbedding,
    pub(crate) attention: PrivateMultiHeadAttention,
    pub(crate) norm: PrivateLayerNorm,
    pub(crate) twice: PrivateLinear,
    pub(crate) last: PrivateLinear,
}

impl Text {
    pub(crate) fn new(device: &Device) -> Self {
        repeatable({
            let attention =
                burn::nn::attention::MultiHeadAttentionConfig::new(8, 2).with_dropout(0.0);
            Self {
                embedding: EmbeddingConfig::new(9, 8).private(device),
                places: EmbeddingConfig::new(6, 8).private(device),
                attention: attention.private(device),
                norm: LayerNormConfig::new(8).private(device),
                twice: LinearConfig::new(8, 8).with_bias(false).private(device),
                last: LinearConfig::new(8, 3).private(device),
            }
        })
    }
}

impl Classify for Text {
    fn logits(&self, x: Tensor<2>) -> Tensor<2> {
        let places = self.places.forward(positions(&x));
        let x = self.embedding.forward(x.int()) + places;
        let attended = self.attention.forward(x.clone(), x.clone(), x.clone(), None);
        let x = self.norm.forward(x + attended).mean_dim(1).squeeze_dim::<2>(1);
        let x = self.twice.forward(relu(self.twice.forward(x)));
        self.last.forward(x)
    }
}

impl PerRecordModel for Text {
    fn each(&self, x: PerRecord<2>) -> PerRecord<2> {
        let places = self.places.each(x.positions());
        let x = self.embedding.each(x) + places;
        let x = self.norm.each(x.clone() + self.attention.each(x)).average();
        self.last.each(self.twice.each(self.twice.each(x).relu()))
    }
}

/// Two threads, and tiles of this size.
pub(crate) const fn tiles(tile: usize) -> Performance {
    Performance { threads: 2, tile }
}

pub(crate) fn clip(value: f64) -> ClipNorm {
    ClipNorm::new(value).unwrap()
}

pub(crate) fn flat(value: f64) -> TrainingPlan {
    let noise = NoiseMultiplier::new(1.0).unwrap();
    TrainingPlan::new(Clipping::Flat(clip(value)), noise, PublicCount::new(1.0).unwrap())
}

/// One round over all records without noise.
pub(crate) fn released<M: Classify>(
    model: &M,
    points: &Points,
    plan: TrainingPlan,
    tile: usize,
) -> (Released<Estimates>, RoundPlan) {
    round(Trainer::with(model, points, plan, judge, tiles(tile)).unwrap(), model)
}

/// One round of a trainer over all records without noise.
pub(crate) fn round<M: Module + Sync, R: Records + Sync, F: Fn(&M, R::Batch) -> Outcome + Sync>(
    mut trainer: Trainer<M, R, F>,
    model: &M,
) -> (Released<Estimates>, RoundPlan) {
    let plan = trainer.plan().clone();
    let mut run =
        Run::open_insecure(MemoryLedger::new(), trainer.header(Adjacency::ZeroOut), "test")
            .unwrap();
    let mut sampler = AllRecords;
    let permit = run.reserve(&trainer.event(&sampler).unwrap(), 1).unwrap().next().unwrap();
    let noise = no_noise(&plan);
    trainer.round_insecure(model, permit, &mut sampler, noise).unwrap();
    (trainer.estimates().unwrap().clone(), plan)
}

/// The integer sums of one vector.
pub(crate) fn integers(released: &Released<Estimates>, plan: &RoundPlan, name: &str) -> Vec<i64> {
    let group = plan.group_names().find(|group| plan.vectors(group).any(|vector| vector == name));
    let group = group.unwrap();
    let s_int = f64::from(plan.grid(group).unwrap().s_int());
    let step = plan.clip_norm(group).unwrap().get() / s_int;
    let estimate = released.vector(name).unwrap();
    estimate.iter().map(|value| (value / step - 0.5).round() as i64).collect()
}

/// All integer sums of the plan's vectors, one after the other.
pub(crate) fn all_integers((released, plan): &(Released<Estimates>, RoundPlan)) -> Vec<i64> {
    let names: Vec<String> = plan.structure().vectors().map(|(n, _)| n.to_owned()).collect();
    names.iter().flat_map(|name| integers(released, plan, name)).collect()
}
