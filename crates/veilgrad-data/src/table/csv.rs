//! CSV tables.

use std::io::BufRead;
use std::path::Path;

use super::rows::{Rows, Turn, Value};
use super::schema::{Defect, Schema, Table};
use crate::line::{Cells, Line, read_line, without_end};
use crate::{DataError, RowRanges};

/// Reads a table line by line; only a malformed header is an error.
pub(super) fn read(
    schema: &Schema,
    path: &Path,
    mut file: impl BufRead,
    delimiter: u8,
    (labelled, wanted): (bool, Option<&RowRanges>),
    found: &mut dyn FnMut(Defect),
) -> Result<Table, DataError> {
    let (mut line, mut cells, mut first) = (Vec::new(), Cells::default(), true);
    let mut next = |line: &mut Vec<u8>| {
        let found = read_line(&mut file, line).map_err(|cause| DataError::file(path, cause));
        // Spreadsheets begin a file with a byte order mark.
        if std::mem::take(&mut first) && line.starts_with(b"\xef\xbb\xbf") {
            line.drain(..3);
        }
        found
    };
    let header = match &schema.text.header {
        Some(header) => header.clone(),
        None => {
            let found = next(&mut line)?;
            names(path, found, &line, delimiter)?
        }
    };
    let mut rows = Rows::new(schema, path, &header, labelled, wanted, found)?;
    loop {
        let found = next(&mut line)?;
        match rows.turn() {
            Turn::Push => {}
            Turn::Skip if found != Line::End => continue,
            Turn::Skip | Turn::Stop => return Ok(rows.table),
        }
        match found {
            Line::End => return Ok(rows.table),
            Line::TooLong => rows.push_broken("is too long"),
            Line::Whole if !cells.split(without_end(&line), delimiter) => {
                rows.push_broken("has a quote that is left open on its line");
            }
            Line::Whole if cells.count() != header.len() => {
                rows.push_broken("has more or fewer cells than the header");
            }
            Line::Whole => {
                rows.push(|place| cells.get(place).map_or(Value::Unreadable, Value::Text));
            }
        }
    }
}

/// The names of all columns: the header of a file.
pub(super) fn header(
    path: &Path,
    mut file: impl BufRead,
    delimiter: u8,
) -> Result<Vec<String>, DataError> {
    let mut line = Vec::new();
    let found = read_line(&mut file, &mut line).map_err(|cause| DataError::file(path, cause))?;
    if line.starts_with(b"\xef\xbb\xbf") {
        line.drain(..3);
    }
    names(path, found, &line, delimiter)
}

/// The names in the line of a header.
fn names(path: &Path, found: Line, line: &[u8], delimiter: u8) -> Result<Vec<String>, DataError> {
    let mut cells = Cells::default();
    if found == Line::TooLong {
        return Err(DataError::format(path, "has a header that is too long"));
    }
    if !cells.split(without_end(line), delimiter) {
        return Err(DataError::format(path, "has a header in which a quote is left open"));
    }
    let name = |place| cells.get(place).unwrap_or_default().to_owned();
    Ok((0..cells.count()).map(name).collect())
}
