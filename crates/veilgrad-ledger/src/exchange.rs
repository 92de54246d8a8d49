//! Export and import: rows as JSON Lines, with their hashes.

use serde::{Deserialize, Serialize};

use crate::chain::{Chained, Hash};
use crate::entry::Entry;
use crate::error::StoreError;
use crate::ledger::Ledger;
use crate::location::Location;
use crate::options::Options;
use crate::state::State;

/// One exported row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Line {
    /// The number of the row.
    pub sequence: u64,
    /// The hash of the row.
    pub hash: String,
    /// The bytes that were hashed: JSON.
    pub bytes: String,
}

/// The last line of an export: its head, so that an incomplete export is detected.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct End {
    head: String,
}

/// Appends the missing head line to an export of an early version, which ends without one. The caller asserts that no
/// row is missing at the end.
///
/// # Errors
/// When the text is not an export, or already has a head.
pub fn with_head(text: &str) -> Result<String, StoreError> {
    let damaged = |why: &str| StoreError::Damaged(format!("the export {why}"));
    if text.lines().last().is_some_and(|line| serde_json::from_str::<End>(line).is_ok()) {
        return Err(damaged("already has a head"));
    }
    let parse = |line: Option<&str>| -> Option<Line> { serde_json::from_str(line?).ok() };
    let first = parse(text.lines().next()).ok_or_else(|| damaged("has no first row"))?;
    let last = parse(text.lines().last()).ok_or_else(|| damaged("has no last row"))?;
    let Ok(Entry::Create { id }) = Entry::from_bytes(first.bytes.as_bytes()) else {
        return Err(damaged("does not begin with the row that creates its ledger"));
    };
    let end = end_line(&format!("{id}:{}:{}", last.sequence, last.hash))?;
    Ok(format!("{}\n{end}", text.trim_end_matches('\n')))
}

fn end_line(head: &str) -> Result<String, StoreError> {
    let end = serde_json::to_string(&End { head: head.to_owned() });
    end.map(|line| line + "\n").map_err(|error| StoreError::Refused(error.to_string()))
}

/// The result of an import.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Imported {
    /// The number of rows charged by the import.
    pub charged: u64,
    /// The number of rows that were already in the ledger.
    pub known: u64,
}

impl Ledger {
    /// Exports all rows as JSON Lines, with the head as the last line.
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
        text.push_str(&end_line(&self.head().to_string())?);
        Ok(text)
    }

    /// Creates a ledger from an export, with the same rows and hashes.
    ///
    /// # Errors
    /// When the export does not verify, or there is a ledger already.
    pub fn restore(
        location: impl Into<Location>,
        text: &str,
        options: Options,
    ) -> Result<Self, StoreError> {
        let rows: Vec<Vec<u8>> = verify(text)?.into_iter().map(|row| row.bytes).collect();
        Self::create_with(location.into(), options, &rows)
    }

    /// Charges all rows of an export that are not in this ledger yet. For an export of another branch of this ledger,
    /// the common rows are known, and the rest is charged in addition.
    ///
    /// # Errors
    /// When the export does not verify, or has a dataset of the same name with another unit or adjacency; nothing is
    /// changed then.
    pub fn import(&mut self, text: &str) -> Result<Imported, StoreError> {
        let lines = verify(text)?;
        let source = ledger_id(&lines)?.to_owned();
        let (total, mut charged) = (lines.len() as u64, 0);
        let new_entries = |ledger: &Self| {
            let mut hashes = std::collections::HashSet::new();
            ledger.visit_rows(&mut |_, _, hash| {
                hashes.insert(hash.to_string());
                Ok(())
            })?;
            let state = ledger.state();
            let mut entries = Vec::new();
            for Row { hash, entry, .. } in &lines {
                let hash = hash.to_string();
                let known = hashes.contains(&hash) || state.has_imported(&source, &hash, entry);
                match entry.clone() {
                    _ if known => {}
                    // A row that the other ledger imported keeps its original source.
                    Entry::Import { source, hash, entry } => {
                        let is_ours = source == state.id && hashes.contains(&hash);
                        if !is_ours && !state.has_imported(&source, &hash, &entry) {
                            entries.push(Entry::Import { source, hash, entry });
                        }
                    }
                    entry => {
                        let (source, entry) = (source.clone(), Box::new(entry));
                        entries.push(Entry::Import { source, hash, entry });
                    }
                }
            }
            charged = entries.len() as u64;
            Ok(entries)
        };
        self.append(new_entries, None)?;
        Ok(Imported { charged, known: total - charged.min(total) })
    }
}

impl State {
    /// Reads the state of a ledger from an export, without a database.
    ///
    /// # Guarantee
    /// The export is complete: its hash chain verifies from the first row to its head.
    ///
    /// # Errors
    /// When the export does not verify, or a row is invalid.
    pub fn from_export(text: &str) -> Result<Self, StoreError> {
        let mut state = Self::default();
        for (sequence, row) in (1..).zip(verify(text)?) {
            let refused = |why: String| StoreError::Refused(format!("row {sequence}: {why}"));
            state.apply(sequence, &row.entry).map_err(refused)?;
        }
        Ok(state)
    }
}

/// A row whose hash was verified.
struct Row {
    bytes: Vec<u8>,
    hash: Hash,
    entry: Entry,
}

/// The id of the exported ledger.
fn ledger_id(rows: &[Row]) -> Result<&str, StoreError> {
    match rows.first() {
        Some(Row { entry: Entry::Create { id }, .. }) => Ok(id),
        _ => Err(StoreError::Damaged(
            "the export does not begin with the row that creates its ledger".into(),
        )),
    }
}

/// Verifies the hash chain of an export and its head; returns its rows.
fn verify(text: &str) -> Result<Vec<Row>, StoreError> {
    let mut hash = Hash::default();
    let mut rows = Vec::new();
    let mut lines: Vec<&str> = text.lines().collect();
    let Some(last) = lines.pop() else {
        return Err(StoreError::Damaged("the export is empty".to_owned()));
    };
    let Ok(end) = serde_json::from_str::<End>(last) else {
        return Err(StoreError::Damaged(format!(
            "the export does not end with its head, so rows after line {} may be missing",
            lines.len() + 1
        )));
    };
    for (index, line) in lines.into_iter().enumerate() {
        let damaged = |why: String| StoreError::Damaged(format!("line {}: {why}", index + 1));
        let line: Line = serde_json::from_str(line).map_err(|error| damaged(error.to_string()))?;
        hash = hash.after(line.bytes.as_bytes());
        if line.sequence != index as u64 + 1 || line.hash != hash.to_string() {
            return Err(damaged("is not the next row of its chain".to_owned()));
        }
        let entry = Entry::from_bytes(line.bytes.as_bytes()).map_err(damaged)?;
        rows.push(Row { bytes: line.bytes.into_bytes(), hash, entry });
    }
    let id = ledger_id(&rows)?;
    if end.head != format!("{id}:{}:{hash}", rows.len()) {
        return Err(StoreError::Damaged(format!(
            "the export ends at row {}, and its head is {}: rows are missing",
            rows.len(),
            end.head
        )));
    }
    Ok(rows)
}
