//! Tables with a declared schema: CSV, JSON Lines, and Parquet with the feature `parquet`.
//!
//! In CSV, every line after the header is a record, even inside quotes; in JSON Lines, every line is. Both may be gzipped. A
//! record that is not as declared contributes zero, or what its column declares for missing values; it is never an error. A
//! malformed header is an error: a declared column is missing or occurs twice, or a quote is left open.

mod csv;
mod json;
#[cfg(feature = "parquet")]
mod parquet;
mod rows;
mod schema;
#[cfg(test)]
mod tests;

use std::path::Path;

pub use schema::{Column, Defect, Kind, Schema, Table, Target, TextFormat};

use crate::file::open;
use crate::{Array, DataError, RowRanges};

/// The format of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    /// Cells are separated by this character, unless the schema declares another.
    Text(u8),
    JsonLines,
    Parquet,
}

impl Format {
    /// The format that the name of a file says, without `.gz`.
    fn of(path: &Path) -> Option<Self> {
        let name = path.file_name()?.to_str()?.to_ascii_lowercase();
        let packed = name.strip_suffix(".gz");
        let (_, end) = packed.unwrap_or(&name).rsplit_once('.')?;
        match end {
            "csv" => Some(Self::Text(b',')),
            "tsv" => Some(Self::Text(b'\t')),
            "jsonl" | "ndjson" => Some(Self::JsonLines),
            // Its pages are compressed instead.
            "parquet" if packed.is_none() => Some(Self::Parquet),
            _ => None,
        }
    }
}

/// Whether a file is a table, by its name: `.csv`, `.tsv`, `.jsonl` or `.ndjson`, each with `.gz` or not, or `.parquet`.
///
/// # Example
/// ```
/// use std::path::Path;
/// use veilgrad_data::table::is_table;
///
/// assert!(is_table(Path::new("visits.csv.gz")) && is_table(Path::new("visits.JSONL")));
/// assert!(!is_table(Path::new("images.npy")) && !is_table(Path::new("train-images.gz")));
/// ```
#[must_use]
pub fn is_table(path: &Path) -> bool {
    Format::of(path).is_some()
}

/// Whether a file is a Parquet table, by its name.
#[must_use]
pub fn is_parquet(path: &Path) -> bool {
    Format::of(path) == Some(Format::Parquet)
}

/// Whether a file is a table of lines of cells, by its name: only these have a delimiter and a header.
#[must_use]
pub fn is_text(path: &Path) -> bool {
    matches!(Format::of(path), Some(Format::Text(_)))
}

/// The names of the columns of a **public** table: the header of CSV, or the keys of JSON Lines, sorted in each object.
///
/// # Errors
/// When the file cannot be read, its header is malformed, or it is a Parquet file.
///
/// # Example
/// ```
/// use veilgrad_data::table::{TextFormat, column_names};
///
/// let path = std::env::temp_dir().join(format!("veilgrad-names-{}.csv", std::process::id()));
/// std::fs::write(&path, "age,ward\n40,surgery\n")?;
/// assert_eq!(column_names(&path, &TextFormat::default())?, ["age", "ward"]);
/// # std::fs::remove_file(path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn column_names(path: &Path, text: &TextFormat) -> Result<Vec<String>, DataError> {
    match (Format::of(path).unwrap_or(Format::Text(b',')), &text.header) {
        (Format::Text(_), Some(header)) => Ok(header.clone()),
        (Format::Text(usual), None) => {
            csv::header(path, open(path)?, text.delimiter.unwrap_or(usual))
        }
        (Format::JsonLines, _) => json::keys(path, open(path)?),
        (Format::Parquet, _) => Err(DataError::format(
            path,
            "is a Parquet file: columns are listed of CSV and JSON Lines",
        )),
    }
}

impl Schema {
    /// Reads a table.
    ///
    /// # Errors
    /// When the file cannot be read or its header is malformed (a declared column is missing or occurs twice); never
    /// because of a record.
    pub fn read(&self, path: &Path) -> Result<Table, DataError> {
        self.read_columns(path, true, None, &mut |_| ())
    }

    /// Reads the input columns alone, without labels and users.
    ///
    /// # Errors
    /// As for [`read`](Self::read).
    pub fn read_inputs(&self, path: &Path) -> Result<Array, DataError> {
        Ok(self.read_columns(path, false, None, &mut |_| ())?.inputs)
    }

    /// As [`read_inputs`](Self::read_inputs), of some rows alone: those beyond the end of the table are left out. Other rows
    /// are neither converted nor kept, and rows after the last are not read.
    ///
    /// # Errors
    /// As for [`read`](Self::read).
    pub fn read_rows(&self, path: &Path, rows: &RowRanges) -> Result<Array, DataError> {
        Ok(self.read_columns(path, false, Some(rows), &mut |_| ())?.inputs)
    }

    /// Reads the input columns, and the texts of one more column: `None` where a cell is empty or is not text.
    ///
    /// # Errors
    /// As for [`read`](Self::read).
    pub fn read_inputs_with(
        &self,
        path: &Path,
        column: &str,
    ) -> Result<(Array, Vec<Option<String>>), DataError> {
        // Read like the column of users, which is text, too.
        let user = Some(column.to_owned());
        let schema = Self { user, label: String::new(), ..self.clone() };
        let table = schema.read_columns(path, true, None, &mut |_| ())?;
        let name = |user: Option<u32>| table.user_names.get(user? as usize).cloned();
        let texts = table.users.into_iter().flatten().map(name).collect();
        Ok((table.inputs, texts))
    }

    /// Calls `found` with every cell or row that is not as declared. **Private**: only for the owner of the data.
    ///
    /// # Errors
    /// As for [`read`](Self::read).
    pub fn defects(&self, path: &Path, mut found: impl FnMut(Defect)) -> Result<(), DataError> {
        self.read_columns(path, true, None, &mut found).map(|_| ())
    }

    fn read_columns(
        &self,
        path: &Path,
        labelled: bool,
        wanted: Option<&RowRanges>,
        found: &mut dyn FnMut(Defect),
    ) -> Result<Table, DataError> {
        let which = (labelled, wanted);
        match Format::of(path).unwrap_or(Format::Text(b',')) {
            Format::Text(usual) => {
                let delimiter = self.text.delimiter.unwrap_or(usual);
                csv::read(self, path, open(path)?, delimiter, which, found)
            }
            Format::JsonLines => json::read(self, path, open(path)?, which, found),
            #[cfg(feature = "parquet")]
            Format::Parquet => parquet::read(self, path, which, found),
            #[cfg(not(feature = "parquet"))]
            Format::Parquet => {
                Err(DataError::format(path, "Parquet needs a build with the feature `parquet`"))
            }
        }
    }
}
