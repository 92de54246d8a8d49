//! Divides rows among threads.

/// The number of threads to use: at most a few per core, since more only take memory.
pub(crate) fn limit(threads: usize) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    threads.clamp(1, (4 * cores).max(16))
}

/// Computes row i of `to` from row i of `from`, with one `worker` (scratch memory) per thread. The result does not
/// depend on the number of threads.
pub(crate) fn each_row<W>(
    from: &[f32],
    width: usize,
    to: &mut [f32],
    to_width: usize,
    threads: usize,
    worker: impl Fn() -> W + Sync,
    fill: impl Fn(&mut W, &[f32], &mut [f32]) + Sync,
) {
    let (width, to_width) = (width.max(1), to_width.max(1));
    let share = (from.len() / width).div_ceil(limit(threads)).max(1);
    std::thread::scope(|scope| {
        let parts = from.chunks(share * width).zip(to.chunks_mut(share * to_width));
        for (from, to) in parts {
            let (worker, fill) = (&worker, &fill);
            scope.spawn(move || {
                let mut worker = worker();
                for (from, to) in from.chunks_exact(width).zip(to.chunks_exact_mut(to_width)) {
                    fill(&mut worker, from, to);
                }
            });
        }
    });
}
