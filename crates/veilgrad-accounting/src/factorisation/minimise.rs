//! Minimisation of a smooth function: L-BFGS (Nocedal, Math. Comp. 35, 1980) with a backtracking line search.

use std::collections::VecDeque;

use super::series::dot;

/// Pairs of steps and changes of the gradient that approximate the curvature.
const MEMORY: usize = 12;
const MOST_STEPS: usize = 400;
/// A relative decrease of a logarithm below this changes no digit that is shown.
const SMALLEST_DECREASE: f64 = 1e-10;

struct Pair {
    step: Vec<f64>,
    change: Vec<f64>,
    inverse: f64,
}

/// `a + factor b`.
fn moved(a: &[f64], factor: f64, b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a + factor * b).collect()
}

/// A point near `start` where the function (given with its gradient) is nearly as small as possible. The function never
/// increases on the way.
pub(super) fn minimise(start: Vec<f64>, function: impl Fn(&[f64]) -> (f64, Vec<f64>)) -> Vec<f64> {
    let mut point = start;
    let (mut value, mut gradient) = function(&point);
    let mut memory: VecDeque<Pair> = VecDeque::new();
    for _ in 0..MOST_STEPS {
        let mut direction = descent(&memory, &gradient);
        let mut slope = dot(&direction, &gradient);
        if !(slope < 0.0) {
            memory.clear();
            direction = moved(&vec![0.0; point.len()], -1.0, &gradient);
            slope = -dot(&gradient, &gradient);
        }
        let mut length = if memory.is_empty() { 1.0 / (1.0 + (-slope).sqrt()) } else { 1.0 };
        let found = std::iter::from_fn(|| {
            let next = moved(&point, length, &direction);
            let (found, gradient) = function(&next);
            let is_enough = found <= value + 1e-4 * length * slope;
            length *= 0.5;
            Some((is_enough, next, found, gradient))
        });
        let Some((_, next, found, next_gradient)) =
            found.take(40).find(|(is_enough, ..)| *is_enough)
        else {
            return point;
        };
        let (step, change) = (moved(&next, -1.0, &point), moved(&next_gradient, -1.0, &gradient));
        let curvature = dot(&step, &change);
        if curvature > 0.0 {
            memory.push_back(Pair { step, change, inverse: 1.0 / curvature });
            if memory.len() > MEMORY {
                memory.pop_front();
            }
        }
        let decrease = value - found;
        (point, value, gradient) = (next, found, next_gradient);
        if decrease < SMALLEST_DECREASE {
            break;
        }
    }
    point
}

/// Minus the gradient times an approximation of the inverse of the second derivatives: the two-loop recursion.
fn descent(memory: &VecDeque<Pair>, gradient: &[f64]) -> Vec<f64> {
    let mut direction: Vec<f64> = gradient.iter().map(|g| -g).collect();
    let mut factors = Vec::with_capacity(memory.len());
    for pair in memory.iter().rev() {
        let factor = pair.inverse * dot(&pair.step, &direction);
        direction = moved(&direction, -factor, &pair.change);
        factors.push(factor);
    }
    if let Some(last) = memory.back() {
        let scale = 1.0 / (last.inverse * dot(&last.change, &last.change));
        direction.iter_mut().for_each(|d| *d *= scale);
    }
    for (pair, factor) in memory.iter().zip(factors.iter().rev()) {
        let back = pair.inverse * dot(&pair.change, &direction);
        direction = moved(&direction, factor - back, &pair.step);
    }
    direction
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rosenbrock's function in ten dimensions: a curved valley with one minimum, 0 at (1, ..., 1).
    #[test]
    fn the_minimum_of_a_curved_valley_is_found() {
        let function = |x: &[f64]| {
            let (mut value, mut gradient) = (0.0, vec![0.0; x.len()]);
            for i in 0..x.len() - 1 {
                let (a, b) = (x[i + 1] - x[i] * x[i], 1.0 - x[i]);
                value += 100.0 * a * a + b * b;
                gradient[i] -= 400.0 * a * x[i] + 2.0 * b;
                gradient[i + 1] += 200.0 * a;
            }
            (value, gradient)
        };
        let found = minimise(vec![0.5; 10], function);
        assert!(found.iter().all(|x| (x - 1.0).abs() < 1e-3), "{found:?}");
    }

    #[test]
    fn a_function_without_parameters_has_nothing_to_minimise() {
        assert!(minimise(Vec::new(), |_| (1.0, Vec::new())).is_empty());
    }
}
