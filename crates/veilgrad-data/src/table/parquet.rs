//! Parquet tables. Only the declared columns are read.

mod header;

use std::cell::Cell;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::panic::{self, AssertUnwindSafe};
use std::path::Path;
use std::sync::{Arc, Once};

use ::parquet::errors::{ParquetError, Result as ParquetResult};
use ::parquet::file::FOOTER_SIZE;
use ::parquet::file::reader::{ChunkReader, FileReader, Length, SerializedFileReader};
use ::parquet::record::Field;
use ::parquet::schema::types::Type;
use bytes::Bytes;

use super::rows::{Rows, Turn, Value};
use super::schema::{Defect, Schema, Table};
use crate::{DataError, RowRanges};

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Reads a table. The `parquet` crate panics on some damaged files: this is turned into an error, and the panic message
/// is not printed, because it may quote private values.
pub(super) fn read(
    schema: &Schema,
    path: &Path,
    (labelled, wanted): (bool, Option<&RowRanges>),
    found: &mut dyn FnMut(Defect),
) -> Result<Table, DataError> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !QUIET.get() {
                before(info);
            }
        }));
    });
    QUIET.set(true);
    let read =
        panic::catch_unwind(AssertUnwindSafe(|| rows(schema, path, (labelled, wanted), found)));
    QUIET.set(false);
    read.unwrap_or_else(|_| Err(damaged(path)))
}

/// An error without the crate's own message, which may quote private values.
fn damaged(path: &Path) -> DataError {
    DataError::format(path, "is not a Parquet file, or is damaged")
}

/// A file whose headers are checked before the `parquet` crate parses them.
struct Checked(File);

/// A reader from `start`, where the crate expects the header of a page or the end of the file.
struct CheckedRead {
    file: File,
    start: u64,
    /// `None` until the first read. The crate also asks for readers that it does not use.
    reader: Option<BufReader<File>>,
}

impl Length for Checked {
    fn len(&self) -> u64 {
        self.0.len()
    }
}

impl ChunkReader for Checked {
    type T = CheckedRead;

    fn get_read(&self, start: u64) -> ParquetResult<CheckedRead> {
        Ok(CheckedRead { file: self.0.try_clone()?, start, reader: None })
    }

    /// The whole footer, or the content of a page.
    fn get_bytes(&self, start: u64, length: usize) -> ParquetResult<Bytes> {
        let left = self.len().checked_sub(start).and_then(|left| left.checked_sub(length as u64));
        let unsound = || ParquetError::General("a header claims what it cannot hold".to_owned());
        // Checked before anything is allocated.
        let left = left.ok_or_else(unsound)?;
        let bytes = self.0.get_bytes(start, length)?;
        if left == FOOTER_SIZE as u64 && !header::is_sound_footer(&bytes) {
            return Err(unsound());
        }
        Ok(bytes)
    }
}

impl Read for CheckedRead {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let reader = match &mut self.reader {
            Some(reader) => reader,
            none => {
                let left = self.file.len().saturating_sub(self.start);
                let header = self.file.get_read(self.start)?;
                if left != FOOTER_SIZE as u64 && !header::is_sound_page(header, left) {
                    return Err(io::ErrorKind::InvalidData.into());
                }
                none.insert(self.file.get_read(self.start)?)
            }
        };
        reader.read(buffer)
    }
}

fn rows(
    schema: &Schema,
    path: &Path,
    (labelled, wanted): (bool, Option<&RowRanges>),
    found: &mut dyn FnMut(Defect),
) -> Result<Table, DataError> {
    let file = File::open(path).map_err(|cause| DataError::file(path, cause))?;
    let wrong = || damaged(path);
    let file = SerializedFileReader::new(Checked(file)).map_err(|_| wrong())?;
    let all = file.metadata().file_metadata().schema_descr().root_schema();
    let used = |field: &&Arc<Type>| schema.uses(field.name(), labelled);
    let fields: Vec<Arc<Type>> = all.get_fields().iter().filter(used).cloned().collect();
    if let Some(other) = fields.iter().find(|field| !is_read(field)) {
        let name = other.name();
        let why = format!("column {name:?} is of a type that is not read: use numbers or text");
        return Err(DataError::format(path, why));
    }
    let header: Vec<String> = fields.iter().map(|field| field.name().to_owned()).collect();
    let mut rows = Rows::new(schema, path, &header, labelled, wanted, found)?;
    let projection = Type::group_type_builder(all.name()).with_fields(fields).build();
    let projection = projection.map_err(|_| wrong())?;
    for row in file.get_row_iter(Some(projection)).map_err(|_| wrong())? {
        let row = row.map_err(|_| wrong())?;
        match rows.turn() {
            Turn::Push => {}
            Turn::Skip => continue,
            Turn::Stop => break,
        }
        let cells: Vec<Value<'_>> = row.get_column_iter().map(|(_, field)| cell(field)).collect();
        rows.push(|place| cells.get(place).copied().unwrap_or(Value::Unreadable));
    }
    Ok(rows.table)
}

/// Whether a column's type is supported, according to the file's schema.
fn is_read(field: &Type) -> bool {
    use ::parquet::basic::{ConvertedType as Converted, Repetition, Type as Physical};
    let information = field.get_basic_info();
    let repeated = information.has_repetition() && information.repetition() == Repetition::REPEATED;
    if repeated || !field.is_primitive() {
        return false;
    }
    let converted = information.converted_type();
    match field.get_physical_type() {
        Physical::BOOLEAN | Physical::FLOAT | Physical::DOUBLE => true,
        Physical::INT32 | Physical::INT64 => matches!(
            converted,
            Converted::NONE
                | Converted::INT_8
                | Converted::INT_16
                | Converted::INT_32
                | Converted::INT_64
                | Converted::UINT_8
                | Converted::UINT_16
                | Converted::UINT_32
                | Converted::UINT_64
        ),
        Physical::BYTE_ARRAY => {
            matches!(converted, Converted::UTF8 | Converted::ENUM | Converted::JSON)
        }
        _ => false,
    }
}

/// Converts a Parquet value.
fn cell(field: &Field) -> Value<'_> {
    match field {
        Field::Null => Value::Text(""),
        Field::Bool(value) => Value::Text(if *value { "true" } else { "false" }),
        Field::Byte(value) => Value::Whole(i128::from(*value)),
        Field::Short(value) => Value::Whole(i128::from(*value)),
        Field::Int(value) => Value::Whole(i128::from(*value)),
        Field::Long(value) => Value::Whole(i128::from(*value)),
        Field::UByte(value) => Value::Whole(i128::from(*value)),
        Field::UShort(value) => Value::Whole(i128::from(*value)),
        Field::UInt(value) => Value::Whole(i128::from(*value)),
        Field::ULong(value) => Value::Whole(i128::from(*value)),
        Field::Float(value) => Value::Real(f64::from(*value)),
        Field::Double(value) => Value::Real(*value),
        Field::Str(text) => Value::Text(text),
        _ => Value::Unreadable,
    }
}

#[cfg(test)]
mod tests {
    use ::parquet::data_type::{ByteArray, ByteArrayType, DoubleType, Int64Type};
    use ::parquet::file::properties::WriterProperties;
    use ::parquet::file::writer::SerializedFileWriter;
    use ::parquet::schema::parser::parse_message_type;

    use super::*;
    use crate::table::{Column, Kind, Target, TextFormat};

    fn schema() -> Schema {
        let words = ["red", "green"].map(str::to_owned).to_vec();
        Schema {
            columns: vec![
                Column {
                    name: "age".to_owned(),
                    kind: Kind::Number { low: 0.0, high: 100.0, missing: None },
                },
                Column { name: "colour".to_owned(), kind: Kind::Category { words, missing: None } },
            ],
            label: "sick".to_owned(),
            target: Target::Classes(vec!["0".to_owned(), "1".to_owned()]),
            user: Some("who".to_owned()),
            text: TextFormat::default(),
        }
    }

    /// A file with a column that is not declared, and with user ids that f64 cannot tell apart.
    fn file() -> Vec<u8> {
        let message = "message t { REQUIRED INT64 who; REQUIRED BYTE_ARRAY colour (UTF8); \
                       OPTIONAL DOUBLE age; REQUIRED INT64 sick; REQUIRED BYTE_ARRAY other (UTF8); }";
        let kind = Arc::new(parse_message_type(message).unwrap());
        let (mut bytes, options) = (Vec::new(), Arc::new(WriterProperties::new()));
        let mut writer = SerializedFileWriter::new(&mut bytes, kind, options).unwrap();
        let mut group = writer.next_row_group().unwrap();
        let whole = [[1i64 << 60, (1 << 60) + 1, 1 << 60], [1, 0, 0]];
        let text = [["green", "blue", "red"], ["SECRET"; 3]].map(|rows| rows.map(ByteArray::from));
        for place in 0..5 {
            let mut column = group.next_column().unwrap().unwrap();
            match place {
                0 | 3 => {
                    let rows = &whole[place / 3];
                    column.typed::<Int64Type>().write_batch(rows, None, None).unwrap()
                }
                2 => column
                    .typed::<DoubleType>()
                    .write_batch(&[50.0, 999.0, 0.0], Some(&[1, 1, 1]), None)
                    .unwrap(),
                _ => {
                    let rows = &text[place / 4];
                    column.typed::<ByteArrayType>().write_batch(rows, None, None).unwrap()
                }
            };
            column.close().unwrap();
        }
        group.close().unwrap();
        writer.close().unwrap();
        bytes
    }

    /// A temporary file.
    struct Place(std::path::PathBuf);

    impl Place {
        fn new(name: &str) -> Self {
            let name = format!("veilgrad-{name}-{}.parquet", std::process::id());
            Self(std::env::temp_dir().join(name))
        }

        fn read(&self, bytes: &[u8]) -> Result<Table, DataError> {
            std::fs::write(&self.0, bytes).unwrap();
            schema().read(&self.0)
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    #[test]
    fn columns_become_numbers_as_in_other_tables() {
        let table = Place::new("good").read(&file()).unwrap();
        assert!(table.inputs.values == [0.0, 0.0, 1.0, 1.0, 0.0, 0.0, -1.0, 1.0, 0.0]);
        assert!(table.labels == [1.0, 0.0, 0.0]);
        assert!(table.users == Some(vec![Some(0), Some(1), Some(0)]));
    }

    #[test]
    fn a_column_that_is_missing_or_of_another_type_is_named_before_any_row() {
        let place = Place::new("missing");
        std::fs::write(&place.0, file()).unwrap();
        let mut other = schema();
        other.label = "ill".to_owned();
        assert!(other.read(&place.0).err().unwrap().to_string().contains("no column \"ill\""));
        let message = "message t { REQUIRED INT64 who; REQUIRED INT64 sick; REQUIRED INT32 age (DATE); \
                       REQUIRED BYTE_ARRAY colour (UTF8); }";
        let kind = Arc::new(parse_message_type(message).unwrap());
        let mut bytes = Vec::new();
        let options = Arc::new(WriterProperties::new());
        SerializedFileWriter::new(&mut bytes, kind, options).unwrap().close().unwrap();
        let error = place.read(&bytes).err().unwrap().to_string();
        assert!(error.contains("column \"age\" is of a type that is not read"), "{error}");
    }

    #[test]
    fn a_bad_record_contributes_zero() {
        let place = Place::new("bad");
        std::fs::write(&place.0, file()).unwrap();
        let mut other = schema();
        // No label is one of the classes, and words are not numbers.
        other.label = "other".to_owned();
        other.columns[1].kind = Kind::Number { low: 0.0, high: 1.0, missing: None };
        let table = other.read(&place.0).unwrap();
        assert!(table.labels.iter().all(|label| label.is_nan()) && table.labels.len() == 3);
        assert!(table.inputs.rows().all(|row| row[1].is_nan()));
    }

    /// The file with these bytes inserted at the end of its footer.
    fn with_footer(more: &[u8]) -> Vec<u8> {
        let mut bytes = file();
        let size = bytes.len() - 8;
        let footer = u32::from_le_bytes(bytes[size..size + 4].try_into().unwrap());
        // The last byte of the footer is its end marker.
        bytes.splice(size - 1..size - 1, more.iter().copied());
        let size = size + more.len();
        bytes[size..size + 4].copy_from_slice(&(footer + more.len() as u32).to_le_bytes());
        bytes
    }

    /// Without the check, each of these keeps the crate busy for seconds. The last field of the footer is number 7.
    #[test]
    fn a_header_that_claims_more_elements_than_it_has_bytes_is_refused() {
        const COUNT: [u8; 5] = [0xff, 0xff, 0xff, 0xff, 0x07]; // 2^31 - 1
        let place = Place::new("elements");
        let refused = |more: &[&[u8]]| {
            let bytes = with_footer(&more.concat());
            std::fs::write(&place.0, &bytes).unwrap();
            let checked = Checked(File::open(&place.0).unwrap());
            let length = bytes.len() - 8;
            let size = u32::from_le_bytes(bytes[length..length + 4].try_into().unwrap()) as usize;
            checked.get_bytes((length - size) as u64, size).is_err() && place.read(&bytes).is_err()
        };
        // Unknown fields: a list of booleans, a set, a map, and a list in a list in a structure.
        assert!(refused(&[&[0xf9, 0xf1], &COUNT]));
        assert!(refused(&[&[0xfa, 0xf2], &COUNT]));
        assert!(refused(&[&[0xfb], &COUNT, &[0x11]]));
        assert!(refused(&[&[0xfc, 0x19, 0x19, 0xf1], &COUNT, &[0]]));
        // Field 8 is a structure. Declared as bytes, it would hide the list that the crate finds in it.
        assert!(refused(&[&[0x18, 8, 0x19, 0xf1], &COUNT, &[0]]));
        // Field 6 a second time: its text would be read as the length of a text.
        assert!(refused(&[&[0x09, 12, 0xf1], &COUNT]));
        // Fields that a newer writer may add are accepted.
        let unknown =
            [0xf5, 4, 0x19, 0x25, 2, 4, 0x1c, 0x18, 1, b'x', 0, 0x1b, 1, 0x58, 2, 1, b'y'];
        assert!(place.read(&with_footer(&unknown)).is_ok());
    }

    #[test]
    fn page_headers_are_checked_where_the_crate_reads_them() {
        let (place, whole) = (Place::new("pages"), file());
        // The first page follows the magic number and begins with its kind and its size.
        assert_eq!(whole[..6], *b"PAR1\x15\x04");
        for (index, byte) in [(4, 0x18), (6, 0x19), (6, 0x12)] {
            let mut bytes = whole.clone();
            bytes[index] = byte;
            std::fs::write(&place.0, &bytes).unwrap();
            let checked = Checked(File::open(&place.0).unwrap());
            let read = |start| checked.get_read(start).unwrap().read(&mut [0]);
            assert!(read(4).is_err() && place.read(&bytes).is_err(), "{index}");
            assert!(read(whole.len() as u64 - 8).is_ok());
        }
    }

    #[test]
    fn damaged_files_are_errors() {
        let (place, whole) = (Place::new("damaged"), file());
        for length in 0..whole.len() {
            assert!(place.read(&whole[..length]).is_err(), "{length}");
        }
        for index in 0..whole.len() {
            for byte in [0, 0x7f, 0xff, whole[index] ^ 1] {
                let mut damaged = whole.clone();
                damaged[index] = byte;
                // Must not panic. Numbers may have changed.
                let _ = place.read(&damaged);
            }
        }
    }
}
