//! What leaves the program: stdout, which may be full or closed, and files of their owner alone.

use std::io::{ErrorKind, Write};
use std::path::Path;

use crate::error::Error;

/// Writes text to stdout. Whoever closed it wanted no more, which is no failure.
pub(crate) fn print(text: &str) -> Result<(), Error> {
    print_bytes(text.as_bytes())
}

/// The same for what a library wrote.
pub(crate) fn print_bytes(bytes: &[u8]) -> Result<(), Error> {
    let mut out = std::io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(cause) if cause.kind() == ErrorKind::BrokenPipe => Ok(()),
        result => result.map_err(|cause| Error::File { path: "stdout".to_owned(), cause }),
    }
}

/// Writes text to stderr. Nobody can be told that nobody can be told.
pub(crate) fn say(text: &str) {
    let mut out = std::io::stderr().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// Makes a directory that only its owner can enter, and those above it that are missing.
pub(crate) fn create_directory(path: &Path) -> Result<(), Error> {
    let mut builder = std::fs::DirBuilder::new();
    std::os::unix::fs::DirBuilderExt::mode(builder.recursive(true), 0o700);
    builder.create(path).map_err(|cause| file_error(path, cause))
}

/// Writes a file, whole or not at all, that only its owner can read.
pub(crate) fn write_file(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    veilgrad_nn::write_private(path, bytes).map_err(|cause| file_error(path, cause))
}

fn file_error(path: &Path, cause: std::io::Error) -> Error {
    Error::File { path: path.display().to_string(), cause }
}
