//! The public test set must not be the private training data.

use crate::common::{Directory, config, ok, refused, table, veilgrad};

/// Checks that the run is refused and nothing is charged.
fn refuse(directory: &Directory, config: &str, what: &str) {
    let (out, ledger) = (directory.file("out"), directory.file("ledger.db"));
    refused(&["train", config, "--out", &out, "--ledger", &ledger], 2, what);
    if std::fs::exists(&ledger).unwrap() {
        let verified = ok(&["ledger", "verify", &ledger]);
        assert!(verified.contains(" 0 rounds charged"), "{verified}");
    }
}

/// The configuration with another test file.
fn with_test(directory: &Directory, path: &str, name: &str) -> String {
    let text = std::fs::read_to_string(path).unwrap();
    let changed = text.replace(&directory.file("test.csv"), name);
    assert_ne!(text, changed);
    let path = directory.file("changed.toml");
    std::fs::write(&path, changed).unwrap();
    path
}

#[test]
fn a_test_set_that_is_the_training_file_is_refused() {
    let directory = Directory::new("same-file");
    let data = directory.file("data.csv");
    table(&data, 400);
    let config = config(&directory, 5, "");
    let what = "[data] test is the private file of [data] train";
    refuse(&directory, &with_test(&directory, &config, &data), what);
    let spelled = format!("{}/./data.csv", directory.0.display());
    refuse(&directory, &with_test(&directory, &config, &spelled), what);
    let (hard, soft) = (directory.file("hard.csv"), directory.file("soft.csv"));
    std::fs::hard_link(&data, &hard).unwrap();
    std::os::unix::fs::symlink("data.csv", &soft).unwrap();
    refuse(&directory, &with_test(&directory, &config, &hard), what);
    refuse(&directory, &with_test(&directory, &config, &soft), what);
    // None of these opened a ledger.
    assert!(!std::fs::exists(directory.file("ledger.db")).unwrap());
}

#[test]
fn a_test_set_with_the_training_files_content_is_refused() {
    let directory = Directory::new("same-content");
    let data = directory.file("data.csv");
    table(&data, 400);
    let config = config(&directory, 5, "");
    let what = "[data] test has the examples of [data] train";
    let copy = directory.file("copy.csv");
    std::fs::copy(&data, &copy).unwrap();
    refuse(&directory, &with_test(&directory, &config, &copy), what);
    // The same examples with other labels, line ends and columns that are not used.
    let text = std::fs::read_to_string(&data).unwrap();
    let other = text.replace(",a\n", ",b\r\n").replace("zanzibar1", "somebody");
    assert_ne!(text, other);
    std::fs::write(&copy, other).unwrap();
    refuse(&directory, &with_test(&directory, &config, &copy), what);
    // One example fewer is another test set.
    table(&copy, 399);
    let (out, changed) = (directory.file("other"), with_test(&directory, &config, &copy));
    ok(&["train", &changed, "--out", &out, "--ledger", &directory.file("other.db"), "-q"]);
}

#[test]
fn images_are_compared_whatever_their_labels_and_their_files() {
    let directory = Directory::new("same-images");
    let idx = |shape: &[u32], bytes: &[u8]| {
        let mut file = vec![0, 0, 8, shape.len() as u8];
        shape.iter().for_each(|length| file.extend(length.to_be_bytes()));
        [file, bytes.to_vec()].concat()
    };
    let write = |name: &str, bytes: Vec<u8>| std::fs::write(directory.file(name), bytes).unwrap();
    let pixels: Vec<u8> = (0..40 * 16).map(|i| (i * 31 % 251) as u8).collect();
    let other: Vec<u8> = pixels.iter().map(|pixel| pixel ^ 1).collect();
    let labels: Vec<u8> = (0..40).map(|i| i % 2).collect();
    write("images", idx(&[40, 4, 4], &pixels));
    write("labels", idx(&[40], &labels));
    write("test-labels", idx(&[40], &[1; 40]));
    // The same numbers in NumPy's format.
    let mut header = "{'descr': '|u1', 'fortran_order': False, 'shape': (40, 4, 4), }".to_owned();
    header.push_str(&" ".repeat(117 - header.len()));
    header.push('\n');
    let start = [b"\x93NUMPY\x01\x00", &(header.len() as u16).to_le_bytes()[..]].concat();
    write("images.npy", [start, header.into_bytes(), pixels.clone()].concat());
    write("other-images", idx(&[40, 4, 4], &other));
    let here = directory.0.display().to_string();
    let config = |test: &str, labels: &str| {
        let text = format!(
            r#"
[data]
train = "{here}/images"
labels = "{here}/labels"
test = "{here}/{test}"
test_labels = "{here}/{labels}"
dataset = "toy"
records = 40
classes = 2
shape = [4, 4]
bounds = [0, 255]
[model]
kind = "linear"
[privacy]
noise_multiplier = 2.0
delta = 1e-5
expected_batch = 10
[train]
rounds = 3
optimizer = {{ kind = "sgd", lr = 0.1 }}
"#
        );
        let path = directory.file("config.toml");
        std::fs::write(&path, text).unwrap();
        path
    };
    refuse(&directory, &config("images.npy", "test-labels"), "has the examples of [data] train");
    let what = "[data] test_labels is the private file of [data] labels";
    refuse(&directory, &config("other-images", "labels"), what);
    let path = config("other-images", "test-labels");
    let (out, ledger) = (directory.file("good"), directory.file("good.db"));
    let output = veilgrad(&["train", &path, "--out", &out, "--ledger", &ledger, "-q"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
