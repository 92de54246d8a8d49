//! The sum of one round: clipped records in, a noisy release out.

use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use pyo3::prelude::*;
use veilgrad_mechanism::{ClippedSum, Noise, NoiseError, PartialSum, RoundPlan, Sample, SumError};

use crate::array::{Array, Numbers, subtract};
use crate::capability::{Capability, Owner, lock, object, take};
use crate::error::{Raise, consumed, invalid, panicked, refused};
use crate::estimates::Estimates;
use crate::factors::{self, FactorBatch};
use crate::vectors::{Shapes, Vectors};

/// Batches of fewer numbers than this are added by one thread: others would cost more than they save.
const FEW_NUMBERS: usize = 1 << 18;
/// Noise of fewer coordinates than this is drawn when it is needed, not ahead on another thread.
const FEW_COORDINATES: usize = 1 << 14;

/// A sample, until it is released or left.
pub(crate) type Slot = Arc<Mutex<Option<Sample>>>;

/// The running sum of one round. What goes in is clipped and certified in exact arithmetic; `release` adds the noise, and
/// the sum without it cannot be read.
///
/// >>> plan, sampler = Plan({"x": 2}, [Group("x", "x", clip=1.0)], 0.001), Sampler.all()
/// >>> with Run() as run:
/// ...     (permit,) = run.reserve(plan, sampler, 1)
/// ...     with permit.draw(sampler, records=3) as sample:
/// ...         total = sample.begin(plan)
/// ...         total.add({"x": [3.0, 4.0]})  # clipped to (0.6, 0.8)
/// ...         total.add_batch({"x": [[0.1, 0.0], [0.0, float("nan")]]})  # NaN: that record contributes zero
/// ...         estimates = total.release()
/// >>> [round(float(value), 1) for value in estimates["x"]]
/// [0.7, 0.8]
/// >>> total.release()
/// Traceback (most recent call last):
/// veilgrad.Consumed: this sum was used already, or left its `with` block
#[pyclass(frozen, extends = Capability, module = "veilgrad")]
pub(crate) struct Sum {
    owner: Owner,
    sample: Slot,
    plan: RoundPlan,
    shapes: Arc<Shapes>,
    threads: usize,
    state: Mutex<Option<State>>,
}

struct State {
    /// One for each thread, at least one. They are merged at the end: the result has the same bits for any number.
    sums: Vec<ClippedSum>,
    /// The copy of a record that is added on its own, with its memory for the next one.
    record: Option<Vec<Vec<f32>>>,
    /// The batches in which some vectors came as factors, and which ones.
    factors: Option<(Vec<bool>, PartialSum)>,
    /// Noise that is drawn while records are computed.
    noise: Option<JoinHandle<Result<Noise, NoiseError>>>,
}

impl Sum {
    pub(crate) fn wrap(
        py: Python<'_>,
        sum: ClippedSum,
        sample: Slot,
        plan: RoundPlan,
        shapes: Arc<Shapes>,
        threads: Option<usize>,
    ) -> PyResult<Py<Self>> {
        let cores = || std::thread::available_parallelism().map_or(1, usize::from);
        let threads = threads.unwrap_or_else(cores).max(1);
        let dimension: usize = plan.structure().vectors().map(|(_, length)| length).sum();
        let noise = (threads > 1 && dimension >= FEW_COORDINATES).then(|| {
            let plan = plan.clone();
            std::thread::spawn(move || Noise::draw_on(&plan, 1))
        });
        let state = Mutex::new(Some(State { sums: vec![sum], record: None, factors: None, noise }));
        let owner = Owner::this()?;
        object(py, Self { owner, sample, plan, shapes, threads, state })
    }

    fn add_factors(&self, py: Python<'_>, batch: &FactorBatch<'_>) -> PyResult<()> {
        let mut state = lock(&self.state, "sum")?;
        let state = state.as_mut().ok_or_else(|| consumed("sum"))?;
        let forms = batch.forms();
        if state.factors.is_none() {
            let sample = lock(&self.sample, "sample")?;
            let sample = sample.as_ref().ok_or_else(|| consumed("sample"))?;
            let part = factors::begin(sample, &self.plan, &self.shapes, &forms);
            state.factors = Some((forms.clone(), part));
        }
        match &mut state.factors {
            Some((known, part)) if *known == forms => batch.add_to(py, part)?.map_err(Raise::raise),
            _ => Err(invalid("the same vectors must come as factors in all batches of a sum")),
        }
    }
}

#[pymethods]
impl Sum {
    /// Clips one record and adds it. ``vectors`` is a dict by name, a list in the order of the structure, or one array.
    /// A record with a value that is not finite contributes zero; a wrong shape raises ``ValueError``. ``minus``, vectors
    /// of the same shapes, is subtracted first: a model that a user trained minus the one that it started from is an update.
    #[pyo3(signature = (vectors, weight=1.0, *, minus=None))]
    fn add(
        &self,
        vectors: &Bound<'_, PyAny>,
        weight: f64,
        minus: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        self.owner.check_quickly()?;
        let vectors = Vectors::record(&self.shapes, vectors)?;
        let numbers = vectors.numbers()?;
        let minus = minus.map(|minus| Vectors::record(&self.shapes, minus)).transpose()?;
        let minus = minus.as_ref().map(Vectors::numbers).transpose()?;
        let mut state = lock(&self.state, "sum")?;
        let state = state.as_mut().ok_or_else(|| consumed("sum"))?;
        let sum = state.sums.first_mut().ok_or_else(|| consumed("sum"))?;
        let record = state.record.get_or_insert_with(|| empty_record(&self.shapes));
        match minus {
            None => copy_row(record, &numbers, 0),
            Some(minus) => {
                for ((to, one), other) in record.iter_mut().zip(&numbers).zip(&minus) {
                    subtract(one, other, to);
                }
            }
        }
        let record: Vec<&[f32]> = record.iter().map(Vec::as_slice).collect();
        sum.add_weighted(&record, weight).map_err(Raise::raise)
    }

    /// Clips the records of a batch one by one and adds them: the same arrays with one axis more, the first. ``weights``
    /// has one number for each record, 1 by default. Arrays are float32 or float64; each record is copied before it is
    /// read, so that other threads cannot change it meanwhile.
    ///
    /// In a dict, a matrix may come as a tuple of two arrays, ``(left, right)``: record i has the outer product of
    /// ``left[i]`` and ``right[i]``, as the gradients of linear layers are. They are not written out; the
    /// same vectors must come so in all batches of a sum, with no weights.
    #[pyo3(signature = (arrays, weights=None))]
    fn add_batch(
        &self,
        py: Python<'_>,
        arrays: &Bound<'_, PyAny>,
        weights: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        self.owner.check_quickly()?;
        if let Some(arrays) = factors::has_factors(arrays) {
            if weights.is_some() {
                return Err(invalid("batches with factors have no weights"));
            }
            return self.add_factors(py, &FactorBatch::new(&self.shapes, arrays)?);
        }
        let vectors = Vectors::batch(&self.shapes, arrays)?;
        let records = vectors.records;
        let weights = match weights {
            None => vec![1.0; records],
            Some(weights) => {
                let weights = Array::new(weights)?;
                if weights.shape() != [records] {
                    return Err(invalid(format!(
                        "there are not {records} weights, one for each record"
                    )));
                }
                weights.to_singles()?.into_iter().map(f64::from).collect()
            }
        };
        let numbers = vectors.numbers()?;
        let dimension: usize = self.plan.structure().vectors().map(|(_, length)| length).sum();
        let small = records.saturating_mul(dimension) < FEW_NUMBERS;
        let threads = if small { 1 } else { self.threads.min(records).max(1) };
        let mut state = lock(&self.state, "sum")?;
        let state = state.as_mut().ok_or_else(|| consumed("sum"))?;
        if state.sums.len() < threads {
            let sample = lock(&self.sample, "sample")?;
            let sample = sample.as_ref().ok_or_else(|| consumed("sample"))?;
            state.sums.resize_with(threads, || sample.begin(&self.plan));
        }
        let share = records.div_ceil(threads);
        let (shapes, numbers, weights) = (&self.shapes, &numbers, &weights);
        let sums = &mut state.sums[..threads];
        py.detach(|| {
            if let [sum] = sums {
                return add_rows(sum, shapes, numbers, weights, 0..records);
            }
            std::thread::scope(|scope| {
                let parts: Vec<_> = sums
                    .iter_mut()
                    .enumerate()
                    .map(|(index, sum)| {
                        let part = (index * share).min(records)..((index + 1) * share).min(records);
                        scope.spawn(move || add_rows(sum, shapes, numbers, weights, part))
                    })
                    .collect();
                parts.into_iter().try_for_each(|part| {
                    part.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
                })
            })
        })
        .map_err(Raise::raise)
    }

    /// Adds the records of another sum of the same round, which is used up.
    fn merge(&self, other: &Bound<'_, Self>) -> PyResult<()> {
        self.owner.check()?;
        let mut state = lock(&self.state, "sum")?;
        let state = state.as_mut().ok_or_else(|| consumed("sum"))?;
        let sum = state.sums.first_mut().ok_or_else(|| consumed("sum"))?;
        let other = take(&other.get().state, "sum")?;
        other.sums.into_iter().try_for_each(|part| sum.merge(part)).map_err(Raise::raise)?;
        other.factors.map_or(Ok(()), |(_, part)| sum.absorb(part).map(drop)).map_err(Raise::raise)
    }

    /// Adds noise and releases the estimates of all groups. Uses up the sum, the sample and its permit.
    fn release(&self, py: Python<'_>) -> PyResult<Py<Estimates>> {
        self.owner.check()?;
        let State { sums, factors, noise, record: _ } = take(&self.state, "sum")?;
        let sample = take(&self.sample, "sample")?;
        let (plan, threads) = (&self.plan, self.threads);
        let released = py.detach(move || -> PyResult<_> {
            let noise = match noise {
                Some(drawing) => drawing.join().map_err(|_| panicked())?,
                None => Noise::draw_on(plan, threads),
            };
            let noise = noise.map_err(Raise::raise)?;
            let mut sums = sums.into_iter();
            let mut sum = sums.next().ok_or_else(|| refused("the sum is empty"))?;
            sums.try_for_each(|part| sum.merge(part)).map_err(Raise::raise)?;
            if let Some((_, part)) = factors {
                sum.absorb(part).map_err(Raise::raise)?;
            }
            sum.release(sample, noise).map_err(Raise::raise)
        })?;
        Estimates::wrap(py, released, Arc::clone(&self.shapes))
    }

    fn __repr__(&self) -> &'static str {
        "Sum()"
    }
}

/// Adds some records of a batch. Each is copied first, so that what is checked is what is added.
fn add_rows(
    sum: &mut ClippedSum,
    shapes: &Shapes,
    numbers: &[Numbers<'_>],
    weights: &[f64],
    rows: Range<usize>,
) -> Result<(), SumError> {
    let mut record = empty_record(shapes);
    for row in rows {
        copy_row(&mut record, numbers, row);
        let vectors: Vec<&[f32]> = record.iter().map(Vec::as_slice).collect();
        sum.add_weighted(&vectors, weights.get(row).copied().unwrap_or(0.0))?;
    }
    Ok(())
}

fn empty_record(shapes: &Shapes) -> Vec<Vec<f32>> {
    shapes.iter().map(|(_, shape)| vec![0.0; shape.iter().product()]).collect()
}

fn copy_row(record: &mut [Vec<f32>], numbers: &[Numbers<'_>], row: usize) {
    for (values, numbers) in record.iter_mut().zip(numbers) {
        numbers.copy(row * values.len(), values);
    }
}
