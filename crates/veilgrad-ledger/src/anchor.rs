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
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

use crate::chain::{Hash, Head};
use crate::error::{StoreError, file_error};
use crate::place::beside;

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
///
/// It is read and written at places, never from a position: a forked child shares the position.
pub(crate) struct Anchor {
    file: File,
    path: PathBuf,
}

/// The anchor file of a database.
pub(crate) fn path_of(database: &Path) -> PathBuf {
    beside(database, ".anchor")
}

impl Anchor {
    /// Creates the anchor of a new ledger; refuses one that is there.
    pub(crate) fn create(database: &Path) -> Result<Self, StoreError> {
        let path = path_of(database);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true);
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let file = options.open(&path).map_err(|cause| file_error(&path, cause))?;
        Ok(Self { file, path })
    }

    /// Opens the anchor of a ledger that is there.
    pub(crate) fn open(database: &Path, writable: bool) -> Result<Self, StoreError> {
        let path = path_of(database);
        // Whatever else has this name might never answer.
        if std::fs::metadata(&path).is_ok_and(|metadata| !metadata.is_file()) {
            return Err(StoreError::Damaged(format!(
                "its anchor {} is not a file",
                path.display()
            )));
        }
        let file = OpenOptions::new().read(true).write(writable).open(&path);
        match file {
            Ok(file) => Ok(Self { file, path }),
            Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => {
                Err(StoreError::Damaged(format!(
                    "its anchor {} is missing, so a lost tail could not be noticed",
                    path.display()
                )))
            }
            Err(cause) => Err(file_error(&path, cause)),
        }
    }

    /// Waits until no other process writes, and keeps others from writing until the guard is dropped. Gives
    /// up when nothing was written for so long.
    pub(crate) fn lock(&self, patience: Duration) -> Result<Lock, StoreError> {
        let file = self.file.try_clone().map_err(|cause| file_error(&self.path, cause))?;
        let written = || file.metadata().and_then(|metadata| metadata.modified()).ok();
        let (mut start, mut last) = (Instant::now(), written());
        let mut pause = Duration::from_micros(200);
        loop {
            let now = written();
            if now != last {
                (start, last) = (Instant::now(), now);
            }
            match file.try_lock() {
                Ok(()) => return Ok(Lock(file)),
                Err(TryLockError::WouldBlock) if start.elapsed() < patience => {
                    std::thread::sleep(pause);
                    pause = (pause * 2).min(Duration::from_millis(4));
                }
                Err(TryLockError::WouldBlock) => {
                    return Err(StoreError::Busy(format!(
                        "another process has held it for {} s without writing anything",
                        patience.as_secs()
                    )));
                }
                Err(TryLockError::Error(cause)) => return Err(file_error(&self.path, cause)),
            }
        }
    }

    /// What the slots that verify say, the older first.
    pub(crate) fn read(&self) -> Result<Vec<Anchored>, StoreError> {
        // A reader that is overtaken by two writes may see both slots torn.
        const TRIES: u32 = 4;
        let mut slots = Vec::new();
        for attempt in 0..TRIES {
            slots = self.slots()?.into_iter().flatten().collect();
            if !slots.is_empty() {
                break;
            }
            std::thread::sleep(Duration::from_millis(u64::from(attempt)));
        }
        slots.sort_by_key(|slot| slot.head.sequence);
        Ok(slots)
    }

    fn slots(&self) -> Result<[Option<Anchored>; 2], StoreError> {
        let mut bytes = vec![0; 2 * SLOT];
        let mut length = 0;
        while let Some(rest) = bytes.get_mut(length..).filter(|rest| !rest.is_empty()) {
            match self.file.read_at(rest, length as u64) {
                Ok(0) => break,
                Ok(read) => length += read,
                Err(cause) if cause.kind() == std::io::ErrorKind::Interrupted => {}
                Err(cause) => return Err(file_error(&self.path, cause)),
            }
        }
        bytes.truncate(length);
        let mut slots = bytes.chunks(SLOT).map(parse);
        Ok([slots.next().flatten(), slots.next().flatten()])
    }

    /// Writes the next head over the older slot, not yet durably.
    pub(crate) fn write(&self, head: &Head, rows: &[&[u8]]) -> Result<(), StoreError> {
        let slot = match self.slots()? {
            [Some(first), Some(second)] if second.head.sequence < first.head.sequence => 1,
            [Some(_), None] => 1,
            _ => 0,
        };
        self.file
            .write_all_at(&slot_bytes(head, rows), slot * SLOT as u64)
            .map_err(|cause| file_error(&self.path, cause))
    }

    /// Another handle on the same file, for another thread.
    pub(crate) fn handle(&self) -> Result<Self, StoreError> {
        let file = self.file.try_clone().map_err(|cause| file_error(&self.path, cause))?;
        Ok(Self { file, path: self.path.clone() })
    }

    /// Makes a new anchor durable, with its size.
    pub(crate) fn sync_new(&self) -> Result<(), StoreError> {
        self.file.sync_all().map_err(|cause| file_error(&self.path, cause))
    }

    /// Makes what was written durable.
    fn sync(&self) -> Result<(), StoreError> {
        self.file.sync_data().map_err(|cause| file_error(&self.path, cause))
    }
}

/// A thread that makes the anchor durable while its owner commits the database.
pub(crate) struct Syncer {
    asks: Sender<()>,
    answers: Receiver<Result<(), StoreError>>,
}

impl Syncer {
    pub(crate) fn start(anchor: Anchor) -> Result<Self, StoreError> {
        let (asks, asked) = std::sync::mpsc::channel();
        let (answer, answers) = std::sync::mpsc::channel();
        let path = anchor.path.clone();
        let work = move || {
            // Ends with its owner.
            while asked.recv().is_ok() && answer.send(anchor.sync()).is_ok() {}
        };
        std::thread::Builder::new()
            .name("anchor".to_owned())
            .spawn(work)
            .map_err(|cause| file_error(&path, cause))?;
        Ok(Self { asks, answers })
    }

    /// Begins to sync what was written.
    pub(crate) fn begin(&self) -> Result<(), StoreError> {
        self.asks.send(()).map_err(|_| Self::gone())
    }

    /// Waits for the sync that was begun.
    pub(crate) fn end(&self) -> Result<(), StoreError> {
        self.answers.recv().unwrap_or_else(|_| Err(Self::gone()))
    }

    /// Makes what was written durable, now.
    pub(crate) fn sync(&self) -> Result<(), StoreError> {
        self.begin()?;
        self.end()
    }

    fn gone() -> StoreError {
        StoreError::Refused("the anchor could not be synced: its thread is gone".to_owned())
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

/// Whether a file may be what a creation left that was cut short: at most a head without rows. The anchor of
/// a ledger that was ever charged is longer.
pub(crate) fn is_unfinished(path: &Path) -> bool {
    std::fs::read(path).is_ok_and(|bytes| {
        let common = bytes.iter().zip(MAGIC.as_bytes()).all(|(byte, magic)| byte == magic);
        bytes.len() <= LINE && (common || bytes.iter().all(|byte| *byte == 0))
    })
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
        std::fs::remove_file(path_of(&path)).unwrap();
    }
}
