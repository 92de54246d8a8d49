//! The anchor file: the head of the chain outside the database, in two slots that are written in turn.
//!
//! A slot begins with a line of text: `veilgrad-anchor 1 ID SEQUENCE HASH LENGTH CHECKSUM`, padded with
//! spaces. LENGTH bytes of rows follow, one per line: the last rows, if the WAL is not synced yet. The
//! checksum is the SHA-256 of the line before it and of the rows. A torn write damages one slot, never both.
//!
//! Because a slot holds the last rows, a charge needs only one sync, of the anchor: rows that the database
//! loses in a crash are restored from it.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::chain::{Chained, Hash, Head};
use crate::error::{StoreError, file_error};
use crate::files::{anchor_path, open_itself, open_left_over};

/// The size of a slot in bytes, and of its first line.
const SLOT: usize = 1 << 15;
const LINE: usize = 256;
const MAGIC: &str = "veilgrad-anchor 1";
/// The most bytes of rows that fit into a slot.
pub(crate) const MAX_ROW_BYTES: usize = SLOT - LINE;

/// The content of a slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Anchored {
    pub(crate) head: Head,
    /// The last rows up to this head, oldest first: all that the database may lose in a crash.
    pub(crate) rows: Vec<Vec<u8>>,
}

/// An open anchor file.
///
/// It is read and written at explicit offsets, because a forked child shares the file position.
pub(crate) struct Anchor {
    file: File,
    path: PathBuf,
    /// The slots as they were last read or written.
    slots: [Option<Slot>; 2],
}

struct Slot {
    bytes: Vec<u8>,
    content: Arc<Anchored>,
}

/// A slot that was written but does not verify.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Spoiled {
    /// The index of the slot: 0 or 1.
    pub(crate) index: usize,
    /// The row that its first line seems to name; a hint only, because it is not verified.
    pub(crate) named_row: Option<u64>,
}

impl Anchor {
    /// Creates the anchor of a new ledger; fails if the file exists.
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
                    "its anchor {} is missing, so lost rows could not be detected",
                    path.display()
                )))
            }
            Err(cause) if cause.kind() == std::io::ErrorKind::Other => {
                Err(StoreError::Damaged(format!("its anchor {} {cause}", path.display())))
            }
            Err(cause) => Err(file_error(&path, cause)),
        }
    }

    /// Takes the write lock, which is released when the guard is dropped. Gives up when another process has held it
    /// for `patience` without writing anything.
    pub(crate) fn lock(&self, patience: Duration) -> Result<Lock, StoreError> {
        let file = self.file.try_clone().map_err(|cause| file_error(&self.path, cause))?;
        let modified = || file.metadata().and_then(|metadata| metadata.modified()).ok();
        let mut waiting = None;
        let mut pause = Duration::from_micros(200);
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(Lock(file)),
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(cause)) => return Err(file_error(&self.path, cause)),
            }
            // Only while waiting: the kernel need not sync a modification time that no process has read.
            let now = modified();
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

    /// The contents of the slots that verify, the older first.
    pub(crate) fn read(&mut self) -> Result<Vec<Arc<Anchored>>, StoreError> {
        // A reader may see both slots torn if two writes happen while it reads.
        const TRIES: u32 = 4;
        for attempt in 0..TRIES {
            self.slots = [self.slot(0)?, self.slot(1)?];
            if self.slots.iter().any(Option::is_some) {
                break;
            }
            std::thread::sleep(Duration::from_millis(u64::from(attempt)));
        }
        let mut slots: Vec<_> =
            self.slots.iter().flatten().map(|slot| Arc::clone(&slot.content)).collect();
        slots.sort_by_key(|slot| slot.head.sequence);
        Ok(slots)
    }

    /// The slots that were written but do not verify now. A slot beyond the end of the file was never written; a slot
    /// of zeros was written and lost.
    pub(crate) fn spoiled(&self) -> Result<Vec<Spoiled>, StoreError> {
        let mut spoiled = Vec::new();
        for index in 0..2 {
            let start = (index * SLOT) as u64;
            let bytes = self.bytes(start, SLOT)?;
            if parse(&bytes).is_some() || bytes.is_empty() {
                continue;
            }
            // Another process may be writing the slot: look again later.
            std::thread::sleep(Duration::from_millis(20));
            let again = self.bytes(start, SLOT)?;
            if parse(&again).is_none() {
                spoiled.push(Spoiled { index, named_row: parse_named_row(&again) });
            }
        }
        Ok(spoiled)
    }

    /// A slot as it is on disk now; known bytes are not verified again.
    fn slot(&mut self, index: usize) -> Result<Option<Slot>, StoreError> {
        let start = (index * SLOT) as u64;
        if let Some(known) = self.slots.get_mut(index).and_then(Option::take)
            && self.bytes(start, known.bytes.len())? == known.bytes
        {
            return Ok(Some(known));
        }
        Ok(parse(&self.bytes(start, SLOT)?))
    }

    fn bytes(&self, offset: u64, length: usize) -> Result<Vec<u8>, StoreError> {
        let mut bytes = vec![0; length];
        let mut filled = 0;
        while let Some(rest) = bytes.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            match self.file.read_at(rest, offset + filled as u64) {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(cause) if cause.kind() == std::io::ErrorKind::Interrupted => {}
                Err(cause) => return Err(file_error(&self.path, cause)),
            }
        }
        bytes.truncate(filled);
        Ok(bytes)
    }

    /// Writes the next head over the older slot, without a sync. The slots must have been read since the lock was
    /// taken.
    pub(crate) fn write(&mut self, head: &Head, rows: &[Vec<u8>]) -> Result<(), StoreError> {
        let index = match &self.slots {
            [Some(first), Some(second)]
                if second.content.head.sequence < first.content.head.sequence =>
            {
                1
            }
            [Some(_), None] => 1,
            _ => 0,
        };
        let bytes = slot_bytes(head, rows);
        self.file
            .write_all_at(&bytes, (index * SLOT) as u64)
            .map_err(|cause| file_error(&self.path, cause))?;
        let content = Arc::new(Anchored { head: head.clone(), rows: rows.to_vec() });
        if let Some(slot) = self.slots.get_mut(index) {
            *slot = Some(Slot { bytes, content });
        }
        Ok(())
    }

    /// Syncs what was written; for a new file also its size.
    pub(crate) fn sync(&self, new: bool) -> Result<(), StoreError> {
        let synced = if new { self.file.sync_all() } else { self.file.sync_data() };
        synced.map_err(|cause| file_error(&self.path, cause))
    }
}

/// The write lock of a ledger, until it is dropped.
pub(crate) struct Lock(File);

impl Drop for Lock {
    fn drop(&mut self) {
        // A lock that cannot be released ends when the file is closed.
        let _ = self.0.unlock();
    }
}

/// Whether a file may be left over from an interrupted creation: at most a head without rows. The anchor of
/// a ledger that was ever charged is longer.
pub(crate) fn is_unfinished(path: &Path) -> bool {
    let read_start = |path| {
        let mut bytes = Vec::new();
        open_left_over(path, false)?.take(LINE as u64 + 1).read_to_end(&mut bytes)?;
        Ok::<_, std::io::Error>(bytes)
    };
    read_start(path).is_ok_and(|bytes| {
        let has_magic = bytes.iter().zip(MAGIC.as_bytes()).all(|(byte, magic)| byte == magic);
        bytes.len() <= LINE && (has_magic || bytes.iter().all(|byte| *byte == 0))
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

/// Parses a slot; `None` unless it is byte for byte what `slot_bytes` writes.
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
    same.then(|| Slot { bytes: written, content: Arc::new(Anchored { head, rows }) })
}

/// The row that the first line of a spoiled slot seems to name.
fn parse_named_row(slot: &[u8]) -> Option<u64> {
    let line = std::str::from_utf8(slot.get(..LINE)?).ok()?;
    line.strip_prefix(MAGIC)?.split_ascii_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_with_any_byte_changed_is_refused() {
        let content = |bytes: &[u8]| parse(bytes).map(|slot| (*slot.content).clone());
        let head = Head { id: "a".repeat(32), sequence: 12, hash: Hash::default().after(b"x") };
        for rows in [vec![], vec![b"{}".as_slice()], vec![b"{\"a\":1}".as_slice(), b"{}"]] {
            let good = slot_bytes(&head, &rows);
            let rows = rows.into_iter().map(<[u8]>::to_vec).collect();
            assert_eq!(content(&good), Some(Anchored { head: head.clone(), rows }));
            for offset in 0..good.len() {
                for flip in [1u8, 0x80] {
                    let mut bytes = good.clone();
                    bytes[offset] ^= flip;
                    assert_eq!(content(&bytes), None, "{offset}");
                }
            }
            assert_eq!(content(&good[..good.len() - 1]), None);
        }
    }

    #[test]
    fn waiting_for_another_writer_ends_after_the_given_time() {
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
