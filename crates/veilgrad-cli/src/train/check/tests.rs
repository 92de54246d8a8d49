//! Valid configurations, and the errors of invalid ones.

use super::*;
use veilgrad_events::Adjacency;

/// A configuration for tests.
pub(crate) const EXAMPLE: &str = r#"
[data]
train = "data/mnist/train-images-idx3-ubyte.gz"
labels = "data/mnist/train-labels-idx1-ubyte.gz"
records = 60000
classes = 10
shape = [28, 28]
bounds = [0, 255]
[model]
kind = "linear"
features = "scattering"
[privacy]
epsilon = 3.0
delta = 1e-5
expected_batch = 8192
[train]
rounds = 700
optimizer = { kind = "sgd", lr = 0.6, momentum = 0.9 }
ema = 0.99
"#;

#[test]
fn a_configuration_is_read_and_means_what_it_says() {
    let config = Config::parse(EXAMPLE).unwrap();
    assert_eq!(config.dataset(), "train-images-idx3-ubyte.gz");
    assert_eq!(config.privacy.adjacency, Adjacency::AddRemove);
    let named = EXAMPLE.replace("classes = 10", "classes = [\"a\", \"b\"]");
    let config = Config::parse(&named.replace("linear", "logistic")).unwrap();
    assert_eq!(config.data.classes.names(), ["a", "b"]);
    let micro = EXAMPLE.replace("classes = 10", "classes = 10\nrecord = { microbatch = 4 }");
    assert!(matches!(Config::parse(&micro).unwrap().data.record, Record::Microbatch(_)));
    assert_ne!(Config::parse(&micro).unwrap().hash(), Config::parse(EXAMPLE).unwrap().hash());
}

#[test]
fn preconditioning_and_features_that_cannot_be_used_are_named_with_what_would_be_right() {
    let with = |keys: &str| {
        EXAMPLE
            .replace("features = \"scattering\"", "features = \"scattering\"\ninput_norm = 63.0")
            .replace("[train]", &format!("[privacy.precondition]\n{keys}\n[train]"))
    };
    Config::parse(&with("")).unwrap();
    for (keys, what) in [
        ("mean_share = 0.0", "mean_share 0 is not in (0, 1)"),
        ("directions_share = 1.0", "directions_share 1 is not in (0, 1)"),
        ("mean_share = 0.5\ndirections_share = 0.5", "leave nothing for training"),
        ("directions = 0", "directions must be 1 to 256"),
        ("directions = 257", "directions must be 1 to 256"),
        ("rounds = 0", "rounds must be 1 to 64"),
        ("floor = 0.0", "floor 0 is not in (0, 1]"),
        ("floor = nan", "floor NaN is not in (0, 1]"),
        ("flor = 0.1", "did you mean `floor`"),
    ] {
        let error = Config::parse(&with(keys)).unwrap_err();
        assert!(error.contains(what), "{what}: {error}");
    }
    for (from, to, what) in [
        ("epsilon = 3.0", "noise_multiplier = 3.0", "needs [privacy] epsilon"),
        ("input_norm = 63.0", "", "needs [model] input_norm"),
        ("input_norm = 63.0", "input_norm = -1.0", "input_norm -1 is not in"),
        ("8192", "8192\nsampling = \"shuffle\"", "is for sampling"),
        ("classes = 10", "classes = 10\nrecord = { microbatch = 4 }", "is for [data] record"),
        (
            "rounds = 700",
            "rounds = 700\ncosine = true\nschedule = \"linear\"",
            "both cosine and schedule",
        ),
        ("rounds = 700", "rounds = 700\nschedule = \"linea\"", "did you mean `linear`"),
    ] {
        let error = Config::parse(&with("").replace(from, to)).unwrap_err();
        assert!(error.contains(what), "{what}: {error}");
    }
    let plan = |text: &str| {
        let job = crate::train::job::Job::new(Config::parse(text).unwrap(), Some(1));
        job.err().map(|error| error.to_string()).unwrap_or_default()
    };
    let small = |keys: &str| {
        let text = with("directions = 20").replace("[28, 28]", "[5, 5]");
        text.replace("input_norm", &format!("scattering = {{ {keys} }}\ninput_norm"))
    };
    for (keys, what) in [
        ("scales = 1, orientations = 1", "20 directions of inputs of 8 numbers: must be 1 to 8"),
        ("scales = 1, grid = 3", "grid and pool_sigma go together"),
        ("scales = 1, mirror = true", "mirror needs grid and pool_sigma"),
        ("scales = 1, colours = \"opponent\"", "needs [data] shape = [rows, columns, 3]"),
        ("scales = 1, grid = 6, pool_sigma = 1.0", "the grid must have 1 point to as many as"),
        ("scales = 3, grid = 2, pool_sigma = 1.0", "sides must be above 2^J"),
        (
            "scales = 1, orientations = 3, grid = 5, pool_sigma = 1.0",
            "norm_groups must be at most 4, one for each channel",
        ),
    ] {
        let error = plan(&small(keys));
        assert!(error.contains(what), "{what}: {error}");
    }
}

#[test]
fn what_is_wrong_is_named_with_what_would_be_right() {
    for (from, to, what) in [
        ("epsilon = 3.0", "epsilom = 3.0", "did you mean `epsilon`"),
        ("kind = \"linear\"", "kind = \"liner\"", "did you mean `linear`"),
        ("epsilon = 3.0\n", "", "needs epsilon, or noise_multiplier"),
        ("epsilon = 3.0", "epsilon = 3.0\nnoise_multiplier = 1.0", "both"),
        ("epsilon = 3.0", "epsilon = 0", "epsilon 0 is not"),
        ("epsilon = 3.0", "epsilon = -1.0", "epsilon -1 is not"),
        ("records = 60000\n", "", "missing field `records`"),
        ("shape = [28, 28]\n", "", "shape is missing"),
        ("bounds = [0, 255]\n", "", "bounds is missing"),
        ("labels = \"data/mnist/train-labels-idx1-ubyte.gz\"\n", "", "labels is missing"),
        ("classes = 10", "classes = \"ten\"", "classes is their number"),
        ("classes = 10", "classes = 10\nrecord = { usr = \"x\" }", "max_examples = N"),
        ("classes = 10", "classes = 10\nrecord = { user = \"x\", max_examples = 3 }", "a table"),
        ("shape = [28, 28]", "shape = [28, 0]", "shape must be"),
        ("shape = [28, 28]", "shape = [99999999999, 99999999999]", "shape must be"),
        ("kind = \"linear\"", "kind = \"linear\"\nhidden = [3]", "hidden is not for this kind"),
        ("kind = \"linear\"", "kind = \"mlp\"\nhidden = [0]", "widths must be"),
        ("expected_batch = 8192", "expected_batch = 1.5\nsampling = \"fixed\"", "must be whole"),
        ("ema = 0.99", "ema = 1.5", "ema is not in"),
        ("lr = 0.6", "lr = -1.0", "lr -1"),
        ("expected_batch = 8192", "expected_batch = 99999", "is not in (0, 60000]"),
        ("rounds = 700", "rounds = 0", "rounds must be"),
        ("classes = 10", "classes = 1", "classes must be"),
        // So many names must not be allocated.
        ("classes = 10", "classes = 4294967295", "classes must be 2 to 1048576"),
        ("bounds = [0, 255]", "bounds = [255, 0]", "must ascend"),
        ("bounds = [0, 255]", "bounds = [0, 255, 1]", "two values, found 3"),
        ("bounds = [0, 255]", "bounds = [0]", "two values, found 1"),
        ("kind = \"linear\"", "kind = \"cnn\"\nfilters = [1, 2, 3]", "two values, found 3"),
        ("classes = 10", "classes = [\"a\", \"b\", \"a\"]", "classes has \"a\" twice"),
    ] {
        let error = Config::parse(&EXAMPLE.replace(from, to)).unwrap_err();
        assert!(error.contains(what), "{what}: {error}");
    }
}

#[test]
fn names_with_characters_that_cannot_be_seen_are_refused() {
    for (from, to) in [
        ("train = \"visits.csv\"", "train = \"visits.csv\"\ndataset = \"a\\u001b[31m\""),
        ("label = \"sick\"", "label = \"sick\\u200b\""),
        ("\"who\"", "\"who\\u00a0\""),
        ("\"yes\"", "\"\\u202eyes\""),
        ("\"age\"", "\"age\\t\""),
        ("\"b\"", "\"b\\ufeff\""),
        (
            "expected_batch = 10",
            "expected_batch = 10\n[[privacy.groups]]\nvectors = [\"*\"]\nclip = 1.0\nname = \"a\\u0007\"",
        ),
    ] {
        let error = Config::parse(&TABLE.replace(from, to)).unwrap_err();
        assert!(error.contains("cannot be seen") && error.is_ascii(), "{to}: {error}");
        assert!(!error.contains(['\x1b', '\x07']), "{to}");
    }
}

const TABLE: &str = r#"
[data]
train = "visits.csv"
label = "sick"
classes = ["no", "yes"]
records = 100
record = { user = "who", max_examples = 3 }
[[data.columns]]
name = "age"
bounds = [0, 100]
[[data.columns]]
name = "ward"
categories = ["a", "b"]
[model]
kind = "linear"
[privacy]
epsilon = 3.0
delta = 1e-5
expected_batch = 10
[train]
rounds = 7
optimizer = { kind = "sgd", lr = 0.6 }
"#;

#[test]
fn a_column_has_one_role_and_a_list_has_no_value_twice() {
    assert!(Config::parse(TABLE).is_ok());
    let missing = TABLE
        .replace("label = \"sick\"", "label = \"sick\"\nmissing = \"zero\"")
        .replace("bounds = [0, 100]", "bounds = [0, 100]\nmissing = \"mean-of-bounds\"")
        .replace("[\"a\", \"b\"]", "[\"a\", \"b\"]\nmissing = \"b\"");
    assert!(Config::parse(&missing).is_ok());
    for (from, to, what) in [
        ("name = \"age\"", "name = \"sick\"", "\"sick\" is the label"),
        ("name = \"age\"", "name = \"who\"", "\"who\" names users"),
        ("label = \"sick\"", "label = \"who\"", "both the label and the user"),
        ("name = \"ward\"", "name = \"age\"", "columns]] has \"age\" twice"),
        ("[\"a\", \"b\"]", "[\"a\", \"b\", \"a\"]", "categories has \"a\" twice"),
        ("[\"no\", \"yes\"]", "[\"no\", \"no\"]", "classes has \"no\" twice"),
        ("bounds = [0, 100]", "bounds = [0, 100, 5]", "two values, found 3"),
        ("bounds = [0, 100]", "bounds = [0, 100]\nmissing = \"a\"", "is not \"zero\" or"),
        ("[\"a\", \"b\"]", "[\"a\", \"b\"]\nmissing = \"c\"", "nor one of its categories"),
        ("label = \"sick\"", "label = \"sick\"\nmissing = \"a\"", "[data] missing \"a\" is not"),
    ] {
        let error = Config::parse(&TABLE.replace(from, to)).unwrap_err();
        assert!(error.contains(what), "{what}: {error}");
    }
}

#[test]
fn a_public_file_is_not_a_private_one() {
    let labels = "labels = \"data/mnist/train-labels-idx1-ubyte.gz\"";
    let images = "data/mnist/train-images-idx3-ubyte.gz";
    for (test, test_labels) in [
        (images, "t10k-labels"),
        ("t10k-images", "data/mnist/train-labels-idx1-ubyte.gz"),
        ("t10k-images", images),
    ] {
        let test = format!("test = \"{test}\"\ntest_labels = \"{test_labels}\"\n{labels}");
        let error = Config::parse(&EXAMPLE.replace(labels, &test)).unwrap_err();
        assert!(error.contains("is the private file of [data]"), "{error}");
    }
}
