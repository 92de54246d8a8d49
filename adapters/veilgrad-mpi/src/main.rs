//! `mpirun -n N veilgrad-mpi train CONFIG`: `veilgrad train CONFIG` on N processes, with the same results.

use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use mpi::Threading;
use mpi::traits::Communicator;
use veilgrad_mpi::{Rank, World, end_job_on_panic};

fn main() -> ExitCode {
    end_job_on_panic();
    let words: Vec<OsString> = std::env::args_os().collect();
    let Some((universe, _)) = mpi::initialize_with_threading(Threading::Funneled) else {
        eprintln!("error: MPI cannot be initialised");
        return ExitCode::FAILURE;
    };
    if universe.world().rank() == 0 {
        let world = World::default();
        let code = veilgrad_cli::lead(words, Box::new(world.clone()));
        if !world.end() {
            // mpirun ends the other ranks, which wait for the rest of a round.
            std::process::exit(i32::from(code));
        }
        return ExitCode::from(code);
    }
    ignore_signals();
    if let Err(failure) = veilgrad_cli::follow(&mut Rank) {
        // What can go wrong before the first round is reported by rank 0, for all ranks. Now it may be waiting for this one.
        failure.print();
        std::process::exit(i32::from(failure.code()));
    }
    ExitCode::SUCCESS
}

/// Ctrl-C reaches every rank. Rank 0 finishes its round, saves it and ends the others, which must not end before.
fn ignore_signals() {
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        // Where it fails, Ctrl-C ends the job at once, which leaves everything in order as well.
        let _ = signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false)));
    }
}
