//! Weights, trained models and checkpoints.

use std::cell::RefCell;

use veilgrad_events::{ClipNorm, Head, History, LedgerError, NoiseMultiplier, PublicCount};
use veilgrad_nn::{
    Adam, Clipping, Layer, Loss, Model, PerWeight, Performance, PreconditionPlan, Preconditioning,
    Schedule, Trainer, TrainingPlan, UnverifiedCheckpoint,
};

use crate::scratch;

/// The model of the corpus.
pub(crate) fn network() -> Model {
    let layers = [Layer::linear(3), Layer::BatchNorm, Layer::Relu, Layer::linear(2)];
    Model::new(&[4], layers, 1).expect("a model")
}

fn bits(model: &Model) -> Vec<u32> {
    model.parameters().flat_map(|(_, _, values)| values).map(|value| value.to_bits()).collect()
}

fn check(model: &Model) {
    let mut values = model.parameters().flat_map(|(_, _, values)| values);
    assert!(values.all(|value| value.is_finite()), "a weight that is not finite was taken");
}

/// Weights that are accepted are finite and survive a round trip.
pub(crate) fn weights(bytes: &[u8]) {
    let _ = Model::text_of(bytes);
    let mut model = network();
    if model.load_safetensors(bytes).is_err() {
        return;
    }
    check(&model);
    let mut again = network();
    again.load_safetensors(&model.to_safetensors().expect("a file")).expect("what was written");
    assert_eq!(bits(&again), bits(&model), "weights changed on their way through a file");
}

/// The same for a file from which `veilgrad predict` builds a model.
pub(crate) fn trained(bytes: &[u8]) {
    if let Ok(model) = veilgrad_cli::input::model(&scratch::file("model.safetensors", bytes)) {
        check(&model);
    }
}

/// The preconditioning of the corpus: one round of the mean, and two of directions.
pub(crate) fn phase() -> Preconditioning {
    let noise = NoiseMultiplier::new(1.0).expect("noise");
    let plan = PreconditionPlan {
        width: 4,
        records: PublicCount::new(8.0).expect("a count"),
        mean: noise,
        directions: noise,
        count: 2,
        rounds: 2,
        floor: 0.1,
    };
    Preconditioning::new(plan, Performance { threads: 1, ..Performance::default() })
        .expect("a plan")
}

/// Released values of preconditioning that are accepted survive a round trip; a phase that refuses them is unchanged.
pub(crate) fn precondition(bytes: &[u8]) {
    let (mut found, mut again) = (phase(), phase());
    let unchanged = found.to_bytes().expect("bytes");
    let accepted = found.restore(bytes).is_ok();
    let written = found.to_bytes().expect("bytes");
    assert!(accepted || written == unchanged, "values that do not fit changed something");
    again.restore(&written).expect("what was written");
    assert_eq!(again.to_bytes().expect("bytes"), written, "values changed on their way");
    assert_eq!(again.events().is_ok_and(|left| left.is_empty()), again.is_done());
    if let Some(whitening) = again.whitening() {
        whitening.apply(&mut [0.5, -1.0, 1e30, 0.0]);
    }
}

/// A ledger that claims to have every head.
struct AnyHead;

impl History for AnyHead {
    fn contains(&self, _: &Head) -> Result<(), LedgerError> {
        Ok(())
    }
}

type Trained = Trainer<PerWeight<Adam, 2>>;

/// The trainer of the corpus.
pub(crate) fn trainer() -> Trained {
    let model = Model::new(&[4], [Layer::linear(2)], 1).expect("a model");
    let clipping = Clipping::Flat(ClipNorm::new(1.0).expect("a norm"));
    let noise = NoiseMultiplier::new(1.0).expect("noise");
    let plan = TrainingPlan::new(clipping, noise, PublicCount::new(8.0).expect("a count"));
    let plan = plan.canaries(2);
    let (loss, rate) = (Loss::SoftmaxCrossEntropy, Schedule::Constant(0.1));
    let performance = Performance { threads: 1, ..Performance::default() };
    let trainer = Trainer::new(model, loss, plan, Adam::standard(), rate, performance);
    trainer.expect("a trainer").averaging(0.9)
}

thread_local! {
    static TRAINER: RefCell<Option<Trained>> = const { RefCell::new(None) };
}

/// A checkpoint that is accepted has finite weights and survives a round trip.
pub(crate) fn checkpoint(bytes: &[u8]) {
    let path = scratch::file("checkpoint.safetensors", bytes);
    let Ok(found) = UnverifiedCheckpoint::read(&path) else { return };
    let (head, round) = (found.head().cloned(), found.round());
    let _ = found.bytes("account");
    let ledger: Option<&dyn History> = if head.is_some() { Some(&AnyHead) } else { None };
    let checkpoint = found.verify(ledger).expect("a ledger that has every row");
    TRAINER.with_borrow_mut(|trainer| {
        let trainer = trainer.get_or_insert_with(self::trainer);
        let before = trainer.rounds();
        if trainer.restore(&checkpoint).is_err() {
            assert_eq!(
                trainer.rounds(),
                before,
                "a checkpoint that does not fit changed something"
            );
            return;
        }
        check(trainer.model());
        check(&trainer.averaged_model().expect("an average"));
        assert_eq!(round.expect("a number of rounds"), trainer.rounds());
        trainer.save(&path, head.as_ref()).expect("a file");
        let again = UnverifiedCheckpoint::read(&path).expect("what was written");
        assert_eq!(again.head().cloned(), head, "the head changed on its way through a file");
        let model = bits(trainer.model());
        trainer.restore(&again.verify(ledger).expect("a ledger")).expect("what was written");
        assert_eq!(bits(trainer.model()), model);
    });
}
