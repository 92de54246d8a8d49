//! Adding one partial sum to another.

use std::sync::Arc;

use super::{Form, PartialSum, Storage};
use crate::outer::OuterMemory;
use crate::sum_error::SumError;

impl PartialSum {
    /// Adds another partial sum of the same round. Returns the memory of its outer products, reset to zero.
    ///
    /// # Errors
    /// When the other sum was begun with another sample, or with a plan that differs in structure, groups, noise or clip
    /// norms; when a sum of outer products is larger than its certified records allow; when both contain the same bytes;
    /// and when this sum keeps outer products itself.
    pub fn absorb(&mut self, mut part: Self) -> Result<OuterMemory, SumError> {
        let same_plan = Arc::ptr_eq(&self.plan, &part.plan) || self.plan.same_sums(&part.plan);
        if !same_plan || self.sample != part.sample {
            return Err(SumError::Foreign);
        }
        self.check_storage()?;
        if part.arrived.iter().any(|number| self.arrived.contains(number)) {
            return Err(SumError::Duplicate);
        }
        part.finish();
        part.check_outer_sums()?;
        self.arrived.append(&mut part.arrived);
        let mut memory = Vec::new();
        let groups = self.plan.groups.iter().zip(&mut self.groups);
        for ((planned, mine), theirs) in groups.zip(part.groups) {
            mine.certified = mine.certified.saturating_add(theirs.certified);
            let sums = theirs.sums;
            if theirs.members.iter().all(|member| matches!(member.storage, Storage::Sums(_))) {
                mine.sums.merge(sums);
                continue;
            }
            for (member, planned) in theirs.members.into_iter().zip(planned.members()) {
                match member.storage {
                    Storage::Sums(range) => mine.sums.add_at(member.range, sums.part(range)),
                    Storage::Outer(mut products) => {
                        mine.sums.add_at(member.range, products.sum());
                        products.restart();
                        let name = self.plan.vector_name(planned.vector).to_owned();
                        memory.push((name, products));
                    }
                }
            }
        }
        Ok(memory)
    }

    /// Other sums can be added only to coordinates, not to outer products.
    pub(crate) fn check_storage(&self) -> Result<(), SumError> {
        match self.forms.iter().position(|form| matches!(form, Form::Outer(..))) {
            Some(index) => Err(SumError::Form(self.plan.vector_name(index).to_owned())),
            None => Ok(()),
        }
    }
}
