//! `veilgrad audit`: empirical lower bounds on the privacy loss of an installation or a run, next to the claim.

mod installation;

use std::num::NonZeroU32;
use std::time::Instant;

use serde_json::{Value, json};
use veilgrad_accounting::display::{down, up};

use crate::argument::{Audit, Common};
use crate::error::Error;
use crate::output::{print, print_json, say};
use crate::train;
use installation::{FALSE_ALARMS, Finding};

/// What the audit of an installation covers.
const SCOPE: &str = "clipping, certificate, sum, noise, sampler and release of this build, on this machine, and the \
                     gradient of one small model; not the accountant, and not the gradients of other models";

pub(crate) fn run(arguments: &Audit, common: &Common) -> Result<(), Error> {
    match &arguments.config {
        Some(config) => {
            let canaries = NonZeroU32::new(arguments.canaries);
            train::run(config, &arguments.run, canaries, None, common)
        }
        None if arguments.run.is_default() => of_installation(arguments.releases, common),
        None => Err(Error::usage("this option is about a training run: name its CONFIG")),
    }
}

fn of_installation(releases: u64, common: &Common) -> Result<(), Error> {
    let start = Instant::now();
    let findings = installation::audit(releases, |finding| {
        if !common.quiet && !common.json {
            say(&format!("{}\n", line(finding)));
        }
    })?;
    let contradicted = findings.iter().any(|finding| finding.contradicted);
    if common.json {
        let checks: Vec<Value> = findings.iter().map(check).collect();
        print_json(&json!({
            "schema": 1,
            "audit": "installation",
            "false_alarms": FALSE_ALARMS,
            "contradicted": contradicted,
            "checks": checks,
            "scope": SCOPE,
            "seconds": start.elapsed().as_secs_f64(),
        }))?;
    } else if !contradicted {
        let seconds = start.elapsed().as_secs_f64();
        print(&format!(
            "no bound contradicts its claim ({seconds:.0} s)\naudited: {SCOPE}\na bound may exceed its claim by chance, \
             as often as its confidence allows; a false alarm happens once in a million audits\n"
        ))?;
    }
    match findings.iter().find(|finding| finding.contradicted) {
        Some(worst) => Err(Error::Contradicted(line(worst))),
        None => Ok(()),
    }
}

fn line(finding: &Finding) -> String {
    let Finding { what, threads, releases, mu, delta, claimed, .. } = finding;
    let Finding { epsilon_lower, confidence, contradicted, .. } = finding;
    let mu = mu.map_or(String::new(), |(claimed, found)| {
        format!("mu at least {} (claimed {}), ", down(found), up(claimed))
    });
    let verdict = if *contradicted { "CONTRADICTED" } else { "ok" };
    let threads = if *threads == 1 { "1 thread" } else { "2 threads" };
    format!(
        "{what}, {threads}, {releases} releases: {mu}epsilon at least {} (claimed {}, at delta {delta:e}), {} \
         % confidence: {verdict}",
        down(*epsilon_lower),
        up(*claimed),
        100.0 * confidence
    )
}

fn check(finding: &Finding) -> Value {
    json!({
        "what": finding.what,
        "threads": finding.threads,
        "releases": finding.releases,
        "mu": finding.mu.map(|(claimed, _)| claimed),
        "mu_lower": finding.mu.map(|(_, found)| found),
        "delta": finding.delta,
        "claimed": finding.claimed,
        "epsilon_lower": finding.epsilon_lower,
        "confidence": finding.confidence,
        "contradicted": finding.contradicted,
    })
}
