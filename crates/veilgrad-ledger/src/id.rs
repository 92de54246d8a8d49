//! Random ids of ledgers, runs and charges.

use crate::error::StoreError;

/// 32 random hexadecimal digits.
pub(crate) fn random_id() -> Result<String, StoreError> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)
        .map_err(|error| StoreError::Refused(format!("no random numbers: {error}")))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
