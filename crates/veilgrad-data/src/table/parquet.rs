//! Tables in Parquet, row by row, of the declared columns alone.

use std::cell::Cell;
use std::fs::File;
use std::panic::{self, AssertUnwindSafe};
use std::path::Path;
use std::sync::{Arc, Once};

use ::parquet::file::reader::{FileReader, SerializedFileReader};
use ::parquet::record::Field;
use ::parquet::schema::types::Type;

use super::rows::{Rows, Value};
use super::schema::{Defect, Schema, Table};
use crate::DataError;

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// The library panics on some damaged files. Such a file is an error like any other, and nothing is printed,
/// because a panic's message may quote what was read.
pub(super) fn read(
    schema: &Schema,
    path: &Path,
    labelled: bool,
    found: &mut dyn FnMut(Defect),
) -> Result<Table, DataError> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let others = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !QUIET.get() {
                others(info);
            }
        }));
    });
    QUIET.set(true);
    let read = panic::catch_unwind(AssertUnwindSafe(|| rows(schema, path, labelled, found)));
    QUIET.set(false);
    read.unwrap_or_else(|_| Err(damaged(path)))
}

/// The library's messages may quote what it read; ours does not.
fn damaged(path: &Path) -> DataError {
    DataError::format(path, "is not a Parquet file, or is damaged")
}

fn rows(
    schema: &Schema,
    path: &Path,
    labelled: bool,
    found: &mut dyn FnMut(Defect),
) -> Result<Table, DataError> {
    let file = File::open(path).map_err(|cause| DataError::file(path, cause))?;
    let wrong = || damaged(path);
    let file = SerializedFileReader::new(file).map_err(|_| wrong())?;
    let all = file.metadata().file_metadata().schema_descr().root_schema();
    let used = |field: &&Arc<Type>| schema.uses(field.name(), labelled);
    let fields: Vec<Arc<Type>> = all.get_fields().iter().filter(used).cloned().collect();
    if let Some(other) = fields.iter().find(|field| !is_read(field)) {
        let name = other.name();
        let why = format!("column {name:?} is of a type that is not read: use numbers or text");
        return Err(DataError::format(path, why));
    }
    let header: Vec<String> = fields.iter().map(|field| field.name().to_owned()).collect();
    let mut rows = Rows::new(schema, path, &header, labelled, found)?;
    let projection = Type::group_type_builder(all.name()).with_fields(fields).build();
    let projection = projection.map_err(|_| wrong())?;
    for row in file.get_row_iter(Some(projection)).map_err(|_| wrong())? {
        let row = row.map_err(|_| wrong())?;
        let cells: Vec<Value<'_>> = row.get_column_iter().map(|(_, field)| cell(field)).collect();
        rows.push(|place| cells.get(place).copied().unwrap_or(Value::Unreadable));
    }
    Ok(rows.table)
}

/// Whether a column's type is one that is read: known from the file's schema, before any row.
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

/// A value as a table's.
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
    use crate::table::{Column, Kind};

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
            classes: vec!["0".to_owned(), "1".to_owned()],
            user: Some("who".to_owned()),
        }
    }

    /// A file with a column that nobody declared, and users whose numbers differ beyond f64.
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

    #[test]
    fn damaged_files_are_errors() {
        let (place, whole) = (Place::new("damaged"), file());
        for length in 0..whole.len() {
            assert!(place.read(&whole[..length]).is_err(), "{length}");
        }
        for at in 0..whole.len() {
            for byte in [0, 0x7f, 0xff, whole[at] ^ 1] {
                let mut damaged = whole.clone();
                damaged[at] = byte;
                // Numbers may have changed; nothing may panic.
                let _ = place.read(&damaged);
            }
        }
    }
}
