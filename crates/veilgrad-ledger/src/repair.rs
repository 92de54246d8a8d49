//! Repair: makes a new ledger from the provable rows of a damaged one. It never lowers a charge.

use std::path::Path;

use rusqlite::Connection;
use serde::de::IgnoredAny;
use veilgrad_events::{Event, Insecure, RunHeader};

use crate::anchor::{Anchor, Anchored};
use crate::chain::{Chained, Hash, Head};
use crate::create::create_files;
use crate::database::open_to_read;
use crate::entry::Entry;
use crate::error::StoreError;
use crate::files::{VersionError, beside, check_version, find, open_unchanging};
use crate::hold::is_in_use;
use crate::id::random_id;
use crate::ledger::Ledger;
use crate::options::Options;
use crate::schema::APPLICATION;
use crate::state::{LOST_ROWS, State};

/// The result of a repair.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repaired {
    /// The head of the new ledger.
    pub head: Head,
    /// The number of rows with a proven chain of hashes.
    pub proven: u64,
    /// The number of those found not in the database's table, but in the anchor or in remnants of pages and WAL.
    pub salvaged: u64,
    /// Why rows may be lost, if that cannot be excluded; every dataset is then marked insecure.
    pub lost: Option<String>,
}

/// A chain of proven rows from the first one on.
#[derive(Default)]
struct Chain {
    state: State,
    rows: Vec<Vec<u8>>,
    hashes: Vec<Hash>,
}

impl Chain {
    fn last_hash(&self) -> Hash {
        self.hashes.last().copied().unwrap_or_default()
    }

    fn push(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.state.apply_bytes(self.rows.len() as u64 + 1, bytes)?;
        self.hashes.push(self.last_hash().after(bytes));
        self.rows.push(bytes.to_vec());
        Ok(())
    }

    /// Whether the chain contains the row of this head.
    fn contains(&self, head: &Head) -> bool {
        let index =
            usize::try_from(head.sequence).ok().and_then(|sequence| sequence.checked_sub(1));
        head.id == self.state.id
            && index.and_then(|index| self.hashes.get(index)) == Some(&head.hash)
    }

    /// Appends the rows of a slot if they lead from the last hash to the slot's head.
    fn extend_from(&mut self, slot: &Anchored) -> bool {
        let before = slot.head.sequence.saturating_sub(slot.rows.len() as u64);
        let Some(known) = (self.rows.len() as u64).checked_sub(before) else { return false };
        let known = usize::try_from(known).unwrap_or(usize::MAX);
        let rows = slot.rows.get(known..).unwrap_or_default();
        let end = rows.iter().fold(self.last_hash(), |hash, bytes| hash.after(bytes));
        !rows.is_empty() && end == slot.head.hash && rows.iter().all(|row| self.push(row).is_ok())
    }
}

impl Ledger {
    /// Makes a new ledger from the provable rows of a damaged one: rows of its database, of remnants of pages and WAL, and
    /// of both slots of its anchor, as far as their hashes form one chain. The damaged files are not changed.
    ///
    /// # Guarantee
    /// A repair never lowers a charge. If both slots of the anchor verify and the chain contains their heads, nothing was
    /// lost. Otherwise the missing rows could be anything. Then every dataset gets a run that is marked insecure, so
    /// that its epsilon is infinite, and no dataset can be created in the new ledger.
    ///
    /// # Errors
    /// When the ledger verifies, is a backup, or a run holds budget in it; when not even its first row is left, or rows
    /// are lost and there is no dataset to mark.
    pub fn repair(damaged: &Path, new: &Path, options: &Options) -> Result<Repaired, StoreError> {
        match Self::read(damaged, options.clone()) {
            Err(StoreError::Damaged(_)) => {}
            Err(other) => return Err(other),
            Ok(_) => {
                let why = format!("{} verifies: there is nothing to repair", damaged.display());
                return Err(StoreError::Refused(why));
            }
        }
        let path = find(damaged, options.allow_network)?;
        if open_unchanging(&path).is_ok_and(|database| {
            matches!(check_version(&database), Err(VersionError::Backup | VersionError::Moved))
        }) {
            return Err(StoreError::Refused(format!(
                "{} is a backup or was moved, and lacks what was charged since: make another one, or repair the ledger",
                damaged.display()
            )));
        }
        if is_in_use(&path) {
            return Err(StoreError::Busy(format!(
                "a run has {} open and would keep charging the damaged files: end it first",
                damaged.display()
            )));
        }
        // Before SQLite opens the file: closing another handle on it would release SQLite's locks.
        let remnants = remnants(&path);
        let mut anchor = Anchor::open(&path, false).ok();
        let _lock = anchor.as_ref().map(|anchor| anchor.lock(options.patience)).transpose()?;
        let slots = anchor.as_mut().map(Anchor::read).transpose()?.unwrap_or_default();
        let spoiled = anchor.as_ref().map(Anchor::spoiled).transpose()?.unwrap_or_default();
        let mut chain = Chain::default();
        for connection in [open_to_read(&path, options.patience), open_unchanging(&path)] {
            let found = connection.map(|connection| stored_chain(&connection)).unwrap_or_default();
            if found.rows.len() > chain.rows.len() {
                chain = found;
            }
        }
        let in_database = chain.rows.len() as u64;
        loop {
            let next =
                remnants.iter().find(|(bytes, hash)| chain.last_hash().after(bytes) == *hash);
            let has_grown = slots.iter().any(|slot| chain.extend_from(slot))
                || next.is_some_and(|(bytes, _)| chain.push(bytes).is_ok());
            if !has_grown {
                break;
            }
        }
        if chain.rows.is_empty() {
            return Err(StoreError::Damaged("not even its first row is left".to_owned()));
        }
        let proven = chain.rows.len() as u64;
        let missing = slots.iter().rfind(|slot| !chain.contains(&slot.head));
        let lost = match missing {
            Some(slot) => {
                Some(format!("row {} was anchored, and is not proven", slot.head.sequence))
            }
            None if slots.is_empty() => Some("no anchor says where it ended".to_owned()),
            // A slot that does not verify may have been the newer one; the row that it seems to name proves nothing.
            None if !spoiled.is_empty() => Some("a slot of its anchor is spoiled".to_owned()),
            None => None,
        };
        if lost.is_some() {
            mark_insecure(&mut chain)?;
        }
        let head = create_files(new, options, &chain.rows, APPLICATION)?;
        Ok(Repaired { head, proven, salvaged: proven - in_database, lost })
    }
}

/// Adds to every dataset a run that is marked insecure.
fn mark_insecure(chain: &mut Chain) -> Result<(), StoreError> {
    let budgets: Vec<_> =
        chain.state.datasets.values().map(|dataset| dataset.budget.clone()).collect();
    if budgets.is_empty() {
        return Err(StoreError::Damaged(
            "rows are lost, and there is no dataset to charge for them".to_owned(),
        ));
    }
    for budget in budgets {
        let (run, nonce) = (random_id()?, random_id()?);
        let header = RunHeader::new(budget.unit, budget.adjacency);
        let reason = LOST_ROWS.to_owned();
        for event in [Event::Open(header), Event::Insecure(Insecure { reason })] {
            let (dataset, run, nonce) = (budget.dataset.clone(), run.clone(), nonce.clone());
            let entry = Entry::Run { dataset, run, nonce, event };
            let bytes = entry.to_bytes().map_err(StoreError::Refused)?;
            chain.push(&bytes).map_err(StoreError::Refused)?;
        }
    }
    Ok(())
}

/// The rows of a database's table, up to the first that breaks the chain.
fn stored_chain(connection: &Connection) -> Chain {
    let mut chain = Chain::default();
    let statement = connection.prepare("SELECT bytes, hash FROM event ORDER BY sequence");
    let Ok(mut statement) = statement else { return chain };
    let Ok(rows) = statement.query_map([], |row| row.try_into()) else { return chain };
    for row in rows {
        let Ok::<(Vec<u8>, Vec<u8>), _>((bytes, hash)) = row else { break };
        let expected = chain.last_hash().after(&bytes);
        if Hash::from_slice(&hash) != Some(expected) || chain.push(&bytes).is_err() {
            break;
        }
    }
    chain
}

/// Everything in the database's file and its WAL that looks like a row followed by its hash, as a page stores them,
/// even in broken pages. The caller uses only rows that continue the chain.
fn remnants(path: &Path) -> Vec<(Vec<u8>, Hash)> {
    const BEGIN: &[u8] = br#"{"kind":""#;
    let mut found = Vec::new();
    for file in [path.to_owned(), beside(path, "-wal")] {
        let bytes = std::fs::read(file).unwrap_or_default();
        let windows = bytes.windows(BEGIN.len()).enumerate();
        for (start, _) in windows.filter(|(_, window)| *window == BEGIN) {
            let rest = bytes.get(start..).unwrap_or_default();
            let mut values = serde_json::Deserializer::from_slice(rest).into_iter::<IgnoredAny>();
            if !matches!(values.next(), Some(Ok(_))) {
                continue;
            }
            let (row, after) = rest.split_at(values.byte_offset());
            if let Some(hash) = after.get(..32).and_then(Hash::from_slice) {
                found.push((row.to_vec(), hash));
            }
        }
    }
    found
}
