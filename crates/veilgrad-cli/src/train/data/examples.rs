//! Examples as they are in files, and what a model makes of public ones.

use veilgrad_nn::{Model, Whitening};

use crate::error::Error;
use crate::prediction::{Judgement, NumberJudgement};
use crate::train::config::{Config, Declaration};
use crate::train::inputs::Inputs;

/// Examples from files, scaled to their declared bounds. Not `Debug`, because they may be private.
pub(crate) struct Examples {
    pub(super) scaled: Vec<f32>,
    pub(super) labels: Vec<f32>,
    /// The labels of **public** examples as they are in the file, if they are numbers; else empty.
    pub(super) numbers: Vec<f64>,
    /// The examples of each record; `None` if every example is a record.
    pub(super) members: Option<Vec<Vec<u32>>>,
    /// The number of examples without a user, if records are users.
    pub(super) nameless: usize,
}

impl Examples {
    /// Fixed-size batches need exactly the declared number of records, which is public there. Rows without a user may stand
    /// for missing users: as many empty records are added as the rows allow, and contribute zero.
    pub(super) fn complete(&mut self, config: &Config) -> Result<(), Error> {
        let declared = config.data.records;
        if let Some(members) = &mut self.members {
            let all = usize::try_from(declared).unwrap_or(usize::MAX);
            let count = all.clamp(members.len(), members.len().saturating_add(self.nameless));
            members.resize_with(count, Vec::new);
        }
        if self.records() == declared {
            return Ok(());
        }
        let path = config.data.train.to_string();
        let cause = format!(
            "has not exactly {declared} records, as [data] records declares and this sampling needs"
        );
        Err(Error::Data { path, cause })
    }

    /// Whether both have the same inputs, whatever their labels and file formats. False for empty files.
    pub(super) fn has_inputs_of(&self, other: &Self) -> bool {
        let bits = |value: &f32| value.to_bits();
        !self.scaled.is_empty() && self.scaled.iter().map(bits).eq(other.scaled.iter().map(bits))
    }

    pub(super) fn records(&self) -> u64 {
        self.members.as_ref().map_or(self.labels.len(), Vec::len) as u64
    }

    /// The outputs of a model for **public** examples: one number per class, example after example.
    pub(crate) fn outputs(
        &self,
        declaration: &Declaration,
        model: &Model,
        whitening: Option<&Whitening>,
        threads: usize,
    ) -> Result<Vec<f32>, Error> {
        Ok(Inputs::new(declaration)?.outputs(&self.scaled, model, whitening, threads))
    }

    /// The class of each **public** example; NaN where it is none of the declared ones.
    pub(crate) fn labels(&self) -> &[f32] {
        &self.labels
    }

    /// The label of each **public** example, if it is a number, in its own unit and precision; NaN where it is not one.
    pub(crate) fn numbers(&self) -> &[f64] {
        &self.numbers
    }

    /// The accuracy of a model on **public** examples, as `evaluate` counts it. `None` if no example has both a declared class
    /// and a prediction.
    pub(crate) fn accuracy(
        &self,
        declaration: &Declaration,
        model: &Model,
        whitening: Option<&Whitening>,
        threads: usize,
    ) -> Result<Option<f64>, Error> {
        let outputs = self.outputs(declaration, model, whitening, threads)?;
        Ok(Judgement::new(declaration.classes.count(), &outputs, &self.labels).accuracy())
    }

    /// The mean absolute error of a model on **public** examples, in the unit of the label, as `evaluate` computes it. `None` if
    /// no example has both a label and a prediction.
    pub(crate) fn mean_absolute_error(
        &self,
        declaration: &Declaration,
        model: &Model,
        whitening: Option<&Whitening>,
        threads: usize,
    ) -> Result<Option<f64>, Error> {
        let Some(bounds) = declaration.label_bounds else { return Ok(None) };
        let outputs = self.outputs(declaration, model, whitening, threads)?;
        Ok(NumberJudgement::new(bounds, &outputs, &self.numbers).mean_absolute_error())
    }
}
