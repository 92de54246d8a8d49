//! Tests whether the audit of a run detects broken runs, and accuses no correct one.
//!
//! Canaries go through the real mechanism: sampler, clipping, sum, noise, release. If a run differs from its claim, the
//! audit must detect it.

use veilgrad_accounting::audit::{Confidence, RunAudit, RunVerdict};
use veilgrad_accounting::{Composition, PrivacyTarget, Tightest};
use veilgrad_events::{
    Adjacency, ClipNorm, Delta, Epsilon, Folded, MemoryLedger, NoiseMultiplier, RecordUnit, Run,
    RunHeader, SampleRate, Sampling,
};
use veilgrad_mechanism::{
    Allocation, CanaryLane, Group, Noise, PoissonSampler, RoundPlan, Sample, Sampler, Structure,
};

type Error = Box<dyn std::error::Error>;

/// The delta of all claims.
const DELTA: f64 = 1e-5;

/// Rounds of Poisson samples.
#[derive(Debug, Clone, Copy)]
pub struct Rounds {
    /// The rate.
    pub rate: f64,
    /// The noise multiplier.
    pub noise: f64,
    /// The number of rounds.
    pub count: u64,
}

impl Rounds {
    /// The rounds that audits are tested on: epsilon 3 over many rounds, each with little privacy loss (noise multiplier
    /// above 2).
    ///
    /// Such a run is about as private as one Gaussian release with `mu = q sqrt(T (e^(1/z^2) - 1))` (arXiv 1911.11607).
    /// Twice the rate q doubles mu, half the noise z more than doubles it, and full batches make it ten times as large.
    /// With few rounds and less noise, twice the rate is harder to detect, because single rounds dominate.
    ///
    /// # Errors
    /// When no noise multiplier reaches the epsilon.
    pub fn reference() -> Result<Self, Error> {
        Self::of_epsilon(3.0, 0.1, 250)
    }

    /// Rounds with this epsilon at delta 1e-5.
    ///
    /// # Errors
    /// When no noise multiplier reaches it.
    pub fn of_epsilon(epsilon: f64, rate: f64, count: u64) -> Result<Self, Error> {
        let (epsilon, delta) = (Epsilon::new(epsilon)?, Delta::new(DELTA)?);
        let target = PrivacyTarget { epsilon, delta, accountant: &Tightest };
        let sampling = Sampling::Poisson { rate: SampleRate::new(rate)? };
        let noise = target.noise_multiplier(|noise_multiplier| {
            let folded = Folded { count, sampling, noise_multiplier };
            Composition::of([folded], Adjacency::AddRemove)
        })?;
        Ok(Self { rate, noise: noise.get(), count })
    }

    /// Three broken versions of these rounds, with their names.
    #[must_use]
    pub const fn broken(self) -> [(&'static str, Self); 3] {
        [
            ("noise / 2", Self { noise: 0.5 * self.noise, ..self }),
            ("rate x 2", Self { rate: 2.0 * self.rate, ..self }),
            ("full batches", Self { rate: 1.0, ..self }),
        ]
    }

    /// The audit of runs that claim to be these rounds.
    ///
    /// # Errors
    /// When no accountant supports them.
    pub fn audit(self, canaries: usize) -> Result<RunAudit, Error> {
        let sampling = Sampling::Poisson { rate: SampleRate::new(self.rate)? };
        let noise_multiplier = NoiseMultiplier::new(self.noise)?;
        let rounds = [Folded { count: self.count, sampling, noise_multiplier }];
        let (delta, confidence) = (Delta::new(DELTA)?, Confidence::STANDARD);
        Ok(RunAudit::plan(&rounds, Adjacency::AddRemove, delta, canaries as u64, confidence)?)
    }

    /// Runs these rounds with canaries and nothing else.
    ///
    /// # Errors
    /// When randomness fails.
    pub fn run(self, canaries: usize) -> Result<CanaryLane, Error> {
        let mut lane = CanaryLane::new(canaries)?;
        let structure = Structure::new([("weight".to_owned(), 1), lane.vector("gradient")])?;
        let group = Group::new("gradient", ["weight"], ClipNorm::new(1.0)?);
        let group = group.with_vector(lane.vector("gradient").0);
        let noise = Allocation::Proportional(NoiseMultiplier::new(self.noise)?);
        let plan = RoundPlan::new(structure, vec![group], noise)?;
        let mut sampler = PoissonSampler::new(SampleRate::new(self.rate)?);
        let header = RunHeader::new(RecordUnit::Example, Adjacency::AddRemove);
        let mut run = Run::open(MemoryLedger::new(), header)?;
        for permit in run.reserve(&plan.round(&sampler)?, self.count)? {
            let sample = Sample::draw(permit, &mut sampler, lane.count())?;
            let mut sum = sample.begin(&plan);
            for canary in sample.ids() {
                sum.add_canary(&lane, canary)?;
            }
            let released = sum.release(sample, Noise::draw_on(&plan, 1)?)?;
            lane.observe(&released, sampler.policy());
        }
        Ok(lane)
    }
}

/// The verdicts of audits of several runs that claim the rounds `claimed` but run the rounds `really`.
///
/// # Errors
/// When randomness or an accountant fails.
pub fn verdicts(
    claimed: Rounds,
    really: Rounds,
    canaries: usize,
    runs: usize,
) -> Result<Vec<RunVerdict>, Error> {
    let audit = claimed.audit(canaries)?;
    (0..runs)
        .map(|_| {
            let lane = really.run(canaries)?;
            Ok(audit.judge(lane.scores(), lane.included())?)
        })
        .collect()
}
