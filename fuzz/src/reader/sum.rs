//! Partial sums and public states of rounds that arrive from other processes.

use sha2::{Digest, Sha256};
use veilgrad_events::{
    Adjacency, ClipNorm, MemoryLedger, NoiseMultiplier, RecordUnit, Run, RunHeader, WeightBound,
};
use veilgrad_mechanism::{AllRecords, Allocation, Group, RoundPlan, Sample, SampleTag, Structure};
use veilgrad_nn::round::SharedRound;

/// The length of the format's name and version, which the tag follows.
const FORMAT: usize = 8;

/// A plan with a group of vectors and one of weights: six integers.
pub(crate) fn plan() -> RoundPlan {
    let structure = Structure::new([("a", 3), ("b", 2)]).expect("vectors");
    let clip = ClipNorm::new(1.0).expect("a clip norm");
    let bound = WeightBound::new(2.0).expect("a bound");
    let groups = vec![Group::new("all", ["a", "b"], clip), Group::weight("count", bound)];
    let noise = Allocation::Proportional(NoiseMultiplier::new(1.0).expect("a multiplier"));
    RoundPlan::new(structure, groups, noise).expect("a plan")
}

pub(crate) fn sample(plan: &RoundPlan) -> Sample {
    let header = RunHeader::new(RecordUnit::Example, Adjacency::AddRemove);
    let mut run = Run::open(MemoryLedger::new(), header).expect("a run");
    let round = plan.round(&AllRecords).expect("a round");
    let permit = run.reserve(&round, 1).expect("a charge").next().expect("a permit");
    Sample::draw(permit, &mut AllRecords, 4).expect("a sample")
}

/// A partial sum of another round is refused; one that claims to be of this round is added at most once.
pub(crate) fn partial(bytes: &[u8]) {
    let plan = plan();
    let sample = sample(&plan);
    let mut sum = sample.begin(&plan);
    assert!(sum.absorb_bytes(bytes).is_err(), "a partial sum of another round was added");
    assert!(sample.begin(&plan).receive().accept(&[bytes]).is_err());
    let Some(claimed) = with_tag(bytes, &sample.tag(&plan)) else { return };
    if sum.absorb_bytes(&claimed).is_ok() {
        assert!(sum.absorb_bytes(&claimed).is_err(), "a partial sum was added twice");
    }
}

/// The bytes with this tag and a hash that fits, if they are long enough.
fn with_tag(bytes: &[u8], tag: &SampleTag) -> Option<Vec<u8>> {
    let mut bytes = bytes.to_vec();
    bytes.get_mut(FORMAT..FORMAT + SampleTag::BYTES)?.copy_from_slice(&tag.to_bytes());
    let count = |at: usize| -> Option<usize> {
        let number = bytes.get(at..at.checked_add(8)?)?.try_into().ok()?;
        usize::try_from(u64::from_le_bytes(number)).ok()
    };
    let groups = FORMAT + SampleTag::BYTES;
    let parts = count(groups)?.checked_mul(8)?.checked_add(groups + 3 * 8)?;
    let end = count(parts)?.checked_mul(16)?.checked_add(parts.checked_add(8)?)?;
    let hash = Sha256::digest(bytes.get(..end)?);
    bytes.get_mut(end..end.checked_add(32)?)?.copy_from_slice(&hash);
    Some(bytes)
}

/// A public state that is read survives a round trip, but for the numbers of weights, which it has not.
pub(crate) fn round(bytes: &[u8]) {
    let Ok((round, _)) = SharedRound::from_head(bytes) else { return };
    let written = round.head().expect("a state is written");
    let (again, lengths) = SharedRound::from_head(&written).expect("what was written is read");
    assert_eq!((again.head().expect("a state is written"), lengths), (written, Vec::new()));
}
