//! Records outside all samples: with randomness frozen, they are in the file and in nothing that a run writes or prints.
//!
//! What a run releases depends on the records of its samples. A neighbour that differs in a record of no sample has the
//! same releases, whatever its values: everything else that is different comes from the data on a forbidden way, such as
//! bounds, scales, counts or words taken from the file. Nothing but an estimate of the time is left out of the comparison: stdout, stderr, the exit code,
//! every file, checkpoints that a run removes at its end, and their permissions. Each run has
//! its own clock, so that no output holds a time or a duration either.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use crate::common::{Directory, frozen, idx, npy, own_clock, without_estimate};

/// One example: numbers in [0, 1], or not; a class, or not; and whose it is.
#[derive(Clone)]
struct Row {
    values: Vec<f32>,
    class: f32,
    user: usize,
}

/// Files by name.
type Files = Vec<(&'static str, Vec<u8>)>;

/// How rows become files, and what the configuration says of them.
struct Source {
    data: &'static str,
    files: fn(&[Row]) -> Files,
}

const WIDTH: usize = 64;

const CSV: Source = Source {
    data: r#"
train = "data.csv"
label = "class"
classes = ["a", "b"]
[[data.columns]]
name = "x"
bounds = [0, 1]
[[data.columns]]
name = "y"
bounds = [0, 1]
[[data.columns]]
name = "word"
categories = ["low", "high"]
missing = "zero"
"#,
    files: |rows| {
        let mut text = "who,x,y,word,class\n".to_owned();
        for Row { values, class, user } in rows {
            let [x, y] = [values[0], values[1]];
            let word = if x < 0.4 {
                "low"
            } else if x < 0.8 {
                "high"
            } else {
                "unheard-of"
            };
            let class = match *class {
                0.0 => "a".to_owned(),
                1.0 => "b".to_owned(),
                other => other.to_string(),
            };
            text.push_str(&format!("u{user},{x},{y},{word},{class}\n"));
        }
        vec![("data.csv", text.into_bytes())]
    },
};

const ARRAYS: Source = Source {
    data: r#"
train = "images.npy"
labels = "labels.npy"
classes = 2
shape = [8, 8]
bounds = [0, 1]
"#,
    files: |rows| {
        let values: Vec<f32> = rows.iter().flat_map(|row| row.values.clone()).collect();
        let labels: Vec<f32> = rows.iter().map(|row| row.class).collect();
        let images = npy(&format!("{}, 8, 8", rows.len()), &values);
        vec![("images.npy", images), ("labels.npy", npy(&format!("{},", rows.len()), &labels))]
    },
};

const IMAGES: Source = Source {
    data: r#"
train = "images"
labels = "labels"
classes = 2
shape = [8, 8]
bounds = [0, 100]
"#,
    files: |rows| {
        let count = rows.len() as u32;
        // Bytes above 100 are beyond the declared bounds.
        let pixels = rows.iter().flat_map(|row| row.values.iter().map(|x| (100.0 * x) as u8));
        let labels: Vec<u8> = rows.iter().map(|row| row.class as u8).collect();
        let pixels: Vec<u8> = pixels.collect();
        vec![("images", idx(&[count, 8, 8], &pixels)), ("labels", idx(&[count], &labels))]
    },
};

/// The rows of a table as JSON Lines, with a label that is a number, and words that are embedded.
const JSON: Source = Source {
    data: r#"
train = "data.jsonl"
label = "amount"
label_bounds = [0, 10]
[[data.columns]]
name = "x"
bounds = [0, 1]
[[data.columns]]
name = "y"
bounds = [0, 1]
[[data.columns]]
name = "word"
categories = ["low", "high"]
embedding = 2
"#,
    files: |rows| {
        let line = |Row { values, class, user }: &Row| {
            let [x, y] = [values[0], values[1]];
            let word = if x < 0.4 { "low" } else { "high" };
            // Numbers that are not finite are no JSON.
            format!(
                "{{\"who\":{user},\"x\":{x},\"y\":{y},\"word\":\"{word}\",\"amount\":{}}}\n",
                9.0 * class + x
            )
        };
        vec![("data.jsonl", rows.iter().map(line).collect::<String>().into_bytes())]
    },
};

/// Columns of numbers between tabs, without a header.
const TSV: Source = Source {
    data: r#"
train = "data.tsv"
header = ["x", "y", "amount"]
label = "amount"
label_bounds = [0, 10]
[[data.columns]]
name = "x"
bounds = [0, 1]
[[data.columns]]
name = "y"
bounds = [0, 1]
missing = "zero"
"#,
    files: |rows| {
        let line = |Row { values, class, .. }: &Row| {
            format!("{}\t{}\t{}\n", values[0], values[1], 9.0 * class)
        };
        vec![("data.tsv", rows.iter().map(line).collect::<String>().into_bytes())]
    },
};

/// Images with the ids of their users.
const IDS: Source = Source {
    data: ARRAYS.data,
    files: |rows| {
        let ids: Vec<u8> = rows.iter().map(|row| row.user as u8).collect();
        let mut files = (ARRAYS.files)(rows);
        files.push(("ids", idx(&[ids.len() as u32], &ids)));
        files
    },
};

/// A run: which files, which record, which model, which sampling.
#[derive(Clone, Copy)]
struct Settings {
    source: &'static Source,
    /// Examples of a record: one, or the size of a microbatch, or how many of a user count.
    record: Unit,
    model: &'static str,
    noise: &'static str,
    groups: &'static str,
    sampling: &'static str,
    threads: &'static str,
}

#[derive(Clone, Copy, PartialEq)]
enum Unit {
    Example,
    Microbatch,
    User,
    UserIds,
}

const EMBEDDED: &str = "kind = \"mlp\"\nhidden = [4]";
const LAYERS: &str = r#"kind = "layers"
layers = [{ kind = "conv", filters = 3, kernel = 3, stride = 2 }, { kind = "tanh" }, { kind = "max-pool", size = 2 }]
frozen = ["conv1.bias"]"#;
const LOSS: &str = r#"
[[privacy.groups]]
vectors = ["linear*", "embedding*"]
clip = 1.0
[[privacy.groups]]
vectors = ["loss"]
clip = 2.0
share = 0.05
"#;
const LINEAR: &str = "kind = \"linear\"";
const SCATTERING: &str = "kind = \"linear\"\nfeatures = \"scattering\"";
const BATCH_NORM: &str = "kind = \"mlp\"\nhidden = [5]\nbatch_norm = true";
/// Copies of pixels are made when they are read; those of scaled pixels and of features are stored.
const COPIES: &str = "kind = \"linear\"\naugment = { copies = 3, shift = 1, flip = true }";
const SCALED_COPIES: &str =
    "kind = \"linear\"\ninput_norm = 3.0\naugment = { copies = 2, flip = true }";
const POOLED_COPIES: &str = r#"kind = "linear"
features = "scattering"
scattering = { scales = 1, orientations = 2, grid = 3, pool_sigma = 1.0, norm_groups = 1 }
input_norm = 4.0
augment = { copies = 2, shift = 1 }"#;
const SCALED: &str = "kind = \"linear\"\ninput_norm = 2.0";
const PRECONDITION: &str = r#"
[privacy.precondition]
mean_share = 0.1
directions_share = 0.2
directions = 2
rounds = 2
floor = 0.2
"#;
const METRICS: &str = r#"
[[privacy.groups]]
vectors = ["linear*"]
clip = 1.0
[[privacy.groups]]
vectors = ["accuracy"]
clip = 1.0
share = 0.05
[[privacy.groups]]
vectors = ["loss"]
clip = 2.0
share = 0.05
[[privacy.groups]]
vectors = ["classes"]
clip = 1.0
share = 0.05
"#;
/// Local steps of weighted users over a private denominator, with adaptive clipping.
const FEDERATED: &str = r#"
[privacy.weights]
bound = 3
[privacy.denominator]
floor = 5
share = 0.1
[privacy.adaptive]
floor = 0.01
share = 0.1
[train.local]
lr = 0.5
batch = 2
"#;
const STATISTICS: &str = r#"
[[privacy.groups]]
vectors = ["linear*", "batch_norm*.s*"]
clip = 1.0
[[privacy.groups]]
vectors = ["statistics"]
clip = 1.0
share = 0.1
"#;

/// Noise that is correlated over two rounds, with cyclic samples.
const CORRELATED: &str = "clip = 1.0\n[privacy.correlated]\nbands = 2\n";
const AUDIT: &str = "clip = 1.0\n[audit]\ncanaries = 20\n";

const SETTINGS: Settings = Settings {
    source: &CSV,
    record: Unit::Example,
    model: LINEAR,
    noise: "noise_multiplier = 2.0",
    groups: METRICS,
    sampling: "poisson",
    threads: "1",
};

impl Settings {
    /// How many records so many examples are: microbatches of 3, or users of 4 examples.
    fn records(&self, examples: usize) -> usize {
        match self.record {
            Unit::Example => examples,
            Unit::Microbatch => examples.div_ceil(3),
            Unit::User | Unit::UserIds => examples.div_ceil(4),
        }
    }

    fn config(&self, examples: usize) -> String {
        // The number of records is declared; where records are drawn on their own it is not that of the file.
        let (records, batch, adjacency) = match self.sampling {
            "poisson" | "allocation" => (100, 15, "add-remove"),
            _ => (self.records(examples), self.records(examples) / 6, "replace-one"),
        };
        let record = match self.record {
            Unit::Example => "\"example\"",
            Unit::Microbatch => "{ microbatch = 3 }",
            Unit::User => "{ user = \"who\", max_examples = 3 }",
            Unit::UserIds => "{ user_ids = \"ids\", max_examples = 3 }",
        };
        let Self { source, model, noise, groups, sampling, .. } = self;
        format!(
            "[data]\ndataset = \"toy\"\nrecords = {records}\nrecord = {record}\n{}\n[model]\n{model}\n\
             [privacy]\n{noise}\ndelta = 1e-5\nexpected_batch = {batch}\n\
             sampling = \"{sampling}\"\nadjacency = \"{adjacency}\"\n{groups}\n\
             [train]\nrounds = 2\noptimizer = {{ kind = \"sgd\", lr = 0.5 }}\nema = 0.5\n",
            source.data.trim_start(),
        )
    }
}

/// All that a run leaves: exit code, stdout, stderr, and files with their permissions.
#[derive(PartialEq)]
struct Left {
    code: Option<i32>,
    stdout: String,
    stderr: String,
    files: BTreeMap<String, (u32, Vec<u8>)>,
}

impl Left {
    fn model(&self) -> &[u8] {
        &self.files["model.safetensors"].1
    }

    /// Where two runs differ, if they do.
    fn difference(&self, other: &Self) -> Option<String> {
        for (one, two) in [(&self.stdout, &other.stdout), (&self.stderr, &other.stderr)] {
            if one != two {
                return Some(format!("printed:\n{one}\n{two}"));
            }
        }
        let names = |left: &Self| left.files.keys().cloned().collect::<Vec<_>>();
        if (self.code, names(self)) != (other.code, names(other)) {
            return Some(format!(
                "{:?} {:?}",
                (self.code, names(self)),
                (other.code, names(other))
            ));
        }
        let mut files = self.files.iter().zip(other.files.values());
        files.find(|((_, one), two)| one != two).map(|((name, _), _)| name.clone())
    }
}

struct Place {
    directory: Directory,
    library: String,
    runs: Cell<u32>,
}

impl Place {
    fn new(name: &str) -> Self {
        let directory = Directory::new(name);
        let library = frozen(&directory);
        Self { directory, library, runs: Cell::new(0) }
    }

    fn run(&self, settings: &Settings, rows: &[Row], declared: usize) -> Left {
        self.runs.set(self.runs.get() + 1);
        let here = self.directory.0.join(self.runs.get().to_string());
        std::fs::create_dir(&here).unwrap();
        std::fs::write(here.join("config.toml"), settings.config(declared)).unwrap();
        for (name, bytes) in (settings.source.files)(rows) {
            std::fs::write(here.join(name), bytes).unwrap();
        }
        let mut command = Command::new(env!("CARGO_BIN_EXE_veilgrad"));
        let command = command
            .args(["train", "config.toml", "--out", "out", "--ledger", "out/ledger.db", "-v"])
            .args(["--threads", settings.threads])
            .current_dir(&here)
            .env("LD_PRELOAD", &self.library)
            .env("RUST_BACKTRACE", "1");
        let output = own_clock(command).output().unwrap();
        let files = crate::common::files(&here.join("out")).into_iter().map(|(path, bytes)| {
            let mode = std::fs::metadata(&path).unwrap().permissions().mode();
            (path.file_name().unwrap().to_string_lossy().into_owned(), (mode, bytes))
        });
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (stdout, stderr) = (text(&output.stdout), without_estimate(&text(&output.stderr)));
        assert!(output.status.success(), "{}\n{stderr}", settings.config(declared));
        Left { code: output.status.code(), stdout, stderr, files: files.collect() }
    }
}

/// Ordinary rows, all within the declared bounds and far from them.
fn rows(count: usize) -> Vec<Row> {
    let value = |row: usize, place: usize| 0.2 + ((row * 37 + place * 53) % 101) as f32 / 200.0;
    let row = |row: usize| Row {
        values: (0..WIDTH).map(|place| value(row, place)).collect(),
        class: (row % 2) as f32,
        user: row / 4,
    };
    (0..count).map(row).collect()
}

/// Rows that nobody expects in place of one: beyond all bounds, not finite, of no class, of another user.
fn surprises(row: &Row) -> Vec<(&'static str, Row)> {
    let with = |value: f32, class: f32| Row { values: vec![value; WIDTH], class, ..row.clone() };
    let mut one_pixel = row.clone();
    one_pixel.values[0] = 2.5;
    vec![
        ("of no class", with(0.5, 7.0)),
        ("beyond the bounds", with(2.5, row.class)),
        ("at the lower bound", with(0.0, 1.0 - row.class)),
        ("huge", with(1e30, row.class)),
        ("NaN", with(f32::NAN, row.class)),
        ("infinite", with(f32::INFINITY, row.class)),
        ("with one value beyond the bounds", one_pixel),
    ]
}

/// The number of examples of each run.
const EXAMPLES: usize = 60;

/// Replaces one record of no sample by others.
fn check_replaced(place: &Place, settings: &Settings) {
    let base_rows = rows(EXAMPLES);
    let base = place.run(settings, &base_rows, EXAMPLES);
    let with = |at: usize, row: &Row| {
        let mut rows = base_rows.clone();
        rows[at] = row.clone();
        place.run(settings, &rows, EXAMPLES)
    };
    // A row that contributes zero shows which records are in no sample; and that others are.
    let (_, zero) = &surprises(&base_rows[0])[0];
    let outside = |at: &usize| {
        let row = Row { user: base_rows[*at].user, ..zero.clone() };
        with(*at, &row).model() == base.model()
    };
    let mut candidates = (2..EXAMPLES).step_by(4);
    let mut at = None;
    let sampled = candidates.find(|candidate| {
        let is_outside = outside(candidate);
        at = at.or(is_outside.then_some(*candidate));
        !is_outside
    });
    assert!(sampled.is_some(), "no record is in a sample");
    let at = at.or_else(|| candidates.find(outside)).expect("all records are in a sample");
    for (what, row) in surprises(&base_rows[at]) {
        let other = with(at, &row);
        assert_eq!(base.difference(&other), None, "a record {what}");
    }
}

/// Adds a record of no sample, and takes it away: its number is private under Poisson sampling.
fn check_added(place: &Place, settings: &Settings) {
    let extra = match settings.record {
        Unit::Example => 1,
        Unit::Microbatch => 3,
        Unit::User | Unit::UserIds => 4,
    };
    let mut found = false;
    for count in [60, 72, 84] {
        let all = rows(count + extra);
        let base = place.run(settings, &all[..count], EXAMPLES);
        for (what, row) in surprises(&all[count]).into_iter().skip(1).take(2) {
            let mut more = all.clone();
            more[count..].iter_mut().for_each(|old| *old = Row { user: old.user, ..row.clone() });
            let other = place.run(settings, &more, EXAMPLES);
            // In a sample or not: then the model says so, and nothing else is to be seen.
            if other.model() == base.model() {
                assert_eq!(base.difference(&other), None, "a record {what}");
                found = true;
            }
        }
    }
    assert!(found, "every added record is in a sample");
}

/// Preconditioning takes all records, so that none is outside. One that contributes zero to it is like any other such
/// record, and like none.
fn check_unusable(place: &Place, settings: &Settings) {
    let mut all = rows(EXAMPLES);
    let base = place.run(settings, &all, EXAMPLES);
    let row = all[EXAMPLES / 2].clone();
    all.push(row);
    // A usable record is seen, so that the comparison is not trivial.
    assert!(place.run(settings, &all, EXAMPLES).model() != base.model());
    // Infinities are clamped to the declared bounds.
    all.last_mut().unwrap().values.fill(f32::NAN);
    let other = place.run(settings, &all, EXAMPLES);
    assert_eq!(base.difference(&other), None, "a record of NaN");
    // One value is enough.
    let usable = all[0].clone();
    all.last_mut().unwrap().values[1..].copy_from_slice(&usable.values[1..]);
    let other = place.run(settings, &all, EXAMPLES);
    assert_eq!(base.difference(&other), None, "a record with a NaN");
}

#[test]
fn copies_of_a_record_outside_all_samples_change_nothing() {
    let place = Place::new("replay-copies");
    for (source, model) in [(&ARRAYS, COPIES), (&IMAGES, SCALED_COPIES), (&IMAGES, POOLED_COPIES)] {
        let settings = Settings { source, model, ..SETTINGS };
        check_replaced(&place, &settings);
        check_added(&place, &settings);
    }
    let shuffled = Settings { source: &ARRAYS, model: COPIES, sampling: "shuffle", ..SETTINGS };
    check_replaced(&place, &Settings { threads: "2", ..shuffled });
}

#[test]
fn a_record_that_preconditioning_cannot_use_changes_nothing() {
    let place = Place::new("replay-precondition");
    let settings = Settings { noise: "epsilon = 4.0", groups: PRECONDITION, ..SETTINGS };
    check_unusable(&place, &Settings { model: SCALED, ..settings });
    for model in [SCALED_COPIES, POOLED_COPIES] {
        check_unusable(&place, &Settings { source: &ARRAYS, model, threads: "2", ..settings });
    }
}

#[test]
fn a_row_of_a_table_outside_all_samples_changes_nothing() {
    let place = Place::new("replay-table");
    check_replaced(&place, &SETTINGS);
    check_added(&place, &SETTINGS);
    check_replaced(&place, &Settings { sampling: "shuffle", threads: "2", ..SETTINGS });
    let batch_norm = Settings { model: BATCH_NORM, groups: STATISTICS, ..SETTINGS };
    check_replaced(&place, &Settings { sampling: "fixed", ..batch_norm });
    check_added(&place, &batch_norm);
}

#[test]
fn a_microbatch_or_user_outside_all_samples_changes_nothing() {
    let place = Place::new("replay-units");
    let microbatch = Settings { record: Unit::Microbatch, ..SETTINGS };
    check_replaced(&place, &microbatch);
    check_added(&place, &microbatch);
    check_replaced(&place, &Settings { sampling: "shuffle", ..microbatch });
    let user = Settings { record: Unit::User, threads: "2", ..SETTINGS };
    check_replaced(&place, &user);
    check_added(&place, &user);
    check_replaced(&place, &Settings { sampling: "fixed", ..user });
    let federated = Settings { groups: FEDERATED, ..user };
    check_replaced(&place, &federated);
    check_added(&place, &federated);
}

#[test]
fn an_array_or_image_outside_all_samples_changes_nothing() {
    let place = Place::new("replay-arrays");
    for (source, model) in
        [(&ARRAYS, LINEAR), (&ARRAYS, SCATTERING), (&IMAGES, LINEAR), (&IMAGES, SCATTERING)]
    {
        let settings = Settings { source, model, ..SETTINGS };
        check_replaced(&place, &settings);
        check_added(&place, &settings);
    }
    let arrays = Settings { source: &ARRAYS, ..SETTINGS };
    check_replaced(&place, &Settings { sampling: "shuffle", threads: "2", ..arrays });
    let batch_norm = Settings { model: BATCH_NORM, groups: STATISTICS, ..arrays };
    check_replaced(&place, &Settings { record: Unit::Microbatch, ..batch_norm });
}

#[test]
fn other_formats_labels_and_layers_keep_what_is_outside_all_samples() {
    let place = Place::new("replay-formats");
    let json = Settings { source: &JSON, model: EMBEDDED, groups: LOSS, ..SETTINGS };
    let tsv = Settings { source: &TSV, groups: "clip = 1.0", ..SETTINGS };
    let layers = Settings { source: &ARRAYS, model: LAYERS, groups: "clip = 1.0", ..SETTINGS };
    for settings in [json, tsv, layers] {
        check_replaced(&place, &settings);
        check_added(&place, &settings);
    }
    check_replaced(&place, &Settings { sampling: "fixed", threads: "2", ..tsv });
    let ids = Settings { source: &IDS, record: Unit::UserIds, ..SETTINGS };
    check_replaced(&place, &ids);
    check_added(&place, &ids);
    check_replaced(&place, &Settings { sampling: "fixed", ..ids });
}

#[test]
fn other_samplings_correlated_noise_and_audits_keep_what_is_outside_all_samples() {
    let place = Place::new("replay-samplings");
    check_replaced(&place, &Settings { sampling: "truncated", threads: "2", ..SETTINGS });
    check_added(&place, &Settings { sampling: "allocation", ..SETTINGS });
    check_added(&place, &Settings { groups: CORRELATED, threads: "2", ..SETTINGS });
    // Nothing is added to an audit: canaries are drawn after the records, and so the same randomness would draw others.
    check_replaced(&place, &Settings { groups: AUDIT, ..SETTINGS });
}
