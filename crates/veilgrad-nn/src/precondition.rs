//! Private preconditioning: rounds before training that release the mean and the principal directions of the inputs, to
//! whiten them.

mod eigen;
mod whitening;

use veilgrad_events::{
    Adjacency, ClipNorm, NoiseMultiplier, Numerics, PublicCount, RecordUnit, Round, RoundPermit,
    Rounds, RunHeader, UnitError,
};
use veilgrad_mechanism::{AllRecords, Group, PartialSum, PlanError, RecordVector};
#[cfg(feature = "insecure-testing")]
use veilgrad_mechanism::{Noise, insecure::released_integers};

use zeroize::Zeroizing;

use crate::file::{Arrays, FileError};
use crate::gemm::{Left, Panels, Start, multiply, wipe};
use crate::records::Records;
use crate::round::{
    Backend, Clipping, Engine, ExampleId, Peers, Performance, SharedRound, TrainError,
    TrainingPlan, Vector, Vectors,
};
use eigen::left_singular_vectors;
use whitening::{centre, unit};

pub use whitening::Whitening;

/// Rows per tile.
const TILE: usize = 32;
/// The clip norm of the first round of directions, in units of `sqrt(k / width)`, the root mean square norm of the projection of
/// a unit vector on k random directions. At 1.5, few records are clipped.
const FIRST_CLIP: f64 = 1.5;
/// Squared singular values are corrected for noise: this times its expected share is subtracted. The margin of a tenth is for
/// the largest singular value of the noise, which is above the mean.
const NOISE_MARGIN: f64 = 1.1;
const MOST_DIRECTIONS: usize = 256;
/// The largest `width * count`, to limit memory.
const LARGEST: usize = 1 << 26;

/// The settings of a preconditioning phase. All of them are public and fixed before the first round.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PreconditionPlan {
    /// The length of an input.
    pub width: usize,
    /// The declared number of records.
    pub records: PublicCount,
    /// The noise multiplier of the round that releases the mean.
    pub mean: NoiseMultiplier,
    /// The noise multiplier of each round of directions.
    pub directions: NoiseMultiplier,
    /// The number of principal directions to release.
    pub count: usize,
    /// The number of rounds of subspace iteration that release them.
    pub rounds: usize,
    /// Directions with more variance than this are scaled down to it. Inputs have norm 1, so the sum of all variances is at
    /// most 1.
    pub floor: f64,
}

/// Invalid settings of a preconditioning phase.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PreconditionError {
    /// The number of directions is 0, above the length of an input, or above 256.
    #[error("{count} directions of inputs of {width} numbers: must be 1 to {}", MOST_DIRECTIONS.min(*width))]
    Directions {
        /// The directions.
        count: usize,
        /// The length of an input.
        width: usize,
    },
    /// The directions would take too much memory.
    #[error("{count} directions of inputs of {width} numbers are more than 2^26 numbers")]
    Size {
        /// The directions.
        count: usize,
        /// The length of an input.
        width: usize,
    },
    /// The number of rounds of directions is out of range.
    #[error("{0} rounds of directions: must be 1 to 64")]
    Rounds(usize),
    /// The floor is out of range.
    #[error("floor {0} is not in (0, 1]")]
    Floor(f64),
    /// A number is out of range.
    #[error(transparent)]
    Unit(#[from] UnitError),
}

/// A private preconditioning phase: one round releases the mean of the inputs, then rounds of subspace iteration (a noisy power
/// method) release their principal directions. All rounds are on all records. The result is a [`Whitening`] of the inputs.
///
/// A linear model learns faster from whitened inputs. Before whitening, the mean and a few directions hold most of the norm of
/// an input, and noise is relative to that norm.
///
/// # Guarantee
/// Inputs are scaled to norm 1. A record adds its input x to the sum of the first round, and `x (U^T x)^T` of its centred input
/// to the sums of the others. U is random in the first round of directions, and computed from the previous release in later
/// rounds. Contributions are clipped to integer vectors with a certified norm, like gradients, and released with the noise of
/// the plan. So each round is a Gaussian mechanism on all records, and everything else is post-processing.
///
/// # Example
/// ```
/// use veilgrad_events::{Adjacency, MemoryLedger, NoiseMultiplier, PublicCount, Run};
/// use veilgrad_nn::{InMemory, Performance, PreconditionPlan, Preconditioning};
///
/// let plan = PreconditionPlan {
///     width: 4,
///     records: PublicCount::new(100.0)?,
///     mean: NoiseMultiplier::new(2.0)?,
///     directions: NoiseMultiplier::new(2.0)?,
///     count: 2,
///     rounds: 3,
///     floor: 0.01,
/// };
/// let mut phase = Preconditioning::new(plan, Performance::default())?;
/// let records = InMemory::new(vec![0.5; 400], 4, vec![0.0; 100], 1);
/// let mut run = Run::open(MemoryLedger::new(), phase.header(Adjacency::AddRemove))?;
/// while let Some(round) = phase.event()? {
///     let permit = run.reserve(&round, 1)?.next().ok_or("no permit")?;
///     phase.round(permit, &records)?;
/// }
/// let whitening = phase.whitening().ok_or("not done")?;
/// let mut inputs = vec![0.1, 0.2, 0.3, 0.4]; // in training and in use
/// whitening.apply(&mut inputs);
/// assert!((inputs.iter().map(|x| x * x).sum::<f32>() - 1.0).abs() < 1e-5);
/// // Train on whitened inputs; the run may go on with other rounds.
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct Preconditioning {
    plan: PreconditionPlan,
    performance: Performance,
    /// The number of finished rounds.
    done: usize,
    /// Empty before the first round.
    mean: Vec<f32>,
    /// One direction after the other, from the largest variance to the smallest; empty before the first release.
    directions: Vec<f32>,
    variances: Vec<f32>,
}

impl Preconditioning {
    /// A new phase.
    ///
    /// # Errors
    /// When a setting is out of range.
    pub fn new(
        plan: PreconditionPlan,
        performance: Performance,
    ) -> Result<Self, PreconditionError> {
        let PreconditionPlan { width, count, rounds, floor, .. } = plan;
        if !(1..=MOST_DIRECTIONS.min(width)).contains(&count) {
            return Err(PreconditionError::Directions { count, width });
        }
        if !(1..=64).contains(&rounds) {
            return Err(PreconditionError::Rounds(rounds));
        }
        if !(floor > 0.0 && floor <= 1.0) {
            return Err(PreconditionError::Floor(floor));
        }
        if width.saturating_mul(count) > LARGEST {
            return Err(PreconditionError::Size { count, width });
        }
        let (mean, directions, variances) = (Vec::new(), Vec::new(), vec![0.0; count]);
        Ok(Self { plan, performance, done: 0, mean, directions, variances })
    }

    /// The settings of the phase.
    #[must_use]
    pub const fn plan(&self) -> &PreconditionPlan {
        &self.plan
    }

    /// The number of finished rounds.
    #[must_use]
    pub const fn rounds(&self) -> usize {
        self.done
    }

    /// Whether all rounds are finished.
    #[must_use]
    pub const fn is_done(&self) -> bool {
        self.done > self.plan.rounds
    }

    /// The header of a run with this phase, followed by training with single examples as records.
    #[must_use]
    pub fn header(&self, adjacency: Adjacency) -> RunHeader {
        let mut header = RunHeader::new(RecordUnit::Example, adjacency);
        header.numerics = Numerics::Exact;
        header
    }

    /// The event of the next round, to be charged to the ledger; `None` if all rounds are finished.
    ///
    /// # Errors
    /// When a clip norm or noise is so extreme that its event cannot be represented.
    pub fn event(&self) -> Result<Option<Round>, TrainError> {
        if self.is_done() {
            return Ok(None);
        }
        Ok(Some(self.engine(self.done)?.event(&AllRecords)?))
    }

    /// The events of all remaining rounds, in order, for the plan of a run.
    ///
    /// # Errors
    /// As for [`event`](Self::event).
    pub fn events(&self) -> Result<Vec<Rounds>, TrainError> {
        let mut groups: Vec<Rounds> = Vec::new();
        for number in self.done..=self.plan.rounds {
            let round = self.engine(number)?.event(&AllRecords)?;
            match groups.last_mut().filter(|group| group.round == round) {
                Some(group) => group.count += 1,
                None => groups.push(Rounds { count: 1, round }),
            }
        }
        Ok(groups)
    }

    /// Runs one charged round on all records.
    ///
    /// # Errors
    /// When the permit is for another round, all rounds are finished, the operating system gives no randomness, or the
    /// round left no estimates; never because of a record. After an error the phase is unchanged.
    pub fn round<R: Records>(
        &mut self,
        permit: RoundPermit,
        records: &R,
    ) -> Result<(), TrainError> {
        self.round_with(permit, records, None)
    }

    /// Runs one charged round on all records, which other processes, if there are any, share. What is released has the
    /// same bits for any number of them.
    ///
    /// # Errors
    /// As for [`round`](Self::round), and when the other processes cannot be reached or one of their partial sums is refused.
    pub fn round_with<R: Records>(
        &mut self,
        permit: RoundPermit,
        records: &R,
        peers: Option<Box<dyn Peers>>,
    ) -> Result<(), TrainError> {
        self.step(records, peers, |engine, backend| {
            engine.round(backend, permit, &mut AllRecords).map(|_| ())
        })
    }

    /// Adds up this process's records of a round that another process charged and will release. The round comes with
    /// everything that was released before it, so this phase need not have done those rounds, and is unchanged.
    ///
    /// # Errors
    /// When the phase of the other process has another plan. Never because of a record.
    pub fn part<R: Records>(
        &self,
        round: &SharedRound,
        ids: Zeroizing<Vec<u64>>,
        records: &R,
    ) -> Result<PartialSum, TrainError> {
        let PreconditionPlan { width, count, .. } = self.plan;
        let (mean, directions): (&[f32], &[f32]) = match &round.weights[..] {
            [] => (&[], &[]),
            [mean, directions] if (mean.len(), directions.len()) == (width, width * count) => {
                (mean, directions)
            }
            _ => return Err(TrainError::DifferentPlan),
        };
        let mut engine = match mean {
            [] => self.engine(0)?,
            _ => {
                let first = self.engine(1)?;
                let is_first = first.plan().fingerprint() == round.tag.plan();
                if is_first { first } else { self.engine(2)? }
            }
        };
        engine.part(&self.inputs(records, mean, directions), round, ids)
    }

    /// Runs one charged round with given noise, for tests, in a run that is stamped INSECURE. Returns the released
    /// integers.
    ///
    /// # Errors
    /// As for [`round`](Self::round), and when the run is not stamped.
    #[cfg(feature = "insecure-testing")]
    pub fn round_insecure<R: Records>(
        &mut self,
        permit: RoundPermit,
        records: &R,
        peers: Option<Box<dyn Peers>>,
        noise: Noise,
    ) -> Result<Vec<i64>, TrainError> {
        let mut released = Vec::new();
        self.step(records, peers, |engine, backend| {
            engine.round_insecure(backend, permit, &mut AllRecords, noise)?;
            let integers = engine.estimates().map(|found| released_integers(found).concat());
            released = integers.unwrap_or_default();
            Ok(())
        })?;
        Ok(released)
    }

    /// The mechanism's plan of the next round, for tests.
    ///
    /// # Errors
    /// As for [`event`](Self::event).
    #[cfg(feature = "insecure-testing")]
    pub fn round_plan(&self) -> Result<veilgrad_mechanism::RoundPlan, TrainError> {
        Ok(self.engine(self.done)?.plan().clone())
    }

    /// The whitening of the inputs; `None` until all rounds are finished.
    #[must_use]
    pub fn whitening(&self) -> Option<Whitening> {
        if !self.is_done() {
            return None;
        }
        let floor = self.plan.floor as f32;
        let scale =
            |variance: &f32| if *variance > floor { (floor / variance).sqrt() } else { 1.0 };
        let scales = self.variances.iter().map(scale).collect();
        Whitening::new(self.mean.clone(), self.directions.clone(), scales)
    }

    /// A checkpoint of everything released so far.
    ///
    /// # Errors
    /// When the arrays cannot be serialised, which does not happen in practice.
    pub fn to_bytes(&self) -> Result<Vec<u8>, FileError> {
        let mut arrays = Arrays::default();
        arrays.texts.insert("done".to_owned(), self.done.to_string());
        for (name, values) in
            [("mean", &self.mean), ("directions", &self.directions), ("variances", &self.variances)]
        {
            arrays.insert(name.to_owned(), &[values.len()], values);
        }
        arrays.to_bytes()
    }

    /// Restores a checkpoint of [`to_bytes`](Self::to_bytes) of a phase with the same plan.
    ///
    /// # Errors
    /// When the bytes are not such a checkpoint. The phase is then unchanged.
    pub fn restore(&mut self, bytes: &[u8]) -> Result<(), FileError> {
        let wrong = |name: &str| FileError::Format(format!("'{name}' is missing or wrong"));
        let mut arrays = Arrays::from_bytes(bytes)?;
        let PreconditionPlan { width, count, rounds, .. } = self.plan;
        let done = arrays.texts.get("done").and_then(|done| done.parse::<usize>().ok());
        let done = done.filter(|done| *done <= rounds + 1).ok_or_else(|| wrong("done"))?;
        let mut take = |name: &str, length: usize| {
            let found = arrays.arrays.remove(name).map(|(_, values)| values);
            let is_valid = |values: &Vec<f32>| {
                values.len() == length && values.iter().all(|value| value.is_finite())
            };
            found.filter(is_valid).ok_or_else(|| wrong(name))
        };
        let mean = take("mean", if done == 0 { 0 } else { width })?;
        let directions = take("directions", if done <= 1 { 0 } else { width * count })?;
        let variances = take("variances", count)?;
        (self.done, self.mean) = (done, mean);
        (self.directions, self.variances) = (directions, variances);
        Ok(())
    }

    /// The engine of round `number`: 0 releases the mean, all others directions.
    fn engine(&self, number: usize) -> Result<Engine<Memory>, TrainError> {
        let PreconditionPlan { width, count, .. } = self.plan;
        let (name, clip, noise, outer) = match number {
            0 => ("mean", 1.0, self.plan.mean, None),
            1 => {
                ("first-directions", self.first_clip(), self.plan.directions, Some((width, count)))
            }
            _ => ("directions", 1.0, self.plan.directions, Some((width, count))),
        };
        let clip = ClipNorm::new(clip).map_err(|error| PlanError::Unit(name.to_owned(), error))?;
        let clipping = Clipping::Groups(vec![Group::new(name, [name], clip)]);
        let training = TrainingPlan::new(clipping, noise, self.plan.records);
        let length = outer.map_or(width, |(width, count)| width * count);
        let trained = vec![Vector { name: name.to_owned(), length, outer }];
        let vectors = Vectors { trained, statistics: Vec::new() };
        Engine::new(training, vectors, self.performance, Numerics::Exact)
    }

    /// The clip norm of the first round of directions.
    fn first_clip(&self) -> f64 {
        (FIRST_CLIP * (self.plan.count as f64 / self.plan.width as f64).sqrt()).min(1.0)
    }

    /// The backend of a round: that of the mean has neither mean nor directions.
    fn inputs<'a>(
        &self,
        records: &'a dyn Records,
        mean: &'a [f32],
        directions: &'a [f32],
    ) -> Inputs<'a> {
        let PreconditionPlan { width, count, .. } = self.plan;
        let mut panels = Panels::default();
        if !directions.is_empty() {
            panels.pack_transposed(directions, width, count);
        }
        Inputs { records, mean, directions, panels, width, count }
    }

    /// Runs the next round and stores what it released.
    fn step<R: Records>(
        &mut self,
        records: &R,
        peers: Option<Box<dyn Peers>>,
        round: impl FnOnce(&mut Engine<Memory>, &Inputs<'_>) -> Result<(), TrainError>,
    ) -> Result<(), TrainError> {
        if self.is_done() {
            return Err(TrainError::Finished);
        }
        let PreconditionPlan { width, count, .. } = self.plan;
        let mut engine = self.engine(self.done)?;
        if let Some(peers) = peers {
            engine.share_with(peers);
        }
        let start = match self.done {
            1 => left_singular_vectors(&random_signs(width * count), width, count).0,
            _ => Vec::new(),
        };
        let directions = if self.done == 1 { &start } else { &self.directions };
        let backend = self.inputs(records, &self.mean, directions);
        round(&mut engine, &backend)?;
        let name = ["mean", "first-directions", "directions"][self.done.min(2)];
        let estimate = engine.estimates().and_then(|estimates| estimates.vector(name));
        let estimate: Vec<f64> = estimate.ok_or(TrainError::NoEstimates)?.iter().collect();
        match self.done {
            0 => self.mean = estimate.iter().map(|x| *x as f32).collect(),
            number => {
                let clip = if number == 1 { self.first_clip() } else { 1.0 };
                let (directions, squares) = left_singular_vectors(&estimate, width, count);
                let deviation = clip * self.plan.directions.get() / self.plan.records.get();
                let noise = NOISE_MARGIN * width as f64 * deviation * deviation;
                let variance = |square: &f64| (square - noise).max(0.0).sqrt() as f32;
                self.directions = directions;
                self.variances = squares.iter().map(variance).collect();
            }
        }
        self.done += 1;
        Ok(())
    }
}

/// The backend of a preconditioning round: the inputs of records, centred and projected.
struct Inputs<'a> {
    records: &'a dyn Records,
    /// Empty in the round that releases it.
    mean: &'a [f32],
    /// The current directions, of which there are none in that round.
    directions: &'a [f32],
    /// The same, for the kernels.
    panels: Panels,
    width: usize,
    count: usize,
}

/// The buffers of one thread: inputs, and their projections on the current directions.
struct Memory {
    rows: Vec<f32>,
    projected: Vec<f32>,
    sound: Vec<bool>,
}

impl Drop for Memory {
    fn drop(&mut self) {
        wipe(&mut self.rows);
        wipe(&mut self.projected);
    }
}

impl Backend for Inputs<'_> {
    type Memory = Memory;

    fn memory(&self) -> Memory {
        let projected = vec![0.0; TILE * self.count];
        Memory { rows: vec![0.0; TILE * self.width], projected, sound: vec![false; TILE] }
    }

    fn capacity(&self, _: &Memory) -> usize {
        TILE
    }

    fn records(&self) -> u64 {
        self.records.count()
    }

    fn examples(&self, record: u64) -> usize {
        self.records.examples(record)
    }

    fn run(&self, memory: &mut Memory, examples: &[ExampleId]) -> bool {
        let Memory { rows, projected, sound } = memory;
        let mut target = [0.0];
        for ((row, sound), id) in rows.chunks_exact_mut(self.width).zip(sound).zip(examples) {
            row.fill(0.0);
            self.records.read(id.record, id.example, row, &mut target);
            *sound = row.iter().all(|value| value.is_finite());
            match self.mean {
                [] => unit(row),
                mean => centre(row, mean),
            }
        }
        if !self.mean.is_empty() {
            multiply(examples.len(), Left::Rows(rows), &self.panels, Start::Zero, projected);
        }
        true
    }

    fn run_summed(&self, _: &mut Memory, _: &[ExampleId], _: &mut [Vec<f32>]) -> bool {
        // Only for records of several examples, which this phase does not support.
        false
    }

    fn is_sound(&self, memory: &Memory, row: usize) -> bool {
        memory.sound.get(row).copied().unwrap_or(false)
    }

    fn vector<'m>(&self, memory: &'m Memory, _: usize, row: usize) -> RecordVector<'m> {
        let row_of = |values: &'m [f32], length: usize| {
            values.get(row * length..(row + 1) * length).unwrap_or_default()
        };
        let input = row_of(&memory.rows, self.width);
        match self.mean {
            [] => RecordVector::Values(input),
            _ => RecordVector::Outer(input, row_of(&memory.projected, self.count)),
        }
    }

    fn metric(&self, _: &Memory, _: usize, _: usize) -> f64 {
        f64::NAN
    }

    fn weights(&self) -> Vec<Vec<f32>> {
        match self.mean {
            [] => Vec::new(),
            mean => vec![mean.to_vec(), self.directions.to_vec()],
        }
    }

    fn end(&self, memory: &mut Memory) {
        memory.rows.fill(0.0);
        memory.projected.fill(0.0);
    }
}

/// Public pseudorandom signs, the same in every run: the start of subspace iteration need not be secret.
fn random_signs(count: usize) -> Vec<f64> {
    let mut random = crate::model::SplitMix64(0x7072_6563_6f6e_6469);
    (0..count).map(|_| if random.next() >> 63 == 0 { 1.0 } else { -1.0 }).collect()
}

#[cfg(test)]
mod tests;
