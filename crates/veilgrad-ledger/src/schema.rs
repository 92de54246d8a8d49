//! The tables of a ledger, version by version.
//!
//! A migration never changes the bytes of rows, because they are hashed.

use rusqlite::Transaction;

use crate::error::StoreError;

/// The application id of a ledger: "VeiL".
pub(crate) const APPLICATION: i32 = 0x5665_694c;
/// The application id of a backup, which is never charged: "VeiB".
pub(crate) const BACKUP: i32 = 0x5665_6942;
/// The application id of a ledger that was moved elsewhere, and is not charged here any more: "VeiM".
pub(crate) const MOVED: i32 = 0x5665_694d;

/// The migration from version i to version i + 1. A released step never changes.
pub(crate) const STEPS: [&str; 1] = ["
CREATE TABLE event (
    sequence INTEGER PRIMARY KEY CHECK (sequence > 0),
    bytes BLOB NOT NULL,
    hash BLOB NOT NULL CHECK (length(hash) = 32)
) STRICT;
CREATE TABLE head (
    only INTEGER PRIMARY KEY CHECK (only = 1),
    sequence INTEGER NOT NULL,
    hash BLOB NOT NULL CHECK (length(hash) = 32)
) STRICT;
CREATE TRIGGER event_update BEFORE UPDATE ON event
BEGIN SELECT RAISE(ABORT, 'events are never changed'); END;
CREATE TRIGGER event_delete BEFORE DELETE ON event
BEGIN SELECT RAISE(ABORT, 'events are never deleted'); END;
"];

/// The table that a ledger has when it was moved elsewhere: where it continues, and whether it is complete there.
pub(crate) const MOVED_TABLE: &str =
    "CREATE TABLE moved (destination TEXT NOT NULL, arrived INTEGER NOT NULL) STRICT";

/// The SQL that makes the tables, functions and roles of a ledger on PostgreSQL: `psql DATABASE < FILE`, as a role that may
/// create roles.
pub const MIGRATION: &str = include_str!("../migrations/postgresql.sql");

/// The version of the tables and of the meaning of rows.
pub(crate) const SCHEMA: i32 = STEPS.len() as i32;

/// Migrates a database from version `from` to the last version, in one transaction.
pub(crate) fn migrate(
    transaction: &Transaction<'_>,
    steps: &[&str],
    from: i32,
) -> Result<(), StoreError> {
    for (version, step) in (0..).zip(steps) {
        if version >= from {
            transaction.execute_batch(step)?;
            transaction.pragma_update(None, "user_version", version + 1)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn completed_steps_are_not_repeated() {
        let steps = ["CREATE TABLE a (x)", "CREATE TABLE b (x)", "ALTER TABLE a ADD COLUMN y"];
        let mut connection = rusqlite::Connection::open_in_memory().unwrap();
        for (from, known) in [(0, 1), (1, 3), (3, 3)] {
            let transaction = connection.transaction().unwrap();
            migrate(&transaction, &steps[..known], from).unwrap();
            transaction.commit().unwrap();
            let version: i32 =
                connection.pragma_query_value(None, "user_version", |row| row.get(0)).unwrap();
            assert_eq!(version, known as i32);
        }
        connection.execute("INSERT INTO a (x, y) VALUES (1, 2)", []).unwrap();
    }
}
