//! SHA-256, by which reports and ledgers name files and configurations.

use sha2::{Digest, Sha256};

/// The hash as hexadecimal digits.
pub(crate) fn sha256(bytes: impl AsRef<[u8]>) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}
