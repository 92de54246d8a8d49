//! The private examples that one process of a job reads: all of them, or those of its share of the records.

use std::path::Path;
use std::sync::Arc;

use veilgrad_data::RowRanges;
use veilgrad_data::table::is_table;
use veilgrad_nn::round::share_of;

use super::examples::Examples;
use super::load::{Loaded, append, array_rows, data_error, label_array, labelled_schema};
use super::{TrainingRecords, into_units, train};
use crate::error::Error;
use crate::train::config::{Config, Declaration, Sampling};
use crate::train::inputs::{Inputs, declared_shape, scale, shape};

/// One of the processes that share the records of a job.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Process {
    pub(crate) rank: u64,
    pub(crate) size: u64,
}

impl Process {
    /// The only process of a job, or one that needs all records.
    pub(crate) const ALONE: Self = Self { rank: 0, size: 1 };
}

/// The private examples of one process. Not `Debug`, because they are private.
pub(crate) struct Share {
    examples: Examples,
    /// The rows of the files that were read, and how many there are.
    rows: RowRanges,
    all_rows: usize,
    /// The number of the first record that is here, and of all records.
    first: u64,
    count: u64,
}

/// Reads the private examples of one process. Of others it reads labels and users alone, which say what belongs to which
/// record.
///
/// Rounds that compute a public number of rows give any record to any process, which must then read all.
pub(crate) fn read(config: &Config, process: Process) -> Result<Share, Error> {
    if process.size <= 1 || config.privacy.sampling == Sampling::Truncated {
        let examples = train(config)?;
        let (all_rows, count) = (examples.labels.len(), examples.records());
        return Ok(Share {
            examples,
            rows: RowRanges::consecutive(0..all_rows),
            all_rows,
            first: 0,
            count,
        });
    }
    let (examples, rows_of_files) = labels(config)?;
    let mut examples = into_units(config, examples)?;
    let (all_rows, count) = (examples.labels.len(), examples.records());
    let share = share_of(count, process.rank, process.size);
    // No more than there are records in memory.
    let rows = keep(&mut examples, share.start as usize..share.end as usize);
    examples.scaled = inputs(config, &rows, &rows_of_files)?;
    Ok(Share { examples, rows, all_rows, first: share.start, count })
}

/// All private examples without their inputs, and how many each file has.
fn labels(config: &Config) -> Result<(Examples, Vec<usize>), Error> {
    let (declaration, data) = (config.declaration(), &config.data);
    // Sizes that cannot be transformed are refused before a file is opened.
    shape(&declaration)?;
    let mut schema = labelled_schema(config);
    schema.columns.clear();
    let name = data.arrays.as_ref().map(|arrays| arrays.labels.as_str());
    let (mut all, mut rows_of_files) = (Loaded::default(), Vec::new());
    for (path, labels) in data.examples() {
        let before = all.labels.len();
        if is_table(path) {
            all.add_table(schema.read(path).map_err(data_error)?);
        } else {
            let (labels, numbers) = label_array(&declaration, labels.unwrap_or(path), name)?;
            let scaled = Vec::new();
            all.add(Examples { scaled, labels, numbers, members: None, nameless: 0 });
        }
        rows_of_files.push(all.labels.len() - before);
    }
    Ok((all.into_examples(), rows_of_files))
}

/// The scaled inputs of some rows of the private files, each of which has this many.
fn inputs(config: &Config, rows: &RowRanges, rows_of_files: &[usize]) -> Result<Vec<f32>, Error> {
    let (mut all, mut first) = (Vec::new(), 0);
    for ((path, labels), count) in config.data.examples().zip(rows_of_files) {
        let here = rows.within(first..first + count);
        append(&mut all, inputs_of_file(config, path, labels.unwrap_or(path), &here, *count)?);
        first += count;
    }
    Ok(all)
}

/// The scaled inputs of some rows of one file, which has as many rows as there are labels.
fn inputs_of_file(
    config: &Config,
    path: &Path,
    labels: &Path,
    rows: &RowRanges,
    all_rows: usize,
) -> Result<Vec<f32>, Error> {
    let (declaration, data) = (config.declaration(), &config.data);
    if is_table(path) {
        let array = labelled_schema(config).read_rows(path, rows).map_err(data_error)?;
        if array.rows().len() != rows.count() {
            let path = path.display().to_string();
            return Err(Error::Data { path, cause: "changed while it was read".to_owned() });
        }
        return Ok(array.values);
    }
    let width = declared_shape(&declaration)?.iter().product();
    let name = data.arrays.as_ref().map(|arrays| arrays.inputs.as_str());
    let read = |rows: &RowRanges| array_rows(path, name, width, rows);
    // Every process notices: the last row is there, and none after it.
    let last = read(&RowRanges::consecutive(all_rows.saturating_sub(1)..all_rows + 1))?;
    if last.rows().len() != all_rows.min(1) {
        let path = labels.display().to_string();
        let cause = "has not as many labels as there are examples".to_owned();
        return Err(Error::Data { path, cause });
    }
    let mut values = read(rows)?.values;
    scale(&declaration, &mut values)?;
    Ok(values)
}

/// Drops the labels of all records but these. Returns the rows that are left; their examples are numbered in this order.
fn keep(examples: &mut Examples, records: std::ops::Range<usize>) -> RowRanges {
    let rows = match &mut examples.members {
        None => RowRanges::consecutive(records),
        Some(members) => {
            members.truncate(records.end);
            members.drain(..records.start.min(members.len()));
            let rows = RowRanges::new(members.iter().flatten().map(|row| *row as usize));
            let places: Vec<usize> = rows.iter().collect();
            for row in members.iter_mut().flatten() {
                // Every row is there, and its place is no larger.
                *row = places.binary_search(&(*row as usize)).unwrap_or_default() as u32;
            }
            rows
        }
    };
    examples.labels = rows.iter().filter_map(|row| examples.labels.get(row).copied()).collect();
    rows
}

impl Share {
    /// Whether the private files together have exactly these **public** inputs, whatever their labels and file formats. Reads all of them
    /// only if the rows that are here are the same.
    pub(super) fn has_inputs_of(&self, public: &Examples, config: &Config) -> Result<bool, Error> {
        if public.labels.len() != self.all_rows {
            return Ok(false);
        }
        let width = public.scaled.len() / self.all_rows.max(1);
        let row = |row: usize| public.scaled.get(row * width..(row + 1) * width);
        let theirs = self.rows.iter().filter_map(row).flatten();
        let bits = |value: &f32| value.to_bits();
        if !self.examples.scaled.iter().map(bits).eq(theirs.map(bits)) {
            return Ok(false);
        }
        match self.rows.count() == self.all_rows {
            true => Ok(public.has_inputs_of(&self.examples)),
            false => Ok(public.has_inputs_of(&train(config)?)),
        }
    }

    /// Computes the inputs of the model; before whitening, if the run begins with preconditioning.
    pub(crate) fn into_records(
        self,
        declaration: &Declaration,
        threads: usize,
    ) -> Result<TrainingRecords, Error> {
        let (Self { examples, first, count, .. }, inputs) = (self, Inputs::new(declaration)?);
        let rows = inputs.rows(examples.scaled, declaration.precondition.is_some(), threads);
        let (inputs, labels, members) = (Arc::new(inputs), examples.labels, examples.members);
        Ok(TrainingRecords { inputs, rows, labels, members, first, count })
    }
}

#[cfg(test)]
mod tests;
