//! Export, import, merge.

use std::num::NonZeroU64;
use std::sync::Arc;

use crate::common::{Directory, budget, charged, copy_files, create, header, open, round, run};
use veilgrad_accounting::{Accountant, ByTriangle, Composition, Tightest};
use veilgrad_events::{
    Adjacency, Delta, Epsilon, Mode, RecordUnit, Round, Rounds, Run, SampleRate, Sampling,
};
use veilgrad_ledger::{Chained, Ledger, Options};

#[test]
fn imported_budgets_stay_as_tight_as_they_were() {
    let (here, there) = (Directory::new(), Directory::new());
    let mut tight = create(&here.ledger(), 3.0);
    tight.tighten("data", Epsilon::new(1.0).unwrap()).unwrap();
    let export = tight.export().unwrap();
    let mut other = Ledger::create(there.ledger(), Options::default()).unwrap();
    other.import(&export).unwrap();
    assert_eq!(other.state().datasets()["data"].budget.epsilon.get(), 1.0);
}

#[test]
fn exports_import_with_equal_meaning_and_only_once() {
    let (here, there) = (Directory::new(), Directory::new());
    let mut first = run(create(&here.ledger(), 8.0));
    first.reserve(&round(0.01, 1.0), 5).unwrap();
    drop(first);
    let export = Ledger::read(here.ledger(), Options::default()).unwrap().export().unwrap();
    // Into itself: nothing changes.
    let mut ledger = open(&here).unwrap();
    let sequence = ledger.head().sequence;
    assert_eq!(ledger.import(&export).unwrap().charged, 0);
    assert_eq!(ledger.head().sequence, sequence);
    drop(ledger);
    // Into another ledger: charged there, once.
    let mut other = run(create(&there.ledger(), 8.0));
    other.reserve(&round(0.02, 1.0), 3).unwrap();
    drop(other);
    let mut ledger = open(&there).unwrap();
    assert!(ledger.import(&export).unwrap().charged > 0);
    assert_eq!(ledger.import(&export).unwrap().charged, 0);
    assert_eq!(charged(&ledger), 8);
    drop(ledger);
    assert_eq!(charged(&Ledger::read(there.ledger(), Options::default()).unwrap()), 8);
    // A changed line is refused, and nothing is charged.
    let forged = export.replace("\\\"count\\\"", "\\\"count\\\" ").replacen('5', "4", 1);
    assert!(open(&there).unwrap().import(&forged).is_err());
    assert!(open(&there).unwrap().import("").is_err());
}

#[test]
fn branches_of_one_ledger_are_merged_by_charging_both() {
    let (here, there) = (Directory::new(), Directory::new());
    drop(create(&here.ledger(), 8.0));
    // Copy the closed ledger, then charge both.
    copy_files(&here, &there);
    let mut one = run(open(&here).unwrap());
    one.reserve(&round(0.01, 1.0), 5).unwrap();
    let mut two = run(open(&there).unwrap());
    two.reserve(&round(0.01, 1.0), 7).unwrap();
    drop((one, two));
    let export = Ledger::read(there.ledger(), Options::default()).unwrap().export().unwrap();
    let mut ledger = open(&here).unwrap();
    assert_eq!(ledger.import(&export).unwrap().charged, 2);
    assert_eq!(charged(&ledger), 12);
    assert_eq!(ledger.import(&export).unwrap().charged, 0);
}

/// What `account --group 2` answers: by the analysis of groups, or by the triangle inequality where there is none.
fn epsilon_of_two(ledger: &Ledger) -> f64 {
    let charges = ledger.state().datasets()["data"].charges();
    let runs = || charges.iter().map(|run| run.rounds.iter().copied());
    let (two, delta) = (NonZeroU64::new(2).unwrap(), Delta::new(1e-5).unwrap());
    let found = match Composition::of_group(runs(), Adjacency::AddRemove, two) {
        Ok(group) => Tightest.epsilon(&group, delta),
        Err(_) => {
            let one = Composition::of_runs(runs(), Adjacency::AddRemove).unwrap();
            ByTriangle { inner: &Tightest, records: two }.epsilon(&one, delta)
        }
    };
    found.unwrap().epsilon
}

/// In one branch a run went on with cyclic rounds, in the other with Poisson rounds. Merged, the position of the cyclic rounds is
/// not known, but they stay cyclic: two records of one person may be in different groups, which has no analysis.
#[test]
fn cyclic_rounds_of_another_branch_cost_a_person_with_two_records_no_less_than_before() {
    let (here, there) = (Directory::new(), Directory::new());
    let mut run = run(create(&there.ledger(), 80.0));
    let export = || Ledger::read(there.ledger(), Options::default()).unwrap().export().unwrap();
    run.reserve(&round(0.001, 9.0), 3).unwrap();
    let mut rows: Vec<String> = rows_of(&export()).into_iter().map(|line| line.bytes).collect();
    let query = round(1.0, 2.0).queries().to_vec();
    let (rate, groups) = (SampleRate::new(0.2).unwrap(), NonZeroU64::new(4).unwrap());
    let sampling = Sampling::CyclicPoisson { rate, groups, first_round: 3 };
    run.reserve(&Round::new(sampling, query).unwrap(), 39).unwrap();
    drop(run);
    let before = epsilon_of_two(&open(&there).unwrap());
    // The other branch: three more Poisson rounds, from round 3 on.
    let last = rows.last().unwrap();
    let nonce = last.find("\"nonce\":\"").unwrap() + 9;
    let next = format!("{}{}{}", &last[..nonce], "f".repeat(32), &last[nonce + 32..]);
    assert!(next.contains("\"first_round\":0"), "{next}");
    rows.push(next.replace("\"first_round\":0", "\"first_round\":3"));
    let mut merged = Ledger::create(here.ledger(), Options::default()).unwrap();
    merged.import(&export_of(&rows)).unwrap();
    assert!(merged.import(&export()).unwrap().charged > 0);
    assert_eq!(charged(&merged), 3 + 3 + 39);
    let found = epsilon_of_two(&merged);
    assert!(found >= before, "{found} {before}");
    // The cyclic rounds cost as many turns as before, so that only the other rounds are added.
    assert!(found < 1.01 * before, "{found} {before}");
}

/// The export of a ledger with these rows.
fn export_of(rows: &[String]) -> String {
    let mut hash = veilgrad_ledger::Hash::default();
    let mut text = String::new();
    for (sequence, bytes) in (1..).zip(rows) {
        hash = hash.after(bytes.as_bytes());
        let line = veilgrad_ledger::Line { sequence, hash: hash.to_string(), bytes: bytes.clone() };
        text.push_str(&serde_json::to_string(&line).unwrap());
        text.push('\n');
    }
    veilgrad_ledger::with_head(&text).unwrap_or(text)
}

/// The rows of an export, without its head.
fn rows_of(export: &str) -> Vec<veilgrad_ledger::Line> {
    let lines: Vec<&str> = export.lines().collect();
    lines[..lines.len() - 1].iter().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn what_somebody_claims_to_have_imported_does_not_keep_the_real_rows_out() {
    let (here, there) = (Directory::new(), Directory::new());
    run(create(&there.ledger(), 8.0)).reserve(&round(0.01, 1.0), 5).unwrap();
    let real = Ledger::read(there.ledger(), Options::default()).unwrap();
    let (id, export) = (real.head().id.clone(), real.export().unwrap());
    let mut forged = vec![format!(r#"{{"kind":"create","id":"{}"}}"#, "a".repeat(32))];
    for line in rows_of(&export) {
        let entry = r#"{"kind":"recovered","anchored":0}"#;
        let hash = line.hash;
        forged.push(format!(
            r#"{{"kind":"import","source":"{id}","hash":"{hash}","entry":{entry}}}"#
        ));
    }
    let mut ledger = create(&here.ledger(), 8.0);
    ledger.import(&export_of(&forged)).unwrap();
    ledger.import(&export).unwrap();
    assert_eq!(charged(&ledger), 5);
    assert_eq!(ledger.import(&export).unwrap().charged, 0);
    // An accountant that reads the store sees them, too.
    let store = ledger.dataset("data", Arc::new(Tightest)).unwrap();
    let mut seen = 0;
    veilgrad_events::LedgerStore::visit(&store, &mut |event| {
        if let veilgrad_events::Event::Reserve(reservation) = event {
            seen += reservation.charge.count;
        }
    })
    .unwrap();
    assert_eq!(seen, 5);
}

#[test]
fn the_smaller_of_two_budgets_is_kept_and_another_unit_refused() {
    let directories = [Directory::new(), Directory::new(), Directory::new()];
    let [large, small, user] = &directories;
    let mut ledger = create(&large.ledger(), 8.0);
    ledger.import(&create(&small.ledger(), 1.0).export().unwrap()).unwrap();
    assert_eq!(ledger.state().datasets()["data"].budget.epsilon.get(), 1.0);
    let mut users = Ledger::create(user.ledger(), Options::default()).unwrap();
    let mut terms = budget("data", 1.0, Mode::Planned);
    terms.unit = RecordUnit::User;
    users.create_budget(terms).unwrap();
    let error = ledger.import(&users.export().unwrap()).err().unwrap().to_string();
    assert!(error.contains("another unit"), "{error}");
}

#[test]
fn a_branch_that_ended_a_run_does_not_end_it_here() {
    let (here, there) = (Directory::new(), Directory::new());
    let mut going = run(create(&here.ledger(), 8.0));
    going.reserve(&round(0.01, 1.0), 3).unwrap();
    copy_files(&here, &there);
    let rows =
        rows_of(&Ledger::read(there.ledger(), Options::default()).unwrap().export().unwrap());
    let mut branch: Vec<String> = rows.into_iter().map(|line| line.bytes).collect();
    let opening = branch[branch.len() - 2].clone();
    let end = opening.find(r#""event":{"#).unwrap();
    branch.push(format!("{}\"event\":{{\"event\":\"close\"}}}}", &opening[..end]));
    open(&here).unwrap().import(&export_of(&branch)).unwrap();
    going.reserve(&round(0.01, 1.0), 3).unwrap();
    going.close().unwrap();
}

#[test]
fn rows_that_break_the_rules_are_refused_wherever_they_come_from() {
    let directory = Directory::new();
    let mut ledger = create(&directory.ledger(), 8.0);
    let mut planned = header();
    planned.plan = Some(vec![Rounds { count: 1, round: round(0.01, 9.0) }]);
    let store = open(&directory).unwrap().dataset("data", Arc::new(Tightest)).unwrap();
    let mut run = Run::open(store, planned).unwrap();
    run.reserve(&round(0.01, 9.0), 1).unwrap();
    let rows = rows_of(&run.store().ledger().export().unwrap());
    let rows: Vec<String> = rows.into_iter().map(|line| line.bytes).collect();
    let last = rows.len() - 1;
    let fixed = r#""sampling":{"policy":"fixed","records":100,"batch":10}"#;
    let sampling = rows[last].find(r#""sampling":"#).unwrap();
    let queries = rows[last].find(r#","queries""#).unwrap();
    let counting = format!("{}{fixed}{}", &rows[last][..sampling], &rows[last][queries..]);
    let id = rows[0].clone();
    for (place, row, why) in [
        (last, rows[last].replace(r#""rounds":1"#, r#""rounds":7"#), "plan"),
        (last, counting, "private"),
        (0, id.replace(r#""id":""#, r#""id":"x"#), "32 hexadecimal"),
        (last, id.clone(), "the first row, and no other"),
        (2, rows[2].replace(r#""code_version":""#, r#""code_version":"\u001b"#), "control"),
    ] {
        let mut broken = rows.clone();
        broken[place] = row;
        let new = Directory::new();
        let error = Ledger::restore(new.ledger(), &export_of(&broken), Options::default());
        let error = error.err().unwrap().to_string();
        assert!(error.contains(why), "{why}: {error}");
        assert_eq!(std::fs::read_dir(new.path()).unwrap().count(), 0);
    }
    assert!(ledger.import(&export_of(&rows)).is_ok());
}

#[test]
fn merges_are_merged_again_and_every_run_is_charged_once() {
    let branches = [Directory::new(), Directory::new(), Directory::new()];
    let [one, two, three] = &branches;
    // All branches continue one run, and each opens another.
    drop(create(&one.ledger(), 80.0));
    copy_files(one, two);
    copy_files(one, three);
    for (directory, rounds) in branches.iter().zip([1, 10, 100]) {
        let mut run = run(open(directory).unwrap());
        run.reserve(&round(0.01, 1.0), rounds).unwrap();
        run.close().unwrap();
    }
    let export = |directory: &Directory| {
        Ledger::read(directory.ledger(), Options::default()).unwrap().export().unwrap()
    };
    open(one).unwrap().import(&export(two)).unwrap();
    assert_eq!(charged(&open(one).unwrap()), 11);
    // The merged ledger into the third, and then the second again.
    open(three).unwrap().import(&export(one)).unwrap();
    assert_eq!(charged(&open(three).unwrap()), 111);
    assert_eq!(open(three).unwrap().import(&export(two)).unwrap().charged, 0);
    // And back into the first.
    open(one).unwrap().import(&export(three)).unwrap();
    assert_eq!(charged(&open(one).unwrap()), 111);
    let ledger = open(one).unwrap();
    assert_eq!(ledger.state().datasets()["data"].runs.len(), 3);
}

#[test]
fn what_a_branch_charged_to_a_run_that_is_closed_here_is_charged_here() {
    let (here, there) = (Directory::new(), Directory::new());
    let mut both = run(create(&here.ledger(), 8.0));
    both.reserve(&round(0.01, 1.0), 3).unwrap();
    // The same run continues in a copy, as after a crash, and is closed here.
    copy_files(&here, &there);
    both.close().unwrap();
    let other = rusqlite::Connection::open(there.ledger()).unwrap();
    append_by_hand(&other);
    let text = export_by_hand(&other);
    let mut ledger = open(&here).unwrap();
    assert_eq!(ledger.import(&text).unwrap().charged, 1);
    assert_eq!(charged(&ledger), 6);
}

/// Repeats the last row, a charge, with another nonce.
fn append_by_hand(database: &rusqlite::Connection) {
    let (sequence, bytes, hash): (i64, Vec<u8>, Vec<u8>) = database
        .query_row("SELECT * FROM event ORDER BY sequence DESC LIMIT 1", [], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?))
        })
        .unwrap();
    let text = String::from_utf8(bytes).unwrap();
    let nonce = text.find("\"nonce\":\"").unwrap() + 9;
    let text = format!("{}{}{}", &text[..nonce], "f".repeat(32), &text[nonce + 32..]);
    let previous: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    let next = previous.parse::<veilgrad_ledger::Hash>().unwrap().after(text.as_bytes());
    let next: Vec<u8> = (0..32)
        .map(|i| u8::from_str_radix(&next.to_string()[2 * i..2 * i + 2], 16).unwrap())
        .collect();
    database
        .execute(
            "INSERT INTO event VALUES (?1, ?2, ?3)",
            rusqlite::params![sequence + 1, text.into_bytes(), next],
        )
        .unwrap();
}

fn export_by_hand(database: &rusqlite::Connection) -> String {
    let mut statement = database.prepare("SELECT * FROM event ORDER BY sequence").unwrap();
    let rows = statement.query_map([], |row| {
        let hash: Vec<u8> = row.get(2)?;
        let line = veilgrad_ledger::Line {
            sequence: row.get::<_, i64>(0)? as u64,
            hash: hash.iter().map(|byte| format!("{byte:02x}")).collect(),
            bytes: String::from_utf8(row.get(1)?).unwrap(),
        };
        Ok(serde_json::to_string(&line).unwrap() + "\n")
    });
    let text: String = rows.unwrap().map(Result::unwrap).collect();
    veilgrad_ledger::with_head(&text).unwrap()
}

#[test]
fn a_part_of_an_export_is_refused_wherever_it_was_cut() {
    let (here, there) = (Directory::new(), Directory::new());
    let mut charging = run(create(&there.ledger(), 8.0));
    (0..4).for_each(|_| drop(charging.reserve(&round(0.01, 1.0), 1).unwrap()));
    let text = charging.store().ledger().export().unwrap();
    assert!(text.ends_with(&format!("{{\"head\":\"{}\"}}\n", charging.store().ledger().head())));
    let mut ledger = create(&here.ledger(), 8.0);
    let before = ledger.head().clone();
    let cuts = (0..text.len() - 1).filter(|at| at % 17 == 0 || text[..*at].ends_with('\n'));
    for cut in cuts {
        let part = &text[..cut];
        assert!(ledger.import(part).is_err(), "{cut}");
        let new = Directory::new();
        assert!(Ledger::restore(new.ledger(), part, Options::default()).is_err(), "{cut}");
    }
    // One row less with the same head, and rows after the head.
    let lines: Vec<&str> = text.lines().collect();
    let without = [&lines[..lines.len() - 2], &lines[lines.len() - 1..]].concat().join("\n");
    assert!(ledger.import(&without).unwrap_err().to_string().contains("rows are missing"));
    let behind = [&lines[..], &lines[lines.len() - 2..lines.len() - 1]].concat().join("\n");
    assert!(ledger.import(&behind).is_err());
    assert_eq!(ledger.head(), &before);
    // Exports of early versions have no head; the caller may assert that one is complete.
    let old = lines[..lines.len() - 1].join("\n") + "\n";
    assert_eq!(veilgrad_ledger::with_head(&old).unwrap(), text);
    assert!(veilgrad_ledger::with_head(&text).is_err());
    assert!(ledger.import(&text).unwrap().charged > 0);
}

#[test]
fn budgets_with_different_deltas_merge_to_the_stricter_in_both() {
    for ((ours, our_delta), (theirs, their_delta)) in
        [((8.0, 1e-5), (1.0, 1e-3)), ((1.0, 1e-3), (8.0, 1e-5)), ((8.0, 1e-3), (1.0, 1e-5))]
    {
        let (here, there) = (Directory::new(), Directory::new());
        let begin = |directory: &Directory, epsilon, delta| {
            let mut ledger = Ledger::create(directory.ledger(), Options::default()).unwrap();
            let mut terms = budget("data", epsilon, Mode::Planned);
            terms.delta = veilgrad_events::Delta::new(delta).unwrap();
            ledger.create_budget(terms).unwrap();
            ledger
        };
        let mut ledger = begin(&here, ours, our_delta);
        ledger.import(&begin(&there, theirs, their_delta).export().unwrap()).unwrap();
        let kept = &ledger.state().datasets()["data"].budget;
        assert_eq!((kept.epsilon.get(), kept.delta.get()), (1.0, 1e-5));
    }
}

#[test]
fn a_row_that_lowered_a_budget_before_a_merge_counted_still_loads() {
    let (here, there) = (Directory::new(), Directory::new());
    let mut ledger = create(&here.ledger(), 8.0);
    ledger.import(&create(&there.ledger(), 1.0).export().unwrap()).unwrap();
    // As written by a version that kept 8 and lowered it to 5.
    let rows = rows_of(&ledger.export().unwrap()).into_iter().map(|line| line.bytes);
    let lower =
        r#"{"kind":"tighten","dataset":"data","epsilon":{"bits":"4014000000000000","is":5.0}}"#;
    let rows: Vec<String> = rows.chain([lower.to_owned()]).collect();
    let new = Directory::new();
    let ledger = Ledger::restore(new.ledger(), &export_of(&rows), Options::default()).unwrap();
    assert_eq!(ledger.state().datasets()["data"].budget.epsilon.get(), 1.0);
}
