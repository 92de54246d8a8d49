//! Rounds files, and their epsilon.

use veilgrad_accounting::{Accountant, Composition, Tightest};
use veilgrad_events::{Adjacency, Delta, Folded, Rounds, RoundsFile};

/// A rounds file that parses survives a round trip.
pub(crate) fn rounds(bytes: &[u8]) {
    let Some(file) = read(bytes) else { return };
    let written = file.to_jsonl().expect("rounds are written");
    let again = RoundsFile::from_jsonl(&written).expect("what was written is read");
    assert_eq!(again, file, "rounds changed on their way through a file");
    for rounds in file.runs.iter().flatten() {
        if let Ok(folded) = Folded::try_from(rounds) {
            let z = folded.noise_multiplier.get();
            assert!(z > 0.0 && z.is_finite());
            assert_eq!(folded.count, rounds.count);
        }
    }
}

fn read(bytes: &[u8]) -> Option<RoundsFile> {
    RoundsFile::from_jsonl(std::str::from_utf8(bytes).ok()?).ok()
}

/// Lower bounds are below upper bounds, and no part of a file costs more than the whole.
pub(crate) fn account(bytes: &[u8]) {
    let Some(file) = read(bytes) else { return };
    for adjacency in [Adjacency::AddRemove, Adjacency::ReplaceOne] {
        let Some((_, all)) = cost(&file.runs, adjacency) else { continue };
        let part = file.runs.len().saturating_sub(1);
        if let Some((Some(lower), _)) = cost(&file.runs[..part], adjacency) {
            assert!(lower <= all, "a part costs at least {lower}, and all of it at most {all}");
        }
    }
}

/// A lower and an upper bound on epsilon.
fn cost(runs: &[Vec<Rounds>], adjacency: Adjacency) -> Option<(Option<f64>, f64)> {
    let fold = |run: &Vec<Rounds>| run.iter().map(Folded::try_from).collect::<Result<Vec<_>, _>>();
    let runs: Vec<Vec<Folded>> = runs.iter().map(fold).collect::<Result<_, _>>().ok()?;
    let composition = Composition::of_runs(runs, adjacency).ok()?;
    let found = Tightest.epsilon(&composition, Delta::new(1e-5).ok()?).ok()?;
    assert!(found.epsilon >= 0.0, "epsilon {}", found.epsilon);
    if let Some(lower) = found.epsilon_lower {
        assert!(lower <= found.epsilon, "{lower} is not below {}", found.epsilon);
    }
    Some((found.epsilon_lower, found.epsilon))
}
