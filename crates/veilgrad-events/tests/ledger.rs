//! Runs charge the ledger before they grant permits.

use veilgrad_events::{
    Adjacency, ClipNorm, Event, FixedBatch, LedgerError, LedgerKind, LedgerStore, MemoryLedger,
    NoiseStd, RecordUnit, Round, Rounds, Run, RunHeader, SampleRate, Sampling, SumQuery,
    TruncatedPoisson, check_ledger_store,
};

fn round(noise: f64) -> Round {
    let query = SumQuery::new("w", ClipNorm::new(1.0).unwrap(), NoiseStd::new(noise).unwrap());
    Round::new(Sampling::All {}, vec![query]).unwrap()
}

fn header() -> RunHeader {
    RunHeader::new(RecordUnit::Example, Adjacency::AddRemove)
}

#[test]
fn a_block_is_charged_before_its_permits_exist() {
    let mut ledger = MemoryLedger::new();
    let mut run = Run::open(&mut ledger, header()).unwrap();
    let permits = run.reserve(&round(1.0), 3).unwrap();
    assert_eq!(run.store().events().len(), 2);
    assert_eq!(permits.map(|p| p.number()).collect::<Vec<_>>(), [0, 1, 2]);
    let mut more = run.reserve(&round(1.0), 1).unwrap();
    assert_eq!(more.next().unwrap().number(), 3);
    assert!(more.next().is_none());
    run.close().unwrap();
    assert_eq!(ledger.rounds().len(), 1);
    assert_eq!(ledger.rounds()[0].count, 4);
    assert!(!ledger.is_insecure());
}

#[test]
fn the_budget_stops_the_charge_that_would_exceed_it_and_charges_nothing() {
    let mut ledger = MemoryLedger::with_round_limit(10);
    let mut run = Run::open(&mut ledger, header()).unwrap();
    assert_eq!(run.reserve(&round(1.0), 8).unwrap().count(), 8);
    assert!(matches!(run.reserve(&round(1.0), 3), Err(LedgerError::BudgetExhausted(_))));
    assert_eq!(run.reserve(&round(1.0), 2).unwrap().count(), 2);
    assert!(matches!(run.reserve(&round(1.0), 1), Err(LedgerError::BudgetExhausted(_))));
    assert_eq!(run.reserve(&round(1.0), 0).unwrap().count(), 0);
    assert_eq!(ledger.rounds()[0].count, 10);
}

/// Accepts some appends, fails once, then accepts again.
struct FailsOnce {
    inner: MemoryLedger,
    appends_until_failure: usize,
}

impl LedgerStore for FailsOnce {
    fn append(&mut self, events: &[Event]) -> Result<(), LedgerError> {
        if self.appends_until_failure == 0 {
            self.appends_until_failure = usize::MAX;
            return Err(LedgerError::Refused("disk on fire".to_owned()));
        }
        self.appends_until_failure -= 1;
        self.inner.append(events)
    }

    fn visit(&self, visitor: &mut dyn FnMut(&Event)) -> Result<(), LedgerError> {
        self.inner.visit(visitor)
    }
}

#[test]
fn a_failed_write_poisons_the_run_for_good() {
    let store = FailsOnce { inner: MemoryLedger::new(), appends_until_failure: 2 };
    let mut run = Run::open(store, header()).unwrap();
    assert!(run.reserve(&round(1.0), 1).is_ok());
    assert!(matches!(run.reserve(&round(1.0), 1), Err(LedgerError::Refused(_))));
    assert!(matches!(run.reserve(&round(1.0), 1), Err(LedgerError::Poisoned)));
    assert!(matches!(run.close(), Err(LedgerError::Poisoned)));
}

#[test]
fn a_permit_says_what_kind_of_ledger_was_charged_and_never_guesses_durable() {
    fn kind(store: impl LedgerStore) -> LedgerKind {
        let mut run = Run::open(store, header()).unwrap();
        run.reserve(&round(1.0), 1).unwrap().next().unwrap().charged_to()
    }
    assert_eq!(kind(MemoryLedger::new()), LedgerKind::Memory);
    assert_eq!(kind(&mut MemoryLedger::new()), LedgerKind::Memory);
    let without_kind = FailsOnce { inner: MemoryLedger::new(), appends_until_failure: 2 };
    assert_eq!(kind(without_kind), LedgerKind::Other);
}

#[test]
fn an_insecure_run_is_stamped_before_its_first_permit() {
    let mut ledger = MemoryLedger::new();
    let mut run = Run::open_insecure(&mut ledger, header(), "seeded noise").unwrap();
    assert!(run.reserve(&round(1.0), 1).unwrap().next().unwrap().is_insecure());
    assert!(ledger.is_insecure());
    assert!(matches!(ledger.events(), [Event::Open(_), Event::Insecure(_), Event::Reserve(_)]));
}

#[test]
fn events_round_trip_and_unknown_kinds_are_refused() {
    let mut ledger = MemoryLedger::new();
    let mut run = Run::open_insecure(&mut ledger, header(), "no noise").unwrap();
    let _ = run.reserve(&round(1.1), 2).unwrap();
    run.close().unwrap();
    for event in ledger.events() {
        let json = serde_json::to_string(event).unwrap();
        assert_eq!(&serde_json::from_str::<Event>(&json).unwrap(), event, "{json}");
        let unknown = json.replacen('{', r#"{"surprise":1,"#, 1);
        assert!(serde_json::from_str::<Event>(&unknown).is_err(), "{unknown}");
    }
    assert!(serde_json::from_str::<Event>(r#"{"event":"refund"}"#).is_err());
}

#[test]
fn the_memory_ledger_keeps_the_contract() {
    check_ledger_store(&mut MemoryLedger::new(), &round(1.0)).unwrap();
}

#[test]
fn the_number_of_records_stays_out_of_the_ledger_where_it_is_private() {
    let batch = FixedBatch::new(60_000, 256).unwrap();
    let rate = SampleRate::new(0.1).unwrap();
    let truncated = TruncatedPoisson::new(rate, 60_000, 256).unwrap();
    for sampling in
        [Sampling::Fixed(batch), Sampling::Shuffle(batch), Sampling::TruncatedPoisson(truncated)]
    {
        let round = Round::new(sampling, round(1.0).queries().to_vec()).unwrap();
        for (adjacency, private) in [
            (Adjacency::AddRemove, true),
            (Adjacency::ReplaceOne, false),
            (Adjacency::ZeroOut, false),
        ] {
            let header = RunHeader::new(RecordUnit::Example, adjacency);
            let mut run = Run::open(MemoryLedger::new(), header).unwrap();
            let refused = matches!(run.reserve(&round, 1), Err(LedgerError::PrivateCount));
            assert_eq!(refused, private);
            // The store was not called, so the run is not poisoned.
            assert!(run.close().is_ok());
        }
    }
}

#[test]
fn a_run_with_a_plan_charges_nothing_else_and_no_two_permits_are_alike() {
    let plan = vec![Rounds { count: 3, round: round(1.0) }];
    let mut run = Run::open(MemoryLedger::new(), header().with_plan(plan)).unwrap();
    assert_eq!(run.reserve(&round(2.0), 1).err(), Some(LedgerError::NotPlanned(0)));
    let mut ids: Vec<u64> = run.reserve(&round(1.0), 3).unwrap().map(|p| p.id()).collect();
    ids.dedup();
    assert_eq!(ids.len(), 3);
    assert_eq!(run.reserve(&round(1.0), 1).err(), Some(LedgerError::NotPlanned(3)));
}
