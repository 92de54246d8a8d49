//! Errors of the command, with their exit codes.

use veilgrad_events::LedgerError;
use veilgrad_ledger::StoreError;
use veilgrad_random::RandomError;

use crate::problem::Problem;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum Error {
    /// The arguments contradict each other or are out of range.
    #[error("{0}")]
    Usage(String),
    /// A configuration is not valid, or cannot be used with its files or its budget; with the exit code.
    #[error("{}", configuration(path, problems))]
    Configuration { path: String, problems: Vec<Problem>, code: u8 },
    /// A file is not what it should be.
    #[error("{path}: {cause}")]
    Data { path: String, cause: String },
    #[error("{path}: {cause}")]
    File { path: String, cause: std::io::Error },
    /// A ledger cannot be used, or refuses a charge.
    #[error("{0}")]
    Ledger(#[from] StoreError),
    /// Another process uses it; nothing was lost.
    #[error("{0}")]
    Busy(String),
    /// There is no answer; the reason is printed to stdout as well.
    #[error("no answer: {0}")]
    NoAnswer(String),
    /// Canaries show more privacy loss than is claimed.
    #[error("THE AUDIT CONTRADICTS THE CLAIM: {0}")]
    Contradicted(String),
    /// The user stopped the command; ledger and checkpoint are valid.
    #[error("interrupted; go on with --resume")]
    Interrupted,
    /// The user stopped a tuning.
    #[error("interrupted; the tuning stays charged, and nothing of it is kept")]
    TuningInterrupted,
    #[error("{0}")]
    Failure(String),
}

impl Error {
    pub(crate) fn usage(why: impl ToString) -> Self {
        Self::Usage(why.to_string())
    }

    pub(crate) fn failure(why: impl ToString) -> Self {
        Self::Failure(why.to_string())
    }

    /// The kind of error, for programs; each exit code has its own.
    pub(crate) const fn name(&self) -> &'static str {
        match self.code() {
            2 => "usage",
            3 => "budget-exceeded",
            4 => "ledger",
            5 => "data",
            6 => "busy",
            7 => "no-answer",
            8 => "audit-contradicts-claim",
            130 => "interrupted",
            _ => "failure",
        }
    }

    pub(crate) const fn code(&self) -> u8 {
        match self {
            Self::File { .. } | Self::Failure(_) => 1,
            Self::Configuration { code, .. } => *code,
            Self::Usage(_) => 2,
            Self::Ledger(StoreError::BudgetExhausted(_)) => 3,
            Self::Busy(_) | Self::Ledger(StoreError::Busy(_)) => 6,
            Self::Ledger(_) => 4,
            Self::Data { .. } => 5,
            Self::NoAnswer(_) => 7,
            Self::Contradicted(_) => 8,
            Self::Interrupted | Self::TuningInterrupted => 130,
        }
    }
}

impl From<LedgerError> for Error {
    fn from(error: LedgerError) -> Self {
        Self::Ledger(error.into())
    }
}

impl From<RandomError> for Error {
    fn from(error: RandomError) -> Self {
        Self::failure(error)
    }
}

/// What is wrong with arguments, without the usage that follows it.
pub(crate) fn of_arguments(error: &clap::Error) -> String {
    let text = error.to_string();
    let reason = text.trim_start_matches("error: ").split("\n\n").next();
    reason.unwrap_or_default().trim_end().to_owned()
}

/// The problems of a configuration: in its line if there is one, else each in a line of its own.
fn configuration(path: &str, problems: &[Problem]) -> String {
    match problems {
        [one] => format!("{path}: {one}"),
        all => {
            let lines: Vec<String> = all.iter().map(|problem| format!("\n  {problem}")).collect();
            format!("{path}: {} problems{}", all.len(), lines.concat())
        }
    }
}

#[cfg(test)]
mod tests {
    use veilgrad_events::LedgerError;

    use super::*;

    #[test]
    fn a_busy_ledger_and_a_missing_answer_have_their_own_exit_codes() {
        let busy = || "held by another process".to_owned();
        let ledger_error = |error: LedgerError| Error::Ledger(StoreError::from(error));
        assert_eq!(Error::Ledger(StoreError::Busy(busy())).code(), 6);
        assert_eq!(ledger_error(LedgerError::Busy(busy())).code(), 6);
        assert_eq!(ledger_error(LedgerError::BudgetExhausted(busy())).code(), 3);
        assert_eq!(ledger_error(LedgerError::Poisoned).code(), 4);
        assert_eq!(Error::NoAnswer("unsupported".to_owned()).code(), 7);
        assert_eq!(Error::Contradicted("epsilon".to_owned()).code(), 8);
        let data = Error::Data { path: "a.csv".to_owned(), cause: "is not a table".to_owned() };
        assert_eq!(data.code(), 5);
    }
}
