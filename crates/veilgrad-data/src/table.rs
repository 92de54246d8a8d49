//! Tables in CSV, by a declared schema.

use std::collections::HashMap;
use std::path::Path;

use crate::{Array, DataError};

/// What a table's columns are. Declared, because private data must not decide it.
#[derive(Debug, Clone, PartialEq)]
pub struct Schema {
    /// The columns that become numbers, in this order; others are not looked at.
    pub columns: Vec<Column>,
    /// The column with the label.
    pub label: String,
    /// The names of all classes.
    pub classes: Vec<String>,
    /// The column that names the user of an example, if records are users.
    pub user: Option<String>,
}

/// A column that is used.
#[derive(Debug, Clone, PartialEq)]
pub struct Column {
    /// Its name in the header.
    pub name: String,
    /// What is in it.
    pub kind: Kind,
}

/// What a column holds.
#[derive(Debug, Clone, PartialEq)]
pub enum Kind {
    /// A number with public bounds: brought to [-1, 1], cut off beyond.
    Number {
        /// What becomes -1.
        low: f64,
        /// What becomes 1.
        high: f64,
    },
    /// One of these words: one number each, 1 for the word that it is. Other words are none of them.
    Category {
        /// The words.
        words: Vec<String>,
    },
}

/// The examples of a table. Not `Debug`: what is in it is private.
pub struct Table {
    /// One row per example.
    pub inputs: Array,
    /// The number of the class of each.
    pub labels: Vec<f32>,
    /// The number of the user of each, if there are users.
    pub users: Option<Vec<u32>>,
}

impl Schema {
    /// How many numbers an example becomes.
    #[must_use]
    pub fn width(&self) -> usize {
        let width = |column: &Column| match &column.kind {
            Kind::Number { .. } => 1,
            Kind::Category { words } => words.len(),
        };
        self.columns.iter().map(width).sum()
    }

    /// Reads a table with a header.
    ///
    /// # Errors
    /// When a declared column is missing, a row is longer or shorter than the header, a number is none, or
    /// a label is not one of the classes. Says where, never what was found there.
    pub fn read(&self, path: &Path) -> Result<Table, DataError> {
        let file = std::fs::File::open(path).map_err(|cause| DataError::file(path, cause))?;
        self.parse(path, file)
    }

    /// Reads the columns that become numbers, and neither labels nor users.
    ///
    /// # Errors
    /// As for [`read`](Self::read).
    pub fn read_inputs(&self, path: &Path) -> Result<Array, DataError> {
        let file = std::fs::File::open(path).map_err(|cause| DataError::file(path, cause))?;
        Ok(self.parse_columns(path, file, false)?.inputs)
    }

    fn parse(&self, path: &Path, file: impl std::io::Read) -> Result<Table, DataError> {
        self.parse_columns(path, file, true)
    }

    fn parse_columns(
        &self,
        path: &Path,
        file: impl std::io::Read,
        labelled: bool,
    ) -> Result<Table, DataError> {
        let mut reader = csv::ReaderBuilder::new().trim(csv::Trim::All).from_reader(file);
        let header = reader.headers().map_err(|error| damaged(path, &error))?.clone();
        let place = |name: &str| {
            let found = header.iter().position(|cell| cell == name);
            found.ok_or_else(|| DataError::format(path, format!("has no column {name:?}")))
        };
        let label = if labelled { Some(place(&self.label)?) } else { None };
        let user = self.user.as_deref().filter(|_| labelled).map(place).transpose()?;
        let columns = self.columns.iter().map(|column| Ok((column, place(&column.name)?)));
        let columns: Vec<(&Column, usize)> = columns.collect::<Result<_, DataError>>()?;
        let mut table = Table {
            inputs: Array { values: Vec::new(), shape: vec![self.width()] },
            labels: Vec::new(),
            users: user.map(|_| Vec::new()),
        };
        let mut users = HashMap::new();
        for (row, record) in (1..).zip(reader.records()) {
            let record = record.map_err(|error| damaged(path, &error))?;
            let cell = |place: usize| record.get(place).unwrap_or_default();
            for (column, place) in &columns {
                let wrong = |rule| wrong_cell(path, row, &column.name, rule);
                push(&mut table.inputs.values, &column.kind, cell(*place)).map_err(wrong)?;
            }
            if let Some(label) = label {
                let class = self.classes.iter().position(|class| class == cell(label));
                let class = class.ok_or_else(|| {
                    wrong_cell(path, row, &self.label, "is not one of the declared classes")
                })?;
                table.labels.push(class as f32);
            }
            if let (Some(place), Some(numbers)) = (user, &mut table.users) {
                let next = users.len() as u32;
                numbers.push(*users.entry(cell(place).to_owned()).or_insert(next));
            }
        }
        Ok(table)
    }
}

/// A cell as numbers.
fn push(values: &mut Vec<f32>, kind: &Kind, cell: &str) -> Result<(), &'static str> {
    match kind {
        Kind::Number { .. } if cell.is_empty() => Err("is empty"),
        Kind::Number { low, high } => {
            let number: f64 = cell.parse().map_err(|_| "is not a number")?;
            let (middle, half) = (0.5 * (low + high), 0.5 * (high - low));
            let scaled = (number - middle) / half;
            // What is no number stays none: the record will count as zero.
            values.push(if scaled.is_nan() { f32::NAN } else { scaled.clamp(-1.0, 1.0) as f32 });
            Ok(())
        }
        Kind::Category { words } => {
            values.extend(words.iter().map(|word| f32::from(u8::from(word == cell))));
            Ok(())
        }
    }
}

fn wrong_cell(path: &Path, row: u64, column: &str, rule: &'static str) -> DataError {
    DataError::Cell { path: path.display().to_string(), row, column: column.to_owned(), rule }
}

/// The csv crate's messages may quote cells; these do not.
fn damaged(path: &Path, error: &csv::Error) -> DataError {
    let line = error.position().map_or(String::new(), |place| format!("line {}: ", place.line()));
    let why = match error.kind() {
        csv::ErrorKind::Io(cause) => {
            return DataError::file(path, std::io::Error::from(cause.kind()));
        }
        csv::ErrorKind::UnequalLengths { .. } => "has more or fewer cells than the header",
        csv::ErrorKind::Utf8 { .. } => "is not UTF-8 text",
        _ => "is not CSV",
    };
    DataError::format(path, format!("{line}{why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schema() -> Schema {
        let number = |name: &str, low, high| Column {
            name: name.to_owned(),
            kind: Kind::Number { low, high },
        };
        let words = ["red", "green"].map(str::to_owned).to_vec();
        Schema {
            columns: vec![
                number("age", 0.0, 100.0),
                Column { name: "colour".to_owned(), kind: Kind::Category { words } },
            ],
            label: "sick".to_owned(),
            classes: vec!["no".to_owned(), "yes".to_owned()],
            user: Some("who".to_owned()),
        }
    }

    fn parse(text: &str) -> Result<Table, DataError> {
        schema().parse(Path::new("table.csv"), text.as_bytes())
    }

    #[test]
    fn cells_become_numbers_as_declared() {
        let text =
            "who,sick,colour,other,age\nann,yes,green,x,50\nbob,no,blue,y,999\nann,no,red,,0\n";
        let table = parse(text).unwrap();
        assert!(table.inputs.values == [0.0, 0.0, 1.0, 1.0, 0.0, 0.0, -1.0, 1.0, 0.0]);
        assert!(table.labels == [1.0, 0.0, 0.0]);
        assert!(table.users == Some(vec![0, 1, 0]));
    }

    #[test]
    fn errors_name_places_and_rules_but_not_contents() {
        let head = "who,sick,colour,age\n";
        for (text, what) in [
            ("who,colour,age\n".to_owned(), "no column \"sick\""),
            (format!("{head}ann,yes,red,1\nann,SECRET,red,1\n"), "row 2, column sick"),
            (format!("{head}ann,yes,red,SECRET\n"), "row 1, column age: is not a number"),
            (format!("{head}ann,yes,red,\n"), "row 1, column age: is empty"),
            (format!("{head}ann,yes,red,1\nann,SECRET\n"), "line 3: has more or fewer cells"),
        ] {
            let error = parse(&text).err().unwrap().to_string();
            assert!(error.contains(what) && !error.contains("SECRET"), "{error}");
        }
        let error =
            schema().parse(Path::new("t"), b"who,sick,colour,age\n\xff,yes,red,1\n".as_slice());
        assert!(error.err().unwrap().to_string().contains("UTF-8"));
        assert!(parse(&format!("{head}ann,yes,red,nan\n")).unwrap().inputs.values[0].is_nan());
    }
}
