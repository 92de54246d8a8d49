//! Private datasets.

/// A private dataset: access to its records. Open for implementors.
///
/// A record is what the guarantee protects: an example, a microbatch or a user. It has one or more
/// examples, each with an input and a target. What an implementation returns is never printed.
pub trait Records: Sync {
    /// How many records there are. Private under add/remove adjacency.
    fn count(&self) -> u64;

    /// How many examples a record has; one, unless a record is a microbatch or a user.
    fn examples(&self, _record: u64) -> usize {
        1
    }

    /// The weight of a record, if the plan has weights. By default the number of its examples.
    fn weight(&self, record: u64) -> f64 {
        self.examples(record) as f64
    }

    /// Writes the input and the target of an example. Both are zero before, so a short example may leave
    /// values out. Must depend on this record alone.
    fn read(&self, record: u64, example: usize, input: &mut [f32], target: &mut [f32]);
}

/// A private dataset in memory, with one example per record.
///
/// # Example
/// ```
/// use veilgrad_nn::{InMemory, Records};
///
/// // Two records of three inputs, and a class each.
/// let records = InMemory::new(vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 3, vec![0.0, 1.0], 1);
/// assert_eq!(records.count(), 2);
/// let (mut input, mut target) = ([0.0; 3], [0.0]);
/// records.read(1, 0, &mut input, &mut target);
/// assert_eq!((input, target), ([4.0, 5.0, 6.0], [1.0]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct InMemory {
    inputs: Vec<f32>,
    targets: Vec<f32>,
    shape: (usize, usize),
}

impl InMemory {
    /// Inputs of `input` numbers and targets of `target` numbers, one record after the other. An
    /// incomplete last record is ignored.
    pub fn new(inputs: Vec<f32>, input: usize, targets: Vec<f32>, target: usize) -> Self {
        Self { inputs, targets, shape: (input.max(1), target.max(1)) }
    }
}

impl Records for InMemory {
    fn count(&self) -> u64 {
        let (inputs, targets) = (self.inputs.len(), self.targets.len());
        (inputs / self.shape.0).min(targets / self.shape.1) as u64
    }

    fn read(&self, record: u64, _: usize, input: &mut [f32], target: &mut [f32]) {
        let copy_row = |values: &'_ [f32], length: usize, to: &mut [f32]| {
            let from = values.chunks_exact(length).nth(record as usize);
            for (to, from) in to.iter_mut().zip(from.unwrap_or(&[])) {
                *to = *from;
            }
        };
        copy_row(&self.inputs, self.shape.0, input);
        copy_row(&self.targets, self.shape.1, target);
    }
}

/// Microbatches: joins every `size` consecutive examples of a dataset into one record, whose average
/// gradient is clipped. The last record may have fewer.
///
/// # Guarantee
/// The microbatch is what is protected. Replacing a single example inside it moves the sum by up to
/// twice the clip norm. Adding or removing an example is not covered: membership depends on position,
/// so every later microbatch may change.
///
/// # Example
/// ```
/// use veilgrad_nn::{InMemory, Microbatches, Records};
///
/// let examples = InMemory::new(vec![0.0; 7], 1, vec![0.0; 7], 1);
/// let records = Microbatches::new(examples, std::num::NonZeroU32::new(3).ok_or("zero")?);
/// assert_eq!(records.count(), 3);
/// assert_eq!(records.examples(2), 1); // the last one is smaller
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Microbatches<R> {
    records: R,
    size: std::num::NonZeroU32,
}

impl<R: Records> Microbatches<R> {
    /// Joins records that have one example each.
    pub const fn new(records: R, size: std::num::NonZeroU32) -> Self {
        Self { records, size }
    }
}

impl<R: Records> Records for Microbatches<R> {
    fn count(&self) -> u64 {
        self.records.count().div_ceil(u64::from(self.size.get()))
    }

    fn examples(&self, record: u64) -> usize {
        let size = u64::from(self.size.get());
        let rest = self.records.count().saturating_sub(record.saturating_mul(size));
        rest.min(size) as usize
    }

    fn read(&self, record: u64, example: usize, input: &mut [f32], target: &mut [f32]) {
        let inner = record * u64::from(self.size.get()) + example as u64;
        self.records.read(inner, 0, input, target);
    }
}

impl<R: Records + ?Sized> Records for &R {
    fn count(&self) -> u64 {
        (**self).count()
    }

    fn examples(&self, record: u64) -> usize {
        (**self).examples(record)
    }

    fn weight(&self, record: u64) -> f64 {
        (**self).weight(record)
    }

    fn read(&self, record: u64, example: usize, input: &mut [f32], target: &mut [f32]) {
        (**self).read(record, example, input, target);
    }
}
