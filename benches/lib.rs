//! Time and memory of benchmarks.

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

/// CPU seconds of all threads of this process.
pub fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after = stat.rsplit(')').next().unwrap_or("");
    let fields: Vec<f64> = after.split_whitespace().map(|f| f.parse().unwrap_or(0.0)).collect();
    // utime and stime, in ticks of 10 ms.
    (fields.get(11).unwrap_or(&0.0) + fields.get(12).unwrap_or(&0.0)) / 100.0
}

/// The most memory that this process ever had, in MB.
pub fn peak_megabytes() -> f64 {
    megabytes("VmHWM:")
}

/// The memory that this process has, in MB.
pub fn resident_megabytes() -> f64 {
    megabytes("VmRSS:")
}

fn megabytes(key: &str) -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with(key)).unwrap_or("");
    line.split_whitespace().nth(1).and_then(|kb| kb.parse::<f64>().ok()).unwrap_or(0.0) / 1024.0
}
