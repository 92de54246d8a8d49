//! Timing of benchmarks.

use std::time::Instant;

/// Seconds per call of each candidate, in the best of `turns` turns of `calls` calls. The candidates take
/// turns, so that a disturbance of the machine affects them alike.
pub fn race(turns: usize, calls: usize, candidates: &mut [&mut dyn FnMut()]) -> Vec<f64> {
    let mut best = vec![f64::INFINITY; candidates.len()];
    for _ in 0..turns {
        for (best, candidate) in best.iter_mut().zip(candidates.iter_mut()) {
            let start = Instant::now();
            for _ in 0..calls {
                candidate();
            }
            *best = best.min(start.elapsed().as_secs_f64() / calls as f64);
        }
    }
    best
}
