//! The claim about a dataset of a ledger, as all commands print it.

use serde_json::{Value, json};
use veilgrad_accounting::Tightest;
use veilgrad_accounting::claim::{self, Claim, ClaimedRun, NoClaim};
use veilgrad_accounting::display::up;
use veilgrad_ledger::{Dataset, Ledger, RunState};

/// The epsilon that may be claimed about a dataset of a ledger.
///
/// # Errors
/// The reason why nothing may be claimed.
pub fn of(dataset: &Dataset) -> Result<Claim, NoClaim> {
    let runs: Vec<ClaimedRun<'_>> = dataset.runs.values().map(run).collect();
    claim::claim(&dataset.terms(&Tightest), &runs)
}

/// The part of the budget that running plans hold beyond what is `spent`, rounded up.
pub(crate) fn reserved(ledger: &Ledger, dataset: &Dataset, spent: f64) -> Option<f64> {
    let holding = ledger.holding(&dataset.budget.dataset);
    if holding.is_empty() {
        return Some(0.0);
    }
    let all = dataset.price_with_plans(&Tightest, &holding).ok()?;
    Some(if all > spent { (all - spent).next_up() } else { 0.0 })
}

fn run(run: &RunState) -> ClaimedRun<'_> {
    // Charges from another branch of the ledger are not in the run's plan.
    let planned = run.is_planned() && run.apart.is_empty();
    ClaimedRun {
        charges: run.charges().to_vec(),
        plan: run.header.plan.as_deref().filter(|_| planned),
        insecure: run.insecure.as_deref(),
        numerics: run.header.numerics,
        tuning: run.header.tuning,
    }
}

/// The claim as JSON; null if nothing may be claimed.
pub(crate) fn json(claim: &Result<Claim, NoClaim>) -> Value {
    let Ok(claim) = claim else { return Value::Null };
    json!({
        "epsilon": claim.epsilon,
        "delta": claim.delta,
        "accountant": claim.accountant(),
        "why": claim.why(),
        "conditions": claim.conditions,
    })
}

/// The claim as table rows: the guarantee, why it may be claimed, and its conditions.
pub(crate) fn rows(claim: &Result<Claim, NoClaim>) -> Vec<(&'static str, String)> {
    match claim {
        Ok(claim) => {
            let epsilon = format!("epsilon {} at delta {:e}", up(claim.epsilon), claim.delta);
            let mut rows = vec![("guarantee", epsilon), ("why", claim.why())];
            rows.extend(claim.conditions.iter().map(|condition| ("if", (*condition).to_owned())));
            rows
        }
        Err(reason) => vec![("guarantee", format!("none: {reason}"))],
    }
}
