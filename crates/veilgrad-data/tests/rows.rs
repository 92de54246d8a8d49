//! Some rows of a file are those rows of the whole file, in every format.

use std::io::Write;
use std::path::{Path, PathBuf};

use veilgrad_data::table::{Column, Kind, Schema, Target, TextFormat};
use veilgrad_data::{Array, DataError, RowRanges, idx, npy};

const ROWS: usize = 50;

/// No rows, one at either end, gaps, everything, and rows beyond the end.
fn choices() -> Vec<RowRanges> {
    let mut choices = vec![
        RowRanges::default(),
        RowRanges::new([0]),
        RowRanges::new([ROWS - 1]),
        RowRanges::new(0..ROWS),
        RowRanges::new([7, 3, 7, 4, 30, 5]),
        RowRanges::new((0..ROWS).step_by(3)),
        RowRanges::new([48, ROWS, 1000]),
    ];
    choices.extend((0..4).map(|part| RowRanges::new(part * ROWS / 4..(part + 1) * ROWS / 4)));
    choices
}

fn compare(name: &str, whole: &Array, read: impl Fn(&RowRanges) -> Result<Array, DataError>) {
    assert_eq!(whole.rows().len(), ROWS, "{name}");
    let rows: Vec<&[f32]> = whole.rows().collect();
    for choice in choices() {
        let found = read(&choice).unwrap();
        let expected = choice.iter().filter_map(|row| rows.get(row)).copied().flatten();
        let bits = |value: &f32| value.to_bits();
        assert!(found.values.iter().map(bits).eq(expected.map(bits)), "{name}: {choice:?}");
        assert_eq!(found.shape, whole.shape, "{name}");
    }
}

fn write(name: &str, bytes: &[u8]) -> PathBuf {
    let path = std::env::temp_dir().join(format!("veilgrad-rows-{}-{name}", std::process::id()));
    std::fs::write(&path, bytes).unwrap();
    path
}

fn packed(bytes: &[u8]) -> Vec<u8> {
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(bytes).unwrap();
    packed.finish().unwrap()
}

#[test]
fn rows_of_arrays() {
    let numbers: Vec<u8> = (0..ROWS * 6).map(|i| (i * 37 % 251) as u8).collect();
    let mut bytes = vec![0, 0, 8, 3];
    [ROWS, 2, 3].iter().for_each(|length| bytes.extend((*length as u32).to_be_bytes()));
    bytes.extend(&numbers);
    for (name, bytes) in [("plain", bytes.clone()), ("gz", packed(&bytes))] {
        let path = write(name, &bytes);
        compare(name, &idx::read(&path, 6).unwrap(), |rows| idx::read_rows(&path, 6, rows));
        std::fs::remove_file(path).unwrap();
    }
    let array = |order: &str| {
        let shape = format!("({ROWS}, 2, 3)");
        let header = format!("{{'descr': '|u1', 'fortran_order': {order}, 'shape': {shape}, }}");
        let length = (header.len() as u16).to_le_bytes();
        [b"\x93NUMPY\x01\x00".as_slice(), &length, header.as_bytes(), &numbers].concat()
    };
    for order in ["False", "True"] {
        let path = write(&format!("{order}.npy"), &array(order));
        let whole = npy::read(&path, None, 6).unwrap();
        compare(order, &whole, |rows| npy::read_rows(&path, None, 6, rows));
        std::fs::remove_file(path).unwrap();
    }
    let path = write("x.npz", &[]);
    let mut archive = zip::ZipWriter::new(std::fs::File::create(&path).unwrap());
    archive.start_file("x.npy", zip::write::SimpleFileOptions::default()).unwrap();
    archive.write_all(&array("False")).unwrap();
    archive.finish().unwrap();
    let whole = npy::read(&path, Some("x"), 6).unwrap();
    compare("npz", &whole, |rows| npy::read_rows(&path, Some("x"), 6, rows));
    std::fs::remove_file(path).unwrap();
}

#[test]
fn rows_that_are_skipped_must_be_there() {
    let mut bytes = vec![0, 0, 8, 1, 0, 0, 0, 100];
    bytes.extend([1; 100]);
    for rows in [RowRanges::default(), RowRanges::new([0, 1]), RowRanges::new([99])] {
        for (length, why) in [(107, "shorter"), (20, "shorter"), (109, "longer")] {
            let mut other = bytes.clone();
            other.resize(length, 1);
            let path = write(&format!("{length}"), &other);
            let error = idx::read_rows(&path, 1, &rows).err().unwrap().to_string();
            assert!(error.contains(why), "{error}");
            std::fs::remove_file(path).unwrap();
        }
    }
}

fn schema() -> Schema {
    let kind = Kind::Number { low: 0.0, high: 100.0, missing: None };
    Schema {
        columns: vec![Column { name: "x".to_owned(), kind }],
        label: "y".to_owned(),
        target: Target::Classes(vec!["a".to_owned()]),
        user: None,
        text: TextFormat::default(),
    }
}

fn compare_table(path: &Path) {
    let (schema, name) = (schema(), path.display().to_string());
    compare(&name, &schema.read_inputs(path).unwrap(), |rows| schema.read_rows(path, rows));
    std::fs::remove_file(path).unwrap();
}

#[test]
fn rows_of_tables_count_those_that_are_not_as_declared() {
    let (mut csv, mut json) = ("\u{feff}y,x\n".to_owned(), "\u{feff}".to_owned());
    for row in 0..ROWS {
        match row % 7 {
            3 => {
                csv += "a,\"open\n";
                json += "no object\n";
            }
            5 => {
                csv += "a,1,2\n";
                json += "\n";
            }
            _ => {
                csv += &format!("a,{row}\n");
                json += &format!("{{\"x\": {row}, \"y\": \"a\"}}\n");
            }
        }
    }
    compare_table(&write("x.csv", csv.as_bytes()));
    compare_table(&write("x.csv.gz", &packed(csv.as_bytes())));
    compare_table(&write("x.jsonl", json.as_bytes()));
}
