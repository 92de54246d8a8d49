//! The bundled MNIST dataset as records for Burn.

use std::error::Error;

use burn::tensor::{Device, Int, Tensor, TensorData};
use veilgrad::nn::Records as _;
use veilgrad_burn::{Records, accuracy};

#[allow(dead_code)] // Not every example uses all of it.
#[path = "../../../../examples/mnist.rs"]
mod mnist;

#[allow(unused_imports)]
pub(crate) use mnist::epsilon;

const PIXELS: usize = 784;

/// Images with pixels in [0, 1], and their labels.
pub(crate) struct Digits(mnist::Images);

pub(crate) struct Batch {
    /// `[images, 784]`.
    pub(crate) images: Tensor<2>,
    pub(crate) labels: Tensor<1, Int>,
}

impl Digits {
    /// The 60,000 training images.
    pub(crate) fn train() -> Result<Self, Box<dyn Error>> {
        Ok(Self(mnist::Images::train()?))
    }

    /// The accuracy of a model on the 10,000 public test images.
    #[allow(dead_code)]
    pub(crate) fn test(model: impl Fn(Tensor<2>) -> Tensor<2>) -> Result<f64, Box<dyn Error>> {
        let (test, device) = (Self(mnist::Images::test()?), Device::flex());
        let mut right = 0.0;
        for first in (0..test.count()).step_by(500) {
            let batch =
                test.batch((first..first + 500).map(|id| test.read(id, 0)).collect(), &device);
            let hits = accuracy(model(batch.images), batch.labels).sum();
            right += f64::from(hits.into_scalar::<f32>());
        }
        Ok(right / test.count() as f64)
    }

    /// A batch for training without privacy.
    #[allow(dead_code)]
    pub(crate) fn next(&self, round: u64, size: u64, device: &Device) -> Batch {
        let id = |i: u64| (round * size + i).wrapping_mul(2_654_435_761) % self.count();
        self.batch((0..size).map(|i| self.read(id(i), 0)).collect(), device)
    }
}

/// The pixels and the label of one image.
#[allow(dead_code)]
pub(crate) fn numbers((pixels, label): &([f32; PIXELS], i32)) -> (Vec<f32>, Vec<f32>) {
    (pixels.to_vec(), vec![*label as f32])
}

impl Records for Digits {
    type Example = ([f32; PIXELS], i32);
    type Batch = Batch;

    fn count(&self) -> u64 {
        self.0.count()
    }

    fn read(&self, record: u64, _: usize) -> Self::Example {
        let (mut pixels, mut label) = ([0.0; PIXELS], [0.0]);
        self.0.read(record, 0, &mut pixels, &mut label);
        (pixels, label[0] as i32)
    }

    fn made_up(&self, number: u64) -> Self::Example {
        let pixel = |i: usize| (i as u64 * (number + 7) % 256) as f32 / 255.0;
        (std::array::from_fn(pixel), (number % 10) as i32)
    }

    fn batch(&self, examples: Vec<Self::Example>, device: &Device) -> Batch {
        let count = examples.len();
        let (images, labels): (Vec<_>, Vec<_>) = examples.into_iter().unzip();
        let images = TensorData::new(images.concat(), [count, PIXELS]);
        Batch {
            images: Tensor::from_data(images, device),
            labels: Tensor::from_data(TensorData::new(labels, [count]), device),
        }
    }
}
