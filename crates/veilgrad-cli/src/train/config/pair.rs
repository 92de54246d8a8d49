//! Lists of exactly two values.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

/// Reads exactly two values: the TOML reader would silently drop a third.
pub(super) fn pair<'de, D, T>(deserializer: D) -> Result<Option<[T; 2]>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    let values = Vec::<T>::deserialize(deserializer)?;
    let count = values.len();
    let pair = values.try_into();
    pair.map(Some).map_err(|_| D::Error::custom(format!("expected two values, found {count}")))
}
