//! CSV tables with a header.

use std::io::BufRead;
use std::path::Path;

use super::rows::{Rows, Value};
use super::schema::{Defect, Schema, Table};
use crate::DataError;
use crate::line::{Cells, without_end};

/// Reads a table line by line; only a malformed header is an error.
pub(super) fn read(
    schema: &Schema,
    path: &Path,
    mut file: impl BufRead,
    labelled: bool,
    found: &mut dyn FnMut(Defect),
) -> Result<Table, DataError> {
    let mut line = Vec::new();
    let mut next = |line: &mut Vec<u8>| {
        line.clear();
        file.read_until(b'\n', line).map_err(|cause| DataError::file(path, cause))
    };
    next(&mut line)?;
    let mut cells = Cells::default();
    // Spreadsheets begin a file with a byte order mark.
    let first = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&line);
    if !cells.split(without_end(first)) {
        return Err(DataError::format(path, "has a header in which a quote is left open"));
    }
    let width = cells.count();
    let header: Vec<String> =
        (0..width).map(|place| cells.get(place).unwrap_or_default().to_owned()).collect();
    let mut rows = Rows::new(schema, path, &header, labelled, found)?;
    while next(&mut line)? > 0 {
        if !cells.split(without_end(&line)) {
            rows.push_broken("has a quote that is left open on its line");
        } else if cells.count() != width {
            rows.push_broken("has more or fewer cells than the header");
        } else {
            rows.push(|place| cells.get(place).map_or(Value::Unreadable, Value::Text));
        }
    }
    Ok(rows.table)
}
