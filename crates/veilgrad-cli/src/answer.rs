//! The answer of `plan` and `account`: a table for people, a JSON document for programs.

use serde_json::{Map, Value, json};
use veilgrad_accounting::claim::{Attacker, FALSE_POSITIVE_RATE, posterior};
use veilgrad_accounting::display::{down, percent, percent_up, up};
use veilgrad_accounting::profile::Method;
use veilgrad_accounting::{Accountant, Composition, Guarantee};
use veilgrad_events::{RecordUnit, Sampling};

use crate::error::Error;
use crate::output::table;

/// The parameters of the rounds; `None` where they differ between rounds.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Parameters {
    pub(crate) noise_multiplier: Option<f64>,
    pub(crate) rate: Option<f64>,
    pub(crate) steps: Option<u64>,
    pub(crate) sampling: &'static str,
    pub(crate) adjacency: &'static str,
    pub(crate) delta: Option<f64>,
}

#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) parameters: Parameters,
    pub(crate) outcome: Result<Outcome, String>,
    /// The accountant that was asked for, if one was.
    pub(crate) asked: Option<&'static str>,
    /// How the table formats the noise multiplier: as given, rounded down if charged, rounded up if required.
    pub(crate) show_noise: fn(f64) -> String,
}

/// What the worst attacker achieves, where that was the target or was asked for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Risk {
    /// The largest rate or advantage that was asked for.
    pub(crate) target: Option<f64>,
    /// The false positive rate; `None` for an advantage.
    pub(crate) fpr: Option<f64>,
    /// An upper bound: the true positive rate at that false positive rate, or the advantage.
    pub(crate) achieved: f64,
    /// How likely an attacker takes it to be beforehand that the record is in the data.
    pub(crate) prior: Option<f64>,
}

impl Risk {
    /// How likely an attacker with the prior takes it to be after an accusation, at most.
    fn posterior(&self) -> Option<f64> {
        Some(posterior(self.prior?, self.achieved, self.fpr?))
    }

    fn json(&self) -> Value {
        let Self { target, fpr, achieved, prior } = self;
        json!({"target": target, "fpr": fpr, "achieved": achieved, "prior": prior, "posterior": self.posterior()})
    }

    /// The row of a table: its name and its numbers. Bounds are rounded up; what they hold at has all its digits.
    fn row(&self) -> (&'static str, String) {
        let achieved = percent_up(self.achieved);
        let what = match self.fpr {
            None => format!("advantage at most {achieved}"),
            Some(fpr) => {
                format!("true positive rate at most {achieved} at a false positive rate of {fpr}")
            }
        };
        let belief = self.prior.zip(self.posterior()).map_or(String::new(), |(prior, belief)| {
            format!("; from a probability of {prior} to at most {}", percent_up(belief))
        });
        ("risk", format!("{what}{belief}"))
    }
}

/// A guarantee and what follows from it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Outcome {
    pub(crate) guarantee: Guarantee,
    /// The mu of a Gaussian trade-off curve that dominates at every delta, if there is one.
    pub(crate) mu: Option<f64>,
    pub(crate) attacker: Attacker,
    /// A further bound on attackers, if it was asked for.
    pub(crate) risk: Option<Risk>,
}

impl Outcome {
    /// What an accountant says of more than its composition: of a choice among runs, or of several records.
    pub(crate) fn adjusted(
        composition: &Composition,
        accountant: &dyn Accountant,
        guarantee: Guarantee,
    ) -> Self {
        let claimed = Attacker::allowed_by(guarantee.epsilon, guarantee.delta);
        let found = Attacker::by(accountant, composition);
        let attacker = Attacker {
            advantage: found.advantage.min(claimed.advantage),
            true_positive_rate: found.true_positive_rate.min(claimed.true_positive_rate),
        };
        Self { guarantee, mu: None, attacker, risk: None }
    }

    /// The attacker's bounds are computed beside the guarantee: of thousands of distinct rounds both take seconds.
    pub(crate) fn new<E>(
        composition: &Composition,
        guarantee: impl FnOnce() -> Result<Guarantee, E>,
    ) -> Result<Self, E> {
        let mu = composition.mu().filter(|mu| mu.is_finite());
        std::thread::scope(|scope| {
            let attacker = scope.spawn(|| Attacker::of(composition));
            let guarantee = guarantee()?;
            let allowed = |_| Attacker::allowed_by(guarantee.epsilon, guarantee.delta);
            let attacker = attacker.join().unwrap_or_else(allowed);
            Ok(Self { guarantee, mu, attacker, risk: None })
        })
    }

    /// For rounds that may have been chosen from earlier outputs, where only (epsilon, delta) is guaranteed.
    pub(crate) fn adaptive(guarantee: Guarantee) -> Self {
        let attacker = Attacker::allowed_by(guarantee.epsilon, guarantee.delta);
        Self { guarantee, mu: None, attacker, risk: None }
    }
}

pub(crate) fn unit_name(unit: RecordUnit) -> String {
    match unit {
        RecordUnit::Example => "example".to_owned(),
        RecordUnit::User => "user".to_owned(),
        RecordUnit::Node => "node".to_owned(),
        RecordUnit::Microbatch { examples } => format!("microbatch:{examples}"),
        other => other.to_string(),
    }
}

pub(crate) fn sampling_name(sampling: Sampling) -> &'static str {
    match sampling {
        Sampling::Poisson { .. } => "poisson",
        Sampling::Fixed(_) => "fixed",
        Sampling::Shuffle(_) => "shuffle",
        Sampling::CyclicPoisson { .. } => "cyclic-poisson",
        Sampling::TruncatedPoisson(_) => "truncated",
        Sampling::Allocation { .. } => "allocation",
        Sampling::All {} => "all",
        _ => "unknown",
    }
}

/// The sampling rate of a round, where its policy has a single one.
pub(crate) fn rate(sampling: Sampling) -> Option<f64> {
    match sampling {
        Sampling::Poisson { rate } => Some(rate.get()),
        Sampling::Fixed(batch) | Sampling::Shuffle(batch) => {
            Some(batch.batch() as f64 / batch.records() as f64)
        }
        Sampling::CyclicPoisson { rate, groups, .. } => Some(rate.get() / groups.get() as f64),
        Sampling::TruncatedPoisson(truncated) => Some(truncated.rate().get()),
        Sampling::Allocation { rounds_per_epoch } => Some(1.0 / rounds_per_epoch.get() as f64),
        Sampling::All {} => Some(1.0),
        _ => None,
    }
}

fn method_name(method: Method) -> &'static str {
    match method {
        Method::ClosedForm => "closed-form",
        Method::Contour => "contour",
        Method::Lattice => "lattice",
    }
}

impl Answer {
    /// An error, and so its exit code, if there is no answer.
    pub(crate) fn answered(&self) -> Result<(), Error> {
        self.outcome.as_ref().map(|_| ()).map_err(|reason| Error::NoAnswer(reason.clone()))
    }

    pub(crate) fn json(&self) -> Map<String, Value> {
        let p = &self.parameters;
        let mut map = Map::new();
        let mut put = |key: &str, value: Value| map.insert(key.to_owned(), value);
        put("schema", json!(1));
        let outcome = self.outcome.as_ref().ok();
        let guarantee = outcome.map(|outcome| outcome.guarantee);
        put("epsilon", json!(guarantee.map(|g| g.epsilon)));
        put("epsilon_lower", json!(guarantee.and_then(|g| g.epsilon_lower)));
        put("delta", json!(guarantee.map_or(p.delta, |g| Some(g.delta))));
        put("noise_multiplier", json!(p.noise_multiplier));
        put("rate", json!(p.rate));
        put("steps", json!(p.steps));
        put("accountant", json!(guarantee.map(|g| g.accountant).or(self.asked)));
        put("method", json!(guarantee.and_then(|g| g.method).map(method_name)));
        put("adjacency", json!(p.adjacency));
        put("sampling", json!(p.sampling));
        put("mu", json!(outcome.and_then(|o| o.mu)));
        put("advantage", json!(outcome.map(|o| o.attacker.advantage)));
        let attacker = |Attacker { advantage, true_positive_rate }| json!({"advantage": advantage, "tpr_at_fpr_1e-2": true_positive_rate});
        put("attacker", json!(outcome.map(|o| attacker(o.attacker))));
        put("risk", json!(outcome.and_then(|o| o.risk).map(|risk| risk.json())));
        put("valid", json!(outcome.is_some()));
        if let Err(reason) = &self.outcome {
            put("reason", json!(reason));
        }
        map
    }

    /// The table for people. Epsilons are rounded up.
    pub(crate) fn table(&self, solved: &str) -> String {
        let p = &self.parameters;
        // Not solved, or different from round to round.
        let missing = |name: &str| if name == solved { "unknown" } else { "several" }.to_owned();
        let mut rows: Vec<(&str, String)> = vec![
            ("sampling", p.sampling.to_owned()),
            ("adjacency", p.adjacency.to_owned()),
            ("rate", p.rate.map_or_else(|| missing("rate"), |q| q.to_string())),
            ("rounds", p.steps.map_or_else(|| missing("rounds"), |t| t.to_string())),
            (
                "noise multiplier",
                p.noise_multiplier.map_or_else(|| missing("noise multiplier"), self.show_noise),
            ),
        ];
        match &self.outcome {
            Ok(outcome) => {
                let g = outcome.guarantee;
                let lower = g.epsilon_lower.filter(|_| solved != "delta");
                let range = lower.map_or(String::new(), |low| {
                    format!("   (certified; not below {})", down(low))
                });
                rows.push(("epsilon", format!("{}{range}", up(g.epsilon))));
                rows.push(("delta", format!("{:e}", g.delta)));
                let method = g.method.map_or(String::new(), |m| format!(" ({})", method_name(m)));
                rows.push(("accountant", format!("{}{method}", g.accountant)));
                if let Some(mu) = outcome.mu {
                    let curve = "the Gaussian trade-off curve dominates at every delta";
                    rows.push(("mu", format!("{}   ({curve})", up(mu))));
                }
                let advantage = percent_up(outcome.attacker.advantage);
                let found = percent_up(outcome.attacker.true_positive_rate);
                rows.push(("attacker", format!(
                    "advantage at most {advantage}; true positive rate at most {found} at {} false positives",
                    percent(FALSE_POSITIVE_RATE)
                )));
                rows.extend(outcome.risk.map(|risk| risk.row()));
            }
            Err(reason) => {
                rows.push(("epsilon", "unknown".to_owned()));
                rows.push(("reason", reason.clone()));
            }
        }
        for (name, value) in &mut rows {
            if *name == solved && self.outcome.is_ok() {
                value.push_str("   <- solved");
            }
        }
        table(&rows)
    }
}
