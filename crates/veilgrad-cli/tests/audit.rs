//! `veilgrad audit` of an installation and of a run.

use std::process::Command;

use crate::common::{Directory, command, config, ok, refused, table, veilgrad};
use serde_json::Value;

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

#[test]
fn an_installation_keeps_its_claims() {
    let found = json(&ok(&["audit", "--releases", "2000", "--json"]));
    assert_eq!((&found["schema"], &found["contradicted"]), (&1.into(), &false.into()));
    let checks = found["checks"].as_array().unwrap();
    assert_eq!(checks.len(), 4);
    for check in checks {
        let (bound, claimed) = (check["epsilon_lower"].as_f64(), check["claimed"].as_f64());
        // One bound in 10^8 exceeds its claim by more than a quarter.
        assert!(bound.unwrap() >= 0.0 && bound < claimed.map(|claimed| 1.25 * claimed), "{check}");
    }
    assert!(found["scope"].as_str().unwrap().contains("not the accountant"));
}

/// A generator that always returns the same bytes gives every release the same noise, which reveals the canaries.
const CONSTANT: &str = r"
#include <stddef.h>
#include <string.h>
#include <sys/types.h>
ssize_t getrandom(void *to, size_t length, unsigned flags) {
    (void)flags;
    memset(to, 42, length);
    return (ssize_t)length;
}
";

#[test]
fn an_installation_with_a_broken_generator_is_found_out() {
    let directory = Directory::new("audit-broken");
    let (source, library) = (directory.file("constant.c"), directory.file("constant.so"));
    std::fs::write(&source, CONSTANT).unwrap();
    let made = Command::new("cc").args(["-shared", "-fPIC", "-o", &library, &source]).status();
    assert!(made.unwrap().success());
    for form in [&["--json"][..], &[]] {
        let mut audit = command(&[&["audit", "--releases", "1000"], form].concat());
        let output = audit.env("LD_PRELOAD", &library).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(8), "{error}");
        assert!(error.contains("error: THE AUDIT CONTRADICTS THE CLAIM: "), "{error}");
        if form == ["--json"] {
            let found = json(&String::from_utf8_lossy(&output.stdout));
            assert_eq!(found["contradicted"], true);
        }
    }
}

#[test]
fn an_audit_of_a_run_trains_charges_and_says_what_it_tests() {
    let directory = Directory::new("audit-run");
    table(&directory.file("data.csv"), 400);
    let (config, out) = (config(&directory, 12, ""), directory.file("out"));
    let report = json(&ok(&["audit", &config, "--canaries", "300", "--out", &out, "--json"]));
    let audit = &report["audit"];
    assert_eq!((&report["schema"], &audit["canaries"]), (&1.into(), &300.into()));
    let number = |key: &str| audit[key].as_f64().unwrap_or_else(|| panic!("{key}: {audit}"));
    assert!(number("correct") <= number("guesses") && number("guesses") <= 300.0);
    // The claim is that of the plan, and a correct run hardly ever contradicts it.
    assert!(number("epsilon_lower") <= number("claimed") && number("claimed") <= 2.0);
    assert_eq!((number("confidence"), &audit["contradicted"]), (0.95, &false.into()));
    // The canary lane is part of the charged group, and of nothing else.
    let (parameters, numbers) = (&report["model"]["parameters"], &report["groups"][0]["dimension"]);
    assert_eq!(numbers.as_u64().unwrap(), parameters.as_u64().unwrap() + 300);
    // Stamped everywhere.
    let read = |name: &str| std::fs::read(format!("{out}/{name}")).unwrap();
    let text = |name: &str| String::from_utf8(read(name)).unwrap();
    let statement = text("statement.txt");
    assert!(statement.contains("\n\nAUDIT. ") && statement.contains("not the code that computes"));
    let page = text("report.html");
    assert!(page.contains("class=\"stamp\">AUDIT: ") && page.contains("What it does not test:"));
    let model = read("model.safetensors");
    let header = String::from_utf8_lossy(&model[..2000.min(model.len())]).into_owned();
    assert!(header.contains("\\\"audit\\\":true"), "{header}");
    ok(&["predict", &format!("{out}/model.safetensors"), &directory.file("test.csv")]);
    // The report computed from the ledger says the same.
    let again = json(&ok(&["report", &out, "--json"]));
    assert_eq!(&again["audit"], audit);
    assert!(ok(&["statement", &out]).contains("AUDIT. "));
    // It was charged like any run: nothing is left for another.
    let (ledger, other) = (format!("{out}/ledger.db"), directory.file("other"));
    let again = ["train", &config, "--out", &other, "--ledger", &ledger];
    refused(&again, 3, "the data was not opened");
}

#[test]
fn canaries_may_stand_in_the_configuration_and_a_stopped_audit_is_finished_with_them() {
    let directory = Directory::new("audit-finish");
    table(&directory.file("data.csv"), 400);
    let (config, out) = (config(&directory, 12, ""), directory.file("out"));
    let text = std::fs::read_to_string(&config).unwrap() + "\n[audit]\ncanaries = 50\n";
    std::fs::write(&config, text).unwrap();
    // A results directory in which the report cannot be written stops the run after its last checkpoint.
    std::fs::create_dir_all(format!("{out}/report.json/in the way")).unwrap();
    let first = veilgrad(&["train", &config, "--out", &out, "--overwrite"]);
    assert_eq!(first.status.code(), Some(1));
    std::fs::remove_dir_all(format!("{out}/report.json")).unwrap();
    ok(&["finish", &out]);
    let report = std::fs::read_to_string(format!("{out}/report.json")).unwrap();
    assert_eq!(json(&report)["audit"]["canaries"], 50);
}

/// Gives every canary of a checkpoint a score that tells whether it is in the data, as if its run had no noise.
fn reveal_canaries(checkpoint: &str) {
    let mut bytes = std::fs::read(checkpoint).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header = json(std::str::from_utf8(&bytes[8..8 + length]).unwrap());
    let place = |end: usize| header["canaries"]["data_offsets"][end].as_u64().unwrap() as usize;
    let lane = &mut bytes[8 + length..][place(0)..place(1)];
    for [is_in, score @ ..] in lane.as_chunks_mut::<9>().0 {
        *score = (if *is_in == 1 { 50.0f64 } else { -50.0 }).to_le_bytes();
    }
    std::fs::write(checkpoint, bytes).unwrap();
}

#[test]
fn a_run_whose_canaries_contradict_its_claim_ends_with_exit_code_8() {
    let directory = Directory::new("audit-contradicted");
    table(&directory.file("data.csv"), 400);
    let config = config(&directory, 12, "");
    for ending in ["finish", "resume"] {
        let out = directory.file(ending);
        let audit = ["audit", &config, "--canaries", "300", "--out", &out];
        // The report cannot be written, so that the checkpoint after the last round stays.
        std::fs::create_dir_all(format!("{out}/report.json/in the way")).unwrap();
        let stopped = veilgrad(&[&audit[..], &["--overwrite"]].concat());
        assert_eq!(stopped.status.code(), Some(1));
        std::fs::remove_dir_all(format!("{out}/report.json")).unwrap();
        reveal_canaries(&format!("{out}/checkpoint.safetensors"));
        let (finish, resume) = (["finish", &out], [&audit[..], &["--resume"]].concat());
        let last: &[&str] = if ending == "finish" { &finish } else { &resume };
        let output = veilgrad(&[last, &["--json"]].concat());
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(8), "{error}");
        assert!(error.contains("error: THE AUDIT CONTRADICTS THE CLAIM: epsilon is at least"));
        // With --json, the report is the one document.
        let printed = json(std::str::from_utf8(&output.stdout).unwrap());
        assert_eq!(printed["audit"]["contradicted"], true, "{printed}");
        // The results are there, and say so.
        let report = json(&std::fs::read_to_string(format!("{out}/report.json")).unwrap());
        assert_eq!(report["audit"]["contradicted"], true, "{report}");
        let page = std::fs::read_to_string(format!("{out}/report.html")).unwrap();
        assert!(page.contains("CONTRADICT"), "{page}");
    }
}

#[test]
fn options_of_a_run_need_its_configuration() {
    refused(&["audit", "--out", "somewhere"], 2, "CONFIG");
    refused(&["audit", "--canaries", "10"], 2, "CONFIG");
    refused(&["audit", "config.toml", "--releases", "2000"], 2, "--releases");
    refused(&["audit", "config.toml", "--canaries", "0"], 2, "--canaries");
}
