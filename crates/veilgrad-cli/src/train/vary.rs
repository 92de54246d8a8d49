//! The settings that a tuning chooses from: all combinations of the values given with `--vary`. The list is public.

use serde_json::{Map, Value};

use super::config::Config;
use crate::argument::Varied;
use crate::error::Error;
use crate::problem::joined;

/// More are taken for a mistake.
const MOST_SETTINGS: usize = 100_000;

/// One of the settings: the values that vary, and the configuration with them.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Setting {
    pub(crate) values: Value,
    pub(crate) config: Config,
}

/// All settings of a configuration.
pub(crate) fn settings(config: &Config, varied: &[Varied]) -> Result<Vec<Setting>, Error> {
    let twice = varied
        .iter()
        .enumerate()
        .find(|(i, one)| varied.iter().take(*i).any(|other| other.key == one.key));
    if let Some((_, one)) = twice {
        return Err(Error::Usage(format!(
            "--vary has {} twice; give all its values once",
            one.key
        )));
    }
    let count = varied.iter().try_fold(1usize, |all, one| all.checked_mul(one.values.len()));
    if count.is_none_or(|count| count > MOST_SETTINGS) {
        return Err(Error::Usage(format!("--vary gives more than {MOST_SETTINGS} settings")));
    }
    let mut combinations = vec![Map::new()];
    for Varied { key, values } in varied {
        let with = |known: &Map<String, Value>, value: &Value| {
            let mut all = known.clone();
            all.insert(key.clone(), value.clone());
            all
        };
        combinations = combinations
            .iter()
            .flat_map(|known| values.iter().map(|value| with(known, value)).collect::<Vec<_>>())
            .collect();
    }
    let base = serde_json::to_value(config).map_err(Error::failure)?;
    combinations.into_iter().map(|values| setting(&base, values)).collect()
}

fn setting(base: &Value, values: Map<String, Value>) -> Result<Setting, Error> {
    let mut document = base.clone();
    for (key, value) in &values {
        let (table, name) = key.rsplit_once('.').unwrap_or(("", key));
        let pointer = format!("/{}", table.replace('.', "/"));
        let table = document.pointer_mut(&pointer).and_then(Value::as_object_mut);
        let table =
            table.ok_or_else(|| Error::Usage(format!("--vary {key}: there is no such table")))?;
        table.insert(name.to_owned(), value.clone());
    }
    let values = Value::Object(values);
    let wrong = |why: String| Error::Usage(format!("--vary gives the setting {values}: {why}"));
    let config: Config =
        serde_json::from_value(document).map_err(|error| wrong(error.to_string()))?;
    let problems = config.problems();
    if !problems.is_empty() {
        return Err(wrong(joined(&problems)));
    }
    Ok(Setting { values, config })
}

/// The varied values as JSON, by key.
pub(crate) fn describe(varied: &[Varied]) -> Value {
    let entry = |one: &Varied| (one.key.clone(), Value::Array(one.values.clone()));
    Value::Object(varied.iter().map(entry).collect())
}
