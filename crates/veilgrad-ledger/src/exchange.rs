//! Export and import: rows as JSON Lines, with their hashes.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::chain::{Chained, Hash};
use crate::entry::Entry;
use crate::error::StoreError;
use crate::ledger::{Ledger, Options};
use crate::state::State;

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

/// The last line of an export: the head that it must end with, so that a part of one is not taken for all.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct End {
    head: String,
}

/// An export with the head of its last row as its last line: for those of versions before 0.2, which end without
/// one. The caller vouches that no row is missing at the end.
///
/// # Errors
/// When the text is not an export, or already has a head.
pub fn with_head(text: &str) -> Result<String, StoreError> {
    let wrong = |why: &str| StoreError::Damaged(format!("the export {why}"));
    if text.lines().last().is_some_and(|line| serde_json::from_str::<End>(line).is_ok()) {
        return Err(wrong("has its head"));
    }
    let line = |line: Option<&str>| -> Option<Line> { serde_json::from_str(line?).ok() };
    let first = line(text.lines().next()).ok_or_else(|| wrong("has no first row"))?;
    let last = line(text.lines().last()).ok_or_else(|| wrong("has no last row"))?;
    let Ok(Entry::Create { id }) = Entry::from_bytes(first.bytes.as_bytes()) else {
        return Err(wrong("does not begin with its ledger"));
    };
    let end = end_line(&format!("{id}:{}:{}", last.sequence, last.hash))?;
    Ok(format!("{}\n{end}", text.trim_end_matches('\n')))
}

fn end_line(head: &str) -> Result<String, StoreError> {
    let end = serde_json::to_string(&End { head: head.to_owned() });
    end.map(|line| line + "\n").map_err(|error| StoreError::Refused(error.to_string()))
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
    /// All rows as JSON Lines, and the head as the last of them.
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
        let source = ledger_of(&lines)?.to_owned();
        let (total, mut charged) = (lines.len() as u64, 0);
        let import = |ledger: &Self| {
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
            charged = entries.len() as u64;
            Ok(entries)
        };
        self.append(import, None)?;
        Ok(Imported { charged, known: total - charged.min(total) })
    }
}

impl State {
    /// What an export says, without a database.
    ///
    /// # Guarantee
    /// The export is one that a ledger wrote, whole: its chain holds from the first row to its head.
    ///
    /// # Errors
    /// When the export does not verify, or a row is against the rules.
    pub fn from_export(text: &str) -> Result<Self, StoreError> {
        let mut state = Self::default();
        for (sequence, row) in (1..).zip(verify(text)?) {
            let wrong = |why: String| StoreError::Refused(format!("row {sequence}: {why}"));
            state.apply(sequence, &row.entry).map_err(wrong)?;
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

/// The id of the ledger that an export is of.
fn ledger_of(rows: &[Row]) -> Result<&str, StoreError> {
    match rows.first() {
        Some(Row { entry: Entry::Create { id }, .. }) => Ok(id),
        _ => Err(StoreError::Damaged("the export does not begin with its ledger".into())),
    }
}

/// The rows of an export whose chain holds and ends with its head.
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
    let id = ledger_of(&rows)?;
    if end.head != format!("{id}:{}:{hash}", rows.len()) {
        return Err(StoreError::Damaged(format!(
            "the export ends at row {}, and its head is {}: rows are missing",
            rows.len(),
            end.head
        )));
    }
    Ok(rows)
}
