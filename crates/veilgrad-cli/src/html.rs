//! Curves of a plan in one self-contained page.

use std::fmt::Write;

use veilgrad_accounting::Profile;

use crate::report::chart::escape;
use crate::report::page::{document, privacy_charts};

/// A page with epsilon after every round, the privacy profile and the trade-off curve.
pub(crate) fn page(spent: &[(u64, f64)], profile: &Profile, delta: f64, table: &str) -> String {
    let spent: Vec<(f64, f64)> = spent.iter().map(|(round, e)| (*round as f64, *e)).collect();
    let rates = (0..=100).map(|i| f64::from(i) / 100.0);
    let attack: Vec<(f64, f64)> =
        rates.map(|rate| (rate, profile.true_positive_rate(rate))).collect();
    let mut body = "<h1>Privacy plan</h1>\n<div class=\"scroll\"><table>\n".to_owned();
    for line in table.lines() {
        let (name, value) = line.split_at_checked(18).unwrap_or((line, ""));
        // Writing to a string does not fail.
        let (name, value) = (escape(name.trim()), escape(value.trim()));
        let _ = writeln!(body, "<tr><th>{name}</th><td>{value}</td></tr>");
    }
    body.push_str("</table></div>\n");
    privacy_charts(&mut body, &spent, profile.points(), &attack, delta);
    document("Privacy plan", &body)
}
