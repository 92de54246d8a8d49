//! End to end: a plan, a durable charge, a sample, a release, and a budget that stops the run.

use std::path::PathBuf;
use std::sync::Arc;

use veilgrad::accounting::Tightest;
use veilgrad::events::{Budget, LedgerError, Mode};
use veilgrad::ledger::{Ledger, Options};
use veilgrad::prelude::*;

struct Directory(PathBuf);

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Charges and releases until the budget is spent; returns how many rounds were released.
fn train(ledger: Ledger, plan: &RoundPlan, block: u64) -> u64 {
    let store = ledger.dataset("toy", Arc::new(Tightest)).unwrap();
    let header = RunHeader::new(RecordUnit::Example, Adjacency::AddRemove);
    let mut run = Run::open(store, header).unwrap();
    let mut sampler = PoissonSampler::new(SampleRate::new(0.1).unwrap());
    let round = plan.round(&sampler).unwrap();
    let mut released = 0;
    loop {
        // Without a permit there is no sample: a run over its budget does not touch the data.
        let permits = match run.reserve(&round, block) {
            Ok(permits) => permits,
            Err(LedgerError::BudgetExhausted(_)) => return released,
            Err(other) => panic!("{other}"),
        };
        for permit in permits {
            let noise = Noise::draw(plan).unwrap();
            let sample = Sample::draw(permit, &mut sampler, 100).unwrap();
            let mut sum = sample.begin(plan);
            for _id in sample.ids() {
                sum.add(&[&[0.5, -0.5]]).unwrap();
            }
            sum.release(sample, noise).unwrap();
            released += 1;
        }
    }
}

#[test]
fn a_durable_budget_stops_a_run_and_the_next_one() {
    let directory =
        Directory(std::env::temp_dir().join(format!("veilgrad-durable-{}", std::process::id())));
    std::fs::create_dir(&directory.0).unwrap();
    let path = directory.0.join("ledger.db");
    let mut ledger = Ledger::create(&path, Options::default()).unwrap();
    let budget = Budget {
        dataset: "toy".to_owned(),
        unit: RecordUnit::Example,
        adjacency: Adjacency::AddRemove,
        delta: Delta::new(1e-5).unwrap(),
        epsilon: Epsilon::new(2.0).unwrap(),
        mode: Mode::Planned,
        order: None,
    };
    ledger.create_budget(budget).unwrap();
    let structure = Structure::new([("weight", 2)]).unwrap();
    let group = Group::new("weight", ["weight"], ClipNorm::new(1.0).unwrap());
    let noise = Allocation::Proportional(NoiseMultiplier::new(2.0).unwrap());
    let plan = RoundPlan::new(structure, vec![group], noise).unwrap();
    let released = train(ledger, &plan, 8);
    assert!(released >= 8, "{released}");
    // Less than a block is left of the budget; the next run spends it round by round.
    let again = train(Ledger::open(&path, Options::default()).unwrap(), &plan, 1);
    assert!(again < 8, "{again}");
    let ledger = Ledger::read(&path, Options::default()).unwrap();
    let charged: u64 =
        ledger.state().datasets()["toy"].runs.values().map(|run| run.charged()).sum();
    assert_eq!(charged, released + again);
    // The charge has the mechanism's integer grid.
    let export = ledger.export().unwrap();
    assert!(export.contains("s_int"), "{export}");
    assert_eq!(train(Ledger::open(&path, Options::default()).unwrap(), &plan, 1), 0);
}
