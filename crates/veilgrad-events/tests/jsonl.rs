//! JSON Lines: f64 values survive exactly, unknown fields and policies are refused.

use proptest::prelude::*;
use veilgrad_events::{
    ClipNorm, FixedBatch, IntegerGrid, LineError, Mode, NoiseStd, Round, Rounds, RoundsFile,
    SampleRate, Sampling, SumQuery, rounds_to_jsonl,
};

const DOCUMENTED: &str = r#"{"rounds": 14040, "sampling": {"policy": "poisson", "rate": 0.00426666}, "queries": [{"group": "weights", "clip": 1.0, "noise": 1.1}]}
{"rounds": 10, "sampling": {"policy": "fixed", "records": 60000, "batch": 256}, "queries": [{"group": "conv", "clip": 1.0, "noise": 2.0}, {"group": "accuracy", "clip": 0.5, "noise": 3.0}]}

{"rounds": 1, "sampling": {"policy": "all"}, "queries": [{"group": "count", "clip": 1.0, "noise": 8.0}]}
"#;

/// The rounds of all runs of a file.
fn read_rounds(text: &str) -> Result<Vec<Rounds>, LineError> {
    RoundsFile::from_jsonl(text).map(|file| file.runs.concat())
}

#[test]
fn the_documented_lines_are_read_and_written_back_the_same() {
    let rounds = read_rounds(DOCUMENTED).unwrap();
    assert_eq!(rounds.len(), 3);
    assert_eq!(rounds[0].count, 14040);
    assert_eq!(rounds[1].round.sampling(), Sampling::Fixed(FixedBatch::new(60000, 256).unwrap()));
    assert_eq!(rounds[1].round.queries()[1].group(), "accuracy");
    assert_eq!(rounds[2].round.sampling(), Sampling::All {});
    let written = rounds_to_jsonl(&rounds).unwrap();
    let without_spaces = |s: &str| {
        s.lines().map(|l| l.replace(' ', "")).filter(|l| !l.is_empty()).collect::<Vec<_>>()
    };
    assert_eq!(without_spaces(&written), without_spaces(DOCUMENTED));
}

#[test]
fn a_bad_line_is_refused_by_number_and_reason() {
    let good =
        r#"{"rounds":1,"sampling":{"policy":"all"},"queries":[{"group":"a","clip":1,"noise":1}]}"#;
    for (bad, reason) in [
        (
            r#"{"rounds":1,"sampling":{"policy":"balls-in-bins","rate":0.1},"queries":[{"group":"a","clip":1,"noise":1}]}"#,
            "unknown variant `balls-in-bins`",
        ),
        (r#"{"rounds":1,"sampling":{"policy":"all"},"queries":[]}"#, "at least one query"),
        (
            r#"{"rounds":-1,"sampling":{"policy":"all"},"queries":[{"group":"a","clip":1,"noise":1}]}"#,
            "invalid value",
        ),
        (
            r#"{"rounds":1,"sampling":{"policy":"all"},"queries":[{"group":"a","clip":1,"noise":1}],"delta":1}"#,
            "unknown field `delta`",
        ),
        (
            r#"{"sampling":{"policy":"all"},"queries":[{"group":"a","clip":1,"noise":1}]}"#,
            "missing field `rounds`",
        ),
        (
            r#"{"rounds":1,"sampling":{"policy":"all"},"queries":[{"group":"a","clip":NaN,"noise":1}]}"#,
            "expected value",
        ),
        (
            r#"{"rounds":1,"sampling":{"policy":"all"},"queries":[{"group":"a","clip":1e999,"noise":1}]}"#,
            "number out of range",
        ),
        ("{", "EOF"),
    ] {
        let error = read_rounds(&format!("{good}\n\n{bad}\n")).unwrap_err();
        assert_eq!(error.line(), 3);
        assert!(error.to_string().contains(reason), "{error} lacks {reason:?}");
    }
}

#[test]
fn truncating_a_line_at_any_byte_is_refused() {
    let line = DOCUMENTED.lines().nth(1).unwrap();
    for end in 1..line.len() {
        assert!(read_rounds(&line[..end]).is_err(), "{}", &line[..end]);
    }
}

/// Positive finite f64 of every magnitude, subnormals included.
fn any_positive() -> impl Strategy<Value = f64> {
    (1u64..f64::INFINITY.to_bits()).prop_map(f64::from_bits)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(5_000))]
    #[test]
    fn every_f64_survives_the_round_trip_bit_for_bit(
        clip in any_positive(), noise in any_positive(),
        rate in (1u64..=1f64.to_bits()).prop_map(f64::from_bits),
        count: u64, group in ".*",
    ) {
        let query = SumQuery::new(group, ClipNorm::new(clip).unwrap(), NoiseStd::new(noise).unwrap());
        let sampling = Sampling::Poisson { rate: SampleRate::new(rate).unwrap() };
        let before = vec![Rounds { count, round: Round::new(sampling, vec![query]).unwrap() }];
        let after = read_rounds(&rounds_to_jsonl(&before).unwrap()).unwrap();
        prop_assert_eq!(&after, &before);
        let query = &after[0].round.queries()[0];
        prop_assert_eq!(query.clip().get().to_bits(), clip.to_bits());
        prop_assert_eq!(query.noise().get().to_bits(), noise.to_bits());
        prop_assert_eq!(after[0].round.sampling(), sampling);
    }

    #[test]
    fn exact_queries_survive_the_round_trip(clip in 1e-300f64..1e300, dimension: u64, s_int in 1u32..=(1 << 27), k in 0u8..=50) {
        let grid = IntegerGrid::new(s_int, k).unwrap();
        if let Ok(query) = SumQuery::exact("g", ClipNorm::new(clip).unwrap(), dimension, grid) {
            let before = vec![Rounds { count: 1, round: Round::new(Sampling::All {}, vec![query]).unwrap() }];
            prop_assert_eq!(read_rounds(&rounds_to_jsonl(&before).unwrap()).unwrap(), before);
        }
    }
}

#[test]
fn a_file_says_how_rounds_were_chosen_and_where_runs_begin() {
    let line = DOCUMENTED.lines().next().unwrap();
    let text = format!(
        "{{\"mode\":\"adaptive\",\"order\":8.5}}\n{line}\n\n{{\"run\":2}}\n{line}\n{line}\n"
    );
    let file = RoundsFile::from_jsonl(&text).unwrap();
    assert_eq!((file.mode, file.order), (Some(Mode::Adaptive), Some(8.5)));
    assert_eq!(file.runs.iter().map(Vec::len).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(RoundsFile::from_jsonl(&file.to_jsonl().unwrap()).unwrap(), file);
    // Without a mode line and run lines: one run, unknown mode.
    let plain = RoundsFile::from_jsonl(DOCUMENTED).unwrap();
    assert_eq!((plain.mode, plain.runs.len()), (None, 1));
    assert_eq!(plain.runs[0].len(), 3);
    for (bad, number) in [
        (format!("{line}\n{{\"mode\":\"planned\"}}"), 2),
        ("{\"mode\":\"planned\",\"order\":8.0}".to_owned(), 1),
        ("{\"mode\":\"adaptive\",\"order\":1.0}".to_owned(), 1),
        ("{\"mode\":\"guessed\"}".to_owned(), 1),
        (format!("{line}\n{{\"run\":2,\"more\":1}}"), 2),
        (format!("{{\"mode\":\"planned\",{}", &line[1..]), 1),
    ] {
        assert_eq!(RoundsFile::from_jsonl(&bad).unwrap_err().line(), number, "{bad}");
    }
}
