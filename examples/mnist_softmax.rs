//! Private training in a custom loop: softmax regression on the bundled MNIST.
//!
//! The loop computes each record's gradient, and whether its prediction is right, as without privacy. Three
//! calls are new: `reserve` before data is read, `add` per record, `release` per round. The training accuracy
//! is a private metric of the same round; the test set is public.
//!
//! `cargo run --release --example mnist_softmax [ROUNDS]`
#![allow(clippy::print_stdout)]

use std::error::Error;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use flate2::read::GzDecoder;
use veilgrad::prelude::*;

const PIXELS: usize = 784;
const CLASSES: usize = 10;
const ROUNDS: u64 = 400;
const EXPECTED_BATCH: f64 = 6000.0;
const RATE: f64 = 0.1;
const THREADS: usize = 2;
const LEARNING_RATE: f32 = 4.0;
const MOMENTUM: f32 = 0.9;

fn main() -> Result<(), Box<dyn Error>> {
    let train = Images::open("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz")?;
    let test = Images::open("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz")?;

    let rounds = std::env::args().nth(1).map_or(Ok(ROUNDS), |rounds| rounds.parse())?;

    // Public parameters. The denominator is declared, not computed from the data.
    let expected = PublicCount::new(EXPECTED_BATCH)?;
    let accuracy = Metric::bounded("accuracy", 0.0, 1.0)?;
    let structure = Structure::new([
        ("weight".to_owned(), PIXELS * CLASSES),
        ("bias".to_owned(), CLASSES),
        accuracy.vector(),
    ])?;
    let groups = vec![
        Group::new("gradient", ["weight", "bias"], ClipNorm::new(1.0)?).average(expected),
        accuracy.group(expected)?.share(BudgetShare::new(0.01)?),
    ];
    let allocation = Allocation::Proportional(NoiseMultiplier::new(3.0)?);
    let plan = RoundPlan::new(structure, groups, allocation)?;

    // Declare all rounds, and charge them before the first.
    let mut sampler = PoissonSampler::new(SampleRate::new(RATE)?);
    let round = plan.round(&sampler)?;
    let header = RunHeader::new(RecordUnit::Example, Adjacency::AddRemove)
        .with_plan(vec![Rounds { count: rounds, round: round.clone() }]);
    let mut run = Run::open(MemoryLedger::new(), header)?;
    let permits = run.reserve(&round, rounds)?;

    let mut model = Model::new();
    for permit in permits {
        let round = permit.number() + 1;
        let noise = Noise::draw(&plan)?;
        let sample = Sample::draw(permit, &mut sampler, train.labels.len() as u64)?;
        let sum = gradients(&plan, &model, &train, &accuracy, &sample)?;
        let estimates = sum.release(sample, noise)?;
        model.step(&estimates)?;
        if round % 100 == 0 {
            let training = accuracy.decode(&estimates).ok_or("no accuracy")?;
            println!("round {round}: training accuracy {:.3} (private estimate)", training[0]);
        }
    }
    run.close()?;
    println!("test accuracy {:.4}", model.accuracy(&test));
    println!(
        "{rounds} rounds, Poisson rate {RATE}, noise multiplier {:.3}",
        plan.noise_multiplier()?.get()
    );
    Ok(())
}

/// The clipped sum over the sample, computed on several threads: any split of the records gives the same bits.
fn gradients(
    plan: &RoundPlan,
    model: &Model,
    train: &Images,
    accuracy: &Metric,
    sample: &Sample,
) -> Result<ClippedSum, Box<dyn Error>> {
    let ids: Vec<usize> = sample.ids().map(|id| id as usize).collect();
    let partial_sum = |ids: &[usize]| -> Result<ClippedSum, veilgrad::mechanism::SumError> {
        let mut sum = sample.begin(plan);
        let mut weight = vec![0f32; PIXELS * CLASSES];
        for &id in ids {
            let (image, label) = train.record(id);
            let (error, right) = model.error(image, label);
            for (row, error) in weight.chunks_exact_mut(PIXELS).zip(error) {
                for (gradient, pixel) in row.iter_mut().zip(image) {
                    *gradient = error * pixel;
                }
            }
            sum.add(&[&weight, &error, &accuracy.encode(f64::from(u8::from(right)))])?;
        }
        Ok(sum)
    };
    let parts: Vec<_> = std::thread::scope(|scope| {
        let chunks = ids.chunks(ids.len().div_ceil(THREADS).max(1));
        let workers: Vec<_> = chunks.map(|ids| scope.spawn(move || partial_sum(ids))).collect();
        workers.into_iter().map(|worker| worker.join()).collect()
    });
    let mut sum = sample.begin(plan);
    for part in parts {
        sum.merge(part.map_err(|_| "a worker panicked")??)?;
    }
    Ok(sum)
}

/// A softmax regression with momentum.
struct Model {
    weight: Vec<f32>,
    bias: Vec<f32>,
    weight_velocity: Vec<f32>,
    bias_velocity: Vec<f32>,
}

impl Model {
    fn new() -> Self {
        let (weight, bias) = (vec![0.0; PIXELS * CLASSES], vec![0.0; CLASSES]);
        Self { weight_velocity: weight.clone(), bias_velocity: bias.clone(), weight, bias }
    }

    /// The gradient of the loss by the logits, and whether the prediction is right.
    fn error(&self, image: &[f32], label: u8) -> ([f32; CLASSES], bool) {
        let mut logits = [0f32; CLASSES];
        for ((logit, row), bias) in
            logits.iter_mut().zip(self.weight.chunks_exact(PIXELS)).zip(&self.bias)
        {
            *logit = row.iter().zip(image).map(|(w, x)| w * x).sum::<f32>() + bias;
        }
        let largest = logits.iter().copied().fold(f32::MIN, f32::max);
        let right = logits[usize::from(label)] == largest;
        let total: f32 = logits.iter().map(|logit| (logit - largest).exp()).sum();
        let mut error = logits.map(|logit| (logit - largest).exp() / total);
        error[usize::from(label)] -= 1.0;
        (error, right)
    }

    /// An SGD step with momentum; accepts released estimates alone.
    fn step(&mut self, estimates: &Released<Estimates>) -> Result<(), Box<dyn Error>> {
        for (name, parameters, velocity) in [
            ("weight", &mut self.weight, &mut self.weight_velocity),
            ("bias", &mut self.bias, &mut self.bias_velocity),
        ] {
            let gradient = estimates.vector(name).ok_or("a vector is missing")?;
            for ((parameter, velocity), gradient) in
                parameters.iter_mut().zip(velocity).zip(gradient.iter())
            {
                *velocity = MOMENTUM * *velocity + gradient as f32;
                *parameter -= LEARNING_RATE * *velocity;
            }
        }
        Ok(())
    }

    fn accuracy(&self, images: &Images) -> f64 {
        let count = images.labels.len();
        let right = (0..count).filter(|&id| {
            let (image, label) = images.record(id);
            self.error(image, label).1
        });
        right.count() as f64 / count as f64
    }
}

/// Images with pixels in [0, 1], and their labels.
struct Images {
    pixels: Vec<f32>,
    labels: Vec<u8>,
}

impl Images {
    fn open(images: &str, labels: &str) -> Result<Self, Box<dyn Error>> {
        // Skips the IDX headers.
        let pixels = read(images)?.split_off(16);
        let labels = read(labels)?.split_off(8);
        Ok(Self { pixels: pixels.iter().map(|&p| f32::from(p) / 255.0).collect(), labels })
    }

    fn record(&self, id: usize) -> (&[f32], u8) {
        (&self.pixels[id * PIXELS..(id + 1) * PIXELS], self.labels[id])
    }
}

fn read(name: &str) -> Result<Vec<u8>, Box<dyn Error>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../data/mnist").join(name);
    let mut bytes = Vec::new();
    GzDecoder::new(File::open(path)?).read_to_end(&mut bytes)?;
    Ok(bytes)
}
