//! Clipped and certified records, added up: one thread's part of a round.

use std::sync::Arc;

use veilgrad_events::{ClipNorm, IntegerGrid};
use zeroize::Zeroizing;

use crate::accumulator::Accumulator;
use crate::clip::{certified, factor, relative_weight, round_down};
use crate::kernel::{self, Direction};
use crate::outer::{OuterProducts, Record, RecordVector};
use crate::planned::{Plan, PlannedContent};

/// Something does not fit a sum. Values of records never matter.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SumError {
    /// A record has too many or too few vectors.
    #[error("a record of {found} vectors does not fit a structure of {expected}")]
    Count {
        /// Vectors in the structure.
        expected: usize,
        /// Vectors in the record.
        found: usize,
    },
    /// A vector has the wrong length.
    #[error("'{name}' has {found} coordinates, not {expected}")]
    Dimension {
        /// The vector or group.
        name: String,
        /// Coordinates in the structure.
        expected: usize,
        /// Coordinates handed in.
        found: usize,
    },
    /// A vector comes as an outer product where the sum expects coordinates, or the other way round.
    #[error(
        "'{0}' must come as coordinates, or as an outer product, for all records of a sum alike"
    )]
    Form(String),
    /// A sum of outer products is larger than the certified records in it can make it.
    #[error("the sum of '{0}' is larger than its certified records can make it")]
    Uncertified(String),
    /// Two sums of different plans or rounds.
    #[error("the two sums belong to different plans or rounds")]
    Foreign,
    /// Of two sums, only the one that the other is added to may have its noise already.
    #[error("a sum that has its noise is released, not added to another")]
    HasNoise,
}

/// Records of one round, clipped, certified and added up: what one thread does, or all of it.
///
/// # Guarantee
/// With the sample fixed, one record changes each group's integer sum by a vector of norm at most `S_int`, whatever
/// its values: the norm is checked in exact integer arithmetic before the record counts. A record with a
/// value that is not finite contributes zero to every group. Sums are taken modulo 2^64, so records and
/// parts may be added in any order and partition with the same bits as a result.
///
/// It cannot be read. [`ClippedSum::absorb`](crate::ClippedSum::absorb) is the only way out; what is dropped is wiped.
pub struct PartialSum {
    pub(crate) plan: Arc<Plan>,
    /// The permit of the round that the sum belongs to.
    pub(crate) permit: u64,
    pub(crate) groups: Vec<GroupSum>,
    /// How each vector comes.
    forms: Vec<Form>,
    /// What each group needs to know of the record being added (a squared norm, or the value that a
    /// quantile follows), kept here to spare an allocation per record.
    pub(crate) measures: Zeroizing<Vec<f64>>,
}

/// How a vector comes: so many coordinates, or two factors of so many numbers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Values(usize),
    Outer(usize, usize),
}

/// The sum of one group: coordinates in an accumulator, outer products where they are computed.
pub(crate) struct GroupSum {
    pub(crate) sums: Accumulator,
    pub(crate) members: Vec<MemberSum>,
    /// Records that were certified, and are in the sum.
    pub(crate) certified: u64,
}

/// One vector of a group.
pub(crate) struct MemberSum {
    vector: usize,
    alpha: f64,
    /// Its place in the group's sum.
    pub(crate) range: std::ops::Range<usize>,
    pub(crate) place: Place,
}

/// Where the sum of a vector is.
pub(crate) enum Place {
    /// Here in the accumulator.
    Sums(std::ops::Range<usize>),
    Outer(Box<dyn OuterProducts>),
}

impl PartialSum {
    /// An empty sum. `outer` has a place for the sum of each vector that comes as an outer product.
    pub(crate) fn new(
        plan: &Arc<Plan>,
        permit: u64,
        mut outer: impl FnMut(&str) -> Option<Box<dyn OuterProducts>>,
    ) -> Self {
        let mut forms: Vec<Form> =
            plan.structure.vectors().map(|(_, dimension)| Form::Values(dimension)).collect();
        let mut group_sum = |content: &PlannedContent, dimension: usize| {
            let PlannedContent::Vectors { members, .. } = content else {
                let sums = Accumulator::new(dimension);
                return GroupSum { sums, members: Vec::new(), certified: 0 };
            };
            let mut here = 0;
            let members = members.iter().map(|member| {
                let place = match outer(plan.vector_name(member.vector)) {
                    Some(products) => {
                        if let Some(form) = forms.get_mut(member.vector) {
                            let (left, right) = products.lengths();
                            *form = Form::Outer(left, right);
                        }
                        Place::Outer(products)
                    }
                    None => {
                        let first = here;
                        here += member.range.len();
                        Place::Sums(first..here)
                    }
                };
                let (alpha, range) = (member.alpha.get(), member.range.clone());
                MemberSum { vector: member.vector, alpha, range, place }
            });
            let members = members.collect();
            GroupSum { sums: Accumulator::new(here), members, certified: 0 }
        };
        let groups =
            plan.groups.iter().map(|group| group_sum(&group.content, group.dimension)).collect();
        let measures = Zeroizing::new(vec![0.0; plan.groups.len()]);
        Self { plan: Arc::clone(plan), permit, groups, forms, measures }
    }

    /// Clips one record and adds it, with weight 1. `vectors` stand in the order of the structure;
    /// no vectors at all are an empty record, which contributes zero.
    ///
    /// # Errors
    /// When the shape of the record is not that of the structure; nothing was added then. Values
    /// never raise.
    pub fn add(&mut self, vectors: &[RecordVector<'_>]) -> Result<(), SumError> {
        self.add_weighted(vectors, 1.0)
    }

    /// Adds a record with a weight; see [`ClippedSum::add_weighted`](crate::ClippedSum::add_weighted).
    pub(crate) fn add_weighted<R: Record + ?Sized>(
        &mut self,
        vectors: &R,
        weight: f64,
    ) -> Result<(), SumError> {
        if vectors.count() == 0 {
            return Ok(());
        }
        self.check(vectors)?;
        let plan = Arc::clone(&self.plan);
        let groups = plan.groups.iter().zip(&mut self.groups);
        for ((group, sum), measure) in groups.zip(self.measures.iter_mut()) {
            *measure = match &group.content {
                PlannedContent::Vectors { .. } => sum.squared_norm(vectors),
                PlannedContent::QuantileOfValue(_, vector, _) => match vectors.vector(*vector) {
                    Some(RecordVector::Values([first, ..])) => f64::from(*first),
                    Some(RecordVector::Outer([a, ..], [b, ..])) => f64::from(*a) * f64::from(*b),
                    _ => f64::NAN,
                },
                PlannedContent::Weight(_) | PlannedContent::QuantileOfNorm(..) => 0.0,
            };
        }
        // A record counts in all groups or in none.
        if self.measures.iter().all(|measure| measure.is_finite()) {
            self.contribute(&plan, vectors, weight);
        }
        Ok(())
    }

    /// How long each vector is: its coordinates and 0, or its two factors.
    pub(crate) fn lengths(&self) -> impl Iterator<Item = [usize; 2]> + '_ {
        self.forms.iter().map(|form| match form {
            Form::Values(length) => [*length, 0],
            Form::Outer(left, right) => [*left, *right],
        })
    }

    /// Adds up what was only collected so far, so that threads share this work.
    pub fn finish(&mut self) {
        for group in &mut self.groups {
            group.sums.flush();
            for member in &mut group.members {
                if let Place::Outer(products) = &mut member.place {
                    products.finish();
                }
            }
        }
    }

    /// Checks what can be checked of sums that are kept elsewhere, when they are finished.
    pub(crate) fn check_outer_sums(&self) -> Result<(), SumError> {
        for (planned, group) in self.plan.groups.iter().zip(&self.groups) {
            // No coordinate of a certified vector exceeds the sensitivity. (Beyond 2^63 sums wrap.)
            let bound = group.certified.checked_mul(u64::from(planned.grid.s_int()));
            let bound = bound.filter(|bound| *bound < 1 << 63).unwrap_or(u64::MAX);
            for member in &group.members {
                let Place::Outer(products) = &member.place else { continue };
                let sum = products.sum();
                if sum.len() != member.range.len() || !sum.is_within(bound) {
                    let name = self.plan.vector_name(member.vector).to_owned();
                    return Err(SumError::Uncertified(name));
                }
            }
        }
        Ok(())
    }

    fn check<R: Record + ?Sized>(&self, vectors: &R) -> Result<(), SumError> {
        let (expected, found) = (self.forms.len(), vectors.count());
        if found != expected {
            return Err(SumError::Count { expected, found });
        }
        for (index, expected) in self.forms.iter().enumerate() {
            let found = match vectors.vector(index) {
                Some(RecordVector::Values(values)) => Form::Values(values.len()),
                Some(RecordVector::Outer(left, right)) => Form::Outer(left.len(), right.len()),
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

    /// Adds one record whose measures are known and finite.
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
                    sum.sums.add_wide(&[(units as i64).min(s_int)]);
                }
                PlannedContent::QuantileOfNorm(_, target, _) => {
                    let norm = self.measures.get(*target).map_or(0.0, |n| n.sqrt());
                    let below = plan.clip(*target).is_some_and(|clip| norm <= ClipNorm::get(clip));
                    sum.sums.add_wide(&[if below { s_int } else { -s_int }]);
                }
                PlannedContent::QuantileOfValue(_, _, estimate) => {
                    let below = *measure <= *estimate;
                    sum.sums.add_wide(&[if below { s_int } else { -s_int }]);
                }
            }
        }
    }
}

impl GroupSum {
    /// The squared norm of a record over the group, after joint scaling.
    fn squared_norm<R: Record + ?Sized>(&mut self, vectors: &R) -> f64 {
        let members = self.members.iter_mut();
        members
            .map(|member| {
                let squared = match (vectors.vector(member.vector), &mut member.place) {
                    (Some(RecordVector::Values(values)), _) => kernel::squared_norm(values),
                    (Some(RecordVector::Outer(left, right)), Place::Outer(products)) => {
                        products.squared_norm(left, right)
                    }
                    _ => f64::NAN,
                };
                squared / (member.alpha * member.alpha)
            })
            .sum()
    }

    /// How much rounding may add to the norm of the scaled record.
    fn slack(&self) -> f64 {
        let slack = self.members.iter().map(|member| match &member.place {
            Place::Sums(_) => 0.0,
            Place::Outer(products) => products.slack(),
        });
        slack.sum::<f64>().sqrt()
    }

    /// Rounds one record's part to integers and adds it, if its exact norm is within the sensitivity;
    /// otherwise takes it back, so that the record contributes zero.
    fn add_certified<R: Record + ?Sized>(&mut self, grid: IntegerGrid, vectors: &R, factor: f64) {
        let (s_int, members) = (grid.s_int(), &mut self.members);
        let mut pass = |sums: &mut [i32], direction: Direction| -> u128 {
            let squares = members.iter_mut().map(|member| {
                let factor = factor / member.alpha;
                match (vectors.vector(member.vector), &mut member.place) {
                    (Some(RecordVector::Values(values)), Place::Sums(range)) => {
                        let c = round_down(factor.min(f64::from(f32::MAX)));
                        let sums = sums.get_mut(range.clone()).unwrap_or_default();
                        kernel::quantise(values, c, s_int, direction, sums)
                    }
                    (Some(RecordVector::Outer(_, right)), Place::Outer(products))
                        if direction == Direction::Add =>
                    {
                        products.round(right, factor)
                    }
                    _ => 0,
                }
            });
            squares.sum()
        };
        let counts = self.sums.add_record(|sums| {
            let counts = certified(grid, pass(sums, Direction::Add));
            if !counts {
                pass(sums, Direction::TakeBack);
            }
            counts
        });
        if counts {
            self.certified += 1;
            for member in &mut self.members {
                if let Place::Outer(products) = &mut member.place {
                    products.add();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
