//! Runs a cases file: `cargo run -p veilgrad-conformance [FILE]`, by default `conformance/cases.json`.
#![allow(clippy::print_stdout)]

use std::process::ExitCode;

fn main() -> ExitCode {
    let text = match std::env::args().nth(1) {
        Some(path) => match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) => {
                eprintln!("{path}: {error}");
                return ExitCode::from(2);
            }
        },
        None => include_str!("../cases.json").to_owned(),
    };
    match veilgrad_conformance::run(&text) {
        Ok(report) => {
            println!("{report}");
            if report.failures().is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            eprintln!("not a cases file: {error}");
            ExitCode::from(2)
        }
    }
}
