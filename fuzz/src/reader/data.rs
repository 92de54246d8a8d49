//! Data files: for any content, numbers are within their declared bounds, or there is one error for the whole file.

use std::path::Path;

use veilgrad_data::table::{Column, Kind, Schema, Table, Target, TextFormat};
use veilgrad_data::{Array, DataError};

use crate::scratch;

/// Numbers in a row of the arrays in the corpus.
const WIDTH: usize = 6;

/// `.idx`, plain or compressed.
pub(crate) fn idx(bytes: &[u8]) {
    let path = scratch::file("x.idx", bytes);
    for width in [1, WIDTH] {
        check(veilgrad_data::idx::read(&path, width), width, bytes, 1032);
    }
}

/// `.npy`.
pub(crate) fn npy(bytes: &[u8]) {
    let path = scratch::file("x.npy", bytes);
    for width in [1, WIDTH] {
        check(veilgrad_data::npy::read(&path, None, width), width, bytes, 1);
    }
}

/// An array of an `.npz`.
pub(crate) fn npz(bytes: &[u8]) {
    let path = scratch::file("x.npz", bytes);
    check(veilgrad_data::npy::read(&path, Some("x"), WIDTH), WIDTH, bytes, 1032);
}

/// Checks that rows are whole and have the declared width, and that there are at most `packed` numbers per byte of the file.
fn check(read: Result<Array, DataError>, width: usize, bytes: &[u8], packed: usize) {
    let Ok(array) = read else { return };
    assert_eq!(array.shape.iter().product::<usize>(), width, "another width than declared");
    assert_eq!(array.values.len() % width, 0, "a part of a row");
    assert!(array.values.len() <= packed * bytes.len(), "more numbers than bytes");
}

/// A CSV table: every line after the header is a record.
pub(crate) fn csv(bytes: &[u8]) {
    let path = scratch::file("x.csv", bytes);
    let lines = bytes.split_inclusive(|byte| *byte == b'\n').count();
    if let Some(rows) = table(&path).filter(|_| !is_packed(bytes)) {
        assert_eq!(rows, lines.saturating_sub(1), "a record was lost, or became several");
    }
}

/// A table of JSON Lines: every line is a record.
pub(crate) fn json(bytes: &[u8]) {
    let path = scratch::file("x.jsonl", bytes);
    let lines = bytes.split_inclusive(|byte| *byte == b'\n').count();
    if let Some(rows) = table(&path).filter(|_| !is_packed(bytes)) {
        assert_eq!(rows, lines, "a record was lost, or became several");
    }
}

/// Ids of users: as many as the bytes of the file allow.
pub(crate) fn ids(bytes: &[u8]) {
    let path = scratch::file("ids.npy", bytes);
    let Ok(users) = veilgrad_data::ids::read(&path, None) else { return };
    assert!(users.len() <= bytes.len(), "more ids than bytes");
    let count = users.iter().max().map_or(0, |most| *most as usize + 1);
    assert!((0..count as u32).all(|user| users.contains(&user)), "a user without an example");
}

/// Whether a file is decompressed when it is read.
fn is_packed(bytes: &[u8]) -> bool {
    bytes.starts_with(&[0x1f, 0x8b])
}

/// A Parquet table.
#[cfg(feature = "parquet")]
pub(crate) fn parquet(bytes: &[u8]) {
    table(&scratch::file("x.parquet", bytes));
}

/// The schema of the tables in the corpus.
pub(crate) fn schema() -> Schema {
    let text = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    let number = Kind::Number { low: 0.0, high: 100.0, missing: None };
    let replaced = Kind::Number { low: -1.0, high: 1.0, missing: Some(0.5) };
    let column = |name: &str, kind| Column { name: name.to_owned(), kind };
    Schema {
        columns: vec![
            column("age", number),
            column("colour", Kind::Category { words: text(&["red", "green"]), missing: Some(1) }),
            column("height", replaced),
        ],
        label: "sick".to_owned(),
        target: Target::Classes(text(&["no", "yes"])),
        user: Some("who".to_owned()),
        text: TextFormat::default(),
    }
}

/// The number of records of a table, if it is readable. Checks that all numbers are within their declared bounds.
fn table(path: &Path) -> Option<usize> {
    let schema = schema();
    let mut defects = 0;
    let found = schema.defects(path, |_| defects += 1);
    let read = schema.read(path);
    assert_eq!(found.is_ok(), read.is_ok(), "two readings differ");
    let inputs = schema.read_inputs(path);
    let Table { inputs: all, labels, users, .. } = read.ok()?;
    let rows = labels.len();
    assert_eq!(all.values.len(), rows * schema.width());
    assert!(users.as_ref().is_some_and(|users| users.len() == rows));
    assert!(users.iter().flatten().flatten().all(|user| (*user as usize) < rows));
    assert!(all.values.iter().all(|value| value.is_nan() || value.abs() <= 1.0));
    assert!(labels.iter().all(|label| label.is_nan() || *label == 0.0 || *label == 1.0));
    let bits = |array: &Array| array.values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
    assert!(inputs.is_ok_and(|inputs| bits(&inputs) == bits(&all)), "labels change inputs");
    let is_good = |row: &[f32]| row.iter().all(|value| !value.is_nan());
    let good = all.rows().zip(&labels).filter(|(row, label)| is_good(row) && !label.is_nan());
    assert!(good.count() + defects >= rows, "a bad record is not reported");
    Some(rows)
}
