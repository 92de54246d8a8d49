//! The reference is the whole truth about keys: each of its keys is accepted, and each accepted key is in it.

use serde::de::DeserializeOwned;

use crate::train::check::Source;
use crate::train::config::*;
use crate::train::reference::{Key, Table, Value, page, table, tables};

const ROWS: &str = r#"
data = { train = "train.csv", label = "sick", classes = ["no", "yes"], records = 60000, columns = [
    { name = "age", bounds = [0, 100] }, { name = "ward", categories = ["surgery", "medicine"] },
] }
model = { kind = "linear" }
privacy = { epsilon = 3.0, delta = 1e-5, expected_batch = 256 }
train = { rounds = 200, optimizer = { kind = "sgd", lr = 0.5 } }
"#;

const IMAGES: &str = r#"
data = { train = "images.npz", labels = "labels.npy", classes = 2, records = 60000, shape = [28, 28], bounds = [0, 255] }
model = { kind = "linear" }
privacy = { epsilon = 3.0, delta = 1e-5, expected_batch = 256 }
train = { rounds = 200, optimizer = { kind = "sgd", lr = 0.5 } }
"#;

fn value(literal: &str) -> toml::Value {
    let text: toml::Table = toml::from_str(&format!("x = {literal}")).unwrap();
    text["x"].clone()
}

/// Sets the value at a path such as `data.columns.0.name`; `None` removes it.
pub(super) fn set(root: &mut toml::Table, path: &str, literal: Option<&str>) {
    let (above, last) = path.rsplit_once('.').unwrap_or(("", path));
    let mut here = root;
    let mut steps = above.split('.').filter(|step| !step.is_empty()).peekable();
    while let Some(step) = steps.next() {
        let below = here.entry(step).or_insert_with(|| toml::Value::Table(toml::Table::new()));
        here = match steps.peek().and_then(|number| number.parse::<usize>().ok()) {
            Some(number) => {
                steps.next();
                below.as_array_mut().unwrap()[number].as_table_mut().unwrap()
            }
            None => below.as_table_mut().unwrap(),
        };
    }
    match literal {
        Some(literal) => drop(here.insert(last.to_owned(), value(literal))),
        None => drop(here.remove(last)),
    }
}

/// What must be set for a key to have a meaning, and the path of the key then.
pub(super) fn setting(
    table: &Table,
    key: &Key,
) -> (&'static str, Vec<(String, Option<String>)>, String) {
    let (mut base, mut path) = (ROWS, format!("{}.{}", table.path, key.name));
    let mut changes: Vec<(&str, Option<&str>)> = Vec::new();
    let mut layer = String::new();
    let mut record = None;
    let users = "{ user = \"person\", max_examples = 8 }";
    match (table.path, key.name) {
        ("data", "labels" | "shape" | "bounds") => base = IMAGES,
        ("data", "test_labels") => {
            (base, changes) = (IMAGES, vec![("data.test", Some("\"t.npy\""))])
        }
        ("data", "calibration_labels") => {
            (base, changes) = (IMAGES, vec![("data.calibration", Some("\"c.npy\""))]);
        }
        ("data", "label_bounds") => changes = vec![("data.classes", None)],
        ("data", "arrays") | ("data.arrays", _) => {
            let arrays = "{ inputs = \"x\", labels = \"y\", users = \"u\" }";
            (base, changes) = (IMAGES, vec![("data.labels", None), ("data.arrays", Some(arrays))]);
        }
        ("data.record", "user" | "max_examples") => {
            changes = vec![("data.record", Some(users))];
        }
        ("data.record", "user_ids") => {
            let ids = "{ user_ids = \"ids.npy\", max_examples = 8 }";
            (base, changes) = (IMAGES, vec![("data.record", Some(ids))]);
        }
        ("data.record", "partition" | "users" | "seed" | "concentration" | "classes_per_user") => {
            let how = match key.name {
                "concentration" => "dirichlet",
                "classes_per_user" => "by-class",
                _ => "uniform",
            };
            let made_up = format!("{{ partition = {how:?}, users = 60000, max_examples = 8 }}");
            record = Some(made_up);
        }
        ("data.record", _) => changes = vec![("data.record", Some("{ microbatch = 4 }"))],
        ("data.columns", name) => {
            let number = if name == "categories" || name == "embedding" { 1 } else { 0 };
            path = format!("data.columns.{number}.{name}");
            if name == "embedding" {
                changes = vec![("model.kind", Some("\"mlp\"")), ("model.hidden", Some("[4]"))];
            }
        }
        ("model", "hidden") => changes = vec![("model.kind", Some("\"mlp\""))],
        ("model", "batch_norm") => {
            let group = "[{ vectors = [\"statistics\"], clip = 1.0, share = 0.1 }]";
            changes = vec![
                ("model.kind", Some("\"mlp\"")),
                ("model.hidden", Some("[4]")),
                ("privacy.groups", Some(group)),
            ];
        }
        ("model", "filters") => (base, changes) = (IMAGES, vec![("model.kind", Some("\"cnn\""))]),
        ("model", "layers") => changes = vec![("model.kind", Some("\"layers\""))],
        ("model", "features" | "scattering" | "augment") | ("model.scattering", _) => {
            (base, changes) = (IMAGES, vec![("model.features", Some("\"scattering\""))]);
        }
        ("model.augment", _) => {
            let copies = "{ copies = 2, shift = 1, flip = true }";
            (base, changes) = (IMAGES, vec![("model.augment", Some(copies))]);
        }
        ("model", "init_sha256" | "fresh") => {
            changes = vec![("model.init", Some("\"public.safetensors\""))];
        }
        ("model.layers", name) => {
            path = format!("model.layers.0.{name}");
            layer = match key.kinds.first().copied().unwrap_or("relu") {
                "linear" => "[{ kind = \"linear\", outputs = 3 }]",
                "conv" => "[{ kind = \"conv\", filters = 8, kernel = 3 }]",
                "group-norm" => "[{ kind = \"group-norm\", groups = 2 }]",
                "max-pool" => "[{ kind = \"max-pool\", size = 2 }]",
                _ => "[{ kind = \"relu\" }]",
            }
            .to_owned();
            base = IMAGES;
        }
        ("privacy", "sampling") => changes = vec![("privacy.adjacency", Some("\"replace-one\""))],
        ("privacy", "weights") | ("train", "local" | "simulate") => {
            changes = vec![("data.record", Some(users))];
        }
        ("privacy.weights", _) => {
            let weights = "{ bound = 8, expected = 4 }";
            changes = vec![("data.record", Some(users)), ("privacy.weights", Some(weights))];
        }
        ("privacy.denominator", _) => {
            changes = vec![("privacy.denominator", Some("{ floor = 100, share = 0.05 }"))];
        }
        ("privacy.adaptive", _) => {
            changes = vec![("privacy.adaptive", Some("{ floor = 0.01, share = 0.02 }"))];
        }
        ("train.local", _) => {
            let local = "{ lr = 0.1, batch = 8 }";
            changes = vec![("data.record", Some(users)), ("train.local", Some(local))];
        }
        ("train.simulate", _) => changes = vec![("data.record", Some(users))],
        ("privacy", "noise_multiplier") => changes = vec![("privacy.epsilon", None)],
        ("privacy", "max_batch") => {
            changes = vec![
                ("privacy.sampling", Some("\"truncated\"")),
                ("privacy.adjacency", Some("\"replace-one\"")),
            ];
        }
        ("privacy.groups", name) => {
            path = format!("privacy.groups.0.{name}");
            changes = vec![("privacy.groups", Some("[{ vectors = [\"*\"], clip = 1.0 }]"))];
        }
        ("privacy", "precondition") | ("privacy.precondition", _) => {
            changes = vec![("model.input_norm", Some("63.0"))];
        }
        ("train", "epochs") => changes = vec![("train.rounds", None)],
        ("train", "huber") => {
            changes = vec![("data.classes", None), ("data.label_bounds", Some("[0, 100]"))];
        }
        ("train.optimizer", "weight_decay") => {
            changes = vec![("train.optimizer.kind", Some("\"adamw\""))];
        }
        _ => {}
    }
    let owned =
        |(path, literal): (&str, Option<&str>)| (path.to_owned(), literal.map(str::to_owned));
    let mut changes: Vec<_> = changes.into_iter().map(owned).collect();
    if record.is_some() {
        changes.push(("data.record".to_owned(), record));
    }
    if !layer.is_empty() {
        changes.push(("model.kind".to_owned(), Some("\"layers\"".to_owned())));
        changes.push(("model.layers".to_owned(), Some(layer)));
    }
    (base, changes, path)
}

fn find<'v>(root: &'v toml::Value, path: &str) -> Option<&'v toml::Value> {
    path.split('.').try_fold(root, |value, step| match step.parse::<usize>() {
        Ok(number) => value.as_array()?.get(number),
        Err(_) => value.as_table()?.get(step),
    })
}

/// Whether a stored value is the given one. Some numbers are stored in 32 bits, and tables with their defaults.
fn means(stored: &toml::Value, given: &toml::Value) -> bool {
    let number = |value: &toml::Value| value.as_float().or(value.as_integer().map(|i| i as f64));
    match (stored, given) {
        (toml::Value::Table(stored), toml::Value::Table(given)) => given
            .iter()
            .all(|(key, value)| stored.get(key).is_some_and(|found| means(found, value))),
        (toml::Value::Array(stored), toml::Value::Array(given)) => {
            stored.len() == given.len() && stored.iter().zip(given).all(|(s, g)| means(s, g))
        }
        _ => match (number(stored), number(given)) {
            (Some(stored), Some(given)) => (stored - given).abs() <= 1e-6 * given.abs(),
            _ => stored == given,
        },
    }
}

#[test]
fn every_key_of_the_reference_is_accepted_and_refused_with_its_line_if_its_type_is_wrong() {
    let mut keys = 0;
    for table in tables() {
        for key in table.keys {
            let (base, changes, path) = setting(table, key);
            let mut root: toml::Table = toml::from_str(base).unwrap();
            for (path, literal) in &changes {
                set(&mut root, path, literal.as_deref());
            }
            set(&mut root, &path, Some(key.example));
            let text = toml::to_string(&root).unwrap();
            let config =
                Config::parse(&text).unwrap_or_else(|error| panic!("{path}: {error}\n{text}"));
            let stored = toml::Value::try_from(&config).unwrap();
            let found = find(&stored, &path).unwrap_or_else(|| panic!("{path} is not stored"));
            assert!(means(found, &value(key.example)), "{path}: {found}");

            // A date is nothing that a key takes.
            set(&mut root, &path, Some("1979-05-27"));
            let text = toml::to_string(&root).unwrap();
            let line = 1 + text.lines().position(|line| line.contains("1979-05-27")).unwrap();
            let source = Source::of("", &text);
            let problem = source.problems().iter().find(|problem| problem.line == Some(line));
            let problem = problem.unwrap_or_else(|| panic!("{path}: {:?}", source.problems()));
            assert!(problem.text.contains("found a date"), "{path}: {problem}");
            assert!(problem.key.ends_with(key.name), "{path}: {problem:?}");

            // A key that is nearly this one is refused, and this one is suggested.
            set(&mut root, &path, None);
            let (above, _) = path.rsplit_once('.').unwrap();
            set(&mut root, &format!("{above}.{}_x", key.name), Some(key.example));
            let text = toml::to_string(&root).unwrap();
            let error = Config::parse(&text).unwrap_err();
            assert!(error.contains(&format!("has no key `{}_x`", key.name)), "{path}: {error}");
            assert!(error.contains("did you mean `"), "{path}: {error}");
            keys += 1;
        }
    }
    assert!(keys > 80, "{keys}");
}

/// The fields of a type, from its own error about an unknown one.
fn fields<T: DeserializeOwned>(with: &str) -> Vec<String> {
    let Err(error) = toml::from_str::<T>(&format!("{with}\nunknown_key = 1")) else {
        panic!("an unknown key is accepted")
    };
    let message = error.message().to_owned();
    assert!(message.contains("unknown field `unknown_key`"), "{message}");
    let mut names: Vec<String> = message.split('`').skip(3).step_by(2).map(str::to_owned).collect();
    names.sort();
    names
}

#[test]
fn every_key_that_is_accepted_is_in_the_reference() {
    let declared = |path: &str, kind: Option<&str>| {
        let keys = table(path).unwrap().keys.iter().filter(|key| key.is_for(kind));
        // The tag of a variant is no field of it.
        let keys = keys.filter(|key| !(kind.is_some() && key.name == "kind"));
        let mut names: Vec<String> = keys.map(|key| key.name.to_owned()).collect();
        names.sort();
        names
    };
    for (path, found) in [
        ("data", fields::<Data>("")),
        ("data.arrays", fields::<Arrays>("")),
        ("data.columns", fields::<Column>("")),
        ("model", fields::<Model>("")),
        ("model.scattering", fields::<Scattering>("")),
        ("model.augment", fields::<Augment>("")),
        ("privacy", fields::<Privacy>("")),
        ("privacy.groups", fields::<Group>("")),
        ("privacy.precondition", fields::<Precondition>("")),
        ("privacy.correlated", fields::<Correlated>("")),
        ("privacy.weights", fields::<Weights>("")),
        ("privacy.denominator", fields::<Denominator>("")),
        ("privacy.adaptive", fields::<Adaptive>("")),
        ("train.local", fields::<Local>("")),
        ("train.simulate", fields::<Simulate>("")),
        ("train", fields::<Train>("")),
        ("audit", fields::<Audit>("")),
    ] {
        assert_eq!(declared(path, None), found, "{path}");
    }
    let mut record = [fields::<User>(""), fields::<UserIds>(""), fields::<Microbatch>("")].concat();
    record.extend(fields::<MadeUp>(""));
    record.sort();
    record.dedup();
    assert_eq!(declared("data.record", None), record);
    let kinds = |path: &str| match table(path).unwrap().keys[0].value {
        Value::OneOf(kinds) => kinds,
        other => panic!("{other:?}"),
    };
    for kind in kinds("train.optimizer") {
        let found = fields::<Optimizer>(&format!("kind = {kind:?}"));
        assert_eq!(declared("train.optimizer", Some(kind)), found, "{kind}");
    }
    for kind in ["linear", "conv", "max-pool", "average-pool", "group-norm"] {
        let found = fields::<Layer>(&format!("kind = {kind:?}"));
        assert_eq!(declared("model.layers", Some(kind)), found, "{kind}");
    }
    // Layers without keys, and the words of every other list, are those that the types accept.
    for (kinds, error) in [
        (kinds("model.layers"), toml::from_str::<Layer>("kind = \"?\"").unwrap_err()),
        (kinds("train.optimizer"), toml::from_str::<Optimizer>("kind = \"?\"").unwrap_err()),
    ] {
        let known: Vec<&str> = error.message().split('`').skip(3).step_by(2).collect();
        assert_eq!(known, kinds);
    }
}

#[test]
fn every_word_of_the_reference_is_accepted() {
    for table in tables() {
        for key in table.keys {
            let Value::OneOf(words) = key.value else { continue };
            // What the other keys of a layer, an optimizer or a model must be depends on the word.
            if key.name == "kind" {
                continue;
            }
            for word in words {
                let (base, changes, path) = setting(table, key);
                let mut root: toml::Table = toml::from_str(base).unwrap();
                for (path, literal) in &changes {
                    set(&mut root, path, literal.as_deref());
                }
                set(&mut root, &path, Some(&format!("{word:?}")));
                let text = toml::to_string(&root).unwrap();
                Config::parse(&text).unwrap_or_else(|error| panic!("{path} {word}: {error}"));
            }
        }
    }
}

#[test]
fn the_page_of_the_documentation_is_that_of_the_code() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/configuration.md");
    let written = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        written == page(),
        "write it again: cargo run -p veilgrad-cli -- man configuration > docs/configuration.md"
    );
}

/// The code of files, without comments and tests.
fn code(path: &std::path::Path, all: &mut String) {
    for entry in std::fs::read_dir(path).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        // What reads, describes and checks a configuration, and its hash, do not act on it.
        let inert = ["check", "check.rs", "reference", "reference.rs", "fingerprint.rs", "vary.rs"];
        if inert.contains(&name.as_str()) || name.starts_with("tests") {
            continue;
        }
        if path.is_dir() {
            code(&path, all);
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let text = text.split("#[cfg(test)]").next().unwrap_or_default();
        let lines = text.lines().map(str::trim).filter(|line| !line.starts_with("//"));
        // Declarations of keys do not count either.
        for line in lines.filter(|line| !line.starts_with("pub(crate) ") || line.contains("fn ")) {
            all.push_str(line);
            all.push('\n');
        }
    }
}

/// A key that is parsed, checked and stored, and that nothing else reads, has no effect.
#[test]
fn every_key_is_read_by_code_that_trains() {
    let mut all = String::new();
    code(std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/src/train")), &mut all);
    let words: std::collections::HashSet<&str> =
        all.split(|c: char| !(c.is_alphanumeric() || c == '_')).collect();
    assert!(words.contains("expected_batch") && !words.contains("a_key_without_effect"));
    for table in tables() {
        // The tag of a variant is read with it.
        for key in table.keys.iter().filter(|key| key.name != "kind") {
            assert!(words.contains(key.name), "{} {}", table.label, key.name);
        }
    }
}
