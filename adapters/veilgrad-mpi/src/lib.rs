//! Private training on MPI: the same bits for any number of processes.
//!
//! `mpirun -n N veilgrad-mpi train CONFIG` is `veilgrad train CONFIG` on N processes. Rank 0 has the ledger, draws samples and
//! noise, and releases; all ranks add up records. For a training loop that already uses MPI, [`Ranks`] is three lines:
//!
//! ```no_run
//! use mpi::traits::Communicator;
//! use veilgrad_events::{
//!     Adjacency, ClipNorm, MemoryLedger, NoiseMultiplier, PublicCount, RecordUnit, Run, RunHeader,
//!     SampleRate,
//! };
//! use veilgrad_mechanism::{
//!     Allocation, Group, Noise, PoissonSampler, RecordVector, RoundPlan, Sample, Structure,
//! };
//! use veilgrad_mpi::Ranks;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! veilgrad_mpi::end_job_on_panic();
//! let universe = mpi::initialize().ok_or("MPI is already initialised")?;
//! let ranks = Ranks::new(universe.world());
//! let is_root = universe.world().rank() == 0;
//!
//! // The same plan on every rank.
//! let structure = Structure::new([("weights", 3)])?;
//! let expected = PublicCount::new(100.0)?;
//! let group = Group::new("gradient", ["weights"], ClipNorm::new(1.0)?).average(expected);
//! let noise = Allocation::Proportional(NoiseMultiplier::new(1.1)?);
//! let plan = RoundPlan::new(structure, vec![group], noise)?;
//!
//! // Only rank 0 has the ledger; on disk it would be a `veilgrad_ledger::Ledger`.
//! let (records, rounds) = (1000, 10);
//! let mut sampler = PoissonSampler::new(SampleRate::new(0.1)?);
//! let header = RunHeader::new(RecordUnit::Example, Adjacency::AddRemove);
//! let mut run = Run::open(MemoryLedger::new(), header)?;
//! let mut permits = match is_root {
//!     true => Some(run.reserve(&plan.round(&sampler)?, rounds)?),
//!     false => None,
//! };
//!
//! let mut weights = [0.0f32; 3];
//! for _ in 0..rounds {
//!     let permit = permits.as_mut().and_then(Iterator::next);
//!     let sample = permit.map(|permit| Sample::draw(permit, &mut sampler, records)).transpose()?;
//!     let (mut part, ids) = ranks.begin(sample.as_ref(), &plan, records)?; // 1
//!     for _id in ids.iter() {
//!         part.add(&[RecordVector::Values(&[0.3, -0.1, 2.0])])?; // this record's gradient
//!     }
//!     let sum = ranks.reduce(part, sample.as_ref().map(|sample| sample.begin(&plan)))?; // 2
//!     if let (Some(sum), Some(sample)) = (sum, sample) {
//!         let released = sum.release(sample, Noise::draw(&plan)?)?;
//!         let gradient = released.vector("weights").ok_or("no such vector")?.to_vec();
//!         weights.iter_mut().zip(gradient).for_each(|(w, g)| *w -= 0.5 * g as f32);
//!     }
//!     ranks.broadcast(&mut weights); // 3
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Guarantee
//! The sums are integers modulo 2^64, so that they have the same bits for any number of ranks. What a reduction returns is
//! compared with the certificates of all partial sums in it; if anything was lost, altered, doubled, or belongs to another
//! round, nothing is released and the round stays charged. Keys, noise, permits and the ledger stay on rank 0. Ids and
//! partial sums are private: MPI sends them in the clear, so the network between the ranks must be trusted. This crate wipes
//! its copies of them when they are dropped; the buffers of the MPI library are not wiped.

#[cfg(feature = "clock")]
mod clock;
#[cfg(not(feature = "clock"))]
#[path = "without_clock.rs"]
mod clock;
mod job;
mod panic;
mod ranks;

#[cfg(feature = "clock")]
pub use clock::cpu_time_within_mpi;
pub use job::{Rank, World};
pub use panic::end_job_on_panic;
pub use ranks::{Ranks, RanksError};
