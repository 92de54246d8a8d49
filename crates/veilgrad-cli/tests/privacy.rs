//! A training run reveals nothing about the data except what was released, and only the owner can read its files.
//!
//! Runs are compared with randomness frozen from outside, by a preloaded library that replaces calls to the operating system.
//! The program under test is unmodified.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{
    Directory, files, frozen, idx, npy, own_clock, safetensors, table, table_text, without_estimate,
};
use serde_json::{Value, json};

const CONFIG: &str = r#"
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
[[data.columns]]
name = "y"
bounds = [0, 1]
[[data.columns]]
name = "word"
categories = ["declared"]

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
rounds = 30
optimizer = { kind = "sgd", lr = 2.0, momentum = 0.5 }
block = 4
"#;

/// What a run prints, and its files.
struct Left {
    stdout: String,
    stderr: String,
    files: BTreeMap<String, (u32, Vec<u8>)>,
}

impl Left {
    fn text(&self, name: &str) -> String {
        String::from_utf8(self.files[name].1.clone()).unwrap()
    }

    fn report(&self) -> Value {
        serde_json::from_slice(&self.files["report.json"].1).unwrap()
    }
}

/// Runs the command on files, in a separate directory whose name appears in no output.
fn run_on(
    place: &Directory,
    name: &str,
    library: &str,
    data: &Files,
    config: &str,
    threads: &str,
) -> Left {
    let here = place.0.join(name);
    std::fs::create_dir(&here).unwrap();
    for (name, bytes) in data {
        std::fs::write(here.join(name), bytes).unwrap();
    }
    std::fs::write(here.join("config.toml"), config).unwrap();
    table(&here.join("test.csv").display().to_string(), 100);
    let mut command = Command::new(env!("CARGO_BIN_EXE_veilgrad"));
    let command = command
        .args(["train", "config.toml", "--out", "out", "--threads", threads, "-v"])
        .env("VEILGRAD_LEDGER", "out/ledger.db")
        .current_dir(&here)
        .env("LD_PRELOAD", library);
    let output = own_clock(command).output().unwrap();
    assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode();
    let name = |path: &Path| path.file_name().unwrap().to_string_lossy().into_owned();
    let files = files(&here.join("out"));
    let files = files.into_iter().map(|(path, bytes)| (name(&path), (mode(&path), bytes)));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (stdout, stderr) = (text(&output.stdout), without_estimate(&text(&output.stderr)));
    Left { stdout, stderr, files: files.collect() }
}

/// Runs the command on a table.
fn run(place: &Directory, name: &str, library: &str, data: &str, config: &str) -> Left {
    run_on(place, name, library, &table_file(data), config, "1")
}

/// Files by name.
type Files = Vec<(&'static str, Vec<u8>)>;

fn table_file(text: &str) -> Files {
    vec![("data.csv", text.as_bytes().to_vec())]
}

/// Images of 8 x 8 bytes whose class is whether they are bright at the top.
fn images(count: usize, salt: usize) -> (Vec<u8>, Vec<u8>) {
    let pixel = |image: usize, place: usize| {
        let bright = (place < 32) == image.is_multiple_of(2);
        ((image * 37 + place * 53 + salt) % 101 + if bright { 130 } else { 0 }) as u8
    };
    let pixels = (0..count).flat_map(|image| (0..64).map(move |place| pixel(image, place)));
    (pixels.collect(), (0..count).map(|image| (image % 2) as u8).collect())
}

/// Training and public images as IDX files.
fn image_files(count: usize) -> Files {
    let ((pixels, labels), (test, test_labels)) = (images(count, 0), images(20, 7));
    vec![
        ("images", idx(&[count as u32, 8, 8], &pixels)),
        ("labels", idx(&[count as u32], &labels)),
        ("test-images", idx(&[20, 8, 8], &test)),
        ("test-labels", idx(&[20], &test_labels)),
    ]
}

/// The same images as arrays of numbers.
fn array_files(count: usize) -> Files {
    let array = |shape: String, bytes: &[u8]| {
        npy(&shape, &bytes.iter().map(|byte| f32::from(*byte)).collect::<Vec<f32>>())
    };
    let ((pixels, labels), (test, test_labels)) = (images(count, 0), images(20, 7));
    vec![
        ("images.npy", array(format!("{count}, 8, 8"), &pixels)),
        ("labels.npy", array(format!("{count},"), &labels)),
        ("test-images.npy", array("20, 8, 8".to_owned(), &test)),
        ("test-labels.npy", array("20,".to_owned(), &test_labels)),
    ]
}

/// A configuration for images or arrays; `end` is that of the names of files.
fn image_config(end: &str, model: &str, precondition: &str) -> String {
    format!(
        r#"
[data]
train = "images{end}"
labels = "labels{end}"
test = "test-images{end}"
test_labels = "test-labels{end}"
dataset = "toy"
classes = 2
records = 60
shape = [8, 8]
bounds = [0, 255]
[model]
kind = "linear"
{model}
[privacy]
epsilon = 4.0
delta = 1e-5
expected_batch = 30
[[privacy.groups]]
vectors = ["linear1.*"]
clip = 1.0
[[privacy.groups]]
vectors = ["accuracy"]
clip = 1.0
share = 0.05
{precondition}
[train]
rounds = 12
optimizer = {{ kind = "sgd", lr = 0.5, momentum = 0.5 }}
ema = 0.5
"#
    )
}

const PRECONDITION: &str = "[privacy.precondition]\nmean_share = 0.1\ndirections_share = 0.2\n\
                            directions = 2\nrounds = 2\nfloor = 0.2\n";
const SCATTERING: &str = r#"features = "scattering""#;
const POOLED: &str = r#"features = "scattering"
scattering = { scales = 1, orientations = 2, grid = 3, pool_sigma = 1.0, norm_groups = 1 }
input_norm = 4.0"#;
const AUGMENT: &str = "augment = { copies = 3, shift = 1, flip = true }";

const MICROBATCH: (&str, &str) = ("# record", "record = { microbatch = 3 }");
const SHUFFLE: (&str, &str) =
    ("delta = 1e-5", "delta = 1e-5\nsampling = \"shuffle\"\nadjacency = \"replace-one\"");
const FIXED: (&str, &str) =
    ("delta = 1e-5", "delta = 1e-5\nsampling = \"fixed\"\nadjacency = \"replace-one\"");
const METRICS: (&str, &str) = (
    "[[privacy.groups]]\nvectors = [\"accuracy\"]",
    "[[privacy.groups]]\nvectors = [\"loss\"]\nclip = 2.0\nshare = 0.05\n\
     [[privacy.groups]]\nvectors = [\"classes\"]\nclip = 1.0\nshare = 0.05\n\
     [[privacy.groups]]\nvectors = [\"accuracy\"]",
);
const BATCH_NORM: (&str, &str) =
    ("kind = \"linear\"", "kind = \"mlp\"\nhidden = [5]\nbatch_norm = true");
/// With the groups of that model.
const STATISTICS: (&str, &str) = (
    "vectors = [\"linear1.*\"]\nclip = 1.0",
    "vectors = [\"linear*\", \"batch_norm*.s*\"]\nclip = 1.0\n\
     [[privacy.groups]]\nvectors = [\"statistics\"]\nclip = 1.0\nshare = 0.1",
);
/// Local steps over a private count. The clip norm does not adapt: adapted ones are released, and in the ledger.
const FEDERATED: (&str, &str) = (
    "[[privacy.groups]]\nvectors = [\"linear1.*\"]\nclip = 1.0\n\
     [[privacy.groups]]\nvectors = [\"accuracy\"]\nclip = 1.0\nshare = 0.05\n\n[train]",
    "[privacy.weights]\nbound = 3\n[privacy.denominator]\nfloor = 5\nshare = 0.1\n\
     [train]\nlocal = { lr = 0.5, batch = 2 }",
);

/// A configuration with some words replaced.
fn changed(config: &str, changes: &[(&str, &str)]) -> String {
    changes.iter().fold(config.to_owned(), |text, (from, to)| {
        assert!(text.contains(from), "{from}");
        text.replacen(from, to, 1)
    })
}

#[test]
fn a_record_that_counts_as_zero_changes_no_byte_of_anything() {
    let place = Directory::new("zero");
    let (library, data) = (frozen(&place), table_text(400));
    let one = run(&place, "one", &library, &data, CONFIG);
    let again = run(&place, "again", &library, &data, CONFIG);
    let more = run(&place, "more", &library, &format!("{data}who,nan,0.5,w,a\n"), CONFIG);
    for other in [again, more] {
        assert_eq!(one.stdout, other.stdout);
        assert_eq!(one.stderr, other.stderr);
        assert_eq!(one.files.keys().collect::<Vec<_>>(), other.files.keys().collect::<Vec<_>>());
        for (name, (mode, bytes)) in &one.files {
            let (other_mode, other_bytes) = &other.files[name];
            assert_eq!(mode, other_mode, "{name}");
            assert!(bytes == other_bytes, "{name}");
        }
    }
}

/// A report without the released values: the accuracy of the released model, and the private estimates.
fn public(mut report: Value) -> Value {
    report["test_accuracy"] = json!(0);
    // That of the released file.
    report["model"]["sha256"] = json!(0);
    for metric in report["metrics"].as_array_mut().unwrap() {
        metric["values"] = json!(metric["values"].as_array().unwrap().len());
    }
    report
}

/// A page without the released values: its words, and all other numbers.
fn public_page(left: &Left) -> Vec<String> {
    let report = left.report();
    let released = [
        // Accuracy of the released model on public data.
        "on the public test set",
        // The same numbers of `metrics` as in the report, in large type.
        "(private estimate)",
        // The same with their errors, and class counts with their bars.
        " ± ",
        // The ends of the errors of class counts.
        "class=\"whisker\"",
    ];
    let has_released = |line: &str| released.iter().any(|words| line.contains(words));
    let line = |line: &str| match has_released(line) {
        true => line.replace(|letter: char| letter.is_ascii_digit() || "-.".contains(letter), ""),
        false => line.to_owned(),
    };
    let page = left.text("report.html");
    // The hash of the released file.
    let page = page.replace(report["model"]["sha256"].as_str().unwrap(), "");
    page.lines().map(line).collect()
}

/// What two checkpoints say apart from what was released. Compared are the names, types and shapes of all entries, and the
/// texts: format, round, clip norms, and the head of the ledger.
fn compare_checkpoints(one: &[u8], two: &[u8], what: &str) {
    let ((header, one), (other_header, two)) = (safetensors(one), safetensors(two));
    let public = |mut header: Value| {
        // The account is a text with released numbers, which are not all of the same length.
        header["account"]["shape"] = json!(null);
        for (_, entry) in header.as_object_mut().unwrap() {
            // Places follow from the lengths of the entries, and move with that of the account.
            entry.as_object_mut().unwrap().remove("data_offsets");
        }
        header
    };
    assert_eq!(public(header.clone()), public(other_header), "{what}");
    let account = |bytes: &[u8]| {
        let mut account: Value = serde_json::from_slice(bytes).unwrap();
        for metric in account["metrics"].as_array_mut().unwrap() {
            // The private estimates were released; how many there are is public.
            metric[1] = json!(metric[1].as_array().unwrap().len());
        }
        account
    };
    for (name, bytes) in &one {
        let other = &two[name];
        match (name.as_str(), header[name]["dtype"].as_str().unwrap()) {
            ("account", _) => assert_eq!(account(bytes), account(other), "{what}"),
            // The mean, the directions and their variances were released.
            ("precondition", _) => {
                assert_eq!(safetensors(bytes).0, safetensors(other).0, "{what}");
            }
            // Weights, their average and the state of the optimizer are computed from what was released.
            (_, "F32") => {}
            _ => assert!(bytes == other, "{what}: {name}"),
        }
    }
}

#[test]
fn neighbours_differ_in_nothing_but_what_was_released() {
    let place = Directory::new("neighbours");
    let library = frozen(&place);
    let data = table_text(400);
    let users = [
        ("# record", "record = { user = \"who\", max_examples = 3 }"),
        ("records = 400", "records = 40"),
        ("batch = 100", "batch = 10"),
    ];
    let preconditioned = CONFIG
        .replace("kind = \"linear\"", "kind = \"linear\"\ninput_norm = 2.0")
        .replace("[train]", &format!("{PRECONDITION}[train]"));
    let without_user: Vec<&str> =
        data.lines().filter(|line| !line.contains("zanzibar39,")).collect();
    let without_user = format!("{}\n", without_user.join("\n"));
    let more = format!("{data}who,0.9,0.1,w,b\n");
    let other_row = "zanzibar39,0.9,0.1,w,b\n";
    let other = format!("{}{other_row}", table_text(399));
    let other_user = format!("{without_user}{}", other_row.repeat(10));
    let tables = |one: &str, two: &str| [table_file(one), table_file(two)];
    let arrays = || [array_files(60), array_files(61)];
    let images = || [image_files(60), image_files(61)];
    let other_array = || {
        let (one, mut two) = (array_files(60), array_files(60));
        let end = two[0].1.len();
        // The last image is black.
        two[0].1[end - 4 * 64..].fill(0);
        [one, two]
    };
    let cases = [
        ("example", "1", CONFIG.to_owned(), tables(&data, &more)),
        ("user", "1", changed(CONFIG, &users), tables(&data, &without_user)),
        ("table, preconditioned", "1", preconditioned, tables(&data, &more)),
        (
            "microbatch, loss and classes",
            "2",
            changed(CONFIG, &[MICROBATCH, ("records = 400", "records = 134"), METRICS]),
            tables(&table_text(402), &table_text(405)),
        ),
        (
            "shuffle, loss and classes",
            "2",
            changed(CONFIG, &[SHUFFLE, METRICS]),
            tables(&data, &other),
        ),
        (
            "fixed, batch norm",
            "1",
            changed(CONFIG, &[FIXED, BATCH_NORM, STATISTICS]),
            tables(&data, &other),
        ),
        (
            "user, fixed, local steps, private count",
            "2",
            changed(&changed(CONFIG, &users), &[FIXED, FEDERATED]),
            tables(&data, &other_user),
        ),
        ("array", "1", image_config(".npy", "", ""), arrays()),
        ("array, scattering", "1", image_config(".npy", SCATTERING, ""), arrays()),
        ("array, copies", "1", image_config(".npy", AUGMENT, ""), arrays()),
        (
            "array, preconditioned",
            "1",
            image_config(".npy", &format!("input_norm = 4.0\n{AUGMENT}"), PRECONDITION),
            arrays(),
        ),
        (
            "array, microbatch, shuffle, batch norm",
            "2",
            changed(
                &image_config(".npy", "", ""),
                &[
                    ("records = 60", "records = 20\nrecord = { microbatch = 3 }"),
                    ("batch = 30", "batch = 10"),
                    SHUFFLE,
                    BATCH_NORM,
                    STATISTICS,
                ],
            ),
            other_array(),
        ),
        ("image", "1", image_config("", "", ""), images()),
        ("image, scattering", "2", image_config("", SCATTERING, ""), images()),
        (
            "image, preconditioned",
            "1",
            image_config("", &format!("{POOLED}\n{AUGMENT}"), PRECONDITION),
            images(),
        ),
    ];
    for (what, threads, config, [data, neighbour]) in cases {
        let [one, two] = [("one", data), ("two", neighbour)].map(|(name, data)| {
            run_on(&place, &format!("{what}, {name}"), &library, &data, &config, threads)
        });
        // The models differ, so the comparison is not trivial.
        let bytes = |left: &Left, name: &str| left.files[name].1.clone();
        let model = |left: &Left| bytes(left, "model.safetensors");
        assert_ne!(model(&one), model(&two), "{what}");
        assert_eq!(safetensors(&model(&one)).0, safetensors(&model(&two)).0, "{what}");
        assert_eq!(model(&one).len(), model(&two).len());
        let checkpoint = |left: &Left| bytes(left, "checkpoint.safetensors");
        compare_checkpoints(&checkpoint(&one), &checkpoint(&two), what);
        assert_eq!(one.stderr, two.stderr, "{what}");
        let unreleased = |left: &Left| {
            // That of the released model.
            left.stdout
                .lines()
                .filter(|line| !line.starts_with("test accuracy"))
                .collect::<String>()
        };
        assert_eq!(unreleased(&one), unreleased(&two), "{what}");
        assert_eq!(one.files.keys().collect::<Vec<_>>(), two.files.keys().collect::<Vec<_>>());
        assert_eq!(public(one.report()), public(two.report()), "{what}");
        let pages = (public_page(&one), public_page(&two));
        for (line, other) in pages.0.iter().zip(&pages.1) {
            assert_eq!(line, other, "{what}");
        }
        assert_eq!(pages.0.len(), pages.1.len(), "{what}");
        for (name, (mode, bytes)) in &one.files {
            let (other_mode, other_bytes) = &two.files[name];
            assert_eq!(mode, other_mode, "{what}: {name}");
            // The values of model and checkpoint are what was released; the others were compared without it.
            let compared =
                ["model.safetensors", "checkpoint.safetensors", "report.json", "report.html"];
            assert!(compared.contains(&name.as_str()) || bytes == other_bytes, "{what}: {name}");
        }
    }
}

/// The bytes of a record's number, as text and in binary.
fn traces(value: f64) -> Vec<Vec<u8>> {
    // Numbers are scaled from [0, 1] to [-1, 1].
    let scaled = (value - 0.5) / 0.5;
    let mut traces = Vec::new();
    for number in [value, scaled] {
        traces.push(number.to_string().trim_start_matches("0.").as_bytes()[..8].to_vec());
        traces.push(number.to_le_bytes().to_vec());
        traces.push((number as f32).to_le_bytes().to_vec());
    }
    traces
}

#[test]
fn markers_in_the_data_are_nowhere_else() {
    let place = Directory::new("markers");
    let (here, value) = (&place.0, 0.731_650_092_713);
    let mut words: Vec<Vec<u8>> = traces(value);
    words.extend(["zanzibar", "timbuktu"].map(|word| word.as_bytes().to_vec()));
    let data = format!("{}timbuktu,{value},{value},timbuktu,a\n", table_text(400));
    let config = CONFIG.replace("\ntest = \"test.csv\"", "");
    std::fs::write(here.join("config.toml"), &config).unwrap();
    let users = config.replace("# record", "record = { user = \"who\", max_examples = 3 }");
    std::fs::write(here.join("users.toml"), users).unwrap();
    let check = |what: &str, bytes: &[u8]| {
        for word in &words {
            let found = bytes.windows(word.len()).any(|window| window == word);
            assert!(!found, "{what}: {}", String::from_utf8_lossy(word));
        }
    };
    let temporary = here.join("tmp");
    std::fs::create_dir(&temporary).unwrap();
    let command = |arguments: &[&str], code: i32| {
        let output = Command::new(env!("CARGO_BIN_EXE_veilgrad"))
            .args(arguments)
            .env("VEILGRAD_LEDGER", format!("{}.db", arguments.get(3).unwrap_or(&"none")))
            .current_dir(here)
            .env("RUST_LOG", "trace")
            .env("RUST_BACKTRACE", "full")
            .env("TMPDIR", &temporary)
            .output()
            .unwrap();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {error}");
        check("stdout", &output.stdout);
        check("stderr", &output.stderr);
        assert_eq!(std::fs::read_dir(&temporary).unwrap().count(), 0);
        error
    };
    let everything = |at: &str| {
        files(&here.join(at)).iter().for_each(|(path, bytes)| {
            check(&path.display().to_string(), bytes);
        })
    };
    std::fs::write(here.join("data.csv"), &data).unwrap();
    command(&["train", "config.toml", "--out", "good", "-vv"], 0);
    command(&["train", "users.toml", "--out", "users", "--json"], 0);
    command(&["predict", "good/model.safetensors", "data.csv"], 0);
    ["good", "users"].into_iter().for_each(everything);
    // Bad records that contain a marker contribute zero, and no output reveals them.
    let head = "who,x,y,word,class\n";
    let wrong: [&[u8]; 7] = [
        b"timbuktu,timbuktu,0,w,a\n",
        b"w,0,0,w,a\nw,,0,timbuktu,a\n",
        b"w,0,0,timbuktu,timbuktu\n",
        b"timbuktu,0,0\n",
        b"timbuktu\xff,0,0,w,a\n",
        b"\"timbuktu,0,0,w,a\n",
        b"w,0.731650092713x,0,w,a\n",
    ];
    for (number, rows) in wrong.iter().enumerate() {
        std::fs::write(here.join("data.csv"), [head.as_bytes(), *rows].concat()).unwrap();
        let out = format!("wrong-{number}");
        let error = command(&["train", "config.toml", "--out", &out], 0);
        assert!(!error.contains("row") && !error.contains("error"), "{error}");
        everything(&out);
        command(&["check", "config.toml", "--show-rows"], 0);
    }
    std::fs::write(here.join("data.csv"), "timbuktu,zanzibar\n1,2\n").unwrap();
    let error = command(&["train", "config.toml", "--out", "header"], 5);
    assert!(error.contains("has no column \"x\""), "{error}");
    command(&["predict", "good/model.safetensors", "data.csv"], 5);
    // A bad file charged nothing: the same run succeeds after the file is fixed.
    std::fs::write(here.join("data.csv"), &data).unwrap();
    command(&["train", "config.toml", "--out", "header"], 0);
    everything("header");
}

#[test]
fn the_test_for_markers_would_find_one() {
    let value = 0.731_650_092_713;
    let found = |bytes: &[u8]| {
        let found = |trace: &Vec<u8>| bytes.windows(trace.len()).any(|window| window == trace);
        traces(value).iter().any(found)
    };
    assert!(found(b"x=0.731650092713") && found(&(value as f32).to_le_bytes()));
    assert!(!found(b"x=0.7316"));
}

#[test]
fn a_run_without_budget_does_not_open_the_data() {
    let place = Directory::new("strace");
    table(&place.file("data.csv"), 400);
    table(&place.file("test.csv"), 100);
    std::fs::write(place.file("config.toml"), CONFIG).unwrap();
    let traced = |name: &str, arguments: &str| {
        let log = place.file(&format!("{name}.log"));
        let status = Command::new("strace")
            .args(["-f", "-e", "trace=file", "-o", &log, env!("CARGO_BIN_EXE_veilgrad")])
            .args(arguments.split_whitespace())
            .current_dir(&place.0)
            .output();
        let log = std::fs::read_to_string(&log).unwrap_or_default();
        // Without strace, or the right to trace, the test is skipped.
        status.ok().filter(|_| log.contains("execve(")).map(|output| (output, log))
    };
    let train = "train config.toml --ledger budget.db --out";
    let Some((first, log)) = traced("first", &format!("{train} first")) else {
        assert!(std::env::var_os("CI").is_none(), "strace is missing");
        return;
    };
    assert_eq!(first.status.code(), Some(0), "{}", String::from_utf8_lossy(&first.stderr));
    assert!(log.contains("\"data.csv\"") && log.contains("\"test.csv\""));
    // The budget was for exactly these rounds.
    // Metadata of the files may be read, to see that they exist and differ.
    let opened = |log: &str, name: &str| {
        log.lines().any(|line| line.contains("open") && line.contains(name))
    };
    std::fs::write(place.file("broken.db"), "not a ledger").unwrap();
    let mistyped = CONFIG.replace("delta", "delto");
    std::fs::write(place.file("mistyped.toml"), mistyped).unwrap();
    let check = "check config.toml --ledger budget.db";
    for (name, arguments, code) in [
        ("second", &*format!("{train} second"), 3),
        ("spent", check, 3),
        ("broken", "check config.toml --ledger broken.db", 4),
        ("mistyped", "check mistyped.toml --ledger none.db", 2),
    ] {
        let (output, log) = traced(name, arguments).unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{name}: {error}");
        assert!(opened(&log, ".toml"), "{name}: {log}");
        assert!(!opened(&log, "data.csv"), "{name}: {log}");
        // Public files are opened beside mistakes in the configuration, to name all problems at once.
        assert_eq!(opened(&log, "test.csv"), name == "mistyped", "{name}: {log}");
    }
    // A run that would be done is checked with its data.
    let (good, log) = traced("good", "check config.toml --ledger none.db").unwrap();
    assert_eq!(good.status.code(), Some(0), "{}", String::from_utf8_lossy(&good.stderr));
    assert!(opened(&log, "data.csv") && opened(&log, "test.csv"));
}

#[test]
fn files_belong_to_their_owner_alone_and_links_are_not_followed() {
    let place = Directory::new("modes");
    table(&place.file("data.csv"), 400);
    table(&place.file("test.csv"), 100);
    std::fs::write(place.file("config.toml"), CONFIG).unwrap();
    std::fs::write(place.file("victim"), "mine").unwrap();
    let out = PathBuf::from(place.file("runs/deep"));
    let run = |script: &str| {
        let status = Command::new("sh")
            .args(["-c", script, env!("CARGO_BIN_EXE_veilgrad")])
            .current_dir(&place.0)
            .status();
        assert!(status.unwrap().success(), "{script}");
    };
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    run("umask 000; exec \"$0\" train config.toml --out runs/deep --ledger runs/deep/ledger.db -q");
    assert_eq!((mode(&out), mode(out.parent().unwrap())), (0o700, 0o700));
    for (path, _) in files(&out) {
        assert_eq!(mode(&path), 0o600, "{}", path.display());
    }
    let names = ["model.safetensors", "report.json", "report.html", "statement.txt"];
    for name in names {
        std::fs::remove_file(out.join(name)).unwrap();
        std::os::unix::fs::symlink(place.file("victim"), out.join(name)).unwrap();
        let partial = out.join(format!("{name}.partial"));
        std::os::unix::fs::symlink(place.file("victim"), partial).unwrap();
    }
    run(
        "umask 000; exec \"$0\" train config.toml --out runs/deep --ledger other.db --overwrite -q",
    );
    for name in names {
        let found = std::fs::symlink_metadata(out.join(name)).unwrap();
        assert!(found.is_file() && found.permissions().mode() & 0o777 == 0o600, "{name}");
    }
    assert_eq!(std::fs::read_to_string(place.file("victim")).unwrap(), "mine");
}
