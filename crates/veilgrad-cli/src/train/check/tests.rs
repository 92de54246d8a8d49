//! Valid configurations, and the errors of invalid ones.

mod keys;
mod lines;
mod values;

use super::*;
use crate::train::config::{Layer, Padding};
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
        ("directions = 0", "directions: expected a whole number of 1 or more, found 0"),
        ("directions = 257", "directions must be 1 to 256"),
        ("rounds = 0", "rounds: expected a whole number of 1 or more, found 0"),
        ("rounds = 65", "rounds must be 1 to 64"),
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
        ("records = 60000\n", "", "[data] records is missing"),
        ("shape = [28, 28]\n", "", "shape is missing"),
        ("bounds = [0, 255]\n", "", "bounds is missing"),
        ("labels = \"data/mnist/train-labels-idx1-ubyte.gz\"\n", "", "labels is missing"),
        (
            "classes = 10",
            "classes = \"ten\"",
            "[data] classes: expected a whole number of 2 or more, or a list",
        ),
        ("classes = 10", "classes = 10\nrecord = { usr = \"x\" }", "did you mean `user`?"),
        ("classes = 10", "classes = 10\nrecord = { user = \"x\", max_examples = 3 }", "a table"),
        (
            "shape = [28, 28]",
            "shape = [28, 0]",
            "[data] shape: expected a whole number of 1 or more, found 0",
        ),
        ("shape = [28, 28]", "shape = [99999999999, 99999999999]", "shape must be"),
        ("kind = \"linear\"", "kind = \"linear\"\nhidden = [3]", "hidden is not for this kind"),
        (
            "kind = \"linear\"",
            "kind = \"mlp\"\nhidden = [0]",
            "hidden: expected a whole number of 1 or more",
        ),
        ("expected_batch = 8192", "expected_batch = 1.5\nsampling = \"fixed\"", "must be whole"),
        ("ema = 0.99", "ema = 1.5", "ema is not in"),
        ("lr = 0.6", "lr = -1.0", "lr -1"),
        ("expected_batch = 8192", "expected_batch = 99999", "is not in (0, 60000]"),
        (
            "rounds = 700",
            "rounds = 0",
            "[train] rounds: expected a whole number of 1 or more, found 0",
        ),
        ("classes = 10", "classes = 1", "expected a whole number of 2 or more"),
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
        (
            "label = \"sick\"",
            "label = \"sick\"\nmissing = \"a\"",
            "[data] missing: expected \"zero\" or \"mean-of-bounds\", found \"a\"",
        ),
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

/// Asserts that each change of a configuration is refused with a message that says this.
fn assert_refused(text: &str, changes: &[(&str, &str, &str)]) {
    for (from, to, what) in changes {
        assert!(text.contains(from), "{from}");
        let error = Config::parse(&text.replace(from, to)).expect_err(what);
        assert!(error.contains(what), "{what}: {error}");
    }
}

#[test]
fn rounds_follow_from_epochs_and_declared_numbers() {
    // 60000 records in batches of 8192: 7.32 rounds each.
    for (epochs, rounds) in [("1", 8), ("10", 74), ("0.5", 4), ("1e-9", 1), ("8192", 60000)] {
        let text = EXAMPLE.replace("rounds = 700", &format!("epochs = {epochs}"));
        assert_eq!(Config::parse(&text).unwrap().rounds(), rounds, "{epochs}");
    }
    assert_eq!(Config::parse(EXAMPLE).unwrap().rounds(), 700);
    assert_refused(
        EXAMPLE,
        &[
            ("rounds = 700\n", "", "[train] needs rounds, or epochs"),
            ("rounds = 700", "rounds = 700\nepochs = 3", "both rounds and epochs"),
            ("rounds = 700", "epochs = 0", "epochs 0 is not above 0"),
            ("rounds = 700", "epochs = -1.5", "epochs -1.5 is not above 0"),
            ("rounds = 700", "epochs = nan", "epochs NaN is not above 0"),
            ("rounds = 700", "epochs = 1e300", "more than 1e12 rounds"),
            ("rounds = 700", "epoch = 3", "did you mean `epochs`"),
        ],
    );
}

#[test]
fn how_lines_are_split_is_declared_for_text_alone() {
    let label = "label = \"sick\"";
    let with = |more: &str| TABLE.replace(label, &format!("{label}\n{more}"));
    let header = "header = [\"who\", \"sick\", \"age\", \"ward\"]";
    let config = Config::parse(&with(&format!("delimiter = \";\"\n{header}"))).unwrap();
    assert_eq!((config.data.delimiter, config.data.header.unwrap().len()), (Some(';'), 4));
    for name in ["visits.tsv", "visits.csv.gz", "visits.tsv.gz"] {
        let text = with("delimiter = \"\\t\"").replace("visits.csv", name);
        assert_eq!(Config::parse(&text).unwrap().data.delimiter, Some('\t'), "{name}");
    }
    for name in ["visits.jsonl", "visits.ndjson", "visits.jsonl.gz"] {
        assert!(Config::parse(&TABLE.replace("visits.csv", name)).is_ok(), "{name}");
        let error = Config::parse(&with("delimiter = \";\"").replace("visits.csv", name));
        assert!(error.unwrap_err().contains("delimiter and header are for .csv and .tsv files"));
    }
    for (more, what) in [
        ("delimiter = \";;\"", "expected a character"),
        ("delimiter = \"\\\"\"", "delimiter '\"' is not one ASCII character other than a quote"),
        ("delimiter = \"\\n\"", "is not one ASCII character other than a quote or a line break"),
        ("delimiter = \"é\"", "delimiter 'é' is not one ASCII character"),
        ("header = [\"who\", \"sick\", \"age\"]", "of 3 names, has no column \"ward\""),
        ("header = [\"who\", \"age\", \"ward\"]", "of 3 names, has no column \"sick\""),
        ("header = [\"sick\", \"age\", \"ward\"]", "of 3 names, has no column \"who\""),
        ("header = [\"who\", \"sick\", \"age\", \"ward\", \"age\"]", "header has \"age\" twice"),
        ("header = [\"who\", \"sick\", \"age\", \"ward\", \"a\\u200b\"]", "cannot be seen"),
        ("delimeter = \";\"", "did you mean `delimiter`"),
    ] {
        let error = Config::parse(&with(more)).expect_err(what);
        assert!(error.contains(what), "{what}: {error}");
    }
    let arrays = EXAMPLE.replace("classes = 10", "classes = 10\nheader = [\"a\"]");
    assert!(Config::parse(&arrays).unwrap_err().contains("are for .csv and .tsv files"));
}

#[test]
fn files_that_follow_each_other_are_of_one_kind_with_as_many_files_of_labels() {
    let config = Config::parse(EXAMPLE).unwrap();
    let (train, labels) = (config.data.train.to_string(), config.data.labels.unwrap().to_string());
    let several = EXAMPLE
        .replace(&format!("\"{train}\""), "[\"a.npy\", \"b.npy\"]")
        .replace(&format!("\"{labels}\""), "[\"c.npy\", \"d.npy\"]");
    let config = Config::parse(&several).unwrap();
    assert_eq!(config.data.train.to_string(), "a.npy, b.npy");
    assert_eq!(config.dataset(), "a.npy");
    // Paths are no part of the fingerprint.
    assert_eq!(config.fingerprint(), Config::parse(EXAMPLE).unwrap().fingerprint());
    let written = toml::to_string(&config).unwrap();
    assert_eq!(Config::parse(&written).unwrap().data.train, config.data.train);
    assert_refused(
        &several,
        &[
            ("\"c.npy\", ", "", "labels has 1 files and train has 2"),
            ("\"b.npy\"", "\"b.csv\"", "train has tables and arrays"),
            ("[\"a.npy\", \"b.npy\"]", "[]", "at least one file"),
            ("[\"a.npy\", \"b.npy\"]", "[1, 2]", "train: expected a path in quotes"),
            (
                "shape = [28, 28]",
                "shape = [28, 28]\ntest = \"b.npy\"\ntest_labels = \"l.npy\"",
                "test is the private file of [data] train",
            ),
        ],
    );
}

#[test]
fn ids_of_users_are_for_arrays() {
    let ids = "classes = 10\nrecord = { user_ids = \"ids.npy\", max_examples = 3 }";
    let text = EXAMPLE.replace("classes = 10", ids);
    let config = Config::parse(&text).unwrap();
    assert_eq!(config.data.record.user_examples().unwrap().get(), 3);
    // The path is no part of the fingerprint; the number of examples is.
    let moved = Config::parse(&text.replace("ids.npy", "elsewhere/ids.npy")).unwrap();
    assert_eq!(moved.hash(), config.hash());
    let more = Config::parse(&text.replace("max_examples = 3", "max_examples = 4")).unwrap();
    assert_ne!(more.hash(), config.hash());
    assert_ne!(Config::parse(EXAMPLE).unwrap().hash(), config.hash());
    let named = "arrays = { inputs = \"x\", labels = \"y\", users = \"u\" }\nclasses";
    assert!(Config::parse(&text.replace("ids.npy", "ids.npz").replace("classes", named)).is_ok());
    assert_refused(
        &text,
        &[
            ("ids.npy", "ids.npz", "name the array of ids"),
            (", max_examples = 3", "", "max_examples is missing: a whole number of 1 or more"),
            (
                "max_examples = 3",
                "max_examples = 0",
                "max_examples: expected a whole number of 1 or more",
            ),
            (
                "shape = [28, 28]",
                "shape = [28, 28]\ntest = \"ids.npy\"\ntest_labels = \"l\"",
                "test is the private file of [data] record: user_ids",
            ),
        ],
    );
    assert_refused(
        TABLE,
        &[(
            "{ user = \"who\"",
            "{ user_ids = \"who.npy\"",
            "user_ids is for arrays; name the column",
        )],
    );
}

#[test]
fn a_label_is_a_class_or_a_number() {
    let number = TABLE.replace("classes = [\"no\", \"yes\"]", "label_bounds = [0, 10]");
    let config = Config::parse(&number).unwrap();
    assert_eq!((config.data.label_bounds, config.declaration().outputs()), (Some([0.0, 10.0]), 1));
    assert!(Config::parse(&number.replace("rounds = 7", "rounds = 7\nhuber = 0.5")).is_ok());
    let group = |name: &str| {
        format!(
            "expected_batch = 10\n[[privacy.groups]]\nvectors = [\"{name}\"]\nclip = 1.0\nshare = 0.1"
        )
    };
    let loss = number.replace("expected_batch = 10", &group("loss"));
    assert!(Config::parse(&loss).is_ok());
    assert_refused(
        &number,
        &[
            ("label_bounds = [0, 10]\n", "", "needs classes, or label_bounds"),
            (
                "label_bounds = [0, 10]",
                "label_bounds = [0, 10]\nclasses = 2",
                "both classes and label_bounds",
            ),
            (
                "label_bounds = [0, 10]",
                "label_bounds = [10, 0]",
                "label_bounds [10, 0] must ascend",
            ),
            ("label_bounds = [0, 10]", "label_bounds = [0, inf]", "must ascend"),
            ("label_bounds = [0, 10]", "label_bounds = [0, 5, 10]", "two values, found 3"),
            ("rounds = 7", "rounds = 7\nhuber = 0.0", "huber 0 is not a positive number"),
            ("rounds = 7", "rounds = 7\nclass_weights = [1.0]", "class_weights is for classes"),
            ("expected_batch = 10", &group("accuracy"), "\"accuracy\" is for classes"),
            ("expected_batch = 10", &group("classes"), "\"classes\" is for classes"),
            (
                "records = 100",
                "records = 100\ncalibration = \"c.csv\"",
                "calibration is for classes",
            ),
        ],
    );
    assert_refused(
        TABLE,
        &[
            ("rounds = 7", "rounds = 7\nhuber = 1.0", "huber is for a label that is a number"),
            (
                "rounds = 7",
                "rounds = 7\nclass_weights = [1.0]",
                "class_weights has 1 numbers, for 2 classes",
            ),
            (
                "rounds = 7",
                "rounds = 7\nclass_weights = [1.0, 0.0]",
                "class_weights: 0 is not in (0, 1e6]",
            ),
            (
                "rounds = 7",
                "rounds = 7\nclass_weights = [1.0, nan]",
                "class_weights: NaN is not in (0, 1e6]",
            ),
            (
                "rounds = 7",
                "rounds = 7\nclass_weights = [1.0, 2e6]",
                "class_weights: 2000000 is not in",
            ),
            ("rounds = 7", "rounds = 7\nclass_weight = [1.0, 2.0]", "did you mean `class_weights`"),
            (
                "records = 100",
                "records = 100\ncalibration = \"visits.csv\"",
                "calibration is the private file",
            ),
            (
                "records = 100",
                "records = 100\ntest = \"t.csv\"\ncalibration = \"t.csv\"",
                "calibration is the file of [data] test",
            ),
            (
                "records = 100",
                "records = 100\ncalibration_labels = \"t.csv\"",
                "calibration_labels are those of",
            ),
        ],
    );
    let arrays = EXAMPLE.replace("classes = 10", "classes = 10\ncalibration = \"c.npy\"");
    assert!(Config::parse(&arrays).unwrap_err().contains("calibration_labels is missing"));
    let weighted = TABLE.replace("rounds = 7", "rounds = 7\nclass_weights = [1.0, 2.5]");
    assert_eq!(Config::parse(&weighted).unwrap().train.class_weights, Some(vec![1.0, 2.5]));
}

#[test]
fn listed_layers_have_the_keys_of_their_kind() {
    let layers = |list: &str| {
        let model = format!("kind = \"layers\"\nlayers = [{list}]");
        EXAMPLE.replace("kind = \"linear\"\nfeatures = \"scattering\"", &model)
    };
    let all = "{ kind = \"conv\", filters = 8, kernel = 3, stride = 2, padding = \"same\" }, { kind = \"relu\" }, \
               { kind = \"conv\", filters = 8, kernel = 3 }, { kind = \"max-pool\", size = 2, stride = 1 }, \
               { kind = \"average-pool\", size = 2 }, { kind = \"group-norm\", groups = 4 }, { kind = \"layer-norm\" }, \
               { kind = \"batch-norm\" }, { kind = \"tanh\" }, { kind = \"gelu\" }, { kind = \"flatten\" }, \
               { kind = \"linear\", outputs = 16 }, { kind = \"global-average\" }";
    let config = Config::parse(&layers(all)).unwrap();
    assert_eq!(config.model.layers.len(), 13);
    let (stride, padding) = (1, Padding::Valid);
    assert_eq!(config.model.layers[2], Layer::Conv { filters: 8, kernel: 3, stride, padding });
    let tables = EXAMPLE
        .replace("kind = \"linear\"\nfeatures = \"scattering\"", "kind = \"layers\"")
        .replace("[privacy]", "[[model.layers]]\nkind = \"flatten\"\n[[model.layers]]\nkind = \"linear\"\noutputs = 3\n[privacy]");
    assert_eq!(Config::parse(&tables).unwrap().model.layers.len(), 2);
    for (list, what) in [
        ("", "kind = \"layers\" needs 1 to 64 of [[model.layers]]"),
        ("{ kind = \"cnv\" }", "did you mean `conv`"),
        ("{ kind = \"linear\", output = 3 }", "did you mean `outputs`"),
        ("{ kind = \"linear\" }", "outputs is missing: a whole number of 1 or more"),
        ("{ kind = \"relu\", size = 3 }", "has no key `size`"),
        (
            "{ kind = \"relu\" }, { kind = \"linear\", outputs = 0 }",
            "2: outputs: expected a whole number of 1 or more, found 0",
        ),
        ("{ kind = \"conv\", filters = 1, kernel = 0 }", "1: kernel: expected a whole number"),
        (
            "{ kind = \"conv\", filters = 1, kernel = 1, stride = 0 }",
            "1: stride: expected a whole number",
        ),
        ("{ kind = \"max-pool\", size = 0 }", "1: size: expected a whole number"),
        (
            "{ kind = \"group-norm\", groups = 99999999 }",
            "1 (group-norm): groups 99999999 is not in",
        ),
        ("{ kind = \"conv\", filters = 1, kernel = 1, padding = \"sam\" }", "did you mean `same`"),
    ] {
        let error = Config::parse(&layers(list)).expect_err(what);
        assert!(error.contains(what), "{what}: {error}");
    }
    let relu = "{ kind = \"relu\" }";
    assert_refused(
        &layers(relu),
        &[
            ("kind = \"layers\"", "kind = \"mlp\"\nhidden = [3]", "layers is not for this kind"),
            ("kind = \"layers\"", "kind = \"layers\"\nhidden = [3]", "hidden is not for this kind"),
            (
                "kind = \"layers\"",
                "kind = \"layers\"\nbatch_norm = true",
                "batch_norm is not for this kind",
            ),
        ],
    );
}

#[test]
fn embeddings_are_for_categories_and_models_with_hidden_layers() {
    let mlp = TABLE
        .replace("kind = \"linear\"", "kind = \"mlp\"\nhidden = [4]")
        .replace("[\"a\", \"b\"]", "[\"a\", \"b\"]\nembedding = 3");
    assert!(Config::parse(&mlp).is_ok());
    assert_refused(
        &mlp,
        &[
            (
                "embedding = 3",
                "embedding = 0",
                "embedding: expected a whole number of 1 or more, found 0",
            ),
            ("embedding = 3", "embeding = 3", "did you mean `embedding`"),
            (
                "bounds = [0, 100]",
                "bounds = [0, 100]\nembedding = 2",
                "\"age\": embedding is for categories",
            ),
            (
                "kind = \"mlp\"\nhidden = [4]",
                "kind = \"linear\"",
                "embedding needs a model with hidden layers",
            ),
            (
                "hidden = [4]",
                "hidden = [4]\ninput_norm = 1.0",
                "cannot be used with [model] input_norm",
            ),
        ],
    );
}

#[test]
fn what_a_run_starts_from_is_known_by_its_hash() {
    let hash = "0123456789abcdef".repeat(4);
    let keys = format!(
        "seed = 1\ninit = \"a/m.safetensors\"\ninit_sha256 = \"{hash}\"\nfrozen = [\"linear1.bias\"]\nfresh = [\"linear1.*\"]"
    );
    let text = EXAMPLE.replace("features = \"scattering\"", &keys);
    let config = Config::parse(&text).unwrap();
    let moved = Config::parse(&text.replace("a/m.", "b/n.")).unwrap();
    assert_eq!(moved.hash(), config.hash());
    assert!(!config.fingerprint().unwrap().to_string().contains('/'));
    for (from, to) in
        [("0123", "3210"), ("linear1.bias", "linear1.weight"), ("[\"linear1.*\"]", "[]")]
    {
        assert_ne!(Config::parse(&text.replace(from, to)).unwrap().hash(), config.hash());
    }
    // The declaration in a model file has neither paths nor what training started from.
    let declared = serde_json::to_string(&config.declaration()).unwrap();
    assert!(["init", "frozen", "fresh"].iter().all(|key| !declared.contains(key)), "{declared}");
    assert_refused(
        &text,
        &[
            (&hash, "0123", "init_sha256 \"0123\" is not 64 hexadecimal digits"),
            (&hash, &hash.to_uppercase(), "is not 64 hexadecimal digits"),
            (
                "init = \"a/m.safetensors\"\n",
                "",
                "init_sha256 is that of [model] init, which is missing",
            ),
            (
                &format!("init = \"a/m.safetensors\"\ninit_sha256 = \"{hash}\"\n"),
                "",
                "fresh is for [model] init",
            ),
            ("init = ", "int = ", "did you mean `init`"),
        ],
    );
}

/// Ledgers and checkpoints of earlier versions hold this fingerprint: new keys must not be in it unless they are given.
#[test]
fn the_fingerprint_of_a_configuration_without_new_keys_is_as_it_was() {
    let expected = concat!(
        r#"{"data":{"bounds":[0.0,255.0],"classes":10,"record":"example","records":60000,"shape":[28,28]},"#,
        r#""model":{"batch_norm":false,"features":"scattering","kind":"linear","scattering":{"norm_groups":27,"#,
        r#""orientations":8,"scales":2},"seed":0},"privacy":{"adjacency":"add-remove","delta":0.00001,"epsilon":3.0,"#,
        r#""expected_batch":8192.0,"sampling":"poisson"},"train":{"cosine":false,"ema":0.9900000095367432,"#,
        r#""optimizer":{"kind":"sgd","lr":0.6,"momentum":0.8999999761581421,"nesterov":false},"rounds":700}}"#
    );
    assert_eq!(Config::parse(EXAMPLE).unwrap().fingerprint().unwrap().to_string(), expected);
}

/// What refuses the charge refuses the configuration, before a ledger is opened.
#[test]
fn samplings_with_a_public_number_of_records_are_refused_under_add_remove_as_by_ledgers() {
    for sampling in [
        Sampling::Poisson,
        Sampling::Allocation,
        Sampling::Truncated,
        Sampling::Fixed,
        Sampling::Shuffle,
    ] {
        for adjacency in ["add-remove", "replace-one", "zero-out"] {
            let name = sampling.name();
            let keys = format!("8192\nsampling = {name:?}\nadjacency = {adjacency:?}");
            let source = Source::of("", &EXAMPLE.replace("8192", &keys));
            let config = source.config().unwrap();
            assert_eq!(config.privacy.sampling, sampling);
            let drawn = crate::train::build::sampling(config).unwrap();
            let refused = drawn.reveals_record_count(config.privacy.adjacency);
            let found: Vec<&str> = source.problems().iter().map(|found| &*found.key).collect();
            let expected = if refused { vec!["privacy.sampling"] } else { Vec::new() };
            assert_eq!(found, expected, "{name} {adjacency}");
            let is_public = drawn.records().is_some() && !refused;
            assert_eq!(config.privacy.has_public_record_count(), is_public, "{name} {adjacency}");
        }
    }
}
