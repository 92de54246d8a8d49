//! What is wrong with the parts of a run: its model, noise, groups and files. A part is left out if values that it depends on
//! are wrong themselves.

use veilgrad_accounting::Tightest;
use veilgrad_events::{Delta, Folded, NoiseMultiplier};

use crate::error::Error;
use crate::problem::Problem;
use crate::train::check::{Source, named_key};
use crate::train::config::{Config, Record};
use crate::train::data::{self, Process};
use crate::train::job::{self, Job};
use crate::train::{build, start};

/// The keys of tables that the model is built from.
const MODEL: [(&str, &[&str]); 2] = [
    ("data", &["classes", "label_bounds", "shape"]),
    ("model", &["kind", "features", "scattering", "hidden", "filters", "layers", "batch_norm"]),
];
/// Those of the model that a run starts from.
const START: [(&str, &[&str]); 1] = [("model", &["init", "init_sha256", "frozen", "fresh"])];
/// Those that the noise and its epsilon depend on.
const NOISE: [(&str, &[&str]); 3] = [
    ("data", &["records"]),
    (
        "privacy",
        &[
            "epsilon",
            "noise_multiplier",
            "delta",
            "sampling",
            "expected_batch",
            "max_batch",
            "adjacency",
            "precondition",
            "correlated",
        ],
    ),
    ("train", &["rounds", "epochs"]),
];
/// Those that the groups of a round depend on.
const GROUPS: [(&str, &[&str]); 3] = [
    ("data", &["record"]),
    ("privacy", &["groups", "clip", "adaptive", "weights", "denominator", "expected_batch"]),
    ("train", &["class_weights", "local", "simulate"]),
];
/// Those that reading a file depends on.
const FILES: [(&str, &[&str]); 2] = [
    ("data", &["label", "delimiter", "header", "shape", "arrays", "record"]),
    ("model", &["kind", "features", "scattering"]),
];

/// The cost of a run whose plan is known: delta, and all rounds.
pub(super) struct Cost {
    pub(super) delta: Delta,
    pub(super) rounds: Vec<Folded>,
}

impl Cost {
    pub(super) fn of(job: &Job) -> Result<Self, Error> {
        let rounds = job.before.iter().chain([&job.rounds]).map(Folded::try_from);
        let rounds = rounds.collect::<Result<Vec<_>, _>>().map_err(Error::failure)?;
        Ok(Self { delta: job.delta, rounds })
    }
}

/// Plans a run, or adds all that is wrong with the parts of its plan. The cost is known if the noise is, whatever is wrong
/// with the model.
pub(super) fn plan(source: &mut Source, config: &Config) -> (Option<Job>, Option<Cost>) {
    let mut first = None;
    if !source.is_wrong(&places(&START)) && is_sound(source) {
        match Job::new(config.clone(), Some(1)) {
            Ok(job) => match Cost::of(&job) {
                Ok(cost) => return (Some(job), Some(cost)),
                Err(error) => first = Some(error),
            },
            Err(error) => first = Some(error),
        }
    }
    let columns = column_keys(config, &["categories", "embedding"]);
    if !source.is_wrong(&[places(&MODEL), columns].concat()) {
        check_model(source, config);
    }
    let mut cost = None;
    // The best number of bands is found with the noise, by the whole plan alone.
    if config.privacy.correlated.is_none() && !source.is_wrong(&places(&NOISE)) {
        match nominal_cost(config) {
            Ok(found) => cost = Some(found),
            Err(error) => add(source, error, "privacy.epsilon"),
        }
    }
    // What the parts did not show.
    if let Some(error) = first {
        let key = if matches!(error, Error::NoAnswer(_)) { "privacy" } else { "" };
        add(source, error, key);
    }
    (None, cost)
}

/// Whether nothing is wrong but files that are not there.
fn is_sound(source: &Source) -> bool {
    let files = ["train", "labels", "test", "test_labels", "calibration", "calibration_labels"];
    let files = files.map(|name| format!("data.{name}"));
    let is_file = |key: &String| files.contains(key) || key == "data.record.user_ids";
    source.problems().iter().all(|problem| is_file(&problem.key))
}

/// The cost of a run with its noise before that is rounded to the grids of groups.
fn nominal_cost(config: &Config) -> Result<Cost, Error> {
    let delta = Delta::new(config.privacy.delta).map_err(Error::usage)?;
    let sampling = build::sampling(config)?;
    let before = match job::precondition(config, delta, 1, &Tightest)? {
        Some(phase) => phase.events().map_err(Error::usage)?,
        None => Vec::new(),
    };
    let noise_multiplier = job::noise(config, sampling, delta, &before, &Tightest)?;
    let before = before.iter().map(Folded::try_from).collect::<Result<Vec<_>, _>>();
    let mut rounds = before.map_err(Error::usage)?;
    rounds.push(Folded { count: config.rounds(), sampling, noise_multiplier });
    Ok(Cost { delta, rounds })
}

/// Adds what is wrong with the model, with what it starts from, and with the groups of its parameters.
fn check_model(source: &mut Source, config: &Config) {
    let mut model = match build::model(&config.declaration()) {
        Ok(model) => model,
        Err(error) => return add(source, error, "model"),
    };
    if !source.is_wrong(&places(&START)) {
        // Patterns one by one, so that each is named.
        let mut started = config.model.clone();
        started.frozen.clear();
        if let Err(error) = start::apply(&mut started, &mut model) {
            add(source, error, "model.init");
        }
        for pattern in &config.model.frozen {
            let mut started = config.model.clone();
            (started.init, started.frozen) = (None, vec![pattern.clone()]);
            if let Err(error) = start::apply(&mut started, &mut model) {
                add(source, error, "model.frozen");
            }
        }
    }
    // Which groups there are does not depend on the noise.
    if let (false, Ok(noise)) = (source.is_wrong(&places(&GROUPS)), NoiseMultiplier::new(1.0))
        && let Err(error) = build::trainer(config, model, noise, None, 1)
    {
        let key = group_key(config, &error.to_string());
        add(source, error, &key);
    }
}

/// The key of the group whose pattern an error quotes.
fn group_key(config: &Config, text: &str) -> String {
    let quotes = |pattern: &String| text.contains(&format!("'{pattern}'"));
    let group = config.privacy.groups.iter().position(|group| group.vectors.iter().any(quotes));
    match group {
        Some(place) => format!("privacy.groups[{}].vectors", place + 1),
        None => "privacy.groups".to_owned(),
    }
}

/// The files that can be read: those that are there, if what is declared about them is right.
pub(super) struct Readable {
    train: bool,
    test: bool,
    calibration: bool,
}

impl Readable {
    pub(super) fn new(source: &Source, config: &Config) -> Self {
        let declared = !source.is_wrong(&[places(&FILES), column_keys(config, &["name"])].concat());
        let is_there = |file: &str, labels: &str| {
            declared && !source.is_wrong(&[format!("data.{file}"), format!("data.{labels}")])
        };
        Self {
            train: is_there("train", "labels"),
            test: is_there("test", "test_labels"),
            calibration: is_there("calibration", "calibration_labels"),
        }
    }
}

/// Adds what is wrong with each of these files; with private ones only if the run has a plan. Messages are those of `train`.
///
/// # Guarantee
/// Nothing that is said about private files depends on the values of a record, or on their number where it is private. They are
/// not compared with public files: whoever can run `check` could repeat that for free.
pub(super) fn check_files(
    source: &mut Source,
    config: &Config,
    readable: &Readable,
    has_plan: bool,
) {
    let train = (readable.train && has_plan).then(|| data::private(config, Process::ALONE).err());
    let test = readable.test.then(|| data::test(config).err());
    let calibration = readable.calibration.then(|| data::calibration(config).err());
    for error in [train, test, calibration].into_iter().flatten().flatten() {
        let key = file_key(config, &error);
        add(source, error, &key);
    }
}

/// The key of the column or file that an error is about.
fn file_key(config: &Config, error: &Error) -> String {
    let data = &config.data;
    let Error::Data { path, cause } = error else { return "data.train".to_owned() };
    let names_column = |name: &str| {
        [format!("column {name:?}"), format!("columns {name:?}")]
            .iter()
            .any(|text| cause.contains(text))
    };
    let features = (1..)
        .zip(&data.columns)
        .map(|(number, column)| (format!("data.columns[{number}].name"), column.name.as_str()));
    let label = data.label.as_deref().map(|name| ("data.label".to_owned(), name));
    let user = match &data.record {
        Record::User(user) => Some(("data.record.user".to_owned(), user.user.as_str())),
        _ => None,
    };
    let mut columns = features.chain(label).chain(user);
    if let Some((key, _)) = columns.find(|(_, name)| names_column(name)) {
        return key;
    }
    let file = data.files().find(|(_, file)| file.display().to_string() == *path);
    file.map_or_else(|| "data.train".to_owned(), |(key, _)| key)
}

/// Adds an error, at the key that it names, or else at this one.
pub(super) fn add(source: &mut Source, error: Error, key: &str) {
    let (code, text) = (error.code(), error.to_string());
    let named = match error {
        Error::Usage(_) => named_key(&text),
        _ => None,
    };
    source.add_later(Problem::new(named.unwrap_or_else(|| key.to_owned()), text), code);
}

/// The places of keys.
fn places(tables: &[(&str, &[&str])]) -> Vec<String> {
    let places = |(table, keys): &(&str, &[&str])| -> Vec<String> {
        keys.iter().map(|key| format!("{table}.{key}")).collect()
    };
    tables.iter().flat_map(places).collect()
}

/// The places of these keys of all columns.
fn column_keys(config: &Config, keys: &[&str]) -> Vec<String> {
    let numbers = 1..=config.data.columns.len();
    let places = numbers
        .flat_map(|number| keys.iter().map(move |key| format!("data.columns[{number}].{key}")));
    // Without any, the list itself may be what is wrong.
    let list = config.data.columns.is_empty().then(|| "data.columns".to_owned());
    places.chain(list).collect()
}
