//! A federated round on its server: who is asked, and the sum of what comes back.

use std::collections::BTreeSet;

use veilgrad_events::RoundPermit;

use crate::{
    ClippedSum, Estimates, Noise, ReleaseError, Released, RoundPlan, Sample, SampleError, Sampler,
};

/// One federated round on its server: a record is the model update of a user, given as named vectors.
///
/// The round is charged before anybody is asked. [`invited`](Self::invited) are the users to ask, [`receive`](Self::receive)
/// adds what comes back, and [`release`](Self::release) ends the round, whoever has answered by then.
///
/// # Guarantee
/// Every invited user is added at most once, with a certified norm and a weight within its bound. What is not an update
/// counts as zero: a reply of somebody who was not invited, a second reply, unknown or missing names, wrong lengths,
/// values that are not finite. No reply raises an error. A user who does not answer contributes zero, and neither the charge
/// nor a public denominator changes. Whether a user answers may depend on that user's own data, but must not depend on the
/// data of others.
///
/// # Example
/// ```
/// use veilgrad_events::{
///     Adjacency, ClipNorm, MemoryLedger, NoiseMultiplier, PublicCount, RecordUnit, Run, RunHeader,
///     SampleRate, WeightBound,
/// };
/// use veilgrad_mechanism::{
///     Allocation, Cohort, Group, Noise, PoissonSampler, RoundPlan, Structure,
/// };
///
/// // Weighted by the number of a user's examples, up to 50; divided by a private weight sum of 100 or more.
/// let (bound, floor) = (WeightBound::new(50.0)?, PublicCount::new(100.0)?);
/// let update = Group::new("update", ["*"], ClipNorm::new(1.0)?);
/// let groups = vec![
///     update.weighted(bound).average_over("weights", floor),
///     Group::weight("weights", bound),
/// ];
/// let structure = Structure::new([("weight", 2), ("bias", 1)])?;
/// let noise = Allocation::Proportional(NoiseMultiplier::new(1.0)?);
/// let plan = RoundPlan::new(structure, groups, noise)?;
///
/// let mut sampler = PoissonSampler::new(SampleRate::new(0.1)?);
/// let header = RunHeader::new(RecordUnit::User, Adjacency::AddRemove);
/// let mut run = Run::open(MemoryLedger::new(), header)?;
/// let permit = run.reserve(&plan.round(&sampler)?, 1)?.next().ok_or("no permit")?;
/// let mut cohort = Cohort::invite(permit, &mut sampler, 1000, &plan)?;
/// let invited: Vec<u64> = cohort.invited().collect();
/// for user in invited {
///     // What the user sent: a model update, and the number of examples it was trained on.
///     cohort.receive(user, &[("bias", &[0.1]), ("weight", &[0.5, -0.5])], 20.0);
/// }
/// let released = cohort.release(Noise::draw(&plan)?)?;
/// assert_eq!(released.vector("weight").ok_or("no such vector")?.to_vec().len(), 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Cohort {
    sample: Sample,
    sum: ClippedSum,
    plan: RoundPlan,
    /// Invited users who have not answered yet.
    waiting: BTreeSet<u64>,
}

impl Cohort {
    /// Draws the cohort of a charged round from the users `0..users`.
    ///
    /// # Errors
    /// As for [`Sample::draw`].
    pub fn invite(
        permit: RoundPermit,
        sampler: &mut impl Sampler,
        users: u64,
        plan: &RoundPlan,
    ) -> Result<Self, SampleError> {
        let sample = Sample::draw(permit, sampler, users)?;
        let (sum, waiting) = (sample.begin(plan), sample.ids().collect());
        Ok(Self { sample, sum, plan: plan.clone(), waiting })
    }

    /// The users to ask, in ascending order. Who they are is private: only they themselves may learn it.
    pub fn invited(&self) -> impl Iterator<Item = u64> + '_ {
        self.sample.ids()
    }

    /// Adds the update of a user with its weight, which is clamped into the bounds of the groups that use it; one that is
    /// not finite counts as 0. Counts only the first reply of an invited user, whether it is usable or not.
    pub fn receive(&mut self, user: u64, update: &[(&str, &[f32])], weight: f64) {
        if !self.waiting.remove(&user) {
            return;
        }
        let Ok(vectors) = self.plan.structure().order(update) else { return };
        // Fails for a wrong length, and then adds nothing. An empty record cannot get here: no structure is empty.
        let _malformed = self.sum.add_weighted(&vectors, weight);
    }

    /// Adds noise and releases the estimates. Replies that have not arrived by now count as zero.
    ///
    /// # Errors
    /// As for [`ClippedSum::release`]. Nothing is released then, and the round stays charged.
    pub fn release(self, noise: Noise) -> Result<Released<Estimates>, ReleaseError> {
        self.sum.release(self.sample, noise)
    }
}
