//! How benchmarks here measure time.

use std::time::Instant;

/// Seconds per call of each candidate: the candidates take turns, and the best of `turns` turns of
/// `calls` calls counts, so that a disturbance hits them alike or not at all.
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
