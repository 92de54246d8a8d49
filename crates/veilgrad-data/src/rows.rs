//! Which rows of a file are read.

use std::ops::Range;

/// Rows of a file, by their numbers from 0: ascending ranges, so that a reader can skip what is between them.
///
/// # Example
/// ```
/// use veilgrad_data::RowRanges;
///
/// let rows = RowRanges::new([3, 4, 9]);
/// assert_eq!(rows.ranges(), [3..5, 9..10]);
/// assert_eq!(rows.iter().collect::<Vec<_>>(), [3, 4, 9]);
/// assert_eq!(RowRanges::consecutive(3..5), RowRanges::new([4, 3]));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RowRanges(Vec<Range<usize>>);

impl RowRanges {
    /// These rows, each once, whatever their order.
    pub fn new(rows: impl IntoIterator<Item = usize>) -> Self {
        let mut ranges: Vec<Range<usize>> = Vec::new();
        let mut rows: Vec<usize> = rows.into_iter().collect();
        rows.sort_unstable();
        for row in rows {
            match ranges.last_mut() {
                Some(last) if last.contains(&row) => {}
                Some(last) if last.end == row => last.end += 1,
                _ => ranges.push(row..row.saturating_add(1)),
            }
        }
        Self(ranges)
    }

    /// Consecutive rows.
    #[must_use]
    pub fn consecutive(rows: Range<usize>) -> Self {
        Self(Vec::from_iter((!rows.is_empty()).then_some(rows)))
    }

    /// The ranges, in ascending order.
    #[must_use]
    pub fn ranges(&self) -> &[Range<usize>] {
        &self.0
    }

    /// The rows, in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.0.iter().cloned().flatten()
    }

    /// The rows in a range, numbered from its start: those of one file, if several follow each other.
    ///
    /// # Example
    /// ```
    /// use veilgrad_data::RowRanges;
    ///
    /// let rows = RowRanges::new([3, 4, 5, 9]);
    /// assert_eq!(rows.within(4..9), RowRanges::new([0, 1]));
    /// ```
    #[must_use]
    pub fn within(&self, range: Range<usize>) -> Self {
        let here = |rows: &Range<usize>| {
            let (start, end) = (rows.start.max(range.start), rows.end.min(range.end));
            (start < end).then(|| start - range.start..end - range.start)
        };
        Self(self.0.iter().filter_map(here).collect())
    }

    /// The number of rows.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.iter().map(ExactSizeIterator::len).sum()
    }
}
