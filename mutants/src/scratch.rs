//! A copy of the workspace with all mutants behind switches.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::{fs, io};

use crate::Error;
use crate::mutant::{Mutant, switch};

/// The environment variable with the number of the active mutant.
pub const VARIABLE: &str = "VEILGRAD_MUTANT";

/// Code that is appended to the root of every crate with mutants.
const SWITCH: &str = r#"
/// Whether the mutant of this number is active.
pub(crate) fn mutant(number: u32) -> bool {
    static ACTIVE: std::sync::LazyLock<Option<u32>> =
        std::sync::LazyLock::new(|| std::env::var("VEILGRAD_MUTANT").ok()?.parse().ok());
    *ACTIVE == Some(number)
}
"#;

/// Files and directories of the workspace that tests need; `data` is linked.
const COPIED: [&str; 9] = [
    "crates",
    "statistics",
    "conformance",
    "examples",
    "docs",
    "README.md",
    "SECURITY.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
];

/// Writes the copy of the project at `root`, with switches, into `scratch`. Unchanged files are not written again, so that the
/// next build is short.
///
/// The crates are one directory deeper than in the project. Cargo tells crates apart by their path in the workspace, so both
/// builds can share one build directory and its compiled dependencies.
///
/// # Errors
/// When files cannot be read or written, or a mutant does not fit the source.
pub fn write(root: &Path, scratch: &Path, mutants: &[Mutant]) -> Result<(), Error> {
    let mut of_file: BTreeMap<&str, Vec<(usize, &Mutant)>> = BTreeMap::new();
    for (number, mutant) in mutants.iter().enumerate() {
        of_file.entry(&mutant.file).or_default().push((number, mutant));
    }
    let crates: BTreeSet<&str> =
        of_file.keys().filter_map(|file| file.split_once("/src/")).map(|(name, _)| name).collect();
    let copy = scratch.join("mutated");
    let mut kept = BTreeSet::new();
    for name in COPIED {
        for file in files_below(&root.join(name))? {
            let relative = file.strip_prefix(root)?.to_owned();
            let name = relative.to_str().ok_or("a path is not UTF-8")?.to_owned();
            let mut content = fs::read(&file)?;
            if let Some(mutants) = of_file.remove(name.as_str()) {
                content = switch(std::str::from_utf8(&content)?, mutants.into_iter())?.into();
            }
            if let Some((at, "lib.rs" | "main.rs")) = name.split_once("/src/")
                && crates.contains(at)
            {
                let quiet = b"#![allow(warnings)]\n";
                content = [quiet, content.as_slice(), SWITCH.as_bytes()].concat();
            }
            write_if_changed(&copy.join(&relative), &content)?;
            kept.insert(copy.join(relative));
        }
    }
    if let Some((file, _)) = of_file.first_key_value() {
        return Err(format!("no such file: {file}").into());
    }
    for file in files_below(&copy)?.into_iter().filter(|file| !kept.contains(file)) {
        fs::remove_file(file)?;
    }
    // Cargo also reads the project's .cargo/config.toml, above the copy: a second one would give every flag twice, and all
    // dependencies would be compiled again.
    for name in ["Cargo.lock", "rust-toolchain.toml"] {
        write_if_changed(&scratch.join(name), &fs::read(root.join(name))?)?;
    }
    let manifest = fs::read_to_string(root.join("Cargo.toml"))?;
    write_if_changed(&scratch.join("Cargo.toml"), members_below_mutated(&manifest)?.as_bytes())?;
    let data = copy.join("data");
    if !data.exists() {
        std::os::unix::fs::symlink(root.join("data"), data)?;
    }
    Ok(())
}

/// The manifest of the workspace, for members in `mutated`.
fn members_below_mutated(manifest: &str) -> Result<String, Error> {
    let members = manifest
        .lines()
        .find(|line| line.starts_with("members = "))
        .ok_or("the manifest has no line of members")?;
    Ok(manifest
        .replace(
            members,
            r#"members = ["mutated/crates/*", "mutated/conformance", "mutated/statistics"]"#,
        )
        .replace("default-members = [\"crates/*\"]\n", "")
        .replace("path = \"crates/", "path = \"mutated/crates/"))
}

fn write_if_changed(path: &Path, content: &[u8]) -> io::Result<()> {
    if fs::read(path).is_ok_and(|old| old == content) {
        return Ok(());
    }
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory)?;
    }
    fs::write(path, content)
}

/// All files in a directory, recursively; links are not followed.
fn files_below(path: &Path) -> io::Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(if path.is_file() { vec![path.to_owned()] } else { Vec::new() });
    }
    let mut files = Vec::new();
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            files.extend(files_below(&entry.path())?);
        } else if entry.file_type()?.is_file() {
            files.push(entry.path());
        }
    }
    Ok(files)
}
