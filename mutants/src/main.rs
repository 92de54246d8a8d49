//! `cargo run -p veilgrad-mutants [LIST|NAME...]`: puts bugs of `mutants/list` into a copy of the source, one at a time, and
//! runs the tests that must notice each. All of them without a list or name.
#![allow(clippy::print_stdout)]

use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use veilgrad_mutants::mutant::{Mutant, read};
use veilgrad_mutants::run::{Programs, in_parallel};
use veilgrad_mutants::{Error, scratch};

fn main() -> ExitCode {
    run().unwrap_or_else(|error| {
        println!("{error}");
        ExitCode::FAILURE
    })
}

fn run() -> Result<ExitCode, Error> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().ok_or("no workspace")?;
    let names: Vec<String> = std::env::args().skip(1).collect();
    let mutants = read(&root.join("mutants/list"), &names)?;
    let threads = std::thread::available_parallelism().map_or(1, usize::from);

    let began = Instant::now();
    let place = root.join("target/mutants");
    scratch::write(root, &place, &mutants)?;
    let programs = Programs::build(root, &place, &mutants)?;
    println!("built {} mutants into one copy: {} s", mutants.len(), began.elapsed().as_secs());
    programs.check_without_mutants(&mutants, threads)?;
    println!("all named tests pass without a mutant: {} s\n", began.elapsed().as_secs());

    let numbered: Vec<(usize, &Mutant)> = mutants.iter().enumerate().collect();
    let results = in_parallel(threads, &numbered, |(number, mutant)| {
        let began = Instant::now();
        let killer = programs.first_failure(*number, mutant)?;
        let verdict = match killer {
            Some(killer) => format!("killed by {killer}"),
            None => format!("SURVIVED: {}", mutant.promise),
        };
        println!("{:<44} {:>5.1} s  {verdict}", mutant.name, began.elapsed().as_secs_f64());
        Ok(killer.is_none())
    });
    let survived = results.into_iter().collect::<Result<Vec<bool>, String>>()?;
    let survived = survived.into_iter().filter(|survived| *survived).count();
    println!("\n{} s in all", began.elapsed().as_secs());
    println!("{} killed, {survived} survived", mutants.len() - survived);
    Ok(if survived == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
