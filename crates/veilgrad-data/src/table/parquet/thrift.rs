//! The headers of a Parquet file, in Thrift's compact protocol, looked through before the library parses them.
//!
//! The library skips fields that it does not know. To skip a boolean in a list takes it no byte, so that a list that
//! says it has 2^31 of them keeps it busy for seconds, and a short file may have many. Here no structure may have more
//! elements than bytes, which no writer's has.

use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};

/// Structures may be nested so deep, as in the library.
const DEEPEST: u32 = 64;

/// Whether the footer claims no more elements than it has bytes. One that is not there is for the library to refuse.
pub(super) fn footer_is_sound(file: File) -> std::io::Result<bool> {
    let length = file.metadata()?.len();
    let mut file = BufReader::new(file);
    let Some(end) = length.checked_sub(8) else { return Ok(true) };
    file.seek(SeekFrom::Start(end))?;
    let mut size = [0; 4];
    file.read_exact(&mut size)?;
    let size = u64::from(u32::from_le_bytes(size));
    let Some(start) = end.checked_sub(size) else { return Ok(true) };
    file.seek(SeekFrom::Start(start))?;
    let mut walk = Walk::new(&mut file, size);
    // What is broken otherwise is for the library to refuse, too.
    let _ = walk.structure(DEEPEST);
    Ok(!walk.too_many)
}

/// The same for the headers of all pages that begin in these bytes of the file.
pub(super) fn pages_are_sound(
    file: &mut BufReader<File>,
    start: u64,
    length: u64,
) -> std::io::Result<bool> {
    let end = file.get_ref().metadata()?.len();
    let mut place = file.seek(SeekFrom::Start(start))?;
    while place < start.saturating_add(length).min(end) {
        // The library does not stop where the column should end.
        let mut walk = Walk::new(file, end - place);
        let size = walk.page_header();
        if walk.too_many {
            return Ok(false);
        }
        let after = size.and_then(|size| walk.left.checked_sub(size));
        let (Some(size), Some(after)) = (size, after) else { break };
        // Keeps what was read ahead: pages may be short and many.
        file.seek_relative(i64::try_from(size).unwrap_or(i64::MAX))?;
        place = end - after;
    }
    Ok(true)
}

/// A structure that is passed over.
struct Walk<'a> {
    file: &'a mut BufReader<File>,
    /// Bytes that are left for it.
    left: u64,
    /// Elements that its lists may still have, and whether they have more.
    elements: u64,
    too_many: bool,
}

impl<'a> Walk<'a> {
    fn new(file: &'a mut BufReader<File>, left: u64) -> Self {
        Self { file, left, elements: left, too_many: false }
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
        self.file.seek_relative(i64::try_from(count).ok()?).ok()
    }

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

    /// Elements that a list says it has, if that can be.
    fn count(&mut self, count: u64) -> Option<u64> {
        let left = self.elements.checked_sub(count);
        self.too_many |= left.is_none();
        self.elements = left?;
        Some(count)
    }

    /// The kind of the next field and how much its number is above the last one's; none at the end.
    fn field(&mut self, last: i64) -> Option<Option<(u8, i64)>> {
        let head = self.byte()?;
        let (kind, step) = (head & 0x0f, i64::from(head >> 4));
        if kind == 0 {
            return Some(None);
        }
        let id = match step {
            // Signed numbers are written as 0, -1, 1, -2, …
            0 => self.number().map(|id| (id >> 1) as i64 ^ -((id & 1) as i64))?,
            step => last.wrapping_add(step),
        };
        Some(Some((kind, id)))
    }

    fn structure(&mut self, depth: u32) -> Option<()> {
        while let Some((kind, _)) = self.field(0)? {
            self.value(kind, depth.checked_sub(1)?)?;
        }
        Some(())
    }

    fn value(&mut self, kind: u8, depth: u32) -> Option<()> {
        match kind {
            // As a field it is in the field's kind, and in a list the library reads nothing for it, either.
            1 | 2 => Some(()),
            3 => self.bytes(1),
            4..=6 => self.number().map(|_| ()),
            7 => self.bytes(8),
            8 => {
                let length = self.number()?;
                self.bytes(length)
            }
            9 | 10 => {
                let head = self.byte()?;
                let count = if head >> 4 == 15 { self.number()? } else { u64::from(head >> 4) };
                for _ in 0..self.count(count)? {
                    self.value(head & 0x0f, depth.checked_sub(1)?)?;
                }
                Some(())
            }
            11 => {
                let count = self.number()?;
                let kinds = if count > 0 { self.byte()? } else { 0 };
                for _ in 0..self.count(count)? {
                    self.value(kinds >> 4, depth.checked_sub(1)?)?;
                    self.value(kinds & 0x0f, depth.checked_sub(1)?)?;
                }
                Some(())
            }
            12 => self.structure(depth),
            _ => None,
        }
    }

    /// Passes over the header of a page; returns how many bytes follow it.
    fn page_header(&mut self) -> Option<u64> {
        let (mut last, mut size) = (0, None);
        while let Some((kind, id)) = self.field(last)? {
            last = id;
            // Field 3 is the compressed size.
            if (kind, id) == (5, 3) {
                let number = self.number()?;
                size = Some((number >> 1).min(u64::from(u32::MAX)));
            } else {
                self.value(kind, DEEPEST)?;
            }
        }
        size
    }
}
