//! The headers of a Parquet file, looked through before the library parses them.
//!
//! Headers are written in Thrift's compact protocol. The library skips fields that it does not know, and a boolean in a
//! list takes it no byte: a list that claims 2^31 booleans keeps it busy for seconds, and a short file has room for many.
//! Everything else that it repeats takes at least one byte of the file. So no header may claim more elements than it has
//! bytes.
//!
//! This check must see the lists that the library sees. The library reads a field of the format by the type that the
//! format gives it, whatever type the file declares. So a field of the format must have its type here, and come behind
//! the one before it; every writer does that. All other fields are skipped by their declared type here as there.

use std::io::Read;

/// What a field of the format is.
enum Kind {
    Bool,
    Byte,
    /// Of 16, 32 or 64 bits, which are written alike.
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

/// The kind of a structure in a field's or list's code.
const STRUCTURE: u8 = 12;
/// Fields that are skipped may be nested so deep, as in the library.
const DEEPEST: u32 = 64;

/// Whether the library may parse this footer of a file.
pub(super) fn is_sound_footer(bytes: &[u8]) -> bool {
    Walk::new(bytes, bytes.len() as u64).known(&FILE_META_DATA, STRUCTURE).is_some()
}

/// Whether the library may parse the header of a page that begins here, in a file with so many bytes left.
pub(super) fn is_sound_page(file: impl Read, left: u64) -> bool {
    Walk::new(file, left).known(&PAGE_HEADER, STRUCTURE).is_some()
}

/// Passes over a structure; `None` as soon as it is not sound.
struct Walk<R> {
    file: R,
    /// Bytes that are left.
    left: u64,
    /// Elements that lists may still have.
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

    /// A number in groups of seven bits.
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

    /// The code and the number of a list's elements.
    fn list(&mut self) -> Option<(u8, u64)> {
        let head = self.byte()?;
        let count = if head >> 4 == 15 { self.number()? } else { u64::from(head >> 4) };
        self.elements = self.elements.checked_sub(count)?;
        Some((head & 0x0f, count))
    }

    /// Passes over a value of the format, which must have the code of its kind.
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
                    // Without a step, a field of any number follows, perhaps one that was there.
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

    /// Passes over a value by its code, as the library does.
    fn skip(&mut self, code: u8, depth: u32) -> Option<()> {
        let deeper = depth.checked_sub(1)?;
        match code {
            // The value of a field is in its code, and in a list the library reads nothing for it, either.
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
