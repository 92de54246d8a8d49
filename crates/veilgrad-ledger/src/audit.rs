//! What a thorough look at a ledger finds besides its rows: altered tables and triggers, spoiled slots.

use std::collections::BTreeMap;

use rusqlite::Connection;

use crate::anchor::Spoiled;
use crate::error::{StoreError, while_reading};
use crate::ledger::Ledger;
use crate::schema::{STEPS, migrate};

impl Ledger {
    /// Checks what opening does not need: that tables and triggers are those that a ledger is created with, that
    /// both slots of the anchor are whole, and that no two datasets have the same name but for its spelling. What
    /// does not invalidate the ledger is returned as text.
    ///
    /// # Errors
    /// When a table or a trigger is missing, altered, or not a ledger's.
    pub fn audit(&self) -> Result<Vec<String>, StoreError> {
        self.check_schema()?;
        let spoiled = self.anchor.spoiled()?;
        let mut remarks: Vec<String> = spoiled.iter().map(|slot| self.remark(slot)).collect();
        for name in self.state.datasets.keys() {
            if let Some(alike) = self.state.alike(name).filter(|alike| name.as_str() < *alike) {
                remarks.push(format!(
                    "datasets {name:?} and {alike:?} differ only by spelling; if they are the same data, what \
                     was spent on it is the sum of both"
                ));
            }
        }
        Ok(remarks)
    }

    fn check_schema(&self) -> Result<(), StoreError> {
        let version: i32 = self
            .connection
            .pragma_query_value(None, "user_version", |row| row.get(0))
            .map_err(while_reading)?;
        let known = usize::try_from(version).unwrap_or(0);
        let mut expected = Connection::open_in_memory()?;
        let transaction = expected.transaction()?;
        migrate(&transaction, STEPS.get(..known).unwrap_or(&STEPS), 0)?;
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

    /// What may be known of a spoiled slot. A crash spoils only a slot of which nothing was granted yet; a
    /// fault of the disk may spoil any.
    fn remark(&self, slot: &Spoiled) -> String {
        let which = if slot.place == 0 { "first" } else { "second" };
        let end = self.head.sequence;
        match slot.names {
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

/// Tables, triggers and the like, and how they were made; except for what SQLite adds.
fn definitions(connection: &Connection) -> Result<BTreeMap<String, String>, StoreError> {
    let mut statement = connection
        .prepare("SELECT type || ' ' || name, coalesce(sql, '') FROM sqlite_schema")
        .map_err(while_reading)?;
    let rows = statement
        .query_map([], |row| Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?)))
        .map_err(while_reading)?;
    let all: Result<BTreeMap<_, _>, _> = rows.collect();
    let mut all = all.map_err(while_reading)?;
    all.retain(|name, _| !name.contains(" sqlite_"));
    Ok(all)
}
