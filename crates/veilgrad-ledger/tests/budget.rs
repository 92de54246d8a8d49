//! Budgets, plans, and the work of their checks.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::common::{Directory, budget, charged, create, header, open, round, run};
use veilgrad_accounting::{Composition, Tightest, rdp};
use veilgrad_events::{
    Adjacency, Budget, Delta, Epsilon, Event, FixedBatch, Folded, LedgerError, LedgerStore, Meter,
    Mode, Pricing, RecordUnit, Round, Rounds, Run, RunHeader, RunRounds, Sampling,
};
use veilgrad_ledger::{DatasetLedger, Ledger, Options};

#[test]
fn a_store_shows_the_events_of_its_own_dataset_alone() {
    let directory = Directory::new();
    let mut ledger = create(&directory.ledger(), 8.0);
    ledger.create_budget(budget("other", 8.0, Mode::Planned)).unwrap();
    drop(ledger);
    for (name, count) in [("data", 3), ("other", 5)] {
        let store = open(&directory).unwrap().dataset(name, Arc::new(Tightest)).unwrap();
        Run::open(store, header()).unwrap().reserve(&round(0.01, 1.0), count).unwrap();
    }
    for (name, count) in [("data", 3), ("other", 5)] {
        let store = open(&directory).unwrap().dataset(name, Arc::new(Tightest)).unwrap();
        let mut charged = 0;
        let add = &mut |event: &Event| {
            if let Event::Reserve(reservation) = event {
                charged += reservation.charge.count;
            }
        };
        store.visit(add).unwrap();
        assert_eq!(charged, count, "{name}");
    }
}

#[test]
fn a_budget_is_kept_to_the_last_round_and_not_beyond() {
    let directory = Directory::new();
    let step = round(0.05, 2.0);
    // No plan was declared, so the filter at the order of the budget decides.
    let Budget { epsilon, delta, .. } = budget("data", 2.0, Mode::Planned);
    let order = Tightest.order(epsilon, delta).unwrap();
    let cost = |count: u64| {
        let rounds = [Rounds { count, round: step.clone() }];
        let composition = Composition::fold(&rounds, Adjacency::AddRemove).unwrap();
        rdp::epsilon_on_orders(&composition, delta, &[order]).unwrap().epsilon.get()
    };
    let mut run = run(create(&directory.ledger(), 2.0));
    let mut granted = 0;
    loop {
        match run.reserve(&step, 1) {
            Ok(_) => granted += 1,
            Err(LedgerError::BudgetExhausted(why)) => {
                assert!(why.contains("epsilon would be") && why.contains("2 is allowed"), "{why}");
                break;
            }
            Err(other) => panic!("{other}"),
        }
    }
    assert!(cost(granted) <= 2.0 && cost(granted + 1) > 2.0, "{granted}");
    // The refusal changed nothing, and cheaper rounds still fit.
    assert_eq!(charged(run.store().ledger()), granted);
    assert!(run.reserve(&round(0.0001, 50.0), 1).is_ok());
    assert_eq!(
        charged(&Ledger::read(directory.ledger(), Options::default()).unwrap()),
        granted + 1
    );
}

#[test]
fn all_runs_of_a_dataset_share_its_budget() {
    let directory = Directory::new();
    let mut first = run(create(&directory.ledger(), 2.0));
    while first.reserve(&round(0.05, 2.0), 10).is_ok() {}
    drop(first);
    let mut second = run(open(&directory).unwrap());
    let refused = second.reserve(&round(0.05, 2.0), 10);
    assert!(matches!(refused, Err(LedgerError::BudgetExhausted(_))));
    // Another dataset has its own budget.
    let mut ledger = open(&directory).unwrap();
    ledger.create_budget(budget("other", 2.0, Mode::Planned)).unwrap();
    let other = ledger.dataset("other", Arc::new(Tightest)).unwrap();
    assert!(Run::open(other, header()).unwrap().reserve(&round(0.05, 2.0), 10).is_ok());
}

#[test]
fn adaptive_budgets_are_kept_by_a_filter() {
    let directory = Directory::new();
    let mut ledger = Ledger::create(directory.ledger(), Options::default()).unwrap();
    ledger.create_budget(budget("data", 3.0, Mode::Adaptive)).unwrap();
    let store = ledger.dataset("data", Arc::new(Tightest)).unwrap();
    let mut adaptive = header();
    adaptive.mode = Mode::Adaptive;
    let mut run = Run::open(store, adaptive).unwrap();
    // Sample rates and noise that change as if they depended on outputs.
    let mut granted = 0;
    while let Ok(permits) = run.reserve(&round(0.01, 1.0 + f64::from(granted % 7) * 0.1), 10) {
        granted += 1;
        drop(permits);
        assert!(granted < 10_000);
    }
    assert!(granted > 10, "{granted}");
}

#[test]
fn runs_without_a_plan_are_kept_by_a_filter_at_the_order_of_the_new_budget() {
    let directory = Directory::new();
    let terms = budget("data", 3.0, Mode::Planned);
    let order = Tightest.order(terms.epsilon, terms.delta).unwrap();
    drop(create(&directory.ledger(), 3.0));
    // Noise that falls as if it depended on outputs; the mode in the header makes no difference.
    let charge_all = |mode: Mode| {
        let mut header = header();
        header.mode = mode;
        let store = open(&directory).unwrap().dataset("data", Arc::new(Tightest)).unwrap();
        let mut run = Run::open(store, header).unwrap();
        let mut z = 5.0;
        while z > 0.5 && run.reserve(&round(0.01, z), 10).is_ok() {
            z *= 0.97;
        }
    };
    let price_at_order = || {
        let ledger = open(&directory).unwrap();
        let dataset = &ledger.state().datasets()["data"];
        let rounds = dataset.charges().into_iter().flat_map(|run| run.rounds.to_vec());
        let composition = Composition::of(rounds, Adjacency::AddRemove).unwrap();
        let price = dataset.price(&Tightest).unwrap();
        let at_order = rdp::epsilon_on_orders(&composition, terms.delta, &[order]).unwrap();
        assert!((price - at_order.epsilon.get()).abs() < 1e-9, "{price} {at_order:?}");
        price
    };
    charge_all(Mode::Planned);
    assert!(price_at_order() > 1.0 && price_at_order() <= 3.0);
    charge_all(Mode::Adaptive);
    assert!(price_at_order() > 2.5 && price_at_order() <= 3.0);
    // Lowering the budget later does not change the order.
    open(&directory).unwrap().tighten("data", Epsilon::new(0.5).unwrap()).unwrap();
    assert!(price_at_order() > 2.5);
}

#[test]
fn shuffled_epochs_count_where_the_noise_changes_inside_of_them() {
    let directory = Directory::new();
    let mut ledger = Ledger::create(directory.ledger(), Options::default()).unwrap();
    let terms = Budget { adjacency: Adjacency::ZeroOut, ..budget("data", 6.0, Mode::Planned) };
    ledger.create_budget(terms).unwrap();
    let shuffled = |z: f64| {
        let batch = FixedBatch::new(20, 2).unwrap();
        Round::new(Sampling::Shuffle(batch), round(0.1, z).queries().to_vec()).unwrap()
    };
    let mut planned = RunHeader::new(RecordUnit::Example, Adjacency::ZeroOut);
    planned.plan = Some(vec![
        Rounds { count: 5, round: shuffled(10.0) },
        Rounds { count: 10, round: shuffled(1.0) },
    ]);
    let open = |ledger: Ledger, header: &RunHeader| {
        Run::open(ledger.dataset("data", Arc::new(Tightest)).unwrap(), header.clone())
    };
    // A record may be in a round at z 1 of both epochs, which costs 6.57.
    assert!(matches!(open(ledger, &planned), Err(LedgerError::BudgetExhausted(_))));
    let ledger = Ledger::open(directory.ledger(), Options::default()).unwrap();
    let unplanned = RunHeader { plan: None, ..planned };
    let mut run = open(ledger, &unplanned).unwrap();
    run.reserve(&shuffled(10.0), 5).unwrap();
    let mut granted = 0;
    while granted < 10 && run.reserve(&shuffled(1.0), 1).is_ok() {
        granted += 1;
    }
    assert!(granted <= 5, "{granted} rounds at z 1 were granted, which reach into a second epoch");
}

#[test]
fn budgets_are_lowered_never_raised_and_terms_hold() {
    let directory = Directory::new();
    let mut ledger = create(&directory.ledger(), 2.0);
    ledger.tighten("data", Epsilon::new(1.0).unwrap()).unwrap();
    assert!(ledger.tighten("data", Epsilon::new(1.5).unwrap()).is_err());
    assert!(ledger.tighten("none", Epsilon::new(0.5).unwrap()).is_err());
    assert!(ledger.create_budget(budget("data", 9.0, Mode::Planned)).is_err());
    assert!(ledger.create_budget(budget("", 9.0, Mode::Planned)).is_err());
    assert_eq!(ledger.state().datasets()["data"].budget.epsilon.get(), 1.0);
    let store = ledger.dataset("data", Arc::new(Tightest)).unwrap();
    let mut other = header();
    other.unit = RecordUnit::User;
    let error = Run::open(store, other).err().unwrap().to_string();
    assert!(error.contains("another unit"), "{error}");
    assert_eq!(Ledger::read(directory.ledger(), Options::default()).unwrap().head().sequence, 3);
}

#[test]
fn a_run_that_protects_nothing_is_noted_for_ever_and_charges_nothing() {
    let directory = Directory::new();
    let store = create(&directory.ledger(), 2.0).dataset("data", Arc::new(Tightest)).unwrap();
    let mut insecure = Run::open_insecure(store, header(), "seeded noise").unwrap();
    let refused = insecure.reserve(&round(0.01, 1.0), 1);
    assert!(matches!(refused, Err(LedgerError::BudgetExhausted(_))));
    insecure.close().unwrap();
    let ledger = Ledger::read(directory.ledger(), Options::default()).unwrap();
    assert_eq!(ledger.state().datasets()["data"].insecure(), Some("seeded noise"));
}

#[test]
fn a_run_whose_plan_does_not_fit_is_not_opened() {
    let directory = Directory::new();
    drop(create(&directory.ledger(), 2.0));
    let planned = |plan: Vec<Rounds>| {
        let store = open(&directory).unwrap().dataset("data", Arc::new(Tightest)).unwrap();
        let mut header = header();
        header.plan = Some(plan);
        Run::open(store, header)
    };
    let rounds = |count, q| Rounds { count, round: round(q, 1.0) };
    let refused = planned(vec![rounds(1_000_000, 0.05)]);
    assert!(matches!(refused, Err(LedgerError::BudgetExhausted(_))));
    assert_eq!(open(&directory).unwrap().state().datasets()["data"].runs.len(), 0);
    // The declared rounds are charged in order, in any blocks, and nothing else is.
    let mut run = planned(vec![rounds(3, 0.01), rounds(2, 0.02)]).unwrap();
    assert_eq!(run.reserve(&round(0.02, 1.0), 1).err(), Some(LedgerError::NotPlanned(0)));
    assert_eq!(run.reserve(&round(0.01, 1.0), 4).err(), Some(LedgerError::NotPlanned(0)));
    run.reserve(&round(0.01, 1.0), 2).unwrap();
    run.reserve_each(&[rounds(1, 0.01), rounds(1, 0.02)]).unwrap();
    assert_eq!(run.reserve(&round(0.02, 1.0), 2).err(), Some(LedgerError::NotPlanned(4)));
    run.reserve(&round(0.02, 1.0), 1).unwrap();
    assert_eq!(run.reserve(&round(0.02, 1.0), 1).err(), Some(LedgerError::NotPlanned(5)));
    run.close().unwrap();
    assert_eq!(charged(&open(&directory).unwrap()), 5);
}

/// A pricing that counts how often it is called.
#[derive(Debug)]
struct Counting {
    parts: Arc<AtomicUsize>,
    checks: AtomicUsize,
    part: f64,
}

impl Counting {
    fn new(part: f64) -> Arc<Self> {
        Arc::new(Self { parts: Arc::default(), checks: AtomicUsize::new(0), part })
    }
}

impl Pricing for Counting {
    fn price(&self, _: &Budget, runs: &[RunRounds<'_>]) -> Result<f64, String> {
        self.checks.fetch_add(1, Ordering::Relaxed);
        Ok(runs.iter().flat_map(|run| run.rounds).map(|rounds| rounds.count).sum::<u64>() as f64)
    }

    fn meter(&self, budget: &Budget) -> Option<Box<dyn Meter>> {
        let part = self.part / budget.epsilon.get();
        Some(Box::new(CountingMeter { parts: self.parts.clone(), each: part, used: 0.0 }))
    }

    fn order(&self, _: Epsilon, _: Delta) -> Option<f64> {
        None
    }
}

/// A meter that adds the same fraction of the budget for every round.
#[derive(Debug)]
struct CountingMeter {
    parts: Arc<AtomicUsize>,
    each: f64,
    used: f64,
}

impl Meter for CountingMeter {
    fn add(&mut self, _: u64, rounds: Folded) {
        self.parts.fetch_add(1, Ordering::Relaxed);
        self.used += rounds.count as f64 * self.each;
    }

    fn part(&self) -> f64 {
        self.used
    }
}

fn charge(run: &mut Run<DatasetLedger>, z: f64) -> Result<(), LedgerError> {
    run.reserve(&round(0.01, z), 2).map(drop)
}

#[test]
fn a_charge_prices_what_it_adds_and_all_only_when_parts_do_not_fit() {
    let directory = Directory::new();
    let pricing = Counting::new(1.0);
    let store = create(&directory.ledger(), 61.0).dataset("data", pricing.clone()).unwrap();
    let mut run = Run::open(store, header()).unwrap();
    // Identical and different rounds, so that entries grow and new ones start.
    for i in 0..30 {
        charge(&mut run, 1.0 + f64::from(i / 3)).unwrap();
    }
    // Every charge is counted once, and nothing is priced.
    assert_eq!(pricing.parts.load(Ordering::Relaxed), 30);
    assert_eq!(pricing.checks.load(Ordering::Relaxed), 0);
    // 60 of 61 are used. Now everything is priced, and again after another handle has charged.
    assert!(matches!(charge(&mut run, 1.0), Err(LedgerError::BudgetExhausted(_))));
    assert_eq!(pricing.checks.load(Ordering::Relaxed), 1);
    let store = open(&directory).unwrap().dataset("data", pricing.clone()).unwrap();
    let mut other = Run::open(store, header()).unwrap();
    other.reserve(&round(0.01, 7.0), 1).unwrap();
    assert!(matches!(run.reserve(&round(0.01, 7.0), 1), Err(LedgerError::BudgetExhausted(_))));
    assert_eq!(charged(&open(&directory).unwrap()), 61);
}

#[test]
fn what_was_counted_under_other_terms_is_counted_anew() {
    let directory = Directory::new();
    let store = create(&directory.ledger(), 61.0).dataset("data", Counting::new(1.0)).unwrap();
    let mut run = Run::open(store, header()).unwrap();
    for _ in 0..10 {
        charge(&mut run, 1.0).unwrap();
    }
    // 20 rounds are a third of 61 and more than all of 19.
    open(&directory).unwrap().tighten("data", Epsilon::new(19.0).unwrap()).unwrap();
    assert!(matches!(charge(&mut run, 1.0), Err(LedgerError::BudgetExhausted(_))));
    // The total of another pricing, for which rounds cost nothing, is not reused.
    let directory = Directory::new();
    let store = create(&directory.ledger(), 10.0).dataset("data", Counting::new(0.0)).unwrap();
    let mut run = Run::open(store, header()).unwrap();
    for _ in 0..8 {
        charge(&mut run, 1.0).unwrap();
    }
    let ledger = run.close().unwrap().into_ledger();
    let store = ledger.dataset("data", Counting::new(1.0)).unwrap();
    let mut run = Run::open(store, header()).unwrap();
    assert!(matches!(charge(&mut run, 1.0), Err(LedgerError::BudgetExhausted(_))));
}

#[test]
fn planned_rounds_count_beside_those_that_are_charged() {
    let directory = Directory::new();
    drop(create(&directory.ledger(), 10.0));
    let open_planned = |count| {
        let store = open(&directory).unwrap().dataset("data", Counting::new(1.0)).unwrap();
        let mut header = header();
        header.plan = Some(vec![Rounds { count, round: round(0.01, 1.0) }]);
        Run::open(store, header)
    };
    open_planned(6).unwrap().reserve(&round(0.01, 1.0), 6).unwrap();
    assert!(matches!(open_planned(5), Err(LedgerError::BudgetExhausted(_))));
    assert!(open_planned(4).is_ok());
}

#[test]
fn another_spelling_of_a_name_begins_no_second_budget() {
    let directory = Directory::new();
    let mut ledger = create(&directory.ledger(), 8.0);
    for name in ["Data", " data", "da\u{200b}ta", "DATA ", "\u{ff44}ata"] {
        let error = ledger.create_budget(budget(name, 8.0, Mode::Planned)).unwrap_err();
        assert!(
            error.to_string().contains("dataset name") || error.to_string().contains("\"data\"")
        );
        assert_eq!(ledger.state().alike(name), Some("data"));
        assert!(ledger.state().find(name).unwrap_err().contains("did you mean \"data\""));
        let other = Ledger::open(directory.ledger(), Options::default()).unwrap();
        let error = other.dataset(name, Arc::new(Tightest)).err().unwrap().to_string();
        assert!(error.contains("did you mean \"data\""), "{error}");
    }
    assert_eq!(ledger.state().datasets().len(), 1);
    ledger.create_budget(budget("other", 8.0, Mode::Planned)).unwrap();
    assert_eq!(ledger.audit().unwrap(), [""; 0]);
}

#[test]
fn old_ledgers_with_two_spellings_of_one_name_load_and_verify_says_so() {
    let (one, other) = (Directory::new(), Directory::new());
    let mut ledger = create(&one.ledger(), 8.0);
    let mut second = Ledger::create(other.ledger(), Options::default()).unwrap();
    second.create_budget(budget("Data", 8.0, Mode::Planned)).unwrap();
    ledger.import(&second.export().unwrap()).unwrap();
    drop(ledger);
    let ledger = Ledger::read(one.ledger(), Options::default()).unwrap();
    assert_eq!(ledger.state().datasets().len(), 2);
    let remarks = ledger.audit().unwrap();
    assert!(remarks.len() == 1 && remarks[0].contains("differ only by spelling"), "{remarks:?}");
}
