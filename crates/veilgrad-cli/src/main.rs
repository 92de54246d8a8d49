//! The `veilgrad` command; all of it is in the library beside this file.

use std::process::ExitCode;

fn main() -> ExitCode {
    veilgrad_cli::main()
}
