//! Verifies what is on disk, and completes the write of a process that died.

use std::sync::Arc;

use rusqlite::{OptionalExtension, TransactionBehavior};

use crate::anchor::Anchored;
use crate::chain::{Chained, Hash, Head};
use crate::database::{insert, number};
use crate::entry::Entry;
use crate::error::{StoreError, while_beginning, while_reading};
use crate::sqlite::Sqlite;
use crate::store::{Store, Verified};

impl Sqlite {
    /// Catches up and completes the write of a process that died. Every row in the database or in the anchor counts as
    /// charged.
    pub(crate) fn recover(&mut self, verified: &mut Verified) -> Result<(), StoreError> {
        // Pending rows may be in the database by now.
        if !self.pending.is_empty() {
            *verified = Verified::default();
        }
        let anchored = self.catch_up_to_anchor(verified)?;
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
        if anchored < verified.head.sequence {
            let entry = Entry::Recovered { anchored };
            let bytes = entry.to_bytes().map_err(StoreError::Refused)?;
            let sequence = verified.head.sequence + 1;
            let hash = verified.head.hash.after(&bytes);
            let head = Head { id: verified.head.id.clone(), sequence, hash };
            self.append(&head, vec![(sequence, bytes, hash)])?;
            verified.state.apply(sequence, &entry).map_err(StoreError::Damaged)?;
            verified.head = head;
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
    pub(crate) fn catch_up_to_anchor(
        &mut self,
        verified: &mut Verified,
    ) -> Result<u64, StoreError> {
        let known = verified.head.sequence;
        if known == 0 {
            self.pending.clear();
        }
        let anchored = self.verify(verified)?;
        self.others_unsynced |= verified.head.sequence != known;
        Ok(anchored)
    }

    fn verify(&mut self, verified: &mut Verified) -> Result<u64, StoreError> {
        // The anchor first: every row that it names must then be in the database or in the slot.
        let slots = self.anchor.read()?;
        self.take_rows(&slots, verified)?;
        let Some(newest) = slots.last() else {
            return Err(StoreError::Damaged("no slot of its anchor verifies".to_owned()));
        };
        for slot in &slots {
            if slot.head.id != verified.head.id {
                return Err(StoreError::Damaged("its anchor is another ledger's".to_owned()));
            }
            self.complete(slot, verified)?;
        }
        if newest.head.sequence > verified.head.sequence {
            return Err(StoreError::Damaged(format!(
                "it ends at row {}, and row {} was anchored: rows were lost",
                verified.head.sequence, newest.head.sequence
            )));
        }
        Ok(newest.head.sequence)
    }

    /// Applies the new rows of the database, and checks that they end at the head in its table.
    fn take_rows(
        &mut self,
        slots: &[Arc<Anchored>],
        verified: &mut Verified,
    ) -> Result<(), StoreError> {
        let damaged = StoreError::Damaged;
        let transaction = self.connection.unchecked_transaction()?;
        let mut statement = transaction
            .prepare_cached(
                "SELECT sequence, bytes, hash FROM event WHERE sequence > ?1 ORDER BY sequence",
            )
            .map_err(while_reading)?;
        let mut rows = statement.query([number(verified.head.sequence)?]).map_err(while_reading)?;
        while let Some(row) = rows.next().map_err(while_reading)? {
            let (sequence, bytes, stored): (i64, Vec<u8>, Vec<u8>) =
                row.try_into().map_err(while_reading)?;
            verified.take(sequence, &bytes, Hash::from_slice(&stored))?;
            let head = &verified.head;
            if slots.iter().any(|slot| slot.head.sequence == head.sequence && slot.head != *head) {
                let row = head.sequence;
                return Err(damaged(format!("row {row} is not the one that was anchored")));
            }
        }
        let mut statement =
            transaction.prepare_cached("SELECT sequence, hash FROM head").map_err(while_reading)?;
        let head = statement.query_row([], |row| row.try_into()).optional();
        let head: Option<(i64, Vec<u8>)> = head.map_err(while_reading)?;
        let (sequence, hash) = head.ok_or_else(|| damaged("it has no head".to_owned()))?;
        match (u64::try_from(sequence), Hash::from_slice(&hash)) {
            (Ok(sequence), Some(hash)) => verified.check_end(sequence, hash),
            _ => Err(damaged("its head is malformed".to_owned())),
        }
    }

    /// Applies the rows of a slot that the database lacks, if they continue its chain.
    fn complete(&mut self, slot: &Anchored, verified: &mut Verified) -> Result<(), StoreError> {
        let before = slot.head.sequence.saturating_sub(slot.rows.len() as u64);
        let Some(known) = verified.head.sequence.checked_sub(before) else { return Ok(()) };
        if slot.head.sequence <= verified.head.sequence {
            return Ok(());
        }
        let (mut sequence, mut hash) = (verified.head.sequence, verified.head.hash);
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
            verified.state.apply_bytes(*sequence, bytes).map_err(damaged)?;
        }
        verified.head = slot.head.clone();
        self.pending.extend(rows);
        Ok(())
    }
}
