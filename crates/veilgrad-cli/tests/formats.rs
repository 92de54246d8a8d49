//! The same examples in every format of files: the same model, bit for bit, and the same treatment of bad records.
//!
//! Runs have frozen randomness, so that parameters can be compared.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;

use crate::common::{Directory, files, frozen, idx, npy, safetensors};
use serde_json::Value;

const TABLE: &str = r#"
[data]
train = "data.csv"
dataset = "toy"
label = "class"
classes = ["a", "b"]
records = 60
# text
[[data.columns]]
name = "x"
bounds = [0, 1]
[[data.columns]]
name = "y"
bounds = [0, 1]
missing = "mean-of-bounds"
[[data.columns]]
name = "word"
categories = ["red", "green"]
[model]
kind = "linear"
[privacy]
noise_multiplier = 2.0
delta = 1e-5
expected_batch = 30
[train]
rounds = 6
optimizer = { kind = "sgd", lr = 0.5 }
"#;

const ARRAYS: &str = r#"
[data]
train = "images.npy"
labels = "labels.npy"
dataset = "toy"
classes = 2
records = 60
shape = [3, 4]
bounds = [0, 8]
# record
[model]
kind = "linear"
[privacy]
noise_multiplier = 2.0
delta = 1e-5
expected_batch = 30
[train]
rounds = 6
optimizer = { kind = "sgd", lr = 0.5 }
"#;

/// A run: its exit code, what it printed, and its files.
struct Left {
    code: Option<i32>,
    stderr: String,
    files: BTreeMap<String, Vec<u8>>,
}

impl Left {
    /// The bytes of all parameters.
    fn parameters(&self) -> BTreeMap<String, Vec<u8>> {
        assert_eq!(self.code, Some(0), "{}", self.stderr);
        safetensors(&self.files["model.safetensors"]).1
    }

    fn report(&self) -> Value {
        assert_eq!(self.code, Some(0), "{}", self.stderr);
        serde_json::from_slice(&self.files["report.json"]).unwrap()
    }
}

struct Place {
    directory: Directory,
    library: String,
    runs: std::cell::Cell<u32>,
}

impl Place {
    fn new(name: &str) -> Self {
        let directory = Directory::new(name);
        let library = frozen(&directory);
        Self { directory, library, runs: 0.into() }
    }

    /// Trains on these files, in a directory of its own.
    fn run(&self, config: &str, inputs: &[(&str, &[u8])]) -> Left {
        let here = self.write(config, inputs);
        let output = Command::new(env!("CARGO_BIN_EXE_veilgrad"))
            .args(["train", "config.toml", "--out", "out", "--ledger", "out/ledger.db"])
            .args(["--threads", "1"])
            .current_dir(&here)
            .env("LD_PRELOAD", &self.library)
            .output()
            .unwrap();
        let name = |path: PathBuf| path.file_name().unwrap().to_string_lossy().into_owned();
        let out = here.join("out");
        let files = if out.exists() { files(&out) } else { Vec::new() };
        Left {
            code: output.status.code(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
            files: files.into_iter().map(|(path, bytes)| (name(path), bytes)).collect(),
        }
    }

    fn write(&self, config: &str, inputs: &[(&str, &[u8])]) -> PathBuf {
        self.runs.set(self.runs.get() + 1);
        let here = self.directory.0.join(self.runs.get().to_string());
        std::fs::create_dir(&here).unwrap();
        std::fs::write(here.join("config.toml"), config).unwrap();
        for (name, bytes) in inputs {
            std::fs::write(here.join(name), bytes).unwrap();
        }
        here
    }

    /// Predicts with a model.
    fn predict(&self, model: &[u8], name: &str, bytes: &[u8]) -> String {
        let here = self.write("", &[("model.safetensors", model), (name, bytes)]);
        let output = Command::new(env!("CARGO_BIN_EXE_veilgrad"))
            .args(["predict", "model.safetensors", name])
            .current_dir(&here)
            .output()
            .unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{name}: {error}");
        String::from_utf8(output.stdout).unwrap()
    }
}

fn gzipped(bytes: &[u8]) -> Vec<u8> {
    let mut command = Command::new("gzip");
    let command = command.arg("-c").stdin(std::process::Stdio::piped());
    let mut child = command.stdout(std::process::Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(bytes).unwrap();
    child.wait_with_output().unwrap().stdout
}

/// The cells of 60 rows: x, y (sometimes missing), word, class.
fn rows() -> Vec<[String; 4]> {
    let row = |i: u32| {
        let (x, y) = (f64::from(i * 37 % 101) / 128.0, f64::from(i * 53 % 97) / 128.0);
        let word = ["red", "green", "blue"][i as usize % 3];
        let y = if i % 7 == 3 { String::new() } else { y.to_string() };
        [x.to_string(), y, word.to_owned(), if i.is_multiple_of(2) { "a" } else { "b" }.to_owned()]
    };
    (0..60).map(row).collect()
}

fn text(rows: &[[String; 4]], delimiter: &str, header: bool) -> String {
    let head = ["x", "y", "word", "class"].join(delimiter);
    let mut lines: Vec<String> = rows.iter().map(|row| row.join(delimiter)).collect();
    if header {
        lines.insert(0, head);
    }
    lines.join("\n") + "\n"
}

fn json(rows: &[[String; 4]]) -> String {
    let line = |[x, y, word, class]: &[String; 4]| {
        let y = if y.is_empty() { "null" } else { y };
        format!("{{\"class\":\"{class}\",\"x\":{x},\"y\":{y},\"word\":\"{word}\",\"more\":[1]}}\n")
    };
    rows.iter().map(line).collect()
}

/// Every format of text: the name of the file, keys of `[data]`, and the content.
fn texts() -> Vec<(&'static str, &'static str, String)> {
    let rows = rows();
    let header = "header = [\"x\", \"y\", \"word\", \"class\"]";
    vec![
        ("data.csv", "", text(&rows, ",", true)),
        ("data.tsv", "", text(&rows, "\t", true)),
        ("data.csv", "delimiter = \";\"", text(&rows, ";", true)),
        ("data.csv", header, text(&rows, ",", false)),
        ("data.jsonl", "", json(&rows)),
        ("data.ndjson", "", json(&rows)),
    ]
}

fn table_config(name: &str, keys: &str) -> String {
    TABLE.replace("data.csv", name).replace("# text", keys)
}

#[test]
fn the_same_rows_give_the_same_model_in_every_format_and_predictions_read_it() {
    let place = Place::new("formats-tables");
    let mut models = Vec::new();
    for (name, keys, content) in texts() {
        let packed = gzipped(content.as_bytes());
        for (name, bytes) in
            [(name.to_owned(), content.as_bytes()), (format!("{name}.gz"), packed.as_slice())]
        {
            let left = place.run(&table_config(&name, keys), &[(&name, bytes)]);
            let parameters = left.parameters();
            let predictions = place.predict(&left.files["model.safetensors"], &name, bytes);
            assert_eq!(predictions.lines().count(), 61, "{name}");
            models.push((format!("{name} {keys}"), parameters, predictions));
        }
    }
    for (name, parameters, predictions) in &models {
        assert!(*parameters == models[0].1, "{name}");
        assert_eq!(*predictions, models[0].2, "{name}");
    }
}

/// A run with Poisson samples draws each record by itself: one at the end that contributes zero changes no byte.
#[test]
fn a_bad_record_at_the_end_changes_no_byte_in_any_format() {
    let place = Place::new("formats-bad");
    for (name, keys, content) in texts() {
        let config = table_config(name, keys);
        let one = place.run(&config, &[(name, content.as_bytes())]);
        let bad: &[&str] = match name {
            "data.jsonl" | "data.ndjson" => &["{\"x\":1", "{}", "{\"class\":\"a\",\"x\":\"one\"}"],
            "data.tsv" => &["1", "x\ty\tword\tclass", "0.5\t0.5\tred\tc"],
            _ if keys.contains("delimiter") => &["1,2,3,4", "0.5;0.5;red;c"],
            _ => &["\"0.5,0.5,red,a", "0.5,0.5,red,c", "zanzibar,0.5,red,a"],
        };
        for bad in bad {
            let more = place.run(&config, &[(name, format!("{content}{bad}\n").as_bytes())]);
            assert_eq!(one.stderr, more.stderr, "{name} {bad}");
            assert!(one.files == more.files && one.code == Some(0), "{name} {bad}: {}", one.stderr);
        }
    }
}

/// A `.npy` file of another type or order; `values` are row by row.
fn array(kind: &str, fortran: bool, shape: &[usize], values: &[f32]) -> Vec<u8> {
    let rows = shape[0];
    let width = values.len() / rows;
    let place = |k: usize| match (fortran, shape) {
        (false, _) => k,
        // Element (r, i, j) is at r + rows (i + lines j).
        (true, [_, lines, columns]) => {
            let (r, rest) = (k % rows, k / rows);
            let (i, j) = (rest % lines, rest / lines);
            r * width + i * columns + j
        }
        (true, _) => k,
    };
    let number = |value: f32| match kind {
        "<f2" => half(value).to_le_bytes().to_vec(),
        ">f2" => half(value).to_be_bytes().to_vec(),
        "<f8" => f64::from(value).to_le_bytes().to_vec(),
        "|u1" => vec![value as u8],
        _ => value.to_le_bytes().to_vec(),
    };
    let order = if fortran { "True" } else { "False" };
    let shape = shape.iter().map(|length| format!("{length},")).collect::<String>();
    let header = format!("{{'descr': '{kind}', 'fortran_order': {order}, 'shape': ({shape}), }}\n");
    let mut file = b"\x93NUMPY\x01\x00".to_vec();
    file.extend((header.len() as u16).to_le_bytes());
    file.extend(header.as_bytes());
    file.extend((0..values.len()).flat_map(|k| number(values[place(k)])));
    file
}

/// The bits of a whole number from 0 to 8 as binary16.
fn half(value: f32) -> u16 {
    match value as u16 {
        0 => 0,
        number => {
            let exponent = 15 - number.leading_zeros() as u16;
            (exponent + 15) << 10 | (number << (10 - exponent) & 0x3ff)
        }
    }
}

/// Images of 3 x 4 whole numbers from 0 to 8, and their classes.
fn images() -> (Vec<f32>, Vec<f32>) {
    let pixels = (0..60 * 12).map(|i| (i * 7 % 9) as f32);
    (pixels.collect(), (0..60).map(|i| (i % 2) as f32).collect())
}

#[test]
fn the_same_images_give_the_same_model_in_every_type_and_order() {
    let place = Place::new("formats-arrays");
    let (pixels, labels) = images();
    let label_file = npy("60,", &labels);
    let run = |images: &[u8]| {
        place.run(ARRAYS, &[("images.npy", images), ("labels.npy", &label_file)]).parameters()
    };
    let expected = run(&npy("60, 3, 4", &pixels));
    for kind in ["<f2", ">f2", "<f4", "<f8", "|u1"] {
        for fortran in [false, true] {
            assert!(
                run(&array(kind, fortran, &[60, 3, 4], &pixels)) == expected,
                "{kind} {fortran}"
            );
        }
    }
    // A NaN is missing in any type: the example contributes zero.
    let mut missing = pixels.clone();
    missing[12 * 59] = f32::NAN;
    let mut bytes = array("<f2", false, &[60, 3, 4], &pixels);
    let place_of_nan = bytes.len() - 24;
    bytes[place_of_nan..place_of_nan + 2].copy_from_slice(&0x7e00u16.to_le_bytes());
    assert!(run(&bytes) == run(&npy("60, 3, 4", &missing)));
}

/// A `.npy` file of ids.
fn ids(of: impl Fn(i64) -> i64, count: i64) -> Vec<u8> {
    let header = format!("{{'descr': '<i8', 'fortran_order': False, 'shape': ({count},), }}\n");
    let mut file = b"\x93NUMPY\x01\x00".to_vec();
    file.extend((header.len() as u16).to_le_bytes());
    file.extend(header.as_bytes());
    file.extend((0..count).flat_map(|i| of(i).to_le_bytes()));
    file
}

#[test]
fn users_of_arrays_are_named_by_a_file_of_ids() {
    let place = Place::new("formats-ids");
    let (pixels, labels) = images();
    let config = ARRAYS
        .replace("# record", "record = { user_ids = \"ids.npy\", max_examples = 2 }")
        .replace("records = 60", "records = 20")
        .replace("expected_batch = 30", "expected_batch = 10");
    let run = |pixels: &[f32], ids: &[u8]| {
        let (images, labels) = (npy("60, 3, 4", pixels), npy("60,", &labels));
        place.run(&config, &[("images.npy", &images), ("labels.npy", &labels), ("ids.npy", ids)])
    };
    // Three examples of each of 20 users.
    let one = run(&pixels, &ids(|i| i / 3, 60));
    assert_eq!(one.report()["unit"], "user");
    // What the ids are does not matter, and f32 or f64 would merge these.
    let long = run(&pixels, &ids(|i| (1 << 60) + i / 3, 60));
    assert!(one.parameters() == long.parameters());
    assert_eq!(one.stderr, long.stderr);
    // The third example of a user is not used.
    let mut other = pixels.clone();
    other.chunks_exact_mut(12).skip(2).step_by(3).for_each(|image| image.fill(3.0));
    assert!(one.parameters() == run(&other, &ids(|i| i / 3, 60)).parameters());
    // Whose examples they are does matter.
    assert!(one.parameters() != run(&pixels, &ids(|i| i % 20, 60)).parameters());
    // Whether there is a user more, who contributes zero, does not show.
    let mut bad = pixels.clone();
    bad.extend([f32::NAN; 12]);
    let more = place.run(
        &config,
        &[
            ("images.npy", &npy("61, 3, 4", &bad)),
            ("labels.npy", &npy("61,", &[&labels[..], &[0.0]].concat())),
            ("ids.npy", &ids(|i| i / 3, 61)),
        ],
    );
    assert!(one.files == more.files && one.stderr == more.stderr);
}

#[test]
fn files_that_are_malformed_as_a_whole_are_refused_without_a_round() {
    let place = Place::new("formats-malformed");
    let csv = text(&rows(), ",", true);
    let packed = gzipped(csv.as_bytes());
    let refused = |config: &str, inputs: &[(&str, &[u8])], what: &str| {
        let left = place.run(config, inputs);
        assert_eq!(left.code, Some(5), "{what}: {}", left.stderr);
        assert!(left.stderr.contains(what), "{what}: {}", left.stderr);
        assert!(!left.files.contains_key("model.safetensors"));
    };
    let gz = table_config("data.csv.gz", "");
    refused(&gz, &[("data.csv.gz", &packed[..packed.len() / 2])], "data.csv.gz");
    let other = "delimiter = \";\"";
    refused(
        &table_config("data.csv", other),
        &[("data.csv", csv.as_bytes())],
        "has no column \"x\"",
    );
    let (pixels, labels) = images();
    let (images, labels) = (npy("60, 3, 4", &pixels), npy("60,", &labels));
    let users = ARRAYS.replace("# record", "record = { user_ids = \"ids.npy\", max_examples = 2 }");
    for (ids, what) in [
        (ids(|i| i, 59), "has not as many ids as there are examples"),
        (npy("60,", &[0.0; 60]), "save whole numbers, such as int64"),
        (b"no ids".to_vec(), "ids.npy"),
    ] {
        let inputs = [("images.npy", &images[..]), ("labels.npy", &labels), ("ids.npy", &ids)];
        refused(&users, &inputs, what);
    }
    let short = array("<f2", true, &[60, 3, 4], &pixels);
    let inputs = [("images.npy", &short[..short.len() - 1]), ("labels.npy", &labels)];
    refused(ARRAYS, &inputs, "is shorter than its header says");
}

#[test]
fn gzipped_images_keep_working() {
    let place = Place::new("formats-idx");
    let (pixels, labels) = images();
    let bytes = |values: &[f32]| values.iter().map(|value| *value as u8).collect::<Vec<u8>>();
    let (images, labels) = (idx(&[60, 3, 4], &bytes(&pixels)), idx(&[60], &bytes(&labels)));
    let config = ARRAYS.replace(".npy", "");
    let plain = place.run(&config, &[("images", &images), ("labels", &labels)]);
    let packed = [("images", gzipped(&images)), ("labels", gzipped(&labels))];
    let packed: Vec<(&str, &[u8])> =
        packed.iter().map(|(name, bytes)| (*name, &bytes[..])).collect();
    assert!(plain.parameters() == place.run(&config, &packed).parameters());
}
