//! A bad record does not stop a run, and no output reveals it.
//!
//! Runs with frozen randomness are compared: a record that is bad in one way with the same record bad in another way, and a
//! file that ends with a bad record with the file without it. Poisson sampling draws each record independently, so a record
//! that contributes zero changes no byte.

use std::collections::BTreeMap;
use std::process::{Command, Output};

use crate::common::{Directory, files, frozen, idx, npy, own_clock, table, without_estimate};

const CSV: &str = r#"
[data]
train = "data.csv"
test = "test.csv"
dataset = "toy"
label = "class"
classes = ["a", "b"]
records = 400
# record

[[data.columns]]
name = "x"
bounds = [0, 1]
# missing
[[data.columns]]
name = "y"
bounds = [0, 1]
[[data.columns]]
name = "word"
categories = ["declared", "other"]
# word

[model]
kind = "linear"

[privacy]
epsilon = 2.0
delta = 1e-5
expected_batch = 100
[[privacy.groups]]
vectors = ["linear1.*"]
clip = 1.0
[[privacy.groups]]
vectors = ["accuracy"]
clip = 1.0
share = 0.05

[train]
rounds = 12
optimizer = { kind = "sgd", lr = 2.0, momentum = 0.5 }
block = 4
"#;

const ARRAYS: &str = r#"
[data]
train = "images"
labels = "labels"
dataset = "toy"
records = 100
classes = 2
shape = [8, 8]
bounds = [0, 1]
# missing
[model]
kind = "linear"
# features
[privacy]
noise_multiplier = 2.0
delta = 1e-5
expected_batch = 40
[train]
rounds = 6
optimizer = { kind = "sgd", lr = 0.5 }
"#;

/// The output and the files of a run.
#[derive(PartialEq)]
struct Left {
    code: Option<i32>,
    stdout: String,
    stderr: String,
    files: BTreeMap<String, Vec<u8>>,
}

impl Left {
    fn new(output: Output, files: BTreeMap<String, Vec<u8>>) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (stdout, stderr) = (text(&output.stdout), without_estimate(&text(&output.stderr)));
        Self { code: output.status.code(), stdout, stderr, files }
    }

    fn model(&self) -> &[u8] {
        &self.files["model.safetensors"]
    }
}

/// A directory for runs that differ only in their input files.
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

    fn run(&self, config: &str, inputs: &[(&str, &[u8])]) -> Left {
        self.runs.set(self.runs.get() + 1);
        let here = self.directory.0.join(self.runs.get().to_string());
        std::fs::create_dir(&here).unwrap();
        std::fs::write(here.join("config.toml"), config).unwrap();
        table(&here.join("test.csv").display().to_string(), 100);
        for (name, bytes) in inputs {
            std::fs::write(here.join(name), bytes).unwrap();
        }
        let mut command = Command::new(env!("CARGO_BIN_EXE_veilgrad"));
        let command = command
            .args(["train", "config.toml", "--out", "out", "--ledger", "out/ledger.db"])
            .args(["--threads", "1", "-v"])
            .current_dir(&here)
            .env("LD_PRELOAD", &self.library);
        let output = own_clock(command).output().unwrap();
        let name =
            |path: &std::path::Path| path.file_name().unwrap().to_string_lossy().into_owned();
        let files = files(&here.join("out")).into_iter();
        Left::new(output, files.map(|(path, bytes)| (name(&path), bytes)).collect())
    }
}

/// Asserts that two runs left the same, byte by byte.
fn assert_same(one: &Left, other: &Left, what: &str) {
    assert_eq!(
        (one.code, other.code),
        (Some(0), Some(0)),
        "{what}: {} {}",
        one.stderr,
        other.stderr
    );
    assert_eq!(one.stdout, other.stdout, "{what}");
    assert_eq!(one.stderr, other.stderr, "{what}");
    let names = |left: &Left| left.files.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(one), names(other), "{what}");
    for (name, bytes) in &one.files {
        assert!(*bytes == other.files[name], "{what}: {name}");
    }
}

/// The lines of a table of 400 rows, and its header.
fn toy(place: &Place) -> (String, Vec<String>) {
    let path = place.directory.file("toy.csv");
    table(&path, 400);
    let text = std::fs::read_to_string(path).unwrap();
    let mut lines = text.lines().map(str::to_owned);
    (lines.next().unwrap(), lines.collect())
}

fn csv(header: &str, lines: &[impl AsRef<[u8]>]) -> Vec<u8> {
    let mut text = header.as_bytes().to_vec();
    for line in lines {
        text.push(b'\n');
        text.extend(line.as_ref());
    }
    text.push(b'\n');
    text
}

/// Lines of a user that are bad in different ways.
const BAD: [&[u8]; 10] = [
    b"zanzibar1,,0.5,declared,a",
    b"zanzibar1,zero,0.5,declared,a",
    b"zanzibar1,nan,0.5,declared,a",
    b"zanzibar1,0.9,\xff\xfe,declared,a",
    b"zanzibar1,0.9,0.1,declared,unknown",
    b"zanzibar1,0.9,0.1,declared,",
    b"zanzibar1,0.9,0.1,a",
    b"zanzibar1,0.9,0.1,declared,a,b",
    b"zanzibar1,0.9,\"0.1,declared,a",
    b"",
];

#[test]
fn a_bad_row_of_a_table_is_like_any_other_bad_row_and_like_none() {
    let place = Place::new("bad-rows");
    let (header, lines) = toy(&place);
    let good = place.run(CSV, &[("data.csv", &csv(&header, &lines))]);
    let mut first: Option<Left> = None;
    for bad in BAD {
        let what = String::from_utf8_lossy(bad).into_owned();
        let mut changed: Vec<&[u8]> = lines.iter().map(String::as_bytes).collect();
        changed[200] = bad;
        let inside = place.run(CSV, &[("data.csv", &csv(&header, &changed))]);
        assert_same(
            first.get_or_insert_with(|| place.run(CSV, &[("data.csv", &csv(&header, &changed))])),
            &inside,
            &what,
        );
        // The good record that it replaces did contribute.
        assert!(inside.model() != good.model(), "{what}");
        let mut added: Vec<&[u8]> = lines.iter().map(String::as_bytes).collect();
        added.push(bad);
        assert_same(&good, &place.run(CSV, &[("data.csv", &csv(&header, &added))]), &what);
    }
}

#[test]
fn what_is_declared_for_missing_values_counts_like_the_value_itself() {
    let place = Place::new("policy");
    let (header, mut lines) = toy(&place);
    let config = CSV
        .replace("# missing", "missing = \"mean-of-bounds\"")
        .replace("# word", "missing = \"other\"");
    let mut train = |line: &str| {
        lines[200] = line.to_owned();
        place.run(&config, &[("data.csv", &csv(&header, &lines))])
    };
    let good = train("zanzibar1,0.5,0.25,other,a");
    assert_same(&good, &train("zanzibar1,,0.25,,a"), "empty");
    assert_same(&good, &train("zanzibar1,unknown,0.25,unknown,a"), "text");
    assert!(good.model() != train("zanzibar1,0.75,0.25,other,a").model());
    // The other column declares no value for missing cells, so the record contributes zero.
    assert!(good.model() != train("zanzibar1,,,,a").model());
}

#[test]
fn a_bad_row_of_a_user_is_like_any_other_and_one_without_a_name_is_like_none() {
    let place = Place::new("bad-users");
    let (header, lines) = toy(&place);
    let config = CSV
        .replace("# record", "record = { user = \"who\", max_examples = 3 }")
        .replace("records = 400", "records = 40")
        .replace("batch = 100", "batch = 10");
    let with = |place_of: usize, line: Option<&[u8]>| {
        let mut changed: Vec<&[u8]> = lines.iter().map(String::as_bytes).collect();
        match line {
            Some(line) => changed[place_of] = line,
            None => drop(changed.remove(place_of)),
        }
        place.run(&config, &[("data.csv", &csv(&header, &changed))])
    };
    // The second row of user 1.
    let known = with(41, Some(BAD[0]));
    for bad in &BAD[1..6] {
        assert_same(&known, &with(41, Some(bad)), &String::from_utf8_lossy(bad));
    }
    let none = with(41, None);
    for bad in &BAD[6..] {
        assert_same(&none, &with(41, Some(bad)), &String::from_utf8_lossy(bad));
    }
    assert_same(&none, &with(41, Some(b",0.9,0.1,declared,a")), "no name");
}

#[test]
fn a_user_without_a_readable_row_still_is_one_of_a_fixed_number() {
    let place = Place::new("fixed-users");
    let (header, lines) = toy(&place);
    let config = CSV
        .replace("# record", "record = { user = \"who\", max_examples = 3 }")
        .replace("records = 400", "records = 40")
        .replace("batch = 100", "batch = 10\nsampling = \"fixed\"\nadjacency = \"replace-one\"");
    // The last user to appear, all of whose rows are bad.
    let with = |bad: &[u8]| {
        let is_last = |line: &String| line.starts_with("zanzibar39,");
        let of =
            |line: &'_ String| if is_last(line) { bad.to_vec() } else { line.clone().into_bytes() };
        place
            .run(&config, &[("data.csv", &csv(&header, &lines.iter().map(of).collect::<Vec<_>>()))])
    };
    let known = with(b"zanzibar39,,0.5,declared,a");
    assert_same(&known, &with(b",0.9,0.1,declared,a"), "no name");
    assert_same(&known, &with(b"broken"), "too few cells");
    // A number of users other than the declared one is noticed before anything is charged.
    let config = config.replace("records = 40", "records = 41");
    let other = place.run(&config, &[("data.csv", &csv(&header, &lines))]);
    assert_eq!(other.code, Some(5), "{}", other.stderr);
    assert!(other.stderr.contains("has not exactly 41 records"), "{}", other.stderr);
}

#[test]
fn a_bad_row_of_an_array_is_like_any_other_bad_row_and_like_none() {
    let place = Place::new("bad-arrays");
    let values: Vec<f32> = (0..100 * 64).map(|i| (i * 31 % 251) as f32 / 251.0).collect();
    let labels: Vec<f32> = (0..100).map(|i| (i % 2) as f32).collect();
    for features in ["", "features = \"scattering\""] {
        let config = ARRAYS
            .replace("\"images\"", "\"images.npy\"")
            .replace("\"labels\"", "\"labels.npy\"")
            .replace("# features", features);
        let run = |config: &str, values: &[f32], labels: &[f32]| {
            let rows = labels.len();
            let (images, labels) =
                (npy(&format!("{rows}, 8, 8"), values), npy(&format!("{rows},"), labels));
            place.run(config, &[("images.npy", &images), ("labels.npy", &labels)])
        };
        let good = run(&config, &values, &labels);
        let changed = |pixel: f32, label: f32| {
            let (mut values, mut labels) = (values.clone(), labels.clone());
            (values[50 * 64 + 9], labels[50]) = (pixel, label);
            (values, labels)
        };
        let (inputs, classes) = changed(f32::NAN, 0.0);
        let first = run(&config, &inputs, &classes);
        assert!(first.model() != good.model());
        for (pixel, label) in
            [(0.0, 2.0), (0.0, -1.0), (0.0, 0.5), (0.0, f32::NAN), (0.0, f32::INFINITY)]
        {
            let (inputs, classes) = changed(pixel, label);
            assert_same(&first, &run(&config, &inputs, &classes), &format!("{pixel} {label}"));
        }
        for (pixel, label) in [(f32::NAN, 1.0), (0.5, 2.0)] {
            let more = [values.clone(), vec![pixel; 64]].concat();
            let labels = [labels.clone(), vec![label]].concat();
            assert_same(&good, &run(&config, &more, &labels), &format!("{pixel} {label}"));
        }
        // A declared value replaces the missing one.
        let config = config.replace("# missing", "missing = \"mean-of-bounds\"");
        let ((bad, _), (middle, _)) = (changed(f32::NAN, 0.0), changed(0.5, 0.0));
        assert_same(&run(&config, &bad, &labels), &run(&config, &middle, &labels), "policy");
    }
}

#[test]
fn an_image_with_a_bad_label_is_like_any_other_bad_image_and_like_none() {
    let place = Place::new("bad-images");
    let pixels: Vec<u8> = (0..100 * 64).map(|i| (i * 31 % 251) as u8).collect();
    let labels: Vec<u8> = (0..100).map(|i| i % 2).collect();
    let config = ARRAYS
        .replace("bounds = [0, 1]", "bounds = [0, 255]")
        .replace("# features", "features = \"scattering\"");
    let run = |pixels: &[u8], labels: &[u8]| {
        let rows = labels.len() as u32;
        let (images, labels) = (idx(&[rows, 8, 8], pixels), idx(&[rows], labels));
        place.run(&config, &[("images", &images), ("labels", &labels)])
    };
    let good = run(&pixels, &labels);
    let with = |label: u8, pixel: u8| {
        let (mut pixels, mut labels) = (pixels.clone(), labels.clone());
        (pixels[50 * 64 + 9], labels[50]) = (pixel, label);
        run(&pixels, &labels)
    };
    let first = with(2, 0);
    assert_same(&first, &with(255, 9), "label 255");
    assert!(first.model() != good.model());
    let more = [pixels.clone(), vec![9; 64]].concat();
    assert_same(&good, &run(&more, &[labels.clone(), vec![77]].concat()), "label 77");
}
