//! The crate has to compile to wasm: pure computation.

use std::path::{Path, PathBuf};

fn sources(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { sources(&path) } else { vec![path] }).collect()
}

#[test]
fn no_source_touches_files_threads_clocks_or_processes() {
    let sources = sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
    assert!(sources.len() > 40, "{}", sources.len());
    for path in sources {
        let text = std::fs::read_to_string(&path).unwrap();
        for forbidden in ["fs", "thread", "time", "net", "process", "env", "os", "io"] {
            let used = format!("std::{forbidden}::");
            assert!(!text.contains(&used), "{} uses {used}", path.display());
        }
    }
}
