//! What both commands answer: a table for people, a document for programs.

use serde_json::{Map, Value, json};
use veilgrad_accounting::pld::Method;
use veilgrad_accounting::{Composition, Guarantee, advantage, true_positive_rate};
use veilgrad_events::Adjacency;

/// The false positive rate at which attacks are quoted.
const FALSE_POSITIVES: f64 = 0.01;

/// The parameters that were asked about; a mixture has no single value.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Parameters {
    pub(crate) noise_multiplier: Option<f64>,
    pub(crate) rate: Option<f64>,
    pub(crate) steps: Option<u64>,
    pub(crate) sampling: &'static str,
    pub(crate) adjacency: &'static str,
    pub(crate) delta: Option<f64>,
}

/// An answer, or why there is none.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Answer {
    pub(crate) parameters: Parameters,
    pub(crate) outcome: Result<Outcome, String>,
    /// Who was asked, if somebody was.
    pub(crate) asked: Option<&'static str>,
}

/// A guarantee and what follows from it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Outcome {
    pub(crate) guarantee: Guarantee,
    /// The mu of a Gaussian trade-off curve that dominates at every delta, if there is one.
    mu: Option<f64>,
    /// At most what the best attack achieves.
    advantage: f64,
    true_positive_rate: f64,
}

impl Outcome {
    pub(crate) fn new(composition: &Composition, guarantee: Guarantee) -> Self {
        Self {
            guarantee,
            mu: composition.mu().filter(|mu| mu.is_finite()),
            advantage: advantage(composition),
            true_positive_rate: true_positive_rate(composition, FALSE_POSITIVES),
        }
    }
}

/// The name of an adjacency on the command line.
pub(crate) fn adjacency_name(adjacency: Adjacency) -> &'static str {
    match adjacency {
        Adjacency::AddRemove => "add-remove",
        Adjacency::ReplaceOne => "replace-one",
        Adjacency::ZeroOut => "zero-out",
        _ => "unknown",
    }
}

/// The name of a method, for programs.
fn method_name(method: Method) -> &'static str {
    match method {
        Method::ClosedForm => "closed-form",
        Method::Contour => "contour",
        Method::Lattice => "lattice",
    }
}

impl Answer {
    /// The document for programs.
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
        put("advantage", json!(outcome.map(|o| o.advantage)));
        let attacker = |o: &Outcome| json!({"advantage": o.advantage, "tpr_at_fpr_1e-2": o.true_positive_rate});
        put("attacker", json!(outcome.map(attacker)));
        put("valid", json!(outcome.is_some()));
        if let Err(reason) = &self.outcome {
            put("reason", json!(reason));
        }
        map
    }

    /// The table for people. Epsilons are rounded up.
    pub(crate) fn table(&self, solved: &str) -> String {
        let p = &self.parameters;
        // What was given is shown as given.
        let noise = |z: f64| if solved == "noise multiplier" { up(z) } else { z.to_string() };
        let mut rows: Vec<(&str, String)> = vec![
            ("sampling", p.sampling.to_owned()),
            ("adjacency", p.adjacency.to_owned()),
            ("rate", p.rate.map_or("several".to_owned(), |q| q.to_string())),
            ("rounds", p.steps.map_or("several".to_owned(), |t| t.to_string())),
            ("noise multiplier", p.noise_multiplier.map_or("several".to_owned(), noise)),
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
                let advantage = up(100.0 * outcome.advantage);
                let found = up(100.0 * outcome.true_positive_rate);
                rows.push(("attacker", format!(
                    "advantage at most {advantage} %; finds at most {found} % at {} % false alarms",
                    100.0 * FALSE_POSITIVES
                )));
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
        rows.iter().map(|(name, value)| format!("{name:<18}{value}\n")).collect()
    }
}

/// Five significant digits, rounded up.
pub(crate) fn up(value: f64) -> String {
    let text = rounded(value, f64::ceil);
    // Printing decimal digits may have rounded down again.
    if text.parse::<f64>().is_ok_and(|shown| shown >= value) { text } else { value.to_string() }
}

/// Five significant digits, rounded down.
pub(crate) fn down(value: f64) -> String {
    let text = rounded(value, f64::floor);
    if text.parse::<f64>().is_ok_and(|shown| shown <= value) { text } else { value.to_string() }
}

fn rounded(value: f64, round: fn(f64) -> f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return value.to_string();
    }
    let digits = 4 - value.abs().log10().floor() as i32;
    if !(0..=12).contains(&digits) {
        return value.to_string();
    }
    let scale = 10f64.powi(digits);
    let places = usize::try_from(digits).unwrap_or(0);
    let text = format!("{:.places$}", round(value * scale) / scale);
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_never_see_a_number_below_the_bound() {
        assert_eq!(up(2.379_554_518), "2.3796");
        assert_eq!(down(2.379_554_518), "2.3795");
        assert_eq!(up(2.0), "2");
        assert_eq!(up(0.0), "0");
        assert_eq!(up(506.190_931), "506.2");
        for value in [1.1, 0.1 + 0.2, 1e-7, 123_456.789, 9.999_999, 4.377_178_095_68] {
            assert!(up(value).parse::<f64>().unwrap() >= value, "{value}");
            assert!(down(value).parse::<f64>().unwrap() <= value, "{value}");
        }
    }
}
