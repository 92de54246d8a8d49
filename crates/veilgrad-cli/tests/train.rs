//! Training runs, as people and programs start them.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::common::{Directory, MARKER, command, config, files, ok, refused, table, veilgrad};
use serde_json::Value;

#[test]
fn a_run_leaves_a_model_a_ledger_and_a_report_that_agree() {
    let directory = Directory::new("whole");
    table(&directory.file("data.csv"), 400);
    let (config, out) = (config(&directory, 60, ""), directory.file("out"));
    let report: Value =
        serde_json::from_str(&ok(&["train", &config, "--out", &out, "--json"])).unwrap();
    let epsilon = report["epsilon"].as_f64().unwrap();
    assert!((1.9..=2.0).contains(&epsilon), "{epsilon}");
    assert_eq!(report["rounds"], 60);
    assert_eq!((&report["unit"], &report["sampling"]), (&"example".into(), &"poisson".into()));
    assert_eq!((&report["numerics"], &report["insecure"]), (&"exact".into(), &false.into()));
    assert!(report["test_accuracy"].as_f64().unwrap() > 0.8, "{}", report["test_accuracy"]);
    assert_eq!(report["groups"][0]["name"], "gradient");
    for key in ["delta", "accountant", "adjacency", "noise_multiplier", "model"] {
        assert!(!report[key].is_null(), "{key}");
    }
    assert_eq!(report["schema"], 1);
    let again: Value = serde_json::from_str(&ok(&["report", &out, "--json"])).unwrap();
    assert_eq!(again, report);
    // The ledger says the same.
    let ledger = format!("{out}/ledger.db");
    let head = report["ledger"]["head"].as_str().unwrap();
    ok(&["ledger", "verify", &ledger, "--against", head]);
    let account: Value =
        serde_json::from_str(&ok(&["account", &ledger, "--delta", "1e-5", "--json"])).unwrap();
    assert_eq!(account["epsilon"], report["epsilon_running"]);
    assert_eq!(account["steps"], 60);
    // What else comes out.
    let statement = ok(&["statement", &out]);
    assert!(statement.contains("What is not covered") && statement.contains(head), "{statement}");
    assert_eq!(statement, std::fs::read_to_string(format!("{out}/statement.txt")).unwrap());
    let page = ok(&["report", &out]);
    assert!(page.contains("<svg") && !page.contains("<script") && !page.contains("http"), "{page}");
    let predictions =
        ok(&["predict", &format!("{out}/model.safetensors"), &directory.file("data.csv")]);
    assert_eq!(predictions.lines().count(), 401);
    // Nothing of the data is in any of it.
    for (path, bytes) in files(Path::new(&out)) {
        let found = bytes.windows(MARKER.len()).any(|window| window == MARKER.as_bytes());
        assert!(!found, "{}", path.display());
    }
}

#[test]
fn a_budget_that_is_spent_stops_a_run_before_the_data_is_opened() {
    let directory = Directory::new("budget");
    table(&directory.file("data.csv"), 400);
    let (config, ledger) = (config(&directory, 20, ""), directory.file("budget.db"));
    let train = |out: &str| {
        let out = directory.file(out);
        veilgrad(&["train", &config, "--out", &out, "--ledger", &ledger])
    };
    assert_eq!(train("one").status.code(), Some(0));
    // Without the file, only a run that does not look for it can say what it says.
    std::fs::remove_file(directory.file("data.csv")).unwrap();
    let second = train("two");
    let error = String::from_utf8_lossy(&second.stderr);
    assert_eq!(second.status.code(), Some(3), "{error}");
    assert!(error.contains("epsilon would be"), "{error}");
}

#[test]
fn bad_input_is_named_without_what_is_in_it() {
    let directory = Directory::new("bad");
    let (good, out) = (config(&directory, 5, ""), directory.file("out"));
    let train = |config: &str| -> Vec<String> {
        ["train", config, "--out", &out, "--ledger", ":none:"].map(str::to_owned).to_vec()
    };
    let run = |config: &str, code, what| {
        let ledger = directory.file(&format!("{code}-{}.db", what_name(what)));
        let mut words = train(config);
        words[5] = ledger;
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        refused(&words, code, what)
    };
    run(&directory.file("none.toml"), 1, "No such file");
    run(&good, 5, "data.csv");
    std::fs::write(directory.file("data.csv"), format!("who,x,word,class\nq,{MARKER},w,a\n"))
        .unwrap();
    let error = run(&good, 5, "has no column \"y\"");
    assert!(!error.contains(MARKER), "{error}");
    let text = std::fs::read_to_string(&good).unwrap();
    let changed = directory.file("changed.toml");
    for (from, to, what) in [
        ("epsilon = 2.0", "epsilom = 2.0", "did you mean `epsilon`"),
        ("label = \"class\"\n", "", "label is missing"),
        ("bounds = [0, 1]\n", "", "needs bounds, or categories"),
        ("delta = 1e-5", "delta = 2", "delta"),
        ("kind = \"linear\"", "kind = \"mlp\"", "needs hidden"),
    ] {
        std::fs::write(&changed, text.replace(from, to)).unwrap();
        run(&changed, 2, what);
    }
}

#[test]
fn results_are_replaced_only_on_request() {
    let directory = Directory::new("replaced");
    table(&directory.file("data.csv"), 400);
    let (config, out) = (config(&directory, 3, ""), directory.file("out"));
    ok(&["train", &config, "--out", &out, "--quiet"]);
    let results = || {
        let mut results = files(Path::new(&out));
        results.retain(|(path, _)| {
            path.extension().is_some_and(|end| end == "safetensors" || end == "json")
        });
        results
    };
    let before = results();
    assert!(before.len() >= 2);
    refused(&["train", &config, "--out", &out], 2, "holds the results of a run");
    assert_eq!(results(), before);
    let other = directory.file("other.db");
    ok(&[
        "train",
        &config,
        "--out",
        &out,
        "--ledger",
        &other,
        "--new-budget",
        "--overwrite",
        "--quiet",
    ]);
    assert_ne!(results(), before);
}

fn what_name(what: &str) -> String {
    what.chars().filter(char::is_ascii_alphanumeric).collect()
}

#[test]
fn an_interrupted_run_goes_on_where_it_was_and_stays_within_the_budget() {
    // Somebody presses Ctrl-C; a service is stopped.
    interrupt("INT");
    interrupt("TERM");
}

fn interrupt(signal: &str) {
    let directory = Directory::new(&format!("interrupted-{signal}"));
    table(&directory.file("data.csv"), 400);
    let (config, out) = (config(&directory, 3000, ""), directory.file("out"));
    let mut child = command(&["train", &config, "--out", &out])
        .stderr(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    // When it has charged something.
    let ledger = PathBuf::from(format!("{out}/ledger.db-wal"));
    while !std::fs::metadata(&ledger).is_ok_and(|metadata| metadata.len() > 40_000) {
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    // Whoever crashes it gets no copy of its memory.
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", child.id())).unwrap();
    let core = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap();
    assert_eq!(core.split_whitespace().nth(4), Some("0"), "{core}");
    let killed =
        Command::new("kill").args([format!("-{signal}"), child.id().to_string()]).status().unwrap();
    assert!(killed.success());
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let ledger = format!("{out}/ledger.db");
    ok(&["ledger", "verify", &ledger]);
    refused(&["train", &config, "--out", &out], 2, "--resume");
    let report: Value =
        serde_json::from_str(&ok(&["train", &config, "--out", &out, "--resume", "--json"]))
            .unwrap();
    assert!(report["epsilon_running"].as_f64().unwrap() <= 2.0, "{report}");
    assert_eq!(report["runs"], 2);
    let listed: Value = serde_json::from_str(&ok(&["ledger", "list", &ledger, "--json"])).unwrap();
    let charged: u64 =
        listed["runs"].as_array().unwrap().iter().map(|run| run["rounds"].as_u64().unwrap()).sum();
    assert!((2990..=3000).contains(&charged), "{charged}");
}

#[test]
fn users_are_records_and_the_report_says_so() {
    let directory = Directory::new("users");
    table(&directory.file("data.csv"), 400);
    let more = "record = { user = \"who\", max_examples = 5 }";
    let path = config(&directory, 10, more);
    let text = std::fs::read_to_string(&path).unwrap();
    let text = text.replace("records = 400", "records = 40").replace("batch = 100", "batch = 10");
    std::fs::write(&path, text).unwrap();
    let out = directory.file("out");
    let report: Value =
        serde_json::from_str(&ok(&["train", &path, "--out", &out, "--json"])).unwrap();
    assert_eq!(report["unit"], "user");
    assert!(ok(&["statement", &out]).contains("all examples of one user"));
}

/// A configuration with something replaced.
fn changed(directory: &Directory, path: &str, name: &str, changes: &[(&str, &str)]) -> String {
    let mut text = std::fs::read_to_string(path).unwrap();
    for (from, to) in changes {
        assert!(text.contains(from), "{from}");
        text = text.replace(from, to);
    }
    let path = directory.file(name);
    std::fs::write(&path, text).unwrap();
    path
}

#[test]
fn microbatches_are_records_and_the_statement_says_what_that_is_worth() {
    let directory = Directory::new("microbatch");
    table(&directory.file("data.csv"), 400);
    let fixed = [
        ("records = 400", "records = 100"),
        ("batch = 100", "batch = 25\nsampling = \"fixed\"\nadjacency = \"replace-one\""),
    ];
    let path = config(&directory, 10, "record = { microbatch = 4 }");
    let path = changed(&directory, &path, "fixed.toml", &fixed);
    let out = directory.file("out");
    let report: Value =
        serde_json::from_str(&ok(&["train", &path, "--out", &out, "--json"])).unwrap();
    // Fixed batches need as many records as declared: 400 examples are 100 microbatches.
    assert_eq!((&report["unit"], &report["sampling"]), (&"microbatch:4".into(), &"fixed".into()));
    assert!(ok(&["statement", &out]).contains("one microbatch of 4 examples"));
}

#[test]
fn a_model_file_holds_parameters_and_declarations_and_no_places() {
    let directory = Directory::new("model");
    table(&directory.file("data.csv"), 400);
    let (config, out) = (config(&directory, 5, ""), directory.file("out"));
    ok(&["train", &config, "--out", &out, "-q"]);
    let model = std::fs::read(format!("{out}/model.safetensors")).unwrap();
    let length = u64::from_le_bytes(model[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&model[8..8 + length]).unwrap();
    let names: Vec<&String> = header.as_object().unwrap().keys().collect();
    assert_eq!(names, ["__metadata__", "linear1.bias", "linear1.weight"]);
    let metadata = header["__metadata__"].as_object().unwrap();
    assert_eq!(metadata.keys().collect::<Vec<_>>(), ["veilgrad"]);
    let declared: Value = serde_json::from_str(metadata["veilgrad"].as_str().unwrap()).unwrap();
    let keys: Vec<&String> = declared.as_object().unwrap().keys().collect();
    assert_eq!(keys, ["declaration", "insecure", "ledger", "network", "schema"]);
    let text = declared.to_string();
    assert!(!text.contains('/') && !text.contains(".csv") && !text.contains("toy"), "{text}");
}

#[test]
fn models_from_elsewhere_are_not_trusted() {
    let directory = Directory::new("hostile");
    table(&directory.file("data.csv"), 40);
    let (config, out) = (config(&directory, 2, ""), directory.file("out"));
    ok(&["train", &config, "--out", &out, "-q"]);
    let model = std::fs::read(format!("{out}/model.safetensors")).unwrap();
    let length = u64::from_le_bytes(model[..8].try_into().unwrap()) as usize;
    let header = String::from_utf8(model[8..8 + length].to_vec()).unwrap();
    let (path, data) = (directory.file("model.safetensors"), directory.file("data.csv"));
    let write = |header: &str| {
        let size = (header.len() as u64).to_le_bytes();
        let file = [&size[..], header.as_bytes(), &model[8 + length..]].concat();
        std::fs::write(&path, file).unwrap();
    };
    let mlp = "\\\"kind\\\":\\\"mlp\\\",\\\"hidden\\\":[16000000,16000000]";
    for (to, what) in [
        ("\\\"kind\\\":\\\"unknown\\\"", "unknown variant"),
        (mlp, "too short for the model"),
        ("\\\"kind\\\":\\\"mlp\\\",\\\"hidden\\\":[0]", "widths must be"),
    ] {
        let from = "\\\"kind\\\":\\\"linear\\\"";
        assert!(header.contains(from), "{header}");
        write(&header.replace(from, to));
        refused(&["predict", &path, &data], 5, what);
    }
    for length in (0..model.len()).step_by(7) {
        std::fs::write(&path, &model[..length]).unwrap();
        refused(&["predict", &path, &data], 5, "model.safetensors");
    }
}

#[test]
fn images_come_from_arrays_with_as_many_labels() {
    let directory = Directory::new("arrays");
    let idx = |kind: &[u32], bytes: &[u8]| {
        let mut file = vec![0, 0, 8, kind.len() as u8];
        kind.iter().for_each(|length| file.extend(length.to_be_bytes()));
        [file, bytes.to_vec()].concat()
    };
    let pixels: Vec<u8> = (0..100 * 144).map(|i| (i * 31 % 251) as u8).collect();
    let labels: Vec<u8> = (0..100).map(|i| i % 2).collect();
    std::fs::write(directory.file("images"), idx(&[100, 12, 12], &pixels)).unwrap();
    let write = |labels: &[u8]| {
        let file = idx(&[labels.len() as u32], labels);
        std::fs::write(directory.file("labels"), file).unwrap();
    };
    let path = directory.file("config.toml");
    let here = directory.0.display();
    std::fs::write(
        &path,
        format!(
            r#"
[data]
train = "{here}/images"
labels = "{here}/labels"
records = 100
classes = 2
shape = [12, 12]
bounds = [0, 255]
[model]
kind = "linear"
features = "scattering"
[privacy]
noise_multiplier = 2.0
delta = 1e-5
expected_batch = 10
[train]
rounds = 3
optimizer = {{ kind = "adam", lr = 0.1 }}
"#
        ),
    )
    .unwrap();
    let (out, ledger) = (directory.file("out"), directory.file("ledger.db"));
    let train = ["train", &path, "--out", &out, "--ledger", &ledger, "-q"];
    write(&[labels.clone(), vec![0]].concat());
    refused(&train, 5, "has not as many labels as there are examples");
    write(&labels);
    ok(&train);
    let model = format!("{out}/model.safetensors");
    let predictions = ok(&["predict", &model, &directory.file("images"), "--json"]);
    let predictions: Value = serde_json::from_str(&predictions).unwrap();
    assert_eq!(predictions["predictions"].as_array().unwrap().len(), 100);
    let other = changed(&directory, &path, "other.toml", &[("[12, 12]", "[12, 13]")]);
    refused(
        &["train", &other, "--out", &directory.file("b"), "--ledger", &directory.file("b.db")],
        5,
        "another shape",
    );
}

#[test]
fn flags_override_the_configuration_and_the_ledger_knows() {
    let directory = Directory::new("flags");
    table(&directory.file("data.csv"), 400);
    let (config, ledger) = (config(&directory, 5, ""), directory.file("ledger.db"));
    ok(&["budget", "create", "toy", "--epsilon", "9", "--delta", "1e-5", "--ledger", &ledger]);
    for (out, epsilon) in [("a", "2"), ("b", "2"), ("c", "1")] {
        let out = directory.file(out);
        ok(&["train", &config, "--out", &out, "--ledger", &ledger, "--epsilon", epsilon, "-q"]);
    }
    let export = ok(&["ledger", "export", &ledger]);
    let hashes: Vec<&str> = export
        .split("plan_hash")
        .skip(1)
        .map(|rest| rest.trim_start_matches(|c: char| !c.is_ascii_hexdigit()).get(..64).unwrap())
        .collect();
    assert_eq!(hashes.len(), 3, "{export}");
    assert!(hashes[0] == hashes[1] && hashes[1] != hashes[2], "{hashes:?}");
    let spent: Value =
        serde_json::from_str(&ok(&["report", &directory.file("c"), "--json"])).unwrap();
    assert_eq!((&spent["runs"], &spent["epsilon"]), (&3.into(), &9.0.into()));
}

#[test]
fn a_plan_without_an_answer_exits_with_its_own_code() {
    let directory = Directory::new("no-answer");
    let config = config(&directory, 10, "");
    let text = std::fs::read_to_string(&config).unwrap();
    // No noise that is offered is large enough.
    let text = text.replace("epsilon = 2.0", "epsilon = 1e-12").replace("1e-5", "1e-30");
    std::fs::write(&config, text).unwrap();
    let words = ["train", &config, "--out", &directory.file("out")];
    refused(&words, 7, "no answer");
    let output = veilgrad(&[&words[..], &["--json"]].concat());
    assert_eq!(output.status.code(), Some(7));
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(answer["valid"] == false && answer["reason"].is_string(), "{answer}");
}
