//! The fingerprint of a configuration: the part that a resumed run must not change.

use serde_json::Value;

use super::config::Config;
use crate::hash::sha256;

/// Keys that a resumed run may change: paths, public examples, and how rounds are charged and saved.
const MAY_DIFFER: [(&str, &str); 9] = [
    ("data", "train"),
    ("data", "labels"),
    ("data", "test"),
    ("data", "test_labels"),
    ("data", "calibration"),
    ("data", "calibration_labels"),
    // Its hash may not.
    ("model", "init"),
    ("train", "block"),
    ("train", "checkpoint_rounds"),
];

impl Config {
    /// The configuration without the keys that a resumed run may change. It has no paths.
    pub(crate) fn fingerprint(&self) -> Result<Value, String> {
        let mut value = serde_json::to_value(self).map_err(|error| error.to_string())?;
        for (section, key) in MAY_DIFFER {
            if let Some(section) = value.get_mut(section).and_then(Value::as_object_mut) {
                section.remove(key);
            }
        }
        if let Some(record) = value.pointer_mut("/data/record").and_then(Value::as_object_mut) {
            record.remove("user_ids");
        }
        Ok(value)
    }

    /// SHA-256 of the fingerprint, which the ledger stores.
    pub(crate) fn hash(&self) -> Result<String, String> {
        Ok(sha256(self.fingerprint()?.to_string()))
    }
}

/// The first key in which two fingerprints differ, with both values.
pub(crate) fn difference(was: &Value, is: &Value) -> Option<String> {
    let (Value::Object(sections), Value::Object(others)) = (was, is) else {
        return (was != is).then(|| "the configuration is another one".to_owned());
    };
    let names = sections.keys().chain(others.keys());
    names.into_iter().find_map(|section| {
        let (was, is) = (sections.get(section), others.get(section));
        difference_at(&format!("[{section}]"), " ", was, is)
    })
}

/// The first difference at a key or below it. `separator` joins it to the next key.
fn difference_at(
    place: &str,
    separator: &str,
    was: Option<&Value>,
    is: Option<&Value>,
) -> Option<String> {
    if was == is {
        return None;
    }
    match (was, is) {
        (Some(Value::Object(was)), Some(Value::Object(is))) => {
            let mut keys = was.keys().chain(is.keys());
            keys.find_map(|key| {
                let place = format!("{place}{separator}{key}");
                difference_at(&place, ".", was.get(key), is.get(key))
            })
        }
        (Some(Value::Array(was)), Some(Value::Array(is)))
            if was.len() == is.len() && was.iter().chain(is).all(Value::is_object) =>
        {
            let pairs = (1..).zip(was.iter().zip(is));
            pairs.into_iter().find_map(|(number, (was, is))| {
                difference_at(&format!("{place} {number}"), ": ", Some(was), Some(is))
            })
        }
        _ => {
            let text =
                |value: Option<&Value>| value.map_or("not given".to_owned(), Value::to_string);
            Some(format!("{place} was {}, and is {}", text(was), text(is)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::check::tests::EXAMPLE;
    use super::*;

    fn fingerprint(from: &str, to: &str) -> Value {
        assert!(EXAMPLE.contains(from), "{from}");
        Config::parse(&EXAMPLE.replace(from, to)).unwrap().fingerprint().unwrap()
    }

    #[test]
    fn the_key_that_differs_is_named_with_both_values() {
        let was = fingerprint("[model]", "[model]");
        for (from, to, what) in [
            ("batch = 8192", "batch = 256", "[privacy] expected_batch was 8192.0, and is 256.0"),
            (
                "epsilon = 3.0",
                "noise_multiplier = 2.0",
                "[privacy] epsilon was 3.0, and is not given",
            ),
            (
                "classes = 10",
                "classes = [\"a\", \"b\"]",
                "[data] classes was 10, and is [\"a\",\"b\"]",
            ),
            ("lr = 0.6", "lr = 0.5", "[train] optimizer.lr was 0.6, and is 0.5"),
            ("rounds = 700", "rounds = 800", "[train] rounds was 700, and is 800"),
            (
                "classes = 10",
                "classes = 10\nrecord = { microbatch = 4 }",
                "[data] record was \"example\", and is {\"microbatch\":4}",
            ),
        ] {
            assert_eq!(difference(&was, &fingerprint(from, to)).as_deref(), Some(what));
        }
    }

    #[test]
    fn paths_and_how_rounds_are_charged_may_differ() {
        let was = fingerprint("[model]", "[model]");
        for (from, to) in [
            ("data/mnist/train-images", "elsewhere/train-images"),
            ("rounds = 700", "rounds = 700\nblock = 8\ncheckpoint_rounds = 3"),
            ("records = 60000", "records = 60000\ntest = \"t\"\ntest_labels = \"l\""),
        ] {
            assert_eq!(difference(&was, &fingerprint(from, to)), None, "{to}");
        }
        assert!(!was.to_string().contains('/'), "{was}");
    }
}
