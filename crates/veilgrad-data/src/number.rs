//! Decodes the numbers of array files. Memory grows with the bytes in the file, not with what its header claims.

use std::io::{ErrorKind, Read};
use std::path::Path;

use crate::DataError;

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
    F32,
    F64,
}

/// How numbers are encoded: type and byte order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Coding {
    pub(crate) kind: Kind,
    pub(crate) big_endian: bool,
}

/// Bytes that are read at once; a multiple of the size of every type.
const CHUNK: usize = 1 << 16;

impl Coding {
    const fn size(self) -> usize {
        match self.kind {
            Kind::U8 | Kind::I8 => 1,
            Kind::U16 | Kind::I16 => 2,
            Kind::U32 | Kind::I32 | Kind::F32 => 4,
            Kind::U64 | Kind::I64 | Kind::F64 => 8,
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
            Kind::F32 => self.decode_each(bytes, to, f32::from_be_bytes),
            Kind::F64 => self.decode_each(bytes, to, |b| f64::from_be_bytes(b) as f32),
        }
    }

    fn decode_each<const N: usize>(
        self,
        bytes: &[u8],
        to: &mut Vec<f32>,
        number: impl Fn([u8; N]) -> f32,
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

/// Reads `rows` rows of `width` numbers; an error if anything follows.
pub(crate) fn read(
    path: &Path,
    mut reader: impl Read,
    coding: Coding,
    (rows, width): (usize, usize),
) -> Result<Vec<f32>, DataError> {
    let wrong = |why: &str| DataError::format(path, why);
    let length = rows.checked_mul(width).and_then(|count| count.checked_mul(coding.size()));
    let length = length.ok_or_else(|| wrong("says that it is too large"))?;
    let mut next = |part: &mut [u8]| fill(&mut reader, part).map_err(|e| DataError::file(path, e));
    let (mut values, mut buffer, mut done) = (Vec::new(), vec![0; CHUNK], 0);
    while done < length {
        let part = buffer.get_mut(..(length - done).min(CHUNK)).unwrap_or_default();
        if next(part)? < part.len() {
            return Err(wrong("is shorter than its header says"));
        }
        coding.decode(part, &mut values);
        done += part.len();
    }
    if next(&mut [0])? > 0 {
        return Err(wrong("is longer than its header says"));
    }
    Ok(values)
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
fn fill(reader: &mut impl Read, to: &mut [u8]) -> std::io::Result<usize> {
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
