//! Gradients of embedding tables: per record, only the rows that its tokens name.

use veilgrad_mechanism::{RecordVector, SparseRows};

use crate::gemm::wipe;

/// A table of rows that the numbers of a record name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Table {
    pub(crate) entries: usize,
    pub(crate) dimension: usize,
}

impl Table {
    /// The entry that a number names: 0, 1, … as an f32.
    pub(crate) fn entry(&self, number: f32) -> Option<usize> {
        // The cast saturates and turns NaN into 0; the comparison rejects both.
        let entry = number as usize;
        (entry as f32 == number && entry < self.entries).then_some(entry)
    }
}

/// The gradients of an embedding table for some records: the rows that each record names, in ascending order. The output
/// gradients of an entry that occurs several times are added up first, in the order of the record, so that these
/// are the rows of the whole table's gradient, bit for bit.
#[derive(Default)]
pub struct TableGradients {
    length: usize,
    dimension: usize,
    /// Where the rows of each record begin, and after them the end of the last.
    starts: Vec<usize>,
    rows: Vec<u32>,
    values: Vec<f32>,
    /// The entries of the current record, with their positions.
    order: Vec<(u32, u32)>,
}

impl TableGradients {
    /// Computes the gradients for records with these inputs and output gradients, reusing the allocations.
    pub(crate) fn compute(&mut self, table: Table, records: usize, x: &[f32], dy: &[f32]) {
        let Table { entries, dimension } = table;
        (self.length, self.dimension) = (entries * dimension, dimension);
        self.starts.clear();
        self.starts.push(0);
        self.rows.clear();
        self.values.clear();
        let positions = x.len() / records.max(1);
        for record in 0..records {
            let numbers = &x[record * positions..][..positions];
            let dy = &dy[record * positions * dimension..][..positions * dimension];
            let named = numbers.iter().enumerate().filter_map(|(position, number)| {
                Some((table.entry(*number)? as u32, position as u32))
            });
            self.order.clear();
            self.order.extend(named);
            // Pairs differ, so that the order is unique.
            self.order.sort_unstable();
            for same in self.order.chunk_by(|a, b| a.0 == b.0) {
                let first = self.values.len();
                self.rows.extend(same.first().map(|(entry, _)| entry));
                self.values.resize(first + dimension, 0.0);
                for (_, position) in same {
                    let dy = &dy[*position as usize * dimension..][..dimension];
                    for (sum, dy) in self.values[first..].iter_mut().zip(dy) {
                        *sum += dy;
                    }
                }
            }
            self.starts.push(self.rows.len());
        }
    }

    fn sparse(&self, record: usize) -> SparseRows<'_> {
        let range = match self.starts.get(record..) {
            Some([first, end, ..]) => *first..*end,
            _ => 0..0,
        };
        SparseRows {
            length: self.length,
            width: self.dimension,
            rows: &self.rows[range.clone()],
            values: &self.values[range.start * self.dimension..range.end * self.dimension],
        }
    }

    /// The gradient of a record.
    #[must_use]
    pub fn record(&self, record: usize) -> RecordVector<'_> {
        RecordVector::Rows(self.sparse(record))
    }

    /// The gradient of a record, added to the whole table.
    pub fn add_to(&self, record: usize, whole: &mut [f32]) {
        let SparseRows { width, rows, values, .. } = self.sparse(record);
        for (row, values) in rows.iter().zip(values.chunks_exact(width.max(1))) {
            for (sum, value) in whole[*row as usize * width..].iter_mut().zip(values) {
                *sum += value;
            }
        }
    }

    /// Overwrites everything with zeros.
    pub(crate) fn wipe(&mut self) {
        wipe(&mut self.values);
        self.starts.fill(0);
        self.rows.clear();
        self.rows.resize(self.rows.capacity(), 0);
        self.order.clear();
        self.order.resize(self.order.capacity(), (0, 0));
    }

    #[cfg(test)]
    pub(crate) fn is_wiped(&self) -> bool {
        self.values.iter().all(|value| *value == 0.0)
            && self.rows.iter().all(|row| *row == 0)
            && self.order.iter().all(|pair| *pair == (0, 0))
    }
}
