//! Verifies what is on disk, and completes the write of a process that died.

use std::sync::Arc;

use rusqlite::{OptionalExtension, TransactionBehavior};

use crate::anchor::Anchored;
use crate::chain::{Chained, Hash, Head};
use crate::database::{insert, number};
use crate::entry::Entry;
use crate::error::{StoreError, while_beginning, while_reading};
use crate::ledger::Ledger;

impl Ledger {
    /// Catches up and completes the write of a process that died. Every row in the database or in the anchor counts as
    /// charged.
    pub(crate) fn recover(&mut self) -> Result<(), StoreError> {
        // Pending rows may be in the database by now.
        if !self.pending.is_empty() {
            self.reset();
        }
        let anchored = self.catch_up()?;
        if self.others_unsynced {
            self.sync_rows_of_others()?;
        }
        if !self.pending.is_empty() {
            let transaction =
                self.connection.transaction_with_behavior(TransactionBehavior::Immediate);
            // If another process holds the database, nothing has been written, and the rows stay pending.
            let transaction = transaction.map_err(while_beginning)?;
            let rows = std::mem::take(&mut self.pending);
            self.poisoned = true;
            insert(&transaction, &rows)?;
            transaction.commit()?;
            self.sync_wal()?;
            self.poisoned = false;
        }
        if anchored < self.head.sequence {
            self.write(&[Entry::Recovered { anchored }], None)?;
        }
        Ok(())
    }

    /// Syncs rows of other processes, which may have died before they did. Otherwise a power failure could lose rows
    /// on which later ones are based.
    fn sync_rows_of_others(&mut self) -> Result<(), StoreError> {
        // After a failed sync a second one may succeed without having written anything.
        self.poisoned = true;
        self.sync_wal()?;
        self.anchor.sync(false)?;
        (self.others_unsynced, self.poisoned) = (false, false);
        Ok(())
    }

    /// Verifies and applies all new rows; returns the row that the anchor names.
    pub(crate) fn catch_up(&mut self) -> Result<u64, StoreError> {
        let known = self.head.sequence;
        let anchored = self.verify()?;
        self.others_unsynced |= self.head.sequence != known;
        Ok(anchored)
    }

    fn verify(&mut self) -> Result<u64, StoreError> {
        // The anchor first: every row that it names must then be in the database or in the slot.
        let slots = self.anchor.read()?;
        let stored = self.take_rows(&slots)?;
        if stored != (self.head.sequence, self.head.hash) {
            return Err(StoreError::Damaged(format!(
                "its head is row {}, and its rows end at {}",
                stored.0, self.head.sequence
            )));
        }
        let Some(newest) = slots.last() else {
            return Err(StoreError::Damaged("no slot of its anchor verifies".to_owned()));
        };
        for slot in &slots {
            if slot.head.id != self.head.id {
                return Err(StoreError::Damaged("its anchor is another ledger's".to_owned()));
            }
            self.complete(slot)?;
        }
        if newest.head.sequence > self.head.sequence {
            return Err(StoreError::Damaged(format!(
                "it ends at row {}, and row {} was anchored: rows were lost",
                self.head.sequence, newest.head.sequence
            )));
        }
        Ok(newest.head.sequence)
    }

    /// Applies the new rows of the database; returns the head in its table.
    fn take_rows(&mut self, slots: &[Arc<Anchored>]) -> Result<(u64, Hash), StoreError> {
        let damaged = StoreError::Damaged;
        let transaction = self.connection.unchecked_transaction()?;
        let mut statement = transaction
            .prepare_cached(
                "SELECT sequence, bytes, hash FROM event WHERE sequence > ?1 ORDER BY sequence",
            )
            .map_err(while_reading)?;
        let mut rows = statement.query([number(self.head.sequence)?]).map_err(while_reading)?;
        while let Some(row) = rows.next().map_err(while_reading)? {
            let (sequence, bytes, stored): (i64, Vec<u8>, Vec<u8>) =
                row.try_into().map_err(while_reading)?;
            let expected = self.head.sequence + 1;
            if u64::try_from(sequence) != Ok(expected) {
                return Err(damaged(format!("row {expected} is missing")));
            }
            let hash = self.head.hash.after(&bytes);
            if Hash::from_slice(&stored) != Some(hash) {
                return Err(damaged(format!("row {expected} does not have its hash")));
            }
            self.state
                .apply_bytes(expected, &bytes)
                .map_err(|why| damaged(format!("row {expected}: {why}")))?;
            self.head = Head { id: self.state.id.clone(), sequence: expected, hash };
            if slots.iter().any(|slot| slot.head.sequence == expected && slot.head != self.head) {
                return Err(damaged(format!("row {expected} is not the one that was anchored")));
            }
        }
        let mut statement =
            transaction.prepare_cached("SELECT sequence, hash FROM head").map_err(while_reading)?;
        let head = statement.query_row([], |row| row.try_into()).optional();
        let head: Option<(i64, Vec<u8>)> = head.map_err(while_reading)?;
        let (sequence, hash) = head.ok_or_else(|| damaged("it has no head".to_owned()))?;
        match (u64::try_from(sequence), Hash::from_slice(&hash)) {
            (Ok(sequence), Some(hash)) => Ok((sequence, hash)),
            _ => Err(damaged("its head is malformed".to_owned())),
        }
    }

    /// Applies the rows of a slot that the database lacks, if they continue its chain.
    fn complete(&mut self, slot: &Anchored) -> Result<(), StoreError> {
        let before = slot.head.sequence.saturating_sub(slot.rows.len() as u64);
        let Some(known) = self.head.sequence.checked_sub(before) else { return Ok(()) };
        if slot.head.sequence <= self.head.sequence {
            return Ok(());
        }
        let (mut sequence, mut hash) = (self.head.sequence, self.head.hash);
        let mut rows = Vec::new();
        for bytes in slot.rows.iter().skip(usize::try_from(known).unwrap_or(usize::MAX)) {
            sequence += 1;
            hash = hash.after(bytes);
            rows.push((sequence, bytes.clone(), hash));
        }
        if hash != slot.head.hash {
            return Ok(());
        }
        for (sequence, bytes, _) in &rows {
            let damaged = |why| StoreError::Damaged(format!("anchored row {sequence}: {why}"));
            self.state.apply_bytes(*sequence, bytes).map_err(damaged)?;
        }
        self.head = slot.head.clone();
        self.pending.extend(rows);
        Ok(())
    }
}
