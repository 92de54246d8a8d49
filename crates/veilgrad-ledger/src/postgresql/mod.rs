//! The rows of a ledger in a PostgreSQL database, which several hosts share.
//!
//! A charge is one transaction: the function `lock_head` of [`MIGRATION`](crate::MIGRATION) makes every other charge wait,
//! the client reads what is new and checks the budget, and `append` adds the rows. The commit waits until they are on
//! disk. A client that charges alone sends only `append`, which adds nothing unless the head is still the one that was
//! checked. If no answer to the commit comes, the rows may be there: they are charged if they are, no permit exists for
//! them, and the handle refuses everything.

mod audit;
mod connect;
mod failure;
mod hold;
mod password;
mod session;
mod settings;
mod tls;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::author::Author;
use crate::chain::{Hash, Head};
use crate::error::{StoreError, exists_already};
use crate::location::PostgresUrl;
use crate::options::Options;
use crate::store::{Hold, Moved, Rows, Store, Verified, Visitor};
use failure::Failure;
use hold::{SessionHold, hold_key};
use session::{BATCH, Session, decode_hex, number};

/// After how many charges with nobody in between the next one does not ask for the lock first, and how soon after the last
/// answer: a connection that was idle may have ended, which is harmless only before anything is sent to be written.
const ALONE: u32 = 4;
const RECENTLY: Duration = Duration::from_secs(1);
/// How often a transaction is repeated that the server refused because of another one.
const REPETITIONS: u32 = 8;
/// A ledger on PostgreSQL.
pub(crate) struct Postgres {
    address: PostgresUrl,
    session: Arc<Mutex<Session>>,
    patience: Duration,
    /// Whether a transaction has the lock.
    locked: bool,
    /// How many charges in a row found that nobody else had charged.
    alone: u32,
    /// When the server answered last.
    answered: Instant,
    poisoned: bool,
}

impl Postgres {
    /// Opens a ledger to charge it: verifies all of it.
    pub(crate) fn open(
        address: &PostgresUrl,
        options: &Options,
        verified: &mut Verified,
    ) -> Result<Self, StoreError> {
        let mut store = Self::connect(address, options)?;
        store.session().check_durable()?;
        if let Some(moved) = store.moved()? {
            let why =
                format!("{address} was moved to {}, where it is charged now", moved.destination);
            return Err(StoreError::Refused(why));
        }
        store.read_all(verified)?;
        Ok(store)
    }

    /// Opens a ledger to read it: verifies all of it.
    pub(crate) fn read(
        address: &PostgresUrl,
        options: &Options,
        verified: &mut Verified,
    ) -> Result<Self, StoreError> {
        let mut store = Self::connect(address, options)?;
        store.read_all(verified)?;
        Ok(store)
    }

    /// Whether the tables are there and have rows.
    pub(crate) fn exists(address: &PostgresUrl, options: &Options) -> Result<bool, StoreError> {
        Self::connect(address, options)?.session().has_rows()
    }

    /// Checks that this role may create a ledger here. Returns what no other database is called.
    pub(crate) fn check_may_create(
        address: &PostgresUrl,
        options: &Options,
    ) -> Result<String, StoreError> {
        let store = Self::connect(address, options)?;
        let mut session = store.session();
        session.check_durable()?;
        if session.is_administrator()? {
            return session.place();
        }
        Err(StoreError::Refused(format!("{address}: this role is not in veilgrad_administer")))
    }

    /// Notes that a ledger that was moved is complete where it continues.
    pub(crate) fn arrive(address: &PostgresUrl, options: &Options) -> Result<(), StoreError> {
        let store = Self::connect(address, options)?;
        let arrived = store.session().run("SELECT veilgrad.arrive()");
        arrived.map(|_| ()).map_err(|failure| failure.error(address))
    }

    /// Appends the first rows of a ledger.
    pub(crate) fn create(
        address: &PostgresUrl,
        options: &Options,
        head: &Head,
        rows: Rows,
    ) -> Result<(), StoreError> {
        let mut store = Self::connect(address, options)?;
        store.session().check_durable()?;
        let mut verified = Verified::default();
        let created = store.lock(&mut verified).and_then(|()| {
            if verified.head.sequence > 0 {
                return Err(exists_already(&address.to_string()));
            }
            store.append(head, rows)
        });
        store.unlock();
        created
    }

    fn connect(address: &PostgresUrl, options: &Options) -> Result<Self, StoreError> {
        let mut session = Session::connect(address, options.patience)?;
        session.check_version()?;
        let (address, patience) = (address.clone(), options.patience);
        let session = Arc::new(Mutex::new(session));
        Ok(Self {
            address,
            session,
            patience,
            locked: false,
            alone: 0,
            answered: Instant::now(),
            poisoned: false,
        })
    }

    fn session(&self) -> MutexGuard<'_, Session> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads and verifies everything that is new, outside a charge.
    fn read_all(&mut self, verified: &mut Verified) -> Result<(), StoreError> {
        let begun = self.session().run(
            "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SELECT sequence, encode(hash, 'hex') FROM veilgrad.head",
        );
        let read = begun.map_err(|failure| failure.error(&self.address)).and_then(|rows| {
            let (sequence, hash) = match rows.last().map(Vec::as_slice) {
                Some([sequence, hash]) => (number(sequence)?, decode_hex(hash)?),
                _ => return Err(StoreError::Damaged("it has no head".to_owned())),
            };
            self.take_rows(verified, None)?;
            check_end(verified, sequence, &hash)
        });
        let _ = self.session().run("ROLLBACK");
        if read.is_ok() && verified.head.sequence == 0 {
            let why = "there is no ledger in it yet; create a budget first".to_owned();
            return Err(StoreError::NotALedger { path: self.address.to_string(), why });
        }
        read
    }

    /// Verifies the rows that were read already, and all that follow.
    fn take_rows(
        &self,
        verified: &mut Verified,
        first: Option<Vec<Vec<String>>>,
    ) -> Result<(), StoreError> {
        let mut next = first;
        loop {
            let rows = match next.take() {
                Some(rows) => rows,
                None => self.batch(verified.head.sequence)?,
            };
            for row in &rows {
                let (sequence, bytes, hash) = parse_row(row)?;
                verified.take(sequence, &bytes, Hash::from_slice(&hash))?;
            }
            if rows.len() < BATCH {
                return Ok(());
            }
        }
    }

    /// The next rows after one.
    fn batch(&self, after: u64) -> Result<Vec<Vec<String>>, StoreError> {
        let rows = self.session().run(&select_after(after));
        rows.map_err(|failure| failure.error(&self.address))
    }

    /// Begins a charge: locks the head, and reads the first batch of new rows, in one message.
    fn begin(&mut self, known: u64) -> Result<Vec<Vec<String>>, Failure> {
        let begin = format!(
            "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SELECT pg_backend_pid(), sequence, encode(hash, 'hex'), moved \
             FROM veilgrad.lock_head(); {}",
            select_after(known)
        );
        self.session().run(&begin)
    }

    /// Appends rows and ends the charge that began with the lock, in one message.
    fn append_and_commit(&self, after: i64, rows: &Rows, ending: Hash) -> Result<(), Failure> {
        let events: Vec<String> =
            rows.iter().map(|(_, bytes, _)| format!("'\\x{}'", encode_hex(bytes))).collect();
        let mut session = self.session();
        let commit = format!(
            "SELECT veilgrad.append({after}, ARRAY[{}]::bytea[], '\\x{ending}', {}); COMMIT",
            events.join(","),
            quote(&session.host)
        );
        session.run(&commit).map(|_| ())
    }
}

/// The statement that reads rows after one.
fn select_after(row: u64) -> String {
    format!(
        "SELECT sequence, encode(bytes, 'hex'), encode(hash, 'hex') FROM veilgrad.event WHERE sequence > {row} ORDER BY \
         sequence LIMIT {BATCH}"
    )
}

fn parse_row(row: &[String]) -> Result<(i64, Vec<u8>, Vec<u8>), StoreError> {
    match row {
        [sequence, bytes, hash] => Ok((number(sequence)?, decode_hex(bytes)?, decode_hex(hash)?)),
        _ => Err(StoreError::Damaged("a row has other columns".to_owned())),
    }
}

fn check_end(verified: &Verified, sequence: i64, hash: &[u8]) -> Result<(), StoreError> {
    match (u64::try_from(sequence), Hash::from_slice(hash)) {
        (Ok(sequence), Some(hash)) => verified.check_end(sequence, hash),
        _ => Err(StoreError::Damaged("its head is malformed".to_owned())),
    }
}

impl Store for Postgres {
    fn catch_up(&mut self, verified: &mut Verified) -> Result<(), StoreError> {
        if self.locked { self.take_rows(verified, None) } else { self.read_all(verified) }
    }

    fn lock(&mut self, verified: &mut Verified) -> Result<(), StoreError> {
        let known = verified.head.sequence;
        let mut begun = self.begin(known);
        for _ in 0..REPETITIONS {
            match &begun {
                Err(failure) if failure.may_be_repeated() => {
                    let _ = self.session().run("ROLLBACK");
                }
                // Nothing has been sent to be written. Holds ended with the connection.
                Err(failure) if failure.is_lost_connection() => {
                    self.session().reconnect(self.patience)?;
                    self.session().check_durable()?;
                }
                _ => break,
            }
            begun = self.begin(known);
        }
        self.locked = true;
        let mut rows = begun.map_err(|failure| failure.error(&self.address))?;
        let (process, sequence, hash, moved) = match rows.first().map(Vec::as_slice) {
            Some([process, sequence, hash, moved]) => {
                (process.clone(), number(sequence)?, decode_hex(hash)?, moved == "t")
            }
            _ => return Err(StoreError::Damaged("it has no head".to_owned())),
        };
        if self.session().process != process {
            return Err(StoreError::Refused(
                "the connection goes through a pool that changes sessions between transactions; connect to the server \
                 itself, or to a pool that keeps sessions"
                    .to_owned(),
            ));
        }
        if moved {
            let why = "the ledger was moved elsewhere; charge it there";
            return Err(StoreError::Refused(why.to_owned()));
        }
        rows.remove(0);
        self.alone = if rows.is_empty() { self.alone.saturating_add(1) } else { 0 };
        self.take_rows(verified, Some(rows))?;
        check_end(verified, sequence, &hash)
    }

    fn may_append_unlocked(&self) -> bool {
        self.alone >= ALONE && self.answered.elapsed() < RECENTLY
    }

    fn unlock(&mut self) {
        if std::mem::take(&mut self.locked) {
            let _ = self.session().run("ROLLBACK");
        }
    }

    fn append(&mut self, head: &Head, rows: Rows) -> Result<(), StoreError> {
        let after = head.sequence.saturating_sub(rows.len() as u64);
        let after = i64::try_from(after).unwrap_or(i64::MAX);
        if !self.locked {
            let prepared = self.session().prepare_append();
            if prepared.is_err() {
                self.alone = 0;
            }
            prepared?;
        }
        // From here on it is unknown whether the rows are there, until the server answers.
        self.poisoned = true;
        let answer = match self.locked {
            true => self.append_and_commit(after, &rows, head.hash),
            false => {
                let rows: Vec<&[u8]> = rows.iter().map(|(_, bytes, _)| bytes.as_slice()).collect();
                self.session().append(after, &rows, head.hash)
            }
        };
        match answer {
            Ok(()) => {
                (self.poisoned, self.locked) = (false, false);
                self.answered = Instant::now();
                Ok(())
            }
            Err(failure) => {
                self.alone = 0;
                self.poisoned = !failure.is_refusal();
                match self.poisoned {
                    // The server releases the lock when it notices that the connection has ended.
                    true => self.session().disconnect(),
                    false => self.unlock(),
                }
                Err(failure.error(&self.address))
            }
        }
    }

    fn is_poisoned(&self) -> bool {
        self.poisoned
    }

    fn moved(&self) -> Result<Option<Moved>, StoreError> {
        let query = "SELECT destination, arrived FROM veilgrad.head WHERE moved";
        let rows = self.session().run(query).map_err(|failure| failure.error(&self.address))?;
        Ok(rows.into_iter().next().map(|row| Moved {
            destination: row.first().cloned().unwrap_or_default(),
            arrived: row.get(1).is_some_and(|arrived| arrived == "t"),
        }))
    }

    fn visit(&self, verified: &Verified, visitor: &mut Visitor<'_>) -> Result<(), StoreError> {
        let mut visited = 0;
        while visited < verified.head.sequence {
            let rows = self.batch(visited)?;
            if rows.is_empty() {
                return Err(StoreError::Damaged(format!("row {} is missing", visited + 1)));
            }
            for row in &rows {
                let (sequence, bytes, hash) = parse_row(row)?;
                let sequence = u64::try_from(sequence).unwrap_or(0);
                if sequence > verified.head.sequence {
                    break;
                }
                let hash = Hash::from_slice(&hash)
                    .ok_or_else(|| StoreError::Damaged(format!("row {sequence} has no hash")))?;
                visitor(sequence, &bytes, hash)?;
                visited = sequence;
            }
        }
        Ok(())
    }

    fn hash_of(&self, sequence: u64) -> Result<Option<Hash>, StoreError> {
        let query =
            format!("SELECT encode(hash, 'hex') FROM veilgrad.event WHERE sequence = {sequence}");
        let rows = self.session().run(&query).map_err(|failure| failure.error(&self.address))?;
        let hash = rows.first().and_then(|row| row.first()).map(|hash| decode_hex(hash));
        Ok(hash.transpose()?.as_deref().and_then(Hash::from_slice))
    }

    fn authors(&self) -> Result<BTreeMap<u64, Author>, StoreError> {
        let rows = self.session().run("SELECT sequence, role, host FROM veilgrad.event");
        let rows = rows.map_err(|failure| failure.error(&self.address))?;
        rows.into_iter()
            .map(|row| match <[String; 3]>::try_from(row) {
                Ok([sequence, role, host]) => {
                    let number = u64::try_from(number(&sequence)?).unwrap_or(0);
                    Ok((number, Author { role, host }))
                }
                Err(_) => Err(StoreError::Damaged("a row has no role or host".to_owned())),
            })
            .collect()
    }

    fn take_hold(&self, run: &str) -> Result<Hold, StoreError> {
        let key = hold_key(run);
        let mut session = self.session();
        let taken = session.run(&format!("SELECT pg_try_advisory_lock({key})"));
        let taken = taken.map_err(|failure| failure.error(&self.address))?;
        if !taken.iter().flatten().any(|taken| taken == "t") {
            return Err(StoreError::Busy("another session has this run's lock".to_owned()));
        }
        session.holds.insert(key);
        let process = session.process.clone();
        Ok(Box::new(SessionHold { session: Arc::clone(&self.session), key, process }))
    }

    fn held(&self, runs: &[&str]) -> Vec<bool> {
        let keys: Vec<i64> = runs.iter().map(|run| hold_key(run)).collect();
        let mut session = self.session();
        if keys.iter().all(|key| session.holds.contains(key)) {
            return vec![true; runs.len()];
        }
        // The two halves of a key of 64 bits.
        let locks = session.run(
            "SELECT (classid::bigint << 32) | objid::bigint FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1 AND \
             granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())",
        );
        match locks {
            Ok(rows) => {
                let held: Vec<i64> =
                    rows.iter().flatten().filter_map(|key| key.parse().ok()).collect();
                keys.iter().map(|key| held.contains(key)).collect()
            }
            Err(_) => vec![true; runs.len()],
        }
    }

    fn audit(&self, _: &Verified) -> Result<Vec<String>, StoreError> {
        audit::check(&mut self.session(), &self.address)?;
        Ok(Vec::new())
    }

    fn retire(&mut self, destination: &str) -> Result<(), StoreError> {
        self.poisoned = true;
        let retire = format!("SELECT veilgrad.retire({}); COMMIT", quote(destination));
        let retired = self.session().run(&retire);
        retired.map_err(|failure| failure.error(&self.address))?;
        self.locked = false;
        Ok(())
    }
}

/// A text as SQL writes it.
fn quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

fn encode_hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
