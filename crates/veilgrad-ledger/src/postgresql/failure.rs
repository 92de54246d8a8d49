//! What an error of the server or of the connection means for a charge.

use std::error::Error;

use postgres::error::SqlState;

use crate::error::StoreError;
use crate::location::PostgresUrl;

/// Why statements failed.
pub(super) enum Failure {
    Client(postgres::Error),
    /// The connection was ended before.
    Disconnected,
}

impl Failure {
    fn code(&self) -> Option<&SqlState> {
        match self {
            Self::Client(error) => error.code(),
            Self::Disconnected => None,
        }
    }

    /// Whether the server undid the transaction because of another one.
    pub(super) fn may_be_repeated(&self) -> bool {
        let repeated = [SqlState::T_R_SERIALIZATION_FAILURE, SqlState::T_R_DEADLOCK_DETECTED];
        self.code().is_some_and(|code| repeated.contains(code))
    }

    /// Whether the connection has ended.
    pub(super) fn is_lost_connection(&self) -> bool {
        let ended = [
            SqlState::ADMIN_SHUTDOWN,
            SqlState::CRASH_SHUTDOWN,
            SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT,
        ];
        self.code().is_none_or(|code| ended.contains(code))
    }

    /// Whether the server said, before any commit, that it wrote nothing.
    pub(super) fn is_refusal(&self) -> bool {
        let refusals = [
            SqlState::INSUFFICIENT_PRIVILEGE,
            SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
            SqlState::T_R_SERIALIZATION_FAILURE,
            SqlState::T_R_DEADLOCK_DETECTED,
            SqlState::LOCK_NOT_AVAILABLE,
        ];
        self.code().is_some_and(|code| refusals.contains(code))
    }

    /// The error of the ledger. Servers do not repeat passwords, and the address is without one.
    pub(super) fn error(&self, address: &PostgresUrl) -> StoreError {
        let Self::Client(error) = self else {
            return StoreError::Server(format!("{address}: the connection was lost"));
        };
        let Some(server) = error.as_db_error() else {
            return StoreError::Server(format!("{address}: {}", with_causes(error)));
        };
        let message = server.message();
        let code = server.code();
        if *code == SqlState::UNDEFINED_TABLE || *code == SqlState::INVALID_SCHEMA_NAME {
            let why = "has no tables of a ledger; make them with `veilgrad ledger migration | psql DATABASE`";
            return StoreError::NotALedger { path: address.to_string(), why: why.to_owned() };
        }
        if *code == SqlState::INSUFFICIENT_PRIVILEGE {
            return StoreError::Refused(format!(
                "{address}: the role has no right to it: {message}"
            ));
        }
        let busy = [
            SqlState::LOCK_NOT_AVAILABLE,
            SqlState::T_R_SERIALIZATION_FAILURE,
            SqlState::T_R_DEADLOCK_DETECTED,
            SqlState::TOO_MANY_CONNECTIONS,
            SqlState::CANNOT_CONNECT_NOW,
        ];
        match busy.contains(code) {
            true => StoreError::Busy(format!("{address}: {message}")),
            false => StoreError::Server(format!("{address}: {message}")),
        }
    }
}

/// An error with its causes, which say what is wrong with a certificate or a network.
fn with_causes(error: &postgres::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        if !text.contains(&next) {
            text.push_str(&format!(": {next}"));
        }
        cause = error.source();
    }
    text
}
