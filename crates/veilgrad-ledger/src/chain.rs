//! The hash chain: every row's hash covers all rows before it.

use sha2::{Digest, Sha256};
pub use veilgrad_events::{Hash, Head};

/// The hash chain of rows.
pub trait Chained {
    /// The hash of bytes: `SHA-256(bytes)`.
    fn of(bytes: &[u8]) -> Self;

    /// The hash of the next row: `SHA-256(previous hash || bytes)`.
    #[must_use]
    fn after(self, bytes: &[u8]) -> Self;
}

impl Chained for Hash {
    fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    fn after(self, bytes: &[u8]) -> Self {
        let mut hasher = Sha256::new();
        hasher.update(self.0);
        hasher.update(bytes);
        Self(hasher.finalize().into())
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
        for invalid in
            ["", "x:1:2", "a:b:c:d", &format!("{}:1:{}", "0".repeat(32), "zz".repeat(32))]
        {
            assert!(invalid.parse::<Head>().is_err(), "{invalid}");
        }
    }
}
