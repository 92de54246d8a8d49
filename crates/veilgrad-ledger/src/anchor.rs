//! The anchor: the head of the chain, outside of the database, in two slots that are written in turn.
//!
//! A slot begins with a line of text: `veilgrad-anchor 1 ID SEQUENCE HASH LENGTH CHECKSUM`, padded with
//! spaces; LENGTH bytes of rows follow, one per line: those that the head was written with, if they are
//! few. The checksum is the SHA-256 of the line before it and of the rows. A torn write spoils one slot,
//! never both.
//!
//! Because a slot holds its rows, it does not matter whether the anchor or the database reaches the disk
//! first, so that both are synced at once: whichever is behind is completed from the other.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use crate::chain::{Hash, Head};
use crate::error::StoreError;

/// The size of a slot, and of its first line.
const SLOT: usize = 1 << 15;
const LINE: usize = 256;
const MAGIC: &str = "veilgrad-anchor 1";
/// More bytes of rows than this are not kept in a slot.
pub(crate) const MOST: usize = SLOT - LINE;

/// What a slot says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Anchored {
    pub(crate) head: Head,
    /// The rows that this head was written with, oldest first; none if they were too many.
    pub(crate) rows: Vec<Vec<u8>>,
}

/// An open anchor file.
pub(crate) struct Anchor {
    file: File,
    path: PathBuf,
}

/// The anchor file of a database.
pub(crate) fn path_of(database: &Path) -> PathBuf {
    let mut name = database.as_os_str().to_owned();
    name.push(".anchor");
    PathBuf::from(name)
}

impl Anchor {
    /// Creates the anchor of a new ledger; refuses one that is there.
    pub(crate) fn create(database: &Path) -> Result<Self, StoreError> {
        let path = path_of(database);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let file = options.open(&path).map_err(|cause| failed(&path, cause))?;
        Ok(Self { file, path })
    }

    /// Opens the anchor of a ledger that is there.
    pub(crate) fn open(database: &Path, writable: bool) -> Result<Self, StoreError> {
        let path = path_of(database);
        let file = OpenOptions::new().read(true).write(writable).open(&path);
        match file {
            Ok(file) => Ok(Self { file, path }),
            Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => {
                Err(StoreError::Damaged(format!(
                    "its anchor {} is missing, so a lost tail could not be noticed",
                    path.display()
                )))
            }
            Err(cause) => Err(failed(&path, cause)),
        }
    }

    /// Waits until no other process writes, and keeps others from writing until the guard is dropped.
    pub(crate) fn lock(&self) -> Result<Lock, StoreError> {
        let file = self.file.try_clone().map_err(|cause| failed(&self.path, cause))?;
        file.lock().map_err(|cause| failed(&self.path, cause))?;
        Ok(Lock(file))
    }

    /// The newest of the slots that verify; none of a file without any.
    pub(crate) fn read(&mut self) -> Result<Option<Anchored>, StoreError> {
        let slots = self.slots()?;
        Ok(slots.into_iter().flatten().max_by_key(|slot| slot.head.sequence))
    }

    fn slots(&mut self) -> Result<[Option<Anchored>; 2], StoreError> {
        let mut bytes = Vec::new();
        self.file
            .seek(SeekFrom::Start(0))
            .and_then(|_| (&self.file).take(2 * SLOT as u64).read_to_end(&mut bytes))
            .map_err(|cause| failed(&self.path, cause))?;
        let mut slots = bytes.chunks(SLOT).map(parse);
        Ok([slots.next().flatten(), slots.next().flatten()])
    }

    /// Writes the next head over the older slot, not yet durably.
    pub(crate) fn write(&mut self, head: &Head, rows: &[&[u8]]) -> Result<(), StoreError> {
        let slot = match self.slots()? {
            [Some(first), Some(second)] if second.head.sequence < first.head.sequence => 1,
            [Some(_), None] => 1,
            _ => 0,
        };
        self.file
            .seek(SeekFrom::Start(slot * SLOT as u64))
            .and_then(|_| self.file.write_all(&slot_bytes(head, rows)))
            .map_err(|cause| failed(&self.path, cause))
    }

    /// Another handle on the same file, for another thread.
    pub(crate) fn handle(&self) -> Result<Self, StoreError> {
        let file = self.file.try_clone().map_err(|cause| failed(&self.path, cause))?;
        Ok(Self { file, path: self.path.clone() })
    }

    /// Makes what was written durable.
    pub(crate) fn sync(&self) -> Result<(), StoreError> {
        self.file.sync_data().map_err(|cause| failed(&self.path, cause))
    }
}

/// The right to write, until it is dropped.
pub(crate) struct Lock(File);

impl Drop for Lock {
    fn drop(&mut self) {
        // A lock that cannot be given back ends with the file.
        let _ = self.0.unlock();
    }
}

fn failed(path: &Path, cause: std::io::Error) -> StoreError {
    StoreError::File { path: path.display().to_string(), cause }
}

fn slot_bytes(head: &Head, rows: &[&[u8]]) -> Vec<u8> {
    let mut payload = Vec::new();
    for row in rows {
        payload.extend_from_slice(row);
        payload.push(b'\n');
    }
    let text =
        format!("{MAGIC} {} {:020} {} {:05}", head.id, head.sequence, head.hash, payload.len());
    let checksum = Hash::of(&[text.as_bytes(), &payload].concat());
    let mut bytes = format!("{text} {checksum}").into_bytes();
    bytes.resize(LINE - 1, b' ');
    bytes.push(b'\n');
    bytes.extend_from_slice(&payload);
    bytes
}

/// A slot is what it was written as, byte for byte, or nothing.
fn parse(slot: &[u8]) -> Option<Anchored> {
    let (line, rest) = slot.split_at_checked(LINE)?;
    let mut words = std::str::from_utf8(line).ok()?.split_ascii_whitespace().skip(2);
    let (id, sequence, hash) = (words.next()?, words.next()?, words.next()?);
    let head: Head = format!("{id}:{sequence}:{hash}").parse().ok()?;
    let payload = rest.get(..words.next()?.parse().ok()?)?;
    let rows: Vec<&[u8]> = match payload.split_last() {
        Some((b'\n', rows)) => rows.split(|byte| *byte == b'\n').collect(),
        Some(_) => return None,
        None => Vec::new(),
    };
    let written = slot_bytes(&head, &rows);
    let same = slot.get(..written.len())? == written.as_slice();
    same.then(|| Anchored { head, rows: rows.into_iter().map(<[u8]>::to_vec).collect() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_with_any_byte_changed_is_no_slot() {
        let head = Head { id: "a".repeat(32), sequence: 12, hash: Hash::default().after(b"x") };
        for rows in [vec![], vec![b"{}".as_slice()], vec![b"{\"a\":1}".as_slice(), b"{}"]] {
            let good = slot_bytes(&head, &rows);
            let rows = rows.into_iter().map(<[u8]>::to_vec).collect();
            assert_eq!(parse(&good), Some(Anchored { head: head.clone(), rows }));
            for place in 0..good.len() {
                for flip in [1u8, 0x80] {
                    let mut bytes = good.clone();
                    bytes[place] ^= flip;
                    assert_eq!(parse(&bytes), None, "{place}");
                }
            }
            assert_eq!(parse(&good[..good.len() - 1]), None);
        }
    }
}
