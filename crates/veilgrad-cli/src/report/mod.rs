//! `veilgrad report` and `veilgrad statement`: the guarantee of a run, for people and for programs.

pub(crate) mod chart;
mod compute;
mod document;
pub(crate) mod layout;
pub(crate) mod page;
pub(crate) mod plan_page;
mod section;
mod source;

use std::path::Path;

use serde_json::json;
use veilgrad_accounting::display::percent;

use crate::argument::{Common, ReportOf, RunOf};
use crate::error::Error;
use crate::output::{print, print_answer, print_json, significant, write_file};

pub(crate) use compute::{Facts, of_run, whole};
pub(crate) use document::{Curves, Head, Model, Report, Start};
pub(crate) use source::{has_ledger, read, read_with_ledger};

pub(crate) fn finish(report: &Report, out: &Path, common: &Common) -> Result<(), Error> {
    if common.watch.is_some() {
        // The program that runs the command reads the files.
        return report.claimed();
    }
    if common.json {
        print_json(&report.json()?)?;
        return report.claimed();
    }
    let mut text = String::new();
    let selected = match report.tuning.is_some() {
        true => format!(" ({})", section::SELECTED),
        false => String::new(),
    };
    if let Some(accuracy) = report.test_accuracy {
        text.push_str(&format!("test accuracy     {}{selected}\n", percent(accuracy)));
    }
    if let Some(error) = report.test_mean_absolute_error {
        text.push_str(&format!(
            "test mean error   {} (mean absolute error){selected}\n",
            significant(error, 6)
        ));
    }
    if let Some(temperature) = report.temperature {
        text.push_str(&format!("temperature       {temperature:.4}, fitted on public examples\n"));
    }
    if let Some(start) = &report.start {
        text.push_str(&format!("started from      {}\n", start.sha256));
    }
    if let Some(tuning) = &report.tuning {
        text.push_str(&format!("released          {}\n", tuning.line()));
    }
    text.push_str(&format!(
        "epsilon           {} at delta {:e} ({}, {}, {})\n",
        report.shown_epsilon(),
        report.delta,
        report.unit,
        report.adjacency,
        report.accountant.as_deref().unwrap_or("no accountant")
    ));
    if let Some(audit) = &report.audit {
        text.push_str(&format!("AUDIT             {}\n", audit.line()));
    }
    for warning in &report.warnings {
        text.push_str(&format!("warning           {warning}\n"));
    }
    text.push_str(&format!("report            {}\n", out.join("report.html").display()));
    print(&text)?;
    report.claimed()
}

/// An error if an audit contradicts the claim of its run.
pub(crate) fn audited(report: &Report) -> Result<(), Error> {
    match &report.audit {
        Some(audit) if audit.contradicted => Err(Error::Contradicted(audit.line())),
        _ => Ok(()),
    }
}

pub(crate) fn run(arguments: &ReportOf, common: &Common) -> Result<(), Error> {
    let report = read(&arguments.of, common)?;
    let page = page::page(&report);
    match &arguments.output {
        None if common.json => print_json(&report.json()?)?,
        None => print(&page)?,
        Some(path) => write_file(path, page.as_bytes())?,
    }
    report.claimed()
}

pub(crate) fn say(of: &RunOf, common: &Common) -> Result<(), Error> {
    let report = read(of, common)?;
    let document = json!({
        "schema": 1,
        "epsilon": report.epsilon,
        "delta": report.delta,
        "valid": report.valid,
        "reason": report.reason,
        "verified": !of.unverified,
        "ledger": report.ledger,
        "newer": report.newer,
        "statement": report.statement,
    });
    print_answer(common.json, &document, &report.statement)?;
    report.claimed()
}
