//! A plan as a self-contained page.

use std::fmt::Write;

use veilgrad_accounting::claim::{Attacker, warnings};
use veilgrad_accounting::display::up;

use super::chart::escape;
use super::document::Curves;
use super::layout::{document, facts, numbers};
use super::page::privacy_figures;
use super::section::{attacker_section, attacker_words};
use crate::advice::Note;

/// A solved plan, for people. Numbers that are text are rounded to the safe side.
pub(crate) struct PlanPage {
    /// What was solved for.
    pub(crate) solved: &'static str,
    pub(crate) delta: f64,
    /// None without a solution.
    pub(crate) epsilon: Option<f64>,
    pub(crate) noise: Option<String>,
    pub(crate) rounds: Option<u64>,
    pub(crate) batch: Option<f64>,
    pub(crate) records: Option<u64>,
    pub(crate) attacker: Option<Attacker>,
    /// What the numbers are for, if not for one record and one run, in sentences.
    pub(crate) scope: Vec<String>,
    /// Who may be in the data: "records", or people with several of them.
    pub(crate) subjects: String,
    /// Why there is no solution.
    pub(crate) reason: Option<String>,
    /// All values as `plan` prints them.
    pub(crate) table: String,
    /// Advice on the settings.
    pub(crate) advice: Vec<Note>,
    /// The configuration that says the same, or why there is none.
    pub(crate) configuration: Option<Result<Configuration, String>>,
}

/// The part of a configuration that says the same as a plan, to be copied.
pub(crate) struct Configuration {
    pub(crate) toml: String,
    /// The command that does what the plan is for.
    pub(crate) command: String,
}

impl PlanPage {
    /// The values in large type: the row of the table, the value, and its name. The one that was solved for says so.
    pub(crate) fn cards(&self) -> Vec<(&'static str, String, String)> {
        let delta = format!("epsilon, at delta {:e}", self.delta).replace('-', "\u{2011}");
        let cards = [
            ("epsilon", self.epsilon.map(up), delta),
            ("noise multiplier", self.noise.clone(), "noise multiplier".to_owned()),
            ("rounds", self.rounds.map(|rounds| rounds.to_string()), "rounds".to_owned()),
            (
                "rate",
                self.batch.map(|batch| batch.to_string()),
                match self.records {
                    Some(records) => format!("batch, of {records} records"),
                    None => "batch".to_owned(),
                },
            ),
        ];
        let known = cards.into_iter().filter_map(|(row, value, name)| Some((row, value?, name)));
        known
            .map(|(row, value, name)| match row == self.solved {
                true => (row, value, format!("{name} (solved)")),
                false => (row, value, name),
            })
            .collect()
    }

    /// What the plan means for an attacker, in sentences.
    pub(crate) fn words(&self) -> Vec<String> {
        let attacker = self.attacker.iter();
        let words = attacker.flat_map(|attacker| attacker_words(attacker, &self.subjects));
        self.scope.iter().cloned().chain(words).collect()
    }

    pub(crate) fn warnings(&self) -> Vec<String> {
        self.epsilon.map_or_else(Vec::new, |epsilon| warnings(epsilon, self.delta, self.records))
    }
}

/// The page: values, attacker, curves, advice on other batch sizes, on correlated noise and on the settings, and a configuration.
pub(crate) fn plan_page(
    plan: &PlanPage,
    curves: &Curves,
    batches: &[[String; 3]],
    correlated: &str,
) -> String {
    let mut body = "<h1>Privacy plan</h1>\n<p class=\"lead\">A plan promises nothing yet: the report of a run says what \
                    holds.</p>\n"
        .to_owned();
    // Writing to a string does not fail.
    for warning in plan.warnings() {
        let _ = writeln!(body, "<p class=\"warning\">{}</p>", escape(&warning));
    }
    let cards = plan.cards().into_iter().map(|(_, value, name)| (value, name));
    numbers(&mut body, &cards.collect::<Vec<_>>());
    for sentence in &plan.scope {
        let _ = writeln!(body, "<p>{}</p>", escape(sentence));
    }
    if let Some(attacker) = &plan.attacker {
        attacker_section(&mut body, attacker, &plan.subjects);
    }
    privacy_figures(&mut body, curves, plan.delta);
    if batches.len() > 1 {
        body.push_str(
            "<h2>Other batch sizes</h2>\n<p>With the same number of rounds, a larger batch has less noise in the \
             average.</p>\n<div class=\"scroll\"><table><thead><tr><th class=\"n\">batch</th>\
             <th class=\"n\">noise multiplier</th><th class=\"n\">noise / batch</th></tr></thead>\n",
        );
        for [batch, noise, ratio] in batches {
            let _ = writeln!(
                body,
                "<tr><td class=\"n\">{batch}</td><td class=\"n\">{noise}</td><td class=\"n\">{ratio}</td></tr>"
            );
        }
        body.push_str("</table></div>\n");
    }
    if !correlated.is_empty() {
        let text = escape(correlated);
        let _ = write!(body, "<h2>Correlated noise</h2>\n<p>{text}</p>\n");
    }
    if !plan.advice.is_empty() {
        body.push_str("<h2>Advice</h2>\n<ul>\n");
        for Note { about, text } in &plan.advice {
            let _ = writeln!(body, "<li><b>{about}</b>: {}</li>", escape(text));
        }
        body.push_str("</ul>\n");
    }
    if let Some(configuration) = &plan.configuration {
        body.push_str("<h2>For a configuration</h2>\n");
        let _ = match configuration {
            Ok(Configuration { toml, command }) => writeln!(
                body,
                "<pre><code>{}</code></pre>\n<p>Run it: <code>{}</code>.</p>",
                escape(toml),
                escape(command)
            ),
            Err(why) => writeln!(body, "<p>There is none: {}.</p>", escape(why)),
        };
    }
    body.push_str("<h2>All values</h2>\n");
    let rows: Vec<(&str, String)> = plan
        .table
        .lines()
        .map(|line| line.split_at_checked(18).unwrap_or((line, "")))
        .map(|(name, value)| (name.trim(), value.trim().to_owned()))
        .collect();
    facts(&mut body, &rows);
    document("Privacy plan", &body)
}
