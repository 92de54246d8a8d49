//! What every store of rows does, in a file or on a server. The checks of budgets and the hash chain are the ledger's.

use std::collections::BTreeMap;

use crate::author::Author;
use crate::chain::{Chained, Hash, Head};
use crate::error::StoreError;
use crate::state::State;

/// Rows to be stored: number, bytes, hash.
pub(crate) type Rows = Vec<(u64, Vec<u8>, Hash)>;

/// A function that is called with the number, bytes and hash of a row.
pub(crate) type Visitor<'a> = dyn FnMut(u64, &[u8], Hash) -> Result<(), StoreError> + 'a;

/// The hold of a run on budget for its plan, until it is dropped.
pub(crate) type Hold = Box<dyn Send>;

/// The part of a ledger that was read and verified: its head, and the state that the rows up to it lead to.
#[derive(Default)]
pub(crate) struct Verified {
    pub(crate) head: Head,
    pub(crate) state: State,
}

impl Verified {
    /// Verifies the next row and applies it.
    ///
    /// # Errors
    /// When it is not the next row, does not have the hash that continues the chain, or is invalid.
    pub(crate) fn take(
        &mut self,
        sequence: i64,
        bytes: &[u8],
        stored: Option<Hash>,
    ) -> Result<(), StoreError> {
        let damaged = StoreError::Damaged;
        let expected = self.head.sequence + 1;
        if u64::try_from(sequence) != Ok(expected) {
            return Err(damaged(format!("row {expected} is missing")));
        }
        let hash = self.head.hash.after(bytes);
        if stored != Some(hash) {
            return Err(damaged(format!("row {expected} does not have its hash")));
        }
        self.state
            .apply_bytes(expected, bytes)
            .map_err(|why| damaged(format!("row {expected}: {why}")))?;
        self.head = Head { id: self.state.id.clone(), sequence: expected, hash };
        Ok(())
    }

    /// Checks that the rows end at the head that is stored beside them.
    pub(crate) fn check_end(&self, sequence: u64, hash: Hash) -> Result<(), StoreError> {
        if (sequence, hash) == (self.head.sequence, self.head.hash) {
            return Ok(());
        }
        Err(StoreError::Damaged(format!(
            "its head is row {sequence}, and its rows end at {}",
            self.head.sequence
        )))
    }
}

/// Where a ledger continues that is not charged here any more.
pub(crate) struct Moved {
    pub(crate) destination: String,
    /// Whether it is complete there.
    pub(crate) arrived: bool,
}

/// Where the rows of a ledger are.
pub(crate) trait Store: Send {
    /// Reads and verifies the rows after the verified ones. From the default value it begins with the first row.
    fn catch_up(&mut self, verified: &mut Verified) -> Result<(), StoreError>;

    /// Keeps every other process from appending until `unlock`, and catches up. All verified rows are durable then.
    fn lock(&mut self, verified: &mut Verified) -> Result<(), StoreError>;

    /// Lets other processes append.
    fn unlock(&mut self);

    /// Whether rows may be appended without the lock, because `append` writes nothing if another process was faster.
    fn may_append_unlocked(&self) -> bool {
        false
    }

    /// Appends rows that end at this head; on success they are durable. The caller has the lock, or
    /// `may_append_unlocked`. After an error the store is poisoned, unless it is certain that nothing was written.
    fn append(&mut self, head: &Head, rows: Rows) -> Result<(), StoreError>;

    /// Whether it is unknown what was written; then nothing more may be.
    fn is_poisoned(&self) -> bool;

    /// Where the ledger was moved; `None` if it was not.
    fn moved(&self) -> Result<Option<Moved>, StoreError>;

    /// Visits the verified rows.
    fn visit(&self, verified: &Verified, visitor: &mut Visitor<'_>) -> Result<(), StoreError>;

    /// The hash of a row, if it is there.
    fn hash_of(&self, sequence: u64) -> Result<Option<Hash>, StoreError>;

    /// Who wrote each row, by its number; empty where only one machine can write.
    fn authors(&self) -> Result<BTreeMap<u64, Author>, StoreError>;

    /// Takes the hold of a run that is about to be opened. The caller has the lock.
    fn take_hold(&self, run: &str) -> Result<Hold, StoreError>;

    /// Which of these runs have a hold now. One for which that cannot be determined counts as held.
    fn held(&self, runs: &[&str]) -> Vec<bool>;

    /// Checks that tables and triggers are unaltered; returns warnings about what does not invalidate the ledger.
    fn audit(&self, verified: &Verified) -> Result<Vec<String>, StoreError>;

    /// Ends all charges here for ever, because the ledger continues at `destination`, which is kept. It can still be read.
    /// The caller has the lock, which ends.
    fn retire(&mut self, destination: &str) -> Result<(), StoreError>;
}
