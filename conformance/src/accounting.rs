//! Kinds about accountants: epsilons, calibration, privacy statements.

use serde_json::Value;
use veilgrad::prelude::*;
use veilgrad_accounting::{
    Accountant, Composition, Pld, PrivacyTarget, Rdp, Sampled, Step, profile, rdp,
};

use crate::case::{Case, Outcome, Verdict, flatten, number, require, text};

/// The number of rounds if a case gives epochs and no formula: Opacus and the tutorials of TensorFlow Privacy
/// round down to whole rounds, and a case without sampling rounds up to whole epochs.
const ROUNDS: &str = "int(epochs/q) or int(epochs*n/batch) or ceil(epochs)";
/// The verdict on cases of the GDP accountant.
const NOT_A_BOUND: Verdict = Verdict::Skipped("the CLT approximation is not a bound");

/// The accountant that computed the expected number.
#[derive(Clone, Copy, PartialEq)]
enum Source {
    Rdp,
    Pld,
    Prv,
    Gdp,
}

impl Source {
    /// The accountant that a case names; TensorFlow Privacy's default where it names none.
    fn of(case: &Case<'_>) -> Result<Self, String> {
        let name = case.input("accountant").ok().and_then(Value::as_str).unwrap_or("rdp");
        match name.to_lowercase().as_str() {
            "rdp" => Ok(Self::Rdp),
            "pld" => Ok(Self::Pld),
            "prv" => Ok(Self::Prv),
            "gdp" => Ok(Self::Gdp),
            _ => Err(format!("accountant '{name}'")),
        }
    }
}

/// Veilgrad's epsilon, and an upper bound on the source's: both are upper bounds, and the source's may be
/// looser.
struct Found {
    epsilon: f64,
    loosest: f64,
    /// The RDP orders of the two.
    orders: Option<[f64; 2]>,
}

impl Found {
    fn new(case: &Case<'_>, source: Source, rounds: &Composition) -> Result<Self, String> {
        let delta = Delta::new(case.number("delta")?).map_err(text)?;
        if source == Source::Rdp {
            let orders = orders(case)?;
            let found = rdp::epsilon_on_orders(rounds, delta, &orders).map_err(text)?;
            let (loosest, order) = unsigned_epsilon(rounds, delta, &orders);
            let epsilon = found.epsilon.get();
            return Ok(Self { epsilon, loosest, orders: Some([found.order, order]) });
        }
        // dp_accounting rounds privacy losses up to a grid of 1e-4, which adds less than 1e-3 over ten
        // thousand rounds. Opacus's PRV accountant returns the upper end of an interval of width 0.02.
        let slack = if source == Source::Prv { 2e-2 } else { 1e-3 };
        let epsilon = profile::epsilon(rounds, delta).map_err(text)?.bounds.upper;
        Ok(Self { epsilon, loosest: epsilon + slack, orders: None })
    }

    /// Fails unless the expected number is between `epsilon` and `loosest`, within the case's tolerance.
    fn compare(&self, case: &Case<'_>, what: &str, expected: &Value) -> Outcome {
        at_most(case, what, self.epsilon, expected)?;
        case.compare(what, &[self.loosest.min(number(expected)?)], expected)
    }
}

/// The epsilon of dp_accounting on these orders, and its order.
///
/// The series of Mironov, Talwar, Zhang 2019 (section 3.3) for `E[(1 - q + q e^L)^order]` has binomial
/// coefficients that change sign at fractional orders. Opacus and Veilgrad keep the sign. dp_accounting drops
/// it, which is sound, but looser at lower orders.
fn unsigned_epsilon(rounds: &Composition, delta: Delta, orders: &[f64]) -> (f64, f64) {
    let epsilon = |order: f64| {
        let divergence = if order.fract() == 0.0 {
            rdp::divergence(rounds, order)
        } else {
            let steps = rounds.steps().iter();
            steps.map(|(step, count)| *count as f64 * unsigned_divergence(*step, order)).sum()
        };
        let epsilon =
            divergence + libm::log1p(-1.0 / order) - (delta.get() * order).ln() / (order - 1.0);
        // The factor covers the rounding error of this function.
        epsilon.max(0.0) * (1.0 + 1e-12)
    };
    let epsilons =
        orders.iter().filter(|order| **order > 1.0).map(|order| (epsilon(*order), *order));
    epsilons.min_by(|a, b| a.0.total_cmp(&b.0)).unwrap_or((f64::INFINITY, f64::NAN))
}

/// The divergence by the series without signs, at a fractional order; infinite if it does not converge in 1000 terms.
fn unsigned_divergence(step: Step, order: f64) -> f64 {
    let variance = step.z * step.z;
    let q = match step.sampled {
        Sampled::Always => return 0.5 * order / variance,
        Sampled::Poisson(q) => q,
        _ => return f64::INFINITY,
    };
    let (log_q, log_rest) = (q.ln(), libm::log1p(-q));
    // Where both components of the mixture are equally likely.
    let middle = variance * (log_rest - log_q) + 0.5;
    // The log of `q^k (1-q)^(order-k) E[e^(kL)]`, with the expectation restricted to one side of the middle.
    let term = |k: f64, beyond: f64| {
        let tail = log_erfc(beyond / (std::f64::consts::SQRT_2 * step.z)) - std::f64::consts::LN_2;
        k * log_q + (order - k) * log_rest + 0.5 * k * (k - 1.0) / variance + tail
    };
    let (mut log_sum, mut log_binomial) = (f64::NEG_INFINITY, 0.0);
    for i in (0..1000).map(f64::from) {
        let left = log_binomial + term(i, i - middle);
        let right = log_binomial + term(order - i, middle - (order - i));
        log_sum = [left, right]
            .into_iter()
            .fold(log_sum, |a: f64, b| a.max(b) + libm::log1p((-(a - b).abs()).exp()));
        // The stopping rule of dp_accounting.
        if left.max(right) < -30.0 {
            return log_sum / (order - 1.0);
        }
        log_binomial += ((order - i).abs() / (i + 1.0)).ln();
    }
    f64::INFINITY
}

/// The log of the complementary error function, also where `erfc` underflows.
fn log_erfc(x: f64) -> f64 {
    if x < 20.0 {
        return libm::erfc(x).ln();
    }
    let y = 0.5 / (x * x);
    let series = -y * (1.0 - 3.0 * y * (1.0 - 5.0 * y * (1.0 - 7.0 * y)));
    libm::log1p(series) - x * x - (x * std::f64::consts::PI.sqrt()).ln()
}

/// Fails when `found` is above the expected number by more than the case's tolerance.
fn at_most(case: &Case<'_>, what: &str, found: f64, expected: &Value) -> Outcome {
    case.compare(what, &[found.max(number(expected)?)], expected)
}

/// The RDP orders of a case; dp_accounting's if it has none.
fn orders(case: &Case<'_>) -> Result<Vec<f64>, String> {
    match case.input("orders") {
        Ok(Value::String(grid)) => {
            let items = grid.split(',').map(order_range).collect::<Result<Vec<_>, _>>()?;
            Ok(items.concat())
        }
        Ok(orders) => flatten(orders),
        Err(_) => Ok(rdp::dp_accounting_orders()),
    }
}

/// One item of a list of orders: `4.5`, `5..63`, `1.1..10.9 step .1`; ends are included.
fn order_range(item: &str) -> Result<Vec<f64>, String> {
    let real = |text: &str| text.trim().parse::<f64>().map_err(|_| format!("orders '{item}'"));
    let (range, step) = match item.split_once("step") {
        Some((range, step)) => (range, real(step)?),
        None => (item, 1.0),
    };
    let Some((first, last)) = range.split_once("..") else { return Ok(vec![real(range)?]) };
    let (first, last) = (real(first)?, real(last)?);
    let count = ((last - first) / step + 1e-9).floor();
    require((0.0..1e6).contains(&count), format!("orders '{item}'"))?;
    // Rounded, so that 1.1 + 9 * 0.1 is 2.
    Ok((0..=count as u64).map(|i| ((first + i as f64 * step) * 1e9).round() / 1e9).collect())
}

/// The value of a formula such as `ceil(epochs/q) or ceil(epochs)`: that of the first alternative whose
/// inputs the case has.
fn formula(case: &Case<'_>, formula: &str) -> Result<f64, String> {
    let value = |alternative: &str| {
        let Some(call) = alternative.trim().strip_suffix(')') else {
            return product_of(case, alternative);
        };
        match call.split_once('(') {
            Some(("ceil", product)) => Ok(product_of(case, product)?.ceil()),
            Some(("int" | "floor", product)) => Ok(product_of(case, product)?.floor()),
            _ => Err(format!("formula '{alternative}'")),
        }
    };
    let mut values = formula.split(" or ").map(value);
    values.find_map(Result::ok).ok_or_else(|| format!("no inputs for '{formula}'"))
}

/// The value of a product of inputs and numbers with `*` and `/`, from left to right.
fn product_of(case: &Case<'_>, product: &str) -> Result<f64, String> {
    let factor = |name: &str| name.parse().or_else(|_| case.number(name));
    product.split('*').try_fold(1.0, |value, quotient| {
        let mut names = quotient.split('/').map(str::trim);
        let value = value * factor(names.next().unwrap_or_default())?;
        names.try_fold(value, |value, name| Ok(value / factor(name)?))
    })
}

/// The number of rounds: a number or a formula, under the name `steps` or `count`.
fn round_count(case: &Case<'_>) -> Result<u64, String> {
    let count = match case.input("steps").or_else(|_| case.input("count")) {
        Ok(Value::String(text)) => formula(case, text)?,
        Ok(count) => number(count)?,
        Err(_) => formula(case, ROUNDS)?,
    };
    let whole = count >= 1.0 && count < 2f64.powi(53) && count.fract() == 0.0;
    require(whole, format!("{count} rounds"))?;
    Ok(count as u64)
}

/// The sampling rate of a case: `q`; 1 if it is null; `batch/n` if it is absent.
fn sampling_rate(case: &Case<'_>) -> Result<f64, String> {
    match case.input("q") {
        Ok(Value::Null) => Ok(1.0),
        Ok(rate) => number(rate),
        Err(_) => formula(case, "batch/n"),
    }
}

/// The noise multiplier of a case. With microbatching it is halved: replacing one example can reverse the
/// clipped mean of its microbatch, which moves the sum by twice the clip norm.
fn noise_multiplier(case: &Case<'_>) -> Result<f64, String> {
    let microbatching = case.input("used_microbatching").or_else(|_| case.input("microbatching"));
    let doubled = microbatching.ok().and_then(Value::as_bool).unwrap_or(false);
    Ok(case.number("z")? / if doubled { 2.0 } else { 1.0 })
}

fn poisson(rate: f64, z: f64, rounds: u64) -> Result<Composition, String> {
    let (rate, z) = (SampleRate::new(rate).map_err(text)?, NoiseMultiplier::new(z).map_err(text)?);
    Composition::poisson(rate, z, rounds, Adjacency::AddRemove).map_err(text)
}

/// Compares every number that a case expects of an accountant.
pub(crate) fn accountant(case: &Case<'_>) -> Outcome {
    let source = Source::of(case)?;
    if source == Source::Gdp {
        return Ok(NOT_A_BOUND);
    }
    if case.input("groups_z").is_ok() {
        return groups(case);
    }
    let rounds = poisson(sampling_rate(case)?, noise_multiplier(case)?, round_count(case)?)?;
    let mut compared = Err("nothing is expected that an accountant tells".to_owned());
    if let Ok(expected) = case.expected("epsilon") {
        let found = Found::new(case, source, &rounds)?;
        compared = Ok(found.compare(case, "epsilon", expected)?);
        if let (Some([ours, theirs]), Ok(expected)) = (found.orders, case.expected("optimal_order"))
        {
            let order = case.compare("order", &[ours], expected);
            order.or_else(|_| case.compare("order", &[theirs], expected))?;
        }
    }
    if let Ok(range) = case.expected("epsilon_range") {
        let found = Found::new(case, source, &rounds)?.epsilon;
        let [least, most] = flatten(range)?[..] else { return Err(format!("range {range}")) };
        compared = Ok(require((least..=most).contains(&found), format!("{found} not in {range}"))?);
    }
    for (key, source) in [("epsilon_today_rdp", Source::Rdp), ("epsilon_today_pld", Source::Pld)] {
        if let Ok(expected) = case.expected(key) {
            compared = Ok(Found::new(case, source, &rounds)?.compare(case, key, expected)?);
        }
        // The published number is from an older, looser conversion.
        if let Ok(published) = case.expected("published_epsilon") {
            let found = Found::new(case, source, &rounds)?.epsilon;
            compared = Ok(at_most(case, "published epsilon", found, published)?);
        }
    }
    compared
}

/// Queries on one sample are one Gaussian mechanism. Composed as if each had its own sample, they seem to cost
/// less than they do. Both numbers are compared, to show that this is a trap.
fn groups(case: &Case<'_>) -> Outcome {
    let rate = SampleRate::new(sampling_rate(case)?).map_err(text)?;
    let count = round_count(case)?;
    let mut queries = Vec::new();
    for z in flatten(case.input("groups_z")?)? {
        let (clip, noise) = (ClipNorm::new(1.0).map_err(text)?, NoiseStd::new(z).map_err(text)?);
        queries.push(SumQuery::new("g", clip, noise));
    }
    let fold = |samples: Vec<Vec<SumQuery>>| -> Result<Composition, String> {
        let rounds = samples.into_iter().map(|queries| {
            let round = Round::new(Sampling::Poisson { rate }, queries).map_err(text)?;
            Ok(Rounds { count, round })
        });
        let rounds: Vec<Rounds> = rounds.collect::<Result<_, String>>()?;
        Composition::fold(&rounds, Adjacency::AddRemove).map_err(text)
    };
    let together = fold(vec![queries.clone()])?;
    let apart = fold(queries.into_iter().map(|query| vec![query]).collect())?;
    let mut compared = Err("nothing is expected of groups".to_owned());
    for (source, correct, wrong) in [
        (Source::Pld, "correct_one_sample_event", "wrong_independent_samples"),
        (Source::Rdp, "rdp_correct", "rdp_wrong"),
    ] {
        let together = Found::new(case, source, &together)?;
        let apart = Found::new(case, source, &apart)?;
        for (key, found) in [(correct, &together), (wrong, &apart)] {
            if let Ok(expected) = case.expected(key) {
                compared = Ok(found.compare(case, key, expected)?);
            }
        }
        let trap = apart.epsilon < together.epsilon;
        require(trap, "samples of their own do not seem to cost less")?;
    }
    compared
}

/// The noise multiplier for a budget. Opacus bisects until epsilon is at most `epsilon_tolerance` below the
/// target. So its multiplier is not below the best one, and its epsilon is not below the target minus the tolerance.
pub(crate) fn calibration(case: &Case<'_>) -> Outcome {
    let source = Source::of(case)?;
    let accountant: &dyn Accountant = match source {
        Source::Rdp => &Rdp,
        Source::Pld | Source::Prv => &Pld,
        Source::Gdp => return Ok(NOT_A_BOUND),
    };
    let (rate, count) = (sampling_rate(case)?, round_count(case)?);
    let rate = SampleRate::new(rate).map_err(text)?;
    let epsilon = Epsilon::new(case.number("epsilon")?).map_err(text)?;
    let delta = Delta::new(case.number("delta")?).map_err(text)?;
    let rounds = |z| Composition::poisson(rate, z, count, Adjacency::AddRemove);
    let z = PrivacyTarget { epsilon, delta, accountant }.noise_multiplier(rounds).map_err(text)?;
    // More noise costs less, so this also shows that the expected multiplier keeps the budget.
    at_most(case, "z", z.get(), case.expected("z")?)?;
    let cost = accountant.epsilon(&rounds(z).map_err(text)?, delta).map_err(text)?.epsilon;
    require(cost <= epsilon.get(), format!("z {} costs {cost}", z.get()))?;

    let expected = poisson(rate.get(), number(case.expected("z")?)?, count)?;
    let cost = Found::new(case, source, &expected)?.loosest;
    let least = epsilon.get() - case.number("epsilon_tolerance")?;
    require(cost >= least, format!("the expected z costs {cost}, less than {least}"))
}

/// The example-level numbers of TensorFlow Privacy's statement, which prints three decimals.
///
/// Its user-level numbers are converted from example-level ones by group privacy. Veilgrad has no counterpart:
/// to protect users, a record is a user, and its epsilon is the user's.
pub(crate) fn statement(case: &Case<'_>) -> Outcome {
    let source = Source::of(case)?;
    if source == Source::Gdp {
        return Ok(NOT_A_BOUND);
    }
    let z = noise_multiplier(case)?;
    let rate = formula(case, "batch/n")?;
    let epochs = case.number("epochs")?;
    for (key, rate, rounds) in [
        ("example_eps_no_amplification", 1.0, epochs.ceil()),
        ("example_eps_poisson", rate, (epochs / rate).ceil()),
    ] {
        let found = Found::new(case, source, &poisson(rate, z, rounds as u64)?)?;
        let printed = |epsilon: f64| (epsilon * 1e3).round() / 1e3;
        let (epsilon, loosest) = (printed(found.epsilon), printed(found.loosest));
        Found { epsilon, loosest, ..found }.compare(case, key, case.expected(key)?)?;
    }
    Ok(Verdict::Passed)
}
#[cfg(test)]
mod tests {
    use super::*;

    fn case(inputs: &str) -> Value {
        format!(r#"{{"kind": "accountant", "inputs": {inputs}}}"#).parse().unwrap()
    }

    #[test]
    fn orders_given_as_text_are_the_orders_of_the_libraries() {
        let grid = |text: &str| {
            let case = case(&format!(r#"{{"orders": "{text}"}}"#));
            orders(&Case::new(&case).unwrap())
        };
        let tensorflow = "1.25,1.5,1.75,2,2.25,2.5,3,3.5,4,4.5,5..63,128,256,512";
        assert_eq!(grid(tensorflow), Ok(rdp::tensorflow_privacy_orders()));
        assert_eq!(grid("1.1..10.9 step .1, 12..63"), Ok(rdp::opacus_orders()));
        for wrong in ["", "2..", "3..2", "2..3 step 0", "two"] {
            assert!(grid(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn rounds_are_counted_as_the_case_says() {
        let count = |inputs: &str| round_count(&Case::new(&case(inputs)).unwrap());
        for (inputs, expected) in [
            (r#"{"steps": 7, "epochs": 3}"#, 7),
            (r#"{"steps": "ceil(epochs*n/batch)", "epochs": 2, "n": 10, "batch": 3}"#, 7),
            (r#"{"count": "ceil(epochs/q) or ceil(epochs)", "epochs": 1.2, "q": 0.01}"#, 120),
            (r#"{"count": "ceil(epochs/q) or ceil(epochs)", "epochs": 1.2, "q": null}"#, 2),
            (r#"{"epochs": 2, "n": 10, "batch": 3}"#, 6),
            (r#"{"epochs": 90, "q": 0.04}"#, 2250),
        ] {
            assert_eq!(count(inputs), Ok(expected), "{inputs}");
        }
        for wrong in [r#"{"steps": 0}"#, r#"{"steps": 1.5}"#, r#"{"steps": "log(epochs)"}"#, "{}"] {
            assert!(count(wrong).is_err(), "{wrong}");
        }
    }

    /// The first number is from dp_accounting 0.6.0, the others are the same series in 30 digits.
    #[test]
    fn dropping_signs_gives_the_numbers_of_dp_accounting() {
        for (q, z, rounds, expected, best) in [
            (256.0 / 60_000.0, 1.1, 14_040, 2.594_363_355_785, 8.1),
            (0.01, 0.35, 120, 22.624_860_085_1, 1.7),
            (0.01, 0.7, 120, 3.239_267_649_50, 4.4),
            (0.04, 1.5, 2250, 7.329_334_702_38, 3.9),
        ] {
            let rounds = poisson(q, z, rounds).unwrap();
            let delta = Delta::new(1e-5).unwrap();
            let (found, order) = unsigned_epsilon(&rounds, delta, &rdp::dp_accounting_orders());
            assert!((found / expected - 1.0).abs() < 1e-11, "{found} is not {expected}");
            assert!((order - best).abs() < 1e-9, "{order} is not {best}");
        }
    }
}
