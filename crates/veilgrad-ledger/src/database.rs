//! SQLite connections, and inserting rows.

use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};

use crate::error::{StoreError, while_reading};
use crate::files::{beside, check_not_foreign, open_unchanging};
use crate::store::Rows;

/// Opens a database to read, also on a read-only file system.
pub(crate) fn open_to_read(path: &Path, patience: Duration) -> Result<Connection, StoreError> {
    use rusqlite::ErrorCode as Code;
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    prepare(path, &connection, patience)?;
    let probe: Result<i64, _> =
        connection.pragma_query_value(None, "schema_version", |row| row.get(0));
    match probe.map_err(|error| (error.sqlite_error_code(), error)) {
        Ok(_) => Ok(connection),
        // If the files next to the database cannot be created, it can still be read without a WAL.
        Err((Some(Code::CannotOpen | Code::ReadOnly), _)) => {
            let wal = beside(path, "-wal");
            if std::fs::metadata(&wal).is_ok_and(|metadata| metadata.len() > 0) {
                return Err(StoreError::Refused(format!(
                    "{} holds rows that are not in the database yet, and nothing can be written \
                     next to it; copy the ledger with its -wal and .anchor to a writable directory",
                    wal.display()
                )));
            }
            let connection = open_unchanging(path)?;
            prepare(path, &connection, patience)?;
            Ok(connection)
        }
        Err((_, error)) => Err(while_reading(error)),
    }
}

/// Configures a connection, and checks that it is one to a ledger.
pub(crate) fn prepare(
    path: &Path,
    connection: &Connection,
    patience: Duration,
) -> Result<(), StoreError> {
    connection.busy_timeout(patience)?;
    connection.pragma_update(None, "trusted_schema", false)?;
    check_not_foreign(path, connection)
}

/// Inserts the next rows and updates the head.
pub(crate) fn insert(connection: &Connection, rows: &Rows) -> Result<(), StoreError> {
    let Some((last, _, hash)) = rows.last() else { return Ok(()) };
    let mut statement = connection.prepare_cached("INSERT INTO event VALUES (?1, ?2, ?3)")?;
    for (sequence, bytes, hash) in rows {
        statement.execute(rusqlite::params![number(*sequence)?, bytes, hash.0])?;
    }
    let before = number(*last)? - number(rows.len() as u64)?;
    let mut update = connection
        .prepare_cached("UPDATE head SET sequence = ?1, hash = ?2 WHERE sequence = ?3")?;
    if update.execute(rusqlite::params![number(*last)?, hash.0, before])? != 1 {
        return Err(StoreError::Damaged(format!("its head is not row {before}")));
    }
    Ok(())
}

pub(crate) fn number(sequence: u64) -> Result<i64, StoreError> {
    i64::try_from(sequence).map_err(|_| StoreError::Refused("too many rows".to_owned()))
}
