//! The crate has to compile to wasm: pure computation.

#[test]
fn no_source_touches_files_threads_clocks_or_processes() {
    let sources = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut read = 0;
    for entry in std::fs::read_dir(sources).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        read += 1;
        for forbidden in ["fs", "thread", "time", "net", "process", "env", "os", "io"] {
            let used = format!("std::{forbidden}::");
            assert!(!text.contains(&used), "{} uses {used}", path.display());
        }
    }
    assert!(read > 20, "{read}");
}
