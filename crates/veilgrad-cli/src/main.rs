//! The `veilgrad` command; its code is in the library of this crate.

use std::process::ExitCode;

fn main() -> ExitCode {
    veilgrad_cli::main()
}
