//! A thorough check of a ledger beyond its rows: altered tables and triggers, spoiled slots, similar names.

use std::collections::BTreeMap;

use rusqlite::Connection;

use crate::anchor::Spoiled;
use crate::error::{StoreError, while_reading};
use crate::ledger::Ledger;
use crate::schema::{MOVED_TABLE, STEPS, migrate};
use crate::sqlite::Sqlite;
use crate::store::Store;

impl Ledger {
    /// Checks what opening does not check: that tables and triggers are unaltered, that both slots of a file's anchor
    /// verify, and that no two names of datasets differ only by spelling. Returns warnings about what does not
    /// invalidate the ledger.
    ///
    /// # Errors
    /// When a table or a trigger is missing, altered or unknown.
    pub fn audit(&self) -> Result<Vec<String>, StoreError> {
        let mut warnings = self.store.audit(&self.verified)?;
        let state = self.state();
        for name in state.datasets.keys() {
            if let Some(alike) = state.alike(name).filter(|alike| name.as_str() < *alike) {
                warnings.push(format!(
                    "datasets {name:?} and {alike:?} differ only by spelling; if they are the same data, what \
                     was spent on it is the sum of both"
                ));
            }
        }
        Ok(warnings)
    }
}

impl Sqlite {
    pub(crate) fn check_schema(&self) -> Result<(), StoreError> {
        let version: i32 = self
            .connection
            .pragma_query_value(None, "user_version", |row| row.get(0))
            .map_err(while_reading)?;
        let known = usize::try_from(version).unwrap_or(0);
        let mut expected = Connection::open_in_memory()?;
        let transaction = expected.transaction()?;
        migrate(&transaction, STEPS.get(..known).unwrap_or(&STEPS), 0)?;
        if self.moved()?.is_some() {
            transaction.execute_batch(MOVED_TABLE)?;
        }
        transaction.commit()?;
        let (expected, mut found) = (definitions(&expected)?, definitions(&self.connection)?);
        for (name, definition) in &expected {
            match found.remove(name) {
                Some(same) if same == *definition => {}
                Some(_) => return Err(StoreError::Damaged(format!("its {name} was altered"))),
                None => return Err(StoreError::Damaged(format!("its {name} is missing"))),
            }
        }
        match found.keys().next() {
            Some(name) => Err(StoreError::Damaged(format!("it has a {name}, which no ledger has"))),
            None => Ok(()),
        }
    }
}

impl Spoiled {
    /// The warning about a spoiled slot. A crash can spoil only a slot for which no permit was granted yet; a disk
    /// fault can spoil any. The ledger ends at row `end`.
    pub(crate) fn warning(&self, end: u64) -> String {
        let which = if self.index == 0 { "first" } else { "second" };
        match self.named_row {
            Some(row) if row <= end => format!(
                "the {which} slot of the anchor does not verify; it seems to name row {row}, which the ledger has"
            ),
            Some(row) => format!(
                "the {which} slot of the anchor does not verify; it seems to name row {row}, and the ledger ends at \
                 row {end}: either the power failed while that row was written, and nothing was released \
                 for it, or the newer slot was spoiled later and rows are lost; compare with a head that \
                 was kept elsewhere (--against)"
            ),
            None => format!(
                "the {which} slot of the anchor does not verify and cannot be read: if it was the newer one, \
                 rows after row {end} may be lost; compare with a head that was kept elsewhere (--against)"
            ),
        }
    }
}

/// The SQL definitions of tables, triggers and indices, without those of SQLite itself.
fn definitions(connection: &Connection) -> Result<BTreeMap<String, String>, StoreError> {
    let mut statement = connection
        .prepare("SELECT type || ' ' || name, coalesce(sql, '') FROM sqlite_schema")
        .map_err(while_reading)?;
    let rows = statement
        .query_map([], |row| Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?)))
        .map_err(while_reading)?;
    let definitions: Result<BTreeMap<_, _>, _> = rows.collect();
    let mut definitions = definitions.map_err(while_reading)?;
    definitions.retain(|name, _| !name.contains(" sqlite_"));
    Ok(definitions)
}
