//! Compares rounds on neighbouring datasets with the same noise. The contribution of any record to the released integers
//! has at most the certified sensitivity. It is the same alone and beside other records, for any number of threads and
//! tile size, and after any earlier round, including a failed one.
//!
//! One seed determines a pair: model, data, record unit, groups, metrics, sampler, and the neighbour.
//! `VEILGRAD_REPLAY_PAIRS=10000 cargo test -p veilgrad-nn --test replay -- --nocapture` compares that many;
//! `VEILGRAD_REPLAY_SEED` is the first seed.

#[path = "../common/mod.rs"]
mod common;

mod case;
mod data;
mod pair;
mod phase;
mod tally;

use case::Case;
use tally::Tally;

fn variable(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}

#[test]
fn neighbours_differ_by_at_most_the_sensitivity_in_every_group() {
    let (pairs, first) =
        (variable("VEILGRAD_REPLAY_PAIRS", 400), variable("VEILGRAD_REPLAY_SEED", 1));
    let mut tally = Tally::default();
    for seed in first..first + pairs {
        let case = Case::new(seed);
        if let Err(wrong) = pair::compare(&case, seed, &mut tally) {
            panic!("VEILGRAD_REPLAY_SEED={seed}: {wrong}; {:?}", case.kinds);
        }
    }
    eprintln!("{pairs} pairs from seed {first}\n{}", tally.text());
    // The bound is tight: records of every kind reach it.
    for (kind, largest) in tally.largest() {
        match kind {
            "record: unusable" => assert_eq!(largest, 0.0),
            _ => assert!(pairs < 400 || largest >= 0.99, "{kind}: {largest}"),
        }
    }
}

/// Rounds of preconditioning: of each, the largest contribution over all pairs.
#[test]
fn neighbours_differ_by_at_most_the_sensitivity_in_every_round_of_preconditioning() {
    let (pairs, first) =
        (variable("VEILGRAD_REPLAY_PAIRS", 400), variable("VEILGRAD_REPLAY_SEED", 1));
    let mut largest = [0.0f64; 3];
    for seed in first..first + pairs {
        if let Err(wrong) = phase::compare(seed, &mut largest) {
            panic!("VEILGRAD_REPLAY_SEED={seed}: {wrong}");
        }
    }
    eprintln!("{pairs} pairs from seed {first}: mean, first directions, directions {largest:?}");
    assert!(pairs < 400 || largest.iter().all(|ratio| *ratio >= 0.99), "{largest:?}");
}

/// Set for the process that [`records_that_cannot_be_read_print_nothing`] starts.
const CHILD: &str = "VEILGRAD_REPLAY_CHILD";

#[test]
fn records_that_cannot_be_read_print_nothing() {
    let name = "records_that_cannot_be_read_print_nothing";
    if std::env::var_os(CHILD).is_some() {
        let mut unusable = 0;
        for seed in (1..).take(200) {
            let case = Case::new(seed);
            pair::compare(&case, seed, &mut Tally::default()).unwrap();
            unusable += u32::from(case.is_unusable);
        }
        assert!(unusable > 20);
        return;
    }
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args([name, "--exact", "--nocapture"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    assert!(child.status.success());
    assert_eq!(String::from_utf8_lossy(&child.stderr), "");
    // Only the lines of the test harness.
    let stdout = String::from_utf8_lossy(&child.stdout);
    let lines: Vec<&str> = stdout.lines().filter(|line| !line.is_empty()).collect();
    assert_eq!(lines.len(), 3, "{stdout}");
}
