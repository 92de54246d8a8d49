//! Delta at any epsilon, from the tilted distribution of the total loss on a lattice.

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
    /// The log of the moment by which the tilted distribution was normalised, and an upper bound on its error.
    pub(crate) log_factor: f64,
    pub(crate) rounding: f64,
    /// Upper bounds on the tilted probability above and below the window.
    pub(crate) above: f64,
    pub(crate) below: f64,
    /// An upper bound on the probability of an infinite loss.
    pub(crate) infinite: f64,
    /// For lower bounds: an upper bound on what sums that the distribution holds in excess add to delta.
    pub(crate) excess: f64,
    /// Whether masses were subtracted, so that some may be negative.
    pub(crate) signed: bool,
    /// If large losses are split off: an upper bound on what sums without a large loss add to delta. `(c, b)` stands for
    /// `e^{c + b epsilon}`.
    pub(crate) without_large: Option<(f64, f64)>,
}

/// The tilted distribution of the total loss in one window, summed up so that delta at any epsilon is one lookup.
pub(crate) struct ComposedLoss {
    sum: Sum,
    /// For every grid point x of the window, the sums over losses L from x on of
    /// `e^{-tilt (L-x)} (1 - e^{x-L})` and of `e^{-(tilt+1) (L-x)}`.
    tails: Vec<(f64, f64)>,
    /// The same sums of absolute masses, if masses may be negative.
    moduli: Option<Vec<(f64, f64)>>,
    /// An upper bound on the error of any sum over masses with the weights of a profile.
    error: f64,
    /// An upper bound on the relative rounding error of sums.
    rounding: f64,
}

impl ComposedLoss {
    /// From the output of the inverse transform, which is not normalised and holds index i at i modulo its length, and the
    /// Euclidean norm of the errors of all masses.
    pub(crate) fn new(sum: Sum, output: &[f64], error: f64) -> Self {
        let points = output.len();
        let (grid, tilt) = (sum.grid, sum.tilt);
        let (decay, decay_more) = ((-tilt * grid).exp(), (-(tilt + 1.0) * grid).exp());
        let gap = -libm::expm1(-grid);
        let scale = 1.0 / points as f64;
        let last = sum.first + points as i64 - 1;
        let start = last.rem_euclid(points as i64) as usize;
        let (head, tail) = output.split_at((start + 1).min(points));
        let sum_tails = |weight: fn(f64) -> f64| {
            let mut tails = Vec::with_capacity(points + 1);
            let (mut profile, mut more) = (0.0, 0.0);
            tails.push((profile, more));
            for mass in head.iter().rev().chain(tail.iter().rev()) {
                // Moves one grid point to the left, then adds the mass there.
                profile = decay * (profile + gap * more);
                more = decay_more * more + weight(*mass) * scale;
                tails.push((profile, more));
            }
            tails.reverse();
            tails
        };
        let moduli = sum.signed.then(|| sum_tails(f64::abs));
        let tails = sum_tails(|mass| mass);
        // An upper bound on the sum of the squared weights `e^{-tilt d} (1 - e^-d)`: their integral plus the largest one.
        let squared_weights = 1.0 / (2.0 * tilt * (2.0 * tilt + 1.0) * (tilt + 1.0) * grid)
            + 1.0 / ((tilt + 1.0) * (tilt + 1.0));
        // Terms beyond 40/tilt are negligible; each step of the recurrence rounds a few times.
        let reach = (40.0 / (tilt * grid)).min(points as f64);
        let rounding = (8.0 * reach + 64.0) * UNIT;
        Self { sum, tails, moduli, error: squared_weights.sqrt() * error * (1.0 + 1e-9), rounding }
    }

    /// Bounds on `E (1 - e^{eps - L})_+`.
    pub(crate) fn delta(&self, epsilon: f64) -> Interval {
        let Sum {
            grid,
            first,
            offset,
            tilt,
            log_factor,
            above,
            below,
            infinite,
            without_large,
            ..
        } = self.sum;
        let x = epsilon - offset.0;
        // The first grid point at or above x, counted from the first of the window.
        let next = (x / grid).ceil() - first as f64;
        // An upper bound on the rounding error of x.
        let x_error = offset.1 + 16.0 * UNIT * (x.abs() + offset.0.abs());
        // e^{log_factor - tilt x}, rounded up (side 1) or down (side -1).
        let factor = |x: f64, side: f64| {
            let size = log_factor.abs() + tilt * x.abs();
            let slack = self.sum.rounding + tilt * x_error + 8.0 * UNIT * size;
            (log_factor - tilt * x + side * slack).exp()
        };
        let position = if next < 0.0 { 0 } else { next.min(self.tails.len() as f64) as usize };
        // Below the window there is no upper bound, and the lower bound is that at its first point.
        let x = if next < 0.0 { first as f64 * grid } else { x };
        let gap = (first as f64 + position as f64) * grid - x;
        // The step of the recurrence, over a fraction of the grid step.
        let moved_to_x = |(profile, more): &(f64, f64)| {
            (-tilt * gap).exp() * (profile - libm::expm1(-gap) * more)
        };
        let value = self.tails.get(position).map_or(0.0, moved_to_x);
        let moduli = self.moduli.as_ref().unwrap_or(&self.tails);
        let size = moduli.get(position).map_or(0.0, moved_to_x).abs();
        // The slope of `E (1 - e^{x - L})_+` in x is minus `E e^{x - L}` over the losses above x. Because of the error of x,
        // they may include those at the grid point before.
        let slope_at = |position: usize| moduli.get(position).map_or(0.0, |(_, more)| *more);
        let slope = slope_at(position) + slope_at(position.saturating_sub(1));
        let error = self.error + self.rounding * (size + self.error) + 2.0 * x_error * slope;
        let end = (first as f64 + self.tails.len() as f64 - 1.0) * grid;
        let beyond = above * (-tilt * (end - x)).exp().min(1.0);
        let without_large =
            without_large.map_or(0.0, |(constant, slope)| (constant + slope * x).exp());
        let upper = factor(x, 1.0) * (value + error + beyond) + infinite + without_large;
        let lower = factor(x, -1.0) * (value - error - above - below) - self.sum.excess;
        Interval {
            lower: if lower > 0.0 { lower } else { 0.0 },
            upper: if upper.is_nan() || next < 0.0 { f64::INFINITY } else { upper },
        }
    }
}
