//! Examples from the declared files, as records of the declared unit.

use std::path::Path;

use veilgrad_data::table::{Column, Defect, Kind, Schema};
use veilgrad_data::{Array, DataError, GroupNorm, Scattering, idx, npy};
use veilgrad_nn::Records;

use super::config::{self, Config, Declaration, Microbatch, Record};
use crate::error::Error;

/// Examples, grouped into records. Not `Debug`, because it is private.
pub(crate) struct Examples {
    inputs: Vec<f32>,
    width: usize,
    labels: Vec<f32>,
    /// The examples of each record; `None` if every example is a record.
    members: Option<Vec<Vec<u32>>>,
    /// The number of examples without a user, if records are users.
    nameless: usize,
}

impl Examples {
    /// Fixed-size batches need exactly the declared number of records, which is public there. Rows without a user may stand
    /// for missing users: as many empty records are added as the rows allow, and contribute zero.
    fn complete(&mut self, config: &Config) -> Result<(), Error> {
        let declared = config.data.records;
        if let Some(members) = &mut self.members {
            let all = usize::try_from(declared).unwrap_or(usize::MAX);
            let count = all.clamp(members.len(), members.len().saturating_add(self.nameless));
            members.resize_with(count, Vec::new);
        }
        if self.count() == declared {
            return Ok(());
        }
        let path = config.data.train.display().to_string();
        let cause = format!(
            "has not exactly {declared} records, as [data] records declares and this sampling needs"
        );
        Err(Error::Data { path, cause })
    }

    /// Whether both have the same inputs, whatever their labels and file formats. False for empty files.
    fn has_inputs_of(&self, other: &Self) -> bool {
        let bits = |value: &f32| value.to_bits();
        !self.inputs.is_empty() && self.inputs.iter().map(bits).eq(other.inputs.iter().map(bits))
    }
}

impl Records for Examples {
    fn count(&self) -> u64 {
        self.members.as_ref().map_or(self.labels.len(), Vec::len) as u64
    }

    fn examples(&self, record: u64) -> usize {
        self.members.as_ref().map_or(1, |members| members.get(record as usize).map_or(0, Vec::len))
    }

    fn read(&self, record: u64, example: usize, input: &mut [f32], target: &mut [f32]) {
        let place = match &self.members {
            None => Some(record as usize),
            Some(members) => {
                let members = members.get(record as usize);
                members.and_then(|members| members.get(example)).map(|place| *place as usize)
            }
        };
        let Some(place) = place else { return };
        let row = self.inputs.get(place * self.width..(place + 1) * self.width);
        input.iter_mut().zip(row.unwrap_or_default()).for_each(|(to, from)| *to = *from);
        target.iter_mut().zip(self.labels.get(place)).for_each(|(to, from)| *to = *from);
    }
}

/// The shape that the model sees, from the declaration alone.
pub(crate) fn shape(declaration: &Declaration) -> Result<Vec<usize>, Error> {
    let declared = declared_shape(declaration)?;
    match declaration.model.features {
        config::Features::Scattering => {
            let (rows, columns, scales, orientations) = scattering_sizes(declaration, &declared)?;
            let shape = Scattering::shape_of(rows, columns, scales, orientations);
            Ok(vec![shape.map_err(Error::usage)?.iter().product()])
        }
        config::Features::None if declaration.model.kind == config::Kind::Cnn => match declared[..]
        {
            [rows, columns] => Ok(vec![rows, columns, 1]),
            [_, _, _] => Ok(declared),
            _ => Err(Error::Usage("a cnn needs [data] shape = [rows, columns]".to_owned())),
        },
        config::Features::None => Ok(vec![declared.iter().product()]),
    }
}

fn declared_shape(declaration: &Declaration) -> Result<Vec<usize>, Error> {
    match &declaration.shape {
        _ if !declaration.columns.is_empty() => Ok(vec![schema(declaration).width()]),
        Some(shape) => Ok(shape.clone()),
        None => Err(Error::Usage("[data] has neither shape nor columns".to_owned())),
    }
}

/// Rows, columns, scales and orientations.
fn scattering_sizes(
    declaration: &Declaration,
    shape: &[usize],
) -> Result<(usize, usize, u32, usize), Error> {
    let [rows, columns] = *shape else {
        return Err(Error::Usage("scattering needs [data] shape = [rows, columns]".to_owned()));
    };
    let config::Scattering { scales, orientations, .. } = declaration.model.scattering;
    Ok((rows, columns, scales, orientations))
}

/// The private examples, and the public ones, if there are any.
///
/// A public file with the examples of the private one is refused before any round is charged: its accuracy would be the exact
/// training accuracy. No other message depends on the values of private examples. This one is acceptable, because it compares
/// two files that the operator named, as a whole and not record by record, and ends the run without a result. A refusal
/// reveals that the training data is exactly the public file; no refusal, that it is not. SECURITY.md says so.
pub(crate) fn train_and_test(
    config: &Config,
    threads: usize,
) -> Result<(Examples, Option<Examples>), Error> {
    let (train, test) = (train(config, threads)?, test(config, threads)?);
    if let Some(test) = &test
        && test.has_inputs_of(&train)
    {
        return Err(Error::Usage(
            "[data] test has the examples of [data] train: what is printed about a public test set \
             would be about private records; name another file, or none"
                .to_owned(),
        ));
    }
    Ok((train, test))
}

/// The private examples, as records of the declared unit.
fn train(config: &Config, threads: usize) -> Result<Examples, Error> {
    let mut examples = load(config, &config.data.train, config.data.labels.as_deref(), threads)?;
    if let Record::Microbatch(Microbatch { microbatch }) = config.data.record {
        let numbers: Vec<u32> = (0..).take(examples.labels.len()).collect();
        examples.members =
            Some(numbers.chunks(microbatch.get() as usize).map(<[u32]>::to_vec).collect());
    }
    if config.privacy.sampling != config::Sampling::Poisson {
        examples.complete(config)?;
    }
    Ok(examples)
}

/// The public examples, if there are any, one by one.
pub(crate) fn test(config: &Config, threads: usize) -> Result<Option<Examples>, Error> {
    let Some(path) = &config.data.test else { return Ok(None) };
    let examples = load(config, path, config.data.test_labels.as_deref(), threads)?;
    Ok(Some(Examples { members: None, nameless: 0, ..examples }))
}

/// Examples to predict, without labels.
pub(crate) fn unlabelled(
    declaration: &Declaration,
    path: &Path,
    threads: usize,
) -> Result<Examples, Error> {
    let (inputs, count) = if is_table(path) {
        let inputs = schema(declaration).read_inputs(path).map_err(data_error)?;
        let count = inputs.rows().len();
        (inputs.values, count)
    } else {
        let name = declaration.inputs.as_deref();
        let inputs = array(path, name, declared_shape(declaration)?.iter().product())?;
        let count = inputs.rows().len();
        (features(declaration, inputs.values, threads)?, count)
    };
    let width = shape(declaration)?.iter().product();
    Ok(Examples { inputs, width, labels: vec![0.0; count], members: None, nameless: 0 })
}

/// Examples in the format that the model expects, grouped by user if records are users.
fn load(
    config: &Config,
    path: &Path,
    labels: Option<&Path>,
    threads: usize,
) -> Result<Examples, Error> {
    let declaration = config.declaration();
    let width = shape(&declaration)?.iter().product();
    if is_table(path) {
        let table = labelled_schema(config).read(path).map_err(data_error)?;
        let nameless = table.users.iter().flatten().filter(|user| user.is_none()).count();
        let members = table.users.map(|users| group_by_user(&users));
        let (inputs, labels) = (table.inputs.values, table.labels);
        return Ok(Examples { inputs, width, labels, members, nameless });
    }
    let arrays = config.data.arrays.as_ref();
    let (file, name) = (labels.unwrap_or(path), arrays.map(|arrays| arrays.labels.as_str()));
    // A record with an unknown label contributes zero.
    let labels = array(file, name, 1)?.values;
    let size = declared_shape(&declaration)?.iter().product();
    let inputs = array(path, arrays.map(|arrays| arrays.inputs.as_str()), size)?;
    if inputs.rows().len() != labels.len() {
        let cause = "has not as many labels as there are examples".to_owned();
        return Err(Error::Data { path: file.display().to_string(), cause });
    }
    let inputs = features(&declaration, inputs.values, threads)?;
    Ok(Examples { inputs, width, labels, members: None, nameless: 0 })
}

/// Clamps numbers to their declared bounds, scales them to [0, 1], and computes the features of the model.
pub(crate) fn features(
    declaration: &Declaration,
    mut inputs: Vec<f32>,
    threads: usize,
) -> Result<Vec<f32>, Error> {
    let [low, high] = declaration
        .bounds
        .ok_or_else(|| Error::Usage("[data] bounds of numbers are not declared".to_owned()))?;
    let missing = declaration.missing.as_deref();
    let missing = missing.and_then(|policy| missing_number(policy, [low, high]));
    let missing = missing.map_or(f32::NAN, |number| number as f32);
    let (low, scale) = (low as f32, (1.0 / (high - low)) as f32);
    for value in &mut inputs {
        let number = if value.is_nan() { missing } else { *value };
        let scaled = (number - low) * scale;
        // NaN stays NaN, so that its record contributes zero.
        *value = if scaled.is_nan() { scaled } else { scaled.clamp(0.0, 1.0) };
    }
    if declaration.model.features == config::Features::None {
        return Ok(inputs);
    }
    let shape = declared_shape(declaration)?;
    let (rows, columns, scales, orientations) = scattering_sizes(declaration, &shape)?;
    let scattering = Scattering::new(rows, columns, scales, orientations).map_err(Error::usage)?;
    let norm = GroupNorm { groups: declaration.model.scattering.norm_groups };
    let mut features = scattering.transform(&inputs, threads);
    let (size, width) = (shape.iter().product::<usize>(), scattering.shape().iter().product());
    norm.apply_all(&mut features, width, threads);
    let images = inputs.chunks_exact(size.max(1)).zip(features.chunks_exact_mut(width.max(1)));
    // The features of an image with NaN are NaN.
    let bad = images.filter(|(image, _)| image.iter().any(|value| value.is_nan()));
    bad.for_each(|(_, features)| features.fill(f32::NAN));
    Ok(features)
}

/// The number that a policy puts in place of a missing one.
pub(crate) fn missing_number(policy: &str, [low, high]: [f64; 2]) -> Option<f64> {
    match policy {
        "zero" => Some(0.0),
        "mean-of-bounds" => Some(0.5 * low + 0.5 * high),
        _ => None,
    }
}

/// Whether a file is a table, by its name.
pub(crate) fn is_table(path: &Path) -> bool {
    let end = path.extension().unwrap_or_default();
    end.eq_ignore_ascii_case("csv") || end.eq_ignore_ascii_case("parquet")
}

/// The rows of a file, of `width` numbers each.
fn array(path: &Path, name: Option<&str>, width: usize) -> Result<Array, Error> {
    let end = path.extension().map(|end| end.to_ascii_lowercase());
    let array = match end.as_ref().and_then(|end| end.to_str()) {
        Some("npy") => npy::read(path, None, width),
        Some("npz") => npy::read(path, name, width),
        _ => idx::read(path, width),
    };
    array.map_err(data_error)
}

/// The schema of the feature columns; callers add label and user.
fn schema(declaration: &Declaration) -> Schema {
    let columns = declaration.columns.iter().map(|column| {
        let kind = match (&column.categories, column.bounds.unwrap_or([0.0, 1.0])) {
            (Some(words), _) => {
                let missing = |word: &String| Some(word) == column.missing.as_ref();
                let missing = words.iter().position(missing);
                Kind::Category { words: words.clone(), missing }
            }
            (None, [low, high]) => {
                let policy = column.missing.as_ref().or(declaration.missing.as_ref());
                let missing = policy.and_then(|policy| missing_number(policy, [low, high]));
                Kind::Number { low, high, missing }
            }
        };
        Column { name: column.name.clone(), kind }
    });
    let classes = declaration.classes.names();
    Schema { columns: columns.collect(), label: String::new(), classes, user: None }
}

fn labelled_schema(config: &Config) -> Schema {
    let mut schema = schema(&config.declaration());
    schema.label = config.data.label.clone().unwrap_or_default();
    if let Record::User(user) = &config.data.record {
        schema.user = Some(user.user.clone());
    }
    schema
}

/// Rows of the training data that are not as declared, each with its file. **Private**: only for the owner of the data.
pub(crate) fn defects(config: &Config, mut found: impl FnMut(&Path, Defect)) -> Result<(), Error> {
    let data = &config.data;
    let path = data.train.as_path();
    if is_table(path) {
        let defects = labelled_schema(config).defects(path, |defect| found(path, defect));
        return defects.map_err(data_error);
    }
    let (declaration, arrays) = (config.declaration(), data.arrays.as_ref());
    let size = declared_shape(&declaration)?.iter().product();
    let inputs = array(path, arrays.map(|arrays| arrays.inputs.as_str()), size)?;
    let what = match &declaration.missing {
        Some(policy) => format!("has a value that is not a number: counts as {policy}"),
        None => "has a value that is not a number: the example contributes zero".to_owned(),
    };
    for (row, values) in (1..).zip(inputs.rows()) {
        if values.iter().any(|value| value.is_nan()) {
            found(path, Defect { row, column: None, rule: what.clone() });
        }
    }
    let file = data.labels.as_deref().unwrap_or(path);
    let labels = array(file, arrays.map(|arrays| arrays.labels.as_str()), 1)?;
    let classes = data.classes.count() as f32;
    for (row, label) in (1..).zip(&labels.values) {
        if !((0.0..classes).contains(label) && label.fract() == 0.0) {
            let rule = "is none of the declared classes: the example contributes zero".to_owned();
            found(file, Defect { row, column: None, rule });
        }
    }
    Ok(())
}

/// The examples of each user. Examples without a user belong to no record and contribute zero.
fn group_by_user(users: &[Option<u32>]) -> Vec<Vec<u32>> {
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

fn data_error(error: DataError) -> Error {
    match error {
        DataError::File { path, cause } => Error::Data { path, cause: cause.to_string() },
        DataError::Format { path, why } => Error::Data { path, cause: why },
        other => Error::Data { path: "data".to_owned(), cause: other.to_string() },
    }
}
