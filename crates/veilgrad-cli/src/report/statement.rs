//! The promise in plain words, with its conditions.

use super::Report;
use veilgrad_accounting::display::{claimed_noise_down, up};

/// A few paragraphs that a privacy officer can sign or refuse.
pub(crate) fn statement(report: &Report) -> String {
    let mut text = String::new();
    if report.insecure {
        text.push_str(
            "THIS RUN PROTECTS NOTHING. It was made with noise that somebody could know, for a test, and \
             its ledger says so for ever.\n\n",
        );
    }
    let records = match report.unit.as_str() {
        "user" => "all examples of one user (those that count)".to_owned(),
        "example" => "one example".to_owned(),
        other => match other.split_once(':') {
            Some((_, examples)) => format!(
                "one microbatch of {examples} examples (replacing one example inside of it is twice that)"
            ),
            None => format!("one {other}"),
        },
    };
    let change = match report.adjacency.as_str() {
        "add-remove" => "is in the data or not",
        "replace-one" => "is in the data or another one is in its place",
        _ => "is in the data or counts as zero",
    };
    text.push_str(&format!(
        "What is promised. Everything that training on {:?} released (the model, and the numbers in this \
         report that are marked as private estimates) is ({}, {:e})-differentially private for {records}, \
         under {} adjacency: whoever sees all of it, and knows everything else, can hardly tell whether \
         {records} {change}. {}\n\n",
        report.dataset,
        up(report.epsilon),
        report.delta,
        report.adjacency,
        source(report)
    ));
    let rate = report.rate.map_or(String::new(), |rate| format!(" at rate {}", up(rate)));
    let sampling = match report.sampling.as_str() {
        "poisson" => {
            format!("each record was chosen by itself{rate} in every round (Poisson sampling)")
        }
        "fixed" => {
            format!("a batch of fixed size was drawn without replacement{rate} in every round")
        }
        "shuffle" => {
            "the data was shuffled and went through in batches; the shuffling is not counted as \
                      protection"
                .to_owned()
        }
        "all" => "all records were used in every round".to_owned(),
        "mixed" => "samples were drawn as the ledger says, not alike in all rounds".to_owned(),
        other => format!("samples were drawn as the ledger says ({other})"),
    };
    let groups: Vec<String> = report
        .groups
        .iter()
        .map(|group| {
            let numbers =
                group.dimension.map_or(String::new(), |numbers| format!("{numbers} numbers, "));
            format!(
                "{} ({numbers}clipped to norm {}, noise {} on the sum)",
                group.name,
                group.clip,
                claimed_noise_down(group.noise)
            )
        })
        .collect();
    text.push_str(&format!(
        "What was done. In each of {} rounds, {sampling}. From that one sample were released{}: {}. All of a \
         round together is one Gaussian mechanism with noise multiplier {}{}. Every round was charged to the \
         ledger, on disk, before its sample was drawn.\n\n",
        report.rounds,
        if report.uniform { "" } else { ", in the last round (the ledger has all of them)" },
        groups.join("; "),
        claimed_noise_down(report.noise_multiplier),
        if report.uniform { "" } else { " or more" },
    ));
    text.push_str(match report.numerics.as_str() {
        "exact" => {
            "Arithmetic. Contributions of records are integers whose norm was certified without rounding, \
             and the noise is exact Gaussian noise on the same grid from a cryptographic generator keyed by \
             the operating system; no floating-point rounding enters the promise.\n\n"
        }
        _ => {
            "Arithmetic. It was NOT established that a record's contribution depends on that record alone \
             in floating-point arithmetic (numerics: unverified).\n\n"
        }
    });
    let runs = match report.runs {
        1 => "This ledger has one run on this data.".to_owned(),
        runs => {
            format!("This ledger has {runs} runs on this data, and the number covers all of them.")
        }
    };
    let chosen = match report.mode.as_str() {
        "adaptive" => {
            "Rounds may have been chosen from what earlier ones released, as the ledger's budget allows for; \
             nothing else about them was chosen by looking at this data"
        }
        _ => {
            "The number of rounds, sampling and noise were fixed before the first round and not chosen by \
             looking at this data"
        }
    };
    text.push_str(&format!(
        "What is assumed. {runs} {chosen}; settings that were tuned on it in other runs are covered \
         only if those runs are in the same ledger. The declared sizes, bounds and classes are public. The \
         generator is as good as ideal randomness. Nobody saw the memory of the machine or measured its \
         time.\n\n"
    ));
    let test = match report.test_accuracy {
        Some(_) => "The test set was declared public and has no protection. ",
        None => "",
    };
    let seconds = match report.seconds {
        Some(_) => ", of which the report gives whole seconds",
        None => "",
    };
    text.push_str(&format!(
        "What is not covered. {test}The input file and the ledger's own protection against theft are not, nor is \
         the time that training took{seconds}. \
         Copies of the ledger that go different ways each keep only what they know; ledger {} ended at row \
         {}, and its head is:\n{}\n",
        report.ledger.id, report.ledger.sequence, report.ledger.head
    ));
    text
}

/// Where epsilon comes from.
fn source(report: &Report) -> String {
    let version = env!("CARGO_PKG_VERSION");
    if report.accountant == "budget" {
        let running = report.epsilon_running.map_or(String::new(), |running| {
            format!(" All rounds charged so far come to {}.", up(running))
        });
        return format!(
            "Epsilon is what the ledger of veilgrad {version} allows all runs together, whatever is still \
             charged.{running}"
        );
    }
    format!(
        "Epsilon is an upper bound that includes its own numerical error, computed by the accountant '{}' of \
         veilgrad {version} from the ledger's events.",
        report.accountant
    )
}
