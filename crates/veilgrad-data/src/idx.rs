//! IDX files, as MNIST has them, plain or gzip.

use std::io::Read;
use std::path::Path;

use flate2::read::MultiGzDecoder;

use crate::{Array, DataError};

/// Reads a file: the first dimension counts rows.
///
/// # Errors
/// When it cannot be read, is no IDX file, or is shorter or longer than it says.
pub fn read(path: &Path) -> Result<Array, DataError> {
    let bytes = std::fs::read(path).map_err(|cause| DataError::file(path, cause))?;
    if bytes.starts_with(&[0x1f, 0x8b]) {
        let mut plain = Vec::new();
        MultiGzDecoder::new(bytes.as_slice())
            .read_to_end(&mut plain)
            .map_err(|cause| DataError::file(path, cause))?;
        return parse(path, &plain);
    }
    parse(path, &bytes)
}

fn parse(path: &Path, bytes: &[u8]) -> Result<Array, DataError> {
    let wrong = |why: &str| DataError::format(path, why);
    let Some(([0, 0, kind, dimensions], mut rest)) = bytes.split_first_chunk::<4>() else {
        return Err(wrong("does not begin like an IDX file"));
    };
    let mut shape = Vec::new();
    for _ in 0..*dimensions {
        let Some((length, after)) = rest.split_first_chunk::<4>() else {
            return Err(wrong("ends within its header"));
        };
        shape.push(u32::from_be_bytes(*length) as usize);
        rest = after;
    }
    if shape.is_empty() {
        return Err(wrong("has no dimensions"));
    }
    let values = match kind {
        0x08 => numbers::<1>(rest, |[byte]| f32::from(byte)),
        0x09 => numbers::<1>(rest, |byte| f32::from(i8::from_be_bytes(byte))),
        0x0b => numbers::<2>(rest, |bytes| f32::from(i16::from_be_bytes(bytes))),
        0x0c => numbers::<4>(rest, |bytes| i32::from_be_bytes(bytes) as f32),
        0x0d => numbers::<4>(rest, f32::from_be_bytes),
        0x0e => numbers::<8>(rest, |bytes| f64::from_be_bytes(bytes) as f32),
        _ => return Err(wrong("has numbers of an unknown type")),
    };
    let size = shape.iter().try_fold(1usize, |size, length| size.checked_mul(*length));
    match values {
        Some(values) if Some(values.len()) == size => {
            shape.remove(0);
            Ok(Array { values, shape })
        }
        _ => Err(wrong("is not as long as its header says")),
    }
}

/// Numbers of N bytes each; none if bytes are left over.
fn numbers<const N: usize>(bytes: &[u8], number: impl Fn([u8; N]) -> f32) -> Option<Vec<f32>> {
    let (numbers, rest) = bytes.as_chunks::<N>();
    rest.is_empty().then(|| numbers.iter().map(|bytes| number(*bytes)).collect())
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

    #[test]
    fn every_type_is_read() {
        let path = Path::new("x");
        for (kind, data) in [
            (0x08, vec![1, 255]),
            (0x09, vec![1, 255]),
            (0x0b, vec![0, 1, 255, 255]),
            (0x0c, [1i32.to_be_bytes(), (-1i32).to_be_bytes()].concat()),
            (0x0d, [1f32.to_be_bytes(), (-1f32).to_be_bytes()].concat()),
            (0x0e, [1f64.to_be_bytes(), (-1f64).to_be_bytes()].concat()),
        ] {
            let array = parse(path, &file(kind, &[2, 1], &data)).unwrap();
            let last = if kind == 0x08 { 255.0 } else { -1.0 };
            assert!(array.values == [1.0, last] && array.shape == [1]);
        }
    }

    #[test]
    fn files_cut_at_any_byte_or_with_more_bytes_are_refused() {
        let whole = file(0x0b, &[3, 2], &[0; 12]);
        for length in 0..whole.len() {
            assert!(parse(Path::new("x"), &whole[..length]).is_err(), "{length}");
        }
        assert!(parse(Path::new("x"), &[whole, vec![0]].concat()).is_err());
        let huge = file(0x08, &[u32::MAX, u32::MAX, u32::MAX], &[]);
        assert!(parse(Path::new("x"), &huge).is_err());
    }
}
