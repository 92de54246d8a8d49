//! `veilgrad init`: configurations from declarations, without opening the private data.

use std::process::Stdio;

use crate::common::{Directory, command, ok, refused, table};
use serde_json::Value;

/// Runs `init` with these words and no terminal.
fn init(words: &[&str]) -> Result<String, String> {
    let words = [&["init"][..], words].concat();
    let output = command(&words).stdin(Stdio::null()).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    if output.status.success() {
        return Ok(text(output.stdout));
    }
    assert_eq!(output.status.code(), Some(2), "{words:?}");
    Err(text(output.stderr))
}

#[test]
fn a_configuration_from_flags_passes_check_and_trains() {
    let directory = Directory::new("init-flags");
    let (data, path) = (directory.file("data.csv"), directory.file("new.toml"));
    let words = [
        data.as_str(),
        "-o",
        &path,
        "--label",
        "class",
        "--classes",
        "a,b",
        "--numeric",
        "x=0..1",
        "--numeric",
        "y=-1..1",
        "--categorical",
        "word=declared,other",
        "--records",
        "400",
        "--epsilon",
        "4",
        "--dataset",
        "toy",
    ];
    // The data need not be there.
    let said = init(&words).unwrap();
    assert!(said.contains("the private data was not opened"), "{said}");
    table(&data, 400);
    ok(&["check", &path]);
    let out = directory.file("run");
    ok(&["train", &path, "--out", &out, "-q"]);
    let report: Value =
        serde_json::from_str(&std::fs::read_to_string(format!("{out}/report.json")).unwrap())
            .unwrap();
    assert!(report["epsilon"].as_f64().unwrap() <= 4.0);
    let text = std::fs::read_to_string(&path).unwrap();
    for line in [
        "bounds = [-1, 1]",
        "categories = [\"declared\", \"other\"]",
        "dataset = \"toy\"",
        "epsilon = 4.0",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    assert!(text.contains("train = \"data.csv\"") || text.contains(&data), "{text}");
}

#[test]
fn a_public_sample_proposes_bounds_categories_and_classes() {
    let directory = Directory::new("init-sample");
    let (data, sample) = (directory.file("data.csv"), directory.file("public.csv"));
    let path = directory.file("new.toml");
    table(&data, 400);
    let rows = "id,age,ward,empty,one,sick\na1,17,surgery,,7,no\na2,,medicine,,7,yes\na3,90,surgery,,7,no\n";
    let many: String =
        (0..150).map(|i| format!("b{i},{},medicine,,7,yes\n", 18 + i % 70)).collect();
    std::fs::write(&sample, format!("{rows}{many}")).unwrap();
    let words = [
        data.as_str(),
        "-o",
        &path,
        "--public-sample",
        &sample,
        "--label",
        "sick",
        "--records",
        "500",
        "--epsilon",
        "3",
    ];
    init(&words).unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    for part in [
        "classes = [\"no\", \"yes\"]",
        "name = \"age\"\nbounds = [15, 90]\nmissing = \"mean-of-bounds\"",
        "name = \"ward\"\ncategories = [\"medicine\", \"surgery\"]",
        "#   \"id\": the sample has more than 100 different words of it",
        "#   \"empty\": the sample has no value of it",
        "#   \"one\": the sample has one value of it",
        "delta = 1e-5",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    // What is given wins, and what is ignored is not used.
    let more = [
        &words[..],
        &["--force", "--numeric", "age=0..120", "--ignore", "ward", "--classes", "yes,no"],
    ]
    .concat();
    init(&more).unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.contains("name = \"age\"\nbounds = [0, 120]\n"), "{text}");
    assert!(
        text.contains("classes = [\"yes\", \"no\"]") && text.contains("\"ward\": ignored"),
        "{text}"
    );
    for (more, what) in [
        (&["--ignore", "nothing"][..], "has no column \"nothing\""),
        (&["--numeric", "nothing=0..1"], "has no column \"nothing\""),
        (&["--label", "nothing"], "has no column \"nothing\""),
    ] {
        let mut words = words.to_vec();
        if more[0] == "--label" {
            words.retain(|word| *word != "--label" && *word != "sick");
        }
        let error = init(&[&words[..], &["--force"], more].concat()).unwrap_err();
        assert!(error.contains(what), "{error}");
    }
}

#[test]
fn json_lines_are_a_sample_too_and_numbers_as_labels_have_bounds() {
    let directory = Directory::new("init-json");
    let (sample, path) = (directory.file("public.jsonl"), directory.file("new.toml"));
    let rows: String = (0..60)
        .map(|i| {
            format!(
                "{{\"size\": {}, \"price\": {}.5, \"part\": \"{}\"}}\n",
                20 + i,
                1000 + 17 * i,
                ["a", "b"][i % 2]
            )
        })
        .collect();
    std::fs::write(&sample, rows).unwrap();
    let words = [
        "flats.csv",
        "-o",
        &path,
        "--public-sample",
        &sample,
        "--label",
        "price",
        "--records",
        "9000",
        "--epsilon",
        "3",
    ];
    init(&words).unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    for part in [
        "label_bounds = [1000, 2100]",
        "bounds = [20, 80]",
        "categories = [\"a\", \"b\"]",
        "lr = 1.0",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn nothing_that_is_written_depends_on_the_private_data() {
    let directory = Directory::new("init-private");
    let (data, sample) = (directory.file("data.csv"), directory.file("public.csv"));
    let path = directory.file("new.toml");
    std::fs::write(&sample, "x,y\n1,a\n2,b\n").unwrap();
    let words = [
        data.as_str(),
        "-o",
        &path,
        "--public-sample",
        &sample,
        "--label",
        "y",
        "--records",
        "500",
        "--epsilon",
        "3",
        "--force",
    ];
    let mut written = Vec::new();
    for content in ["x,y\n1,a\n", "other,columns\nSECRET,1\n", ""] {
        std::fs::write(&data, content).unwrap();
        written.push((init(&words).unwrap(), std::fs::read_to_string(&path).unwrap()));
    }
    assert!(written.windows(2).all(|pair| pair[0] == pair[1]), "{written:?}");
    // The private file is no public sample, whatever it is called.
    let link = directory.file("link.csv");
    std::os::unix::fs::symlink(&data, &link).unwrap();
    for name in [data.as_str(), link.as_str()] {
        for flag in ["--public-sample", "--test"] {
            let words = [
                data.as_str(),
                "-o",
                &path,
                "--force",
                "--label",
                "y",
                "--records",
                "500",
                "--epsilon",
                "3",
                flag,
                name,
            ];
            let error = init(&words).unwrap_err();
            assert!(error.contains("is the private data"), "{error}");
        }
    }
}

#[test]
fn what_is_missing_without_a_terminal_is_a_usage_error_that_names_the_flag() {
    let directory = Directory::new("init-missing");
    let path = directory.file("new.toml");
    let all = [
        ("--records", "500"),
        ("--epsilon", "3"),
        ("--label", "y"),
        ("--classes", "a,b"),
        ("--numeric", "x=0..1"),
    ];
    for (missing, _) in all {
        let given = all
            .iter()
            .filter(|(flag, _)| *flag != missing)
            .flat_map(|(flag, value)| [*flag, *value]);
        let words: Vec<&str> = ["data.csv", "-o", &path].into_iter().chain(given).collect();
        let error = init(&words).unwrap_err();
        assert!(error.contains(missing), "{missing}: {error}");
        assert!(!std::path::Path::new(&path).exists());
    }
    let arrays = [
        ("--records", "500"),
        ("--epsilon", "3"),
        ("--labels", "l.npy"),
        ("--shape", "28,28"),
        ("--bounds", "0..255"),
        ("--classes", "10"),
    ];
    for (missing, _) in arrays {
        let given = arrays
            .iter()
            .filter(|(flag, _)| *flag != missing)
            .flat_map(|(flag, value)| [*flag, *value]);
        let words: Vec<&str> = ["images.npy", "-o", &path].into_iter().chain(given).collect();
        let error = init(&words).unwrap_err();
        assert!(error.contains(missing), "{missing}: {error}");
    }
    let words: Vec<&str> = ["images.npy", "-o", &path]
        .into_iter()
        .chain(arrays.iter().flat_map(|(f, v)| [*f, *v]))
        .collect();
    init(&words).unwrap();
}

#[test]
fn files_are_not_overwritten_and_wrong_flags_are_named() {
    let directory = Directory::new("init-refused");
    let path = directory.file("new.toml");
    std::fs::write(&path, "mine").unwrap();
    let words = [
        "data.csv",
        "-o",
        &path,
        "--label",
        "y",
        "--classes",
        "a,b",
        "--numeric",
        "x=0..1",
        "--records",
        "9",
        "--epsilon",
        "3",
    ];
    let error = init(&words).unwrap_err();
    assert!(error.contains("is there already") && error.contains("--force"), "{error}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "mine");
    init(&[&words[..], &["--force"]].concat()).unwrap();
    assert!(std::fs::read_to_string(&path).unwrap().starts_with("# Written by"));
    let out = directory.file("o.toml");
    for (words, what) in [
        (&["--numeric", "x=1..0"][..], "\"1..0\" is not LOW..HIGH"),
        (&["--numeric", "x"], "is not NAME=LOW..HIGH"),
        (&["--categorical", "x=a,,b"], "words that are separated by commas"),
        (&["--label-bounds", "0..1"], "cannot be used with"),
        (&["--shape", "28,28"], "--shape is for arrays"),
        (&["--user", "who"], "--max-examples"),
        (&["--epsilon", "0"], "epsilon 0"),
        (&["--delta", "2"], "delta 2"),
        (&["--numeric", "y=0..1"], "is the label"),
    ] {
        let all = [&["init", "data.csv", "-o", &out, "--classes", "a,b"][..], words].concat();
        let mut all = all;
        for (flag, value) in
            [("--label", "y"), ("--records", "9"), ("--epsilon", "3"), ("--numeric", "z=0..1")]
        {
            if !words.contains(&flag) || flag == "--numeric" {
                all.extend([flag, value]);
            }
        }
        refused(&all, 2, what);
    }
}

#[test]
fn a_table_without_a_header_has_its_names_from_a_flag() {
    let directory = Directory::new("init-header");
    let (data, path) = (directory.file("data.csv"), directory.file("new.toml"));
    let sample = directory.file("public.csv");
    std::fs::write(&sample, "0.5,1,a,no\n0.9,3,b,yes\n0.1,2,a,no\n").unwrap();
    std::fs::write(&data, "0.5,1,a,no\n0.9,3,b,yes\n").unwrap();
    let given = ["--header", "x,y,part,sick", "--label", "sick", "--public-sample", &sample];
    let more = ["--records", "400", "--epsilon", "4", "--dataset", "toy"];
    init(&[&[data.as_str(), "-o", &path], &given[..], &more].concat()).unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    for part in [
        "header = [\"x\", \"y\", \"part\", \"sick\"]",
        "name = \"part\"",
        "classes = [\"no\", \"yes\"]",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    ok(&["check", &path]);
    let words = ["x.npy", "--header", "a,b", "--records", "400", "--epsilon", "4"];
    assert!(init(&words).unwrap_err().contains("--header is for tables"));
}

#[test]
fn archives_and_ids_of_users_have_flags() {
    let directory = Directory::new("init-arrays");
    let path = directory.file("new.toml");
    let more = [
        "--shape",
        "2,2",
        "--bounds",
        "0..255",
        "--classes",
        "2",
        "--records",
        "400",
        "--epsilon",
        "4",
    ];
    let written = |words: &[&str]| {
        init(&[words, &["-o", &path, "--force"], &more[..]].concat())
            .map(|_| std::fs::read_to_string(&path).unwrap())
    };
    let text = written(&["data.npz", "--arrays", "x,y", "--test", "test.npz"]).unwrap();
    assert!(text.contains("arrays = { inputs = \"x\", labels = \"y\" }"), "{text}");
    assert!(!text.contains("labels = \"data") && text.contains("record = \"example\""), "{text}");
    let ids = ["--user-ids", "ids.npz", "--max-examples", "3"];
    let text = written(&[&["data.npz", "--arrays", "x,y,who"], &ids[..]].concat()).unwrap();
    assert!(text.contains("users = \"who\""), "{text}");
    assert!(text.contains("ids.npz\", max_examples = 3 }"), "{text}");
    let ids = ["--user-ids", "ids.npy", "--max-examples", "3"];
    let text = written(&[&["data.npy", "--labels", "labels.npy"], &ids[..]].concat()).unwrap();
    assert!(text.contains("ids.npy\", max_examples = 3 }"), "{text}");
    for (words, what) in [
        (&["data.npz"][..], "--arrays"),
        (&["data.npz", "--arrays", "x"], "is not INPUTS,LABELS"),
        (&["data.npy", "--labels", "l.npy", "--user-ids", "i.npy"], "--max-examples"),
        (
            &["data.csv", "--label", "y", "--user-ids", "i.npy", "--max-examples", "3"],
            "--shape is for arrays",
        ),
    ] {
        let error = written(words).unwrap_err();
        assert!(error.contains(what), "{what}: {error}");
    }
}
