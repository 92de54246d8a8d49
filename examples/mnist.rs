//! The bundled MNIST dataset as records, and the epsilon of a ledger.

use std::error::Error;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use flate2::read::GzDecoder;
use veilgrad::accounting::{Accountant, Composition, Pld};
use veilgrad::events::{Event, Folded};
use veilgrad::nn::Records;
use veilgrad::prelude::*;

const PIXELS: usize = 784;

/// Images with pixels in [0, 1], and their labels.
pub(crate) struct Images {
    pixels: Vec<u8>,
    labels: Vec<u8>,
}

impl Images {
    /// The 60,000 training images.
    pub(crate) fn train() -> Result<Self, Box<dyn Error>> {
        Self::open("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz")
    }

    /// The 10,000 public test images.
    pub(crate) fn test() -> Result<Self, Box<dyn Error>> {
        Self::open("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz")
    }

    fn open(images: &str, labels: &str) -> Result<Self, Box<dyn Error>> {
        // Skips the IDX headers.
        Ok(Self { pixels: read(images)?.split_off(16), labels: read(labels)?.split_off(8) })
    }
}

impl Records for Images {
    fn count(&self) -> u64 {
        self.labels.len() as u64
    }

    fn read(&self, record: u64, _: usize, input: &mut [f32], target: &mut [f32]) {
        let record = record as usize;
        for (input, pixel) in input.iter_mut().zip(&self.pixels[record * PIXELS..]) {
            *input = f32::from(*pixel) / 255.0;
        }
        target[0] = f32::from(self.labels[record]);
    }
}

fn read(name: &str) -> Result<Vec<u8>, Box<dyn Error>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../data/mnist").join(name);
    let mut bytes = Vec::new();
    GzDecoder::new(File::open(path)?).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The epsilon of all rounds charged to a ledger, rounded up.
pub(crate) fn epsilon(ledger: &impl LedgerStore, delta: f64) -> Result<f64, Box<dyn Error>> {
    let mut rounds = Vec::new();
    ledger.visit(&mut |event| {
        if let Event::Reserve(reservation) = event {
            rounds.push(Folded::try_from(&reservation.charge));
        }
    })?;
    let rounds = rounds.into_iter().collect::<Result<Vec<_>, _>>()?;
    let composition = Composition::of(rounds, Adjacency::AddRemove)?;
    let found = Pld.epsilon(&composition, Delta::new(delta)?)?;
    Ok((found.epsilon * 1e4).ceil() / 1e4)
}
