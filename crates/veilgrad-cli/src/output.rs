//! Stdout, which may be full or closed.

use std::io::{ErrorKind, Write};

use crate::error::Error;

/// Writes text to stdout. Whoever closed it wanted no more, which is no failure.
pub(crate) fn print(text: &str) -> Result<(), Error> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(cause) if cause.kind() == ErrorKind::BrokenPipe => Ok(()),
        result => result.map_err(|cause| Error::File { path: "stdout".to_owned(), cause }),
    }
}
