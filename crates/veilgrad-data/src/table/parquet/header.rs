//! Checks the headers of a Parquet file before the `parquet` crate parses them.
//!
//! Headers are encoded in Thrift's compact protocol. When the crate skips an unknown list of booleans, an element takes
//! no byte of the file: a list that claims 2^31 booleans keeps it busy for seconds, and a short file can hold many such
//! lists. Every other repeated element takes at least one byte. So a header is refused if it claims more elements than
//! it has bytes.
//!
//! This check must see the same lists as the crate. The crate reads a known field by the type that the format gives it
//! and ignores the type that the file declares. So here a known field must declare its type of the format, and fields
//! must come in ascending order, as every writer puts them. Unknown fields are skipped by their declared type, as in the
//! crate.

use std::io::Read;

/// The type of a field in the Parquet format.
enum Kind {
    Bool,
    Byte,
    /// An integer of 16, 32 or 64 bits; their encoding is the same.
    Whole,
    Double,
    Bytes,
    List(&'static Self),
    /// Fields by their numbers, from 1.
    Structure(&'static [Self]),
}

use Kind::{Bool, Byte, Bytes, Double, List, Structure, Whole};

// Names and numbers are those of parquet.thrift in the Parquet format.
const EMPTY: Kind = Structure(&[]);
const TIME: Kind = Structure(&[Bool, Structure(&[EMPTY, EMPTY, EMPTY])]);
const LOGICAL_TYPE: Kind = Structure(&[
    EMPTY,
    EMPTY,
    EMPTY,
    EMPTY,
    Structure(&[Whole, Whole]), // Decimal
    EMPTY,
    TIME,
    TIME, // Timestamp
    EMPTY,
    Structure(&[Byte, Bool]), // Integer
    EMPTY,
    EMPTY,
    EMPTY,
    EMPTY,
    EMPTY,
    Structure(&[Byte]),         // Variant
    Structure(&[Bytes]),        // Geometry
    Structure(&[Bytes, Whole]), // Geography
    EMPTY,
]);
const SCHEMA_ELEMENT: Kind =
    Structure(&[Whole, Whole, Whole, Bytes, Whole, Whole, Whole, Whole, Whole, LOGICAL_TYPE]);
const KEY_VALUE: Kind = Structure(&[Bytes, Bytes]);
const STATISTICS: Kind = Structure(&[Bytes, Bytes, Whole, Whole, Bytes, Bytes, Bool, Bool, Whole]);
const PAGE_ENCODING_STATS: Kind = Structure(&[Whole, Whole, Whole]);
const SIZE_STATISTICS: Kind = Structure(&[Whole, List(&Whole), List(&Whole)]);
const BOUNDING_BOX: Kind =
    Structure(&[Double, Double, Double, Double, Double, Double, Double, Double]);
const COLUMN_META_DATA: Kind = Structure(&[
    Whole,
    List(&Whole),
    List(&Bytes),
    Whole,
    Whole,
    Whole,
    Whole,
    List(&KEY_VALUE),
    Whole,
    Whole,
    Whole,
    STATISTICS,
    List(&PAGE_ENCODING_STATS),
    Whole,
    Whole,
    SIZE_STATISTICS,
    Structure(&[BOUNDING_BOX, List(&Whole)]), // GeospatialStatistics
]);
const COLUMN_CHUNK: Kind = Structure(&[
    Bytes,
    Whole,
    COLUMN_META_DATA,
    Whole,
    Whole,
    Whole,
    Whole,
    EMPTY, // encryption, which is not read
    Bytes,
]);
const SORTING_COLUMN: Kind = Structure(&[Whole, Bool, Bool]);
const ROW_GROUP: Kind =
    Structure(&[List(&COLUMN_CHUNK), Whole, Whole, List(&SORTING_COLUMN), Whole, Whole, Whole]);
const COLUMN_ORDER: Kind = Structure(&[EMPTY, EMPTY, EMPTY]);
const FILE_META_DATA: Kind = Structure(&[
    Whole,
    List(&SCHEMA_ELEMENT),
    Whole,
    List(&ROW_GROUP),
    List(&KEY_VALUE),
    Bytes,
    List(&COLUMN_ORDER),
    EMPTY, // encryption
    Bytes,
]);
const PAGE_HEADER: Kind = Structure(&[
    Whole,
    Whole,
    Whole,
    Whole,
    Structure(&[Whole, Whole, Whole, Whole, STATISTICS]), // DataPageHeader
    EMPTY,                                                // IndexPageHeader
    Structure(&[Whole, Whole, Bool]),                     // DictionaryPageHeader
    Structure(&[Whole, Whole, Whole, Whole, Whole, Whole, Bool, STATISTICS]), // DataPageHeaderV2
]);

/// Thrift's type code of a structure.
const STRUCTURE: u8 = 12;
/// The deepest nesting of fields that are skipped, as in the `parquet` crate.
const DEEPEST: u32 = 64;

/// Whether the crate may parse this footer.
pub(super) fn is_sound_footer(bytes: &[u8]) -> bool {
    Walk::new(bytes, bytes.len() as u64).known(&FILE_META_DATA, STRUCTURE).is_some()
}

/// Whether the crate may parse the page header that begins here, with `left` bytes left in the file.
pub(super) fn is_sound_page(file: impl Read, left: u64) -> bool {
    Walk::new(file, left).known(&PAGE_HEADER, STRUCTURE).is_some()
}

/// Walks over an encoded structure. Its methods return `None` if it is malformed.
struct Walk<R> {
    file: R,
    /// Bytes left in the file.
    left: u64,
    /// How many elements further lists may have.
    elements: u64,
}

impl<R: Read> Walk<R> {
    const fn new(file: R, left: u64) -> Self {
        Self { file, left, elements: left }
    }

    fn byte(&mut self) -> Option<u8> {
        self.left = self.left.checked_sub(1)?;
        let mut byte = [0];
        self.file.read_exact(&mut byte).ok()?;
        let [byte] = byte;
        Some(byte)
    }

    fn bytes(&mut self, count: u64) -> Option<()> {
        self.left = self.left.checked_sub(count)?;
        let passed = std::io::copy(&mut self.file.by_ref().take(count), &mut std::io::sink());
        passed.is_ok_and(|passed| passed == count).then_some(())
    }

    /// A varint.
    fn number(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    /// The type code and the number of a list's elements.
    fn list(&mut self) -> Option<(u8, u64)> {
        let head = self.byte()?;
        let count = if head >> 4 == 15 { self.number()? } else { u64::from(head >> 4) };
        self.elements = self.elements.checked_sub(count)?;
        Some((head & 0x0f, count))
    }

    /// Walks over a value of a known type; its declared type code must agree.
    fn known(&mut self, kind: &Kind, code: u8) -> Option<()> {
        match (kind, code) {
            (Bool, 1 | 2) | (Byte, 3) | (Whole, 4..=6) | (Double, 7) | (Bytes, 8) => {
                self.skip(code, 1)
            }
            (List(kind), 9) => {
                let (code, count) = self.list()?;
                (0..count).try_for_each(|_| self.known(kind, code))
            }
            (Structure(fields), STRUCTURE) => {
                let mut number = 0;
                loop {
                    let head = self.byte()?;
                    let (step, code) = (usize::from(head >> 4), head & 0x0f);
                    if code == 0 {
                        return Some(());
                    }
                    // A step of 0 means an explicit field number, which could be a repeated one: refused.
                    number += Some(step).filter(|step| *step > 0)?;
                    match fields.get(number - 1) {
                        Some(kind) => self.known(kind, code)?,
                        None => self.skip(code, DEEPEST)?,
                    }
                }
            }
            _ => None,
        }
    }

    /// Skips a value by its declared type code, as the crate does.
    fn skip(&mut self, code: u8, depth: u32) -> Option<()> {
        let deeper = depth.checked_sub(1)?;
        match code {
            // The value of a boolean field is in its type code; in a list, the crate reads no byte for it, either.
            1 | 2 => Some(()),
            3 => self.bytes(1),
            4..=6 => self.number().map(drop),
            7 => self.bytes(8),
            8 => {
                let length = self.number()?;
                self.bytes(length)
            }
            9 | 10 => {
                let (code, count) = self.list()?;
                (0..count).try_for_each(|_| self.skip(code, deeper))
            }
            11 => {
                let count = self.number()?;
                self.elements = self.elements.checked_sub(count)?;
                let codes = if count > 0 { self.byte()? } else { 0 };
                (0..count).try_for_each(|_| {
                    self.skip(codes >> 4, deeper)?;
                    self.skip(codes & 0x0f, deeper)
                })
            }
            STRUCTURE => loop {
                let head = self.byte()?;
                if head & 0x0f == 0 {
                    return Some(());
                }
                if head >> 4 == 0 {
                    self.number()?;
                }
                self.skip(head & 0x0f, deeper)?;
            },
            13 => self.bytes(16),
            _ => None,
        }
    }
}
