//! The content of a row, and its bytes that are hashed.

use std::io;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::ser::{CompactFormatter, Formatter};
use veilgrad_events::{Budget, Epsilon, Event, TagFirst};

/// The content of one row of a ledger. The meaning of a kind never changes; an unknown kind is refused.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Entry {
    /// The first row: the ledger is created.
    Create {
        /// The id of the ledger: 32 random hexadecimal digits.
        id: String,
    },
    /// A dataset is created with its budget.
    Budget {
        /// The budget.
        budget: Budget,
    },
    /// A budget is lowered.
    Tighten {
        /// The dataset.
        dataset: String,
        /// The new epsilon.
        epsilon: Epsilon,
    },
    /// An event of a run.
    Run {
        /// The dataset.
        dataset: String,
        /// The id of the run, drawn at random when it was opened, so that runs of two branches differ.
        run: String,
        /// Drawn at random with every charge, so that no two branches of a ledger have the same row.
        nonce: String,
        /// The event.
        event: Event,
    },
    /// The database was ahead of its anchor when it was opened; all its rows stay charged.
    Recovered {
        /// The row that the anchor named.
        anchored: u64,
    },
    /// A row of another ledger, or of another branch of this one, is also charged here.
    Import {
        /// The other ledger's id.
        source: String,
        /// The hash of the row there.
        hash: String,
        /// The content of the row there.
        entry: Box<Entry>,
    },
}

/// The same variants, read without a tag.
#[derive(Deserialize)]
#[serde(remote = "Entry", rename_all = "kebab-case", deny_unknown_fields)]
enum Variants {
    Create { id: String },
    Budget { budget: Budget },
    Tighten { dataset: String, epsilon: Epsilon },
    Run { dataset: String, run: String, nonce: String, event: Event },
    Recovered { anchored: u64 },
    Import { source: String, hash: String, entry: Box<Entry> },
}

impl<'de> Deserialize<'de> for Entry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Variants::deserialize(TagFirst::new("kind", deserializer))
    }
}

impl Entry {
    /// The dataset of the row, if it has one.
    pub fn dataset(&self) -> Option<&str> {
        match self {
            Self::Budget { budget } => Some(&budget.dataset),
            Self::Tighten { dataset, .. } | Self::Run { dataset, .. } => Some(dataset),
            Self::Import { entry, .. } => entry.dataset(),
            Self::Create { .. } | Self::Recovered { .. } => None,
        }
    }

    /// The original row: for an imported row, the row of the other ledger, however often it was imported.
    #[must_use]
    pub fn original(self) -> Self {
        match self {
            Self::Import { entry, .. } => entry.original(),
            own => own,
        }
    }

    /// The bytes that are stored and hashed: JSON in which every f64 is written as its exact bits and a
    /// human-readable decimal.
    ///
    /// # Errors
    /// Never for values built by these crates; only the type of serialisation allows an error.
    pub fn to_bytes(&self) -> Result<Vec<u8>, String> {
        let mut bytes = Vec::with_capacity(512);
        let mut serializer = serde_json::Serializer::with_formatter(&mut bytes, WithBits);
        self.serialize(&mut serializer).map_err(|error| error.to_string())?;
        Ok(bytes)
    }

    /// Parses the bytes of a row.
    ///
    /// # Errors
    /// When they are not an entry that this version understands.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, String> {
        serde_json::from_slice(&without_bits(bytes)?).map_err(|error| error.to_string())
    }
}

/// Writes every f64 as its exact bits and a human-readable decimal.
struct WithBits;

impl Formatter for WithBits {
    fn write_f64<W: ?Sized + io::Write>(&mut self, writer: &mut W, value: f64) -> io::Result<()> {
        write!(writer, "{{\"bits\":\"{:016x}\",\"is\":", value.to_bits())?;
        CompactFormatter.write_f64(writer, value)?;
        writer.write_all(b"}")
    }
}

/// Replaces every `{"bits":"...","is":X}` by X, if X has these bits. (This text cannot be inside a string, where the
/// quotation marks would be escaped.)
fn without_bits(bytes: &[u8]) -> Result<Vec<u8>, String> {
    const BEGIN: &[u8] = br#"{"bits":""#;
    const MIDDLE: &[u8] = br#"","is":"#;
    let invalid = || "a real number is not written as bits and decimal".to_owned();
    let mut plain = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some(start) = find(rest, BEGIN) {
        let (before, real) = rest.split_at(start);
        plain.extend_from_slice(before);
        let real = real.get(BEGIN.len()..).ok_or_else(invalid)?;
        let (bits, real) = real.split_at_checked(16).ok_or_else(invalid)?;
        let real = real.strip_prefix(MIDDLE).ok_or_else(invalid)?;
        let end = real.iter().position(|byte| *byte == b'}').ok_or_else(invalid)?;
        let (decimal, after) = real.split_at(end);
        let text = |bytes| std::str::from_utf8(bytes).map_err(|_| invalid());
        let bits = u64::from_str_radix(text(bits)?, 16).map_err(|_| invalid())?;
        let value: f64 = text(decimal)?.parse().map_err(|_| invalid())?;
        if value.to_bits() != bits {
            return Err(format!("{value} does not have the bits {bits:016x}"));
        }
        plain.extend_from_slice(decimal);
        rest = after.get(1..).unwrap_or_default();
    }
    plain.extend_from_slice(rest);
    Ok(plain)
}

fn find(bytes: &[u8], pattern: &[u8]) -> Option<usize> {
    bytes.windows(pattern.len()).position(|window| window == pattern)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reals_are_read_with_the_bits_that_were_written() {
        let budget = |name: &str, epsilon: f64| Budget {
            dataset: name.to_owned(),
            unit: veilgrad_events::RecordUnit::Example,
            adjacency: veilgrad_events::Adjacency::AddRemove,
            delta: veilgrad_events::Delta::new(1e-300).unwrap(),
            epsilon: Epsilon::new(epsilon).unwrap(),
            mode: veilgrad_events::Mode::Planned,
            order: None,
        };
        let name = r#"{"bits":"3ff0000000000000","is":1.0}"#;
        for epsilon in [0.1 + 0.2, 1.0, 5e-324, 1.797e308, 1e23] {
            let entry = Entry::Budget { budget: budget(name, epsilon) };
            let bytes = entry.to_bytes().unwrap();
            assert_eq!(Entry::from_bytes(&bytes).unwrap(), entry);
        }
        let bytes = Entry::Budget { budget: budget("d", 3.0) }.to_bytes().unwrap();
        let text = String::from_utf8(bytes).unwrap();
        assert!(text.contains(r#"{"bits":"4008000000000000","is":3.0}"#), "{text}");
        let forged = text.replace("3.0", "4.0");
        assert!(Entry::from_bytes(forged.as_bytes()).unwrap_err().contains("bits"));
        assert!(Entry::from_bytes(text.replace("budget", "magic").as_bytes()).is_err());
        let more = text.replace("{\"kind\"", "{\"new\":1,\"kind\"");
        assert!(Entry::from_bytes(more.as_bytes()).unwrap_err().contains("the first key must be"));
        let more = text.replace("\"dataset\"", "\"new\":1,\"dataset\"");
        assert!(Entry::from_bytes(more.as_bytes()).unwrap_err().contains("unknown field"));
        let more = text.replace(",\"budget\"", ",\"kind\":\"create\",\"budget\"");
        assert!(Entry::from_bytes(more.as_bytes()).unwrap_err().contains("unknown field"));
    }
}
