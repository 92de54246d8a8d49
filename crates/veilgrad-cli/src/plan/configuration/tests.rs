//! A configuration that is copied from a plan has the plan's epsilon.

use clap::Parser;

use crate::argument::{Arguments, Command, Plan};
use crate::plan::Solved;
use crate::report::Curves;
use crate::report::plan_page::plan_page;
use crate::train::check::tests::EXAMPLE;
use crate::train::config::Config;
use crate::train::job::Job;

fn plan(options: &str) -> Plan {
    let words = "veilgrad plan --records 600 --delta 1e-5 ".to_owned() + options;
    match Arguments::try_parse_from(words.split_whitespace()).unwrap().command {
        Command::Plan(plan) => plan,
        _ => panic!("{options}"),
    }
}

/// A part of a configuration, and the command that takes it.
type Copied = (String, String);

/// The configuration of a plan with its command, and its epsilon; `None` if the plan has no answer.
fn copied(options: &str) -> Option<(Result<Copied, String>, f64)> {
    let found = Solved::with(&plan(options), true, |solved| {
        let page = solved.page();
        let found = page.configuration?;
        Some((found.map(|found| (found.toml, found.command)), page.epsilon?))
    });
    found.ok()?
}

/// A whole configuration with these keys, instead of those of the example.
fn completed(toml: &str) -> Config {
    let mut whole: toml::Table = EXAMPLE.replace("\"scattering\"", "\"none\"").parse().unwrap();
    let part: toml::Table = toml.parse().unwrap();
    for name in ["privacy", "data", "train"] {
        let table = whole[name].as_table_mut().unwrap();
        if name == "privacy" {
            table.clear();
        }
        table.extend(part[name].as_table().unwrap().clone());
    }
    let text = toml::to_string(&whole).unwrap();
    Config::parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

const SAMPLINGS: [(&str, bool); 6] = [
    ("poisson", false),
    ("allocation", false),
    ("all", false),
    ("truncated", true),
    ("fixed", true),
    ("shuffle", true),
];

#[test]
fn what_is_copied_from_a_plan_has_its_epsilon() {
    for (sampling, needs_count) in SAMPLINGS {
        let mut compared = 0;
        for adjacency in ["add-remove", "replace-one"] {
            for parameters in [
                "--batch 60 --steps 20 --epsilon 3",
                "--batch 60 --steps 20 --noise-multiplier 4",
                "--batch 60 --epsilon 3 --noise-multiplier 12 --solve steps",
                "--steps 20 --epsilon 3 --noise-multiplier 6 --solve rate",
                "--batch 60 --steps 20 --advantage 0.3",
                "--batch 60 --steps 20 --epsilon 3 --accountant rdp",
                "--batch 60 --steps 20 --epsilon 3 --max-batch 70",
            ] {
                let options = format!("--sampling {sampling} --adjacency {adjacency} {parameters}");
                let Some((found, epsilon)) = copied(&options) else { continue };
                if needs_count && adjacency == "add-remove" {
                    let why = found.unwrap_err();
                    assert!(why.contains("private under add-remove"), "{options}: {why}");
                    continue;
                }
                let (toml, command) = found.unwrap_or_else(|why| panic!("{options}: {why}"));
                let config = completed(&toml);
                let job = Job::new(config, Some(1)).unwrap_or_else(|error| panic!("{error}"));
                let trained = job.guarantee.epsilon;
                // Another accountant than the tightest gave more.
                let is_same = match parameters.contains("rdp") {
                    true => trained <= epsilon * (1.0 + 1e-9),
                    false => (trained / epsilon - 1.0).abs() < 1e-5,
                };
                assert!(is_same, "{options}: {trained}, not {epsilon}\n{toml}");
                assert_eq!(command, "veilgrad train CONFIG.toml");
                compared += 1;
            }
        }
        // Not every question has an answer for every sampling, such as a maximum of batches that have none.
        assert!(compared >= 3, "{sampling}: {compared}");
    }
}

#[test]
fn what_is_copied_for_a_choice_among_runs_is_the_command_that_makes_it() {
    for (distribution, is_drawn) in
        [("geometric", true), ("logarithmic", true), ("poisson", true), ("0.5", false)]
    {
        let options = format!(
            "--batch 60 --steps 20 --epsilon 3 --tuning-mean-runs 5 --tuning-distribution {distribution}"
        );
        let (found, epsilon) = copied(&options).unwrap();
        let Ok((toml, command)) = found else {
            assert!(!is_drawn && found.unwrap_err().contains("veilgrad tune"), "{options}");
            continue;
        };
        assert!(is_drawn, "{options}");
        let words = command.split_whitespace();
        let Command::Tune(tune) = Arguments::try_parse_from(words).unwrap().command else {
            panic!("{command}");
        };
        let tuning = tune.tuning().ok().unwrap();
        let job = Job::plan(completed(&toml), Some(1), Some(tuning)).ok().unwrap();
        let tuned = job.guarantee.epsilon;
        assert!((tuned / epsilon - 1.0).abs() < 1e-4, "{options}: {tuned}, not {epsilon}\n{toml}");
    }
}

#[test]
fn a_plan_that_no_configuration_says_has_a_reason() {
    let (found, _) = copied("--batch 60 --steps 0 --noise-multiplier 1").unwrap();
    assert!(found.unwrap_err().contains("at least one round"));
    let arguments = "veilgrad plan --rate 0.1 --steps 9 --delta 1e-5 --epsilon 3";
    let Command::Plan(plan) =
        Arguments::try_parse_from(arguments.split_whitespace()).unwrap().command
    else {
        panic!("{arguments}");
    };
    let found =
        Solved::with(&plan, true, |solved| solved.page().configuration.map(|found| found.err()));
    assert_eq!(
        found.ok().unwrap().unwrap().unwrap(),
        "a configuration needs the number of records"
    );
}

#[test]
fn the_page_of_a_plan_has_the_advice_and_what_is_copied() {
    let page = |options: &str| {
        let draw = |solved: &Solved<'_>| plan_page(&solved.page(), &Curves::default(), &[], "");
        Solved::with(&plan(options), true, draw).ok().unwrap()
    };
    let found = page("--batch 60 --steps 20 --epsilon 3");
    for about in ["epsilon", "delta", "batch", "rounds", "clip norm", "learning rate"] {
        assert!(found.contains(&format!("<li><b>{about}</b>: ")), "{about}: {found}");
    }
    assert!(found.contains("<code>veilgrad train CONFIG.toml</code>"), "{found}");
    let found = page("--batch 60 --steps 20 --epsilon 3 --sampling fixed");
    assert!(found.contains("<p>There is none: no run has this plan"), "{found}");
}
