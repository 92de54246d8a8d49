//! The anchor: the head of the chain, outside of the database, in two slots that are written in turn.
//!
//! A slot is one line of text: `veilgrad-anchor 1 ID SEQUENCE HASH CHECKSUM`, padded with spaces to its
//! size; the checksum is the SHA-256 of the line before it. A torn write spoils one slot, never both.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use crate::chain::{Hash, Head};
use crate::error::StoreError;

/// The size of a slot: what a disk writes at once.
const SLOT: usize = 512;
const MAGIC: &str = "veilgrad-anchor 1";

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

    /// The newest head of the slots that verify; none of a file without any.
    pub(crate) fn read(&mut self) -> Result<Option<Head>, StoreError> {
        let mut bytes = Vec::new();
        self.file
            .seek(SeekFrom::Start(0))
            .and_then(|_| self.file.read_to_end(&mut bytes))
            .map_err(|cause| failed(&self.path, cause))?;
        let heads = bytes.chunks(SLOT).take(2).filter_map(parse);
        Ok(heads.max_by_key(|head| head.sequence))
    }

    /// Writes the next head, durably, over the older slot.
    pub(crate) fn write(&mut self, head: &Head) -> Result<(), StoreError> {
        let mut bytes = vec![0; 2 * SLOT];
        let read = self
            .file
            .seek(SeekFrom::Start(0))
            .and_then(|_| read_some(&mut self.file, &mut bytes))
            .map_err(|cause| failed(&self.path, cause))?;
        bytes.truncate(read);
        let sequences: Vec<Option<u64>> =
            bytes.chunks(SLOT).map(|slot| parse(slot).map(|head| head.sequence)).collect();
        let slot = match sequences.as_slice() {
            [Some(first), Some(second)] if second < first => 1,
            [Some(_), None] | [Some(_)] => 1,
            _ => 0,
        };
        self.file
            .seek(SeekFrom::Start(slot * SLOT as u64))
            .and_then(|_| self.file.write_all(line(head).as_bytes()))
            .and_then(|()| self.file.sync_data())
            .map_err(|cause| failed(&self.path, cause))
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

fn read_some(file: &mut File, buffer: &mut [u8]) -> std::io::Result<usize> {
    let mut total = 0;
    while let Some(rest) = buffer.get_mut(total..).filter(|rest| !rest.is_empty()) {
        match file.read(rest)? {
            0 => break,
            read => total += read,
        }
    }
    Ok(total)
}

fn line(head: &Head) -> String {
    let text = format!("{MAGIC} {} {:020} {}", head.id, head.sequence, head.hash);
    let checksum = Hash::of(text.as_bytes());
    let mut line = format!("{text} {checksum}");
    while line.len() < SLOT - 1 {
        line.push(' ');
    }
    line.push('\n');
    line
}

/// A slot is what it was written as, byte for byte, or nothing.
fn parse(slot: &[u8]) -> Option<Head> {
    let text = std::str::from_utf8(slot).ok()?;
    let mut words = text.split_ascii_whitespace().skip(2);
    let (id, sequence, hash) = (words.next()?, words.next()?, words.next()?);
    let head: Head = format!("{id}:{sequence}:{hash}").parse().ok()?;
    (line(&head) == text).then_some(head)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_with_any_byte_changed_is_no_slot() {
        let head = Head { id: "a".repeat(32), sequence: 12, hash: Hash::default().after(b"x") };
        let good = line(&head);
        assert_eq!(parse(good.as_bytes()), Some(head));
        for place in 0..SLOT {
            for flip in [1u8, 0x80] {
                let mut bytes = good.clone().into_bytes();
                bytes[place] ^= flip;
                assert_eq!(parse(&bytes), None, "{place}");
            }
        }
        assert_eq!(parse(&good.as_bytes()[..SLOT - 1]), None);
    }
}
