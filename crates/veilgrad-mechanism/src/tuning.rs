//! Private tuning: the best of a secret number of runs.

use std::num::NonZeroU64;

use veilgrad_events::{ChargedAhead, LedgerError, LedgerStore, Run, TuningRun};
use veilgrad_random::{RandomError, RoundKey, run_count};

/// Makes the runs of a charged tuning and returns the result of the best one, and the charged run, to close.
///
/// The number of runs is drawn exactly from the distribution that was charged, with a fresh key, and each run gets one of
/// `settings` settings, drawn uniformly. `base` makes one run with the setting of that number and returns its score and its
/// result. `None` if the number was 0, which only a Poisson distribution allows: whatever is released instead must not
/// depend on private data.
///
/// # Guarantee
/// That of [`TuningRun`]. The number of runs is kept by nobody; the time that this takes tells it roughly.
///
/// # Errors
/// The first error of a run; nothing is released then, and the charge stays.
///
/// # Example
/// ```
/// use std::num::NonZeroU64;
/// use veilgrad_events::{
///     Adjacency, ClipNorm, MemoryLedger, NoiseMultiplier, RecordUnit, Rounds, RunCount, RunHeader, TuningRun,
/// };
/// use veilgrad_mechanism::{AllRecords, Allocation, Group, Noise, RoundPlan, Sample, Structure, best_of};
///
/// let group = Group::new("sum", ["x"], ClipNorm::new(1.0)?);
/// let noise = Allocation::Proportional(NoiseMultiplier::new(2.0)?);
/// let plan = RoundPlan::new(Structure::new([("x", 1)])?, vec![group], noise)?;
/// let round = plan.round(&AllRecords)?;
/// let header = RunHeader::new(RecordUnit::Example, Adjacency::AddRemove)
///     .with_plan(vec![Rounds { count: 1, round: round.clone() }])
///     .with_tuning(RunCount::geometric(0.25)?); // 4 runs on average
/// let tuning = TuningRun::charge(MemoryLedger::new(), header)?;
/// let factors = [0.5, 1.0, 2.0];
/// let three = NonZeroU64::new(3).ok_or("no setting")?;
/// let (best, run) = best_of(tuning, three, |setting, run| {
///     let mut value = 0.0;
///     for permit in run.reserve(&round, 1)? {
///         let sample = Sample::draw(permit, &mut AllRecords, 2)?;
///         let mut sum = sample.begin(&plan);
///         for _ in sample.ids() {
///             sum.add(&[&[0.5]])?;
///         }
///         let released = sum.release(sample, Noise::draw(&plan)?)?;
///         value = released.vector("x").ok_or("no such vector")?.to_vec()[0];
///     }
///     let result = factors[setting as usize] * value;
///     // The score comes from what the run released, and from public numbers.
///     Ok::<_, Box<dyn std::error::Error>>((-(result - 1.0).abs(), result))
/// })?;
/// assert!(best.is_some());
/// run.close()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn best_of<S, T, E>(
    tuning: TuningRun<S>,
    settings: NonZeroU64,
    base: impl Fn(u64, &mut Run<ChargedAhead>) -> Result<(f64, T), E>,
) -> Result<(Option<T>, Run<S>), E>
where
    S: LedgerStore,
    E: From<LedgerError> + From<RandomError>,
{
    tuning.best(
        |count| Ok(run_count::draw(&RoundKey::from_os()?, count)?),
        |run| {
            let setting = run_count::setting(&RoundKey::from_os()?, settings)?;
            base(setting, run)
        },
    )
}
