//! Random records: ordinary, extreme and unusable ones.

use veilgrad_nn::{Loss, Model, Records};

use crate::common::SplitMix64;

/// One example; reading it panics unless it is `readable`. An input may be shorter than the model's.
#[derive(Clone)]
pub(crate) struct Example {
    input: Vec<f32>,
    target: Vec<f32>,
    readable: bool,
}

impl Example {
    /// Whether the input can be read and is finite, whatever the target.
    pub(crate) fn has_input(&self) -> bool {
        self.readable && self.input.iter().all(|value| value.is_finite())
    }

    pub(crate) fn is_zero(&self) -> bool {
        self.input.iter().all(|value| *value == 0.0)
    }

    /// Leaves out the last numbers: they are zeros for its reader.
    pub(crate) fn shorten(&mut self, length: usize) {
        self.input.truncate(length);
    }
}

/// The examples of a record.
pub(crate) type Record = Vec<Example>;

/// Records in memory. Reading an unreadable example panics with its values in the message.
pub(crate) struct Data(pub(crate) Vec<Record>);

impl Records for Data {
    fn count(&self) -> u64 {
        self.0.len() as u64
    }

    fn examples(&self, record: u64) -> usize {
        self.0[record as usize].len()
    }

    fn read(&self, record: u64, example: usize, input: &mut [f32], target: &mut [f32]) {
        let found = &self.0[record as usize][example];
        assert!(found.readable, "{:?}", found.input);
        input[..found.input.len()].copy_from_slice(&found.input);
        target.copy_from_slice(&found.target);
    }
}

/// What a number of an input means to the model.
#[derive(Clone, Copy)]
pub(crate) enum Input {
    Number,
    /// An index below this.
    Token(usize),
    /// An index below this, or -1 for none.
    Category(usize),
}

impl Input {
    fn entries(self) -> Option<usize> {
        match self {
            Self::Number => None,
            Self::Token(entries) | Self::Category(entries) => Some(entries),
        }
    }

    fn usable(self, random: &mut SplitMix64) -> f32 {
        match self {
            Self::Number => 2.0 * random.unit() - 0.5,
            Self::Token(entries) => random.below(entries) as f32,
            Self::Category(entries) => random.below(entries + 1) as f32 - 1.0,
        }
    }
}

/// The shape of examples: the model's inputs and targets.
pub(crate) struct Shape {
    inputs: Vec<Input>,
    outputs: usize,
    loss: Loss,
}

impl Shape {
    pub(crate) fn new(model: &Model, inputs: Vec<Input>, loss: Loss) -> Self {
        Self { inputs, outputs: model.output().iter().product(), loss }
    }

    pub(crate) fn example(&self, random: &mut SplitMix64) -> Example {
        let input = self.inputs.iter().map(|input| input.usable(random)).collect();
        let target = match self.loss {
            Loss::SoftmaxCrossEntropy => vec![(random.next() % self.outputs as u64) as f32],
            Loss::Logistic => (0..self.outputs).map(|_| random.unit()).collect(),
            _ => (0..self.outputs).map(|_| 4.0 * random.unit() - 2.0).collect(),
        };
        Example { input, target, readable: true }
    }

    /// An example that must contribute zero: not finite, a target out of range, or unreadable.
    pub(crate) fn unusable(&self, random: &mut SplitMix64) -> Example {
        let mut example = self.example(random);
        let not_finite = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY][random.below(3)];
        let outside = match self.loss {
            Loss::SoftmaxCrossEntropy => {
                [-1.0, self.outputs as f32, 0.5, 1e30, f32::NAN, f32::NEG_INFINITY][random.below(6)]
            }
            Loss::Logistic => [-0.5, 1.5, f32::NAN, f32::MAX][random.below(4)],
            _ => f32::INFINITY,
        };
        let place = random.below(self.inputs.len());
        match random.below(8) {
            0 => example.readable = false,
            1 | 2 => {
                let place = random.below(example.target.len());
                example.target[place] = outside;
            }
            3 => example.input.fill(not_finite),
            4 => {
                example.input[place] = match self.inputs[place].entries() {
                    Some(entries) => [entries as f32, -2.0, 0.5, 1e30, f32::MIN][random.below(5)],
                    None => not_finite,
                }
            }
            _ => example.input[place] = not_finite,
        }
        example
    }

    /// A finite example with huge, tiny or zero values.
    pub(crate) fn extreme(&self, random: &mut SplitMix64) -> Example {
        let mut example = self.example(random);
        let factor = [1e2, 1e4, 1e10, 1e19, 1e30, f32::MAX, 1e-20, 1e-42, 0.0][random.below(9)];
        let only_some = random.below(2) == 0;
        for (value, input) in example.input.iter_mut().zip(&self.inputs) {
            if input.entries().is_none() && (!only_some || random.below(4) == 0) {
                *value = (*value * factor).clamp(f32::MIN, f32::MAX);
            }
        }
        if matches!(self.loss, Loss::SquaredError | Loss::Huber { .. }) {
            let place = random.below(example.target.len());
            example.target[place] = [1e3, -1e10, 1e18, f32::MAX, 1e-40][random.below(5)];
        }
        example
    }
}
