//! Conformance tests: behaviour of other libraries' public tests, run against Veilgrad's public API.
//!
//! Each case of a cases file has a kind, inputs, expected outputs and a tolerance. Cases of a kind that
//! Veilgrad covers are run; the others are skipped with a reason. Values that are rounded to the integer
//! grid are compared within the case's tolerance or a millionth of the clip norm, whichever is larger.

mod accounting;
mod case;
mod federated;
mod microbatch;
mod quantile;
mod round;
mod tuple;

use std::collections::BTreeMap;
use std::fmt;

use serde_json::Value;

pub use case::{Case, Verdict};

/// The verdicts on all cases of a file, per kind.
#[derive(Debug, Default)]
pub struct Report {
    kinds: BTreeMap<String, Vec<(String, Verdict)>>,
}

/// Runs every case of a cases file.
///
/// # Errors
/// When the text is not a cases file.
pub fn run(text: &str) -> Result<Report, String> {
    let file: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let cases = file.get("cases").and_then(Value::as_array).ok_or("there is no list 'cases'")?;
    let mut report = Report::default();
    for value in cases {
        let case = Case::new(value)?;
        let verdict = judge(&case);
        report.kinds.entry(case.kind().to_owned()).or_default().push((case.name(), verdict));
    }
    Ok(report)
}

fn judge(case: &Case<'_>) -> Verdict {
    let kind = case.kind();
    let outcome = match kind {
        "gaussian_sum" => round::gaussian_sum(case),
        "gaussian_sum_merge" => round::merge(case),
        "structure_error" => round::structure_error(case),
        "initial_state" => round::initial_state(case),
        "no_privacy_sum" => round::no_privacy_sum(case),
        "no_privacy_average" => round::no_privacy_average(case),
        "weighted_average" => federated::weighted_average(case),
        "normalized_gaussian" => round::normalised_gaussian(case),
        "nested" => round::nested(case),
        "nested_statistical" => round::nested_statistical(case),
        "metrics" => round::metrics(case),
        "clip_groups" => round::clip_groups(case),
        "clip_tree" => round::clip_tree(case),
        "clipped_sum" => round::clipped_sum(case),
        "joint_clip" => round::joint_clip(case),
        "rule" => round::rule(case),
        "event" => tuple::event(case),
        "ledger" => tuple::ledger(case),
        "effective_z" | "effective_z_tree" => tuple::effective_z(case),
        "noise_alloc" => tuple::noise_allocation(case),
        "per_layer_bound" => tuple::per_layer_bound(case),
        "ledger_adaptive" => quantile::ledger_adaptive(case),
        "quantile_estimate" => quantile::estimate(case),
        "quantile_statistical" => quantile::statistical(case),
        "quantile_adaptive_clip" => quantile::adaptive_clip(case),
        "quantile_adaptive_clip_first" => quantile::first_sum(case),
        "adaptive_clip_convergence" => quantile::convergence(case),
        "arg_error" => quantile::argument_error(case),
        "microbatch_grad" | "microbatch_grad_multi" => microbatch::gradient(case),
        "microbatch_noise" => microbatch::noise(case),
        "user_sum" => microbatch::user_sum(case),
        "accountant" => accounting::accountant(case),
        "calibration" => accounting::calibration(case),
        "statement" => accounting::statement(case),
        _ => Ok(Verdict::Skipped(reason(kind))),
    };
    outcome.unwrap_or_else(Verdict::Failed)
}

/// Why a kind is not run.
fn reason(kind: &str) -> &'static str {
    match kind {
        "scheduler" => "schedules of noise belong to training",
        "clip_factor" => "another library's formula: C/(norm + 1e-6)",
        "grid_clip" => "another library's formula: clip norm reduced for rounding",
        kind if kind.starts_with("tree") || kind.starts_with("restart") => "tree noise",
        kind if kind.starts_with("discrete") => "discrete Gaussian and Skellam noise",
        _ => "unknown kind",
    }
}

impl Report {
    /// The number of cases that passed.
    #[must_use]
    pub fn passed(&self) -> usize {
        self.count(|verdict| matches!(verdict, Verdict::Passed))
    }

    /// The number of cases that were not run.
    #[must_use]
    pub fn skipped(&self) -> usize {
        self.count(|verdict| matches!(verdict, Verdict::Skipped(_)))
    }

    /// The names of cases that failed, each with what was wrong.
    #[must_use]
    pub fn failures(&self) -> Vec<String> {
        let cases = self.kinds.values().flatten();
        cases
            .filter_map(|(name, verdict)| match verdict {
                Verdict::Failed(what) => Some(format!("{name}: {what}")),
                _ => None,
            })
            .collect()
    }

    fn count(&self, choose: impl Fn(&Verdict) -> bool) -> usize {
        self.kinds.values().flatten().filter(|(_, verdict)| choose(verdict)).count()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<30}{:>5}{:>8}{:>8}  reason", "kind", "ran", "failed", "skipped")?;
        for (kind, cases) in &self.kinds {
            let count = |choose: fn(&Verdict) -> bool| {
                cases.iter().filter(|(_, verdict)| choose(verdict)).count()
            };
            let failed = count(|verdict| matches!(verdict, Verdict::Failed(_)));
            let skipped = count(|verdict| matches!(verdict, Verdict::Skipped(_)));
            let ran = cases.len() - skipped;
            let mut reasons: Vec<&str> = cases
                .iter()
                .filter_map(|(_, verdict)| match verdict {
                    Verdict::Skipped(reason) => Some(*reason),
                    _ => None,
                })
                .collect();
            reasons.dedup();
            writeln!(f, "{kind:<30}{ran:>5}{failed:>8}{skipped:>8}  {}", reasons.join("; "))?;
        }
        for failure in self.failures() {
            writeln!(f, "FAILED {failure}")?;
        }
        let (passed, failed, skipped) = (self.passed(), self.failures().len(), self.skipped());
        write!(f, "{passed} passed, {failed} failed, {skipped} skipped")
    }
}
