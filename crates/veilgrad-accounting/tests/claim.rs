//! The rule that says what may be claimed.

use std::num::NonZeroU64;

use veilgrad_accounting::claim::{Attacker, Basis, ClaimedRun, Protection, claim, warnings};
use veilgrad_accounting::statement::{Done, LedgerHead, ReleasedGroup, Statement};
use veilgrad_accounting::{Accountant, Composition, Tightest, Tuning, of_ledger};
use veilgrad_events::{
    Adjacency, Budget, ClipNorm, Delta, Epsilon, FixedBatch, Folded, MemoryLedger, Mode, NoiseStd,
    Numerics, Pricing, RecordUnit, Round, Rounds, Run, RunHeader, RunRounds, SampleRate, Sampling,
    SumQuery,
};

fn delta() -> Delta {
    Delta::new(1e-5).unwrap()
}

fn round(noise: f64) -> Round {
    let query = SumQuery::new("g", ClipNorm::new(1.0).unwrap(), NoiseStd::new(noise).unwrap());
    Round::new(Sampling::Poisson { rate: SampleRate::new(0.01).unwrap() }, vec![query]).unwrap()
}

fn terms(cap: f64, mode: Mode) -> Budget {
    let epsilon = Epsilon::new(cap).unwrap();
    Budget {
        dataset: "d".to_owned(),
        unit: RecordUnit::Example,
        adjacency: Adjacency::AddRemove,
        delta: delta(),
        epsilon,
        mode,
        order: Tightest.order(epsilon, delta()),
    }
}

/// A run that charged `charged` rounds of a plan of `plan`.
struct Charged {
    plan: Vec<Rounds>,
    folded: Vec<Folded>,
}

impl Charged {
    fn new(plan: u64, charged: u64) -> Self {
        let rounds = Rounds { count: charged, round: round(1.0) };
        let folded = vec![Folded::try_from(&rounds).unwrap()];
        Self { plan: vec![Rounds { count: plan, round: round(1.0) }], folded }
    }

    fn run(&self, planned: bool) -> ClaimedRun<'_> {
        ClaimedRun {
            charges: vec![RunRounds { planned, rounds: &self.folded, tuning: None }],
            plan: planned.then_some(&self.plan),
            insecure: None,
            numerics: Numerics::Exact,
            tuning: None,
        }
    }
}

fn cost(rounds: u64) -> f64 {
    let plan = [Rounds { count: rounds, round: round(1.0) }];
    let composition = Composition::fold(&plan, Adjacency::AddRemove).unwrap();
    Tightest.epsilon(&composition, delta()).unwrap().epsilon
}

#[test]
fn one_declared_plan_is_claimed_by_its_whole_cost() {
    let some = Charged::new(1000, 10);
    let found = claim(&terms(3.0, Mode::Planned), &[some.run(true)]).unwrap();
    assert_eq!((found.epsilon, found.spent), (cost(1000), cost(10)));
    assert_eq!(found.accountant(), "pld");
    assert!(found.conditions.is_empty(), "{:?}", found.conditions);
}

#[test]
fn everything_else_is_claimed_by_the_cap_or_by_what_is_spent_if_that_is_more() {
    let (one, two) = (Charged::new(1000, 1000), Charged::new(500, 500));
    for (runs, mode) in [
        (vec![one.run(true), two.run(true)], Mode::Planned),
        (vec![one.run(false)], Mode::Planned),
        (vec![one.run(true), two.run(false)], Mode::Planned),
        (vec![one.run(true)], Mode::Adaptive),
    ] {
        for cap in [0.0, 0.5, 1.9, 2.5, 4.0] {
            let terms = Budget { epsilon: Epsilon::new(cap).unwrap(), ..terms(4.0, mode) };
            let found = claim(&terms, &runs).unwrap();
            assert_eq!(found.epsilon, cap.max(found.spent));
            assert!(found.spent >= cost(1000), "{}", found.spent);
            let above = found.spent > cap;
            assert_eq!(matches!(found.basis, Basis::AboveCap { .. }), above, "{found:?}");
            assert_eq!(found.why().contains("more is spent than the budget"), above);
        }
    }
}

#[test]
fn a_run_that_charged_nothing_does_not_change_what_is_spent() {
    let (one, mut two) = (Charged::new(1000, 1000), Charged::new(10, 10));
    two.folded.clear();
    let found = claim(&terms(4.0, Mode::Planned), &[one.run(true), two.run(false)]).unwrap();
    assert_eq!((found.spent, found.epsilon), (cost(1000), 4.0));
}

#[test]
fn an_insecure_run_leaves_nothing_and_unverified_numerics_are_a_condition() {
    let (one, two) = (Charged::new(1000, 10), Charged::new(10, 10));
    let mut insecure = two.run(true);
    insecure.insecure = Some("seeded");
    let terms = terms(3.0, Mode::Planned);
    let none = claim(&terms, &[one.run(true), insecure]).unwrap_err();
    assert!(none.to_string().contains("seeded"), "{none}");
    let mut unverified = one.run(true);
    unverified.numerics = Numerics::Unverified;
    let found = claim(&terms, &[unverified]).unwrap();
    assert!(found.conditions[0].contains("unverified"), "{:?}", found.conditions);
}

#[test]
fn people_with_several_records_get_the_profile_of_their_group() {
    let some = Charged::new(200, 200);
    let three = NonZeroU64::new(3).unwrap();
    let plan = claim(&terms(3.0, Mode::Planned), &[some.run(true)]).unwrap();
    let group = Composition::of_group([some.folded.clone()], Adjacency::AddRemove, three).unwrap();
    let exact = Tightest.epsilon(&group, delta()).unwrap().epsilon;
    assert_eq!(plan.for_group(three), Some(exact));
    assert!(exact > 1.5 * plan.epsilon, "{exact}");
    assert_eq!(plan.for_group(NonZeroU64::MIN), Some(plan.epsilon));
    // Of a tuning, all three records are in every run: more than three times one record's share.
    let mut tuned = some.run(true);
    let count = Tuning::logarithmic(5.0).unwrap().run_count().unwrap();
    tuned.tuning = Some(count);
    tuned.charges.iter_mut().for_each(|charges| charges.tuning = Some(count));
    let tuned = claim(&terms(8.0, Mode::Planned), &[tuned]).unwrap();
    assert!(tuned.for_group(three).unwrap() > exact.max(1.5 * tuned.epsilon), "{tuned:?}");
    // A claim that is a budget has no profile.
    let both = claim(&terms(8.0, Mode::Planned), &[some.run(true), some.run(true)]).unwrap();
    assert_eq!(both.for_group(three), None);
}

#[test]
fn a_name_cannot_forge_a_paragraph_of_a_statement() {
    let some = Charged::new(1000, 1000);
    let claim = claim(&terms(3.0, Mode::Planned), &[some.run(true)]);
    let name = "g\n\nWhat is promised. Everything";
    let text = Statement {
        dataset: "d\n\nforged",
        unit: RecordUnit::Example,
        adjacency: Adjacency::AddRemove,
        claim: &claim,
        group_epsilons: vec![(2, 3.21)],
        records: Some(60_000),
        runs: 1,
        done: Done {
            rounds: 1000,
            sampling: Some(round(1.0).sampling()),
            uniform: true,
            noise_multiplier: round(1.0).noise_multiplier().unwrap(),
            groups: vec![ReleasedGroup {
                name,
                dimension: Some(10),
                clip: 1.0,
                noise: 1.0,
                bands: None,
            }],
        },
        numerics: Numerics::Exact,
        public_test: true,
        start: None,
        made_up_users: false,
        ledger: LedgerHead { id: "id", sequence: 5, head: "head" },
        since_results: None,
        audit: None,
    }
    .text();
    let begins = |paragraph: &str| paragraph.split_once(". ").map(|(about, _)| about.to_owned());
    let about: Vec<String> = text.split("\n\n").filter_map(begins).collect();
    let expected = [
        "What is promised",
        "People with several records",
        "What was done",
        "Arithmetic",
        "What is assumed",
        "What is not covered",
        "As of",
    ];
    assert_eq!(about, expected, "{text}");
}

#[test]
fn any_ledger_gives_an_epsilon_with_one_call() {
    let header = |plan: Option<u64>| {
        let mut header = RunHeader::new(RecordUnit::Example, Adjacency::AddRemove);
        header.mode = if plan.is_some() { Mode::Planned } else { Mode::Adaptive };
        header.plan = plan.map(|count| vec![Rounds { count, round: round(1.0) }]);
        header
    };
    assert!(of_ledger(&MemoryLedger::new(), delta()).is_err());
    // One plan: its cost, from the first round on.
    let mut run = Run::open(MemoryLedger::new(), header(Some(1000))).unwrap();
    drop(run.reserve(&round(1.0), 10).unwrap());
    let found = of_ledger(run.store(), delta()).unwrap();
    assert_eq!((found.epsilon, found.spent), (cost(1000), cost(10)));
    // A second run: what both charged so far.
    let ledger = run.close().unwrap();
    let mut run = Run::open(ledger, header(Some(500))).unwrap();
    drop(run.reserve(&round(1.0), 490).unwrap());
    let found = of_ledger(run.store(), delta()).unwrap();
    assert_eq!(found.epsilon, cost(500));
    assert!(!found.conditions.is_empty());
    // Without a plan: more than a plan would have cost.
    let mut run = Run::open(MemoryLedger::new(), header(None)).unwrap();
    drop(run.reserve(&round(1.0), 1000).unwrap());
    let found = of_ledger(run.store(), delta()).unwrap();
    assert!(found.epsilon > cost(1000) && found.accountant() == "rdp", "{found:?}");
    let insecure = Run::open_insecure(MemoryLedger::new(), header(None), "seeded").unwrap();
    assert!(of_ledger(insecure.store(), delta()).unwrap_err().to_string().contains("seeded"));
}

#[test]
fn charges_of_runs_that_are_open_at_once_are_not_taken_for_a_plan() {
    let mut header = RunHeader::new(RecordUnit::Example, Adjacency::ZeroOut);
    header.mode = Mode::Planned;
    header.plan = Some(vec![Rounds { count: 10, round: round(1.0) }]);
    let mut ledger = MemoryLedger::new();
    drop(Run::open(&mut ledger, header.clone()).unwrap());
    let mut run = Run::open(&mut ledger, header.clone()).unwrap();
    drop(run.reserve(&round(1.0), 10).unwrap());
    drop(run);
    let found = of_ledger(&ledger, delta()).unwrap();
    assert!(!found.is_planned() && found.accountant() == "rdp", "{found:?}");
    let query = SumQuery::new("g", ClipNorm::new(1.0).unwrap(), NoiseStd::new(5.0).unwrap());
    let sampling = Sampling::Shuffle(FixedBatch::new(20, 2).unwrap());
    let shuffled = Round::new(sampling, vec![query]).unwrap();
    header.plan = None;
    let mut run = Run::open(&mut ledger, header).unwrap();
    drop(run.reserve(&shuffled, 1).unwrap());
    drop(run);
    let none = of_ledger(&ledger, delta()).unwrap_err();
    assert!(none.to_string().contains("shuffled epochs"), "{none}");
}

#[test]
fn an_attacker_is_bounded_by_epsilon_and_delta_alone() {
    // Randomised response with epsilon: (e^eps - 1)/(e^eps + 1), and e^eps times 1 %.
    let found = Attacker::allowed_by(1.0, 0.0);
    let e = 1f64.exp();
    assert!((found.advantage - (e - 1.0) / (e + 1.0)).abs() < 1e-12);
    assert!((found.true_positive_rate - 0.01 * e).abs() < 1e-12);
    assert!(found.advantage >= (e - 1.0) / (e + 1.0));
    let nothing = Attacker::allowed_by(0.0, 0.0);
    assert!(nothing.advantage == 0.0 && (nothing.true_positive_rate - 0.01).abs() < 1e-12);
    let all = Attacker::allowed_by(500.0, 0.5);
    assert_eq!((all.advantage, all.true_positive_rate), (1.0, 1.0));
    assert_eq!(all.protection(), Protection::None);
}

#[test]
fn the_grade_of_a_protection_falls_with_both_numbers() {
    let grade =
        |advantage, true_positive_rate| Attacker { advantage, true_positive_rate }.protection();
    assert_eq!(grade(0.0, 0.01), Protection::VeryStrong);
    assert_eq!(grade(0.3, 0.02), Protection::Strong);
    assert_eq!(grade(0.1, 0.2), Protection::Moderate);
    assert_eq!(grade(0.7, 0.3), Protection::Weak);
    assert_eq!(grade(0.99, 0.1), Protection::None);
    assert_eq!(grade(0.1, 0.9), Protection::None);
    assert_eq!(grade(f64::NAN, 0.01), Protection::None);
}

#[test]
fn readers_are_warned_of_large_epsilons_and_deltas() {
    assert!(warnings(3.0, 1e-5, Some(60_000)).is_empty());
    assert!(warnings(10.0, 1e-5, None).is_empty());
    assert!(warnings(10.1, 1e-5, None)[0].contains("above 10"));
    assert!(warnings(3.0, 1e-2, Some(400))[0].contains("400"));
    assert_eq!(warnings(500.0, 0.5, Some(400)).len(), 2);
}
