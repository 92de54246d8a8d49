//! Opens data files, plain or gzipped.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;

use crate::DataError;

/// Bytes that are read one after the other, or skipped.
pub(crate) trait Skip: Read {
    /// Skips this many bytes, or all that are left. Returns how many.
    fn skip(&mut self, bytes: u64) -> io::Result<u64>;
}

impl Skip for BufReader<File> {
    fn skip(&mut self, bytes: u64) -> io::Result<u64> {
        let left = self.get_ref().metadata()?.len().saturating_sub(self.stream_position()?);
        let bytes = bytes.min(left);
        self.seek_relative(i64::try_from(bytes).map_err(io::Error::other)?)?;
        Ok(bytes)
    }
}

/// A reader that cannot skip without reading, such as one that decompresses.
pub(crate) struct Sequential<R>(pub(crate) R);

impl<R: Read> Read for Sequential<R> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        self.0.read(to)
    }
}

impl<R: Read> Skip for Sequential<R> {
    fn skip(&mut self, bytes: u64) -> io::Result<u64> {
        io::copy(&mut (&mut self.0).take(bytes), &mut io::sink())
    }
}

/// As [`open`], of which rows can be skipped.
pub(crate) fn open_array(path: &Path) -> Result<Box<dyn Skip>, DataError> {
    let failed = |cause| DataError::file(path, cause);
    let mut file = BufReader::new(File::open(path).map_err(failed)?);
    if is_packed(&mut file).map_err(failed)? {
        return Ok(Box::new(Sequential(MultiGzDecoder::new(file))));
    }
    Ok(Box::new(file))
}

fn is_packed(file: &mut impl BufRead) -> io::Result<bool> {
    Ok(file.fill_buf()?.starts_with(&[0x1f, 0x8b]))
}

/// Opens a file. A file that begins like gzip is decompressed, whatever its name.
pub(crate) fn open(path: &Path) -> Result<Box<dyn BufRead>, DataError> {
    let failed = |cause| DataError::file(path, cause);
    let mut file = BufReader::new(File::open(path).map_err(failed)?);
    if is_packed(&mut file).map_err(failed)? {
        return Ok(Box::new(BufReader::new(MultiGzDecoder::new(file))));
    }
    Ok(Box::new(file))
}
