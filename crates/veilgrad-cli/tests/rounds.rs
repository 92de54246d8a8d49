//! Rounds files: mode, runs, and that an exported ledger has the epsilon of the ledger.

use std::path::Path;
use std::sync::Arc;

use crate::common::{Directory, ok, veilgrad};
use serde_json::Value;
use veilgrad_accounting::Tightest;
use veilgrad_events::{
    Adjacency, ClipNorm, FixedBatch, NoiseStd, RecordUnit, Round, Rounds, Run, RunHeader,
    SampleRate, Sampling, SumQuery,
};
use veilgrad_ledger::{Ledger, Options};

const LINE: &str = r#"{"rounds": 1000, "sampling": {"policy": "poisson", "rate": 0.01}, "queries": [{"group": "g", "clip": 1.0, "noise": 2.0}]}"#;

fn json(arguments: &[&str]) -> Value {
    serde_json::from_str(&ok(&[arguments, &["--json"]].concat())).unwrap()
}

fn round(sampling: Sampling, noise: f64) -> Round {
    let query = SumQuery::new("g", ClipNorm::new(1.0).unwrap(), NoiseStd::new(noise).unwrap());
    Round::new(sampling, vec![query]).unwrap()
}

/// A ledger with these runs, each with its rounds and whether it declares them as its plan.
fn ledger(directory: &Directory, adjacency: Adjacency, runs: &[(bool, Vec<Rounds>)]) -> String {
    let path = directory.file("ledger.db");
    let name = if adjacency == Adjacency::ZeroOut { "zero-out" } else { "add-remove" };
    ok(&[
        "budget",
        "create",
        "data",
        "--epsilon",
        "9",
        "--delta",
        "1e-5",
        "--adjacency",
        name,
        "--ledger",
        &path,
    ]);
    for (planned, rounds) in runs {
        let open = Ledger::open(Path::new(&path), Options::default()).unwrap();
        let store = open.dataset("data", Arc::new(Tightest)).unwrap();
        let header = RunHeader::new(RecordUnit::Example, adjacency);
        let header = if *planned { header.with_plan(rounds.clone()) } else { header };
        let mut run = Run::open(store, header).unwrap();
        drop(run.reserve_each(rounds).unwrap());
        run.close().unwrap();
    }
    path
}

#[test]
fn a_file_that_says_adaptive_needs_an_order_and_gets_no_tighter_number() {
    let directory = Directory::new("rounds-mode");
    let epsilon = |first: &str| {
        let file = directory.file("rounds.jsonl");
        std::fs::write(&file, format!("{first}\n{LINE}\n")).unwrap();
        json(&["account", &file, "--delta", "1e-5"])
    };
    let (silent, planned) = (epsilon(""), epsilon(r#"{"mode": "planned"}"#));
    assert_eq!((&silent["mode"], &silent["mode_assumed"]), (&"planned".into(), &true.into()));
    assert_eq!((&planned["mode"], &planned["mode_assumed"]), (&"planned".into(), &false.into()));
    assert_eq!(silent["epsilon"], planned["epsilon"]);
    let adaptive = epsilon(r#"{"mode": "adaptive", "order": 12.0}"#);
    assert_eq!((&adaptive["mode"], &adaptive["accountant"]), (&"adaptive".into(), &"rdp".into()));
    assert!(adaptive["epsilon"].as_f64().unwrap() > planned["epsilon"].as_f64().unwrap());
    // Numbers that need planned rounds are absent.
    assert!(adaptive["mu"].is_null());
    // Without an order that was fixed before the first round, nothing bounds adaptive rounds.
    let file = directory.file("rounds.jsonl");
    std::fs::write(&file, format!("{{\"mode\": \"adaptive\"}}\n{LINE}\n")).unwrap();
    let output = veilgrad(&["account", &file, "--delta", "1e-5", "--json"]);
    assert_eq!(output.status.code(), Some(7));
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(document["epsilon"].is_null() && document["valid"] == false);
    let said = ok(&["account", "--delta", "1e-5", &{
        std::fs::write(&file, format!("{LINE}\n")).unwrap();
        file
    }]);
    assert!(said.contains("planned, because the file does not say"), "{said}");
}

#[test]
fn an_exported_ledger_costs_what_the_ledger_costs() {
    let poisson = Sampling::Poisson { rate: SampleRate::new(0.01).unwrap() };
    let shuffle = Sampling::Shuffle(FixedBatch::new(4, 2).unwrap());
    let rounds_of = |sampling, noise, count| Rounds { count, round: round(sampling, noise) };
    let shuffled = [
        (true, vec![rounds_of(shuffle, 10.0, 1)]),
        (true, vec![rounds_of(shuffle, 10.0, 1), rounds_of(shuffle, 1.0, 2)]),
    ];
    let planned = [(true, vec![rounds_of(poisson, 2.0, 500)])];
    let unplanned =
        [(true, vec![rounds_of(poisson, 2.0, 500)]), (false, vec![rounds_of(poisson, 4.0, 50)])];
    for (adjacency, runs, mode) in [
        (Adjacency::ZeroOut, shuffled.as_slice(), "planned"),
        (Adjacency::AddRemove, planned.as_slice(), "planned"),
        (Adjacency::AddRemove, unplanned.as_slice(), "adaptive"),
    ] {
        let directory = Directory::new("rounds-export");
        let ledger = ledger(&directory, adjacency, runs);
        let file = directory.file("rounds.jsonl");
        std::fs::write(&file, ok(&["ledger", "export", &ledger, "--format", "rounds"])).unwrap();
        let name = if adjacency == Adjacency::ZeroOut { "zero-out" } else { "add-remove" };
        let of_file = json(&["account", &file, "--delta", "1e-5", "--adjacency", name]);
        let of_ledger = json(&["account", &ledger, "--delta", "1e-5"]);
        assert_eq!(of_file["epsilon"], of_ledger["epsilon"]);
        assert_eq!((&of_file["mode"], &of_ledger["mode"]), (&mode.into(), &mode.into()));
        if adjacency == Adjacency::ZeroOut {
            // A record may be in three of the four rounds: 1/z^2 = 2.01.
            assert!(of_file["epsilon"].as_f64().unwrap() >= 6.592_505);
        }
    }
}
