//! Sections of the report: the run, the attacker in plain words, private estimates, and the configuration.

use std::fmt::Write;

use serde_json::Value;
use veilgrad_accounting::claim::{Attacker, FALSE_POSITIVE_RATE};
use veilgrad_accounting::display::{percent, percent_up};

use super::chart::{bars_with_errors, escape};
use super::document::{Metric, Report};
use super::layout::{facts, figure};

/// Standard deviations on either side of a private estimate: about 95 % of estimates are that near.
const DEVIATIONS: f64 = 2.0;

/// How likely an attacker takes it to be beforehand that a record is in the data, for the sentence about beliefs.
const PRIOR: f64 = 0.1;
/// What is said of a number by which a tuning chose its run.
pub(crate) const SELECTED: &str = "chosen as the best of several runs: optimistic";

/// What an attack on one record can achieve, one sentence per number. Every number is rounded up.
pub(crate) fn attacker_words(attacker: &Attacker, records: &str) -> [String; 4] {
    let found = (100.0 * attacker.true_positive_rate).ceil().min(100.0);
    let right = (0.5 + 0.5 * attacker.advantage).next_up().min(1.0);
    [
        format!(
            "Suppose that somebody sees everything that is released, knows all other records, and names {records} that \
             may be in the data. If 1 of 100 {records} that are not in it is named, at most {found} of 100 that are in it \
             are named."
        ),
        format!(
            "If a coin decides whether a record is in the data, no attack is right about it in more than {} of cases; \
             guessing is right in {}.",
            percent_up(right),
            percent(0.5)
        ),
        format!(
            "Whoever took it for {} likely that a record is in the data takes it for at most {} likely after naming it, if \
             {} of {records} that are not in the data are named as well.",
            percent(PRIOR),
            percent_up(attacker.posterior(PRIOR)),
            percent(FALSE_POSITIVE_RATE)
        ),
        format!("That is {}.", attacker.protection().phrase()),
    ]
}

/// The section about the attacker.
pub(super) fn attacker_section(body: &mut String, attacker: &Attacker, records: &str) {
    body.push_str("<h2>What an attacker can learn</h2>\n");
    let words = attacker_words(attacker, records).map(|sentence| escape(&sentence));
    // Writing to a string does not fail.
    let _ = writeln!(body, "<p>{}</p>", words.join(" "));
}

/// What a unit of records is called in a sentence.
pub(super) fn records_of(unit: &str) -> &'static str {
    match unit {
        "example" => "examples",
        "user" => "users",
        "node" => "nodes",
        _ => "records",
    }
}

/// The facts of the run as a table.
pub(super) fn run_section(body: &mut String, report: &Report) {
    let mut rows: Vec<(&str, String)> = Vec::new();
    let unknown = || "unknown".to_owned();
    if let Some(date) = &report.date {
        rows.push(("begun on", format!("{date} (UTC)")));
    }
    let declared = |records: u64| format!("{records} {}", records_of(&report.unit));
    rows.push(("declared size", report.records.map_or_else(unknown, declared)));
    let batch = report.expected_batch.map_or_else(unknown, |batch| batch.to_string());
    let exact = matches!(report.sampling.as_str(), "fixed" | "shuffle");
    rows.push(("batch", if exact { batch } else { format!("{batch} expected") }));
    rows.push(("sampling", report.sampling.clone()));
    rows.push((
        "rounds",
        match report.charged == report.rounds {
            true => report.rounds.to_string(),
            false => format!("{} done, {} charged", report.rounds, report.charged),
        },
    ));
    if let Some(model) = &report.model {
        rows.push(("model", format!("{}, {} parameters", model.file, model.parameters)));
        rows.extend(model.sha256.iter().map(|hash| ("SHA-256 of the model", hash.clone())));
    }
    let hash = report.configuration_sha256.iter();
    rows.extend(hash.map(|hash| ("SHA-256 of the configuration", hash.clone())));
    rows.push((
        "ledger",
        format!("{}, row {}", report.ledger.head.id, report.ledger.head.sequence),
    ));
    body.push_str("<h2>The run</h2>\n");
    facts(body, &rows);
}

/// A private estimate of one number with its error: accuracies are percentages.
pub(super) fn estimate(metric: &Metric, value: f64) -> String {
    let error = metric.standard_error.map(|error| DEVIATIONS * error);
    let shown = |number: f64| match metric.name.as_str() {
        "accuracy" => percent(number),
        _ => format!("{number:.3}"),
    };
    match error {
        Some(error) => format!("{} ± {}", shown(value), shown(error)),
        None if metric.selected => format!("{} ({SELECTED})", shown(value)),
        None => shown(value),
    }
}

/// The private estimates of the last round, with error bars; nothing if there are none.
pub(super) fn estimates_section(body: &mut String, report: &Report) {
    if report.metrics.is_empty() {
        return;
    }
    body.push_str(
        "<h2>Private estimates</h2>\n<p>Measured on the sample of the last round, with noise.",
    );
    if report.metrics.iter().any(|metric| !metric.selected) {
        body.push_str(
            " The value after ± is two standard deviations of the noise and, for averages, of the choice of the sample: \
             about 95 of 100 such estimates are that near to the true value.",
        );
    }
    if report.metrics.iter().any(|metric| metric.selected) {
        body.push_str(
            " The run was chosen because this number was high in it, so that the noise is more likely to have raised it \
             than to have lowered it: no error is given.",
        );
    }
    body.push_str("</p>\n");
    let names = report.configuration.as_ref().and_then(|all| all.pointer("/data/classes"));
    let class =
        |place: usize| match names.and_then(|names| names.get(place)).and_then(Value::as_str) {
            Some(name) => name.to_owned(),
            None => place.to_string(),
        };
    let mut rows = Vec::new();
    for metric in &report.metrics {
        match metric.values[..] {
            [value] => rows.push((metric.name.as_str(), estimate(metric, value))),
            _ => {
                let error = DEVIATIONS * metric.standard_error.unwrap_or(f64::NAN);
                let bar = |(place, value): (usize, &f64)| {
                    (class(place), *value, error, format!("{value:.0} ± {error:.0}"))
                };
                let all: Vec<_> = metric.values.iter().enumerate().map(bar).collect();
                let chart = bars_with_errors("Examples of each class in the last sample", &all);
                body.push_str("<div class=\"charts\">\n");
                figure(body, "Examples of each class in the sample of the last round", &chart);
                body.push_str("</div>\n");
            }
        }
    }
    if !rows.is_empty() {
        facts(body, &rows);
    }
}

/// The configuration without paths, as TOML.
pub(super) fn configuration_section(body: &mut String, report: &Report) {
    let Some(text) = report.configuration.as_ref().and_then(toml_text) else { return };
    let _ = write!(
        body,
        "<h2>Configuration</h2>\n<p>Without paths, as the ledger has its SHA-256. All of it is declared.</p>\n\
         <pre><code>{}</code></pre>\n",
        escape(&text)
    );
}

/// A configuration as TOML; `None` if TOML cannot express it.
fn toml_text(configuration: &Value) -> Option<String> {
    let table = toml::Table::try_from(without_null(configuration)).ok()?;
    toml::to_string(&table).ok()
}

/// The value without keys that are null, which TOML does not have. Numbers that were single precision are spelled as such:
/// 0.9, not 0.8999999761581421.
fn without_null(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let kept = map.iter().filter(|(_, value)| !value.is_null());
            Value::Object(kept.map(|(key, value)| (key.clone(), without_null(value))).collect())
        }
        Value::Array(items) => Value::Array(items.iter().map(without_null).collect()),
        Value::Number(number) if number.is_f64() => {
            let exact = number.as_f64().unwrap_or(0.0);
            let single = exact as f32;
            let short = single.to_string().parse().unwrap_or(exact);
            Value::from(if f64::from(single) == exact { short } else { exact })
        }
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_attackers_numbers_are_rounded_up_in_plain_words() {
        let attacker = Attacker { advantage: 0.3001, true_positive_rate: 0.0701 };
        let [found, right, belief, grade] = attacker_words(&attacker, "users");
        // 0.1 * 0.0701 / (0.1 * 0.0701 + 0.9 * 0.01) = 43.785 %.
        assert!(belief.contains("10.00 % likely") && belief.contains("43.79 % likely"), "{belief}");
        assert!(
            found.contains("1 of 100 users that are not in it")
                && found.contains("at most 8 of 100")
        );
        assert!(right.contains("more than 65.01 %") && right.contains("50.00 %"), "{right}");
        assert_eq!(grade, "That is strong protection.");
        let all = Attacker { advantage: 1.0, true_positive_rate: 1.0 };
        let [found, right, ..] = attacker_words(&all, "records");
        assert!(found.contains("at most 100 of 100") && right.contains("more than 100.00 %"));
    }

    #[test]
    fn estimates_have_error_bars_of_two_standard_deviations() {
        let metric = |name: &str, error| Metric {
            name: name.to_owned(),
            values: vec![0.9],
            standard_error: error,
            selected: false,
        };
        let selected = Metric { selected: true, ..metric("accuracy", None) };
        assert_eq!(estimate(&selected, 0.9), format!("90.00 % ({SELECTED})"));
        assert_eq!(estimate(&metric("accuracy", Some(0.01)), 0.9), "90.00 % ± 2.00 %");
        assert_eq!(estimate(&metric("loss", Some(0.25)), 0.9), "0.900 ± 0.500");
        assert_eq!(estimate(&metric("loss", None), 0.9), "0.900");
    }

    #[test]
    fn configurations_are_toml_without_null_and_with_short_numbers() {
        let value = json!({
            "train": { "ema": f64::from(0.9_f32), "rounds": 7, "huber": null },
            "privacy": { "delta": 1e-5, "groups": [{ "vectors": ["a*"] }] },
        });
        let text = toml_text(&value).unwrap();
        assert!(text.contains("ema = 0.9\n") && text.contains("delta = 0.00001\n"), "{text}");
        assert!(text.contains("[[privacy.groups]]") && !text.contains("huber"), "{text}");
        let read: Value = toml::from_str(&text).unwrap();
        assert_eq!(read["privacy"]["delta"], 1e-5);
    }
}
