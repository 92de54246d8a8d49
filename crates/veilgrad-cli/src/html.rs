//! Curves in one self-contained page.

use std::fmt::Write;

use veilgrad_accounting::Profile;

const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 320.0;
const MARGIN: f64 = 48.0;

/// A page with epsilon after every round, the privacy profile and the trade-off curve.
pub(crate) fn page(spent: &[(u64, f64)], profile: &Profile, delta: f64) -> String {
    let rounds: Vec<(f64, f64)> = spent.iter().map(|(round, e)| (*round as f64, *e)).collect();
    let deltas: Vec<(f64, f64)> = profile
        .points()
        .iter()
        .filter(|(_, delta)| *delta > 0.0)
        .map(|(epsilon, delta)| (*epsilon, delta.log10()))
        .collect();
    let rates = (0..=100).map(|i| f64::from(i) / 100.0);
    let trade_off: Vec<(f64, f64)> =
        rates.map(|rate| (rate, profile.true_positive_rate(rate))).collect();
    let mut body = String::new();
    let title = format!("Epsilon after every round, at delta {delta:e}");
    chart(&mut body, &title, "rounds", "epsilon", &rounds);
    chart(&mut body, "Privacy profile (upper bound)", "epsilon", "log10 delta", &deltas);
    chart(
        &mut body,
        "Best attack (upper bound)",
        "false positive rate",
        "true positive rate",
        &trade_off,
    );
    format!(
        "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>Privacy plan</title>\n\
         <style>body{{font:16px system-ui;margin:2rem;max-width:40rem}}svg{{width:100%}}\
         path{{fill:none;stroke:#2563eb;stroke-width:2}}line{{stroke:#888}}\
         text{{font-size:12px;fill:#444}}</style>\n<h1>Privacy plan</h1>\n{body}</html>\n"
    )
}

fn chart(body: &mut String, title: &str, x_name: &str, y_name: &str, points: &[(f64, f64)]) {
    let range = |values: &dyn Fn(&(f64, f64)) -> f64| {
        let low = points.iter().map(values).fold(f64::INFINITY, f64::min);
        let high = points.iter().map(values).fold(f64::NEG_INFINITY, f64::max);
        if low < high { (low, high) } else { (low - 0.5, low + 0.5) }
    };
    let ((left, right), (bottom, top)) = (range(&|p| p.0), range(&|p| p.1));
    let x = |value: f64| MARGIN + (value - left) / (right - left) * (WIDTH - 2.0 * MARGIN);
    let y =
        |value: f64| HEIGHT - MARGIN - (value - bottom) / (top - bottom) * (HEIGHT - 2.0 * MARGIN);
    let mut path = String::new();
    for (index, (px, py)) in points.iter().enumerate() {
        let command = if index == 0 { 'M' } else { 'L' };
        // Writing to a string does not fail.
        let _ = write!(path, "{command}{:.2} {:.2}", x(*px), y(*py));
    }
    let (floor, end) = (HEIGHT - MARGIN, WIDTH - MARGIN);
    let _ = write!(
        body,
        "<h2>{title}</h2>\n<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{title}\">\
         <line x1=\"{MARGIN}\" y1=\"{floor}\" x2=\"{end}\" y2=\"{floor}\"/>\
         <line x1=\"{MARGIN}\" y1=\"{MARGIN}\" x2=\"{MARGIN}\" y2=\"{floor}\"/>\
         <path d=\"{path}\"/>\
         <text x=\"{MARGIN}\" y=\"{}\">{}</text><text x=\"{end}\" y=\"{}\" text-anchor=\"end\">{} {x_name}</text>\
         <text x=\"4\" y=\"{floor}\">{}</text><text x=\"4\" y=\"{}\">{} {y_name}</text></svg>\n",
        floor + 18.0,
        number(left),
        floor + 18.0,
        number(right),
        number(bottom),
        MARGIN - 8.0,
        number(top),
    );
}

fn number(value: f64) -> String {
    if value == value.round() { value.to_string() } else { format!("{value:.3}") }
}
