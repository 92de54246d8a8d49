//! Book-keeping: from a tile's gradients to exact sums with certificates.

use veilgrad_events::IntegerGrid;
use veilgrad_mechanism::exact::{self, Direction, Part, round_down};
use veilgrad_mechanism::{Certificate, ClippedSum, RoundPlan, SumError};

use crate::outer::{LEFT_MAX, OuterSum, RIGHT_MAX, round};

/// A vector of gradients that a book sums, by its name in the plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vector {
    /// The name of the parameter.
    pub name: String,
    /// Its length.
    pub length: usize,
    /// Whether a record's gradient is the outer product of two vectors, of these lengths.
    pub outer: Option<(usize, usize)>,
}

/// The gradients of some records, vector by vector in the order that the book was told.
///
/// # Guarantee
/// Everything of row i must be a function of record i and of public state alone.
pub trait Rows {
    /// The gradient of a vector by a record; not asked for where it is an outer product.
    fn gradient(&self, vector: usize, row: usize) -> &[f32];

    /// The two factors of an outer product.
    fn factors(&self, vector: usize, row: usize) -> (&[f32], &[f32]);
}

/// One thread's sums of the groups of gradients.
///
/// # Guarantee
/// What is handed to a [`ClippedSum`] for a group is the sum of one integer vector per certificate.
/// That vector is a function of the record's gradients and of the plan alone, and its squared norm was
/// computed exactly: of vectors as the sum of their squares, of an outer product `A B^T` as
/// `|A|^2 |B|^2`. A record with a gradient that is not finite, or without a certificate, adds nothing.
pub struct Book {
    groups: Vec<GroupBook>,
}

struct GroupBook {
    name: String,
    s_int: u32,
    members: Vec<Member>,
    certificates: Vec<Certificate>,
    /// Records in the members' 32-bit sums.
    unflushed: u32,
}

struct Member {
    vector: usize,
    alpha: f64,
    kind: Kind,
}

enum Kind {
    /// The gradient is there: integers of up to 2^27, summed in 32 bits for up to 15 records, then in 64.
    Dense { narrow: Vec<i32>, wide: Vec<i64> },
    /// The gradient is the outer product of the input of a step and what came back.
    Outer(Box<Outer>),
}

struct Outer {
    sum: OuterSum,
    /// The length that the left factor should have, in integers.
    length: f64,
    left: Vec<i16>,
    right: Vec<i16>,
    /// Of the record at hand: the scale of the left factor and its exact squared norm.
    scale: f32,
    squares: u64,
}

/// Records of at most the largest sensitivity per coordinate that fit 32 bits.
const UNFLUSHED_MAX: u32 = (i32::MAX as u32) / IntegerGrid::MAX_SENSITIVITY;

impl Book {
    /// Sums for those groups of a plan that are summed outside.
    #[must_use]
    pub fn new(vectors: &[Vector], plan: &RoundPlan, groups: &[String]) -> Self {
        let group = |name: &String| {
            let s_int = plan.grid(name).map_or(1, |grid| grid.s_int());
            let members: Vec<Member> = plan
                .members(name)
                .filter_map(|member| {
                    let vector = vectors.iter().position(|v| v.name == member.vector)?;
                    let kind = Kind::new(&vectors[vector], s_int);
                    Some(Member { vector, alpha: member.alpha.get(), kind })
                })
                .collect();
            let (name, certificates) = (name.clone(), Vec::new());
            GroupBook { name, s_int, members, certificates, unflushed: 0 }
        };
        Self { groups: groups.iter().map(group).collect() }
    }

    /// Clips, rounds, certifies and adds the gradients of one record. Leaves the norms of its groups, in
    /// order, before clipping; one that is not finite means that nothing was added.
    pub fn add(&mut self, plan: &RoundPlan, rows: &impl Rows, row: usize, norms: &mut Vec<f64>) {
        norms.clear();
        norms.extend(self.groups.iter_mut().map(|group| group.squared_norm(rows, row)));
        if norms.iter().all(|norm| norm.is_finite()) {
            for (group, squared_norm) in self.groups.iter_mut().zip(norms.iter()) {
                group.add(plan, rows, row, *squared_norm);
            }
        }
        norms.iter_mut().for_each(|norm| *norm = norm.sqrt());
    }

    /// Adds up what waits.
    pub fn finish(&mut self) {
        for group in &mut self.groups {
            group.flush();
            for member in &mut group.members {
                if let Kind::Outer(outer) = &mut member.kind {
                    outer.sum.finish();
                }
            }
        }
    }

    /// The sums of the groups.
    #[cfg(test)]
    pub(crate) fn sums(&self) -> Vec<Vec<i64>> {
        let values = |part: Part<'_>| match part {
            Part::Narrow(values) => values.iter().map(|value| i64::from(*value)).collect(),
            Part::Wide(values) => values.to_vec(),
        };
        let group = |group: &GroupBook| group.parts().into_iter().flat_map(values).collect();
        self.groups.iter().map(group).collect()
    }

    /// Hands the sums and certificates on and starts anew.
    ///
    /// # Errors
    /// When the sum is of another plan.
    pub fn hand_over(&mut self, sum: &mut ClippedSum) -> Result<(), SumError> {
        self.finish();
        for group in &mut self.groups {
            let certificates = std::mem::take(&mut group.certificates);
            sum.add_exact_parts(&group.name, &group.parts(), certificates)?;
            for member in &mut group.members {
                match &mut member.kind {
                    Kind::Dense { wide, .. } => wide.fill(0),
                    Kind::Outer(outer) => outer.sum.restart(),
                }
            }
        }
        Ok(())
    }
}

impl Kind {
    fn new(vector: &Vector, s_int: u32) -> Self {
        let Some((inputs, outputs)) = vector.outer else {
            return Self::Dense { narrow: vec![0; vector.length], wide: vec![0; vector.length] };
        };
        // With equally fine factors, |A|/sqrt(inputs) = |B|/sqrt(outputs) where the record has all of
        // the group's norm, |A||B| = S_int; but no shorter an A than makes every such B fit its bits.
        let s_int = f64::from(s_int);
        let length = (s_int * (inputs as f64 / outputs as f64).sqrt()).sqrt();
        let length = length.max(s_int / f64::from(RIGHT_MAX));
        Self::Outer(Box::new(Outer {
            sum: OuterSum::new(inputs, outputs),
            length,
            left: vec![0; inputs],
            right: vec![0; outputs],
            scale: 1.0,
            squares: 0,
        }))
    }
}

impl Outer {
    /// Rounds the left factor; the squared norm of the outer product of what it became with the right
    /// factor as it is.
    fn squared_norm(&mut self, left: &[f32], right: &[f32]) -> f64 {
        let largest = largest(left);
        let squared = exact::squared_norm(left);
        if !squared.is_finite() {
            return f64::NAN;
        }
        // Finite for a factor of zeros, too; it stays zero at any scale.
        let scale = (self.length / squared.sqrt()).min(f64::from(LEFT_MAX / largest)).min(1e30);
        self.scale = round_down(scale).max(f32::MIN_POSITIVE);
        self.squares = round(left, self.scale, LEFT_MAX, &mut self.left);
        let scale = f64::from(self.scale);
        self.squares as f64 / (scale * scale) * exact::squared_norm(right)
    }
}

/// The largest absolute value. As bits, absolute values have the same order.
fn largest(x: &[f32]) -> f32 {
    let mut bits = 0;
    crate::layer::fast(
        #[inline(always)]
        || bits = x.iter().map(|x| x.abs().to_bits()).fold(0, u32::max),
    );
    f32::from_bits(bits)
}

impl GroupBook {
    fn squared_norm(&mut self, rows: &impl Rows, row: usize) -> f64 {
        let members = self.members.iter_mut();
        members
            .map(|member| {
                let squared = match &mut member.kind {
                    Kind::Dense { .. } => exact::squared_norm(rows.gradient(member.vector, row)),
                    Kind::Outer(outer) => {
                        let (left, right) = rows.factors(member.vector, row);
                        outer.squared_norm(left, right)
                    }
                };
                squared / (member.alpha * member.alpha)
            })
            .sum()
    }

    fn add(&mut self, plan: &RoundPlan, rows: &impl Rows, row: usize, squared_norm: f64) {
        if self.unflushed == UNFLUSHED_MAX {
            self.flush();
        }
        self.unflushed += 1;
        // Rounding moves each place of a right factor by at most 1/2.
        let slack = self.members.iter().map(|member| match &member.kind {
            Kind::Dense { .. } => 0.0,
            Kind::Outer(outer) => outer.squares as f64 * outer.right.len() as f64 / 4.0,
        });
        let slack = slack.sum::<f64>().sqrt();
        let Some(factor) = plan.clip_factor(&self.name, squared_norm, slack) else { return };
        let within_f32 = |factor: f64| round_down(factor.min(f64::from(f32::MAX)));
        let mut squares = 0u128;
        for member in &mut self.members {
            let factor = factor / member.alpha;
            squares += match &mut member.kind {
                Kind::Dense { narrow, .. } => {
                    let gradient = rows.gradient(member.vector, row);
                    let factor = within_f32(factor);
                    exact::quantise(gradient, factor, self.s_int, Direction::Add, narrow)
                }
                Kind::Outer(outer) => {
                    let (_, right) = rows.factors(member.vector, row);
                    let factor = within_f32(factor / f64::from(outer.scale));
                    let squares = round(right, factor, RIGHT_MAX, &mut outer.right);
                    u128::from(outer.squares) * u128::from(squares)
                }
            };
        }
        let certificate = plan.certify(&self.name, squares);
        for member in &mut self.members {
            match (&mut member.kind, &certificate) {
                (Kind::Outer(outer), Some(_)) => {
                    outer.sum.push(&outer.left, &outer.right);
                }
                (Kind::Dense { narrow, .. }, None) => {
                    let gradient = rows.gradient(member.vector, row);
                    let factor = within_f32(factor / member.alpha);
                    exact::quantise(gradient, factor, self.s_int, Direction::TakeBack, narrow);
                }
                _ => {}
            }
        }
        self.certificates.extend(certificate);
    }

    fn flush(&mut self) {
        if self.unflushed == 0 {
            return;
        }
        for member in &mut self.members {
            if let Kind::Dense { narrow, wide } = &mut member.kind {
                exact::flush(narrow, wide);
            }
        }
        self.unflushed = 0;
    }

    /// The sums of the members, one behind the other, when they are finished.
    fn parts(&self) -> Vec<Part<'_>> {
        let members = self.members.iter();
        let parts = members.map(|member| match &member.kind {
            Kind::Dense { wide, .. } => Part::Wide(wide),
            Kind::Outer(outer) => outer.sum.sum(),
        });
        parts.collect()
    }
}

#[cfg(test)]
mod tests;
