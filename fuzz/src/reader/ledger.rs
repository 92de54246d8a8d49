//! Rows and exports of ledgers.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use veilgrad_events::{Event, Sampling};
use veilgrad_ledger::{Chained, Entry, Hash, Head, Line, State, with_head};

use crate::saved;

/// A row that parses survives a round trip.
pub(crate) fn row(bytes: &[u8]) {
    let Ok(entry) = Entry::from_bytes(bytes) else { return };
    let written = entry.to_bytes().expect("a row is written");
    assert_eq!(Entry::from_bytes(&written), Ok(entry), "a row changed on its way through a ledger");
}

/// Rows of a ledger, one per line, get valid hashes: every charge counts, INSECURE stamps stay, and removing a row never adds
/// charges.
pub(crate) fn rows(bytes: &[u8]) {
    let lines =
        bytes.split(|byte| *byte == b'\n').filter_map(|line| std::str::from_utf8(line).ok());
    let mut rows: Vec<&str> = lines.filter(|line| !line.is_empty()).collect();
    let whole = State::from_export(&chained(&rows)).or_else(|_| {
        // Without lines that are not rows, the rest may be a ledger.
        rows.retain(|row| Entry::from_bytes(row.as_bytes()).is_ok());
        State::from_export(&chained(&rows))
    });
    let Ok(whole) = whole else { return };
    check(&whole, &rows);
    rows.pop();
    if let Ok(less) = State::from_export(&chained(&rows)) {
        check(&less, &rows);
        for (name, charged) in rounds(&less) {
            assert!(charged <= rounds(&whole)[&name], "a row less charges more");
        }
    }
}

/// An export of these rows.
pub(crate) fn chained<Row: AsRef<str>>(rows: &[Row]) -> String {
    let (mut text, mut hash) = (String::new(), Hash::default());
    for (sequence, row) in (1..).zip(rows) {
        let bytes = row.as_ref().to_owned();
        hash = hash.after(bytes.as_bytes());
        let line = Line { sequence, hash: hash.to_string(), bytes };
        text.push_str(&serde_json::to_string(&line).expect("a line"));
        text.push('\n');
    }
    let first = rows.first().map(|row| Entry::from_bytes(row.as_ref().as_bytes()));
    let id = match first {
        Some(Ok(Entry::Create { id })) => id,
        _ => "0".repeat(32),
    };
    let head = Head { id, sequence: rows.len() as u64, hash };
    text.push_str(&format!("{{\"head\":{}}}\n", serde_json::json!(head.to_string())));
    text
}

/// The rounds that are charged to each dataset.
pub(crate) fn rounds(state: &State) -> BTreeMap<String, u64> {
    let charged = |dataset: &veilgrad_ledger::Dataset| {
        let runs = dataset.runs.values();
        runs.fold(0u64, |sum, run| sum.saturating_add(run.charged()))
    };
    state.datasets().iter().map(|(name, dataset)| (name.clone(), charged(dataset))).collect()
}

/// Checks that the state has all charges and stamps of the rows.
fn check(state: &State, rows: &[&str]) {
    let mut charges: BTreeMap<String, u64> = BTreeMap::new();
    for row in rows {
        let entry = Entry::from_bytes(row.as_bytes()).expect("a row of a ledger").original();
        let Entry::Run { dataset, event, .. } = entry else { continue };
        match event {
            // Shuffled rounds of another branch are counted as uses of a record, not as rounds.
            Event::Reserve(reservation)
                if !matches!(reservation.charge.round.sampling(), Sampling::Shuffle(_)) =>
            {
                let sum = charges.entry(dataset).or_default();
                *sum = sum.saturating_add(reservation.charge.count);
            }
            Event::Insecure(_) => {
                assert!(state.datasets()[&dataset].insecure().is_some(), "a stamp was lost");
            }
            _ => {}
        }
    }
    let found = rounds(state);
    for (dataset, charged) in charges {
        assert!(found[&dataset] >= charged, "{charged} rounds became {}", found[&dataset]);
    }
}

/// An altered export is refused, or has the charges of a saved one.
pub(crate) fn export(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let _ = with_head(text);
    let Ok(state) = State::from_export(text) else { return };
    static SAVED: OnceLock<Vec<BTreeMap<String, u64>>> = OnceLock::new();
    let saved = SAVED.get_or_init(|| {
        let saved = saved::of("export");
        let texts = saved.iter().filter_map(|bytes| std::str::from_utf8(bytes).ok());
        texts.filter_map(|text| State::from_export(text).ok()).map(|state| rounds(&state)).collect()
    });
    assert!(saved.contains(&rounds(&state)), "an altered export says something else");
}
