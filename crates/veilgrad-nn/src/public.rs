//! Evaluation and training **without privacy**, for public data.
//!
//! Nothing here is private. Use it on public test sets, and to pretrain on public data.

use crate::model::Prepared;
use crate::tile::{Tile, best_tile, tile_of};
use crate::{Loss, Model, Performance, Records};

/// Accuracy and loss of a model on public records.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Evaluation {
    /// The fraction of right predictions.
    pub accuracy: f64,
    /// The average loss.
    pub loss: f64,
}

/// Evaluates a model on **public** records, without noise.
///
/// # Example
/// ```
/// use veilgrad_nn::public::evaluate;
/// use veilgrad_nn::{InMemory, Layer, Loss, Model};
///
/// let model = Model::new(&[1], [Layer::linear(2)], 1)?;
/// let test = InMemory::new(vec![-1.0, 1.0], 1, vec![0.0, 1.0], 1);
/// let result = evaluate(&model, Loss::SoftmaxCrossEntropy, &test);
/// assert!((0.0..=1.0).contains(&result.accuracy) && result.loss > 0.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn evaluate<R: Records>(model: &Model, loss: Loss, records: &R) -> Evaluation {
    let (mut right, mut losses) = (0.0, 0.0);
    for_each_tile(model, loss, records, |tile, prepared, count| {
        tile.forward(model, prepared);
        for judgement in tile.judgements.iter().take(count).flatten() {
            right += f64::from(judgement.right);
            losses += f64::from(judgement.loss);
        }
    });
    let count = (records.count() as f64).max(1.0);
    Evaluation { accuracy: right / count, loss: losses / count }
}

/// Calls `visit` with tiles of all records (the first example of each) and the number of records in the tile.
fn for_each_tile<R: Records>(
    model: &Model,
    loss: Loss,
    records: &R,
    mut visit: impl FnMut(&mut Tile, &Prepared, usize),
) {
    let mut tile = Tile::new(model, loss, best_tile(model), true);
    let mut prepared = Prepared::default();
    prepared.prepare(model);
    let ids: Vec<u64> = (0..records.count()).collect();
    for ids in ids.chunks(tile.capacity) {
        tile.load(ids.len(), |index, input, target| records.read(ids[index], 0, input, target));
        visit(&mut tile, &prepared, ids.len());
    }
}

/// The outputs of a model for **public** records: of the first example of each, one record after the
/// other. NaN for an input that is not finite. Targets are ignored.
pub fn outputs<R: Records>(model: &Model, records: &R) -> Vec<f32> {
    let mut outputs = Vec::new();
    for_each_tile(model, Loss::SoftmaxCrossEntropy, records, |tile, prepared, count| {
        tile.run(model, prepared);
        for row in 0..count {
            // ReLU and max pooling could turn an input that is not finite into a finite output.
            let sound = tile.input(row).iter().all(|value| value.is_finite());
            let value = |value: &f32| if sound { *value } else { f32::NAN };
            outputs.extend(tile.output(row).iter().map(value));
        }
    });
    outputs
}

/// Plain SGD on **public** records.
///
/// # Example
/// ```
/// use veilgrad_nn::public::{PublicTrainer, evaluate};
/// use veilgrad_nn::{InMemory, Layer, Loss, Model, Performance};
///
/// let model = Model::new(&[1], [Layer::linear(2)], 1)?;
/// let public = InMemory::new(vec![-1.0, 1.0], 1, vec![0.0, 1.0], 1);
/// let mut trainer = PublicTrainer::new(model, Loss::SoftmaxCrossEntropy, Performance::default());
/// for _ in 0..100 {
///     trainer.step(&public, &[0, 1], 1.0);
/// }
/// assert_eq!(evaluate(&trainer.into_model(), Loss::SoftmaxCrossEntropy, &public).accuracy, 1.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct PublicTrainer {
    model: Model,
    workers: Vec<Tile>,
    prepared: Prepared,
}

impl PublicTrainer {
    /// A trainer for this model and loss.
    pub fn new(model: Model, loss: Loss, performance: Performance) -> Self {
        let tile = tile_of(performance, &model);
        let worker = |_| Tile::new(&model, loss, tile, true);
        let workers = (0..performance.workers()).map(worker).collect();
        Self { model, workers, prepared: Prepared::default() }
    }

    /// The trained model.
    #[must_use]
    pub fn into_model(self) -> Model {
        self.model
    }

    /// One SGD step on the average gradient of some public records.
    pub fn step<R: Records>(&mut self, records: &R, ids: &[u64], rate: f32) {
        self.prepared.prepare(&self.model);
        let (model, prepared) = (&self.model, &self.prepared);
        let share = ids.len().div_ceil(self.workers.len()).max(1);
        std::thread::scope(|scope| {
            let shares = ids.chunks(share).chain(std::iter::repeat(&[][..]));
            let work = |tile: &mut Tile, ids: &[u64]| {
                tile.gradients.iter_mut().for_each(|gradient| gradient.fill(0.0));
                for ids in ids.chunks(tile.capacity) {
                    let read = |index: usize, input: &mut [f32], target: &mut [f32]| {
                        records.read(ids[index], 0, input, target);
                    };
                    tile.load(ids.len(), read);
                    tile.forward(model, prepared);
                    tile.backward(model, prepared);
                }
            };
            let mut workers = self.workers.iter_mut().zip(shares);
            let first = workers.next();
            for (tile, ids) in workers {
                scope.spawn(move || work(tile, ids));
            }
            if let Some((tile, ids)) = first {
                work(tile, ids);
            }
        });
        let rate = rate / ids.len().max(1) as f32;
        for tile in &self.workers {
            self.model.sgd_step(tile.gradients.iter().enumerate(), rate);
        }
    }
}
