//! Moving a ledger, such as from a file to a server and back.

use crate::chain::Head;
use crate::error::StoreError;
use crate::files::new_path;
use crate::host::host;
use crate::ledger::Ledger;
use crate::location::Location;
use crate::options::Options;
use crate::postgresql::Postgres;
use crate::sqlite::Sqlite;

impl Ledger {
    /// Moves a ledger: all rows with their hashes, to where there is no ledger yet. The old one can still be read, and
    /// refuses charges from then on. Returns the head.
    ///
    /// # Guarantee
    /// A ledger is moved to one place, once, so that only one copy is ever charged: the old one is retired, and keeps
    /// where it is moved, before the new one is made. If the move is interrupted in between, the same call completes it,
    /// on the same host if the new ledger is a file; every other destination is refused. Hosts are told apart by their names,
    /// and servers by the number that PostgreSQL gave them, so these must not be those of others during a move.
    ///
    /// # Errors
    /// When the ledger does not verify, is a backup or was moved before, a run holds budget in it, or there is a ledger at
    /// the destination or none can be created there; nothing is changed then.
    pub fn relocate(from: &Location, to: &Location, options: &Options) -> Result<Head, StoreError> {
        let place = place(to, options)?;
        let arrived = Self::exists(to, options)?;
        let mut source = Self::read(from, options.clone())?;
        match source.store.moved()? {
            None if arrived => {
                return Err(StoreError::Refused(format!(
                    "{to} has a ledger; move to a new place, or import one ledger into the other"
                )));
            }
            None => {
                source = Self::open(from, options.clone())?;
                source.retire(&format!("{to} ({place})"))?;
            }
            Some(moved) if moved.arrived => {
                return Err(StoreError::Refused(format!(
                    "{from} was moved to {}, where it is charged now",
                    moved.destination
                )));
            }
            Some(moved) if !moved.destination.ends_with(&format!(" ({place})")) => {
                return Err(StoreError::Refused(format!(
                    "the move of {from} to {} has begun; complete it, and move the ledger from there",
                    moved.destination
                )));
            }
            Some(_) => {}
        }
        let unfinished = |error: StoreError| {
            StoreError::Refused(format!(
                "{from} is retired, and the move to {to} failed: {error}; move it again"
            ))
        };
        let head = source.head().clone();
        source.continue_at(to, arrived, options).map_err(unfinished)?;
        drop(source);
        // From here on the move is not repeated, even if somebody takes the new ledger away.
        match from {
            Location::File(path) => Sqlite::arrive(path, options),
            Location::Postgres(address) => Postgres::arrive(address, options),
        }
        .map_err(unfinished)?;
        Ok(head)
    }

    /// Makes the ledger that continues this one, unless an interrupted move made it.
    fn continue_at(
        &self,
        to: &Location,
        arrived: bool,
        options: &Options,
    ) -> Result<(), StoreError> {
        if arrived {
            return Self::read(to, options.clone())?.contains(self.head());
        }
        let mut rows = Vec::new();
        self.visit_rows(&mut |_, bytes, _| {
            rows.push(bytes.to_vec());
            Ok(())
        })?;
        Self::create_with(to.clone(), options.clone(), &rows)?.contains(self.head())
    }

    /// Ends all charges to this ledger.
    fn retire(&mut self, destination: &str) -> Result<(), StoreError> {
        self.check_writable()?;
        let retired = self.store.lock(&mut self.verified).and_then(|()| {
            let names = self.state().datasets().keys();
            if let Some(name) = names.into_iter().find(|name| !self.holding(name).is_empty()) {
                return Err(StoreError::Busy(format!(
                    "a run holds budget of {name:?} and would go on charging {}: end it first",
                    self.location()
                )));
            }
            self.store.retire(destination)
        });
        self.store.unlock();
        retired
    }
}

/// What a place is called where a ledger can be created, by whatever address; refuses one where none can.
fn place(to: &Location, options: &Options) -> Result<String, StoreError> {
    match to {
        // In quotes, so that no name ends like another one.
        Location::File(path) => Ok(format!("{:?} on host {}", new_path(path)?, host())),
        Location::Postgres(address) => Postgres::check_may_create(address, options),
    }
}
