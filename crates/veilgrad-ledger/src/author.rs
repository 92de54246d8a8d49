//! Who wrote a row.

/// Who wrote a row of a ledger that several people share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Author {
    /// The role with which the database let them in.
    pub role: String,
    /// The host that they said they were on; nobody checked it.
    pub host: String,
}
