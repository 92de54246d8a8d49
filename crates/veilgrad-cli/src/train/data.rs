//! Examples from the declared files, as records of the declared unit.

mod defects;
mod examples;
mod load;
mod share;

use std::num::NonZeroU32;
use std::path::Path;
use std::sync::Arc;

use veilgrad_data::table::is_table;
use veilgrad_data::{Array, Partition, ids};
use veilgrad_nn::{Records, Whitening};

use super::config::{self, Config, Declaration, MadeUp, Microbatch, Record, UserIds};
use super::inputs::{Inputs, Rows, declared_shape, scale};
use super::schema::schema;
use crate::error::Error;

pub(crate) use defects::defects;
pub(crate) use examples::Examples;
use load::{array, data_error, group_by_user, label_array, load};
pub(crate) use share::{Process, Share, read as private};

/// The private examples, as records with the inputs of the model. Not `Debug`, because they are private.
#[derive(Clone)]
pub(crate) struct TrainingRecords {
    inputs: Arc<Inputs>,
    rows: Rows,
    labels: Vec<f32>,
    members: Option<Vec<Vec<u32>>>,
    /// The number of the first record that is here, and of all records, of which other processes may have the rest.
    first: u64,
    count: u64,
}

impl TrainingRecords {
    /// The place of a record among those that are here.
    fn place(&self, record: u64) -> Option<usize> {
        usize::try_from(record.checked_sub(self.first)?).ok()
    }

    /// Whitens all inputs by what preconditioning released.
    pub(crate) fn whiten(&mut self, whitening: &Whitening, threads: usize) {
        self.inputs.whiten(&mut self.rows, whitening, threads);
    }
}

impl Records for TrainingRecords {
    fn count(&self) -> u64 {
        self.count
    }

    fn examples(&self, record: u64) -> usize {
        match &self.members {
            None => self.inputs.copies(),
            Some(members) => self.place(record).and_then(|at| members.get(at)).map_or(0, Vec::len),
        }
    }

    fn read(&self, record: u64, example: usize, input: &mut [f32], target: &mut [f32]) {
        let place = match &self.members {
            None => self.place(record),
            Some(members) => {
                let members = self.place(record).and_then(|at| members.get(at));
                members.and_then(|members| members.get(example)).map(|place| *place as usize)
            }
        };
        let Some(place) = place else { return };
        let copy = if self.members.is_none() { example } else { 0 };
        self.inputs.read(&self.rows, place, copy, input);
        target.iter_mut().zip(self.labels.get(place)).for_each(|(to, from)| *to = *from);
    }
}

/// The public examples of a run.
#[derive(Default)]
pub(crate) struct Public {
    pub(crate) test: Option<Examples>,
    /// Those on which the temperature of probabilities is fitted.
    pub(crate) calibration: Option<Examples>,
}

/// The private examples of one process, and the public ones, if there are any.
///
/// A public file with the examples of the private one is refused before any round is charged: its accuracy would be the exact
/// training accuracy. No other message depends on the values of private examples. This one is acceptable, because it compares
/// two files that the operator named, as a whole and not record by record, and ends the run without a result. A refusal
/// reveals that the training data is exactly the public file; no refusal, that it is not. SECURITY.md says so.
pub(crate) fn private_and_public(
    config: &Config,
    process: Process,
) -> Result<(Share, Public), Error> {
    let train = private(config, process)?;
    let public = Public { test: test(config)?, calibration: calibration(config)? };
    check_apart(&train, &public, config)?;
    Ok((train, public))
}

/// Refuses public examples that are the private ones.
fn check_apart(train: &Share, public: &Public, config: &Config) -> Result<(), Error> {
    for (key, examples) in [("test", &public.test), ("calibration", &public.calibration)] {
        let Some(examples) = examples else { continue };
        if train.has_inputs_of(examples, config)? {
            return Err(Error::Usage(format!(
                "[data] {key} has the examples of [data] train: what is printed about a public test set \
                 would be about private records; name another file, or none"
            )));
        }
    }
    Ok(())
}

/// The private examples, as records of the declared unit.
fn train(config: &Config) -> Result<Examples, Error> {
    into_units(config, load(config, config.data.examples())?)
}

/// Groups private examples to records of the declared unit.
fn into_units(config: &Config, mut examples: Examples) -> Result<Examples, Error> {
    // Training takes scaled labels.
    examples.numbers = Vec::new();
    if let Record::Microbatch(Microbatch { microbatch }) = config.data.record {
        let numbers: Vec<u32> = (0..).take(examples.labels.len()).collect();
        examples.members =
            Some(numbers.chunks(microbatch.get() as usize).map(<[u32]>::to_vec).collect());
    }
    if let Record::UserIds(UserIds { user_ids, .. }) = &config.data.record {
        let name = config.data.arrays.as_ref().and_then(|arrays| arrays.users.as_deref());
        let users = ids::read(user_ids, name).map_err(data_error)?;
        if users.len() != examples.labels.len() {
            let cause = "has not as many ids as there are examples".to_owned();
            return Err(Error::Data { path: user_ids.display().to_string(), cause });
        }
        let users: Vec<Option<u32>> = users.into_iter().map(Some).collect();
        examples.members = Some(group_by_user(&users));
    }
    if let Record::MadeUp(made_up) = &config.data.record {
        let partition = partition(made_up);
        examples.members = Some(partition.deal(&examples.labels, made_up.users, made_up.seed));
    }
    if config.data.label_bounds.is_some() {
        // NaN stays NaN, so that its record contributes zero.
        examples.labels.iter_mut().for_each(|label| *label = label.clamp(-1.0, 1.0));
    }
    // A private number of records is not compared with anything.
    if config.privacy.has_public_record_count() {
        examples.complete(config)?;
    }
    Ok(examples)
}

/// How examples are dealt out to made-up users.
pub(super) fn partition(made_up: &MadeUp) -> Partition {
    const TWO: NonZeroU32 = NonZeroU32::MIN.saturating_add(1);
    match made_up.partition {
        config::Partition::Uniform => Partition::Uniform,
        config::Partition::ByClass => {
            Partition::ByClass { classes: made_up.classes_per_user.unwrap_or(TWO) }
        }
        config::Partition::Dirichlet => {
            Partition::Dirichlet { concentration: made_up.concentration.unwrap_or(0.5) }
        }
    }
}

/// The public examples, if there are any, one by one.
pub(crate) fn test(config: &Config) -> Result<Option<Examples>, Error> {
    let Some(path) = &config.data.test else { return Ok(None) };
    let examples = load(config, [(path.as_path(), config.data.test_labels.as_deref())])?;
    Ok(Some(Examples { members: None, nameless: 0, ..examples }))
}

/// The public examples for the temperature of probabilities, if there are any.
pub(crate) fn calibration(config: &Config) -> Result<Option<Examples>, Error> {
    let Some(path) = &config.data.calibration else { return Ok(None) };
    let examples = load(config, [(path.as_path(), config.data.calibration_labels.as_deref())])?;
    Ok(Some(Examples { members: None, nameless: 0, ..examples }))
}

/// Examples to predict, without labels, and the texts of a column of a table, if one is named.
pub(crate) fn unlabelled(
    declaration: &Declaration,
    path: &Path,
    id: Option<&str>,
) -> Result<(Examples, Vec<Option<String>>), Error> {
    if let (Some(id), false) = (id, is_table(path)) {
        let cause = format!("is not a table, so it has no column {id:?}");
        return Err(Error::Data { path: path.display().to_string(), cause });
    }
    let (inputs, ids) = match id {
        Some(id) => schema(declaration).read_inputs_with(path, id).map_err(data_error)?,
        None => (public_inputs(declaration, path)?, Vec::new()),
    };
    let count = inputs.rows().len();
    let labels = vec![0.0; count];
    let (scaled, numbers) = (inputs.values, Vec::new());
    Ok((Examples { scaled, labels, numbers, members: None, nameless: 0 }, ids))
}

/// **Public** examples with their labels, to evaluate a model on. Labels are found as in training: in the column of a table
/// or the array of an .npz file that the model declares or `label` names, or in a separate file.
pub(crate) fn labelled(
    declaration: &Declaration,
    path: &Path,
    labels: Option<&Path>,
    label: Option<&str>,
) -> Result<Examples, Error> {
    let label = label.or(declaration.label.as_deref());
    let (scaled, labels, numbers) = if is_table(path) {
        let label = label.ok_or_else(|| {
            Error::Usage(
                "the model does not say which column is the label: pass --label".to_owned(),
            )
        })?;
        let mut schema = schema(declaration);
        schema.label = label.to_owned();
        let table = schema.read(path).map_err(data_error)?;
        (table.inputs.values, table.labels, table.numbers)
    } else {
        if labels.is_none() && !path.extension().is_some_and(|end| end.eq_ignore_ascii_case("npz"))
        {
            let why = "labels of arrays are in a separate file: pass --labels";
            return Err(Error::Usage(why.to_owned()));
        }
        let file = labels.unwrap_or(path);
        let (labels, numbers) = label_array(declaration, file, label)?;
        let inputs = public_inputs(declaration, path)?;
        if inputs.rows().len() != labels.len() {
            let cause = "has not as many labels as there are examples".to_owned();
            return Err(Error::Data { path: file.display().to_string(), cause });
        }
        (inputs.values, labels, numbers)
    };
    Ok(Examples { scaled, labels, numbers, members: None, nameless: 0 })
}

/// The scaled inputs of **public** examples.
fn public_inputs(declaration: &Declaration, path: &Path) -> Result<Array, Error> {
    if is_table(path) {
        return schema(declaration).read_inputs(path).map_err(data_error);
    }
    let name = declaration.inputs.as_deref();
    let mut inputs = array(path, name, declared_shape(declaration)?.iter().product())?;
    scale(declaration, &mut inputs.values)?;
    Ok(inputs)
}
