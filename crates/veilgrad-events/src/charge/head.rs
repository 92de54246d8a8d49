//! The head of a durable ledger's hash chain.

use std::fmt;
use std::str::FromStr;

use super::store::LedgerError;

/// A SHA-256 hash.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Hash(pub [u8; 32]);

impl Hash {
    /// The hash with these bytes; `None` unless there are 32.
    #[must_use]
    pub fn from_slice(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl FromStr for Hash {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let invalid = || format!("{text:?} is not a hash of 64 hexadecimal digits");
        if text.len() != 64 || !text.is_ascii() {
            return Err(invalid());
        }
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
            let pair = std::str::from_utf8(pair).map_err(|_| invalid())?;
            *byte = u8::from_str_radix(pair, 16).map_err(|_| invalid())?;
        }
        Ok(Self(bytes))
    }
}

/// The head of a hash chain: ledger id, number and hash of the last row.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Head {
    /// The ledger's id: 32 hexadecimal digits.
    pub id: String,
    /// The number of the last row.
    pub sequence: u64,
    /// The hash of the last row.
    pub hash: Hash,
}

impl fmt::Display for Head {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.id, self.sequence, self.hash)
    }
}

impl FromStr for Head {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let invalid = || format!("{text:?} is not a head: id:sequence:hash");
        let parts: Vec<&str> = text.trim().split(':').collect();
        let [id, sequence, hash] = parts.as_slice() else { return Err(invalid()) };
        if id.len() != 32 || !id.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(invalid());
        }
        let sequence = sequence.parse().map_err(|_| invalid())?;
        Ok(Self { id: (*id).to_owned(), sequence, hash: hash.parse()? })
    }
}

/// A ledger that can check whether its chain contains a given head, so that a checkpoint is resumed only with the
/// charges that led to it.
pub trait History {
    /// Checks that the chain contains this head.
    ///
    /// # Errors
    /// When it does not: the ledger was rolled back, or it is a different ledger.
    fn contains(&self, head: &Head) -> Result<(), LedgerError>;
}
