//! Decodes the numbers of array files. Memory grows with the bytes in the file, not with what its header claims.

use std::io::{ErrorKind, Read};
use std::path::Path;

use crate::file::Skip;
use crate::{DataError, RowRanges};

/// The type of a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    U64,
    I64,
    F16,
    F32,
    F64,
}

/// How numbers are encoded: type and byte order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Coding {
    pub(crate) kind: Kind,
    pub(crate) big_endian: bool,
}

/// What the header of an array file says.
pub(crate) struct Layout {
    pub(crate) coding: Coding,
    pub(crate) rows: usize,
    /// The shape of a row.
    pub(crate) shape: Vec<usize>,
    /// Whether the first index varies fastest.
    pub(crate) fortran: bool,
}

/// Bytes that are read at once; a multiple of the size of every type.
const CHUNK: usize = 1 << 16;

impl Coding {
    const fn size(self) -> usize {
        match self.kind {
            Kind::U8 | Kind::I8 => 1,
            Kind::U16 | Kind::I16 | Kind::F16 => 2,
            Kind::U32 | Kind::I32 | Kind::F32 => 4,
            Kind::U64 | Kind::I64 | Kind::F64 => 8,
        }
    }

    /// Decodes whole numbers without rounding; false if the type is not one of whole numbers.
    fn decode_whole(self, bytes: &[u8], to: &mut Vec<i128>) -> bool {
        match self.kind {
            Kind::U8 => self.decode_each(bytes, to, |b| i128::from(u8::from_be_bytes(b))),
            Kind::I8 => self.decode_each(bytes, to, |b| i128::from(i8::from_be_bytes(b))),
            Kind::U16 => self.decode_each(bytes, to, |b| i128::from(u16::from_be_bytes(b))),
            Kind::I16 => self.decode_each(bytes, to, |b| i128::from(i16::from_be_bytes(b))),
            Kind::U32 => self.decode_each(bytes, to, |b| i128::from(u32::from_be_bytes(b))),
            Kind::I32 => self.decode_each(bytes, to, |b| i128::from(i32::from_be_bytes(b))),
            Kind::U64 => self.decode_each(bytes, to, |b| i128::from(u64::from_be_bytes(b))),
            Kind::I64 => self.decode_each(bytes, to, |b| i128::from(i64::from_be_bytes(b))),
            Kind::F16 | Kind::F32 | Kind::F64 => return false,
        }
        true
    }

    /// Decodes numbers in double precision.
    fn decode_double(self, bytes: &[u8], to: &mut Vec<f64>) {
        if self.kind == Kind::F64 {
            return self.decode_each(bytes, to, f64::from_be_bytes);
        }
        let mut whole = Vec::new();
        if self.decode_whole(bytes, &mut whole) {
            to.extend(whole.into_iter().map(|number| number as f64));
        } else {
            let mut single = Vec::new();
            self.decode(bytes, &mut single);
            to.extend(single.into_iter().map(f64::from));
        }
    }

    fn decode(self, bytes: &[u8], to: &mut Vec<f32>) {
        match self.kind {
            Kind::U8 => to.extend(bytes.iter().map(|byte| f32::from(*byte))),
            Kind::I8 => self.decode_each(bytes, to, |b| f32::from(i8::from_be_bytes(b))),
            Kind::U16 => self.decode_each(bytes, to, |b| f32::from(u16::from_be_bytes(b))),
            Kind::I16 => self.decode_each(bytes, to, |b| f32::from(i16::from_be_bytes(b))),
            Kind::U32 => self.decode_each(bytes, to, |b| u32::from_be_bytes(b) as f32),
            Kind::I32 => self.decode_each(bytes, to, |b| i32::from_be_bytes(b) as f32),
            Kind::U64 => self.decode_each(bytes, to, |b| u64::from_be_bytes(b) as f32),
            Kind::I64 => self.decode_each(bytes, to, |b| i64::from_be_bytes(b) as f32),
            Kind::F16 => self.decode_each(bytes, to, |b| half(u16::from_be_bytes(b))),
            Kind::F32 => self.decode_each(bytes, to, f32::from_be_bytes),
            Kind::F64 => self.decode_each(bytes, to, |b| f64::from_be_bytes(b) as f32),
        }
    }

    fn decode_each<const N: usize, T>(
        self,
        bytes: &[u8],
        to: &mut Vec<T>,
        number: impl Fn([u8; N]) -> T,
    ) {
        to.extend(bytes.as_chunks::<N>().0.iter().map(|bytes| {
            let mut bytes = *bytes;
            if !self.big_endian {
                bytes.reverse();
            }
            number(bytes)
        }));
    }
}

/// A number of the IEEE type binary16, exactly.
fn half(bits: u16) -> f32 {
    let sign = u32::from(bits & 0x8000) << 16;
    let (exponent, fraction) = (u32::from(bits >> 10) & 0x1f, u32::from(bits & 0x3ff));
    f32::from_bits(match exponent {
        // Subnormal: a multiple of 2^-24.
        0 => sign | (fraction as f32 * f32::from_bits((127 - 24) << 23)).to_bits(),
        31 => sign | 0x7f80_0000 | fraction << 13,
        _ => sign | (exponent + 127 - 15) << 23 | fraction << 13,
    })
}

/// Reads `rows` rows of `width` numbers, or those that are wanted of them; an error if anything follows.
pub(crate) fn read(
    path: &Path,
    reader: &mut dyn Skip,
    coding: Coding,
    size: (usize, usize),
    wanted: Option<&RowRanges>,
) -> Result<Vec<f32>, DataError> {
    let mut values = Vec::new();
    read_bytes(path, reader, coding, size, wanted, |part| coding.decode(part, &mut values))?;
    Ok(values)
}

/// Reads whole numbers without rounding; an error if the type is another one, or anything follows.
pub(crate) fn read_whole(
    path: &Path,
    reader: &mut dyn Skip,
    coding: Coding,
    count: usize,
) -> Result<Vec<i128>, DataError> {
    let mut values = Vec::new();
    if !coding.decode_whole(&[], &mut values) {
        let why = "has ids of a type that is not read: save whole numbers, such as int64";
        return Err(DataError::format(path, why));
    }
    read_bytes(path, reader, coding, (count, 1), None, |part| {
        coding.decode_whole(part, &mut values);
    })?;
    Ok(values)
}

/// Reads one number per row in double precision; an error if anything follows.
pub(crate) fn read_double(
    path: &Path,
    reader: &mut dyn Skip,
    coding: Coding,
    count: usize,
) -> Result<Vec<f64>, DataError> {
    let mut values = Vec::new();
    read_bytes(path, reader, coding, (count, 1), None, |part| {
        coding.decode_double(part, &mut values);
    })?;
    Ok(values)
}

/// Calls `decode` with parts of an array, which hold whole numbers each, and skips rows that are not wanted.
fn read_bytes(
    path: &Path,
    reader: &mut dyn Skip,
    coding: Coding,
    (rows, width): (usize, usize),
    wanted: Option<&RowRanges>,
    mut decode: impl FnMut(&[u8]),
) -> Result<(), DataError> {
    let wrong = |why: &str| DataError::format(path, why);
    let failed = |cause| DataError::file(path, cause);
    let length = rows.checked_mul(width).and_then(|count| count.checked_mul(coding.size()));
    let length = length.ok_or_else(|| wrong("says that it is too large"))?;
    let all = 0..rows;
    // No more than the length, so that it does not overflow.
    let first_byte = |row: usize| row.min(rows) * width * coding.size();
    let (mut buffer, mut done) = (vec![0; CHUNK], 0);
    let skip = |reader: &mut dyn Skip, bytes: usize| {
        // Pipes can be read, but not skipped.
        if bytes > 0 && reader.skip(bytes as u64).map_err(failed)? < bytes as u64 {
            return Err(wrong("is shorter than its header says"));
        }
        Ok(())
    };
    for range in wanted.map_or(std::slice::from_ref(&all), RowRanges::ranges) {
        let (start, end) = (first_byte(range.start), first_byte(range.end));
        skip(reader, start - done)?;
        done = start;
        while done < end {
            let part = buffer.get_mut(..(end - done).min(CHUNK)).unwrap_or_default();
            if fill(reader, part).map_err(failed)? < part.len() {
                return Err(wrong("is shorter than its header says"));
            }
            decode(part);
            done += part.len();
        }
    }
    skip(reader, length - done)?;
    if fill(reader, &mut [0]).map_err(failed)? > 0 {
        return Err(wrong("is longer than its header says"));
    }
    Ok(())
}

/// Fills `to` with the next bytes of a header.
pub(crate) fn read_header(
    path: &Path,
    reader: &mut impl Read,
    to: &mut [u8],
) -> Result<(), DataError> {
    match fill(reader, to) {
        Ok(found) if found == to.len() => Ok(()),
        Ok(_) => Err(DataError::format(path, "ends within its header")),
        Err(cause) => Err(DataError::file(path, cause)),
    }
}

/// Reads until `to` is full or the file ends; returns the number of bytes read.
fn fill(reader: &mut (impl Read + ?Sized), to: &mut [u8]) -> std::io::Result<usize> {
    let mut found = 0;
    while let Some(rest) = to.get_mut(found..).filter(|rest| !rest.is_empty()) {
        match reader.read(rest) {
            Ok(0) => break,
            Ok(more) => found += more,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::{Coding, Kind, half};

    #[test]
    fn numbers_keep_all_digits_that_their_type_has() {
        let decoded = |kind: Kind, big_endian: bool, bytes: &[u8]| {
            let mut found = Vec::new();
            Coding { kind, big_endian }.decode_double(bytes, &mut found);
            found
        };
        assert_eq!(decoded(Kind::F64, false, &0.1f64.to_le_bytes()), [0.1]);
        assert_eq!(decoded(Kind::F64, true, &0.1f64.to_be_bytes()), [0.1]);
        assert_eq!(decoded(Kind::F32, true, &0.1f32.to_be_bytes()), [f64::from(0.1f32)]);
        assert_eq!(decoded(Kind::F16, false, &[0, 0x3c]), [1.0]);
        assert_eq!(decoded(Kind::I32, false, &16_777_217i32.to_le_bytes()), [16_777_217.0]);
        assert_eq!(decoded(Kind::U8, false, &[7, 255]), [7.0, 255.0]);
    }

    /// The definition: `(-1)^s 2^(e - 15) (1 + f / 1024)`, and multiples of 2^-24 below.
    #[test]
    fn every_half_is_its_definition() {
        for bits in 0..=u16::MAX {
            let (exponent, fraction) = (i32::from(bits >> 10 & 31), f64::from(bits & 1023));
            let sign = if bits >> 15 == 1 { -1.0 } else { 1.0 };
            let expected = match exponent {
                0 => sign * fraction * 2f64.powi(-24),
                31 if fraction == 0.0 => sign * f64::INFINITY,
                31 => f64::NAN,
                _ => sign * 2f64.powi(exponent - 15) * (1.0 + fraction / 1024.0),
            };
            let found = f64::from(half(bits));
            assert!(found.is_nan() && expected.is_nan() || found == expected, "{bits:#x}: {found}");
            assert_eq!(half(bits).is_sign_negative(), bits >> 15 == 1, "{bits:#x}");
        }
    }
}
