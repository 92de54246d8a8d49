//! `veilgrad check`: problems of a configuration, and, for the owner of the data, bad rows.

mod common;

use common::{Directory, config, ok, refused, table, veilgrad};
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
    for what in ["expected_batch 999", "rounds must be", "bounds must ascend"] {
        refused(&["check", &path], 2, what);
    }
    let output = veilgrad(&["check", &path, "--json"]);
    assert_eq!(output.status.code(), Some(2));
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(document["valid"], false);
    assert!(document["problems"][0].as_str().unwrap().contains("expected_batch 999"), "{document}");
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
