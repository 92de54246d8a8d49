//! Keys of which no other test sees an effect: with randomness frozen, each changes the model, and does what it says where
//! another way to say the same is known.

use std::collections::BTreeMap;

use crate::common::{Directory, command, frozen, npy, safetensors};

type Parameters = BTreeMap<String, Vec<u8>>;

const OPTIMIZER: &str = r#"{ kind = "sgd", lr = 0.5, momentum = 0.5 }"#;

/// A small run, whose randomness is the same every time.
struct Runs {
    directory: Directory,
    library: String,
}

impl Runs {
    fn new() -> Self {
        let directory = Directory::new("effects");
        let library = frozen(&directory);
        let mut state = 1u32;
        let mut number = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 24) as f32
        };
        let mut write = |name: &str, rows: usize| {
            let values: Vec<f32> = (0..2 * rows).map(|_| number()).collect();
            let class = |pair: &[f32]| f32::from(u8::from(pair[0] > pair[1]));
            let labels: Vec<f32> = values.chunks(2).map(class).collect();
            let other: Vec<f32> = labels.iter().map(|label| 1.0 - label).collect();
            let shape = format!("{rows},");
            for (name, bytes) in [
                (format!("{name}.npy"), npy(&format!("{rows}, 2"), &values)),
                (format!("{name}-labels.npy"), npy(&shape, &labels)),
                (format!("{name}-wrong.npy"), npy(&shape, &other)),
            ] {
                std::fs::write(directory.file(&name), bytes).unwrap();
            }
        };
        write("train", 400);
        write("calibration", 60);
        Self { directory, library }
    }

    /// The parameters that a run ends with.
    fn parameters(&self, data: &str, privacy: &str, optimizer: &str, train: &str) -> Parameters {
        let text = format!(
            r#"
[data]
train = "train.npy"
labels = "train-labels.npy"
dataset = "toy"
records = 400
classes = 2
shape = [2]
bounds = [0, 1]
{data}
[model]
kind = "mlp"
hidden = [4]
[privacy]
noise_multiplier = 1.5
delta = 1e-5
expected_batch = 100
adjacency = "replace-one"
{privacy}
[train]
rounds = 8
optimizer = {optimizer}
{train}
"#
        );
        let (config, out) = (self.directory.file("config.toml"), self.directory.file("out"));
        std::fs::write(&config, text).unwrap();
        let _ = std::fs::remove_dir_all(&out);
        let words = ["train", &config, "--out", &out, "--threads", "1", "-q"];
        let output = command(&words).env("LD_PRELOAD", &self.library).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{data} {privacy} {optimizer} {train}: {error}");
        safetensors(&std::fs::read(format!("{out}/model.safetensors")).unwrap()).1
    }
}

#[test]
fn every_key_changes_the_model_as_it_says() {
    let runs = Runs::new();
    let optimized = |optimizer: &str| runs.parameters("", "", optimizer, "");
    let base = optimized(OPTIMIZER);
    // What is compared repeats.
    assert_eq!(optimized(OPTIMIZER), base);
    let said =
        |data: &str, privacy: &str, train: &str| runs.parameters(data, privacy, OPTIMIZER, train);

    let nesterov = r#"{ kind = "sgd", lr = 0.5, momentum = 0.5, nesterov = true }"#;
    assert_ne!(optimized(nesterov), base);
    // Without momentum there is nothing to look ahead by.
    assert_eq!(
        optimized(&nesterov.replace("0.5, nesterov", "0.0, nesterov")),
        optimized(&OPTIMIZER.replace("momentum = 0.5", "momentum = 0.0"))
    );

    let cosine = said("", "", "schedule = \"cosine\"");
    let linear = said("", "", "schedule = \"linear\"");
    assert!(cosine != base && linear != base && cosine != linear);
    assert_eq!(cosine, said("", "", "cosine = true"));
    assert_eq!(said("", "", "schedule = \"constant\""), base);

    let mut models = vec![base.clone()];
    for kind in ["adam", "yogi", "adagrad", "rmsprop"] {
        models.push(optimized(&format!("{{ kind = {kind:?}, lr = 0.05 }}")));
    }
    for decay in ["0.0", "0.1", "0.2"] {
        let optimizer = format!("{{ kind = \"adamw\", lr = 0.05, weight_decay = {decay} }}");
        models.push(optimized(&optimizer));
    }
    // Without decay of weights, it is Adam.
    assert_eq!(models[5], models[1]);
    models.remove(5);
    for (number, model) in models.iter().enumerate() {
        assert!(!models[..number].contains(model), "{number}");
    }

    let truncated = |most: &str| said("", &format!("sampling = \"truncated\"\n{most}"), "");
    let proposed = truncated("");
    assert_ne!(truncated("max_batch = 80"), proposed);
    assert_ne!(truncated("max_batch = 60"), truncated("max_batch = 80"));
    // 100 + 6 sqrt(100).
    assert_eq!(truncated("max_batch = 160"), proposed);

    let calibrated = |labels: &str| {
        let keys = "calibration = \"calibration.npy\"\ncalibration_labels";
        said(&format!("{keys} = \"calibration-{labels}.npy\""), "", "")
    };
    let (right, wrong) = (calibrated("labels"), calibrated("wrong"));
    assert!(right != base && wrong != base && right != wrong);
    // It scales the last layer alone.
    let changed = right.iter().filter(|(name, value)| base[*name] != **value);
    let changed: Vec<&str> = changed.map(|(name, _)| name.as_str()).collect();
    assert!(changed.iter().all(|name| name.starts_with("linear2.")), "{changed:?}");
}
