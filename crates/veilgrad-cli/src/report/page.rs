//! The report as one self-contained HTML page: no script, no font, no network.

use std::fmt::Write;

use veilgrad_accounting::claim;
use veilgrad_accounting::display::{claimed_noise_down, down, percent, percent_down, runs, up};

use super::chart::{Line, Scale, bars, escape};
use super::document::{Attacker, Audit, Correlated, Curves, Group, Report};
use super::layout::{document, figure, numbers};
use super::section::{
    SELECTED, attacker_section, configuration_section, estimate, estimates_section, records_of,
    run_section,
};
use crate::output::significant;

pub(crate) fn page(report: &Report) -> String {
    let mut body = String::new();
    // Writing to a string does not fail.
    let _ = write!(
        body,
        "<h1>Privacy report: {}</h1>\n<p class=\"lead\">{} rounds of private training, protecting {}, under \
         {} adjacency{}.</p>\n",
        escape(&report.dataset),
        report.rounds,
        escape(&unit(&report.unit)),
        escape(&report.adjacency),
        report.date.as_ref().map_or(String::new(), |date| format!("; begun on {}", escape(date)))
    );
    if let Some(reason) = &report.reason {
        let reason = escape(reason);
        let _ = writeln!(body, "<p class=\"warning\">NOTHING MAY BE CLAIMED: {reason}.</p>");
    }
    for warning in &report.warnings {
        let _ = writeln!(body, "<p class=\"warning\">{}</p>", escape(warning));
    }
    if let Some(audit) = &report.audit {
        stamp(&mut body, audit);
    }
    numbers(&mut body, &cards(report));
    if let Some(Attacker { advantage, true_positive_rate, .. }) = report.attacker {
        let attacker = claim::Attacker { advantage, true_positive_rate };
        attacker_section(&mut body, &attacker, records_of(&report.unit));
    }
    privacy_figures(&mut body, &report.curves, report.delta);
    groups(&mut body, report);
    estimates_section(&mut body, report);
    run_section(&mut body, report);
    if let Some(audit) = &report.audit {
        audit_section(&mut body, audit);
    }
    body.push_str("<h2>Statement</h2>\n");
    for paragraph in report.statement.split("\n\n") {
        // Every paragraph begins with its topic.
        let (about, rest) = paragraph.trim().split_once(". ").unwrap_or(("", paragraph));
        let rest = escape(rest).replace('\n', "<br>");
        let _ = writeln!(body, "<p><b>{}.</b> {rest}</p>", escape(about));
    }
    configuration_section(&mut body, report);
    let _ = write!(
        body,
        "<h2>Check it</h2>\n<p>With the ledger at hand:</p>\n<pre><code>veilgrad ledger \
         verify LEDGER --against {}\nveilgrad account LEDGER --dataset {} --delta {:e}</code></pre>\n",
        escape(&report.ledger.head.head),
        escape(&report.dataset),
        report.delta
    );
    document(&format!("Privacy report: {}", report.dataset), &body)
}

/// Marks the page as that of an audit.
fn stamp(body: &mut String, audit: &Audit) {
    let line = escape(&audit.line());
    let _ = match audit.contradicted {
        true => writeln!(body, "<p class=\"warning\">THE AUDIT CONTRADICTS THE CLAIM: {line}.</p>"),
        false => writeln!(body, "<p class=\"stamp\">AUDIT: {line}.</p>"),
    };
}

/// The result of the audit, and what it covers.
fn audit_section(body: &mut String, audit: &Audit) {
    let _ = write!(
        body,
        "<h2 id=\"audit\">Audit</h2>\n<p>There were {canaries} canaries, each in the data with probability 1/2. A canary \
         is an artificial record whose vector is longer than the clip norm, in a coordinate that no other record uses. From \
         what the rounds released in these coordinates, the auditor guessed for {guesses} of them whether they are in the \
         data; this number was fixed before the run. {correct} guesses were right. With {confidence} confidence this \
         contradicts every epsilon below {lower} at delta {delta:e}, for rounds of this kind; the claim is {claimed}.</p>\n\
         <p><b>What it tests:</b> sampler, clipping, certificate, sum, noise and release, as they ran in this run, with \
         its threads and settings. The more canaries and rounds, the smaller the defects that it notices: half of the noise, \
         twice the rate or full batches at epsilon 3 with 250 rounds and 5000 canaries.</p>\n\
         <p><b>What it does not test:</b> the code that computes gradients, and rounds before training, such as those of \
         preconditioning, which have no canaries. Canaries do not go through the model, so a \
         gradient that mixes records would not be noticed. A bound below the claim does not prove the claim: a better \
         auditor might find more.</p>\n\
         <p>The canaries did not affect the weights. They cost no extra budget: the noise of a round covers them as it \
         covers every record.</p>\n",
        canaries = audit.canaries,
        guesses = audit.guesses,
        correct = audit.correct,
        confidence = percent_down(audit.confidence),
        lower = down(audit.epsilon_lower),
        delta = audit.delta,
        claimed = up(audit.claimed),
    );
}

fn unit(unit: &str) -> String {
    match unit {
        "example" => "single examples".to_owned(),
        "user" => "users with all their examples".to_owned(),
        "node" => "nodes of a federation with all their data".to_owned(),
        other => other.to_owned(),
    }
}

/// The numbers of a report in large type, with their names.
fn cards(report: &Report) -> Vec<(String, String)> {
    let delta = format!("epsilon, at delta {:e}", report.delta).replace('-', "\u{2011}");
    let mut cards = vec![
        (report.shown_epsilon(), delta),
        (claimed_noise_down(report.noise_multiplier), "noise multiplier".to_owned()),
    ];
    // A tuning with a public test set chose by what the set says.
    let selected = if report.tuning.is_some() { format!(" ({SELECTED})") } else { String::new() };
    if let Some(accuracy) = report.test_accuracy {
        let name = format!("accuracy on the public test set{selected}");
        cards.push((percent(accuracy), name));
    }
    if let Some(error) = report.test_mean_absolute_error {
        let name = format!("mean absolute error on the public test set{selected}");
        cards.push((significant(error, 6), name));
    }
    if let Some(temperature) = report.temperature {
        let name = "temperature of probabilities, fitted on public examples".to_owned();
        cards.push((format!("{temperature:.3}"), name));
    }
    if let Some(running) = report.epsilon_running {
        cards.push((up(running), "epsilon charged to the data so far, all runs".to_owned()));
    }
    if let Some(tuning) = &report.tuning {
        let name = "runs on average, a secret number, of which the best was released".to_owned();
        cards.push((runs(tuning.mean_runs), name));
    }
    for metric in &report.metrics {
        if let [value] = metric.values[..] {
            let name = format!("training {} (private estimate)", metric.name);
            cards.push((estimate(metric, value), name));
        }
    }
    cards
}

/// Captions and charts of a guarantee: epsilon after every round, privacy profile, best attack.
pub(crate) fn privacy_charts(curves: &Curves, delta: f64) -> [(String, String); 3] {
    let (y_scale, beside) = (Scale::Linear, None);
    let (title, x, y) = ("Epsilon after every round", "rounds", "epsilon");
    let spent = Line { title, x, y, y_scale, points: &curves.spent, beside };
    let (title, x, y) = ("Delta at every epsilon", "epsilon", "delta");
    let profile = Line { title, x, y, y_scale: Scale::Log, points: &curves.profile, beside };
    let (title, x, y) = ("The best attack", "false positive rate", "true positive rate");
    let beside = Some(("guessing", &[(0.0, 0.0), (1.0, 1.0)][..]));
    let attack = Line { title, x, y, y_scale, points: &curves.attack, beside };
    [
        (format!("Epsilon after every round, at delta {delta:e}"), spent.svg()),
        ("Every (epsilon, delta) that holds".to_owned(), profile.svg()),
        ("No attack on one record is above this line".to_owned(), attack.svg()),
    ]
}

/// These charts as a section of a page; nothing if there are no curves.
pub(super) fn privacy_figures(body: &mut String, curves: &Curves, delta: f64) {
    if curves.spent.is_empty() {
        return;
    }
    body.push_str("<h2>How much is spent, and what it means</h2>\n<div class=\"charts\">\n");
    for (caption, svg) in privacy_charts(curves, delta) {
        figure(body, &caption, &svg);
    }
    body.push_str("</div>\n");
}

fn groups(body: &mut String, report: &Report) {
    let title = if report.uniform { "What every round releases" } else { "What rounds release" };
    let _ = writeln!(body, "<h2>{title}</h2>");
    let bars_of = |title: &str, bar: &dyn Fn(&Group) -> (f64, String)| {
        let bar = |group| (bar(group), group.name.clone());
        let all = report.groups.iter().map(bar).map(|((size, text), name)| (name, size, text));
        bars(title, &all.collect::<Vec<_>>())
    };
    body.push_str("<div class=\"charts\">\n");
    let shares = bars_of("Share of the privacy loss", &|group| (group.share, percent(group.share)));
    figure(body, "Share of a round's privacy loss", &shares);
    let noise = bars_of("Noise versus clip norm", &|group| {
        let ratio = group.noise / group.clip;
        (ratio, format!("{} x clip {}", claimed_noise_down(ratio), up(group.clip)))
    });
    let is_correlated = report.groups.iter().any(|group| group.correlated.is_some());
    let caption = match is_correlated {
        true => "Noise for each turn of a record, as a multiple of its bound",
        false => "Noise on the sum, as a multiple of one record's bound",
    };
    figure(body, caption, &noise);
    body.push_str("</div>\n");
    body.push_str(
        "<div class=\"scroll\"><table><thead><tr><th>group</th><th class=\"n\">numbers</th>\
         <th class=\"n\">clip norm</th><th class=\"n\">noise</th><th class=\"n\">share</th></tr></thead>\n",
    );
    for group in &report.groups {
        let _ = writeln!(
            body,
            "<tr><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td>\
             <td class=\"n\">{}</td></tr>",
            escape(&group.name),
            group.dimension.map_or_else(|| "\u{2013}".to_owned(), |numbers| numbers.to_string()),
            up(group.clip),
            claimed_noise_down(group.noise),
            percent(group.share)
        );
    }
    body.push_str("</table></div>\n");
    for group in &report.groups {
        if let Some(Correlated { bands, noise_on_sum }) = group.correlated {
            let _ = writeln!(
                body,
                "<p>The noise of {} is correlated over {bands} rounds. {} is the noise for each turn of a record, over all \
                 rounds that it affects; the sum of a single round has more, {}, most of which cancels in the model.</p>",
                escape(&group.name),
                claimed_noise_down(group.noise),
                claimed_noise_down(noise_on_sum)
            );
        }
    }
}
