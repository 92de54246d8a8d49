//! The report as one self-contained HTML page: no script, no font, no network.

use std::fmt::Write;

use veilgrad_accounting::display::{claimed_noise_down, down, up};

use super::chart::{Line, Scale, bars, escape};
use super::document::{Audit, Curves, Group, Report};

const STYLE: &str = "
:root{--ink:#1b1f24;--soft:#57606a;--line:#d0d7de;--paper:#fff;--card:#f6f8fa;--blue:#1f5fbf;--red:#b42318}
@media (prefers-color-scheme:dark){:root{--ink:#e6edf3;--soft:#9198a1;--line:#3d444d;--paper:#0d1117;
--card:#161b22;--blue:#6ea8fe;--red:#ff8a80}}
*{box-sizing:border-box}
body{font:16px/1.55 system-ui,sans-serif;color:var(--ink);background:var(--paper);margin:0 auto;
max-width:72rem;padding:1.5rem 1rem 4rem}
h1{font-size:1.6rem;margin:.2em 0}h2{font-size:1.15rem;margin:2.2em 0 .5em}
p,pre,table{max-width:48rem}p.lead{color:var(--soft);margin:.2em 0 1.4em}
.numbers{display:grid;grid-template-columns:repeat(auto-fit,minmax(10rem,1fr));gap:.8rem}
.number{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:.8rem 1rem}
.number b{display:block;font-size:1.5rem;line-height:1.2}.number span{color:var(--soft);font-size:.85rem}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,20rem),1fr));gap:1rem 2rem}
figure{margin:0 0 1rem}p,td{overflow-wrap:anywhere}figcaption{font-size:.9rem;color:var(--soft);margin-bottom:.3rem}
svg{width:100%;height:auto;display:block}
svg text{font:13px system-ui,sans-serif;fill:var(--soft)}svg .name{fill:var(--ink)}
svg .grid{stroke:var(--line)}svg .tick,svg .axis{stroke:var(--soft)}
svg .line{fill:none;stroke:var(--blue);stroke-width:2.5}
svg .beside{fill:none;stroke:var(--soft);stroke-dasharray:5 5}svg rect{fill:var(--blue)}svg .on{fill:var(--paper)}
.scroll{overflow-x:auto}table{border-collapse:collapse;width:100%;font-size:.92rem}
th,td{text-align:left;padding:.35rem .8rem .35rem 0;border-bottom:1px solid var(--line);vertical-align:top}
th:last-child,td:last-child{padding-right:0}
td:first-child,.w{white-space:nowrap}td.n,th.n{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}
.warning{border:2px solid var(--red);color:var(--red);border-radius:8px;padding:.8rem 1rem;font-weight:600}
.stamp{border:2px solid var(--blue);border-radius:8px;padding:.8rem 1rem;font-weight:600}
pre{white-space:pre-wrap}code{overflow-wrap:anywhere}
@media (max-width:30rem){body{padding:1rem .8rem 3rem}table{font-size:.8rem}th,td{padding-right:.5rem}}
@media print{body{max-width:none;padding:0;font-size:11pt}figure,.number,tr{break-inside:avoid}
:root{--ink:#000;--soft:#444;--line:#bbb;--paper:#fff;--card:#fff;--blue:#1f5fbf}}
";

pub(crate) fn page(report: &Report) -> String {
    let mut body = String::new();
    // Writing to a string does not fail.
    let _ = write!(
        body,
        "<h1>Privacy report: {}</h1>\n<p class=\"lead\">{} rounds of private training, protecting {}, under \
         {} adjacency.</p>\n",
        escape(&report.dataset),
        report.rounds,
        escape(&unit(&report.unit)),
        escape(&report.adjacency)
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
    numbers(&mut body, report);
    privacy_figures(&mut body, &report.curves, report.delta);
    groups(&mut body, report);
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

/// The curves and the table of a plan, as a page.
pub(crate) fn plan_page(curves: &Curves, delta: f64, table: &str) -> String {
    let mut body = "<h1>Privacy plan</h1>\n<div class=\"scroll\"><table>\n".to_owned();
    for line in table.lines() {
        let (name, value) = line.split_at_checked(18).unwrap_or((line, ""));
        // Writing to a string does not fail.
        let (name, value) = (escape(name.trim()), escape(value.trim()));
        let _ = writeln!(body, "<tr><th>{name}</th><td>{value}</td></tr>");
    }
    body.push_str("</table></div>\n");
    privacy_figures(&mut body, curves, delta);
    document("Privacy plan", &body)
}

/// A self-contained page.
pub(crate) fn document(title: &str, body: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head><meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n\
         <title>{}</title>\n<style>{STYLE}</style></head>\n<body>\n{body}</body>\n</html>\n",
        escape(title)
    )
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
         data; this number was fixed before the run. {correct} guesses were right. With {confidence} % confidence this \
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
        confidence = 100.0 * audit.confidence,
        lower = down(audit.epsilon_lower),
        delta = audit.delta,
        claimed = up(audit.claimed),
    );
}

fn unit(unit: &str) -> String {
    match unit {
        "example" => "single examples".to_owned(),
        "user" => "users with all their examples".to_owned(),
        other => other.to_owned(),
    }
}

fn numbers(body: &mut String, report: &Report) {
    let delta = format!("epsilon, at delta {:e}", report.delta).replace('-', "\u{2011}");
    let mut cards = vec![
        (report.shown_epsilon(), delta),
        (claimed_noise_down(report.noise_multiplier), "noise multiplier".to_owned()),
    ];
    if let Some(accuracy) = report.test_accuracy {
        let name = "accuracy on the public test set".to_owned();
        cards.push((format!("{:.2} %", 100.0 * accuracy), name));
    }
    if let Some(error) = report.test_mean_absolute_error {
        let name = "mean absolute error on the public test set".to_owned();
        cards.push((format!("{error:.4}"), name));
    }
    if let Some(temperature) = report.temperature {
        let name = "temperature of probabilities, fitted on public examples".to_owned();
        cards.push((format!("{temperature:.3}"), name));
    }
    if let Some(running) = report.epsilon_running {
        cards.push((up(running), "epsilon charged to the data so far, all runs".to_owned()));
    }
    for metric in &report.metrics {
        if let [value] = metric.values[..] {
            let name = format!("training {} (private estimate)", metric.name);
            cards.push((format!("{value:.3}"), name));
        }
    }
    body.push_str("<div class=\"numbers\">\n");
    for (value, name) in cards {
        let (value, name) = (escape(&value), escape(&name));
        let _ = writeln!(body, "<div class=\"number\"><b>{value}</b><span>{name}</span></div>");
    }
    body.push_str("</div>\n");
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
fn privacy_figures(body: &mut String, curves: &Curves, delta: f64) {
    if curves.spent.is_empty() {
        return;
    }
    body.push_str("<h2>How much is spent, and what it means</h2>\n<div class=\"charts\">\n");
    for (caption, svg) in privacy_charts(curves, delta) {
        figure(body, &caption, &svg);
    }
    body.push_str("</div>\n");
}

/// A chart with its caption; nothing if there is no chart.
pub(crate) fn figure(body: &mut String, caption: &str, svg: &str) {
    if !svg.is_empty() {
        let caption = escape(caption);
        let _ = writeln!(body, "<figure><figcaption>{caption}</figcaption>\n{svg}</figure>");
    }
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
    let shares = bars_of("Share of the privacy loss", &|group| {
        (group.share, format!("{:.1} %", 100.0 * group.share))
    });
    figure(body, "Share of a round's privacy loss", &shares);
    let noise = bars_of("Noise versus clip norm", &|group| {
        let ratio = group.noise / group.clip;
        (ratio, format!("{} x clip {}", claimed_noise_down(ratio), up(group.clip)))
    });
    figure(body, "Noise on the sum, as a multiple of one record's bound", &noise);
    body.push_str("</div>\n");
    body.push_str(
        "<div class=\"scroll\"><table><thead><tr><th>group</th><th class=\"n\">numbers</th>\
         <th class=\"n\">clip norm</th><th class=\"n\">noise</th><th class=\"n\">share</th></tr></thead>\n",
    );
    for group in &report.groups {
        let _ = writeln!(
            body,
            "<tr><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td>\
             <td class=\"n\">{:.2} %</td></tr>",
            escape(&group.name),
            group.dimension.map_or_else(|| "\u{2013}".to_owned(), |numbers| numbers.to_string()),
            up(group.clip),
            claimed_noise_down(group.noise),
            100.0 * group.share
        );
    }
    body.push_str("</table></div>\n");
}
