//! Examples from the declared files, as records of the declared unit.

use std::path::Path;

use veilgrad_data::table::{Column, Kind, Schema};
use veilgrad_data::{Array, DataError, GroupNorm, Scattering, idx, npy};
use veilgrad_nn::Records;

use super::config::{self, Config, Record};
use crate::error::Error;

/// Examples and, where records are users, whose they are. Not `Debug`: what is in it is private.
pub(crate) struct Examples {
    inputs: Vec<f32>,
    width: usize,
    labels: Vec<f32>,
    /// By record: its examples. Nothing where every example is a record.
    members: Option<Vec<Vec<u32>>>,
}

impl Records for Examples {
    fn count(&self) -> u64 {
        self.members.as_ref().map_or(self.labels.len(), Vec::len) as u64
    }

    fn examples(&self, record: u64) -> usize {
        self.members.as_ref().map_or(1, |members| {
            usize::try_from(record).ok().and_then(|record| members.get(record)).map_or(0, Vec::len)
        })
    }

    fn read(&self, record: u64, example: usize, input: &mut [f32], target: &mut [f32]) {
        let place = match &self.members {
            None => usize::try_from(record).ok(),
            Some(members) => usize::try_from(record)
                .ok()
                .and_then(|record| members.get(record)?.get(example).copied())
                .and_then(|place| usize::try_from(place).ok()),
        };
        let Some(place) = place else { return };
        let row = self.inputs.get(place * self.width..(place + 1) * self.width);
        input.iter_mut().zip(row.unwrap_or_default()).for_each(|(to, from)| *to = *from);
        target.iter_mut().zip(self.labels.get(place)).for_each(|(to, from)| *to = *from);
    }
}

/// The shape that the model sees, from the declaration alone.
pub(crate) fn shape(config: &Config) -> Result<Vec<usize>, Error> {
    let declared = declared_shape(config)?;
    match config.model.features {
        config::Features::Scattering => {
            Ok(vec![scattering(config, &declared)?.shape().iter().product()])
        }
        config::Features::None if config.model.kind == config::Kind::Cnn => match declared[..] {
            [rows, columns] => Ok(vec![rows, columns, 1]),
            [_, _, _] => Ok(declared),
            _ => Err(Error::Usage("a cnn needs [data] shape = [rows, columns]".to_owned())),
        },
        config::Features::None => Ok(vec![declared.iter().product()]),
    }
}

fn declared_shape(config: &Config) -> Result<Vec<usize>, Error> {
    if is_table(&config.data.train) {
        return Ok(vec![schema(config)?.width()]);
    }
    config.data.shape.clone().filter(|shape| !shape.is_empty() && !shape.contains(&0)).ok_or_else(|| {
        Error::Usage(
            "[data] shape is missing: the shape of an example is declared, not read from private data"
                .to_owned(),
        )
    })
}

fn scattering(config: &Config, shape: &[usize]) -> Result<Scattering, Error> {
    let [rows, columns] = shape else {
        return Err(Error::Usage("scattering needs [data] shape = [rows, columns]".to_owned()));
    };
    let config::Scattering { scales, orientations, .. } = config.model.scattering;
    Scattering::new(*rows, *columns, scales, orientations)
        .map_err(|error| Error::Usage(error.to_string()))
}

/// The private examples.
pub(crate) fn train(config: &Config, threads: usize) -> Result<Examples, Error> {
    load(config, &config.data.train, config.data.labels.as_deref(), true, threads)
}

/// The public examples, if there are any.
pub(crate) fn test(config: &Config, threads: usize) -> Result<Option<Examples>, Error> {
    let Some(path) = &config.data.test else { return Ok(None) };
    load(config, path, config.data.test_labels.as_deref(), false, threads).map(Some)
}

/// Examples to predict, whose labels are not asked for.
pub(crate) fn unlabelled(config: &Config, path: &Path, threads: usize) -> Result<Examples, Error> {
    if is_table(path) {
        let inputs = schema(config)?.read_inputs(path).map_err(data_error)?;
        let (width, labels) = (inputs.width(), vec![0.0; inputs.rows().len()]);
        return Ok(Examples { inputs: inputs.values, width, labels, members: None });
    }
    let declared = declared_shape(config)?;
    let name = config.data.arrays.as_ref().map(|arrays| arrays.inputs.as_str());
    let inputs = array(path, name).map_err(data_error)?;
    finish(config, &declared, path, inputs, None, threads)
}

/// Examples as the model of this configuration wants them; `units` joins those of one user.
fn load(
    config: &Config,
    path: &Path,
    labels: Option<&Path>,
    units: bool,
    threads: usize,
) -> Result<Examples, Error> {
    if is_table(path) {
        let table = schema(config)?.read(path).map_err(data_error)?;
        let members = table.users.filter(|_| units).map(|users| join(&users));
        let width = table.inputs.width();
        return Ok(Examples { inputs: table.inputs.values, width, labels: table.labels, members });
    }
    let declared = declared_shape(config)?;
    let arrays = config.data.arrays.as_ref();
    let inputs = array(path, arrays.map(|arrays| arrays.inputs.as_str())).map_err(data_error)?;
    let labels = match (labels, arrays) {
        (Some(path), _) => array(path, None),
        (None, Some(arrays)) => array(path, Some(&arrays.labels)),
        (None, None) => {
            return Err(Error::Usage("[data] labels is missing: where are the labels?".to_owned()));
        }
    };
    let labels = labels.map_err(data_error)?.values;
    finish(config, &declared, path, inputs, Some(labels), threads)
}

/// Checks examples against the declaration, and computes their features.
fn finish(
    config: &Config,
    declared: &[usize],
    path: &Path,
    inputs: Array,
    labels: Option<Vec<f32>>,
    threads: usize,
) -> Result<Examples, Error> {
    let labels = labels.unwrap_or_else(|| vec![0.0; inputs.rows().len()]);
    let wrong =
        |cause: &str| Error::Data { path: path.display().to_string(), cause: cause.to_owned() };
    if inputs.shape.iter().product::<usize>() != declared.iter().product::<usize>() {
        return Err(wrong("examples do not have the declared shape"));
    }
    if inputs.values.len() != labels.len() * inputs.width() {
        return Err(wrong("there are not as many labels as examples"));
    }
    let bounds = config.data.bounds.ok_or_else(|| {
        Error::Usage(
            "[data] bounds is missing: the bounds of numbers are declared, not read from private data"
                .to_owned(),
        )
    })?;
    let inputs = features(config, declared, inputs.values, bounds, threads)?;
    let width = if labels.is_empty() { 1 } else { inputs.len() / labels.len() };
    Ok(Examples { inputs, width, labels, members: None })
}

fn features(
    config: &Config,
    declared: &[usize],
    mut inputs: Vec<f32>,
    [low, high]: [f64; 2],
    threads: usize,
) -> Result<Vec<f32>, Error> {
    let (low, scale) = (low as f32, (1.0 / (high - low)) as f32);
    for value in &mut inputs {
        // What is no number stays none, and its record will count as zero.
        let scaled = (*value - low) * scale;
        *value = if scaled.is_nan() { scaled } else { scaled.clamp(0.0, 1.0) };
    }
    if config.model.features == config::Features::None {
        return Ok(inputs);
    }
    let scattering = scattering(config, declared)?;
    let width: usize = scattering.shape().iter().product();
    let mut features = scattering.transform(&inputs, threads);
    let norm = GroupNorm { groups: config.model.scattering.norm_groups };
    features.chunks_exact_mut(width).for_each(|record| norm.apply(record));
    Ok(features)
}

fn is_table(path: &Path) -> bool {
    path.extension().is_some_and(|end| end.eq_ignore_ascii_case("csv"))
}

fn array(path: &Path, name: Option<&str>) -> Result<Array, DataError> {
    let end = path.extension().map(|end| end.to_ascii_lowercase());
    match end.as_ref().and_then(|end| end.to_str()) {
        Some("npy") => npy::read(path, None),
        Some("npz") => npy::read(path, name),
        _ => idx::read(path),
    }
}

fn schema(config: &Config) -> Result<Schema, Error> {
    let data = &config.data;
    let label = data.label.clone().ok_or_else(|| {
        Error::Usage("[data] label is missing: which column is the label?".to_owned())
    })?;
    if data.columns.is_empty() {
        return Err(Error::Usage(
            "[[data.columns]] are missing: name the columns to use, with bounds or categories"
                .to_owned(),
        ));
    }
    let columns = data.columns.iter().map(|column| {
        let name = column.name.clone();
        let kind = match (&column.categories, column.bounds) {
            (Some(words), _) => Kind::Category { words: words.clone() },
            (None, bounds) => {
                let [low, high] = bounds.unwrap_or([0.0, 1.0]);
                Kind::Number { low, high }
            }
        };
        Column { name, kind }
    });
    let user = match &data.record {
        Record::User(user) => Some(user.user.clone()),
        _ => None,
    };
    Ok(Schema { columns: columns.collect(), label, classes: data.classes.names(), user })
}

/// The examples of each user.
fn join(users: &[u32]) -> Vec<Vec<u32>> {
    let mut members: Vec<Vec<u32>> = Vec::new();
    for (example, user) in (0..).zip(users) {
        let user = *user as usize;
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
