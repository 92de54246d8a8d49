//! One connection to the server, and what its errors mean.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use postgres::{Client, SimpleQueryMessage, Statement};
use veilgrad_events::ProcessIdentity;

use super::connect;
use super::failure::Failure;
use crate::chain::Hash;
use crate::error::StoreError;
use crate::host::host;
use crate::location::PostgresUrl;

/// How many rows are read at once.
pub(super) const BATCH: usize = 4096;
/// The version of the tables that this code understands.
const VERSION: &str = "2";
/// The kind of transactions, how long the server keeps the lock for a client that has stopped, and when it looks whether
/// hosts are there.
const SETTINGS: &str = "SET idle_in_transaction_session_timeout TO '120s'; SET tcp_keepalives_idle TO 20; SET \
                        tcp_keepalives_interval TO 10; SET tcp_keepalives_count TO 3; SET client_min_messages TO error; SET \
                        standard_conforming_strings TO on; SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ \
                        COMMITTED, READ WRITE; SELECT pg_backend_pid()";

/// Appends rows: see the migration. Outside a transaction it is one of its own.
const APPEND: &str = "SELECT veilgrad.append($1, $2, $3, $4)";

/// A connection.
pub(super) struct Session {
    address: PostgresUrl,
    /// `None` after a failure that leaves it unknown what was written.
    client: Option<Client>,
    /// `APPEND`, which the server has parsed and planned for this connection.
    append: Option<Statement>,
    /// The process that connected.
    owner: ProcessIdentity,
    /// The server's process of this connection.
    pub(super) process: String,
    /// The host that is written with every row.
    pub(super) host: String,
    /// The keys of the locks of this connection.
    pub(super) holds: BTreeSet<i64>,
}

impl Session {
    pub(super) fn connect(address: &PostgresUrl, patience: Duration) -> Result<Self, StoreError> {
        let mut session = Self {
            address: address.clone(),
            client: None,
            append: None,
            owner: ProcessIdentity::current()?,
            process: String::new(),
            host: host(),
            holds: BTreeSet::new(),
        };
        session.client = Some(connect::connect(address, patience)?);
        session.prepare(patience)?;
        Ok(session)
    }

    fn prepare(&mut self, patience: Duration) -> Result<(), StoreError> {
        let wait = format!("SET lock_timeout TO {}; ", patience.as_millis().max(1));
        let rows = self.run(&(wait + SETTINGS)).map_err(|failure| failure.error(&self.address))?;
        self.process = rows.into_iter().flatten().next().unwrap_or_default();
        Ok(())
    }

    /// Connects again after the connection was lost. The locks of the old session are not taken again: others may have
    /// been granted that budget.
    pub(super) fn reconnect(&mut self, patience: Duration) -> Result<(), StoreError> {
        self.disconnect();
        let start = Instant::now();
        loop {
            let left = patience.saturating_sub(start.elapsed());
            match connect::connect(&self.address, left.max(Duration::from_millis(10))) {
                Ok(client) => {
                    self.client = Some(client);
                    return self.prepare(patience);
                }
                Err(StoreError::Server(why) | StoreError::Busy(why)) if left.is_zero() => {
                    return Err(StoreError::Busy(format!("its server cannot be reached: {why}")));
                }
                Err(StoreError::Server(_) | StoreError::Busy(_)) => {
                    std::thread::sleep(Duration::from_millis(50).min(left));
                }
                Err(other) => return Err(other),
            }
        }
    }

    /// Whether this process connected, and is not a fork of it.
    pub(super) fn is_own(&self) -> bool {
        self.owner.is_current()
    }

    /// Ends the connection; the server ends its transaction and its locks.
    pub(super) fn disconnect(&mut self) {
        let (append, client) = (self.append.take(), self.client.take());
        if !self.is_own() {
            // Closing them would tell the server to end the statement and the connection of the parent.
            std::mem::forget((append, client));
        }
        self.process.clear();
        self.holds.clear();
    }

    /// Runs statements in one message, and returns the rows of all of them as text.
    pub(super) fn run(&mut self, statements: &str) -> Result<Vec<Vec<String>>, Failure> {
        let Some(client) = &mut self.client else { return Err(Failure::Disconnected) };
        let messages = client.simple_query(statements).map_err(Failure::Client)?;
        let rows = messages.into_iter().filter_map(|message| match message {
            SimpleQueryMessage::Row(row) => {
                let cells = 0..row.len();
                Some(cells.map(|cell| row.get(cell).unwrap_or_default().to_owned()).collect())
            }
            _ => None,
        });
        Ok(rows.collect())
    }

    /// Lets the server parse and plan [`append`](Self::append), if it has not yet. Writes nothing.
    pub(super) fn prepare_append(&mut self) -> Result<(), StoreError> {
        if self.append.is_none() {
            let Some(client) = &mut self.client else {
                return Err(Failure::Disconnected.error(&self.address));
            };
            let prepared = client.prepare(APPEND).map_err(Failure::Client);
            self.append = Some(prepared.map_err(|failure| failure.error(&self.address))?);
        }
        Ok(())
    }

    /// Appends rows in a transaction of its own. Returns when the server has said that it is ready for the next one, which it
    /// says after the commit.
    pub(super) fn append(
        &mut self,
        after: i64,
        rows: &[&[u8]],
        ending: Hash,
    ) -> Result<(), Failure> {
        let (Some(client), Some(append)) = (&mut self.client, &self.append) else {
            return Err(Failure::Disconnected);
        };
        let done = client.execute(append, &[&after, &rows, &ending.0.as_slice(), &self.host]);
        done.map(|_| ()).map_err(Failure::Client)
    }

    fn ask(&mut self, query: &str) -> Result<Vec<String>, StoreError> {
        let rows = self.run(query).map_err(|failure| failure.error(&self.address))?;
        Ok(rows.into_iter().next().unwrap_or_default())
    }

    /// Refuses a database without the tables of this version.
    pub(super) fn check_version(&mut self) -> Result<(), StoreError> {
        let found = self.ask("SELECT version FROM veilgrad.head")?;
        match found.first().map(String::as_str) {
            Some(VERSION) => Ok(()),
            Some(other) => Err(self.no_ledger(&format!(
                "has tables of version {other}, and this program understands version {VERSION}; move the ledger to a file with the \
                 program that made them, and from there to a new database"
            ))),
            None => Err(StoreError::Damaged("it has no head".to_owned())),
        }
    }

    /// Refuses a server that does not write to disk before it answers, or that only reads.
    pub(super) fn check_durable(&mut self) -> Result<(), StoreError> {
        let settings = self.ask(
            "SELECT current_setting('fsync'), current_setting('full_page_writes'), pg_is_in_recovery()",
        )?;
        let refused = |why: &str| Err(StoreError::Refused(format!("{}: {why}", self.address)));
        match settings.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
            ["on", "on", "f"] => Ok(()),
            [_, _, "t"] => refused("is a standby, which only reads; name the primary server"),
            _ => refused(
                "the server runs with fsync or full_page_writes off, so that charges could be lost; turn them on",
            ),
        }
    }

    pub(super) fn has_rows(&mut self) -> Result<bool, StoreError> {
        let found = self.ask("SELECT sequence > 0 FROM veilgrad.head")?;
        Ok(found.first().is_some_and(|found| found == "t"))
    }

    pub(super) fn is_administrator(&mut self) -> Result<bool, StoreError> {
        let found =
            self.ask("SELECT pg_has_role(session_user, 'veilgrad_administer', 'MEMBER')")?;
        Ok(found.first().is_some_and(|found| found == "t"))
    }

    /// What a database is called by whatever address: its name, and the number of its server, which copies of the server share.
    pub(super) fn place(&mut self) -> Result<String, StoreError> {
        let query = "SELECT current_database(), system_identifier FROM pg_control_system()";
        match self.ask(query)?.as_slice() {
            [database, server] => Ok(format!("database {database} of server {server}")),
            _ => Err(StoreError::Damaged("the server does not say which it is".to_owned())),
        }
    }

    fn no_ledger(&self, why: &str) -> StoreError {
        StoreError::NotALedger { path: self.address.to_string(), why: why.to_owned() }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.disconnect();
    }
}

/// A number that the server wrote.
pub(super) fn number(text: &str) -> Result<i64, StoreError> {
    text.parse().map_err(|_| StoreError::Damaged("a number of a row is none".to_owned()))
}

/// Bytes that the server wrote as hexadecimal digits.
pub(super) fn decode_hex(text: &str) -> Result<Vec<u8>, StoreError> {
    let malformed = || StoreError::Damaged("the bytes of a row are malformed".to_owned());
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let pairs = text.as_bytes().chunks(2);
    pairs
        .map(|pair| match pair {
            [high, low] => {
                Ok(16 * digit(*high).ok_or_else(malformed)? + digit(*low).ok_or_else(malformed)?)
            }
            _ => Err(malformed()),
        })
        .collect()
}
