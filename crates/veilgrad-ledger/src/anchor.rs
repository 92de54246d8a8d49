//! The anchor: the head of the chain, outside of the database, in two slots that are written in turn.
//!
//! A slot begins with a line of text: `veilgrad-anchor 1 ID SEQUENCE HASH LENGTH CHECKSUM`, padded with
//! spaces; LENGTH bytes of rows follow, one per line: those that the head was written with, if they are
//! few. The checksum is the SHA-256 of the line before it and of the rows. A torn write spoils one slot,
//! never both.
//!
//! Because a slot holds its rows, it does not matter whether the anchor or the database reaches the disk
//! first, so that both are synced at once: whichever is behind is completed from the other.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::chain::{Chained, Hash, Head};
use crate::error::{StoreError, file_error};
use crate::place::{anchor_path, open_itself, open_left_over};

/// The size of a slot, and of its first line.
const SLOT: usize = 1 << 15;
const LINE: usize = 256;
const MAGIC: &str = "veilgrad-anchor 1";
/// More bytes of rows than this are not kept in a slot.
pub(crate) const MOST: usize = SLOT - LINE;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Anchored {
    pub(crate) head: Head,
    /// The last rows up to this head, oldest first: all that were not in the database for sure.
    pub(crate) rows: Vec<Vec<u8>>,
}

/// An open anchor file.
///
/// It is read and written at places, never from a position: a forked child shares the position.
pub(crate) struct Anchor {
    file: File,
    path: PathBuf,
    /// The slots as they were last read or written.
    slots: [Option<Slot>; 2],
}

struct Slot {
    bytes: Vec<u8>,
    says: Arc<Anchored>,
}

/// A slot that was written and does not verify.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Spoiled {
    /// Which of the two: 0 or 1.
    pub(crate) place: usize,
    /// The row that its first line seems to name: a hint only, since it is not verified.
    pub(crate) names: Option<u64>,
}

impl Anchor {
    /// Creates the anchor of a new ledger; refuses one that is there.
    pub(crate) fn create(database: &Path) -> Result<Self, StoreError> {
        let path = anchor_path(database);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true);
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let file = options.open(&path).map_err(|cause| file_error(&path, cause))?;
        Ok(Self { file, path, slots: [None, None] })
    }

    pub(crate) fn open(database: &Path, writable: bool) -> Result<Self, StoreError> {
        let path = anchor_path(database);
        let file = open_itself(&path, writable);
        match file {
            Ok(file) => Ok(Self { file, path, slots: [None, None] }),
            Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => {
                Err(StoreError::Damaged(format!(
                    "its anchor {} is missing, so a lost tail could not be noticed",
                    path.display()
                )))
            }
            Err(cause) if cause.kind() == std::io::ErrorKind::Other => {
                Err(StoreError::Damaged(format!("its anchor {} {cause}", path.display())))
            }
            Err(cause) => Err(file_error(&path, cause)),
        }
    }

    /// Waits until no other process writes, and keeps others from writing until the guard is dropped. Gives
    /// up when nothing was written for so long.
    pub(crate) fn lock(&self, patience: Duration) -> Result<Lock, StoreError> {
        let file = self.file.try_clone().map_err(|cause| file_error(&self.path, cause))?;
        let written = || file.metadata().and_then(|metadata| metadata.modified()).ok();
        let mut waiting = None;
        let mut pause = Duration::from_micros(200);
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(Lock(file)),
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(cause)) => return Err(file_error(&self.path, cause)),
            }
            // Only while waiting: if no process reads a file's modification time, the kernel need not sync it.
            let now = written();
            let since = match waiting {
                Some((since, last)) if last == now => since,
                _ => Instant::now(),
            };
            waiting = Some((since, now));
            if since.elapsed() >= patience {
                return Err(StoreError::Busy(format!(
                    "another process has held it for {} s without writing anything",
                    patience.as_secs()
                )));
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(4));
        }
    }

    /// What the slots that verify say, the older first.
    pub(crate) fn read(&mut self) -> Result<Vec<Arc<Anchored>>, StoreError> {
        // A reader that is overtaken by two writes may see both slots torn.
        const TRIES: u32 = 4;
        for attempt in 0..TRIES {
            self.slots = [self.slot(0)?, self.slot(1)?];
            if self.slots.iter().any(Option::is_some) {
                break;
            }
            std::thread::sleep(Duration::from_millis(u64::from(attempt)));
        }
        let mut slots: Vec<_> =
            self.slots.iter().flatten().map(|slot| Arc::clone(&slot.says)).collect();
        slots.sort_by_key(|slot| slot.head.sequence);
        Ok(slots)
    }

    /// The slots that were written and do not verify, as of now. One that the file does not reach was never
    /// written; one of zeros was, and lost what it said.
    pub(crate) fn spoiled(&self) -> Result<Vec<Spoiled>, StoreError> {
        let mut spoiled = Vec::new();
        for place in 0..2 {
            let start = (place * SLOT) as u64;
            let bytes = self.bytes(start, SLOT)?;
            if parse(&bytes).is_some() || bytes.is_empty() {
                continue;
            }
            // A writer may be at work; what it leaves is whole.
            std::thread::sleep(Duration::from_millis(20));
            let again = self.bytes(start, SLOT)?;
            if parse(&again).is_none() {
                spoiled.push(Spoiled { place, names: named_row(&again) });
            }
        }
        Ok(spoiled)
    }

    /// A slot as it is now; one whose bytes are known is not verified again.
    fn slot(&mut self, place: usize) -> Result<Option<Slot>, StoreError> {
        let start = (place * SLOT) as u64;
        if let Some(known) = self.slots.get_mut(place).and_then(Option::take)
            && self.bytes(start, known.bytes.len())? == known.bytes
        {
            return Ok(Some(known));
        }
        Ok(parse(&self.bytes(start, SLOT)?))
    }

    fn bytes(&self, place: u64, length: usize) -> Result<Vec<u8>, StoreError> {
        let mut bytes = vec![0; length];
        let mut filled = 0;
        while let Some(rest) = bytes.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            match self.file.read_at(rest, place + filled as u64) {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(cause) if cause.kind() == std::io::ErrorKind::Interrupted => {}
                Err(cause) => return Err(file_error(&self.path, cause)),
            }
        }
        bytes.truncate(filled);
        Ok(bytes)
    }

    /// Writes the next head over the older slot, not yet durably. The slots must have been read since the lock was
    /// taken.
    pub(crate) fn write(&mut self, head: &Head, rows: &[Vec<u8>]) -> Result<(), StoreError> {
        let place = match &self.slots {
            [Some(first), Some(second)] if second.says.head.sequence < first.says.head.sequence => {
                1
            }
            [Some(_), None] => 1,
            _ => 0,
        };
        let bytes = slot_bytes(head, rows);
        self.file
            .write_all_at(&bytes, (place * SLOT) as u64)
            .map_err(|cause| file_error(&self.path, cause))?;
        let says = Arc::new(Anchored { head: head.clone(), rows: rows.to_vec() });
        if let Some(slot) = self.slots.get_mut(place) {
            *slot = Some(Slot { bytes, says });
        }
        Ok(())
    }

    /// Makes what was written durable; of a new file with its size.
    pub(crate) fn sync(&self, new: bool) -> Result<(), StoreError> {
        let synced = if new { self.file.sync_all() } else { self.file.sync_data() };
        synced.map_err(|cause| file_error(&self.path, cause))
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

/// Whether a file may be left over from an interrupted creation: at most a head without rows. The anchor of
/// a ledger that was ever charged is longer.
pub(crate) fn is_unfinished(path: &Path) -> bool {
    let read = |path| {
        let mut bytes = Vec::new();
        open_left_over(path, false)?.take(LINE as u64 + 1).read_to_end(&mut bytes)?;
        Ok::<_, std::io::Error>(bytes)
    };
    read(path).is_ok_and(|bytes| {
        let common = bytes.iter().zip(MAGIC.as_bytes()).all(|(byte, magic)| byte == magic);
        bytes.len() <= LINE && (common || bytes.iter().all(|byte| *byte == 0))
    })
}

fn slot_bytes<Row: AsRef<[u8]>>(head: &Head, rows: &[Row]) -> Vec<u8> {
    let mut payload = Vec::new();
    for row in rows {
        payload.extend_from_slice(row.as_ref());
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
fn parse(slot: &[u8]) -> Option<Slot> {
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
    let rows = rows.into_iter().map(<[u8]>::to_vec).collect();
    same.then(|| Slot { bytes: written, says: Arc::new(Anchored { head, rows }) })
}

/// The row that the first line of a spoiled slot seems to name.
fn named_row(slot: &[u8]) -> Option<u64> {
    let line = std::str::from_utf8(slot.get(..LINE)?).ok()?;
    line.strip_prefix(MAGIC)?.split_ascii_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_with_any_byte_changed_is_no_slot() {
        let says = |bytes: &[u8]| parse(bytes).map(|slot| (*slot.says).clone());
        let head = Head { id: "a".repeat(32), sequence: 12, hash: Hash::default().after(b"x") };
        for rows in [vec![], vec![b"{}".as_slice()], vec![b"{\"a\":1}".as_slice(), b"{}"]] {
            let good = slot_bytes(&head, &rows);
            let rows = rows.into_iter().map(<[u8]>::to_vec).collect();
            assert_eq!(says(&good), Some(Anchored { head: head.clone(), rows }));
            for place in 0..good.len() {
                for flip in [1u8, 0x80] {
                    let mut bytes = good.clone();
                    bytes[place] ^= flip;
                    assert_eq!(says(&bytes), None, "{place}");
                }
            }
            assert_eq!(says(&good[..good.len() - 1]), None);
        }
    }

    #[test]
    fn a_writer_that_never_ends_is_waited_for_only_so_long() {
        let name = format!("veilgrad-anchor-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let anchor = Anchor::create(&path).unwrap();
        let held = anchor.lock(Duration::ZERO).unwrap();
        let other = Anchor::open(&path, true).unwrap();
        let error = other.lock(Duration::from_millis(5)).err().unwrap().to_string();
        assert!(error.contains("busy"), "{error}");
        drop(held);
        assert!(other.lock(Duration::ZERO).is_ok());
        std::fs::remove_file(anchor_path(&path)).unwrap();
    }
}
