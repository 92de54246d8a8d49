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
mod tests {
    use super::*;

    fn schema() -> Schema {
        let number = |name: &str, low, high| Column {
            name: name.to_owned(),
            kind: Kind::Number { low, high, missing: None },
        };
        let words = ["red", "green"].map(str::to_owned).to_vec();
        Schema {
            columns: vec![
                number("age", 0.0, 100.0),
                Column { name: "colour".to_owned(), kind: Kind::Category { words, missing: None } },
            ],
            label: "sick".to_owned(),
            classes: vec!["no".to_owned(), "yes".to_owned()],
            user: Some("who".to_owned()),
        }
    }

    fn parse(text: impl AsRef<[u8]>) -> Result<Table, DataError> {
        schema().parse(Path::new("table.csv"), text.as_ref(), true, &mut |_| ())
    }

    const HEAD: &str = "who,sick,colour,age\n";

    #[test]
    fn cells_become_numbers_as_declared() {
        let text = "\u{feff}who,sick,colour,other,age\r\nann,yes,green,x,50\r\n\
                    bob,no,blue,y,999\nann,\"no\", red ,,0";
        let table = parse(text).unwrap();
        assert!(table.inputs.values == [0.0, 0.0, 1.0, 1.0, 0.0, 0.0, -1.0, 1.0, 0.0]);
        assert!(table.labels == [1.0, 0.0, 0.0]);
        assert!(table.users == Some(vec![Some(0), Some(1), Some(0)]));
    }

    #[test]
    fn a_file_that_is_malformed_as_a_whole_is_an_error() {
        for (text, what) in [
            ("", "no column \"age\""),
            ("who,colour,age\n", "no column \"sick\""),
            ("who,sick,colour,age,age\n", "two columns \"age\""),
            ("who,sick,\"colour,age\nann,yes,red,1\n", "a quote is left open"),
        ] {
            let error = parse(text).err().unwrap().to_string();
            assert!(error.contains(what), "{error}");
        }
    }

    /// Whether an example will contribute zero.
    fn is_zero(table: &Table, row: usize) -> bool {
        let nameless = table.users.as_ref().is_some_and(|users| users[row].is_none());
        let inputs = table.inputs.rows().nth(row).unwrap();
        nameless || table.labels[row].is_nan() || inputs.iter().any(|value| value.is_nan())
    }

    #[test]
    fn a_bad_record_contributes_zero_and_leaves_the_others_as_they_are() {
        let good = parse(format!("{HEAD}ann,yes,red,1\nann,yes,green,3\n")).unwrap();
        for bad in [
            "ann,SECRET,red,1",
            "ann,,red,1",
            "ann,yes,red,SECRET",
            "ann,yes,red,",
            "ann,yes,red,nan",
            "ann,yes,red",
            "ann,yes,red,1,1",
            "",
            "\"ann,yes,red,1",
            "ann,yes,\"red,1",
            "ann,yes,red,1\"\",\"",
            ",yes,red,1",
            "ann,yes,red,1\r2",
        ] {
            let table = parse(format!("{HEAD}ann,yes,red,1\n{bad}\nann,yes,green,3\n")).unwrap();
            assert_eq!(table.labels.len(), 3, "{bad}");
            assert!(is_zero(&table, 1), "{bad}");
            for (row, of_good) in [(0, 0), (2, 1)] {
                let inputs = |table: &Table, row| table.inputs.rows().nth(row).unwrap().to_vec();
                assert!(inputs(&table, row) == inputs(&good, of_good), "{bad}");
                assert!(table.labels[row] == good.labels[of_good], "{bad}");
                assert!(table.users.as_ref().unwrap()[row] == Some(0), "{bad}");
            }
        }
        for bytes in [&b"\xff,yes,red,1\n"[..], b"ann,\xff,red,1\n", b"ann,yes,red,\xff\n"] {
            assert!(is_zero(&parse([HEAD.as_bytes(), bytes].concat()).unwrap(), 0));
        }
    }

    #[test]
    fn rows_without_a_name_are_not_one_user() {
        let table = parse(format!("{HEAD},yes,red,1\n,no,red,1\nbob,no,red,1\n")).unwrap();
        assert!(table.users == Some(vec![None, None, Some(0)]));
    }

    #[test]
    fn what_is_declared_for_missing_values_stands_for_them() {
        let mut schema = schema();
        let words = ["red", "green"].map(str::to_owned).to_vec();
        for (missing, expected) in [(0.0, -1.0), (50.0, 0.0), (999.0, 1.0)] {
            schema.columns[0].kind = Kind::Number { low: 0.0, high: 100.0, missing: Some(missing) };
            schema.columns[1].kind = Kind::Category { words: words.clone(), missing: Some(1) };
            let text = format!("{HEAD}ann,yes,blue,\nann,yes,,x\nann,yes,red,nan\n");
            let mut rules = Vec::new();
            let mut found = |defect: Defect| rules.push((defect.row, defect.rule));
            let table = schema.parse(Path::new("t"), text.as_bytes(), true, &mut found).unwrap();
            let e = expected;
            assert!(table.inputs.values == [e, 0.0, 1.0, e, 0.0, 1.0, e, 1.0, 0.0]);
            assert!((0..3).all(|row| !is_zero(&table, row)));
            assert_eq!(rules[0], (1, format!("is empty: counts as {missing}")));
            let rule = "is none of the declared categories: counts as \"green\"";
            assert_eq!(rules[1], (1, rule.to_owned()));
        }
    }

    #[test]
    fn defects_name_places_and_rules_but_not_contents() {
        let text = format!(
            "{HEAD}ann,yes,red,1\nann,SECRET,red,1\nann,yes,SECRET,SECRET\nann,SECRET\n\"SECRET\n,no,red,\n"
        );
        let mut lines = Vec::new();
        let mut found = |defect: Defect| {
            let column = defect.column.unwrap_or("-".to_owned());
            lines.push(format!("{} {column} {}", defect.row, defect.rule));
        };
        schema().parse(Path::new("t"), text.as_bytes(), true, &mut found).unwrap();
        let zero = "the example contributes zero";
        assert_eq!(
            lines,
            [
                format!("2 sick is none of the declared classes: {zero}"),
                format!("3 age is not a number: {zero}"),
                "3 colour is none of the declared categories: counts as none of them".to_owned(),
                format!("4 - has more or fewer cells than the header: {zero}"),
                format!("5 - has a quote that is left open on its line: {zero}"),
                format!("6 age is empty: {zero}"),
                format!("6 who names no user: {zero}"),
            ]
        );
    }

    #[test]
    fn tables_cut_or_altered_at_any_byte_do_not_panic() {
        let whole = b"who,sick,colour,age\nann,yes,\"re\"\"d\",1\nbob,no,green,2\n";
        for place in 0..whole.len() {
            let _ = parse(&whole[..place]);
            for byte in [0, b',', b'"', b'\n', 0xff] {
                let mut altered = whole.to_vec();
                altered[place] = byte;
                let _ = parse(altered);
            }
        }
    }
}
