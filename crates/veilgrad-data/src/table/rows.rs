//! Converts the cells of a row to numbers, for all file formats.

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::Path;

use super::schema::{Defect, Kind, Schema, Table, Target};
use crate::{Array, DataError, RowRanges};

/// The value of a cell.
#[derive(Clone, Copy)]
pub(crate) enum Value<'a> {
    Text(&'a str),
    /// Not UTF-8 text, or of a type that is not supported.
    Unreadable,
    /// An integer. Not converted to f64, which could merge users with long ids.
    #[cfg(feature = "parquet")]
    Whole(i128),
    #[cfg(feature = "parquet")]
    Real(f64),
}

/// Builds a table row by row.
pub(crate) struct Rows<'a> {
    schema: &'a Schema,
    columns: Vec<usize>,
    label: Option<usize>,
    user: Option<usize>,
    users: HashMap<String, u32>,
    row: u64,
    /// The rows that are wanted, and how many of their ranges are behind; all rows, if there are none.
    wanted: Option<(&'a RowRanges, usize)>,
    found: &'a mut dyn FnMut(Defect),
    pub(crate) table: Table,
}

/// What to do with a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    Push,
    Skip,
    /// No later row is wanted either.
    Stop,
}

impl<'a> Rows<'a> {
    /// Finds the declared columns by name.
    pub(crate) fn new(
        schema: &'a Schema,
        path: &Path,
        header: &[String],
        labelled: bool,
        wanted: Option<&'a RowRanges>,
        found: &'a mut dyn FnMut(Defect),
    ) -> Result<Self, DataError> {
        let user = schema.user.as_deref().filter(|_| labelled);
        let label = Some(schema.label.as_str()).filter(|name| labelled && !name.is_empty());
        let names = schema.columns.iter().map(|column| column.name.as_str());
        let missing =
            names.chain(label).chain(user).filter(|name| !header.iter().any(|cell| cell == name));
        let missing: Vec<String> = missing.map(|name| format!("has no column {name:?}")).collect();
        if !missing.is_empty() {
            return Err(DataError::format(path, missing.join("; ")));
        }
        let place = |name: &str| {
            let mut places = (0..).zip(header).filter(|(_, cell)| *cell == name);
            match (places.next(), places.next()) {
                (Some((place, _)), None) => Ok(place),
                (None, _) => Err(DataError::format(path, format!("has no column {name:?}"))),
                _ => Err(DataError::format(path, format!("has two columns {name:?}"))),
            }
        };
        let columns = schema.columns.iter().map(|column| place(&column.name));
        let user = user.map(place).transpose()?;
        Ok(Self {
            schema,
            columns: columns.collect::<Result<_, DataError>>()?,
            label: label.map(place).transpose()?,
            user,
            users: HashMap::new(),
            row: 0,
            wanted: wanted.map(|rows| (rows, 0)),
            found,
            table: Table {
                inputs: Array { values: Vec::new(), shape: vec![schema.width()] },
                labels: Vec::new(),
                numbers: Vec::new(),
                users: user.map(|_| Vec::new()),
                user_names: Vec::new(),
            },
        })
    }

    /// What to do with the next row. One to skip is counted here.
    pub(crate) fn turn(&mut self) -> Turn {
        let Some((rows, behind)) = &mut self.wanted else { return Turn::Push };
        let row = usize::try_from(self.row).unwrap_or(usize::MAX);
        let mut left = rows.ranges().iter().skip(*behind);
        let Some(range) = left.find(|range| {
            let is_behind = range.end <= row;
            *behind += usize::from(is_behind);
            !is_behind
        }) else {
            return Turn::Stop;
        };
        if range.contains(&row) {
            return Turn::Push;
        }
        self.row += 1;
        Turn::Skip
    }

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
            let (label, number, rule) = schema.target.label(&cell(place));
            if let Some(rule) = rule {
                defect(&schema.label, format!("{rule}: the example contributes zero"));
            }
            self.table.labels.push(label);
            self.table.numbers.extend(number);
        }
        if let (Some(place), Some(numbers)) = (self.user, &mut self.table.users) {
            let name = cell(place).text().filter(|name| !name.is_empty());
            if name.is_none() {
                let rule = "names no user: the example contributes zero";
                defect(schema.user.as_deref().unwrap_or_default(), rule.to_owned());
            }
            let (next, names) = (self.users.len() as u32, &mut self.table.user_names);
            numbers.push(name.map(|name| {
                *self.users.entry(name.into_owned()).or_insert_with_key(|name| {
                    names.push(name.clone());
                    next
                })
            }));
        }
    }

    /// Adds a row that cannot be split into cells: an example that contributes zero. It belongs to no user, since its
    /// cells may be shifted.
    pub(crate) fn push_broken(&mut self, rule: &str) {
        self.row += 1;
        let rule = format!("{rule}: the example contributes zero");
        (self.found)(Defect { row: self.row, column: None, rule });
        let table = &mut self.table;
        table.inputs.values.extend(std::iter::repeat_n(f32::NAN, self.schema.width()));
        if self.label.is_some() {
            table.labels.push(f32::NAN);
            if matches!(self.schema.target, Target::Number { .. }) {
                table.numbers.push(f64::NAN);
            }
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

/// A number scaled so that its bounds become -1 and 1.
fn scaled(value: f64, low: f64, high: f64) -> f64 {
    let (middle, half) = (0.5 * low + 0.5 * high, 0.5 * high - 0.5 * low);
    (value - middle) / half
}

impl Target {
    /// The label in a cell: the class or the scaled number, and the number itself, if it is one. The rule that the cell breaks,
    /// if it is not as declared.
    fn label(&self, cell: &Value<'_>) -> (f32, Option<f64>, Option<&'static str>) {
        match self {
            Self::Classes(classes) => {
                let text = cell.text();
                let class =
                    classes.iter().position(|class| Some(class.as_str()) == text.as_deref());
                let rule = class.is_none().then_some("is none of the declared classes");
                (class.map_or(f32::NAN, |class| class as f32), None, rule)
            }
            Self::Number { low, high } => {
                let found = cell.number();
                let number = found.unwrap_or(f64::NAN);
                (scaled(number, *low, *high) as f32, Some(number), found.err())
            }
        }
    }
}

/// The place of a cell's word; of the word that replaces it, if it is unknown; and the rule that the cell breaks.
fn word(
    words: &[String],
    missing: Option<usize>,
    cell: &Value<'_>,
) -> (Option<usize>, Option<String>) {
    let text = cell.text();
    let place = words.iter().position(|word| Some(word.as_str()) == text.as_deref());
    let rule = "is none of the declared categories";
    let rule = match (place, missing.and_then(|missing| words.get(missing))) {
        (Some(_), _) => None,
        (None, Some(word)) => Some(format!("{rule}: counts as {word:?}")),
        (None, None) => Some(format!("{rule}: counts as none of them")),
    };
    (place.or(missing), rule)
}

impl Kind {
    /// Appends the numbers of a cell. Returns the rule that the cell breaks, if it is not as declared.
    fn push(&self, values: &mut Vec<f32>, cell: &Value<'_>) -> Option<String> {
        match self {
            Self::Number { low, high, missing } => {
                let number = cell.number();
                let value = number.or(missing.ok_or(())).unwrap_or(f64::NAN);
                let scaled = scaled(value, *low, *high);
                // NaN stays NaN: the example will contribute zero.
                let scaled = if scaled.is_nan() { f64::NAN } else { scaled.clamp(-1.0, 1.0) };
                values.push(scaled as f32);
                let rule = number.err()?;
                Some(match missing {
                    Some(number) => format!("{rule}: counts as {number}"),
                    None => format!("{rule}: the example contributes zero"),
                })
            }
            Self::Category { words, missing } => {
                let (chosen, rule) = word(words, *missing, cell);
                let one_hot = |word| f32::from(u8::from(chosen == Some(word)));
                values.extend((0..words.len()).map(one_hot));
                rule
            }
            Self::Index { words, missing } => {
                let (chosen, rule) = word(words, *missing, cell);
                values.push(chosen.map_or(-1.0, |place| place as f32));
                rule
            }
        }
    }
}
