//! Partial sums of clipped and certified records: the part of a round that one thread or one process adds up.

mod absorb;

use std::sync::Arc;

use veilgrad_events::{ClipNorm, IntegerGrid};
use zeroize::Zeroizing;

use crate::RoundPlan;
use crate::accumulator::Accumulator;
use crate::clip::{certified, factor, relative_weight, round_down};
use crate::kernel::{self, Direction, Quantised};
use crate::outer::{OuterProducts, Record, RecordVector};
use crate::planned::{Plan, PlannedContent};
use crate::sample_tag::{SampleId, SampleTag};
use crate::sum_error::SumError;

/// A partial sum of the clipped and certified records of one round: the part of one thread, or of one process.
///
/// # Guarantee
/// With the sample fixed, one record changes each group's integer sum by a vector of norm at most `S_int`, whatever
/// its values: the norm is checked in exact integer arithmetic before the record is added. A record with a
/// value that is not finite contributes zero to every group. Sums are taken modulo 2^64, so records and
/// parts may be added in any order and partition and give the same bits.
///
/// It cannot be read, only added to a sum with [`ClippedSum::absorb`](crate::ClippedSum::absorb), in another process as
/// bytes ([`into_bytes`](Self::into_bytes)). It is wiped on drop.
///
/// # Example
/// Another process adds half of the records; its bytes are as private as the records:
/// ```
/// use veilgrad_events::{
///     Adjacency, ClipNorm, MemoryLedger, NoiseMultiplier, RecordUnit, Run, RunHeader,
/// };
/// use veilgrad_mechanism::{
///     AllRecords, Allocation, Group, Noise, PartialSum, RecordVector, RoundPlan, Sample, SampleTag,
///     Structure,
/// };
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let structure = Structure::new([("x", 2)])?;
/// let group = Group::new("x", ["x"], ClipNorm::new(1.0)?);
/// let noise = Allocation::Proportional(NoiseMultiplier::new(1.0)?);
/// let plan = RoundPlan::new(structure, vec![group], noise)?; // the same in both processes
///
/// # let header = RunHeader::new(RecordUnit::Example, Adjacency::AddRemove);
/// # let mut run = Run::open(MemoryLedger::new(), header)?;
/// # let permit = run.reserve(&plan.round(&AllRecords)?, 1)?.next().ok_or("no permit")?;
/// let sample = Sample::draw(permit, &mut AllRecords, 100)?;
/// let mut sum = sample.begin(&plan);
/// let (mine, theirs): (Vec<u64>, Vec<u64>) = sample.ids().partition(|id| *id < 50);
/// let tag = sample.tag(&plan).to_bytes(); // public
///
/// // In the other process, which has neither permit nor noise:
/// let mut part = PartialSum::begin(&plan, &SampleTag::from_bytes(&tag)?, |_| None)?;
/// for _record in theirs {
///     part.add(&[RecordVector::Values(&[0.6, 0.8])])?;
/// }
/// let bytes = part.into_bytes()?;
///
/// // Back in the first:
/// for _record in mine {
///     sum.add(&[&[0.6, 0.8]])?;
/// }
/// sum.absorb_bytes(bytes.expose())?;
/// assert!(sum.absorb_bytes(bytes.expose()).is_err()); // it was already added
/// let released = sum.release(sample, Noise::draw(&plan)?)?;
/// assert!((released.vector("x").ok_or("no such vector")?.to_vec()[0] - 60.0).abs() < 10.0);
/// # Ok(())
/// # }
/// ```
pub struct PartialSum {
    pub(crate) plan: Arc<Plan>,
    /// The sample that the sum belongs to.
    pub(crate) sample: SampleId,
    /// The unique numbers of the partial sums that came as bytes and are in this one.
    pub(crate) arrived: Vec<u128>,
    pub(crate) groups: Vec<GroupSum>,
    forms: Vec<Form>,
    /// For each group, the squared norm of the current record or the value that a quantile observes. Kept here to
    /// save an allocation per record.
    pub(crate) measures: Zeroizing<Vec<f64>>,
}

/// The form in which records give a vector: a number of coordinates, or two factors with these lengths.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Values(usize),
    Outer(usize, usize),
}

/// The sum of one group: coordinates in an accumulator, outer products in their [`OuterProducts`].
pub(crate) struct GroupSum {
    pub(crate) sums: Accumulator,
    pub(crate) members: Vec<MemberSum>,
    /// The number of certified records in the sum: no coordinate of any exceeds the sensitivity.
    pub(crate) certified: u64,
}

/// One vector of a group.
pub(crate) struct MemberSum {
    vector: usize,
    alpha: f64,
    /// Its coordinates in the group's sum.
    pub(crate) range: std::ops::Range<usize>,
    pub(crate) storage: Storage,
}

/// Where the sum of a vector is stored.
pub(crate) enum Storage {
    /// These coordinates of the accumulator.
    Sums(std::ops::Range<usize>),
    Outer(Box<dyn OuterProducts>),
}

impl PartialSum {
    /// An empty sum. `outer` returns the storage of each vector that is given as an outer product, else `None`.
    pub(crate) fn new(
        plan: &Arc<Plan>,
        sample: SampleId,
        mut outer: impl FnMut(&str) -> Option<Box<dyn OuterProducts>>,
    ) -> Self {
        let mut forms: Vec<Form> =
            plan.structure.vectors().map(|(_, dimension)| Form::Values(dimension)).collect();
        let mut group_sum = |content: &PlannedContent, dimension: usize| {
            let PlannedContent::Vectors { members, .. } = content else {
                let sums = Accumulator::new(dimension);
                return GroupSum { sums, members: Vec::new(), certified: 0 };
            };
            let mut stored = 0;
            let members = members.iter().map(|member| {
                let storage = match outer(plan.vector_name(member.vector)) {
                    Some(products) => {
                        if let Some(form) = forms.get_mut(member.vector) {
                            let (left, right) = products.lengths();
                            *form = Form::Outer(left, right);
                        }
                        Storage::Outer(products)
                    }
                    None => {
                        let first = stored;
                        stored += member.range.len();
                        Storage::Sums(first..stored)
                    }
                };
                let (alpha, range) = (member.alpha.get(), member.range.clone());
                MemberSum { vector: member.vector, alpha, range, storage }
            });
            let members = members.collect();
            GroupSum { sums: Accumulator::new(stored), members, certified: 0 }
        };
        let groups =
            plan.groups.iter().map(|group| group_sum(&group.content, group.dimension)).collect();
        let measures = Zeroizing::new(vec![0.0; plan.groups.len()]);
        Self { plan: Arc::clone(plan), sample, arrived: Vec::new(), groups, forms, measures }
    }

    /// An empty sum for a sample that another process drew. `outer` as for
    /// [`Sample::begin_part`](crate::Sample::begin_part).
    ///
    /// # Errors
    /// When the tag is for another plan.
    pub fn begin(
        plan: &RoundPlan,
        tag: &SampleTag,
        outer: impl FnMut(&str) -> Option<Box<dyn OuterProducts>>,
    ) -> Result<Self, SumError> {
        if tag.plan() != plan.fingerprint() {
            return Err(SumError::Foreign);
        }
        Ok(Self::new(&plan.inner, tag.sample, outer))
    }

    /// Clips one record and adds it, with weight 1. `vectors` are in the order of the structure. An empty slice is an
    /// empty record, which contributes zero.
    ///
    /// # Errors
    /// When the record does not have the shape of the structure; nothing is added then. Errors never depend on values.
    pub fn add(&mut self, vectors: &[RecordVector<'_>]) -> Result<(), SumError> {
        self.add_weighted(vectors, 1.0)
    }

    /// Clips one record and adds it with a weight, which is clamped into the bounds of the groups that use it; one that is
    /// not finite counts as 0.
    ///
    /// # Errors
    /// As for [`add`](Self::add).
    pub fn add_weighted(
        &mut self,
        vectors: &[RecordVector<'_>],
        weight: f64,
    ) -> Result<(), SumError> {
        self.add_record(vectors, weight)
    }

    /// Adds a record in any of its forms.
    pub(crate) fn add_record<R: Record + ?Sized>(
        &mut self,
        vectors: &R,
        weight: f64,
    ) -> Result<(), SumError> {
        if vectors.count() == 0 {
            return Ok(());
        }
        self.check_shape(vectors)?;
        let plan = Arc::clone(&self.plan);
        let groups = plan.groups.iter().zip(&mut self.groups);
        for ((group, sum), measure) in groups.zip(self.measures.iter_mut()) {
            *measure = match &group.content {
                PlannedContent::Vectors { .. } => sum.squared_norm(vectors),
                PlannedContent::QuantileOfValue(_, vector, _) => match vectors.vector(*vector) {
                    Some(RecordVector::Values([first, ..])) => f64::from(*first),
                    Some(RecordVector::Outer([a, ..], [b, ..])) => f64::from(*a) * f64::from(*b),
                    Some(RecordVector::Rows(rows)) if rows.is_valid() => f64::from(rows.first()),
                    _ => f64::NAN,
                },
                PlannedContent::Weight(_) | PlannedContent::QuantileOfNorm(..) => 0.0,
            };
        }
        // A record is added to all groups or to none.
        if self.measures.iter().all(|measure| measure.is_finite()) {
            self.contribute(&plan, vectors, weight);
        }
        Ok(())
    }

    /// The lengths of each vector: its coordinates and 0, or its two factors.
    pub(crate) fn lengths(&self) -> impl Iterator<Item = [usize; 2]> + '_ {
        self.forms.iter().map(|form| match form {
            Form::Values(length) => [*length, 0],
            Form::Outer(left, right) => [*left, *right],
        })
    }

    /// Adds up what is only buffered so far. Each thread calls it on its part, so that threads share this work.
    pub fn finish(&mut self) {
        for group in &mut self.groups {
            group.sums.flush();
            for member in &mut group.members {
                if let Storage::Outer(products) = &mut member.storage {
                    products.finish();
                }
            }
        }
    }

    /// Checks finished sums of outer products against the number of certified records.
    pub(crate) fn check_outer_sums(&self) -> Result<(), SumError> {
        for (planned, group) in self.plan.groups.iter().zip(&self.groups) {
            let bound = coordinate_bound(planned.grid, group.certified);
            for member in &group.members {
                let Storage::Outer(products) = &member.storage else { continue };
                let sum = products.sum();
                if sum.len() != member.range.len() || !sum.is_within(bound) {
                    let name = self.plan.vector_name(member.vector).to_owned();
                    return Err(SumError::Uncertified(name));
                }
            }
        }
        Ok(())
    }

    fn check_shape<R: Record + ?Sized>(&self, vectors: &R) -> Result<(), SumError> {
        let (expected, found) = (self.forms.len(), vectors.count());
        if found != expected {
            return Err(SumError::Count { expected, found });
        }
        for (index, expected) in self.forms.iter().enumerate() {
            let found = match vectors.vector(index) {
                Some(RecordVector::Values(values)) => Form::Values(values.len()),
                Some(RecordVector::Outer(left, right)) => Form::Outer(left.len(), right.len()),
                Some(RecordVector::Rows(rows)) => Form::Values(rows.length),
                None => Form::Values(0),
            };
            if found == *expected {
                continue;
            }
            let name = self.plan.vector_name(index).to_owned();
            return Err(match (*expected, found) {
                (Form::Values(expected), Form::Values(found)) => {
                    SumError::Dimension { name, expected, found }
                }
                (Form::Outer(left, right), Form::Outer(found_left, found_right)) => {
                    let (expected, found) =
                        if found_left == left { (right, found_right) } else { (left, found_left) };
                    SumError::Dimension { name, expected, found }
                }
                _ => SumError::Form(name),
            });
        }
        Ok(())
    }

    /// Adds one record whose measures are all finite.
    fn contribute<R: Record + ?Sized>(&mut self, plan: &Plan, vectors: &R, weight: f64) {
        let groups = plan.groups.iter().zip(&mut self.groups);
        for ((group, sum), measure) in groups.zip(self.measures.iter()) {
            let s_int = i64::from(group.grid.s_int());
            match &group.content {
                PlannedContent::Vectors { clip, rule, weight: bound, .. } => {
                    let relative = bound.map_or(1.0, |bound| relative_weight(weight, bound));
                    let (grid, dimension, slack) = (group.grid, group.dimension, sum.slack());
                    let fit = factor(*rule, *clip, grid, *measure, dimension, slack);
                    sum.add_certified(grid, vectors, fit * relative);
                }
                PlannedContent::Weight(bound) => {
                    let units = relative_weight(weight, *bound) * s_int as f64;
                    sum.add_scalar((units as i64).min(s_int));
                }
                PlannedContent::QuantileOfNorm(_, target, _) => {
                    let norm = self.measures.get(*target).map_or(0.0, |n| n.sqrt());
                    let below = plan.clip(*target).is_some_and(|clip| norm <= ClipNorm::get(clip));
                    sum.add_scalar(if below { s_int } else { -s_int });
                }
                PlannedContent::QuantileOfValue(_, _, estimate) => {
                    let below = *measure <= *estimate;
                    sum.add_scalar(if below { s_int } else { -s_int });
                }
            }
        }
    }
}

/// The largest absolute value that a coordinate can have in a sum of this many certified records: none of them exceeds the
/// sensitivity. From 2^63 on sums may wrap, and there is no bound.
pub(crate) fn coordinate_bound(grid: IntegerGrid, certified: u64) -> u64 {
    let bound = certified.checked_mul(u64::from(grid.s_int()));
    bound.filter(|bound| *bound < 1 << 63).unwrap_or(u64::MAX)
}

impl GroupSum {
    /// Adds one record to a group of a single number, of which it is at most the sensitivity.
    fn add_scalar(&mut self, value: i64) {
        self.sums.add_wide(&[value]);
        self.certified += 1;
    }

    /// The squared norm of a record over the group, after joint scaling.
    fn squared_norm<R: Record + ?Sized>(&mut self, vectors: &R) -> f64 {
        let members = self.members.iter_mut();
        members
            .map(|member| {
                let squared = match (vectors.vector(member.vector), &mut member.storage) {
                    (Some(RecordVector::Values(values)), _) => kernel::squared_norm(values),
                    (Some(RecordVector::Rows(rows)), _) if rows.is_valid() => {
                        kernel::squared_norm_of_rows(rows.width, rows.values, rows.iter())
                    }
                    (Some(RecordVector::Outer(left, right)), Storage::Outer(products)) => {
                        products.squared_norm(left, right)
                    }
                    _ => f64::NAN,
                };
                squared / (member.alpha * member.alpha)
            })
            .sum()
    }

    /// An upper bound on the norm of the rounding error of outer products, in integer units.
    fn slack(&self) -> f64 {
        let slack = self.members.iter().map(|member| match &member.storage {
            Storage::Sums(_) => 0.0,
            Storage::Outer(products) => products.slack(),
        });
        slack.sum::<f64>().sqrt()
    }

    /// Rounds one record to integers and adds it. If its exact norm exceeds the sensitivity, subtracts it again, so
    /// that the record contributes zero.
    fn add_certified<R: Record + ?Sized>(&mut self, grid: IntegerGrid, vectors: &R, factor: f64) {
        let (s_int, members) = (grid.s_int(), &mut self.members);
        let mut quantise = |sums: &mut [i32], direction: Direction| {
            let vectors = members.iter_mut().map(|member| {
                let factor = factor / member.alpha;
                match (vectors.vector(member.vector), &mut member.storage) {
                    (Some(RecordVector::Values(values)), Storage::Sums(range)) => {
                        let c = round_down(factor.min(f64::from(f32::MAX)));
                        let sums = sums.get_mut(range.clone()).unwrap_or_default();
                        kernel::quantise(values, c, s_int, direction, sums)
                    }
                    (Some(RecordVector::Rows(rows)), Storage::Sums(range)) => {
                        let c = round_down(factor.min(f64::from(f32::MAX)));
                        let sums = sums.get_mut(range.clone()).unwrap_or_default();
                        let row = |(first, values): (usize, &[f32])| {
                            let places = first..first.saturating_add(values.len());
                            let sums = sums.get_mut(places).unwrap_or_default();
                            kernel::quantise(values, c, s_int, direction, sums)
                        };
                        rows.iter().map(row).fold(Quantised::default(), Quantised::and)
                    }
                    (Some(RecordVector::Outer(_, right)), Storage::Outer(products))
                        if direction == Direction::Add =>
                    {
                        Quantised::elsewhere(products.round(right, factor))
                    }
                    _ => Quantised::default(),
                }
            });
            vectors.fold(Quantised::default(), Quantised::and)
        };
        let mut is_certified = false;
        self.sums.add_record(|sums| {
            let found = quantise(sums, Direction::Add);
            is_certified = certified(grid, found.squares);
            if is_certified {
                return found.largest();
            }
            quantise(sums, Direction::TakeBack);
            0
        });
        if is_certified {
            self.certified += 1;
            for member in &mut self.members {
                if let Storage::Outer(products) = &mut member.storage {
                    products.add();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
