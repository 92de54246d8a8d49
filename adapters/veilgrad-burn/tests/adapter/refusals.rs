//! Private training names the layers that it refuses, and what to use instead.

use burn::module::{Module, Param};
use burn::nn::conv::Conv2dConfig;
use burn::nn::{BatchNorm, BatchNormConfig, Dropout, DropoutConfig, Linear, LinearConfig};
use burn::tensor::{Device, Tensor};
use veilgrad_burn::{
    ModelError, Outcome, PrivateConfig, PrivateConv2d, PrivateLinear, Trainer, TrainingPlan,
    cross_entropy,
};
use veilgrad_events::{Adjacency, BudgetShare, MemoryLedger, Numerics, Run};
use veilgrad_mechanism::{AllRecords, Metric};
use veilgrad_nn::TrainError;

use crate::common::{Batch, Classify, Convs, Mlp, Points, clip, flat, judge, tiles};

fn device() -> Device {
    Device::flex().autodiff()
}

/// Why a model is refused.
fn refusal<M: Classify>(model: &M, width: usize, plan: TrainingPlan) -> String {
    let points = Points::new(1, width, None);
    match Trainer::with(model, &points, plan, judge, tiles(32)) {
        Ok(_) => "accepted".to_owned(),
        Err(error) => error.to_string(),
    }
}

fn contains(message: &str, parts: &[&str]) {
    for part in parts {
        assert!(message.contains(part), "'{part}' is not in: {message}");
    }
}

#[derive(Module, Debug)]
struct Plain {
    head: Linear,
}

impl Classify for Plain {
    fn logits(&self, x: Tensor<2>) -> Tensor<2> {
        self.head.forward(x)
    }
}

#[test]
fn layers_of_burn_are_named_with_their_private_twins_and_work_record_by_record() {
    let model = Plain { head: LinearConfig::new(4, 3).init(&device()) };
    let message = refusal(&model, 4, flat(1.0));
    contains(&message, &["'head.weight' of Linear", "LinearConfig::private", "materialised"]);
    assert_eq!(refusal(&model, 4, flat(1.0).materialised()), "accepted");
}

#[derive(Module, Debug)]
struct Normed {
    first: PrivateLinear,
    norm: BatchNorm,
}

impl Classify for Normed {
    fn logits(&self, x: Tensor<2>) -> Tensor<2> {
        self.norm.forward(self.first.forward(x))
    }
}

#[test]
fn ordinary_batch_norm_is_refused_by_name_on_both_paths_unless_frozen() {
    let model = Normed {
        first: LinearConfig::new(4, 3).private(&device()),
        norm: BatchNormConfig::new(3).init(&device()),
    };
    for plan in [flat(1.0), flat(1.0).materialised()] {
        let message = refusal(&model, 4, plan);
        contains(&message, &["'norm', a BatchNorm", "mixes records", "BatchNormConfig::private"]);
    }
    let frozen = Normed { norm: model.norm.clone().freeze(), ..model };
    assert_eq!(refusal(&frozen, 4, flat(1.0)), "accepted");
}

/// A custom parameter, used by Burn's operations.
#[derive(Module, Debug)]
struct Bare {
    head: PrivateLinear,
    scale: Param<Tensor<1>>,
}

impl Classify for Bare {
    fn logits(&self, x: Tensor<2>) -> Tensor<2> {
        self.head.forward(x) * self.scale.val().unsqueeze()
    }
}

/// A type name that begins with "Private" is not enough.
#[derive(Module, Debug)]
struct PrivateInName {
    scale: Param<Tensor<1>>,
}

#[derive(Module, Debug)]
struct Disguised {
    head: PrivateLinear,
    hidden: PrivateInName,
}

impl Classify for Disguised {
    fn logits(&self, x: Tensor<2>) -> Tensor<2> {
        self.head.forward(x) * self.hidden.scale.val().unsqueeze()
    }
}

#[test]
fn parameters_outside_of_layers_are_named() {
    let head = LinearConfig::new(4, 3).private(&device());
    let scale = Param::from_tensor(Tensor::<1>::ones([3], &device()));
    let bare = Bare { head: head.clone(), scale: scale.clone() };
    contains(&refusal(&bare, 4, flat(1.0)), &["'scale' of Bare", "freeze it"]);
    let frozen = Bare { scale: scale.clone().set_require_grad(false), ..bare };
    assert_eq!(refusal(&frozen, 4, flat(1.0)), "accepted");
    let disguised = Disguised { head, hidden: PrivateInName { scale } };
    contains(&refusal(&disguised, 4, flat(1.0)), &["'hidden.scale' of PrivateInName"]);
}

#[derive(Module, Debug)]
struct Dilated {
    conv: PrivateConv2d,
}

impl Classify for Dilated {
    fn logits(&self, x: Tensor<2>) -> Tensor<2> {
        let [records, _] = x.dims();
        self.conv.forward(x.reshape([records, 1, 4, 4])).mean_dim(3).mean_dim(2).flatten(1, 3)
    }
}

#[test]
fn settings_without_a_kernel_are_named() {
    let config = Conv2dConfig::new([1, 3], [2, 2]);
    let model = Dilated { conv: config.clone().with_dilation([2, 2]).private(&device()) };
    contains(&refusal(&model, 16, flat(1.0)), &["PrivateConv2d", "dilation [2, 2]", "dilation 1"]);
    let model = Dilated { conv: config.private(&device()) };
    assert_eq!(refusal(&model, 16, flat(1.0)), "accepted");
}

/// Operations that couple records, which no type prevents.
#[derive(Module, Debug)]
struct Meddling {
    first: PrivateLinear,
    kind: usize,
}

impl Classify for Meddling {
    fn logits(&self, x: Tensor<2>) -> Tensor<2> {
        match self.kind {
            // Centred by the batch mean.
            0 => {
                let y = self.first.forward(x);
                y.clone() - y.mean_dim(0)
            }
            // Couples only the gradients.
            1 => {
                let y = self.first.forward(x);
                y.clone() + (y.clone() - y.detach()).sum_dim(0)
            }
            // Records and features swapped.
            2 => self.first.forward(x.transpose()).transpose(),
            // Records are not the first axis.
            _ => {
                let [records, features] = x.dims();
                self.first.forward(x.reshape([records * 2, features / 2])).reshape([records, 6])
            }
        }
    }
}

#[test]
fn operations_across_records_are_found() {
    let of = |kind, inputs, width, plan| {
        let outputs = if kind == 2 { 32 } else { 3 };
        let model = Meddling { first: LinearConfig::new(inputs, outputs).private(&device()), kind };
        refusal(&model, width, plan)
    };
    for kind in [0, 1] {
        contains(&of(kind, 4, 4, flat(1.0)), &["changes what the model makes of another record"]);
    }
    // 32 records of 32 features: the shapes fit, and only the values differ.
    contains(&of(2, 32, 32, flat(1.0)), &["changes what the model makes of another record"]);
    contains(&of(3, 2, 4, flat(1.0)), &["first axis", "64 instead of 32"]);
}

#[test]
fn outcomes_need_a_loss_and_a_value_for_each_example() {
    let (model, points) = (Mlp::new(&device()), Points::new(1, 12, None));
    let mean = |model: &Mlp, batch: Batch| {
        Outcome::new(cross_entropy(model.logits(batch.x), batch.y).mean())
    };
    let error = Trainer::new(&model, &points, flat(1.0), mean).err().unwrap();
    contains(&error.to_string(), &["1 losses for 32 examples"]);
    let metric = Metric::bounded("accuracy", 0.0, 1.0).unwrap();
    let plan = flat(1.0).metric(metric, BudgetShare::new(0.1).unwrap());
    let error = Trainer::new(&model, &points, plan, judge).err().unwrap();
    contains(&error.to_string(), &["metric 'accuracy'"]);
}

#[test]
fn a_model_with_nothing_to_train_is_refused() {
    let model = Mlp::new(&device()).no_grad();
    contains(&refusal(&model, 12, flat(1.0)), &["nothing is trained"]);
}

#[test]
fn batch_norm_needs_statistics_and_nothing_else_has_them() {
    let convs = Convs::new(&device());
    contains(&refusal(&convs, 36, flat(1.0)), &["TrainingPlan::statistics"]);
    let plan = flat(1.0).statistics(clip(1.0), BudgetShare::new(0.1).unwrap());
    contains(&refusal(&convs, 36, plan.clone().materialised()), &["TrainingPlan::statistics"]);
    contains(&refusal(&Mlp::new(&device()), 12, plan), &["TrainingPlan::statistics"]);
}

#[derive(Module, Debug)]
struct Dropped {
    first: PrivateLinear,
    dropout: Dropout,
}

impl Classify for Dropped {
    fn logits(&self, x: Tensor<2>) -> Tensor<2> {
        self.dropout.forward(self.first.forward(x))
    }
}

#[test]
fn randomness_that_is_not_ours_leaves_a_run_unverified() {
    let model = Dropped {
        first: LinearConfig::new(4, 3).private(&device()),
        dropout: DropoutConfig::new(0.5).init(),
    };
    let points = Points::new(1, 4, None);
    for plan in [flat(1.0), flat(1.0).materialised()] {
        let mut trainer = Trainer::new(&model, &points, plan, judge).unwrap();
        assert_eq!(trainer.numerics(), Numerics::Unverified);
        let mut header = trainer.header(Adjacency::AddRemove);
        assert_eq!(header.numerics, Numerics::Unverified);
        // A header that claims more is refused.
        header.numerics = Numerics::Exact;
        let mut run = Run::open(MemoryLedger::new(), header).unwrap();
        let round = trainer.event(&AllRecords).unwrap();
        let permit = run.reserve(&round, 1).unwrap().next().unwrap();
        let refused = trainer.round(&model, permit, &mut AllRecords);
        assert!(matches!(refused, Err(TrainError::Numerics)));
    }
}

#[test]
fn errors_say_nothing_but_names_and_rules() {
    let error = ModelError::CrossRecord.to_string();
    contains(&error, &["first axis", "batch norm"]);
}
