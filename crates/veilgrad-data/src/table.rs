//! Tables, by a declared schema: CSV with a header, and Parquet where the feature is on.
//!
//! In CSV every line after the header is a record, with or without quotes. A record that is not as declared
//! contributes zero, or what its column declares for missing values; it is never an error. A file that is malformed as a
//! whole is one: a declared column is missing from the header or there twice.

use std::borrow::Cow;
use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::path::Path;

use crate::line::{Cells, without_end};
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
        /// The number that stands for a cell that holds none. Without it, the example contributes zero.
        missing: Option<f64>,
    },
    /// One of these words: one number each, 1 for the word that it is.
    Category {
        /// The words.
        words: Vec<String>,
        /// The place of the word that stands for an empty cell and for any other word. Without it, such a
        /// cell is none of the words: all its numbers are 0.
        missing: Option<usize>,
    },
}

/// The examples of a table. Not `Debug`: what is in it is private.
pub struct Table {
    /// One row per example; NaN where a number is missing and nothing stands for it.
    pub inputs: Array,
    /// The number of the class of each; NaN where the label is none of the classes.
    pub labels: Vec<f32>,
    /// The number of the user of each, if there are users; none where the row does not say whose it is.
    pub users: Option<Vec<Option<u32>>>,
}

/// A row that is not as declared: where, and which rule it breaks; never what is there. **Private**, for the owner of the
/// data alone: whether there is one depends on a record.
#[derive(Clone, PartialEq, Eq)]
pub struct Defect {
    /// Counted from 1, the header not included.
    pub row: u64,
    /// The column; none where it is the row as a whole.
    pub column: Option<String>,
    /// The rule that it breaks, and what follows.
    pub rule: String,
}

impl Schema {
    /// How many numbers an example becomes.
    #[must_use]
    pub fn width(&self) -> usize {
        let width = |column: &Column| match &column.kind {
            Kind::Number { .. } => 1,
            Kind::Category { words, .. } => words.len(),
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
    /// When the file cannot be read, or a declared column is missing or there twice; never because of a record.
    pub fn read(&self, path: &Path) -> Result<Table, DataError> {
        self.read_columns(path, true, &mut |_| ())
    }

    /// Reads the columns that become numbers, and neither labels nor users.
    ///
    /// # Errors
    /// As for [`read`](Self::read).
    pub fn read_inputs(&self, path: &Path) -> Result<Array, DataError> {
        Ok(self.read_columns(path, false, &mut |_| ())?.inputs)
    }

    /// Finds the rows that are not as declared. **Private**, for the owner of the data alone.
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
            return crate::columnar::read(self, path, labelled, found);
            #[cfg(not(feature = "parquet"))]
            return Err(DataError::format(
                path,
                "Parquet needs a build with the feature `parquet`",
            ));
        }
        let file = std::fs::File::open(path).map_err(|cause| DataError::file(path, cause))?;
        self.parse(path, BufReader::new(file), labelled, found)
    }

    fn parse(
        &self,
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
        let header: Vec<&str> = header.iter().map(String::as_str).collect();
        let mut rows = Rows::new(self, path, &header, labelled, found)?;
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
}

/// What a cell holds.
#[derive(Clone, Copy)]
pub(crate) enum Value<'a> {
    Text(&'a str),
    /// Not UTF-8 text, or of a type that is not read.
    Unreadable,
    /// Apart from real numbers, because users whose numbers are long must not become one.
    #[cfg(feature = "parquet")]
    Whole(i128),
    #[cfg(feature = "parquet")]
    Real(f64),
}

/// A table that is read row by row, whatever it is read from.
pub(crate) struct Rows<'a> {
    schema: &'a Schema,
    columns: Vec<usize>,
    label: Option<usize>,
    user: Option<usize>,
    users: HashMap<String, u32>,
    row: u64,
    found: &'a mut dyn FnMut(Defect),
    pub(crate) table: Table,
}

impl<'a> Rows<'a> {
    /// Finds the declared columns by name.
    pub(crate) fn new(
        schema: &'a Schema,
        path: &Path,
        header: &[&str],
        labelled: bool,
        found: &'a mut dyn FnMut(Defect),
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
            columns: columns.collect::<Result<_, DataError>>()?,
            label: if labelled { Some(place(&schema.label)?) } else { None },
            user,
            users: HashMap::new(),
            row: 0,
            found,
            table: Table {
                inputs: Array { values: Vec::new(), shape: vec![schema.width()] },
                labels: Vec::new(),
                users: user.map(|_| Vec::new()),
            },
        })
    }

    /// Takes the next row.
    pub(crate) fn push<'c>(&mut self, cell: impl Fn(usize) -> Value<'c>) {
        self.row += 1;
        let (row, schema, values) = (self.row, self.schema, &mut self.table.inputs.values);
        let mut defect = |column: &str, rule: String| {
            (self.found)(Defect { row, column: Some(column.to_owned()), rule });
        };
        for (column, place) in schema.columns.iter().zip(&self.columns) {
            if let Some(rule) = column.kind.push(values, &cell(*place)) {
                defect(&column.name, rule);
            }
        }
        if let Some(place) = self.label {
            let text = cell(place).text();
            let class =
                schema.classes.iter().position(|class| Some(class.as_str()) == text.as_deref());
            if class.is_none() {
                let rule = "is none of the declared classes: the example contributes zero";
                defect(&schema.label, rule.to_owned());
            }
            self.table.labels.push(class.map_or(f32::NAN, |class| class as f32));
        }
        if let (Some(place), Some(numbers)) = (self.user, &mut self.table.users) {
            let name = cell(place).text().filter(|name| !name.is_empty());
            if name.is_none() {
                let rule = "names no user: the example contributes zero";
                defect(schema.user.as_deref().unwrap_or_default(), rule.to_owned());
            }
            let next = self.users.len() as u32;
            numbers.push(name.map(|name| *self.users.entry(name.into_owned()).or_insert(next)));
        }
    }

    /// Takes the next row, of which nothing can be read: an example that contributes zero, and belongs to no user,
    /// since its cells may have moved.
    pub(crate) fn push_broken(&mut self, rule: &str) {
        self.row += 1;
        let rule = format!("{rule}: the example contributes zero");
        (self.found)(Defect { row: self.row, column: None, rule });
        let table = &mut self.table;
        table.inputs.values.extend(std::iter::repeat_n(f32::NAN, self.schema.width()));
        if self.label.is_some() {
            table.labels.push(f32::NAN);
        }
        if let Some(users) = &mut table.users {
            users.push(None);
        }
    }
}

impl<'a> Value<'a> {
    fn text(&self) -> Option<Cow<'a, str>> {
        match self {
            Self::Text(text) => Some(Cow::Borrowed(text)),
            Self::Unreadable => None,
            #[cfg(feature = "parquet")]
            Self::Whole(number) => Some(Cow::Owned(number.to_string())),
            #[cfg(feature = "parquet")]
            Self::Real(number) => Some(Cow::Owned(number.to_string())),
        }
    }

    fn number(&self) -> Result<f64, &'static str> {
        let number = match self {
            Self::Text("") => return Err("is empty"),
            Self::Text(text) => text.parse().unwrap_or(f64::NAN),
            Self::Unreadable => f64::NAN,
            #[cfg(feature = "parquet")]
            Self::Whole(number) => *number as f64,
            #[cfg(feature = "parquet")]
            Self::Real(number) => *number,
        };
        if number.is_nan() { Err("is not a number") } else { Ok(number) }
    }
}

impl Kind {
    /// A cell as numbers. The rule that it breaks, if it is not as declared.
    fn push(&self, values: &mut Vec<f32>, cell: &Value<'_>) -> Option<String> {
        match self {
            Self::Number { low, high, missing } => {
                let (middle, half) = (0.5 * low + 0.5 * high, 0.5 * high - 0.5 * low);
                let number = cell.number();
                let value = number.or(missing.ok_or(())).unwrap_or(f64::NAN);
                let scaled = (value - middle) / half;
                // NaN stays NaN: the example will contribute zero.
                values.push(if scaled.is_nan() {
                    f32::NAN
                } else {
                    scaled.clamp(-1.0, 1.0) as f32
                });
                let rule = number.err()?;
                Some(match missing {
                    Some(number) => format!("{rule}: counts as {number}"),
                    None => format!("{rule}: the example contributes zero"),
                })
            }
            Self::Category { words, missing } => {
                let text = cell.text();
                let place = words.iter().position(|word| Some(word.as_str()) == text.as_deref());
                let chosen = place.or(*missing);
                values
                    .extend((0..words.len()).map(|word| f32::from(u8::from(chosen == Some(word)))));
                let rule = "is none of the declared categories";
                match (place, missing.and_then(|missing| words.get(missing))) {
                    (Some(_), _) => None,
                    (None, Some(word)) => Some(format!("{rule}: counts as {word:?}")),
                    (None, None) => Some(format!("{rule}: counts as none of them")),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
