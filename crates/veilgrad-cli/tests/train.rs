//! Training runs, as people and programs start them.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// A marker that is in the private data and must be nowhere else.
const MARKER: &str = "zanzibar";

struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Self {
        let name = format!("veilgrad-train-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn file(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A table of two classes that a line divides, in which words nobody declared occur.
fn table(path: &str, rows: u32) {
    let mut text = "who,x,y,word,class\n".to_owned();
    for i in 0..rows {
        let (x, y) = (f64::from(i * 37 % 101) / 101.0, f64::from(i * 53 % 97) / 97.0);
        let class = if x > y { "a" } else { "b" };
        text.push_str(&format!("{MARKER}{},{x},{y},{MARKER},{class}\n", i % 40));
    }
    std::fs::write(path, text).unwrap();
}

fn config(directory: &Directory, rounds: u64, more: &str) -> String {
    let text = format!(
        r#"
[data]
train = "{data}"
test = "{data}"
dataset = "toy"
label = "class"
classes = ["a", "b"]
records = 400
{more}
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

[train]
rounds = {rounds}
optimizer = {{ kind = "sgd", lr = 2.0, momentum = 0.5 }}
block = 4
"#,
        data = directory.file("data.csv")
    );
    let path = directory.file("config.toml");
    std::fs::write(&path, text).unwrap();
    path
}

fn veilgrad(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_veilgrad")).args(arguments).output().unwrap()
}

fn ok(arguments: &[&str]) -> String {
    let output = veilgrad(arguments);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {error}");
    String::from_utf8(output.stdout).unwrap()
}

fn refused(arguments: &[&str], code: i32, what: &str) -> String {
    let output = veilgrad(arguments);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {error}");
    assert!(error.contains(what), "{what}: {error}");
    error
}

fn files(directory: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    std::fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .map(|path| (path.clone(), std::fs::read(&path).unwrap()))
        .collect()
}

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
    std::fs::write(directory.file("data.csv"), format!("who,x,y,word,class\nq,{MARKER},1,w,a\n"))
        .unwrap();
    let error = run(&good, 5, "row 1, column x: is not a number");
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

fn what_name(what: &str) -> String {
    what.chars().filter(char::is_ascii_alphanumeric).collect()
}

#[test]
fn an_interrupted_run_goes_on_where_it_was_and_stays_within_the_budget() {
    let directory = Directory::new("interrupted");
    table(&directory.file("data.csv"), 400);
    let (config, out) = (config(&directory, 3000, ""), directory.file("out"));
    let mut child = Command::new(env!("CARGO_BIN_EXE_veilgrad"))
        .args(["train", &config, "--out", &out])
        .stderr(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    // When it has charged something, somebody presses Ctrl-C.
    let ledger = PathBuf::from(format!("{out}/ledger.db-wal"));
    while !std::fs::metadata(&ledger).is_ok_and(|metadata| metadata.len() > 40_000) {
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    let killed = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
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
