//! The hash chain: every row's hash covers all rows before it.

use std::fmt;
use std::str::FromStr;

use sha2::{Digest, Sha256};

/// Two digits for every byte.
pub(crate) fn hexadecimal(bytes: &[u8]) -> String {
    let digits = |byte: &u8| [byte >> 4, byte & 15].map(|digit| char::from_digit(digit.into(), 16));
    bytes.iter().flat_map(digits).flatten().collect()
}

/// A SHA-256 hash.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Hash(pub(crate) [u8; 32]);

impl Hash {
    /// `SHA-256(bytes)`.
    pub(crate) fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// `SHA-256(previous hash || bytes)`.
    #[must_use]
    pub fn after(self, bytes: &[u8]) -> Self {
        let mut hasher = Sha256::new();
        hasher.update(self.0);
        hasher.update(bytes);
        Self(hasher.finalize().into())
    }

    pub(crate) fn from_slice(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hexadecimal(&self.0))
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
        let wrong = || format!("{text:?} is not a hash of 64 hexadecimal digits");
        if text.len() != 64 || !text.is_ascii() {
            return Err(wrong());
        }
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
            let pair = std::str::from_utf8(pair).map_err(|_| wrong())?;
            *byte = u8::from_str_radix(pair, 16).map_err(|_| wrong())?;
        }
        Ok(Self(bytes))
    }
}

/// Where a chain ends.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Head {
    /// The ledger's id: 32 hexadecimal digits.
    pub id: String,
    /// The number of the last row.
    pub sequence: u64,
    /// Its hash.
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
        let wrong = || format!("{text:?} is not a head: id:sequence:hash");
        let mut parts = text.trim().split(':');
        let (Some(id), Some(sequence), Some(hash), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(wrong());
        };
        if id.len() != 32 || !id.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(wrong());
        }
        let sequence = sequence.parse().map_err(|_| wrong())?;
        Ok(Self { id: id.to_owned(), sequence, hash: hash.parse()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_read_as_they_are_written() {
        let hash = Hash::default().after(b"abc");
        let head = Head { id: "0".repeat(32), sequence: 7, hash };
        assert_eq!(head.to_string().parse::<Head>().unwrap(), head);
        for wrong in ["", "x:1:2", "a:b:c:d", &format!("{}:1:{}", "0".repeat(32), "zz".repeat(32))]
        {
            assert!(wrong.parse::<Head>().is_err(), "{wrong}");
        }
    }
}
