//! The curves of a plan as one self-contained page.

use std::fmt::Write;

use crate::report::Curves;
use crate::report::chart::escape;
use crate::report::page::{document, privacy_figures};

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
