//! Recorded digests of trained models: a refactoring must give the same bits for the same seeds.
//!
//! A digest changes when the arithmetic of a round changes: order of operations, grid, clipping, noise, optimizer. Such a
//! change is allowed, with a reason in the CHANGELOG.

use std::num::NonZeroU32;

use crate::common::{bits, examples, in_memory, model, plan};
use veilgrad_events::{Adjacency, BudgetShare, ClipNorm, MemoryLedger, Run};
use veilgrad_mechanism::insecure::seeded_noise;
use veilgrad_mechanism::{AllRecords, Metric};
use veilgrad_nn::{
    Adam, Contribution, Conv2d, InMemory, Layer, Loss, Microbatches, Model, Optimizer, Performance,
    Records, Schedule, Sgd, Trainer, TrainingPlan, Unit,
};

/// FNV-1a over the bits of all weights, after four rounds with seeded noise.
fn digest(
    model: Model,
    plan: TrainingPlan,
    optimizer: impl Optimizer,
    records: &impl Records,
) -> u64 {
    let performance = Performance { threads: 2, tile: 16 };
    let rate = Schedule::Constant(0.25);
    let mut trainer =
        Trainer::new(model, Loss::SoftmaxCrossEntropy, plan, optimizer, rate, performance)
            .unwrap()
            .averaging(0.9);
    let header = trainer.header(Adjacency::ZeroOut);
    let mut run = Run::open_insecure(MemoryLedger::new(), header, "test").unwrap();
    for permit in run.reserve(&trainer.event(&AllRecords).unwrap(), 4).unwrap() {
        let noise = seeded_noise(trainer.plan(), 7 + trainer.rounds()).unwrap();
        trainer.round_insecure(permit, &mut AllRecords, records, noise).unwrap();
    }
    let averaged = trainer.averaged_model().unwrap();
    let bytes = [bits(trainer.model()), bits(&averaged)].concat();
    let bytes = bytes.into_iter().flat_map(u32::to_le_bytes);
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

fn number(n: u32) -> NonZeroU32 {
    NonZeroU32::new(n).unwrap()
}

fn build(layers: impl IntoIterator<Item = Layer>) -> Model {
    Model::new(&[6, 6, 1], layers, 11).unwrap()
}

#[test]
fn the_same_seeds_give_the_bits_they_always_gave() {
    let data = in_memory(&examples(60, 5));
    let few = || plan(0.3, 60.0);
    let share = BudgetShare::new(0.1).unwrap();
    let momentum = || Sgd::with_momentum(0.5);
    let linear = build([Layer::Flatten, Layer::linear(3)]);
    let mlp = build([Layer::Flatten, Layer::linear(9), Layer::Tanh, Layer::linear(3)]);
    let batch_norm = build([
        Conv2d::new(4, 3).into(),
        Layer::BatchNorm,
        Layer::Relu,
        Layer::Flatten,
        Layer::linear(3),
    ]);
    let with_statistics = few().statistics(ClipNorm::new(1.0).unwrap(), share);
    let words: Vec<f32> = (0..60 * 5u16).map(|i| f32::from(i * 7 % 11)).collect();
    let words = InMemory::new(words, 5, (0..60u8).map(|i| f32::from(i % 3)).collect(), 1);
    let embedding = Model::new(
        &[5],
        [Layer::Embedding { entries: 11, dimension: 4 }, Layer::Flatten, Layer::linear(3)],
        3,
    )
    .unwrap();
    let microbatch = few().unit(Unit::Microbatch { examples: number(4) });
    let batches = Microbatches::new(&data, number(4));
    let local = Contribution::LocalSgd { rate: 0.1, batch: number(2), epochs: number(2) };
    let user = |contribution| few().unit(Unit::User { examples: number(4), contribution });
    let watched =
        few().metric(Metric::accuracy().unwrap(), share).metric(Metric::loss(4.0).unwrap(), share);
    let found = [
        ("linear", digest(linear.clone(), few(), momentum(), &data)),
        ("mlp", digest(mlp.clone(), few(), momentum(), &data)),
        ("cnn", digest(model(), few(), momentum(), &data)),
        ("materialised", digest(model(), few().materialised(), momentum(), &data)),
        ("adam and metrics", digest(mlp, watched, Adam::standard(), &data)),
        ("batch norm", digest(batch_norm, with_statistics, momentum(), &data)),
        ("embedding", digest(embedding, few(), momentum(), &words)),
        ("microbatch", digest(model(), microbatch, momentum(), &batches)),
        ("user average", digest(linear, user(Contribution::Average), momentum(), &batches)),
        ("local steps", digest(model(), user(local), momentum(), &batches)),
    ];
    let recorded = [
        ("linear", 0x956d_7e5f_1176_149d),
        ("mlp", 0x0e5f_00eb_3727_d423),
        ("cnn", 0xdbb4_545b_7731_eb98),
        ("materialised", 0x588d_7878_9ad7_169b),
        ("adam and metrics", 0xd19f_2bc3_ec1c_ac82),
        ("batch norm", 0xc7bd_39fd_40ec_f768),
        ("embedding", 0x1d48_aaa5_d970_595b),
        ("microbatch", 0x5860_739b_b881_0de9),
        ("user average", 0x54e2_f56c_7346_39c6),
        ("local steps", 0x1b2f_d108_2c73_49e4),
    ];
    assert_eq!(found, recorded, "{found:#x?}");
}
