//! IDX files, the format of MNIST, plain or gzipped.

use std::io::Read;
use std::path::Path;

use crate::file::{Skip, open_array};
use crate::number::{self, Coding, Kind, Layout};
use crate::{Array, DataError, RowRanges};

/// Reads an IDX file whose rows have `width` numbers each. The first dimension is the number of rows.
///
/// # Errors
/// When the file cannot be read, is not an IDX file, has rows of another width, or is shorter or longer than its
/// header says.
///
/// # Example
/// ```
/// use veilgrad_data::idx;
///
/// // Two rows of three bytes: type 8, two dimensions.
/// let path = std::env::temp_dir().join(format!("veilgrad-{}.idx", std::process::id()));
/// std::fs::write(&path, [0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 3, 1, 2, 3, 4, 5, 255])?;
/// let array = idx::read(&path, 3)?;
/// assert_eq!(array.values, [1.0, 2.0, 3.0, 4.0, 5.0, 255.0]);
/// assert!(idx::read(&path, 4).is_err()); // the width is declared, not taken from the file
/// # std::fs::remove_file(path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn read(path: &Path, width: usize) -> Result<Array, DataError> {
    parse(path, &mut *open_array(path)?, width, None)
}

/// As [`read`], of some rows alone: those beyond the end of the file are left out. Others are skipped without being read,
/// unless the file is compressed.
///
/// # Errors
/// As for [`read`].
pub fn read_rows(path: &Path, width: usize, rows: &RowRanges) -> Result<Array, DataError> {
    parse(path, &mut *open_array(path)?, width, Some(rows))
}

fn parse(
    path: &Path,
    reader: &mut dyn Skip,
    width: usize,
    rows: Option<&RowRanges>,
) -> Result<Array, DataError> {
    let layout = header(path, &mut *reader)?;
    Array::read(path, reader, layout, width, rows)
}

/// Reads the header of a file.
pub(crate) fn header(path: &Path, mut reader: impl Read) -> Result<Layout, DataError> {
    let wrong = |why: &str| DataError::format(path, why);
    let mut word = || -> Result<[u8; 4], DataError> {
        let mut bytes = [0; 4];
        number::read_header(path, &mut reader, &mut bytes)?;
        Ok(bytes)
    };
    let [0, 0, kind, dimensions] = word()? else {
        return Err(wrong("does not begin like an IDX file"));
    };
    let kind = match kind {
        0x08 => Kind::U8,
        0x09 => Kind::I8,
        0x0b => Kind::I16,
        0x0c => Kind::I32,
        0x0d => Kind::F32,
        0x0e => Kind::F64,
        _ => return Err(wrong("has numbers of an unknown type")),
    };
    if dimensions == 0 {
        return Err(wrong("has no dimensions"));
    }
    let rows = u32::from_be_bytes(word()?) as usize;
    let mut shape = Vec::new();
    for _ in 1..dimensions {
        shape.push(u32::from_be_bytes(word()?) as usize);
    }
    let coding = Coding { kind, big_endian: true };
    Ok(Layout { coding, rows, shape, fortran: false })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(kind: u8, shape: &[u32], data: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0, 0, kind, shape.len() as u8];
        shape.iter().for_each(|length| bytes.extend(length.to_be_bytes()));
        bytes.extend(data);
        bytes
    }

    fn parsed(bytes: &[u8], width: usize) -> Result<Array, DataError> {
        parse(Path::new("x"), &mut crate::file::Sequential(bytes), width, None)
    }

    fn error(bytes: &[u8], width: usize) -> String {
        parsed(bytes, width).err().unwrap().to_string()
    }

    #[test]
    fn every_type_is_read() {
        for (kind, data) in [
            (0x08, vec![1, 255]),
            (0x09, vec![1, 255]),
            (0x0b, vec![0, 1, 255, 255]),
            (0x0c, [1i32.to_be_bytes(), (-1i32).to_be_bytes()].concat()),
            (0x0d, [1f32.to_be_bytes(), (-1f32).to_be_bytes()].concat()),
            (0x0e, [1f64.to_be_bytes(), (-1f64).to_be_bytes()].concat()),
        ] {
            let array = parsed(&file(kind, &[2, 1], &data), 1).unwrap();
            let last = if kind == 0x08 { 255.0 } else { -1.0 };
            assert!(array.values == [1.0, last] && array.shape == [1]);
        }
    }

    #[test]
    fn files_cut_at_any_byte_or_with_more_bytes_are_refused() {
        let whole = file(0x0b, &[3, 2], &[0; 12]);
        for length in 0..whole.len() {
            assert!(parsed(&whole[..length], 2).is_err(), "{length}");
        }
        assert_eq!(error(&whole[..19], 2), "x: is shorter than its header says");
        assert_eq!(error(&[whole, vec![0]].concat(), 2), "x: is longer than its header says");
    }

    #[test]
    fn what_a_header_promises_is_not_believed() {
        assert!(error(&file(0x08, &[u32::MAX, u32::MAX, u32::MAX], &[]), 4).contains("shape"));
        assert!(error(&file(0x0e, &[u32::MAX; 4], &[]), 4).contains("shape"));
        // The header claims 4 GiB.
        let huge = file(0x08, &[u32::MAX], &[7; 100]);
        assert_eq!(error(&huge, 1), "x: is shorter than its header says");
        assert!(error(&file(0x08, &[0, 0], &[]), 1).contains("shape"));
    }

    #[test]
    fn compressed_files_are_read_and_may_be_damaged() {
        use std::io::Write;
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packed.write_all(&file(0x08, &[100, 9], &[3; 900])).unwrap();
        let packed = packed.finish().unwrap();
        let path = std::env::temp_dir().join(format!("veilgrad-idx-{}.gz", std::process::id()));
        let read = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            super::read(&path, 9)
        };
        assert!(read(&packed).is_ok_and(|array| array.values == [3.0; 900]));
        for length in 0..packed.len() {
            assert!(read(&packed[..length]).is_err(), "{length}");
        }
        for place in 0..packed.len() {
            let mut damaged = packed.clone();
            damaged[place] ^= 0x10;
            // Must not panic. It may succeed: some bytes of a gzip header are not checked.
            let _ = read(&damaged);
        }
        std::fs::remove_file(&path).unwrap();
    }
}
