//! All problems at once, each with its line.

use super::*;
use crate::train::check::Source;

/// The lines and texts of all problems.
fn problems(text: &str) -> Vec<(Option<usize>, String)> {
    let source = Source::of("", text);
    source.problems().iter().map(|problem| (problem.line, problem.to_string())).collect()
}

/// The line of a text, counted from 1.
fn line(text: &str, what: &str) -> Option<usize> {
    text.lines().position(|line| line.contains(what)).map(|place| place + 1)
}

#[test]
fn all_problems_come_at_once_with_their_lines() {
    let text = TABLE
        .replace("classes = [", "clases = [")
        .replace("records = 100", "records = \"100\"")
        .replace("bounds = [0, 100]", "bounds = [100, 0]")
        .replace("categories = [\"a\", \"b\"]", "categories = [\"a\", \"a\"]")
        .replace("kind = \"linear\"", "kind = \"liner\"")
        .replace("delta = 1e-5", "delta = 2")
        .replace("expected_batch = 10", "expected_batch = 10\nclip = -1")
        .replace("rounds = 7", "rounds = 7\nema = 3")
        .replace("lr = 0.6", "lr = 0.0, momentum = 2");
    let found = problems(&text);
    let expected = [
        ("clases", "has no key `clases`; did you mean `classes`?"),
        (
            "\"100\"",
            "[data] records: expected a whole number of 1 or more, found \"100\"; did you mean 100, without quotes?",
        ),
        ("[100, 0]", "column \"age\": bounds must ascend"),
        ("[\"a\", \"a\"]", "column \"ward\": categories has \"a\" twice"),
        ("liner", "[model] kind: expected \"linear\""),
        ("delta = 2", "[privacy] delta 2"),
        ("clip = -1", "[privacy] clip norm -1"),
        ("ema = 3", "[train] ema is not in [0, 1)"),
        ("lr = 0.0", "[train] optimizer: lr 0 is not a positive number"),
        ("lr = 0.0", "[train] optimizer: momentum 2 is not in [0, 1)"),
    ];
    for (place, what) in expected {
        let wanted = line(&text, place);
        let hit = found.iter().any(|(line, text)| *line == wanted && text.contains(what));
        assert!(hit, "line {wanted:?} {what}: {found:#?}");
    }
    // Nothing else: consequences of these are not problems of their own.
    assert_eq!(found.len(), expected.len(), "{found:#?}");
    assert!(found.is_sorted_by_key(|(line, _)| *line), "{found:#?}");
}

#[test]
fn syntax_errors_come_at_once_with_their_lines() {
    let text = TABLE.replace("delta = 1e-5", "delta = = 3").replace("rounds = 7", "rounds 7");
    let found = problems(&text);
    for what in ["delta = = 3", "rounds 7"] {
        let wanted = line(&text, what);
        assert!(found.iter().any(|(line, _)| *line == wanted), "{what}: {found:?}");
    }
}

#[test]
fn what_is_missing_is_named_at_its_table() {
    let text = TABLE.replace("records = 100\n", "").replace("delta = 1e-5\n", "");
    let found = problems(&text);
    assert_eq!(found.len(), 2, "{found:?}");
    assert_eq!(found[0].0, line(&text, "[data]"));
    assert!(found[0].1.contains("[data] records is missing: a whole number"), "{found:?}");
    assert_eq!(found[1].0, line(&text, "[privacy]"));
    let (before, _) = TABLE.split_once("[train]").unwrap();
    let found = problems(before);
    assert_eq!(found, [(None, "[train] is missing".to_owned())]);
}

#[test]
fn a_key_of_another_table_is_sent_there() {
    let found = problems(&TABLE.replace("rounds = 7", "rounds = 7\nsampling = \"fixed\""));
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].1.contains("[train] has no key `sampling`; `sampling` is a key of [privacy]"));
    let found = problems(&format!("epsilon = 3\n{TABLE}"));
    assert!(found[0].1.contains("`epsilon` is a key of [privacy]"), "{found:?}");
    let found = problems(&TABLE.replace("[privacy]", "[privaci]"));
    assert!(found.iter().any(|(_, text)| text.contains("did you mean [privacy]?")), "{found:?}");
}

#[test]
fn values_in_lists_of_tables_are_found_at_their_own_lines() {
    let text = TABLE.replace("name = \"ward\"", "nam = \"ward\"");
    let found = problems(&text);
    let wanted = line(&text, "nam = ");
    assert!(
        found
            .iter()
            .any(|(line, text)| *line == wanted
                && text.contains("[[data.columns]] 2: has no key `nam`")),
        "{found:?}"
    );
    let groups = "expected_batch = 10\n[[privacy.groups]]\nvectors = [\"*\"]\nclip = 1.0\n[[privacy.groups]]\nvectors = [\"loss\"]\nclip = 0.0\n";
    let text = TABLE.replace("expected_batch = 10\n", groups);
    let found = problems(&text);
    for (place, what) in
        [("clip = 0.0", "[[privacy.groups]] 2: clip norm 0"), ("[\"loss\"]", "needs share")]
    {
        let wanted = line(&text, place);
        assert!(
            found.iter().any(|(line, text)| *line == wanted && text.contains(what)),
            "{what}: {found:?}"
        );
    }
}

/// Asserts that a change is refused, at the line of `place`, with a message that says this.
fn assert_at(base: &str, from: &str, to: &str, place: &str, what: &str) {
    assert!(base.contains(from), "{from}");
    let text = base.replacen(from, to, 1);
    let (found, wanted) = (problems(&text), line(&text, place));
    assert!(wanted.is_some(), "{place}");
    let hit = found.iter().any(|(line, text)| *line == wanted && text.contains(what));
    assert!(hit, "line {wanted:?}: {what}: {found:#?}");
}

#[test]
fn rules_of_tables_are_named_at_their_lines() {
    for (from, to, place, what) in [
        (
            "bounds = [0, 100]",
            "bounds = [0, 100]\ncategories = [\"x\"]",
            "[\"x\"]",
            "has both bounds and categories",
        ),
        ("bounds = [0, 100]\n", "", "[[data.columns]]", "\"age\" needs bounds, or categories"),
        (
            "categories = [\"a\", \"b\"]",
            "categories = []",
            "[[data.columns]]\nname = \"ward\"",
            "\"ward\" needs bounds, or",
        ),
        (
            "epsilon = 3.0",
            "noise_multiplier = -1.0",
            "= -1.0",
            "[privacy] noise multiplier -1 is not",
        ),
        (
            "epsilon = 3.0",
            "epsilon = 3.0\nnoise_multiplier = 1.0",
            "noise_multiplier",
            "has both epsilon and noise_multiplier",
        ),
        ("epsilon = 3.0\n", "", "[privacy]", "[privacy] needs epsilon, or noise_multiplier"),
        (
            "records = 100",
            "records = 100\ntest_labels = \"t\"",
            "test_labels",
            "test_labels are those of [data] test",
        ),
        ("label = \"sick\"\n", "", "[data]", "[data] label is missing"),
        (
            "expected_batch = 10",
            "expected_batch = 10\nclip = 1.0\ngroups = [{ vectors = [\"*\"], clip = 1.0 }]",
            "clip = 1.0",
            "both clip and groups",
        ),
        (
            "expected_batch = 10",
            "expected_batch = 10\ngroups = [{ vectors = [\"*\"], clip = 1.0, share = 2.0 }]",
            "share",
            "[[privacy.groups]] 1: budget share 2",
        ),
        ("rounds = 7\n", "", "[train]", "[train] needs rounds, or epochs"),
        (
            "{ kind = \"sgd\", lr = 0.6 }",
            "{ kind = \"adamw\", lr = 0.6, weight_decay = -1.0 }",
            "adamw",
            "weight_decay -1 is not in [0, 1e6)",
        ),
        ("kind = \"linear\"", "kind = \"mlp\"", "mlp", "kind = \"mlp\" needs hidden"),
        (
            "kind = \"linear\"",
            "kind = \"linear\"\nbatch_norm = true",
            "batch_norm",
            "batch_norm is not for this kind",
        ),
        (
            "kind = \"linear\"",
            "kind = \"linear\"\ninput_norm = 0.0",
            "input_norm",
            "input_norm 0 is not in",
        ),
        (
            "kind = \"linear\"",
            "kind = \"linear\"\naugment = { copies = 1 }",
            "augment",
            "[model.augment] needs images",
        ),
        (
            "[model]",
            "[audit]\ncanaries = 100001\n[model]",
            "canaries",
            "canaries must be 100000 or fewer",
        ),
        (
            "{ user = \"who\", max_examples = 3 }",
            "{ user = \"who\", microbatch = 3 }",
            "microbatch",
            "`user` and `microbatch` do not go together",
        ),
    ] {
        // A place of two lines is the first of them.
        let place = place.lines().next().unwrap_or(place);
        if what.starts_with("\"ward\"") {
            let text = TABLE.replace(from, to);
            let wanted = text.lines().enumerate().filter(|(_, line)| line.contains(place)).nth(1);
            let wanted = wanted.map(|(number, _)| number + 1);
            assert!(
                problems(&text).iter().any(|(line, text)| *line == wanted && text.contains(what))
            );
            continue;
        }
        assert_at(TABLE, from, to, place, what);
    }
    if cfg!(not(feature = "parquet")) {
        assert_at(
            TABLE,
            "visits.csv",
            "visits.parquet",
            "visits.parquet",
            "needs a build with the feature `parquet`",
        );
    }
}

#[test]
fn rules_of_images_are_named_at_their_lines() {
    for (from, to, place, what) in [
        ("kind = \"linear\"", "kind = \"cnn\"", "features", "features is not for this kind"),
        (
            "kind = \"linear\"",
            "kind = \"cnn\"\nfilters = [99999999, 1]",
            "filters",
            "filters: widths must be 1 to",
        ),
        (
            "kind = \"linear\"",
            "kind = \"linear\"\naugment = { copies = 99, shift = 1 }",
            "augment",
            "[model.augment] copies must be 1 to",
        ),
        (
            "kind = \"linear\"",
            "kind = \"linear\"\naugment = { shift = 17 }",
            "augment",
            "[model.augment] shift must be 16 or less",
        ),
        (
            "shape = [28, 28]",
            "shape = [28, 28]\nlabel = \"y\"",
            "label = ",
            "label and columns are for tables",
        ),
        (
            "shape = [28, 28]",
            "shape = [28, 28]\ntest = \"t.npy\"",
            "test = ",
            "test_labels is missing",
        ),
        (
            "classes = 10",
            "classes = 10\nrecord = { microbatch = 2 }\n",
            "copies",
            "copies is for [data] record",
        ),
    ] {
        let base = match place {
            "copies" => EXAMPLE.replace(
                "kind = \"linear\"",
                "kind = \"linear\"\naugment = { copies = 2, shift = 1 }",
            ),
            _ => EXAMPLE.to_owned(),
        };
        assert_at(&base, from, to, place, what);
    }
}

/// Only the value at the same place makes another problem doubtful, not every key of that name.
#[test]
fn a_wrong_value_hides_no_problem_of_another_table_or_item() {
    let text = TABLE
        .replace("kind = \"sgd\"", "kind = \"sgdd\"")
        .replace("kind = \"linear\"", "kind = \"linear\"\nhidden = [3]");
    let found = problems(&text);
    assert!(found.iter().any(|(_, text)| text.contains("did you mean `sgd`")), "{found:?}");
    assert!(found.iter().any(|(_, text)| text.contains("hidden is not for this")), "{found:?}");
    let text = TABLE
        .replace(
            "bounds = [0, 100]",
            "bounds = [0]\n[[data.columns]]\nname = \"weight\"\nbounds = [9, 1]",
        )
        .replace(
            "records = 100",
            "records = \"100\"\ntest = \"records/visits.csv\"\ncalibration = \"visits.csv\"",
        );
    let found = problems(&text);
    for what in
        ["expected two values", "\"weight\": bounds must ascend", "calibration is the private"]
    {
        assert!(found.iter().any(|(_, text)| text.contains(what)), "{what}: {found:#?}");
    }
}

/// A mistyped kind does not make the rest of the configuration unreadable.
#[test]
fn keys_of_a_mistyped_kind_leave_the_rest_to_be_checked() {
    let text = TABLE
        .replace(
            "{ kind = \"sgd\", lr = 0.6 }",
            "{ kind = \"adammw\", lr = 0.6, weight_decay = 0.1 }",
        )
        .replace("delta = 1e-5", "delta = 2");
    let found = problems(&text);
    assert_eq!(found.len(), 2, "{found:#?}");
    let text = TABLE
        .replace(
            "{ kind = \"sgd\", lr = 0.6 }",
            "{ kind = \"none\", lr = 0.6, weight_decay = 0.1 }",
        )
        .replace("delta = 1e-5", "delta = 2");
    let found = problems(&text);
    assert_eq!(found.len(), 2, "{found:#?}");
}

/// What follows from a wrong value is not a problem of its own, wherever it is.
#[test]
fn rules_that_rely_on_a_wrong_value_are_left_out() {
    for (changes, count) in [
        (&[("epsilon = 3.0", "epsilon = \"3\"")][..], 1),
        (&[("records = 100", "recods = 100")], 2),
        (&[("rounds = 7", "rouns = 7")], 1),
        (
            &[
                ("classes = [", "clases = ["),
                ("rounds = 7", "rounds = 7\nclass_weights = [1, 1, 1]"),
            ],
            1,
        ),
        (&[("bounds = [0, 100]", "bound = [0, 100]")], 1),
        (&[("kind = \"linear\"", "kind = \"liner\"\nhidden = [3]")], 1),
        (&[("train = \"visits.csv\"", "trian = \"visits.csv\"")], 2),
    ] {
        let text = changes.iter().fold(TABLE.to_owned(), |text, (from, to)| {
            assert!(text.contains(from), "{from}");
            text.replace(from, to)
        });
        let found = problems(&text);
        assert_eq!(found.len(), count, "{changes:?}: {found:#?}");
    }
}
