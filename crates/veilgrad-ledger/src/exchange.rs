//! Export and import: rows as JSON Lines, with their hashes.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::chain::Hash;
use crate::entry::Entry;
use crate::error::StoreError;
use crate::ledger::{Ledger, Options};

/// One exported row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Line {
    /// The number of the row.
    pub sequence: u64,
    /// Its hash.
    pub hash: String,
    /// The bytes that were hashed: JSON.
    pub bytes: String,
}

/// What an import did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Imported {
    /// Rows that were charged.
    pub charged: u64,
    /// Rows that were there already.
    pub known: u64,
}

impl Ledger {
    /// All rows as JSON Lines.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn export(&self) -> Result<String, StoreError> {
        let mut text = String::new();
        self.visit_rows(&mut |sequence, bytes, hash| {
            let bytes = String::from_utf8(bytes.to_vec())
                .map_err(|_| StoreError::Damaged(format!("row {sequence} is not text")))?;
            let line = Line { sequence, hash: hash.to_string(), bytes };
            let line = serde_json::to_string(&line)
                .map_err(|error| StoreError::Refused(error.to_string()))?;
            text.push_str(&line);
            text.push('\n');
            Ok(())
        })?;
        Ok(text)
    }

    /// Creates a ledger from an export: the same rows, with the same hashes.
    ///
    /// # Errors
    /// When the export does not verify, or there is a file already.
    pub fn restore(path: &Path, text: &str, options: Options) -> Result<Self, StoreError> {
        let rows: Vec<Vec<u8>> = verify(text)?.into_iter().map(|row| row.bytes).collect();
        Self::create_with(path, options, &rows)
    }

    /// Charges all rows of an export that are not here yet. What a branch of this ledger has in common
    /// with it is here; what it has beyond is charged, in addition to ours.
    ///
    /// # Errors
    /// When the export does not verify, or protects something else under the same name; nothing is
    /// changed then.
    pub fn import(&mut self, text: &str) -> Result<Imported, StoreError> {
        let lines = verify(text)?;
        let source = match lines.first() {
            Some(Row { entry: Entry::Create { id }, .. }) => id.clone(),
            _ => {
                return Err(StoreError::Damaged(
                    "the export does not begin with its ledger".into(),
                ));
            }
        };
        let total = lines.len() as u64;
        let charged = self.append_import(|ledger| {
            let mut ours = std::collections::HashSet::new();
            ledger.visit_rows(&mut |_, _, hash| {
                ours.insert(hash.to_string());
                Ok(())
            })?;
            let state = ledger.state();
            let mut entries = Vec::new();
            for Row { hash, entry, .. } in lines {
                let hash = hash.to_string();
                let known = ours.contains(&hash) || state.has_imported(&source, &hash, &entry);
                match entry {
                    _ if known => {}
                    // What another ledger imported is charged as if it came from there.
                    Entry::Import { source, hash, entry } => {
                        let here = source == state.id && ours.contains(&hash);
                        if !here && !state.has_imported(&source, &hash, &entry) {
                            entries.push(Entry::Import { source, hash, entry });
                        }
                    }
                    entry => {
                        let (source, entry) = (source.clone(), Box::new(entry));
                        entries.push(Entry::Import { source, hash, entry });
                    }
                }
            }
            Ok(entries)
        })?;
        Ok(Imported { charged, known: total - charged.min(total) })
    }
}

/// A row whose hash was verified.
struct Row {
    bytes: Vec<u8>,
    hash: Hash,
    entry: Entry,
}

/// The rows of an export whose chain holds.
fn verify(text: &str) -> Result<Vec<Row>, StoreError> {
    let mut hash = Hash::default();
    let mut rows = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let place = format!("line {}", index + 1);
        let wrong = |why: String| StoreError::Damaged(format!("{place}: {why}"));
        let line: Line = serde_json::from_str(line).map_err(|error| wrong(error.to_string()))?;
        hash = hash.after(line.bytes.as_bytes());
        if line.sequence != index as u64 + 1 || line.hash != hash.to_string() {
            return Err(wrong("is not the next row of its chain".to_owned()));
        }
        let entry = Entry::from_bytes(line.bytes.as_bytes()).map_err(wrong)?;
        rows.push(Row { bytes: line.bytes.into_bytes(), hash, entry });
    }
    if rows.is_empty() {
        return Err(StoreError::Damaged("the export is empty".to_owned()));
    }
    Ok(rows)
}
