//! Answers of a terminal, and what they become.

use std::io::Cursor;

use clap::Parser;

use super::*;
use crate::argument::{Arguments, Command};

fn arguments(words: &[&str]) -> Init {
    let words = ["veilgrad", "init"].iter().chain(words);
    match Arguments::try_parse_from(words).unwrap().command {
        Command::Init(init) => *init,
        other => panic!("{other:?}"),
    }
}

fn written(words: &[&str], answers: &str) -> Result<String, Error> {
    let mut answers = Answers { terminal: Some(Cursor::new(answers.to_owned())) };
    let declared = declare(&arguments(words), &mut answers)?;
    let text = text::configuration(&declared, Path::new("new.toml"));
    Source::of("new.toml", &text).checked()?;
    Ok(text)
}

#[test]
fn answers_become_a_configuration_and_wrong_ones_are_asked_for_again() {
    let answers =
        "many\n500\n3\n\nsick\nno\nno,yes\nage\n100..0\n0..100\nward\nsurgery, medicine\n\n";
    let text = written(&["nowhere/visits.csv"], answers).unwrap();
    for line in [
        "train = \"nowhere/visits.csv\"",
        "records = 500",
        "epsilon = 3.0",
        "delta = 1e-5",
        "label = \"sick\"",
        "classes = [\"no\", \"yes\"]",
        "name = \"age\"\nbounds = [0, 100]",
        "name = \"ward\"\ncategories = [\"surgery\", \"medicine\"]",
        "expected_batch = 256",
        "rounds = 200",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
}

#[test]
fn flags_are_not_asked_for() {
    let words = [
        "images.npy",
        "--labels",
        "labels.npy",
        "--shape",
        "28,28",
        "--bounds",
        "0..255",
        "--classes",
        "10",
        "--records",
        "60000",
        "--epsilon",
        "1",
        "--delta",
        "1e-6",
    ];
    let text = written(&words, "").unwrap();
    for line in
        ["classes = 10", "shape = [28, 28]", "bounds = [0, 255]", "delta = 1e-6", "rounds = 400"]
    {
        assert!(text.contains(line), "{line}: {text}");
    }
    let number = [
        "a.csv",
        "--label",
        "y",
        "--label-bounds",
        "-1..1",
        "--numeric",
        "x=-5..5",
        "--records",
        "1000",
        "--epsilon",
        "2",
        "--user",
        "who",
        "--max-examples",
        "4",
    ];
    let text = written(&number, "\n").unwrap();
    assert!(text.contains("label_bounds = [-1, 1]") && text.contains("lr = 1.0"), "{text}");
    assert!(text.contains("record = { user = \"who\", max_examples = 4 }"), "{text}");
}

#[test]
fn an_input_that_ends_is_an_error_that_names_the_flag() {
    let error = written(&["visits.csv"], "500\n").err().unwrap().to_string();
    assert!(error.contains("--epsilon") && error.contains("the input ended"), "{error}");
}
