//! Curves of a plan: one self-contained page, or one picture.

use std::fmt::Write;

use veilgrad_accounting::Profile;

use crate::report::Curves;
use crate::report::chart::{escape, picture};
use crate::report::page::{document, privacy_charts, privacy_figures};

/// The curves of a plan whose epsilon after every round and whose profile are known.
pub(crate) fn curves(spent: &[(u64, f64)], profile: &Profile) -> Curves {
    let rates = (0..=100).map(|i| f64::from(i) / 100.0);
    Curves {
        spent: spent.iter().map(|(round, epsilon)| (*round as f64, *epsilon)).collect(),
        profile: profile.points().to_vec(),
        attack: rates.map(|rate| (rate, profile.true_positive_rate(rate))).collect(),
    }
}

/// The curves side by side, as SVG.
pub(crate) fn svg(curves: &Curves, delta: f64) -> String {
    picture(&privacy_charts(curves, delta))
}

/// A page with the curves and the table of the plan.
pub(crate) fn page(curves: &Curves, delta: f64, table: &str) -> String {
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
