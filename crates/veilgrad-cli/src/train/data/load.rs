//! Reading the declared files, one after the other.

use std::collections::HashMap;
use std::path::Path;

use veilgrad_data::table::{Schema, Table, is_table};
use veilgrad_data::{Array, DataError, RowRanges, double, idx, npy};

use super::examples::Examples;
use crate::error::Error;
use crate::train::config::{Config, Declaration, Record};
use crate::train::inputs::{declared_shape, scale, shape};
use crate::train::schema::schema;

/// The examples of files, one file after the other, scaled to their declared bounds, grouped by user if records are users.
/// With each file comes that of its labels, if it is another one.
pub(super) fn load<'a>(
    config: &Config,
    files: impl IntoIterator<Item = (&'a Path, Option<&'a Path>)>,
) -> Result<Examples, Error> {
    // Sizes that cannot be transformed are refused before a file is opened.
    shape(&config.declaration())?;
    let mut rows = Loaded::default();
    for (path, labels) in files {
        match is_table(path) {
            true => rows.add_table(labelled_schema(config).read(path).map_err(data_error)?),
            false => rows.add(load_arrays(config, path, labels)?),
        }
    }
    Ok(rows.into_examples())
}

/// The examples of a file with an array.
fn load_arrays(config: &Config, path: &Path, labels: Option<&Path>) -> Result<Examples, Error> {
    let declaration = config.declaration();
    let arrays = config.data.arrays.as_ref();
    let (file, name) = (labels.unwrap_or(path), arrays.map(|arrays| arrays.labels.as_str()));
    // A record with an unknown label contributes zero.
    let (labels, numbers) = label_array(&declaration, file, name)?;
    let size = declared_shape(&declaration)?.iter().product();
    let mut inputs = array(path, arrays.map(|arrays| arrays.inputs.as_str()), size)?;
    if inputs.rows().len() != labels.len() {
        let cause = "has not as many labels as there are examples".to_owned();
        return Err(Error::Data { path: file.display().to_string(), cause });
    }
    scale(&declaration, &mut inputs.values)?;
    Ok(Examples { scaled: inputs.values, labels, numbers, members: None, nameless: 0 })
}

/// The examples of several files, one file after the other. Not `Debug`, because they may be private.
#[derive(Default)]
pub(super) struct Loaded {
    scaled: Vec<f32>,
    pub(super) labels: Vec<f32>,
    numbers: Vec<f64>,
    /// The user of each example, if tables name users: the same name in two files is the same user.
    users: Option<Vec<Option<u32>>>,
    numbers_of_users: HashMap<String, u32>,
}

impl Loaded {
    /// Adds the examples of one more file, which names no users.
    pub(super) fn add(&mut self, examples: Examples) {
        append(&mut self.scaled, examples.scaled);
        append(&mut self.labels, examples.labels);
        append(&mut self.numbers, examples.numbers);
    }

    pub(super) fn add_table(&mut self, table: Table) {
        if let Some(users) = table.users {
            let known = &mut self.numbers_of_users;
            let number = |name: String| {
                // A table numbers its users with 32 bits; more in several would need the memory of 2^32 names.
                let next = u32::try_from(known.len()).unwrap_or(u32::MAX);
                *known.entry(name).or_insert(next)
            };
            let numbers: Vec<u32> = table.user_names.into_iter().map(number).collect();
            let user = |user: Option<u32>| numbers.get(user? as usize).copied();
            self.users.get_or_insert_default().extend(users.into_iter().map(user));
        }
        append(&mut self.scaled, table.inputs.values);
        append(&mut self.labels, table.labels);
        append(&mut self.numbers, table.numbers);
    }

    pub(super) fn into_examples(self) -> Examples {
        let nameless = self.users.iter().flatten().filter(|user| user.is_none()).count();
        let members = self.users.map(|users| group_by_user(&users));
        let Self { scaled, labels, numbers, .. } = self;
        Examples { scaled, labels, numbers, members, nameless }
    }
}

/// Appends values; those of the first file are not copied.
pub(super) fn append<T>(all: &mut Vec<T>, mut more: Vec<T>) {
    match all.is_empty() {
        true => *all = more,
        false => all.append(&mut more),
    }
}

/// The examples of each user. Examples without a user belong to no record and contribute zero.
pub(super) fn group_by_user(users: &[Option<u32>]) -> Vec<Vec<u32>> {
    let mut members: Vec<Vec<u32>> = Vec::new();
    for (example, user) in (0..).zip(users) {
        let Some(user) = user.map(|user| user as usize) else { continue };
        if members.len() <= user {
            members.resize_with(user + 1, Vec::new);
        }
        members[user].push(example);
    }
    members
}

pub(super) fn data_error(error: DataError) -> Error {
    match error {
        DataError::File { path, cause } => Error::Data { path, cause: cause.to_string() },
        DataError::Format { path, why } => Error::Data { path, cause: why },
        other => Error::Data { path: "data".to_owned(), cause: other.to_string() },
    }
}

/// The labels of a file: classes as they are, numbers scaled so that their bounds become -1 and 1, and unscaled.
pub(super) fn label_array(
    declaration: &Declaration,
    path: &Path,
    name: Option<&str>,
) -> Result<(Vec<f32>, Vec<f64>), Error> {
    let Some([low, high]) = declaration.label_bounds else {
        return Ok((array(path, name, 1)?.values, Vec::new()));
    };
    let numbers = double::read(path, name).map_err(data_error)?;
    let (middle, half) = (0.5 * low + 0.5 * high, 0.5 * high - 0.5 * low);
    // Rounded to single precision first, as runs of earlier versions did.
    let scaled = |label: &f64| ((f64::from(*label as f32) - middle) / half) as f32;
    Ok((numbers.iter().map(scaled).collect(), numbers))
}

/// The rows of a file, of `width` numbers each.
pub(super) fn array(path: &Path, name: Option<&str>, width: usize) -> Result<Array, Error> {
    let array = match array_format(path) {
        ArrayFormat::Npy => npy::read(path, None, width),
        ArrayFormat::Npz => npy::read(path, name, width),
        ArrayFormat::Idx => idx::read(path, width),
    };
    array.map_err(data_error)
}

/// Some rows of a file, of `width` numbers each.
pub(super) fn array_rows(
    path: &Path,
    name: Option<&str>,
    width: usize,
    rows: &RowRanges,
) -> Result<Array, Error> {
    let array = match array_format(path) {
        ArrayFormat::Npy => npy::read_rows(path, None, width, rows),
        ArrayFormat::Npz => npy::read_rows(path, name, width, rows),
        ArrayFormat::Idx => idx::read_rows(path, width, rows),
    };
    array.map_err(data_error)
}

/// The format of an array, by the name of its file.
enum ArrayFormat {
    Npy,
    Npz,
    Idx,
}

fn array_format(path: &Path) -> ArrayFormat {
    let end = path.extension().map(|end| end.to_ascii_lowercase());
    match end.as_ref().and_then(|end| end.to_str()) {
        Some("npy") => ArrayFormat::Npy,
        Some("npz") => ArrayFormat::Npz,
        _ => ArrayFormat::Idx,
    }
}

pub(super) fn labelled_schema(config: &Config) -> Schema {
    let mut schema = schema(&config.declaration());
    schema.label = config.data.label.clone().unwrap_or_default();
    if let Record::User(user) = &config.data.record {
        schema.user = Some(user.user.clone());
    }
    schema
}
