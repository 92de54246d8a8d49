//! Builds the copy with all mutants once, and runs the tests against each.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::Error;
use crate::mutant::{Killer, Mutant};
use crate::scratch::VARIABLE;

/// A test that takes longer than this counts as hanging; no test takes a tenth of it.
const PATIENCE: Duration = Duration::from_secs(120);

/// Packages that take longest to compile, and whose tests are quick with little optimisation.
const LITTLE_OPTIMISED: [&str; 6] = [
    "veilgrad",
    "veilgrad-accounting",
    "veilgrad-cli",
    "veilgrad-data",
    "veilgrad-ledger",
    "veilgrad-nn",
];

/// The feature of the tests of ledgers on PostgreSQL.
const FEATURE: &str = "veilgrad-ledger/postgres";

/// A compiled test target.
#[derive(Debug, Clone)]
struct Program {
    path: PathBuf,
    /// The directory in which Cargo runs the tests of the package.
    directory: PathBuf,
}

/// The test programs of the switched copy, by package and target.
#[derive(Debug)]
pub struct Programs(HashMap<(String, String), Program>);

/// Whether a target is unit tests in the source of a library or program.
fn is_unit_test(target: &str) -> bool {
    ["lib", "bin"].contains(&target)
}

/// Compiles tests of the switched copy, and returns Cargo's messages.
fn compile(
    root: &Path,
    scratch: &Path,
    packages: &BTreeSet<&str>,
    targets: &BTreeSet<&str>,
) -> Result<String, Error> {
    let tests = targets.iter().filter(|target| !is_unit_test(target));
    let unit_tests = targets.iter().any(|target| is_unit_test(target));
    let quick =
        LITTLE_OPTIMISED.map(|package| format!("profile.dev.package.{package}.opt-level=1"));
    let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .current_dir(scratch)
        .args(["test", "--no-run", "--quiet", "--message-format", "json-render-diagnostics"])
        .args(unit_tests.then_some(["--lib", "--bins"]).into_iter().flatten())
        .args(tests.flat_map(|test| ["--test", test]))
        .args(packages.iter().flat_map(|package| ["--package", package]))
        // The tests of this name need a server, and are empty without the feature.
        .args(targets.contains("postgres").then_some(["--features", FEATURE]).into_iter().flatten())
        .args(quick.iter().flat_map(|setting| ["--config", setting.as_str()]))
        // Share compiled dependencies with the project; test programs get a separate directory.
        .env("CARGO_BUILD_BUILD_DIR", root.join("target"))
        .env("CARGO_TARGET_DIR", scratch.join("programs"))
        .stdin(Stdio::null())
        .output()?;
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        return Err(format!("the switched copy does not compile:\n{errors}").into());
    }
    Ok(String::from_utf8(output.stdout)?)
}

impl Programs {
    /// Compiles the tests of all packages that `mutants` name.
    ///
    /// # Errors
    /// When the copy does not compile.
    pub fn build(root: &Path, scratch: &Path, mutants: &[Mutant]) -> Result<Self, Error> {
        let killers = || mutants.iter().flat_map(|mutant| &mutant.killed_by);
        let packages = || killers().map(|killer| killer.package.as_str());
        let with_unit_tests: BTreeSet<&str> = killers()
            .filter(|killer| is_unit_test(&killer.target))
            .map(|killer| killer.package.as_str())
            .collect();
        // Unit tests of a package that are not needed would take longest to compile.
        let others = packages().filter(|package| !with_unit_tests.contains(package)).collect();
        let mut messages = String::new();
        for packages in [&with_unit_tests, &others] {
            let in_these = killers().filter(|killer| packages.contains(killer.package.as_str()));
            let targets: BTreeSet<&str> = in_these.map(|killer| killer.target.as_str()).collect();
            if !targets.is_empty() {
                messages.push_str(&compile(root, scratch, packages, &targets)?);
            }
        }
        let mut programs = HashMap::new();
        for line in messages.lines() {
            let message: serde_json::Value = serde_json::from_str(line)?;
            let (Some(executable), Some(true)) =
                (message["executable"].as_str(), message["profile"]["test"].as_bool())
            else {
                continue;
            };
            let manifest = Path::new(message["manifest_path"].as_str().unwrap_or_default());
            let directory = manifest.parent().unwrap_or(scratch).to_owned();
            let package = directory.file_name().and_then(|n| n.to_str()).unwrap_or_default();
            let package = match package.starts_with("veilgrad") {
                true => package.to_owned(),
                false => format!("veilgrad-{package}"),
            };
            let target = match message["target"]["kind"][0].as_str() {
                Some("lib") => "lib",
                Some("bin") => "bin",
                _ => message["target"]["name"].as_str().unwrap_or_default(),
            };
            let program = Program { path: executable.into(), directory };
            programs.insert((package, target.to_owned()), program);
        }
        Ok(Self(programs))
    }

    /// Starts tests, with a mutant or without.
    fn start(&self, killer: &Killer, number: Option<usize>) -> Result<Child, Error> {
        let key = (killer.package.clone(), killer.target.clone());
        let program = self.0.get(&key).ok_or_else(|| format!("there are no tests {killer}"))?;
        let mut command = Command::new(&program.path);
        command
            .current_dir(&program.directory)
            .arg(&killer.filter)
            .args(["--test-threads", "1"])
            .env("CARGO_MANIFEST_DIR", &program.directory)
            .env_remove(VARIABLE)
            .env("CI", "true")
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .stdout(Stdio::piped());
        if let Some(number) = number {
            command.env(VARIABLE, number.to_string());
        }
        Ok(command.spawn()?)
    }

    /// Whether all of these tests pass, and there is at least one.
    ///
    /// # Errors
    /// When there are none, or they cannot be run.
    fn pass(&self, killer: &Killer, number: Option<usize>) -> Result<bool, Error> {
        let mut child = self.start(killer, number)?;
        // Read on another thread, so that a full pipe does not block the test.
        let output = child.stdout.take().ok_or("no output")?;
        let reader = std::thread::spawn(move || std::io::read_to_string(output));
        let began = Instant::now();
        let status = loop {
            match child.try_wait()? {
                Some(status) => break Some(status),
                None if began.elapsed() > PATIENCE => {
                    child.kill()?;
                    child.wait()?;
                    break None;
                }
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        let Some(status) = status else { return Ok(false) };
        let text = reader.join().map_err(|_| "the reader panicked")??;
        if status.success() && text.contains("test result: ok. 0 passed") {
            return Err(format!("no test is called {killer}").into());
        }
        Ok(status.success())
    }

    /// Checks that every named test passes without a mutant.
    ///
    /// # Errors
    /// When one does not.
    pub fn check_without_mutants(&self, mutants: &[Mutant], threads: usize) -> Result<(), Error> {
        let mut killers: Vec<&Killer> = mutants.iter().flat_map(|m| &m.killed_by).collect();
        killers.sort_by_key(|killer| killer.to_string());
        killers.dedup();
        let passed = in_parallel(threads, &killers, |killer| self.pass(killer, None));
        for (killer, passed) in killers.iter().zip(passed) {
            if !passed.map_err(|error| error.to_string())? {
                return Err(format!("{killer} fails without a mutant").into());
            }
        }
        Ok(())
    }

    /// The first of a mutant's tests that fails, if one does.
    ///
    /// # Errors
    /// When a test cannot be run.
    pub fn first_failure<'a>(
        &self,
        number: usize,
        mutant: &'a Mutant,
    ) -> Result<Option<&'a Killer>, Error> {
        for killer in &mutant.killed_by {
            if !self.pass(killer, Some(number))? {
                return Ok(Some(killer));
            }
        }
        Ok(None)
    }
}

/// Applies a function to all items on several threads; results are in the order of the items.
pub fn in_parallel<T: Sync, R: Send>(
    threads: usize,
    items: &[T],
    apply: impl Fn(&T) -> Result<R, Error> + Sync,
) -> Vec<Result<R, String>> {
    let next = AtomicUsize::new(0);
    let results = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some((index, item)) = {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    items.get(index).map(|item| (index, item))
                } {
                    let result = apply(item).map_err(|error| error.to_string());
                    if let Ok(mut results) = results.lock() {
                        results.push((index, result));
                    }
                }
            });
        }
    });
    let mut results = results.into_inner().unwrap_or_default();
    results.sort_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}
