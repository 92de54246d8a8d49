//! Opens data files, plain or gzipped.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;

use crate::DataError;

/// Opens a file. A file that begins like gzip is decompressed, whatever its name.
pub(crate) fn open(path: &Path) -> Result<Box<dyn BufRead>, DataError> {
    let failed = |cause| DataError::file(path, cause);
    let mut file = BufReader::new(File::open(path).map_err(failed)?);
    if file.fill_buf().map_err(failed)?.starts_with(&[0x1f, 0x8b]) {
        return Ok(Box::new(BufReader::new(MultiGzDecoder::new(file))));
    }
    Ok(Box::new(file))
}
