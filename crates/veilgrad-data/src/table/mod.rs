//! Tables with a declared schema: CSV with a header, and Parquet with the feature `parquet`.
//!
//! In CSV, every line after the header is a record, even inside quotes. A record that is not as declared contributes
//! zero, or what its column declares for missing values; it is never an error. A malformed header is an error: a declared
//! column is missing or occurs twice, or a quote is left open.

mod csv;
#[cfg(feature = "parquet")]
mod parquet;
mod rows;
mod schema;
#[cfg(test)]
mod tests;

use std::io::BufReader;
use std::path::Path;

pub use schema::{Column, Defect, Kind, Schema, Table};

use crate::{Array, DataError};

impl Schema {
    /// Reads a table.
    ///
    /// # Errors
    /// When the file cannot be read or its header is malformed (a declared column is missing or occurs twice); never
    /// because of a record.
    pub fn read(&self, path: &Path) -> Result<Table, DataError> {
        self.read_columns(path, true, &mut |_| ())
    }

    /// Reads the input columns alone, without labels and users.
    ///
    /// # Errors
    /// As for [`read`](Self::read).
    pub fn read_inputs(&self, path: &Path) -> Result<Array, DataError> {
        Ok(self.read_columns(path, false, &mut |_| ())?.inputs)
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
        let table = schema.read_columns(path, true, &mut |_| ())?;
        let name = |user: Option<u32>| table.user_names.get(user? as usize).cloned();
        let texts = table.users.into_iter().flatten().map(name).collect();
        Ok((table.inputs, texts))
    }

    /// Calls `found` with every cell or row that is not as declared. **Private**: only for the owner of the data.
    ///
    /// # Errors
    /// As for [`read`](Self::read).
    pub fn defects(&self, path: &Path, mut found: impl FnMut(Defect)) -> Result<(), DataError> {
        self.read_columns(path, true, &mut found).map(|_| ())
    }

    fn read_columns(
        &self,
        path: &Path,
        labelled: bool,
        found: &mut dyn FnMut(Defect),
    ) -> Result<Table, DataError> {
        if path.extension().is_some_and(|end| end.eq_ignore_ascii_case("parquet")) {
            #[cfg(feature = "parquet")]
            return parquet::read(self, path, labelled, found);
            #[cfg(not(feature = "parquet"))]
            return Err(DataError::format(
                path,
                "Parquet needs a build with the feature `parquet`",
            ));
        }
        let file = std::fs::File::open(path).map_err(|cause| DataError::file(path, cause))?;
        csv::read(self, path, BufReader::new(file), labelled, found)
    }
}
