//! Tables, by a declared schema: CSV with a header, and Parquet where the feature is on.

use std::borrow::Cow;
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

    /// Whether a column of this name is looked at.
    #[cfg(feature = "parquet")]
    pub(crate) fn uses(&self, name: &str, labelled: bool) -> bool {
        let label = labelled && (self.label == name || self.user.as_deref() == Some(name));
        label || self.columns.iter().any(|column| column.name == name)
    }

    /// Reads a table.
    ///
    /// # Errors
    /// When a declared column is missing or there twice, a row is longer or shorter than the header, a number
    /// is none, or a label is not one of the classes. Says where, never what was found there.
    pub fn read(&self, path: &Path) -> Result<Table, DataError> {
        self.read_columns(path, true)
    }

    /// Reads the columns that become numbers, and neither labels nor users.
    ///
    /// # Errors
    /// As for [`read`](Self::read).
    pub fn read_inputs(&self, path: &Path) -> Result<Array, DataError> {
        Ok(self.read_columns(path, false)?.inputs)
    }

    fn read_columns(&self, path: &Path, labelled: bool) -> Result<Table, DataError> {
        if path.extension().is_some_and(|end| end.eq_ignore_ascii_case("parquet")) {
            #[cfg(feature = "parquet")]
            return crate::columnar::read(self, path, labelled);
            #[cfg(not(feature = "parquet"))]
            return Err(DataError::format(
                path,
                "Parquet needs a build with the feature `parquet`",
            ));
        }
        let file = std::fs::File::open(path).map_err(|cause| DataError::file(path, cause))?;
        self.parse(path, file, labelled)
    }

    fn parse(
        &self,
        path: &Path,
        file: impl std::io::Read,
        labelled: bool,
    ) -> Result<Table, DataError> {
        let mut reader = csv::ReaderBuilder::new().trim(csv::Trim::All).from_reader(file);
        let header = reader.headers().map_err(|error| damaged(path, &error))?.clone();
        let header: Vec<&str> = header.iter().collect();
        let mut rows = Rows::new(self, path, &header, labelled)?;
        for record in reader.records() {
            let record = record.map_err(|error| damaged(path, &error))?;
            rows.push(|place| Value::Text(record.get(place).unwrap_or_default()))?;
        }
        Ok(rows.table)
    }
}

/// What a cell holds.
#[derive(Clone, Copy)]
pub(crate) enum Value<'a> {
    Text(&'a str),
    /// Apart from real numbers, because users whose numbers are long must not become one.
    #[cfg(feature = "parquet")]
    Whole(i128),
    #[cfg(feature = "parquet")]
    Real(f64),
}

/// A table that is read row by row, whatever it is read from.
pub(crate) struct Rows<'a> {
    schema: &'a Schema,
    path: &'a Path,
    columns: Vec<usize>,
    label: Option<usize>,
    user: Option<usize>,
    users: HashMap<String, u32>,
    row: u64,
    pub(crate) table: Table,
}

impl<'a> Rows<'a> {
    /// Finds the declared columns by name.
    pub(crate) fn new(
        schema: &'a Schema,
        path: &'a Path,
        header: &[&str],
        labelled: bool,
    ) -> Result<Self, DataError> {
        let place = |name: &str| {
            let mut places = (0..).zip(header).filter(|(_, cell)| **cell == name);
            match (places.next(), places.next()) {
                (Some((place, _)), None) => Ok(place),
                (None, _) => Err(DataError::format(path, format!("has no column {name:?}"))),
                _ => Err(DataError::format(path, format!("has two columns {name:?}"))),
            }
        };
        let columns = schema.columns.iter().map(|column| place(&column.name));
        let user = schema.user.as_deref().filter(|_| labelled).map(place).transpose()?;
        Ok(Self {
            schema,
            path,
            columns: columns.collect::<Result<_, DataError>>()?,
            label: if labelled { Some(place(&schema.label)?) } else { None },
            user,
            users: HashMap::new(),
            row: 0,
            table: Table {
                inputs: Array { values: Vec::new(), shape: vec![schema.width()] },
                labels: Vec::new(),
                users: user.map(|_| Vec::new()),
            },
        })
    }

    /// What is wrong with a cell of the next row.
    #[cfg(feature = "parquet")]
    pub(crate) fn wrong(&self, column: &str, rule: &'static str) -> DataError {
        wrong_cell(self.path, self.row + 1, column, rule)
    }

    /// Takes the next row.
    pub(crate) fn push<'c>(&mut self, cell: impl Fn(usize) -> Value<'c>) -> Result<(), DataError> {
        self.row += 1;
        let (path, row, schema) = (self.path, self.row, self.schema);
        for (column, place) in schema.columns.iter().zip(&self.columns) {
            let wrong = |rule| wrong_cell(path, row, &column.name, rule);
            push(&mut self.table.inputs.values, &column.kind, &cell(*place)).map_err(wrong)?;
        }
        if let Some(place) = self.label {
            let text = cell(place).text();
            let class = schema.classes.iter().position(|class| *class == text);
            let rule = "is not one of the declared classes";
            let class = class.ok_or_else(|| wrong_cell(path, row, &schema.label, rule))?;
            self.table.labels.push(class as f32);
        }
        if let (Some(place), Some(numbers)) = (self.user, &mut self.table.users) {
            let next = self.users.len() as u32;
            numbers.push(*self.users.entry(cell(place).text().into_owned()).or_insert(next));
        }
        Ok(())
    }
}

impl<'a> Value<'a> {
    fn text(&self) -> Cow<'a, str> {
        match self {
            Self::Text(text) => Cow::Borrowed(text),
            #[cfg(feature = "parquet")]
            Self::Whole(number) => Cow::Owned(number.to_string()),
            #[cfg(feature = "parquet")]
            Self::Real(number) => Cow::Owned(number.to_string()),
        }
    }

    fn number(&self) -> Result<f64, &'static str> {
        match self {
            Self::Text("") => Err("is empty"),
            Self::Text(text) => text.parse().map_err(|_| "is not a number"),
            #[cfg(feature = "parquet")]
            Self::Whole(number) => Ok(*number as f64),
            #[cfg(feature = "parquet")]
            Self::Real(number) => Ok(*number),
        }
    }
}

/// A cell as numbers.
fn push(values: &mut Vec<f32>, kind: &Kind, cell: &Value<'_>) -> Result<(), &'static str> {
    match kind {
        Kind::Number { low, high } => {
            let (middle, half) = (0.5 * (low + high), 0.5 * (high - low));
            let scaled = (cell.number()? - middle) / half;
            // What is no number stays none: the record will count as zero.
            values.push(if scaled.is_nan() { f32::NAN } else { scaled.clamp(-1.0, 1.0) as f32 });
        }
        Kind::Category { words } => {
            let text = cell.text();
            values.extend(words.iter().map(|word| f32::from(u8::from(*word == text))));
        }
    }
    Ok(())
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
        schema().parse(Path::new("table.csv"), text.as_bytes(), true)
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
            ("who,sick,colour,age,age\n".to_owned(), "two columns \"age\""),
            (format!("{head}ann,yes,red,1\nann,SECRET,red,1\n"), "row 2, column sick"),
            (format!("{head}ann,yes,red,SECRET\n"), "row 1, column age: is not a number"),
            (format!("{head}ann,yes,red,\n"), "row 1, column age: is empty"),
            (format!("{head}ann,yes,red,1\nann,SECRET\n"), "line 3: has more or fewer cells"),
        ] {
            let error = parse(&text).err().unwrap().to_string();
            assert!(error.contains(what) && !error.contains("SECRET"), "{error}");
        }
        let bytes = b"who,sick,colour,age\n\xff,yes,red,1\n".as_slice();
        let error = schema().parse(Path::new("t"), bytes, true);
        assert!(error.err().unwrap().to_string().contains("UTF-8"));
        assert!(parse(&format!("{head}ann,yes,red,nan\n")).unwrap().inputs.values[0].is_nan());
    }

    #[test]
    fn tables_cut_or_altered_at_any_byte_do_not_panic() {
        let whole = b"who,sick,colour,age\nann,yes,\"re\"\"d\",1\nbob,no,green,2\n";
        for place in 0..whole.len() {
            let _ = schema().parse(Path::new("t"), &whole[..place], true);
            for byte in [0, b',', b'"', b'\n', 0xff] {
                let mut altered = whole.to_vec();
                altered[place] = byte;
                let _ = schema().parse(Path::new("t"), altered.as_slice(), true);
            }
        }
    }
}
