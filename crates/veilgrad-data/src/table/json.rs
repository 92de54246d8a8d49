//! JSON Lines tables: every line is an object.

use std::borrow::Cow;
use std::collections::HashMap;
use std::io::BufRead;
use std::path::Path;

use serde_json::value::RawValue;

use super::rows::{Rows, Turn, Value};
use super::schema::{Defect, Schema, Table};
use crate::line::{Line, read_line, without_end};
use crate::{DataError, RowRanges};

/// Reads a table line by line. Only a file that cannot be read is an error.
pub(super) fn read(
    schema: &Schema,
    path: &Path,
    mut file: impl BufRead,
    (labelled, wanted): (bool, Option<&RowRanges>),
    found: &mut dyn FnMut(Defect),
) -> Result<Table, DataError> {
    let names = schema.names(labelled);
    let mut rows = Rows::new(schema, path, &names, labelled, wanted, found)?;
    let (mut line, mut first) = (Vec::new(), true);
    loop {
        let found =
            read_line(&mut file, &mut line).map_err(|cause| DataError::file(path, cause))?;
        let is_first = std::mem::take(&mut first);
        match rows.turn() {
            Turn::Push => {}
            Turn::Skip if found != Line::End => continue,
            Turn::Skip | Turn::Stop => return Ok(rows.table),
        }
        match found {
            Line::End => return Ok(rows.table),
            Line::TooLong => {
                rows.push_broken("is too long");
                continue;
            }
            Line::Whole => {}
        }
        let text = without_end(&line);
        let text = match is_first {
            true => text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text),
            false => text,
        };
        let Ok(object) = serde_json::from_slice::<HashMap<String, &RawValue>>(text) else {
            rows.push_broken("is not a JSON object");
            continue;
        };
        // A key that is not there is a cell that is empty.
        let cell =
            |name: &String| object.get(name).map_or(Some(Cow::Borrowed("")), |raw| cell(raw));
        let cells: Vec<Option<Cow<'_, str>>> = names.iter().map(cell).collect();
        rows.push(|place| match cells.get(place) {
            Some(Some(text)) => Value::Text(text),
            _ => Value::Unreadable,
        });
    }
}

/// The keys of all objects, in the order in which they first occur.
pub(super) fn keys(path: &Path, mut file: impl BufRead) -> Result<Vec<String>, DataError> {
    let (mut line, mut keys) = (Vec::new(), Vec::<String>::new());
    loop {
        match read_line(&mut file, &mut line).map_err(|cause| DataError::file(path, cause))? {
            Line::End => return Ok(keys),
            Line::TooLong => continue,
            Line::Whole => {}
        }
        let text = without_end(&line);
        let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
        let object = serde_json::from_slice::<serde_json::Map<String, serde_json::Value>>(text);
        for (key, _) in object.unwrap_or_default() {
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
    }
}

/// The text of a value: that of a string, or a number as it is written. Numbers are not converted, which could merge users
/// with long ids. `None` for arrays and objects.
fn cell(raw: &RawValue) -> Option<Cow<'_, str>> {
    let text = raw.get();
    match text.as_bytes().first()? {
        b'"' => serde_json::from_str(text).ok().map(Cow::Owned),
        b'n' => Some(Cow::Borrowed("")),
        b'{' | b'[' => None,
        _ => Some(Cow::Borrowed(text)),
    }
}
