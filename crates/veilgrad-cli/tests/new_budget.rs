//! A new budget is never created silently, and results are never overwritten by another run.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use crate::common::{Directory, config, ok, refused, table, veilgrad};

/// The command in a directory, with its own home directory and no ledger named.
fn at_home(directory: &Directory, place: &str, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_veilgrad"))
        .args(arguments)
        .current_dir(directory.0.join(place))
        .env_remove("VEILGRAD_LEDGER")
        .env_remove("XDG_STATE_HOME")
        .env("HOME", directory.0.join("home"))
        .output()
        .unwrap()
}

fn check(output: &Output, code: i32, what: &str) -> String {
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{error}");
    assert!(error.contains(what), "{what}: {error}");
    error
}

/// Toy data in data/a.csv, and a configuration without a name for it.
fn unnamed(name: &str) -> Directory {
    let directory = Directory::new(&format!("new-{name}"));
    for place in ["data", "other", "home"] {
        std::fs::create_dir(directory.0.join(place)).unwrap();
    }
    table(&directory.file("data/a.csv"), 400);
    let path = config(&directory, 5, "");
    let text = std::fs::read_to_string(&path).unwrap();
    let whole = directory.file("data.csv");
    let lines =
        text.lines().filter(|line| !line.starts_with("test") && !line.starts_with("dataset"));
    let text: String = lines.map(|line| format!("{line}\n")).collect();
    std::fs::write(directory.file("data/config.toml"), text.replace(&whole, "a.csv")).unwrap();
    std::fs::write(directory.file("other/config.toml"), text.replace(&whole, "../data/a.csv"))
        .unwrap();
    std::fs::remove_file(path).unwrap();
    directory
}

#[test]
fn one_ledger_in_one_place_serves_every_directory_and_every_spelling_of_the_data() {
    let directory = unnamed("place");
    let first = at_home(&directory, "data", &["train", "config.toml", "-q"]);
    let said = check(&first, 0, "NEW BUDGET: dataset \"a.csv\", epsilon 2 at delta 1e-5");
    assert!(said.contains("unit example, adjacency add-remove, in the new ledger"), "{said}");
    let state = directory.0.join("home/.local/state/veilgrad");
    let mode = std::fs::metadata(&state).unwrap().permissions().mode() & 0o777;
    assert!(state.join("ledger.db").exists() && mode == 0o700, "{mode:o}");
    // New results, another directory, another spelling, a link: it is the same budget, and it is spent.
    std::os::unix::fs::symlink(directory.0.join("data/a.csv"), directory.0.join("other/b.csv"))
        .unwrap();
    let text = std::fs::read_to_string(directory.file("other/config.toml")).unwrap();
    let link = text.replace("../data/a.csv", "b.csv");
    std::fs::write(directory.file("other/link.toml"), link).unwrap();
    for (place, config) in [
        ("data", "config.toml"),
        ("other", "config.toml"),
        ("other", "link.toml"),
        (".", "other/config.toml"),
    ] {
        let words = ["train", config, "--out", "again", "-q"];
        let error = check(&at_home(&directory, place, &words), 3, "epsilon would be");
        assert!(!error.contains("NEW BUDGET"), "{error}");
    }
    // `budget` uses the same default path.
    let listed = at_home(&directory, ".", &["budget", "list"]);
    assert!(String::from_utf8_lossy(&listed.stdout).contains("a.csv"), "{listed:?}");
    // A ledger at the former default path is an error, not ignored.
    std::fs::write(directory.file("veilgrad-ledger.db"), "").unwrap();
    check(&at_home(&directory, ".", &["budget", "list"]), 2, "veilgrad-ledger.db");
}

#[test]
fn files_are_found_beside_the_configuration_and_elsewhere_with_a_note() {
    let directory = unnamed("paths");
    let train = |place: &str, config: &str, out: &str| {
        at_home(
            &directory,
            place,
            &["train", config, "--out", out, "--ledger", &format!("{out}.db")],
        )
    };
    let error = check(&train(".", "data/config.toml", "one"), 0, "");
    assert!(!error.contains("note:"), "{error}");
    std::fs::rename(directory.file("data/config.toml"), directory.file("home/config.toml"))
        .unwrap();
    check(&train("data", "../home/config.toml", "two"), 0, "note: a.csv was found in the working");
    check(&train(".", "home/config.toml", "three"), 5, "a.csv");
}

#[test]
fn a_budget_is_announced_by_whoever_begins_it_and_only_then() {
    let directory = Directory::new("new-announced");
    table(&directory.file("data.csv"), 400);
    let (config, ledger) = (config(&directory, 5, ""), directory.file("ledger.db"));
    let create = ["budget", "create", "toy", "--epsilon", "9", "--delta", "1e-5", "-q"];
    let created = veilgrad(&[&create[..], &["--ledger", &ledger]].concat());
    let error = check(&created, 0, "NEW BUDGET: dataset \"toy\", epsilon 9 at delta 1e-5");
    assert!(error.contains(&ledger), "{error}");
    let train = |ledger: &str, out: &str| {
        veilgrad(&["train", &config, "--out", &directory.file(out), "--ledger", ledger, "-q"])
    };
    assert!(!check(&train(&ledger, "a"), 0, "").contains("NEW BUDGET"));
    // A mistyped ledger is a new one.
    check(&train(&directory.file("leger.db"), "b"), 0, "NEW BUDGET");
}

#[test]
fn results_that_name_another_ledger_or_a_lost_one_stop_a_run() {
    let directory = Directory::new("new-results");
    table(&directory.file("data.csv"), 400);
    let (config, out) = (config(&directory, 5, ""), directory.file("out"));
    let (ledger, other) = (directory.file("ledger.db"), directory.file("other.db"));
    ok(&["train", &config, "--out", &out, "--ledger", &ledger, "-q"]);
    let model = || std::fs::read(format!("{out}/model.safetensors")).unwrap();
    let first = model();
    // Results are replaced only with --overwrite.
    refused(&["train", &config, "--out", &out, "--ledger", &ledger], 2, "pass --overwrite");
    // Their ledger is not replaced either: by a new one, or by another.
    let elsewhere = ["train", &config, "--out", &out, "--ledger", &other, "--overwrite"];
    refused(&elsewhere, 4, "was charged to ledger");
    assert!(!Path::new(&other).exists());
    ok(&["budget", "create", "x", "--epsilon", "1", "--delta", "1e-5", "--ledger", &other]);
    refused(&elsewhere, 4, "pass --new-budget");
    // A deleted ledger is noticed.
    for end in ["", ".anchor", "-wal", "-shm"] {
        let _ = std::fs::remove_file(format!("{ledger}{end}"));
    }
    refused(&["train", &config, "--out", &out, "--ledger", &ledger], 4, "is not there; restore");
    assert!(!Path::new(&ledger).exists());
    assert_eq!(model(), first);
    // Both flags together allow it.
    let forget = ["train", &config, "--out", &out, "--ledger", &ledger, "--new-budget"];
    refused(&forget, 2, "pass --overwrite");
    let error = check(&veilgrad(&[&forget[..], &["--overwrite", "-q"]].concat()), 0, "NEW BUDGET");
    assert!(error.contains("nothing that was spent before counts"), "{error}");
    assert_ne!(model(), first);
}
