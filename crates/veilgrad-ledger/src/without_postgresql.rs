//! In place of PostgreSQL, in a build without it.

use std::collections::BTreeMap;
use std::ffi::OsStr;

use crate::author::Author;
use crate::chain::{Hash, Head};
use crate::error::StoreError;
use crate::location::PostgresUrl;
use crate::options::Options;
use crate::store::{Hold, Moved, Rows, Store, Verified, Visitor};

/// A store that no build without PostgreSQL can make.
pub(crate) enum Postgres {}

fn missing<T>(address: &PostgresUrl) -> Result<T, StoreError> {
    let program = std::env::current_exe().unwrap_or_default();
    let package = package_of(program.file_stem().unwrap_or_default());
    Err(StoreError::Refused(format!(
        "{address}: this program was built without PostgreSQL; build it with the feature `postgres`{package}"
    )))
}

/// How this program is installed, for the end of a message, if it is one of ours.
fn package_of(program: &OsStr) -> &'static str {
    match program.to_str() {
        Some("veilgrad") => ", as in `cargo install veilgrad-cli --features postgres`",
        Some("veilgrad-mpi") => {
            ", as in `cargo install --path adapters/veilgrad-mpi --features postgres`"
        }
        _ => "",
    }
}

impl Postgres {
    pub(crate) fn open(
        address: &PostgresUrl,
        _: &Options,
        _: &mut Verified,
    ) -> Result<Self, StoreError> {
        missing(address)
    }

    pub(crate) fn read(
        address: &PostgresUrl,
        _: &Options,
        _: &mut Verified,
    ) -> Result<Self, StoreError> {
        missing(address)
    }

    pub(crate) fn exists(address: &PostgresUrl, _: &Options) -> Result<bool, StoreError> {
        missing(address)
    }

    pub(crate) fn create(
        address: &PostgresUrl,
        _: &Options,
        _: &Head,
        _: Rows,
    ) -> Result<(), StoreError> {
        missing(address)
    }

    pub(crate) fn check_may_create(
        address: &PostgresUrl,
        _: &Options,
    ) -> Result<String, StoreError> {
        missing(address)
    }

    pub(crate) fn arrive(address: &PostgresUrl, _: &Options) -> Result<(), StoreError> {
        missing(address)
    }
}

impl Store for Postgres {
    fn catch_up(&mut self, _: &mut Verified) -> Result<(), StoreError> {
        match *self {}
    }

    fn lock(&mut self, _: &mut Verified) -> Result<(), StoreError> {
        match *self {}
    }

    fn unlock(&mut self) {
        match *self {}
    }

    fn append(&mut self, _: &Head, _: Rows) -> Result<(), StoreError> {
        match *self {}
    }

    fn is_poisoned(&self) -> bool {
        match *self {}
    }

    fn moved(&self) -> Result<Option<Moved>, StoreError> {
        match *self {}
    }

    fn visit(&self, _: &Verified, _: &mut Visitor<'_>) -> Result<(), StoreError> {
        match *self {}
    }

    fn hash_of(&self, _: u64) -> Result<Option<Hash>, StoreError> {
        match *self {}
    }

    fn authors(&self) -> Result<BTreeMap<u64, Author>, StoreError> {
        match *self {}
    }

    fn take_hold(&self, _: &str) -> Result<Hold, StoreError> {
        match *self {}
    }

    fn held(&self, _: &[&str]) -> Vec<bool> {
        match *self {}
    }

    fn audit(&self, _: &Verified) -> Result<Vec<String>, StoreError> {
        match *self {}
    }

    fn retire(&mut self, _: &str) -> Result<(), StoreError> {
        match *self {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_says_how_to_install_the_program_that_was_run() {
        assert!(package_of("veilgrad".as_ref()).contains("install veilgrad-cli --features"));
        assert!(package_of("veilgrad-mpi".as_ref()).contains("adapters/veilgrad-mpi --features"));
        assert_eq!(package_of("training".as_ref()), "");
    }
}
