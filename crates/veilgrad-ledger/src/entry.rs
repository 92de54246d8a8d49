//! What a row of the ledger says, and the bytes that are hashed.

use std::io;

use serde::{Deserialize, Serialize};
use serde_json::ser::{CompactFormatter, Formatter};
use veilgrad_events::{Budget, Epsilon, Event};

/// One row. The meaning of a kind never changes; an unknown kind is refused.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
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
        /// Which run: drawn at random when it was opened, so that runs of two branches differ.
        run: String,
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
    pub fn dataset(&self) -> Option<&str> {
        match self {
            Self::Budget { budget } => Some(&budget.dataset),
            Self::Tighten { dataset, .. } | Self::Run { dataset, .. } => Some(dataset),
            Self::Import { entry, .. } => entry.dataset(),
            Self::Create { .. } | Self::Recovered { .. } => None,
        }
    }

    /// What was charged: for a row of another ledger, the row itself, however often it was imported.
    #[must_use]
    pub fn original(self) -> Self {
        match self {
            Self::Import { entry, .. } => entry.original(),
            own => own,
        }
    }

    /// The bytes that are stored and hashed: JSON in which every real number is its exact bits and a
    /// decimal for people.
    ///
    /// # Errors
    /// None for values built by these crates; serialisation is fallible by type only.
    pub fn to_bytes(&self) -> Result<Vec<u8>, String> {
        let mut bytes = Vec::with_capacity(512);
        let mut serializer = serde_json::Serializer::with_formatter(&mut bytes, WithBits);
        self.serialize(&mut serializer).map_err(|error| error.to_string())?;
        Ok(bytes)
    }

    /// Reads such bytes.
    ///
    /// # Errors
    /// When they say nothing that this version understands.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, String> {
        serde_json::from_slice(&without_bits(bytes)?).map_err(|error| error.to_string())
    }
}

/// Writes every real number as its exact bits and a decimal for people.
struct WithBits;

impl Formatter for WithBits {
    fn write_f64<W: ?Sized + io::Write>(&mut self, writer: &mut W, value: f64) -> io::Result<()> {
        write!(writer, "{{\"bits\":\"{:016x}\",\"is\":", value.to_bits())?;
        CompactFormatter.write_f64(writer, value)?;
        writer.write_all(b"}")
    }
}

/// Every `{"bits":"...","is":X}` as X, if X has these bits. (Inside of a string the quotation marks would
/// be escaped, so this begins no string.)
fn without_bits(bytes: &[u8]) -> Result<Vec<u8>, String> {
    const BEGIN: &[u8] = br#"{"bits":""#;
    const MIDDLE: &[u8] = br#"","is":"#;
    let wrong = || "a real number is not written as bits and decimal".to_owned();
    let mut plain = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some(place) = find(rest, BEGIN) {
        let (before, real) = rest.split_at(place);
        plain.extend_from_slice(before);
        let real = real.get(BEGIN.len()..).ok_or_else(wrong)?;
        let (bits, real) = real.split_at_checked(16).ok_or_else(wrong)?;
        let real = real.strip_prefix(MIDDLE).ok_or_else(wrong)?;
        let end = real.iter().position(|byte| *byte == b'}').ok_or_else(wrong)?;
        let (decimal, after) = real.split_at(end);
        let text = |bytes| std::str::from_utf8(bytes).map_err(|_| wrong());
        let bits = u64::from_str_radix(text(bits)?, 16).map_err(|_| wrong())?;
        let value: f64 = text(decimal)?.parse().map_err(|_| wrong())?;
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
        assert!(Entry::from_bytes(more.as_bytes()).unwrap_err().contains("unknown field"));
    }
}
