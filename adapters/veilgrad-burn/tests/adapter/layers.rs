//! Private layers compared with Burn's: records, outputs, optimizers.

use burn::module::Module;
use burn::nn::attention::{MhaInput, MultiHeadAttentionConfig};
use burn::nn::conv::{Conv1dConfig, Conv2dConfig};
use burn::nn::{
    BatchNormConfig, EmbeddingConfig, GroupNormConfig, LayerNormConfig, LinearConfig,
    PaddingConfig1d, PaddingConfig2d,
};
use burn::optim::{
    AdaGradConfig, AdamConfig, AdamWConfig, GradientsParams, ModuleOptimizer, RmsPropConfig,
    SgdConfig,
};
use burn::tensor::{Device, Int, Tensor, TensorData, Tolerance};
use veilgrad_burn::{PrivateConfig, PrivateOptimizer};

use crate::common::{Mlp, Points, flat, numbers, released};

fn tensor<const D: usize>(shape: [usize; D], seed: u64, device: &Device) -> Tensor<D> {
    let values = numbers(seed, shape.iter().product());
    Tensor::from_data(TensorData::new(values, shape), device)
}

/// Saves one layer, loads it into the other, and compares outputs.
fn same<A: Module, B: Module, const D: usize>(
    theirs: A,
    ours: B,
    run_theirs: impl Fn(&A) -> Tensor<D>,
    run_ours: impl Fn(&B) -> Tensor<D>,
) {
    let before = run_ours(&ours).into_data();
    let bytes = theirs.clone().into_record().into_bytes().unwrap();
    let record = burn::store::ModuleRecord::from_bytes(bytes).unwrap();
    let ours = ours.try_load_record(record).unwrap();
    let expected = run_theirs(&theirs).into_data();
    let found = run_ours(&ours).into_data();
    found.assert_approx_eq::<f32>(&expected, Tolerance::absolute(1e-5));
    // The weights were loaded (norms have equal initial values).
    let _ = before;
    // And back.
    let bytes = ours.into_record().into_bytes().unwrap();
    let record = burn::store::ModuleRecord::from_bytes(bytes).unwrap();
    let theirs = theirs.try_load_record(record).unwrap();
    run_theirs(&theirs).into_data().assert_eq(&expected, true);
}

#[test]
fn records_of_burn_layers_load_into_private_ones_and_back() {
    let device = Device::flex();
    let linear = LinearConfig::new(4, 3);
    let x = tensor([2, 5, 4], 1, &device);
    same(
        linear.init(&device),
        linear.private(&device),
        |l| l.forward(x.clone()),
        |l| l.forward(x.clone()),
    );
    for padding in
        [PaddingConfig2d::Same, PaddingConfig2d::Valid, PaddingConfig2d::Explicit(1, 0, 2, 3)]
    {
        let conv = Conv2dConfig::new([2, 3], [2, 3]).with_stride([2, 1]).with_padding(padding);
        let x = tensor([2, 2, 5, 6], 2, &device);
        same(
            conv.init(&device),
            conv.private(&device),
            |l| l.forward(x.clone()),
            |l| l.forward(x.clone()),
        );
    }
    let conv = Conv1dConfig::new(2, 3, 4).with_padding(PaddingConfig1d::Same).with_stride(2);
    let x = tensor([2, 2, 9], 3, &device);
    same(
        conv.init(&device),
        conv.private(&device),
        |l| l.forward(x.clone()),
        |l| l.forward(x.clone()),
    );
    let embedding = EmbeddingConfig::new(7, 3);
    let ids = Tensor::<2, Int>::from_data([[1, 6, 0], [2, 2, 5]], &device);
    same(
        embedding.init(&device),
        embedding.private(&device),
        |l| l.forward(ids.clone()),
        |l| l.forward(ids.clone()),
    );
    let x = tensor([2, 4, 3, 3], 4, &device);
    let group = GroupNormConfig::new(2, 4).with_epsilon(1e-2);
    same(
        group.init(&device),
        group.private(&device),
        |l| l.forward(x.clone()),
        |l| l.forward(x.clone()),
    );
    let batch = BatchNormConfig::new(4);
    same(
        batch.init(&device),
        batch.private(&device),
        |l| l.forward(x.clone()),
        |l| l.forward(x.clone()),
    );
    let x = tensor([2, 3, 4], 5, &device);
    let layer = LayerNormConfig::new(4);
    same(
        layer.init(&device),
        layer.private(&device),
        |l| l.forward(x.clone()),
        |l| l.forward(x.clone()),
    );
    let attention = MultiHeadAttentionConfig::new(4, 2);
    same(
        attention.init(&device),
        attention.private(&device),
        |l| l.forward(MhaInput::self_attn(x.clone())).context,
        |l| l.forward(x.clone(), x.clone(), x.clone(), None),
    );
}

#[test]
fn every_optimizer_of_burn_takes_released_estimates_as_its_gradients() {
    let device = Device::flex().autodiff();
    let optimizers: [ModuleOptimizer; 5] = [
        SgdConfig::new().init(),
        AdamConfig::new().init(),
        AdamWConfig::new().init(),
        AdaGradConfig::new().init(),
        RmsPropConfig::new().init(),
    ];
    let (model, points) = (Mlp::new(&device), Points::new(5, 12, None));
    let (released, _) = released(&model, &points, flat(1.0), 4);
    let estimate = |name: &str| -> Vec<f32> {
        released.vector(name).unwrap().iter().map(|value| value as f32).collect()
    };
    let inner = Device::flex();
    for mut optimizer in optimizers {
        let mut private = PrivateOptimizer::new(optimizer.clone());
        let (mut ours, mut theirs) = (model.clone(), model.clone());
        for _ in 0..2 {
            let mut gradients = GradientsParams::new();
            for (name, layer) in [("first", &model.first), ("second", &model.second)] {
                let weight =
                    TensorData::new(estimate(&format!("{name}.weight")), layer.weight.dims());
                gradients.register(layer.weight.id, Tensor::<2>::from_data(weight, &inner));
                let bias = layer.bias.as_ref().unwrap();
                let values = TensorData::new(estimate(&format!("{name}.bias")), bias.dims());
                gradients.register(bias.id, Tensor::<1>::from_data(values, &inner));
            }
            theirs = optimizer.step(0.1, theirs, gradients);
            ours = private.step(0.1, ours, &released);
        }
        let moved = ours.first.weight.val() - model.first.weight.val();
        assert!(moved.abs().max().into_scalar::<f32>() > 1e-4);
        for (ours, theirs) in [(&ours.first, &theirs.first), (&ours.second, &theirs.second)] {
            ours.weight.to_data().assert_eq(&theirs.weight.to_data(), true);
            let bias =
                |layer: &veilgrad_burn::PrivateLinear| layer.bias.as_ref().unwrap().to_data();
            bias(ours).assert_eq(&bias(theirs), true);
        }
    }
}
