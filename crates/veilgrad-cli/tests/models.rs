//! Models beyond those of one kind: numbers as labels, class weights, listed layers, embeddings, models that start from
//! others, and calibrated probabilities.

use std::process::{Command, Output};

use crate::common::{Directory, frozen, npy, safetensors};
use serde_json::Value;

/// A directory with data, in which the command runs with frozen randomness.
struct Place {
    directory: Directory,
    library: String,
}

const TABLE: &str = r#"
[data]
train = "data.csv"
test = "test.csv"
dataset = "toy"
label = "class"
classes = ["a", "b"]
records = 400
[[data.columns]]
name = "x"
bounds = [0, 1]
[[data.columns]]
name = "y"
bounds = [0, 1]
[[data.columns]]
name = "town"
categories = ["north", "south", "west"]
# embedding
[model]
kind = "mlp"
hidden = [6]
seed = 3
# model
[privacy]
noise_multiplier = 1.0
delta = 1e-5
expected_batch = 100
# groups
[train]
rounds = 20
optimizer = { kind = "sgd", lr = 1.0 }
# train
"#;

const IMAGES: &str = r#"
[data]
train = "images.npy"
labels = "labels.npy"
dataset = "images"
classes = 2
records = 60
shape = [9, 7]
bounds = [0, 1]
[model]
kind = "layers"
[[model.layers]]
kind = "conv"
filters = 4
kernel = 3
padding = "same"
stride = 2
[[model.layers]]
kind = "relu"
[[model.layers]]
kind = "max-pool"
size = 2
stride = 1
[[model.layers]]
kind = "group-norm"
groups = 2
[[model.layers]]
kind = "flatten"
[[model.layers]]
kind = "linear"
outputs = 5
[[model.layers]]
kind = "tanh"
[privacy]
noise_multiplier = 1.0
delta = 1e-5
expected_batch = 30
[train]
rounds = 6
optimizer = { kind = "sgd", lr = 0.5 }
"#;

/// Rows whose class is whether x is above y, whose amount is near 10 x + 20 y, and of which 1 in 4 has class "b".
fn table(rows: u32, salt: u32) -> String {
    let mut text = "x,y,town,class,amount\n".to_owned();
    for i in 0..rows {
        let (x, y) =
            (f64::from((i * 37 + salt) % 101) / 101.0, f64::from((i * 53 + salt) % 97) / 97.0);
        let town = ["north", "south", "west", "elsewhere"][(i % 4) as usize];
        let class = if x > y - 0.3 { "a" } else { "b" };
        let amount = 10.0 * x + 20.0 * y + f64::from(i % 5) - 2.0;
        text.push_str(&format!("{x},{y},{town},{class},{amount}\n"));
    }
    text
}

impl Place {
    fn new(name: &str) -> Self {
        let directory = Directory::new(name);
        let library = frozen(&directory);
        let place = Self { directory, library };
        place.write("data.csv", table(400, 0).as_bytes());
        place.write("test.csv", table(120, 17).as_bytes());
        place.write("public.csv", table(150, 31).as_bytes());
        let pixels: Vec<f32> = (0..60 * 63).map(|i| (i * 31 % 97) as f32 / 97.0).collect();
        place.write("images.npy", &npy("60, 9, 7", &pixels));
        place
            .write("labels.npy", &npy("60,", &(0..60).map(|i| (i % 2) as f32).collect::<Vec<_>>()));
        place
    }

    fn write(&self, name: &str, bytes: &[u8]) {
        std::fs::write(self.directory.0.join(name), bytes).unwrap();
    }

    fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.directory.0.join(name)).unwrap()
    }

    fn command(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_veilgrad"));
        let command = command.args(arguments).current_dir(&self.directory.0);
        // With frozen randomness, two runs of one ledger would have the same id.
        if !arguments.contains(&"shared.db") {
            command.env("LD_PRELOAD", &self.library);
        }
        command.output().unwrap()
    }

    /// Trains into a directory with this name; its ledger is in it, unless another is named.
    fn try_train(&self, name: &str, config: &str, ledger: Option<&str>) -> Output {
        self.write("config.toml", config.as_bytes());
        let own = format!("{name}/ledger.db");
        let ledger = ledger.unwrap_or(&own);
        self.command(&["train", "config.toml", "--out", name, "--ledger", ledger, "--threads", "1"])
    }

    /// Trains, and returns the report.
    fn train(&self, name: &str, config: &str) -> Value {
        self.train_with(name, config, None)
    }

    fn train_with(&self, name: &str, config: &str, ledger: Option<&str>) -> Value {
        let output = self.try_train(name, config, ledger);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{name}: {error}");
        serde_json::from_slice(&self.read(&format!("{name}/report.json"))).unwrap()
    }

    /// Asserts that training is refused with this code and message.
    fn refused(&self, name: &str, config: &str, code: i32, what: &str) {
        let output = self.try_train(name, config, None);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{what}: {error}");
        assert!(error.contains(what), "{what}: {error}");
    }

    fn model(&self, name: &str) -> Vec<u8> {
        self.read(&format!("{name}/model.safetensors"))
    }

    /// The bytes of a parameter of a model.
    fn parameter(&self, name: &str, parameter: &str) -> Vec<u8> {
        safetensors(&self.model(name)).1[parameter].clone()
    }

    fn predict(&self, name: &str, data: &str) -> String {
        let output = self.command(&["predict", &format!("{name}/model.safetensors"), data]);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{name}: {error}");
        String::from_utf8(output.stdout).unwrap()
    }
}

/// A configuration with changes.
fn with(config: &str, changes: &[(&str, &str)]) -> String {
    changes.iter().fold(config.to_owned(), |config, (from, to)| {
        assert!(config.contains(from), "{from}");
        config.replace(from, to)
    })
}

#[test]
fn epochs_become_rounds_by_declared_numbers() {
    let place = Place::new("epochs");
    // 2.1 epochs of 400 records in batches of 100 are 8.4 rounds.
    let report = place.train("epochs", &with(TABLE, &[("rounds = 20", "epochs = 2.1")]));
    assert_eq!((&report["rounds"], &report["charged"]), (&9.into(), &9.into()));
    let rounds = place.train("rounds", &with(TABLE, &[("rounds = 20", "rounds = 9")]));
    assert_eq!(report["epsilon"], rounds["epsilon"]);
    assert!(
        place.parameter("epochs", "linear1.weight") == place.parameter("rounds", "linear1.weight")
    );
}

const NUMBER: [(&str, &str); 2] = [
    ("label = \"class\"", "label = \"amount\""),
    ("classes = [\"a\", \"b\"]", "label_bounds = [0, 30]"),
];

#[test]
fn a_number_is_predicted_within_its_bounds_and_judged_by_its_mean_absolute_error() {
    let place = Place::new("regression");
    let linear = with(TABLE, &[("kind = \"mlp\"\nhidden = [6]", "kind = \"linear\"")]);
    let config = with(&with(&linear, &NUMBER), &[("rounds = 20", "rounds = 60")]);
    let report = place.train("squared", &config);
    assert_eq!(report["test_accuracy"], Value::Null);
    let error = report["test_mean_absolute_error"].as_f64().unwrap();
    // The middle of the bounds is off by 4.7 on average, and the noise of labels is 1.2.
    assert!(error < 3.0, "{error}");
    let text = place.predict("squared", "test.csv");
    let values: Vec<f64> = text.lines().skip(1).map(|line| line.parse().unwrap()).collect();
    assert!(text.starts_with("value\n") && values.len() == 120);
    assert!(values.iter().all(|value| (0.0..=30.0).contains(value)));
    // The report's figure follows from the predictions and the labels.
    let labels = table(120, 17);
    let labels = labels.lines().skip(1).map(|line| line.rsplit(',').next().unwrap().parse::<f64>());
    let found =
        labels.zip(&values).map(|(label, value)| (label.unwrap() - value).abs()).sum::<f64>();
    assert!((found / 120.0 - error).abs() < 1e-4, "{found}");
    let json = place.command(&["predict", "squared/model.safetensors", "test.csv", "--json"]);
    let json: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert!((json["predictions"][3]["value"].as_f64().unwrap() - values[3]).abs() < 1e-5);
    // Huber's loss, with a private estimate of it.
    let group = "[[privacy.groups]]\nvectors = [\"linear1.*\"]\nclip = 1.0\n\
                 [[privacy.groups]]\nvectors = [\"loss\"]\nclip = 1.0\nshare = 0.1";
    let huber = with(&config, &[("# train", "huber = 3.0"), ("# groups", group)]);
    let report = place.train("huber", &huber);
    assert!(report["test_mean_absolute_error"].as_f64().unwrap() < 3.0);
    assert_eq!(report["metrics"][0]["name"], "loss");
    // A threshold that no error reaches is no threshold.
    let wide = with(&config, &[("# train", "huber = 1e6")]);
    place.train("wide", &wide);
    let weight = |name| place.parameter(name, "linear1.weight");
    assert!(weight("wide") == weight("squared") && weight("huber") != weight("squared"));
    // The report of the directory says the same, from the ledger.
    let output = place.command(&["report", "squared", "--json"]);
    let again: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(again["test_mean_absolute_error"], error);
    let page = String::from_utf8(place.read("squared/report.html")).unwrap();
    assert!(page.contains("mean absolute error on the public test set"));
    // `evaluate` and `compare` say the same, as text and as pages.
    let model = "squared/model.safetensors";
    let found =
        place.command(&["evaluate", model, "test.csv", "--json", "--html", "evaluation.html"]);
    let found: Value = serde_json::from_slice(&found.stdout).unwrap();
    assert_eq!(found["mean_absolute_error"], error);
    let page = String::from_utf8(place.read("evaluation.html")).unwrap();
    assert!(page.contains("NOT PRIVATE") && page.matches("<svg").count() == 2, "{page}");
    place.command(&["evaluate", model, "test.csv", "--svg", "evaluation.svg"]);
    let picture = String::from_utf8(place.read("evaluation.svg")).unwrap();
    assert!(picture.starts_with("<svg xmlns") && picture.contains("absolute error"), "{picture}");
    let output = place.command(&["compare", "squared", "--json"]);
    let rows: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(rows["runs"][0]["test_mean_absolute_error"], error);
    let text = place.command(&["compare", "squared", "--html", "comparison.html"]);
    let text = String::from_utf8(text.stdout).unwrap();
    let first = text.lines().next().unwrap_or_default();
    assert!(first.contains("mean absolute error") && !first.contains("accuracy"), "{text}");
    let page = String::from_utf8(place.read("comparison.html")).unwrap();
    assert!(page.contains("Mean absolute error on the public test set"), "{page}");
}

#[test]
fn labels_beyond_their_bounds_train_as_the_bounds_and_bad_ones_contribute_zero() {
    let place = Place::new("bounds");
    let config = with(TABLE, &NUMBER);
    let data = table(400, 0);
    let last = |label: &str| format!("{data}0.5,0.5,north,a,{label}\n");
    let model = |name: &str, data: &str| {
        place.write("data.csv", data.as_bytes());
        place.train(name, &config);
        place.model(name)
    };
    let bound = model("bound", &last("30"));
    for (number, label) in ["31", "1e9", "inf"].into_iter().enumerate() {
        assert!(model(&format!("above{number}"), &last(label)) == bound, "{label}");
    }
    let without = model("without", &data);
    for (number, label) in ["", "nan", "zanzibar"].into_iter().enumerate() {
        assert!(model(&format!("bad{number}"), &last(label)) == without, "{label}");
    }
    assert!(without != bound);
}

#[test]
fn class_weights_change_the_model_and_not_the_guarantee() {
    let place = Place::new("weights");
    let weights = |list: &str| with(TABLE, &[("# train", &format!("class_weights = {list}"))]);
    let without = place.train("without", TABLE);
    let ones = place.train("ones", &weights("[1, 1]"));
    let heavy = place.train("heavy", &weights("[0.25, 2.5]"));
    let weight = |name| place.parameter(name, "linear1.weight");
    assert!(weight("ones") == weight("without") && weight("heavy") != weight("without"));
    for key in ["epsilon", "noise_multiplier", "groups", "rounds"] {
        assert!(without[key] == ones[key] && without[key] == heavy[key], "{key}");
    }
    // More examples are predicted to be of the heavy class.
    let count = |name| place.predict(name, "test.csv").matches("\nb,").count();
    assert!(count("heavy") > count("without"), "{} {}", count("heavy"), count("without"));
}

#[test]
fn listed_layers_train_on_any_size_of_images_and_are_read_for_predictions() {
    let place = Place::new("layers");
    let report = place.train("layers", IMAGES);
    // 9 x 7 becomes 5 x 4, then 4 x 3 of 4 channels.
    let size = (9 * 4 + 4) + (4 + 4) + (48 * 5 + 5) + (5 * 2 + 2);
    assert_eq!(report["model"]["parameters"], size);
    assert_eq!(place.predict("layers", "images.npy").lines().count(), 61);
    // The layers of an mlp, listed, are that mlp.
    let listed =
        "kind = \"layers\"\nlayers = [{ kind = \"linear\", outputs = 6 }, { kind = \"relu\" }]";
    place.train("mlp", TABLE);
    place.train("listed", &with(TABLE, &[("kind = \"mlp\"\nhidden = [6]", listed)]));
    for name in ["linear1.weight", "linear1.bias", "linear2.weight", "linear2.bias"] {
        assert!(place.parameter("mlp", name) == place.parameter("listed", name), "{name}");
    }
    assert_eq!(place.predict("mlp", "test.csv"), place.predict("listed", "test.csv"));
    place.refused(
        "flat",
        &with(IMAGES, &[("[[model.layers]]\nkind = \"flatten\"\n", "")]),
        2,
        "[[model.layers]] 5 (linear): takes numbers in a row, and the input is [4, 3, 4]: put a flatten before it",
    );
    let batch_norm = with(IMAGES, &[("kind = \"tanh\"", "kind = \"batch-norm\"")]);
    place.refused("statistics", &batch_norm, 2, "statistics");
}

/// An altered model file is refused before anything is allocated for what it declares.
#[test]
fn model_files_that_declare_more_than_they_hold_are_refused() {
    let place = Place::new("altered");
    place.train("layers", IMAGES);
    let bytes = place.model("layers");
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header = String::from_utf8(bytes[8..8 + length].to_vec()).unwrap();
    for (from, to, what) in [
        (
            r#"\"outputs\":5"#,
            r#"\"outputs\":900000"#,
            "is too short for the model that it declares",
        ),
        (r#"\"filters\":4"#, r#"\"filters\":16000000"#, "more than 8388608 numbers"),
        (r#"\"shape\":[9,7]"#, r#"\"shape\":[4000,4000]"#, "more than 8388608 numbers"),
        (r#"\"outputs\":5"#, r#"\"outputs\":6"#, "describes another network than it declares"),
        (r#"\"groups\":2"#, r#"\"groups\":0"#, "groups 0 is not in"),
        (r#"\"kind\":\"tanh\""#, r#"\"kind\":\"sine\""#, "unknown variant"),
    ] {
        assert!(header.contains(from), "{from} in {header}");
        let mut header = header.replace(from, to).into_bytes();
        header.resize(header.len().next_multiple_of(8), b' ');
        let size = (header.len() as u64).to_le_bytes();
        place.write("altered", &[&size[..], &header, &bytes[8 + length..]].concat());
        let output = place.command(&["predict", "altered", "images.npy"]);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(matches!(output.status.code(), Some(2 | 5)), "{to}: {error}");
        assert!(error.contains(what), "{what}: {error}");
    }
}

#[test]
fn categories_are_embedded_and_unknown_ones_are_none() {
    let place = Place::new("embedding");
    let config = with(TABLE, &[("# embedding", "embedding = 2")]);
    let report = place.train("embedded", &config);
    assert_eq!(report["model"]["parameters"], 3 * 2 + (2 + 2) * 6 + 6 + 6 * 2 + 2);
    assert_eq!(place.parameter("embedded", "embedding1.weight1").len(), 4 * 3 * 2);
    // The table holds unknown towns: every row has a prediction.
    let predictions = place.predict("embedded", "test.csv");
    assert!(predictions.lines().skip(1).all(|line| line.len() > 2));
    // Unknown towns count as the category that is declared for them.
    let named = with(&config, &[("embedding = 2", "embedding = 2\nmissing = \"west\"")]);
    place.train("named", &named);
    let model = place.model("named");
    place.write("data.csv", table(400, 0).replace("elsewhere", "west").as_bytes());
    place.train("renamed", &named);
    assert!(model == place.model("renamed") && model != place.model("embedded"));
    // A broken row contributes zero.
    place.write(
        "data.csv",
        format!("{}0.5,0.5\n", table(400, 0).replace("elsewhere", "west")).as_bytes(),
    );
    place.train("broken", &named);
    assert!(model == place.model("broken"));
}

fn sha256(bytes: &[u8]) -> String {
    let mut command = Command::new("sha256sum");
    let command = command.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
    let mut child = command.spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), bytes).unwrap();
    let text = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
    text.split(' ').next().unwrap().to_owned()
}

#[test]
fn a_run_starts_from_a_model_and_leaves_frozen_parameters_as_they_are() {
    let place = Place::new("init");
    let budget =
        ["budget", "create", "toy", "--epsilon", "50", "--delta", "1e-5", "--unit", "example"];
    let output = place.command(&[&budget[..], &["--ledger", "shared.db"]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let shared = Some("shared.db");
    place.train_with("first", TABLE, shared);
    let keys = "init = \"first/model.safetensors\"\nfrozen = [\"linear1.*\"]";
    let config = with(TABLE, &[("# model", keys)]);
    let report = place.train_with("second", &config, shared);
    for name in ["linear1.weight", "linear1.bias"] {
        assert!(place.parameter("first", name) == place.parameter("second", name), "{name}");
    }
    assert!(
        place.parameter("first", "linear2.weight") != place.parameter("second", "linear2.weight")
    );
    let hash = sha256(&place.model("first"));
    assert_eq!(report["start"]["sha256"], *hash);
    assert_eq!(report["start"]["trained"]["id"], report["ledger"]["id"]);
    // Only what is trained is clipped and gets noise.
    assert_eq!(report["groups"][0]["dimension"], 6 * 2 + 2);
    assert_eq!(report["model"]["parameters"], 6 * 2 + 2);
    // Two runs on one dataset: the claim is their budget, not this run's epsilon.
    assert_eq!((&report["epsilon"], &report["accountant"]), (&50.0.into(), &"budget".into()));
    let statement = report["statement"].as_str().unwrap();
    assert!(
        statement.contains(&hash) && statement.contains("charged to the same ledger"),
        "{statement}"
    );
    let said = place.command(&["statement", "second"]);
    let said = String::from_utf8(said.stdout).unwrap();
    assert!(said.contains("Start. Training started from a model file") && said.contains(&hash));
    // With a ledger of its own, the statement says what it does not cover.
    let report = place.train("apart", &config);
    let statement = report["statement"].as_str().unwrap();
    assert!(
        statement.contains("WARNING. Training started from")
            && statement.contains("another ledger")
    );
    assert!(statement.contains("the epsilons and deltas of both add up"), "{statement}");
    // The same file under another name is the same model; the hash may be pinned.
    place.write("copy.safetensors", &place.model("first"));
    let pinned = keys.replace("first/model", "copy") + &format!("\ninit_sha256 = \"{hash}\"");
    place.train("pinned", &with(TABLE, &[("# model", &pinned)]));
    assert!(place.parameter("pinned", "linear2.bias") == place.parameter("apart", "linear2.bias"));
    let wrong = pinned.replace(&hash, &"0".repeat(64));
    place.refused("wrong", &with(TABLE, &[("# model", &wrong)]), 2, "[model] init_sha256 is 0000");
}

#[test]
fn a_public_model_is_taken_for_public_and_may_have_another_last_layer() {
    let place = Place::new("public-init");
    place.train("first", TABLE);
    // A file without our description: only the parameters.
    let (_, entries) = safetensors(&place.model("first"));
    let (mut header, mut bytes) = (serde_json::Map::new(), Vec::new());
    for (name, shape) in [
        ("linear1.weight", vec![5, 6]),
        ("linear1.bias", vec![6]),
        ("linear2.weight", vec![6, 2]),
        ("linear2.bias", vec![2]),
    ] {
        let start = bytes.len();
        bytes.extend(&entries[name]);
        let entry = serde_json::json!({ "dtype": "F32", "shape": shape, "data_offsets": [start, bytes.len()] });
        header.insert(name.to_owned(), entry);
    }
    let header = serde_json::to_vec(&header).unwrap();
    place.write(
        "public.safetensors",
        &[&(header.len() as u64).to_le_bytes()[..], &header, &bytes].concat(),
    );
    let keys =
        "init = \"public.safetensors\"\nfresh = [\"linear2.*\"]\nfrozen = [\"linear1.weight\"]";
    let three =
        [("classes = [\"a\", \"b\"]", "classes = [\"a\", \"b\", \"c\"]"), ("# model", keys)];
    let report = place.train("second", &with(TABLE, &three));
    assert!(
        place.parameter("first", "linear1.weight") == place.parameter("second", "linear1.weight")
    );
    assert_eq!(place.parameter("second", "linear2.bias").len(), 3 * 4);
    assert!(report["start"].get("trained").is_none());
    assert!(report["statement"].as_str().unwrap().contains("It is taken for public"));
    for (from, to, code, what) in [
        (
            "\nfresh = [\"linear2.*\"]",
            "",
            5,
            "parameter 'linear2.weight' is missing, unknown or has another shape",
        ),
        ("linear2.*", "linear3.*", 5, "'linear3.*' matches no parameter"),
        (
            "\"linear1.weight\"",
            "\"conv*\"",
            2,
            "[model] frozen: 'conv*' matches no parameter; they are linear1.weight",
        ),
        ("\"linear1.weight\"", "\"*\"", 2, "[model] frozen: every parameter is frozen"),
        ("public.safetensors", "nowhere.safetensors", 1, "nowhere.safetensors"),
        ("public.safetensors", "data.csv", 5, "data.csv"),
    ] {
        let keys = keys.replace(from, to);
        let three =
            [("classes = [\"a\", \"b\"]", "classes = [\"a\", \"b\", \"c\"]"), ("# model", &keys)];
        place.refused("refused", &with(TABLE, &three), code, what);
    }
}

#[test]
fn probabilities_are_calibrated_on_public_examples() {
    let place = Place::new("calibration");
    let calibrated = with(
        TABLE,
        &[("test = \"test.csv\"", "test = \"test.csv\"\ncalibration = \"public.csv\"")],
    );
    let plain = place.train("plain", TABLE);
    let report = place.train("calibrated", &calibrated);
    let temperature = report["temperature"].as_f64().unwrap();
    assert!(plain.get("temperature").is_none() && temperature > 0.01 && temperature != 1.0);
    // Classes and the guarantee are the same; only the last layer is scaled.
    assert_eq!(plain["test_accuracy"], report["test_accuracy"]);
    assert_eq!(plain["epsilon"], report["epsilon"]);
    assert!(
        place.parameter("plain", "linear1.weight")
            == place.parameter("calibrated", "linear1.weight")
    );
    let floats = |name| {
        let bytes = place.parameter(name, "linear2.weight");
        bytes.chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect::<Vec<_>>()
    };
    for (plain, scaled) in floats("plain").iter().zip(floats("calibrated")) {
        assert!((f64::from(*plain) / temperature - f64::from(scaled)).abs() < 1e-6);
    }
    // The log loss on public examples is lower, as it is minimal there.
    let log_loss = |name| {
        let text = place.predict(name, "public.csv");
        let rows = table(150, 31);
        let rows = rows.lines().skip(1).zip(text.lines().skip(1));
        rows.map(|(row, found)| {
            let (class, probability) = found.split_once(',').unwrap();
            let probability: f64 = probability.parse().unwrap();
            let right = row.split(',').nth(3).unwrap() == class;
            -(if right { probability } else { 1.0 - probability }).max(1e-12).ln()
        })
        .sum::<f64>()
    };
    assert!(log_loss("calibrated") < log_loss("plain"));
    let frozen = with(&calibrated, &[("# model", "frozen = [\"linear2.bias\"]")]);
    place.refused(
        "frozen",
        &frozen,
        2,
        "[data] calibration scales the last layer, and [model] frozen keeps \"linear2.bias\"",
    );
    // The training data under another name is refused, as for a test set.
    place.write("public.csv", table(400, 0).as_bytes());
    place.refused("private", &calibrated, 2, "[data] calibration has the examples of [data] train");
}

#[test]
fn an_interrupted_run_with_all_of_it_is_finished_from_its_checkpoint() {
    let place = Place::new("finish");
    place.train("first", TABLE);
    let keys = "init = \"first/model.safetensors\"\nfrozen = [\"linear1.*\"]";
    let config = with(
        TABLE,
        &[
            ("# model", keys),
            ("# train", "class_weights = [1.0, 2.0]"),
            ("test = \"test.csv\"", "test = \"test.csv\"\ncalibration = \"public.csv\""),
        ],
    );
    place.train("second", &config);
    let model = place.model("second");
    // The library keeps the checkpoint and run.json of a run that has ended.
    for name in ["model.safetensors", "report.json", "report.html", "statement.txt"] {
        std::fs::remove_file(place.directory.0.join("second").join(name)).unwrap();
    }
    let output = place.command(&["finish", "second"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(place.parameter("second", "linear2.weight") == safetensors(&model).1["linear2.weight"]);
    let report: Value = serde_json::from_slice(&place.read("second/report.json")).unwrap();
    assert!(report["temperature"].is_number() && report["start"]["sha256"].is_string());
}
