//! Values of every key: nothing that is written hides other problems, and defaults are those of the reference.

use super::keys::{set, setting};
use crate::problem::Problem;
use crate::train::build;
use crate::train::check::Source;
use crate::train::config::{Config, Record};
use crate::train::data::partition;
use crate::train::network;
use crate::train::reference::{Default, Key, Table, tables};

/// Values of all types; for most keys of a wrong type, or too small or large.
const VALUES: [&str; 22] = [
    "0",
    "-1",
    "1",
    "300",
    "5000000000",
    "9223372036854775807",
    "9223372036854775808",
    "99999999999999999999999999999999999999999",
    "1e300",
    "nan",
    "true",
    "\"\"",
    "\"x\"",
    "[]",
    "[1]",
    "[300, 5000000000]",
    "[1, 2, 3]",
    "[\"a\", \"a\"]",
    "[[]]",
    "{}",
    "[{}]",
    "1979-05-27",
];

/// A configuration in which a key has a value, for which the key may have a meaning.
fn with_value(table: &Table, key: &Key, value: &str) -> String {
    let (base, changes, path) = setting(table, key);
    let mut root: toml::Table = toml::from_str(base).unwrap();
    for (path, literal) in &changes {
        set(&mut root, path, literal.as_deref());
    }
    set(&mut root, &path, Some("\"@\""));
    // Not every literal can be stored, such as a number of more than 64 bits.
    toml::to_string(&root).unwrap().replace("\"@\"", value)
}

#[test]
fn no_value_of_a_key_hides_other_problems() {
    let mut hidden = Vec::new();
    for table in tables() {
        for key in table.keys {
            for value in VALUES {
                let text = with_value(table, key, value);
                let (from, to, what) = match (table.path, key.name) {
                    ("privacy", "delta") => {
                        ("rounds = 200", "rounds = 200\nema = 3.0", "[train] ema")
                    }
                    _ => ("delta = 0.00001", "delta = 2.0", "[privacy] delta 2"),
                };
                let wrong = text.replace("1e-5", "0.00001").replace(from, to);
                assert_ne!(wrong, text, "{text}");
                let source = Source::of("", &wrong);
                let is_named = |problem: &Problem| problem.text.contains(what);
                if source.config().is_none() || !source.problems().iter().any(is_named) {
                    let problems = source.problems();
                    hidden.push(format!("{} {} = {value}: {problems:?}", table.label, key.name));
                }
            }
        }
    }
    assert!(hidden.is_empty(), "{hidden:#?}");
}

#[test]
fn the_keys_of_a_record_go_together_and_other_problems_are_named_as_well() {
    let arrays = "[data] record: expected";
    for (record, what) in [
        ("{ user = \"who\" }", "[data] record: max_examples is missing: a whole number of 1"),
        ("{ user_ids = \"ids.npy\" }", "[data] record: max_examples is missing"),
        ("{ user = \"who\", microbatch = 4 }", "`user` and `microbatch` do not go together"),
        ("{ microbatch = 4, max_examples = 3 }", "max_examples is not for `microbatch`"),
        ("{ user = \"who\", max_examples = 3, seed = 1 }", "seed is not for `user`"),
        ("{ partition = \"uniform\", max_examples = 3 }", "users is missing: a whole number"),
        ("{ max_examples = 3 }", arrays),
        ("{}", arrays),
        ("{ user = \"who\", max_examples = 5000000000 }", "expected at most 4294967295"),
        ("{ user = \"who\", max_exampels = 3 }", "did you mean `max_examples`?"),
        ("{ usr = \"who\", max_examples = 3 }", "did you mean `user`?"),
        ("{ microbatch = 0 }", "found 0"),
    ] {
        let text = super::TABLE
            .replace("record = { user = \"who\", max_examples = 3 }", &format!("record = {record}"))
            .replace("rounds = 7", "rounds = 7\nema = 3.0");
        let line = 1 + text.lines().position(|line| line.starts_with("record = ")).unwrap();
        let source = Source::of("", &text);
        let found: Vec<String> = source.problems().iter().map(ToString::to_string).collect();
        assert_eq!(found.len(), 2, "{record}: {found:#?}");
        assert!(found[0].starts_with(&format!("line {line}: ")), "{record}: {found:#?}");
        assert!(found[0].contains(what), "{what}: {found:#?}");
        assert!(found[1].contains("[train] ema"), "{record}: {found:#?}");
    }
}

#[test]
fn values_beyond_their_type_are_named_beside_other_problems() {
    for (from, to, what) in [
        (
            "kind = \"linear\"",
            "kind = \"linear\"\naugment = { shift = 300 }",
            "[model.augment] shift: expected at most 255, found 300",
        ),
        (
            "rounds = 7",
            "rounds = 7\nblock = 9223372036854775808",
            "[train] block: expected at most 9223372036854775807",
        ),
    ] {
        let text = super::TABLE.replace(from, to).replace("delta = 1e-5", "delta = 2.0");
        let source = Source::of("", &text);
        let found: Vec<&str> = source.problems().iter().map(|found| &*found.text).collect();
        assert!(found.iter().any(|text| text.contains(what)), "{what}: {found:#?}");
        assert!(found.iter().any(|text| text.contains("delta 2")), "{what}: {found:#?}");
    }
}

/// What a configuration says: its keys, and what is filled in for keys that are not stored without a value.
fn meaning(text: &str, key: &str) -> String {
    let mut config = Config::parse(text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let resolved = match key {
        "concentration" | "classes_per_user" => match &mut config.data.record {
            Record::MadeUp(made_up) => {
                let partition = partition(made_up);
                (made_up.concentration, made_up.classes_per_user) = (None, None);
                format!("{partition:?}")
            }
            other => panic!("{other:?}"),
        },
        "filters" => {
            let layers = network::layers(&config.declaration()).ok().unwrap();
            config.model.filters = None;
            format!("{layers:?}")
        }
        "schedule" => {
            let schedule = build::schedule(&config);
            config.train.schedule = None;
            format!("{schedule:?}")
        }
        _ => String::new(),
    };
    format!("{config:?} {resolved}")
}

#[test]
fn a_key_with_its_default_means_what_no_key_means() {
    let mut count = 0;
    for table in tables() {
        for key in table.keys {
            let Default::Is(words) = key.default else { continue };
            let literal = words.strip_prefix('`').and_then(|rest| rest.strip_suffix('`'));
            let Some(literal) = literal.filter(|literal| !literal.contains('`')) else { continue };
            let given = with_value(table, key, literal);
            let (base, changes, path) = setting(table, key);
            let mut root: toml::Table = toml::from_str(base).unwrap();
            for (path, literal) in &changes {
                set(&mut root, path, literal.as_deref());
            }
            set(&mut root, &path, None);
            let without = toml::to_string(&root).unwrap();
            let place = format!("{} {}", table.label, key.name);
            assert_eq!(meaning(&given, key.name), meaning(&without, key.name), "{place}");
            // Another value means something else: the comparison would see a wrong default.
            let other = with_value(table, key, key.example);
            let differs = meaning(&other, key.name) != meaning(&without, key.name);
            assert_eq!(differs, key.example != literal, "{place} = {}", key.example);
            count += 1;
        }
    }
    assert!(count > 25, "{count}");
}
