//! What a row of the ledger says, and the bytes that are hashed.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use veilgrad_events::{Budget, Epsilon, Event};

/// One row. The meaning of a kind never changes; an unknown kind is refused.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Entry {
    /// The first row: which ledger this is.
    Create {
        /// Drawn at random, 32 hexadecimal digits.
        id: String,
    },
    /// A dataset begins, with its budget.
    Budget {
        /// The terms.
        budget: Budget,
    },
    /// A budget is lowered.
    Tighten {
        /// Whose.
        dataset: String,
        /// To what.
        epsilon: Epsilon,
    },
    /// Something that a run did.
    Run {
        /// On which data.
        dataset: String,
        /// The number of the run: that of the row that opened it.
        run: u64,
        /// Drawn at random with every charge, so that no two branches of a ledger have the same row.
        nonce: String,
        /// What.
        event: Event,
    },
    /// The database was ahead of its anchor when it was opened; what it holds stays charged.
    Recovered {
        /// Up to which row the anchor had come.
        anchored: u64,
    },
    /// A row of another ledger, or of another branch of this one, is charged here, too.
    Import {
        /// The other ledger's id.
        source: String,
        /// The hash of the row there.
        hash: String,
        /// What it said.
        entry: Box<Entry>,
    },
}

impl Entry {
    /// The dataset that the row is about, if it is about one.
    #[must_use]
    pub fn dataset(&self) -> Option<&str> {
        match self {
            Self::Budget { budget } => Some(&budget.dataset),
            Self::Tighten { dataset, .. } | Self::Run { dataset, .. } => Some(dataset),
            Self::Import { entry, .. } => entry.dataset(),
            Self::Create { .. } | Self::Recovered { .. } => None,
        }
    }

    /// The bytes that are stored and hashed: JSON in which every real number is its exact bits and a
    /// decimal for people.
    ///
    /// # Errors
    /// None for values built by these crates; serialisation is fallible by type only.
    pub fn to_bytes(&self) -> Result<Vec<u8>, String> {
        let value = serde_json::to_value(self).map_err(|error| error.to_string())?;
        serde_json::to_vec(&with_bits(value)).map_err(|error| error.to_string())
    }

    /// Reads such bytes.
    ///
    /// # Errors
    /// When they are not what [`to_bytes`](Self::to_bytes) writes for anything.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, String> {
        let value: Value = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        let entry: Self =
            serde_json::from_value(without_bits(value)?).map_err(|error| error.to_string())?;
        if entry.to_bytes()? == bytes {
            Ok(entry)
        } else {
            Err("is not written as this version writes it".to_owned())
        }
    }
}

fn with_bits(value: Value) -> Value {
    match value {
        Value::Number(number) if number.is_f64() => {
            let real = number.as_f64().unwrap_or(f64::NAN);
            let mut map = Map::new();
            map.insert("bits".to_owned(), format!("{:016x}", real.to_bits()).into());
            map.insert("is".to_owned(), Value::Number(number));
            Value::Object(map)
        }
        Value::Array(items) => items.into_iter().map(with_bits).collect(),
        Value::Object(fields) => {
            Value::Object(fields.into_iter().map(|(key, value)| (key, with_bits(value))).collect())
        }
        other => other,
    }
}

fn without_bits(value: Value) -> Result<Value, String> {
    match value {
        Value::Object(fields) => {
            if let (2, Some(Value::String(bits)), Some(is)) =
                (fields.len(), fields.get("bits"), fields.get("is"))
            {
                let bits = u64::from_str_radix(bits, 16).map_err(|error| error.to_string())?;
                let real = f64::from_bits(bits);
                if is.as_f64().map(f64::to_bits) != Some(bits) {
                    return Err(format!("{is} are not the bits {bits:016x}"));
                }
                let number = serde_json::Number::from_f64(real).ok_or("is not finite")?;
                return Ok(Value::Number(number));
            }
            let fields = fields.into_iter().map(|(key, value)| Ok((key, without_bits(value)?)));
            Ok(Value::Object(fields.collect::<Result<_, String>>()?))
        }
        Value::Array(items) => {
            Ok(Value::Array(items.into_iter().map(without_bits).collect::<Result<_, _>>()?))
        }
        Value::Number(number) if number.is_f64() => Err(format!("{number} is without its bits")),
        other => Ok(other),
    }
}
