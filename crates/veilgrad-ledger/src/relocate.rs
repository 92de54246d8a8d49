//! Moving a ledger, such as from a file to a server and back.

use crate::chain::Head;
use crate::error::StoreError;
use crate::ledger::Ledger;
use crate::location::Location;
use crate::options::Options;
use crate::postgresql::Postgres;

impl Ledger {
    /// Moves a ledger: all rows with their hashes, to where there is no ledger yet. The old one can still be read, and
    /// refuses charges from then on. Returns the head.
    ///
    /// # Guarantee
    /// The two are never charged at the same time: the old one is retired before the new one is made. If the move is
    /// interrupted in between, the same call completes it.
    ///
    /// # Errors
    /// When the ledger does not verify or is a backup, a run holds budget in it, or there is a ledger at the destination
    /// or none can be created there; nothing is changed then.
    pub fn relocate(from: &Location, to: &Location, options: &Options) -> Result<Head, StoreError> {
        if Self::exists(to, options)? {
            return Err(StoreError::Refused(format!(
                "{to} has a ledger; move to a new place, or import one ledger into the other"
            )));
        }
        if let Location::Postgres(address) = to {
            Postgres::check_may_create(address, options)?;
        }
        let mut source = Self::read(from, options.clone())?;
        if !source.store.is_retired() {
            source = Self::open(from, options.clone())?;
            source.retire()?;
        }
        let mut rows = Vec::new();
        source.visit_rows(&mut |_, bytes, _| {
            rows.push(bytes.to_vec());
            Ok(())
        })?;
        let unfinished = |error: StoreError| {
            StoreError::Refused(format!(
                "{from} is retired, and the move to {to} failed: {error}; move it again"
            ))
        };
        let moved = Self::create_with(to.clone(), options.clone(), &rows).map_err(unfinished)?;
        match moved.contains(source.head()) {
            Ok(()) => Ok(source.head().clone()),
            Err(error) => Err(unfinished(error)),
        }
    }

    /// Ends all charges to this ledger.
    fn retire(&mut self) -> Result<(), StoreError> {
        self.check_writable()?;
        let retired = self.store.lock(&mut self.verified).and_then(|()| {
            let names = self.state().datasets().keys();
            if let Some(name) = names.into_iter().find(|name| !self.holding(name).is_empty()) {
                return Err(StoreError::Busy(format!(
                    "a run holds budget of {name:?} and would go on charging {}: end it first",
                    self.location()
                )));
            }
            self.store.retire()
        });
        self.store.unlock();
        retired
    }
}
