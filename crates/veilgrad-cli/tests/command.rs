//! `plan` and `account`, as people and programs call them.

use std::io::Write;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

fn veilgrad(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_veilgrad")).args(arguments).output().unwrap()
}

fn json(arguments: &[&str]) -> Value {
    let output = veilgrad(&[arguments, &["--json"]].concat());
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {error}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn account(lines: &str, arguments: &[&str]) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_veilgrad"))
        .args([&["account", "-"], arguments].concat())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is not a number"))
}

const MNIST: [&str; 8] =
    ["plan", "--rate", "0.004266666666666667", "--steps", "14040", "--delta", "1e-5", "-q"];

fn mnist<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&MNIST, more].concat()
}

#[test]
fn a_plan_has_all_keys_that_programs_read() {
    let found = json(&mnist(&["--noise-multiplier", "1.1"]));
    let epsilon = number(&found["epsilon"]);
    assert!((2.379_554_518..2.379_56).contains(&epsilon), "{found}");
    assert!(number(&found["epsilon_lower"]) <= epsilon);
    assert_eq!(found["schema"], 1);
    assert_eq!(found["delta"], 1e-5);
    assert_eq!(found["noise_multiplier"], 1.1);
    assert_eq!(found["rate"], 0.004266666666666667);
    assert_eq!(found["steps"], 14040);
    assert_eq!(found["accountant"], "pld");
    assert_eq!(found["adjacency"], "add-remove");
    assert_eq!(found["sampling"], "poisson");
    assert_eq!(found["valid"], true);
    assert!(found.get("reason").is_none());
    assert!(found["mu"].is_null(), "{found}");
    assert_eq!(found["attacker"]["advantage"], found["advantage"]);
    assert!((0.2..0.25).contains(&number(&found["advantage"])), "{found}");
    assert!((0.03..0.06).contains(&number(&found["attacker"]["tpr_at_fpr_1e-2"])), "{found}");
    let rdp = json(&mnist(&["--noise-multiplier", "1.1", "--accountant", "rdp"]));
    assert_eq!(rdp["accountant"], "rdp");
    assert_eq!(rdp["epsilon_lower"], Value::Null);
    assert!((2.59..2.6).contains(&number(&rdp["epsilon"])), "{rdp}");
}

#[test]
fn every_parameter_can_be_solved_and_the_answer_keeps_the_budget() {
    let budget = ["--epsilon", "2", "--delta", "1e-5"];
    let (rate, steps) = (["--rate", "0.01"], ["--steps", "5000"]);
    let noise = ["--noise-multiplier", "1.6"];
    let plan = |parts: &[&[&str]]| json(&[&["plan"], parts.concat().as_slice()].concat());
    let solved = [
        ("noise_multiplier", plan(&[&budget, &rate, &steps])),
        ("rate", plan(&[&budget, &steps, &noise])),
        ("steps", plan(&[&budget, &rate, &noise])),
    ];
    for (what, found) in &solved {
        assert_eq!(found["solved"], *what, "{found}");
        let epsilon = number(&found["epsilon"]);
        assert!(epsilon <= 2.0 && epsilon > 1.99, "{found}");
        // The same question in the other direction.
        let text = |key: &str| found[key].to_string();
        let again = json(&[
            "plan",
            "--rate",
            &text("rate"),
            "--steps",
            &text("steps"),
            "--noise-multiplier",
            &text("noise_multiplier"),
            "--delta",
            "1e-5",
        ]);
        assert!(number(&again["epsilon"]) <= 2.0, "{found} {again}");
    }
    assert!((number(&solved[0].1["noise_multiplier"]) - 1.590_138_79).abs() < 1e-5);
    // `--solve` wins over a given value.
    let named = plan(&[&budget, &rate, &steps, &noise, &["--solve", "noise"]]);
    assert_eq!(named["noise_multiplier"], solved[0].1["noise_multiplier"]);
}

#[test]
fn batches_and_epochs_are_rates_and_rounds() {
    let found = json(&[
        "plan",
        "--records",
        "60000",
        "--batch",
        "256",
        "--epochs",
        "60",
        "--delta",
        "1e-5",
        "--epsilon",
        "3",
    ]);
    assert_eq!(found["rate"], 256.0 / 60000.0);
    // 60 epochs of 234.375 rounds are 14062.5.
    assert_eq!(found["steps"], 14063);
    let advice = found["batch_advice"].as_array().unwrap();
    assert_eq!(advice.len(), 5, "{found}");
    let ratios: Vec<f64> = advice.iter().map(|row| number(&row["noise_per_record"])).collect();
    assert!(ratios.windows(2).all(|pair| pair[0] > pair[1]), "{found}");
    let own = advice.iter().find(|row| row["batch"] == 256.0).unwrap();
    assert_eq!(own["noise_multiplier"], found["noise_multiplier"]);
}

#[test]
fn policies_and_adjacencies_are_accounted_for_what_they_are() {
    let epsilon = |sampling: &str, adjacency: &str| {
        json(&[
            "plan",
            "--records",
            "1000",
            "--batch",
            "100",
            "--steps",
            "100",
            "--delta",
            "1e-5",
            "--noise-multiplier",
            "4",
            "--sampling",
            sampling,
            "--adjacency",
            adjacency,
        ])
    };
    let epsilon_of =
        |sampling: &str, adjacency: &str| number(&epsilon(sampling, adjacency)["epsilon"]);
    assert!(epsilon_of("poisson", "replace-one") > epsilon_of("poisson", "add-remove"));
    assert_eq!(epsilon_of("poisson", "zero-out"), epsilon_of("poisson", "add-remove"));
    assert!(epsilon_of("fixed", "add-remove") > epsilon_of("poisson", "add-remove"));
    assert!(epsilon_of("fixed", "replace-one") > epsilon_of("fixed", "add-remove"));
    // Ten epochs without amplification: a Gaussian with mu sqrt(10)/4.
    let shuffled = epsilon("shuffle", "zero-out");
    assert!((number(&shuffled["mu"]) - 10f64.sqrt() / 4.0).abs() < 1e-9, "{shuffled}");
    assert!(number(&shuffled["epsilon"]) > epsilon_of("poisson", "zero-out"));
}

/// Checks the exit code of a missing answer, and returns the JSON document with the reason.
fn no_answer(output: &Output, what: &str) -> Value {
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(7), "{error}");
    assert!(error.contains(what), "{what}: {error}");
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&found["epsilon"], &found["valid"]), (&Value::Null, &false.into()), "{found}");
    assert!(found["reason"].as_str().unwrap().contains(what), "{what}: {found}");
    found
}

#[test]
fn what_has_no_answer_has_exit_code_7_and_says_why_to_people_and_programs() {
    let plan = |more: &[&str]| {
        let budget = ["plan", "--records", "1000", "--batch", "100", "--delta", "1e-5"];
        veilgrad(&[&budget, more].concat())
    };
    // Events that no accountant supports.
    let shuffle = ["--steps", "100", "--noise-multiplier", "4", "--sampling", "shuffle"];
    no_answer(&plan(&[&shuffle[..], &["--json"]].concat()), "zero-out");
    let table = plan(&shuffle);
    assert_eq!(table.status.code(), Some(7));
    let table = String::from_utf8(table.stdout).unwrap();
    assert!(table.contains("epsilon           unknown") && table.contains("zero-out"), "{table}");
    // A target that cannot be reached.
    let tiny = ["plan", "--rate", "1", "--steps", "100", "--delta", "1e-300", "--epsilon", "1e-9"];
    no_answer(&veilgrad(&[&tiny[..], &["--json"]].concat()), "no noise multiplier");
    // Not one round fits: no plan of 0 rounds is valid.
    let none = ["--noise-multiplier", "0.3", "--epsilon", "0.1", "--json"];
    let found = no_answer(&plan(&none), "not one round fits");
    assert_eq!(found["steps"], Value::Null, "{found}");
    let reason = found["reason"].as_str().unwrap();
    assert!(reason.contains("0.1 is allowed"), "{reason}");
    let shuffled = LINES.replace(
        r#"{"policy": "poisson", "rate": 0.004266666666666667}"#,
        r#"{"policy": "shuffle", "records": 1000, "batch": 20}"#,
    );
    no_answer(&account(&shuffled, &["--delta", "1e-5", "--json"]), "zero-out");
    assert_eq!(account(&shuffled, &["--delta", "1e-5"]).status.code(), Some(7));
}

#[test]
fn no_target_is_an_epsilon_of_0() {
    let plan = ["plan", "--rate", "0.1", "--steps", "10", "--delta", "1e-5", "--epsilon", "0"];
    let output = veilgrad(&plan);
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(error.contains("epsilon 0 is not greater than 0"), "{error}");
    // But delta at epsilon 0 is well defined: the attacker's advantage.
    assert_eq!(account(LINES, &["--epsilon", "0"]).status.code(), Some(0));
}

#[test]
fn noise_to_use_is_shown_rounded_up_and_noise_that_was_used_rounded_down() {
    let plan = ["plan", "--rate", "0.01", "--steps", "5000", "--delta", "1e-5", "--epsilon", "2"];
    let exact = number(&json(&plan)["noise_multiplier"]);
    let row = |table: &str| -> f64 {
        let line = table.lines().find(|line| line.starts_with("noise multiplier")).unwrap();
        line.split_whitespace().nth(2).unwrap().parse().unwrap()
    };
    let solved = row(&String::from_utf8(veilgrad(&plan).stdout).unwrap());
    assert!(solved > exact && solved < exact * 1.0001, "{solved} {exact}");
    // The noise that is shown keeps the target.
    let z = solved.to_string();
    let again = ["plan", "--rate", "0.01", "--steps", "5000", "--delta", "1e-5"];
    let again = json(&[&again[..], &["--noise-multiplier", &z]].concat());
    assert!(number(&again["epsilon"]) <= 2.0, "{again}");
    let lines = LINES.replace("1.1", "1.100066666");
    let output = account(&lines, &["--delta", "1e-5"]);
    assert_eq!(row(&String::from_utf8(output.stdout).unwrap()), 1.1);
    // JSON has the exact value.
    let output = account(&lines, &["--delta", "1e-5", "--json"]);
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(number(&found["noise_multiplier"]), 1.100_066_666);
}

#[test]
fn nothing_sampled_and_no_rounds_cost_nothing() {
    for arguments in [["--rate", "0", "--steps", "10"], ["--rate", "0.1", "--steps", "0"]] {
        let more = ["--noise-multiplier", "1", "--delta", "1e-5"];
        let found = json(&[&["plan"], &arguments[..], &more].concat());
        assert_eq!((&found["epsilon"], &found["valid"]), (&0.0.into(), &true.into()), "{found}");
    }
}

#[test]
fn nonsense_is_a_usage_error_that_names_the_value() {
    for (arguments, what) in [
        (vec!["--rate", "1.5", "--steps", "10", "--epsilon", "1"], "1.5"),
        (vec!["--rate", "NaN", "--steps", "10", "--epsilon", "1"], "NaN"),
        (vec!["--rate", "0.1", "--steps", "-1", "--epsilon", "1"], "-1"),
        (vec!["--rate", "0.1", "--steps", "10", "--epsilon", "-2"], "epsilon -2 is not"),
        (vec!["--rate", "-1", "--steps", "10", "--epsilon", "1"], "rate -1 is not"),
        (vec!["--rate", "0.1", "--steps", "10", "--noise-multiplier", "0"], "0"),
        (vec!["--rate", "0.1", "--steps", "10"], "--epsilon"),
        (vec!["--rate", "0.1", "--epochs", "inf", "--epsilon", "1"], "inf"),
        (vec!["--records", "10", "--batch", "11", "--steps", "1", "--epsilon", "1"], "11"),
        (
            vec!["--rate", "0.1", "--steps", "5", "--epsilon", "1", "--noise-multiplier", "1"],
            "--solve",
        ),
        (
            vec!["--rate", "0.1", "--steps", "5", "--solve", "rate", "--epsilon", "1"],
            "--noise-multiplier",
        ),
    ] {
        let output = veilgrad(&[&["plan", "--delta", "1e-5"], &arguments[..]].concat());
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {error}");
        assert!(error.contains(what), "{arguments:?}: {error}");
        assert!(output.stdout.is_empty());
    }
    assert_eq!(veilgrad(&["plan", "--delta", "1"]).status.code(), Some(2));
}

const LINES: &str = r#"{"rounds": 14040, "sampling": {"policy": "poisson", "rate": 0.004266666666666667}, "queries": [{"group": "weights", "clip": 1.0, "noise": 1.1}]}"#;

#[test]
fn rounds_are_accounted_from_a_file_and_from_stdin() {
    let output = account(LINES, &["--delta", "1e-5", "--json"]);
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!((2.379_554_518..2.379_56).contains(&number(&found["epsilon"])), "{found}");
    assert_eq!((&found["steps"], &found["sampling"]), (&14040.into(), &"poisson".into()));
    let path = std::env::temp_dir().join(format!("veilgrad-rounds-{}.jsonl", std::process::id()));
    std::fs::write(&path, LINES).unwrap();
    let from_file = json(&["account", path.to_str().unwrap(), "--delta", "1e-5"]);
    std::fs::remove_file(&path).unwrap();
    assert_eq!(from_file, found);
    // And back: delta at that epsilon.
    let epsilon = found["epsilon"].to_string();
    let output = account(LINES, &["--epsilon", &epsilon, "--json"]);
    let back: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!((number(&back["delta"]) / 1e-5 - 1.0).abs() < 1e-6, "{back}");
}

/// The three lines of the documented format: policies are composed.
#[test]
fn mixtures_of_policies_are_composed() {
    let lines = r#"{"rounds": 100, "sampling": {"policy": "poisson", "rate": 0.01}, "queries": [{"group": "weights", "clip": 1.0, "noise": 1.1}]}

{"rounds": 10, "sampling": {"policy": "fixed", "records": 60000, "batch": 256}, "queries": [{"group": "conv", "clip": 1.0, "noise": 2.0}, {"group": "accuracy", "clip": 0.5, "noise": 3.0}]}
{"rounds": 1, "sampling": {"policy": "all"}, "queries": [{"group": "count", "clip": 1.0, "noise": 8.0}]}
"#;
    for adjacency in ["add-remove", "zero-out", "replace-one"] {
        let output = account(lines, &["--delta", "1e-5", "--adjacency", adjacency, "--json"]);
        let found: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(found["valid"], true, "{found}");
        assert_eq!((&found["sampling"], &found["steps"]), (&"mixed".into(), &111.into()));
        assert_eq!((&found["rate"], &found["noise_multiplier"]), (&Value::Null, &Value::Null));
        // More than its last line alone, which costs 0.43.
        assert!(number(&found["epsilon"]) > 0.43, "{found}");
    }
}

#[test]
fn files_that_are_no_rounds_are_refused_with_their_line() {
    for (lines, what) in [
        ("{\"rounds\": 1}", "line 1"),
        (&format!("{LINES}\nnonsense"), "line 2"),
        (&LINES.replace("poisson", "magic"), "magic"),
        (&LINES.replace("1.1", "-1.1"), "-1.1"),
    ] {
        let output = account(lines, &["--delta", "1e-5"]);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(5), "{error}");
        assert!(error.contains(what), "{error}");
        assert!(output.stdout.is_empty());
    }
    assert_eq!(veilgrad(&["account", "/no/such/file", "--delta", "1e-5"]).status.code(), Some(1));
    assert_eq!(account("SQLite format 3\0", &["--delta", "1e-5"]).status.code(), Some(4));
    let empty = account("", &["--delta", "1e-5", "--json"]);
    let found: Value = serde_json::from_slice(&empty.stdout).unwrap();
    assert_eq!((&found["epsilon"], &found["sampling"]), (&0.0.into(), &"none".into()));
}

/// The table of docs/accounting.md.
#[test]
fn the_tutorial_rows_are_worth_less_today_than_when_they_were_published() {
    for (name, published, rdp, pld) in [
        ("strict", 1.19, 0.954, 0.864),
        ("middle", 3.01, 2.595, 2.380),
        ("loose", 7.10, 6.313, 5.636),
    ] {
        let file =
            format!("{}/../../examples/rounds/mnist-{name}.jsonl", env!("CARGO_MANIFEST_DIR"));
        let epsilon_by = |accountant: &str| {
            let found = json(&["account", &file, "--delta", "1e-5", "--accountant", accountant]);
            (number(&found["epsilon"]) * 1000.0).ceil() / 1000.0
        };
        assert_eq!((epsilon_by("rdp"), epsilon_by("pld")), (rdp, pld), "{name}");
        assert!(pld < published);
    }
}

/// A fixed-size batch is a whole number, and the printed batch is the one that was accounted for.
#[test]
fn fixed_batches_are_whole() {
    let fixed = ["plan", "--records", "1000", "--delta", "1e-5", "--sampling", "fixed"];
    let plan = |more: &[&'static str]| [&fixed, more].concat();
    let given = plan(&["--rate", "0.0155", "--steps", "100", "--noise-multiplier", "2"]);
    let output = veilgrad(&given);
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(error.contains("15.5"), "{error}");
    // Solving for the rate with epochs: as many rounds as the whole batch needs.
    let found = json(&plan(&[
        "--epochs",
        "10",
        "--noise-multiplier",
        "2",
        "--epsilon",
        "3",
        "--adjacency",
        "replace-one",
    ]));
    let (batch, steps) = (number(&found["batch"]), number(&found["steps"]));
    assert_eq!(batch, batch.round(), "{found}");
    assert_eq!(steps, (10.0 * 1000.0 / batch).ceil(), "{found}");
    assert!(number(&found["epsilon"]) <= 3.0, "{found}");
}

/// No Gaussian trade-off curve dominates sampled rounds at every delta unless it ignores sampling.
#[test]
fn mu_is_null_for_sampled_rounds_and_exact_for_all_others() {
    for arguments in
        [["--epsilon", "0"], ["--epsilon", "0.01"], ["--delta", "0.3"], ["--delta", "1e-5"]]
    {
        let output = account(LINES, &[&arguments[..], &["--json"]].concat());
        let found: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(found["mu"].is_null(), "{arguments:?} {found}");
        assert!(number(&found["attacker"]["advantage"]) > 0.0, "{arguments:?} {found}");
    }
    let all = ["plan", "--sampling", "all", "--steps", "4", "--noise-multiplier", "2"];
    let found = json(&[&all[..], &["--delta", "1e-5"]].concat());
    assert!((1.0..1.0 + 1e-12).contains(&number(&found["mu"])), "{found}");
}

#[test]
fn a_full_disk_behind_stdout_is_an_error() {
    let Ok(full) = std::fs::OpenOptions::new().write(true).open("/dev/full") else { return };
    let status = Command::new(env!("CARGO_BIN_EXE_veilgrad"))
        .args(mnist(&["--noise-multiplier", "1.1"]))
        .stdout(full)
        .stderr(Stdio::null())
        .status()
        .unwrap();
    assert_eq!(status.code(), Some(1));
}

#[test]
fn people_get_a_table_and_curves() {
    let output = veilgrad(&mnist(&["--noise-multiplier", "1.1"]));
    let table = String::from_utf8(output.stdout).unwrap();
    // Rounded up, never to 2.3795.
    assert!(table.contains("epsilon           2.3796"), "{table}");
    let path = std::env::temp_dir().join(format!("veilgrad-plan-{}.html", std::process::id()));
    let file = path.to_str().unwrap();
    let output = veilgrad(&mnist(&["--epsilon", "2", "--html", file]));
    assert_eq!(output.status.code(), Some(0));
    let page = std::fs::read_to_string(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert_eq!(page.matches("<svg").count(), 3);
    assert!(!page.contains("http") && !page.contains("NaN"), "{page}");
    let path = path.with_extension("svg");
    let output = veilgrad(&mnist(&["--epsilon", "2", "--svg", path.to_str().unwrap()]));
    assert_eq!(output.status.code(), Some(0));
    let picture = std::fs::read_to_string(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert_eq!(picture.matches("<svg").count(), 4);
    assert_eq!(picture.matches("</svg>").count(), 4);
    assert!(!picture.contains("NaN"), "{picture}");
}

/// Without noise a sampled record is revealed: delta is the probability of sampling it, at every epsilon.
#[test]
fn rounds_with_hardly_any_noise_are_answered() {
    for noise in ["1e-17", "1e-308"] {
        let lines = LINES.replace("1.1", noise).replace("14040", "3");
        let output = account(&lines, &["--epsilon", "2", "--json"]);
        let found: Value = serde_json::from_slice(&output.stdout).unwrap();
        let exact = 1.0 - (1.0f64 - 0.004266666666666667).powi(3);
        let delta = number(&found["delta"]);
        assert!(delta >= exact * (1.0 - 1e-12) && delta <= exact * (1.0 + 1e-9), "{found}");
    }
}

#[test]
fn a_plan_with_huge_noise_finds_its_rounds() {
    let plan = ["plan", "--rate", "0.01", "--noise-multiplier", "1e6", "--epsilon", "2"];
    let found = json(&[&plan[..], &["--delta", "1e-5"]].concat());
    assert!(number(&found["steps"]) > 1e15, "{found}");
    assert!(number(&found["epsilon"]) <= 2.0, "{found}");
}
