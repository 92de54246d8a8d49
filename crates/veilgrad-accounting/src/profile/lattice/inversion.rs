//! Inversion: delta at any epsilon from the tilted distribution of the total loss on a lattice.

use crate::Interval;
use crate::number::UNIT;

/// Parameters and error bounds of the tilted distribution of the total loss.
pub(crate) struct Sum {
    pub(crate) grid: f64,
    /// The lattice index at which the window begins.
    pub(crate) first: i64,
    /// The total loss is `index * grid + offset.0`, with a rounding error of at most `offset.1`.
    pub(crate) offset: (f64, f64),
    pub(crate) tilt: f64,
    /// The log of the moment by which the tilted distribution was normalised, and a bound of its error.
    pub(crate) log_factor: f64,
    pub(crate) rounding: f64,
    /// Upper bounds of the tilted probability above and below the window.
    pub(crate) above: f64,
    pub(crate) below: f64,
    /// An upper bound of the probability of an infinite loss.
    pub(crate) infinite: f64,
    /// An upper bound of what sums cost that are there and should not be.
    pub(crate) excess: f64,
    /// Whether masses were subtracted, so that some may be negative.
    pub(crate) signed: bool,
    /// If large losses are split off, `e^{small.0 + small.1 epsilon}` bounds what the others add to delta.
    pub(crate) small: Option<(f64, f64)>,
}

/// The tilted sum of all losses in one window.
pub(crate) struct ComposedLoss {
    sum: Sum,
    /// For every grid point x of the window, the sums over losses L from x on of
    /// `e^{-tilt (L-x)} (1 - e^{x-L})` and of `e^{-(tilt+1) (L-x)}`.
    tails: Vec<(f64, f64)>,
    /// The same of the moduli of masses, if they may be negative.
    moduli: Option<Vec<(f64, f64)>>,
    /// At least how far any sum over masses with the weights of a profile may be off.
    error: f64,
    /// At least how far sums may be off, relatively.
    rounding: f64,
}

impl ComposedLoss {
    /// From the masses, not yet divided by their number and in places modulo that, and the root of the sum of
    /// the squares of all their errors.
    pub(crate) fn new(sum: Sum, output: &[f64], error: f64) -> Self {
        let points = output.len();
        let (grid, tilt) = (sum.grid, sum.tilt);
        let (decay, decay_more) = ((-tilt * grid).exp(), (-(tilt + 1.0) * grid).exp());
        let gap = -libm::expm1(-grid);
        let scale = 1.0 / points as f64;
        let last = sum.first + points as i64 - 1;
        let start = last.rem_euclid(points as i64) as usize;
        let (head, tail) = output.split_at((start + 1).min(points));
        let tails = |size: fn(f64) -> f64| {
            let mut tails = Vec::with_capacity(points + 1);
            let (mut profile, mut more) = (0.0, 0.0);
            tails.push((profile, more));
            for mass in head.iter().rev().chain(tail.iter().rev()) {
                // One step to the left, then the mass that is there.
                profile = decay * (profile + gap * more);
                more = decay_more * more + size(*mass) * scale;
                tails.push((profile, more));
            }
            tails.reverse();
            tails
        };
        let moduli = sum.signed.then(|| tails(f64::abs));
        let tails = tails(|mass| mass);
        // The root of the sum of squared weights `e^{-tilt d} (1 - e^-d)`: an integral, and the largest.
        let weights = 1.0 / (2.0 * tilt * (2.0 * tilt + 1.0) * (tilt + 1.0) * grid)
            + 1.0 / ((tilt + 1.0) * (tilt + 1.0));
        // Terms that matter lie within 40/tilt; each step of the recurrence rounds a few times.
        let reach = (40.0 / (tilt * grid)).min(points as f64);
        let rounding = (8.0 * reach + 64.0) * UNIT;
        Self { sum, tails, moduli, error: weights.sqrt() * error * (1.0 + 1e-9), rounding }
    }

    /// Bounds of `E (1 - e^{eps - L})_+`.
    pub(crate) fn delta(&self, epsilon: f64) -> Interval {
        let Sum { grid, first, offset, tilt, log_factor, above, below, infinite, small, .. } =
            self.sum;
        let x = epsilon - offset.0;
        // The first grid point that is not below, as a place in the window.
        let next = (x / grid).ceil() - first as f64;
        // How far x may be off.
        let moved = offset.1 + 16.0 * UNIT * (x.abs() + offset.0.abs());
        let factor = |x: f64, side: f64| {
            let size = log_factor.abs() + tilt * x.abs();
            let room = self.sum.rounding + tilt * moved + 8.0 * UNIT * size;
            (log_factor - tilt * x + side * room).exp()
        };
        let place = if next < 0.0 { 0 } else { next.min(self.tails.len() as f64) as usize };
        // Before the window there is no upper bound; the lower one is that at its begin.
        let x = if next < 0.0 { first as f64 * grid } else { x };
        let gap = (first as f64 + place as f64) * grid - x;
        // As in the recurrence, by part of a step; nothing is left beyond the window.
        let moved_to_x = |(profile, more): &(f64, f64)| {
            (-tilt * gap).exp() * (profile - libm::expm1(-gap) * more)
        };
        let value = self.tails.get(place).map_or(0.0, moved_to_x);
        let moduli = self.moduli.as_ref().unwrap_or(&self.tails);
        let size = moduli.get(place).map_or(0.0, moved_to_x).abs();
        // Moving x changes `E (1 - e^{x - L})_+` by as much times `E e^{x - L}` over the losses from there on; those at the
        // grid point before are among them if x is off.
        let slope_at = |place: usize| moduli.get(place).map_or(0.0, |(_, more)| *more);
        let slope = slope_at(place) + slope_at(place.saturating_sub(1));
        let off = self.error + self.rounding * (size + self.error) + 2.0 * moved * slope;
        let end = (first as f64 + self.tails.len() as f64 - 1.0) * grid;
        let beyond = above * (-tilt * (end - x)).exp().min(1.0);
        let left_out = small.map_or(0.0, |(constant, slope)| (constant + slope * x).exp());
        let upper = factor(x, 1.0) * (value + off + beyond) + infinite + left_out;
        let lower = factor(x, -1.0) * (value - off - above - below) - self.sum.excess;
        Interval {
            lower: if lower > 0.0 { lower } else { 0.0 },
            upper: if upper.is_nan() || next < 0.0 { f64::INFINITY } else { upper },
        }
    }
}
