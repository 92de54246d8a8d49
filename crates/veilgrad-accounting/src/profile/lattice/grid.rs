//! Grids of losses, and the direction in which losses are rounded to them.

/// The direction in which losses are rounded to the grid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rounded {
    Up,
    Down,
}

/// A grid of multiples of a step: all of them near the centre, where a step with a small sampling rate has most of its mass,
/// and with a spacing in proportion to the distance further out. Any choice is sound; this one is nearly as tight as all
/// multiples.
#[derive(Clone, Copy)]
pub(super) struct Grid {
    pub(super) step: f64,
    pub(super) density: i64,
    pub(super) centre: f64,
}

impl Grid {
    /// Indices stay in the range where an f64 is exact.
    pub(super) const LAST: f64 = 9e15;

    pub(super) fn index_below(&self, loss: f64) -> i64 {
        (loss / self.step).floor().clamp(-Self::LAST, Self::LAST) as i64
    }

    pub(super) fn index_above(&self, loss: f64) -> i64 {
        (loss / self.step).ceil().clamp(-Self::LAST, Self::LAST) as i64
    }

    fn centre_index(&self) -> i64 {
        (self.centre / self.step).round().clamp(-Self::LAST, Self::LAST) as i64
    }

    pub(super) fn indices(&self, first: i64, last: i64) -> Vec<i64> {
        let centre = self.centre_index();
        let mut indices = Vec::new();
        let mut index = first;
        while index < last {
            indices.push(index);
            let stride = ((index - centre).abs() / self.density).max(1);
            // No cell crosses the centre.
            let next = index.saturating_add(stride);
            index = if index < centre && next > centre { centre } else { next };
        }
        indices.push(last);
        indices
    }
}
