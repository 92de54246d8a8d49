//! `veilgrad check`: problems of a configuration, and, for the owner of the data, bad rows.

use crate::common::{Directory, config, ok, refused, table, veilgrad};
use serde_json::Value;

#[test]
fn a_good_configuration_is_called_good_and_nothing_is_written() {
    let directory = Directory::new("check-good");
    table(&directory.file("data.csv"), 400);
    let path = config(&directory, 5, "");
    let before = std::fs::read_dir(&directory.0).unwrap().count();
    let text = ok(&["check", &path]);
    assert!(text.contains("nothing is wrong with it; no budget was touched"), "{text}");
    let document: Value = serde_json::from_str(&ok(&["check", &path, "--json"])).unwrap();
    assert_eq!(document["valid"], true);
    assert_eq!(std::fs::read_dir(&directory.0).unwrap().count(), before);
}

#[test]
fn all_that_is_wrong_is_named_with_the_exit_code_of_training() {
    let directory = Directory::new("check-bad");
    let path = config(&directory, 5, "");
    // No file exists.
    refused(&["check", &path], 5, "data.csv: No such file");
    std::fs::write(directory.file("data.csv"), "who,x\n").unwrap();
    refused(&["check", &path], 5, "has no column \"y\"");
    table(&directory.file("data.csv"), 400);
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace("delta = 1e-5", "delta = 2")).unwrap();
    refused(&["check", &path], 2, "delta 2");
    // Several parts of a configuration at once.
    let wrong = text.replace("expected_batch = 100", "expected_batch = 999");
    let wrong = wrong.replace("rounds = 5", "rounds = 0").replace("[0, 1]", "[1, 0]");
    std::fs::write(&path, wrong).unwrap();
    for what in ["expected_batch 999", "rounds: expected a whole number", "bounds must ascend"] {
        refused(&["check", &path], 2, what);
    }
    let output = veilgrad(&["check", &path, "--json"]);
    assert_eq!(output.status.code(), Some(2));
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(document["valid"], false);
    let problems = document["problems"].as_array().unwrap();
    let lines: Vec<u64> = problems.iter().map(|found| found["line"].as_u64().unwrap()).collect();
    assert!(problems.len() >= 4 && lines.is_sorted(), "{document}");
    let batch = problems.iter().find(|found| found["key"] == "privacy.expected_batch").unwrap();
    assert!(batch["text"].as_str().unwrap().contains("expected_batch 999"), "{document}");
    // `train` says the same.
    let error = |command: &str| {
        let output = veilgrad(&[command, &path, "--ledger", &directory.file("none.db")]);
        assert_eq!(output.status.code(), Some(2));
        String::from_utf8(output.stderr).unwrap()
    };
    assert_eq!(error("check"), error("train"));
    refused(&["check", &directory.file("none.toml")], 1, "No such file");
}

#[test]
fn bad_rows_are_shown_to_the_owner_alone_and_without_what_is_in_them() {
    let directory = Directory::new("check-rows");
    let path = config(&directory, 5, "record = { user = \"who\", max_examples = 5 }");
    let good = "who,x,y,word,class\nann,0.1,0.2,declared,a\n";
    let rows = "bob,,0.2,declared,a\nbob,SECRET,0.2,SECRET,a\nbob,0,0,declared,SECRET\nSECRET\n";
    std::fs::write(directory.file("data.csv"), format!("{good}{rows}")).unwrap();
    let public = ok(&["check", &path]);
    std::fs::write(directory.file("data.csv"), good).unwrap();
    // Without the flag, the output is the same with and without bad rows.
    assert_eq!(public, ok(&["check", &path]));
    let shown = ok(&["check", &path, "--show-rows"]);
    assert!(shown.starts_with("FOR THE DATA OWNER'S EYES"), "{shown}");
    assert!(shown.ends_with("every row is as declared\n"), "{shown}");
    std::fs::write(directory.file("data.csv"), format!("{good}{rows}")).unwrap();
    let shown = ok(&["check", &path, "--show-rows"]);
    assert!(shown.starts_with("FOR THE DATA OWNER'S EYES"), "{shown}");
    for line in [
        "row 2, column x: is empty: the example contributes zero",
        "row 3, column x: is not a number: the example contributes zero",
        "row 3, column word: is none of the declared categories: counts as none of them",
        "row 4, column class: is none of the declared classes: the example contributes zero",
        "row 5: has more or fewer cells than the header: the example contributes zero",
    ] {
        assert!(shown.contains(&format!("data.csv: {line}\n")), "{line}: {shown}");
    }
    assert!(!shown.contains("SECRET"), "{shown}");
    let document = ok(&["check", &path, "--show-rows", "--json"]);
    let document: Value = serde_json::from_str(&document).unwrap();
    assert!(document["private"].as_str().unwrap().starts_with("FOR THE DATA OWNER'S EYES"));
    assert_eq!(
        (&document["rows"][0]["row"], &document["rows"][0]["column"]),
        (&2.into(), &"x".into())
    );
    assert_eq!(document["rows"].as_array().unwrap().len(), 5);
}

#[test]
fn bad_rows_of_arrays_are_shown_with_their_file() {
    let directory = Directory::new("check-arrays");
    let here = directory.0.display().to_string();
    let idx = |shape: &[u32], bytes: &[u8]| {
        let mut file = vec![0, 0, 8, shape.len() as u8];
        shape.iter().for_each(|length| file.extend(length.to_be_bytes()));
        [file, bytes.to_vec()].concat()
    };
    std::fs::write(directory.file("images"), idx(&[3, 2, 2], &[0; 12])).unwrap();
    std::fs::write(directory.file("labels"), idx(&[3], &[0, 7, 1])).unwrap();
    let path = directory.file("config.toml");
    let text = format!(
        r#"
[data]
train = "{here}/images"
labels = "{here}/labels"
records = 3
classes = 2
shape = [2, 2]
bounds = [0, 255]
[model]
kind = "linear"
[privacy]
noise_multiplier = 2.0
delta = 1e-5
expected_batch = 1
[train]
rounds = 3
optimizer = {{ kind = "sgd", lr = 0.1 }}
"#
    );
    std::fs::write(&path, text).unwrap();
    let shown = ok(&["check", &path, "--show-rows"]);
    assert!(shown.contains("labels: row 2: is none of the declared classes"), "{shown}");
    assert_eq!(shown.lines().count(), 2, "{shown}");
}

#[test]
fn all_files_that_are_missing_are_named_with_similar_names() {
    let directory = Directory::new("check-files");
    let path = config(&directory, 5, "calibration = \"calib.csv\"");
    std::fs::write(directory.file("dota.csv"), "").unwrap();
    let error = refused(&["check", &path], 5, "[data] train: ");
    for what in ["data.csv: No such file", "did you mean dota.csv?", "[data] calibration: "] {
        assert!(error.contains(what), "{what}: {error}");
    }
    let line = |text: &str| {
        let config = std::fs::read_to_string(&path).unwrap();
        config.lines().position(|line| line.starts_with(text)).unwrap() + 1
    };
    for key in ["train", "calibration"] {
        assert!(error.contains(&format!("line {}: [data] {key}", line(key))), "{error}");
    }
}

#[test]
fn a_budget_that_would_be_exceeded_is_exit_code_3_and_nothing_is_charged() {
    let directory = Directory::new("check-budget");
    table(&directory.file("data.csv"), 400);
    let (path, ledger) = (config(&directory, 5, ""), directory.file("ledger.db"));
    ok(&["check", &path, "--ledger", &ledger]);
    assert!(!std::path::Path::new(&ledger).exists());
    ok(&["budget", "create", "toy", "--epsilon", "1", "--delta", "1e-5", "--ledger", &ledger]);
    let before = std::fs::read(&ledger).unwrap();
    refused(&["check", &path, "--ledger", &ledger], 3, "nothing was charged");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace("epsilon = 2.0", "epsilon = 0.9")).unwrap();
    let said = ok(&["check", &path, "--ledger", &ledger]);
    assert!(said.contains("Advice") && said.contains("delta"), "{said}");
    std::fs::write(&path, text.replace("delta = 1e-5", "delta = 1e-6")).unwrap();
    refused(&["check", &path, "--ledger", &ledger], 2, "is for delta 1e-5");
    let users = text.replace("records = 400", "records = 400\nrecord = { microbatch = 2 }");
    std::fs::write(&path, users).unwrap();
    refused(&["check", &path, "--ledger", &ledger], 4, "the budget of \"toy\" is for");
    assert_eq!(std::fs::read(&ledger).unwrap(), before);
}

#[test]
fn problems_of_the_plan_have_lines_too() {
    let directory = Directory::new("check-plan");
    table(&directory.file("data.csv"), 400);
    let path = config(&directory, 5, "");
    let text = std::fs::read_to_string(&path).unwrap();
    let frozen = text.replace("kind = \"linear\"", "kind = \"linear\"\nfrozen = [\"nothing\"]");
    std::fs::write(&path, &frozen).unwrap();
    let line = frozen.lines().position(|line| line.starts_with("frozen")).unwrap() + 1;
    let error = refused(&["check", &path], 2, "[model] frozen");
    assert!(error.contains(&format!("line {line}: ")), "{error}");
    let trained = veilgrad(&["train", &path, "--out", &directory.file("out")]);
    assert_eq!(String::from_utf8(trained.stderr).unwrap(), error);
}

/// The problems of a configuration, each of which has a key and its line.
fn located(arguments: &[&str], code: i32) -> Vec<Value> {
    let output = veilgrad(&[&["check"], arguments, &["--json"]].concat());
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{error}");
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    let problems = document["problems"].as_array().unwrap().clone();
    for problem in &problems {
        assert!(problem["line"].is_u64() && problem["key"] != "", "{problem}");
        assert!(error.contains(problem["text"].as_str().unwrap()), "{error}");
    }
    problems
}

fn has(problems: &[Value], key: &str, what: &str) {
    let found = problems
        .iter()
        .any(|problem| problem["key"] == key && problem["text"].as_str().unwrap().contains(what));
    assert!(found, "{key}: {what}: {problems:#?}");
}

#[test]
fn all_parts_of_a_run_are_checked_beside_a_mistyped_key() {
    let directory = Directory::new("check-parts");
    let (path, ledger) = (config(&directory, 5, ""), directory.file("ledger.db"));
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(directory.file("data.csv"), "who,x,class\n").unwrap();
    std::fs::write(directory.file("test.csv"), "x,y,word\n").unwrap();
    let layers = "kind = \"layers\"\nlayers = [{ kind = \"relu\" }, { kind = \"conv\", filters = 1, kernel = 2 }]";
    let wrong = text
        .replace("kind = \"linear\"", layers)
        .replace("epsilon = 2.0\ndelta = 1e-5", "epsilon = 1e-9\ndelta = 1e-300")
        .replace("momentum = 0.5", "momentun = 0.5");
    std::fs::write(&path, wrong).unwrap();
    let found = located(&[&path], 2);
    has(&found, "train.optimizer.momentun", "has no key `momentun`");
    has(&found, "model.layers[2]", "takes an image");
    has(&found, "privacy.epsilon", "no noise multiplier");
    has(&found, "data.label", "test.csv: has no column \"class\"");
    // Private files are not opened for a run without a plan.
    assert_eq!(found.len(), 4, "{found:#?}");
    std::fs::write(&path, &text).unwrap();
    let found = located(&[&path], 5);
    has(&found, "data.columns[2].name", "has no column \"y\"; has no column \"word\"");
    has(&found, "data.label", "test.csv: has no column \"class\"");
    assert_eq!(found.len(), 2, "{found:#?}");
    // What needs a model, and a budget.
    ok(&["budget", "create", "toy", "--epsilon", "1", "--delta", "1e-5", "--ledger", &ledger]);
    let groups = "expected_batch = 100\n[[privacy.groups]]\nvectors = [\"*\"]\nclip = 1.0\n\
                  [[privacy.groups]]\nvectors = [\"nowhere.*\"]\nclip = 1.0\n";
    let wrong = text
        .replace(
            "kind = \"linear\"",
            "kind = \"linear\"\nfrozen = [\"nothing\", \"linear1.bias\", \"none\"]",
        )
        .replace("expected_batch = 100\n", groups)
        .replace("momentum = 0.5", "momentun = 0.5");
    std::fs::write(&path, wrong).unwrap();
    let found = located(&[&path, "--ledger", &ledger], 2);
    has(&found, "train.optimizer.momentun", "has no key `momentun`");
    has(&found, "model.frozen", "'nothing' matches no parameter");
    has(&found, "model.frozen", "'none' matches no parameter");
    has(&found, "privacy.groups[2].vectors", "'nowhere.*'");
    has(&found, "privacy.epsilon", "nothing was charged");
    // No file is opened for a run that the budget does not cover.
    assert_eq!(found.len(), 5, "{found:#?}");
    // A part that depends on a wrong value is left out.
    std::fs::write(&path, text.replace("delta = 1e-5", "delta = 2")).unwrap();
    let found = located(&[&path, "--ledger", &ledger], 2);
    has(&found, "privacy.delta", "delta 2");
    assert!(found.iter().all(|problem| problem["key"] != "privacy.epsilon"), "{found:#?}");
}

#[test]
fn problems_of_files_and_budgets_have_the_exit_code_of_training_and_a_line() {
    let directory = Directory::new("check-lines");
    let (path, ledger) = (config(&directory, 5, ""), directory.file("ledger.db"));
    std::fs::write(directory.file("data.csv"), "who,x,word,class\n").unwrap();
    has(&located(&[&path], 5), "data.columns[2].name", "has no column \"y\"");
    std::fs::write(directory.file("data.csv"), "who,x,y,word\n").unwrap();
    has(&located(&[&path], 5), "data.label", "has no column \"class\"");
    std::fs::write(directory.file("data.csv"), "").unwrap();
    located(&[&path], 5);
    table(&directory.file("data.csv"), 400);
    ok(&["budget", "create", "toy", "--epsilon", "1", "--delta", "1e-5", "--ledger", &ledger]);
    has(&located(&[&path, "--ledger", &ledger], 3), "privacy.epsilon", "nothing was charged");
    let text = std::fs::read_to_string(&path).unwrap();
    let users = text.replace("records = 400", "records = 400\nrecord = { microbatch = 2 }");
    std::fs::write(&path, users).unwrap();
    has(&located(&[&path, "--ledger", &ledger], 4), "data.record", "the budget of \"toy\" is for");
    std::fs::write(
        &path,
        text.replace("epsilon = 2.0\ndelta = 1e-5", "epsilon = 1e-9\ndelta = 1e-300"),
    )
    .unwrap();
    has(&located(&[&path], 7), "privacy.epsilon", "no noise multiplier");
}

#[test]
fn rows_are_shown_after_the_budget_is_spent() {
    let directory = Directory::new("check-spent");
    table(&directory.file("data.csv"), 400);
    let (path, ledger) = (config(&directory, 5, ""), directory.file("ledger.db"));
    ok(&["train", &path, "--out", &directory.file("out"), "--ledger", &ledger, "-q"]);
    refused(&["check", &path, "--ledger", &ledger], 3, "nothing was charged");
    let shown = ok(&["check", &path, "--ledger", &ledger, "--show-rows"]);
    assert!(shown.contains("row 1, column word: is none of the declared categories"), "{shown}");
}

/// Everything that `check` says and writes with a number of rows, for a sampling and more keys of `[privacy]`.
fn said_of(
    directory: &Directory,
    rows: u32,
    sampling: &str,
    more: &str,
) -> (Option<i32>, Vec<u8>, Vec<u8>) {
    table(&directory.file("data.csv"), rows);
    let path = config(directory, 4, "");
    let text = std::fs::read_to_string(&path).unwrap();
    let sampled = format!("expected_batch = 100\nsampling = {sampling:?}\n{more}");
    std::fs::write(&path, text.replace("expected_batch = 100", &sampled)).unwrap();
    let output = veilgrad(&["check", &path, "--json"]);
    (output.status.code(), output.stdout, output.stderr)
}

#[test]
fn the_number_of_records_does_not_show_where_it_is_private() {
    let directory = Directory::new("check-count");
    for sampling in ["poisson", "allocation", "truncated", "fixed", "shuffle"] {
        let [fewer, declared, more] =
            [399, 400, 401].map(|rows| said_of(&directory, rows, sampling, ""));
        assert!(fewer == declared && declared == more, "{sampling}");
        // What needs a public number is refused as such.
        let is_drawn_without = ["poisson", "allocation"].contains(&sampling);
        assert_eq!(declared.0, Some(if is_drawn_without { 0 } else { 2 }), "{sampling}");
        let why = "which is private under add-remove";
        let says_why = String::from_utf8(declared.2).unwrap().contains(why);
        assert_eq!(says_why, !is_drawn_without, "{sampling}");
        // A number that is public must be as declared.
        let replace = "adjacency = \"replace-one\"\n";
        assert_eq!(said_of(&directory, 400, sampling, replace).0, Some(0), "{sampling}");
        let code = if is_drawn_without { 0 } else { 5 };
        assert_eq!(said_of(&directory, 401, sampling, replace).0, Some(code), "{sampling}");
    }
}

/// The answer would be that of `train`, which ends, and can be repeated for free.
#[test]
fn whether_a_test_set_has_the_private_examples_is_not_answered() {
    let directory = Directory::new("check-same");
    table(&directory.file("data.csv"), 400);
    let path = config(&directory, 5, "");
    let before = ok(&["check", &path]);
    table(&directory.file("test.csv"), 400);
    assert_eq!(ok(&["check", &path]), before);
    let what = "has the examples of [data] train";
    refused(&["train", &path, "--out", &directory.file("out")], 2, what);
}

/// The data of some is fetched by a script; all else is as it should be.
#[test]
fn nothing_but_its_data_is_missing_for_an_example() {
    let examples = format!("{}/../../examples", env!("CARGO_MANIFEST_DIR"));
    for (directory, expected) in [(examples.clone(), 16), (format!("{examples}/real"), 7)] {
        let files = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
        let files = files.filter(|path| path.extension().is_some_and(|end| end == "toml"));
        let mut count = 0;
        for path in files {
            let output = veilgrad(&["check", path.to_str().unwrap(), "--json"]);
            let document: Value = serde_json::from_slice(&output.stdout).unwrap();
            for problem in document["problems"].as_array().unwrap() {
                let key = problem["key"].as_str().unwrap();
                let is_fetched = expected == 7 || path.ends_with("cifar10-eps3.toml");
                let is_data =
                    ["data.train", "data.labels", "data.test", "data.test_labels"].contains(&key);
                assert!(is_fetched && is_data, "{path:?}: {problem}");
            }
            count += 1;
        }
        assert_eq!(count, expected);
    }
}
