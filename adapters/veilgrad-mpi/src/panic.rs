//! A rank that panics ends the job, instead of leaving the others to wait for it.

/// The exit code of a rank that panicked.
const PANICKED: i32 = 101;

/// From now on, a panic on any thread ends this process at once, and `mpirun` then ends the others. Without it, the other
/// ranks of a reduction wait for ever. The round stays charged and is not released.
///
/// Prints where the panic was, but not its message, which may hold values of records. Call it first: panics that the round
/// engine catches, those of unusable records, still contribute zero and end nothing.
pub fn end_job_on_panic() {
    std::panic::set_hook(Box::new(|info| {
        let place = info.location().map_or(String::new(), |place| format!(" at {place}"));
        eprintln!("a rank panicked{place}: the job ends, and its last round stays charged");
        // Not MPI_Abort, which only the thread that initialised MPI may call. mpirun notices a process that ends without
        // MPI_Finalize.
        // Without exit handlers either: the thread that panics may be any, and the others go on until the process ends.
        signal_hook::low_level::exit(PANICKED);
    }));
}
