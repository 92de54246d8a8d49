//! Repair: a new ledger of all rows of a damaged one that can be proven; a repair never lowers a charge.

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
use crate::hold::is_in_use;
use crate::ledger::{Ledger, Options, random_id};
use crate::place::{VersionError, beside, check_version, find, open_unchanging};
use crate::schema::APPLICATION;
use crate::state::{LOST_ROWS, State};

/// What a repair found and made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repaired {
    /// The head of the new ledger.
    pub head: Head,
    /// Rows whose chain was proven.
    pub proven: u64,
    /// Those of them that were not in the database's table, but in the anchor or in a remnant of the WAL.
    pub salvaged: u64,
    /// Why rows may be lost, if that cannot be excluded: every dataset then counts as without protection.
    pub lost: Option<String>,
}

/// A chain as it grows from its first row.
#[derive(Default)]
struct Chain {
    state: State,
    rows: Vec<Vec<u8>>,
    hashes: Vec<Hash>,
}

impl Chain {
    fn end(&self) -> Hash {
        self.hashes.last().copied().unwrap_or_default()
    }

    fn push(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.state.take(self.rows.len() as u64 + 1, bytes)?;
        self.hashes.push(self.end().after(bytes));
        self.rows.push(bytes.to_vec());
        Ok(())
    }

    /// Whether it has this row.
    fn has(&self, head: &Head) -> bool {
        let place =
            usize::try_from(head.sequence).ok().and_then(|sequence| sequence.checked_sub(1));
        head.id == self.state.id
            && place.and_then(|place| self.hashes.get(place)) == Some(&head.hash)
    }

    /// Goes on with the rows of a slot, if they lead from here to its head.
    fn extend_from(&mut self, slot: &Anchored) -> bool {
        let before = slot.head.sequence.saturating_sub(slot.rows.len() as u64);
        let Some(known) = (self.rows.len() as u64).checked_sub(before) else { return false };
        let known = usize::try_from(known).unwrap_or(usize::MAX);
        let rows = slot.rows.get(known..).unwrap_or_default();
        let end = rows.iter().fold(self.end(), |hash, bytes| hash.after(bytes));
        !rows.is_empty() && end == slot.head.hash && rows.iter().all(|row| self.push(row).is_ok())
    }
}

impl Ledger {
    /// Makes a new ledger of all that is proven of a damaged one: the rows of its database, of its WAL or remnants of
    /// it, and of both slots of its anchor, as far as each has its hash in one chain. The damaged files are left
    /// as they are.
    ///
    /// # Guarantee
    /// A repair never lowers a charge. If both slots of the anchor are whole and the chain reaches everything they
    /// name, nothing was lost. Otherwise what is missing could be anything; then every dataset gets a run that
    /// protects nothing, so that its epsilon is infinite from then on, and no dataset begins in the new ledger.
    ///
    /// # Errors
    /// When the ledger verifies, is a backup, or a run has it open; when not even its first row is left, or rows are
    /// lost and there is no dataset to mark.
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
        if open_unchanging(&path)
            .is_ok_and(|database| matches!(check_version(&database), Err(VersionError::Backup)))
        {
            return Err(StoreError::Refused(format!(
                "{} is a backup, which lacks what was charged since: make another one, or repair the ledger",
                damaged.display()
            )));
        }
        if is_in_use(&path) {
            return Err(StoreError::Busy(format!(
                "a run has {} open, and would go on charging the damaged files: end it first",
                damaged.display()
            )));
        }
        // Before SQLite has the file open: closing another handle on it would take its locks away.
        let remnants = remnants(&path);
        let mut anchor = Anchor::open(&path, false).ok();
        let _lock = anchor.as_ref().map(|anchor| anchor.lock(options.patience)).transpose()?;
        let slots = anchor.as_mut().map(Anchor::read).transpose()?.unwrap_or_default();
        let spoiled = anchor.as_ref().map(Anchor::spoiled).transpose()?.unwrap_or_default();
        let mut chain = Chain::default();
        for connection in [open_to_read(&path, options.patience), open_unchanging(&path)] {
            let found = connection.map(|connection| stored(&connection)).unwrap_or_default();
            if found.rows.len() > chain.rows.len() {
                chain = found;
            }
        }
        let in_database = chain.rows.len() as u64;
        loop {
            let next = remnants.iter().find(|(bytes, hash)| chain.end().after(bytes) == *hash);
            let grown = slots.iter().any(|slot| chain.extend_from(slot))
                || next.is_some_and(|(bytes, _)| chain.push(bytes).is_ok());
            if !grown {
                break;
            }
        }
        if chain.rows.is_empty() {
            return Err(StoreError::Damaged("not even its first row is left".to_owned()));
        }
        let proven = chain.rows.len() as u64;
        let missing = slots.iter().rfind(|slot| !chain.has(&slot.head));
        let lost = match missing {
            Some(slot) => {
                Some(format!("row {} was anchored, and is not proven", slot.head.sequence))
            }
            None if slots.is_empty() => Some("no anchor says where it ended".to_owned()),
            // What a slot that does not verify seems to name proves nothing: it may have been the newer one.
            None if !spoiled.is_empty() => Some("a slot of its anchor is spoiled".to_owned()),
            None => None,
        };
        if lost.is_some() {
            mark(&mut chain)?;
        }
        let head = create_files(new, options, &chain.rows, APPLICATION)?;
        Ok(Repaired { head, proven, salvaged: proven - in_database, lost })
    }
}

/// Stamps every dataset with a run that protects nothing.
fn mark(chain: &mut Chain) -> Result<(), StoreError> {
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

/// The rows of a database's table, as far as their chain holds.
fn stored(connection: &Connection) -> Chain {
    let mut chain = Chain::default();
    let statement = connection.prepare("SELECT bytes, hash FROM event ORDER BY sequence");
    let Ok(mut statement) = statement else { return chain };
    let Ok(rows) = statement.query_map([], |row| row.try_into()) else { return chain };
    for row in rows {
        let Ok::<(Vec<u8>, Vec<u8>), _>((bytes, hash)) = row else { break };
        let expected = chain.end().after(&bytes);
        if Hash::from_slice(&hash) != Some(expected) || chain.push(&bytes).is_err() {
            break;
        }
    }
    chain
}

/// Everything in the database's file and its WAL that looks like a row followed by its hash, as a page stores them,
/// whatever became of the pages around it. A row that fits nowhere in the chain is left out.
fn remnants(path: &Path) -> Vec<(Vec<u8>, Hash)> {
    const BEGIN: &[u8] = br#"{"kind":""#;
    let mut found = Vec::new();
    for file in [path.to_owned(), beside(path, "-wal")] {
        let bytes = std::fs::read(file).unwrap_or_default();
        let windows = bytes.windows(BEGIN.len()).enumerate();
        for (place, _) in windows.filter(|(_, window)| *window == BEGIN) {
            let rest = bytes.get(place..).unwrap_or_default();
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
