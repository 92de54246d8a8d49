//! `--vary KEY=VALUE,...`: the values of a setting that a tuning chooses from.

use std::str::FromStr;

use serde_json::Value;

/// The keys that may vary: they change neither the event of a round nor the number of rounds, so that every run costs the
/// same.
const KEYS: [&str; 10] = [
    "train.optimizer.kind",
    "train.optimizer.lr",
    "train.optimizer.momentum",
    "train.optimizer.nesterov",
    "train.optimizer.weight_decay",
    "train.schedule",
    "train.cosine",
    "train.ema",
    "train.class_weights",
    "train.huber",
];

/// One `--vary KEY=V1,V2,...`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Varied {
    pub(crate) key: String,
    pub(crate) values: Vec<Value>,
}

impl FromStr for Varied {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let form = || format!("{text:?} is not KEY=VALUE,VALUE,...");
        let (key, values) = text.split_once('=').ok_or_else(form)?;
        let key = key.trim();
        if !KEYS.contains(&key) {
            let why = why_not(key);
            return Err(format!("{key:?} may not vary: {why}; these may: {}", KEYS.join(", ")));
        }
        let values: Vec<Value> = parts(values).into_iter().map(value).collect();
        if values.iter().any(|value| value.as_str() == Some("")) {
            return Err(form());
        }
        let is_repeated =
            values.iter().enumerate().any(|(i, value)| values.iter().take(i).any(|v| v == value));
        if is_repeated {
            return Err(format!("{text:?} has a value twice"));
        }
        Ok(Self { key: key.to_owned(), values })
    }
}

/// Why a key may not vary.
fn why_not(key: &str) -> &'static str {
    match key.split('.').next() {
        Some("privacy") => {
            "it changes what a round costs or releases, so every value would need a charge of its own, and one charge is for \
             the same rounds, sampling, clip norms and noise in all runs"
        }
        Some("train") if matches!(key, "train.rounds" | "train.epochs") => {
            "it changes how many rounds a run has, so every value would need a charge of its own, and one charge is for the \
             same rounds in all runs"
        }
        Some("train") => "it is no setting of the optimizer or of the loss",
        Some("data" | "model") => "all runs have the same data and begin with the same model",
        _ => "it is no key of a configuration, such as train.optimizer.lr",
    }
}

/// Splits at the commas that are not inside brackets.
fn parts(text: &str) -> Vec<&str> {
    let (mut parts, mut start, mut depth) = (Vec::new(), 0, 0i32);
    for (place, character) in text.char_indices() {
        match character {
            '[' => depth += 1,
            ']' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(text.get(start..place).unwrap_or_default().trim());
                start = place + 1;
            }
            _ => {}
        }
    }
    parts.push(text.get(start..).unwrap_or_default().trim());
    parts
}

/// A value as in a configuration; words need no quotation marks.
fn value(text: &str) -> Value {
    let table = toml::from_str::<toml::Table>(&format!("x = {text}")).ok();
    let parsed = table.and_then(|mut table| table.remove("x"));
    let parsed = parsed.and_then(|value| serde_json::to_value(value).ok());
    parsed.unwrap_or_else(|| Value::String(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_those_of_a_configuration_and_keys_that_change_the_cost_are_refused() {
        let varied: Varied = "train.optimizer.lr=0.5, 1,2e-1".parse().unwrap();
        assert_eq!(varied.values, [0.5.into(), 1.into(), Value::from(0.2)]);
        let varied: Varied = "train.schedule=constant,\"cosine\"".parse().unwrap();
        assert_eq!(varied.values, ["constant", "cosine"]);
        let varied: Varied = "train.class_weights=[1.0,2.0],[1.0,4.0]".parse().unwrap();
        assert_eq!(varied.values.len(), 2);
        for (key, why) in [
            ("train.rounds", "a charge of its own"),
            ("train.epochs", "a charge of its own"),
            ("privacy.noise_multiplier", "a charge of its own"),
            ("privacy.expected_batch", "a charge of its own"),
            ("privacy.clip", "a charge of its own"),
            ("privacy.sampling", "a charge of its own"),
            ("train.block", "no setting"),
            ("data.train", "same data"),
            ("model.hidden", "same model"),
            ("lr", "such as train.optimizer.lr"),
        ] {
            let error = format!("{key}=1,2").parse::<Varied>().unwrap_err();
            assert!(error.contains(key) && error.contains(why), "{error}");
        }
        for wrong in ["train.ema", "train.ema=", "train.ema=0.9,,0.99", "train.ema=0.9,0.9"] {
            assert!(wrong.parse::<Varied>().is_err(), "{wrong}");
        }
    }
}
