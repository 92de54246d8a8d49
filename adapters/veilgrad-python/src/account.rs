//! Accounting: pure functions of rounds, computed without the lock of Python.

use std::num::NonZeroU64;

use numpy::{PyArray1, PyReadonlyArray1};
use pyo3::prelude::*;
use veilgrad_accounting::profile::Method;
use veilgrad_accounting::{
    Accountant, Composition, Guarantee, PrivacyTarget, Profile, Unsupported, rdp,
};
use veilgrad_events::{
    Adjacency, Epsilon, FixedBatch, Folded, Mode, NoiseMultiplier, Rounds, SampleRate, Sampling,
    TruncatedPoisson,
};

use crate::error::{Raise, invalid};
use crate::interrupt::interruptible;
use crate::round::{Source, rounds_file};
use crate::unit;

/// epsilon, lower bound, delta, accountant, method.
type Answer = (f64, Option<f64>, f64, &'static str, Option<&'static str>);

fn answer(found: Guarantee) -> Answer {
    let method = found.method.map(|method| match method {
        Method::ClosedForm => "closed-form",
        Method::Contour => "contour",
        Method::Lattice => "lattice",
    });
    (found.epsilon, found.epsilon_lower, found.delta, found.accountant, method)
}

/// Epsilon of rounds at a delta.
#[pyfunction]
pub(crate) fn epsilon(
    py: Python<'_>,
    rounds: &Bound<'_, PyAny>,
    delta: f64,
    adjacency: &str,
    accountant: &str,
) -> PyResult<Answer> {
    let source = Source::new(rounds)?;
    let (delta, adjacency) = (unit::delta(delta)?, unit::adjacency(adjacency)?);
    let pld_only = accountant == "pld";
    let accountant = unit::accountant(accountant)?;
    let found = interruptible(py, move || -> Result<Guarantee, Unsupported> {
        match source.order {
            Some(order) if source.adaptive && !pld_only => {
                let composition = source.composition(adjacency)?;
                let found = rdp::epsilon_on_orders(&composition, delta, &[order])?;
                let (epsilon, delta) = (found.epsilon.get(), delta.get());
                let (epsilon_lower, accountant, method) = (None, "rdp", None);
                Ok(Guarantee { epsilon, epsilon_lower, delta, accountant, method })
            }
            _ => accountant.epsilon(&source.planned(adjacency)?, delta),
        }
    })?;
    found.map(answer).map_err(Raise::raise)
}

/// Delta of rounds at an epsilon.
#[pyfunction]
pub(crate) fn delta(
    py: Python<'_>,
    rounds: &Bound<'_, PyAny>,
    epsilon: f64,
    adjacency: &str,
    accountant: &str,
) -> PyResult<Answer> {
    let source = Source::new(rounds)?;
    let (epsilon, adjacency) = (unit::epsilon(epsilon)?, unit::adjacency(adjacency)?);
    let accountant = unit::accountant(accountant)?;
    let found = interruptible(py, move || {
        source.planned(adjacency).map(|composition| accountant.delta(&composition, epsilon))
    })?;
    found.map(answer).map_err(Raise::raise)
}

/// The parameters of a run, one of which is to be found.
#[derive(Clone, Copy)]
struct Parameters {
    policy: Policy,
    records: Option<u64>,
    adjacency: Adjacency,
    rate: Option<f64>,
    rounds: Option<u64>,
    noise: Option<f64>,
}

#[derive(Clone, Copy, PartialEq)]
enum Policy {
    Poisson,
    Fixed,
    Shuffle,
    /// With the largest batch.
    Truncated(u64),
    Allocation,
    All,
}

impl Parameters {
    /// The largest rate of a whole batch that is not above this one, where batches are whole.
    fn whole_batch(&self, rate: f64) -> f64 {
        match (self.policy, self.records) {
            (Policy::Fixed | Policy::Shuffle, Some(records)) => {
                (rate * records as f64 * (1.0 + 1e-12)).floor().max(1.0) / records as f64
            }
            // One over a whole number of rounds.
            (Policy::Allocation, _) => 1.0 / (1.0 / rate * (1.0 - 1e-12)).ceil().max(1.0),
            _ => rate,
        }
    }

    fn composition(&self) -> Result<Composition, Unsupported> {
        let unknown = || Unsupported::new("a parameter is unknown");
        let (rate, count) = (self.rate.ok_or_else(unknown)?, self.rounds.ok_or_else(unknown)?);
        let noise_multiplier = NoiseMultiplier::new(self.noise.ok_or_else(unknown)?)?;
        if count == 0 {
            return Composition::of([], self.adjacency);
        }
        let batch = || {
            let records = self.records.unwrap_or(1);
            let batch = FixedBatch::new(records, (rate * records as f64).round() as u64);
            batch.map_err(|error| Unsupported::new(error.to_string()))
        };
        let sampling = match self.policy {
            Policy::All => Sampling::All {},
            Policy::Poisson => Sampling::Poisson { rate: SampleRate::new(rate)? },
            Policy::Fixed => Sampling::Fixed(batch()?),
            Policy::Shuffle => Sampling::Shuffle(batch()?),
            Policy::Truncated(maximum) => {
                let records = self.records.unwrap_or(1);
                let policy = TruncatedPoisson::new(SampleRate::new(rate)?, records, maximum);
                let policy = policy.map_err(|error| Unsupported::new(error.to_string()))?;
                Sampling::TruncatedPoisson(policy)
            }
            Policy::Allocation => {
                let rounds = (1.0 / rate).round().max(1.0);
                let rounds = (rounds < 1e18).then_some(rounds as u64).and_then(NonZeroU64::new);
                let too_long = || Unsupported::new(format!("rate {rate}: an epoch is too long"));
                Sampling::Allocation { rounds_per_epoch: rounds.ok_or_else(too_long)? }
            }
        };
        Composition::of([Folded { count, sampling, noise_multiplier }], self.adjacency)
    }
}

/// Finds the noise multiplier, rate or number of rounds that keeps (epsilon, delta).
#[pyfunction]
#[pyo3(signature = (epsilon, delta, find, sampling, maximum, rate, records, rounds, noise_multiplier, adjacency, accountant))]
#[allow(clippy::too_many_arguments)]
pub(crate) fn calibrate(
    py: Python<'_>,
    epsilon: f64,
    delta: f64,
    find: &str,
    sampling: &str,
    maximum: Option<u64>,
    rate: Option<f64>,
    records: Option<u64>,
    rounds: Option<u64>,
    noise_multiplier: Option<f64>,
    adjacency: &str,
    accountant: &str,
) -> PyResult<(f64, f64, u64, Answer)> {
    let policy = match sampling {
        "poisson" => Policy::Poisson,
        "fixed" => Policy::Fixed,
        "shuffle" => Policy::Shuffle,
        "truncated" => {
            let maximum = maximum.ok_or_else(|| invalid("truncated samples need a maximum"))?;
            Policy::Truncated(maximum)
        }
        "allocation" => Policy::Allocation,
        "all" => Policy::All,
        _ => {
            let all = "'poisson', 'fixed', 'truncated', 'allocation', 'shuffle', 'all'";
            return Err(invalid(format!("sampling {sampling:?} is none of {all}")));
        }
    };
    let needs_records = matches!(policy, Policy::Fixed | Policy::Shuffle | Policy::Truncated(_));
    if needs_records && records.is_none() {
        return Err(invalid("fixed, shuffled and truncated batches need records"));
    }
    if maximum.is_some() && !matches!(policy, Policy::Truncated(_)) {
        return Err(invalid("a maximum is for truncated samples"));
    }
    let adjacency = unit::adjacency(adjacency)?;
    let (epsilon, delta) = (unit::epsilon(epsilon)?, unit::delta(delta)?);
    let accountant: &(dyn Accountant + Send + Sync) = unit::accountant(accountant)?;
    let rate = rate.map(SampleRate::new).transpose().map_err(invalid)?.map(SampleRate::get);
    let rate = match policy {
        Policy::All => Some(1.0),
        // An epoch of random allocation has a whole number of rounds.
        Policy::Allocation => rate.map(|rate| 1.0 / (1.0 / rate).round()),
        _ => rate,
    };
    let known = Parameters { policy, records, adjacency, rate, rounds, noise: noise_multiplier };
    let find = find.to_owned();
    let found = interruptible(py, move || -> Result<_, Unsupported> {
        let target = PrivacyTarget { epsilon, delta, accountant };
        let mut found = known;
        match find.as_str() {
            "noise" => {
                let with = |noise: NoiseMultiplier| {
                    Parameters { noise: Some(noise.get()), ..known }.composition()
                };
                found.noise = Some(target.noise_multiplier(with)?.get());
            }
            "rate" => {
                let at = |rate: f64| Parameters { rate: Some(known.whole_batch(rate)), ..known };
                found = at(target.rate(|rate: SampleRate| at(rate.get()).composition())?.get());
            }
            _ => {
                let with = |rounds| Parameters { rounds: Some(rounds), ..known }.composition();
                let rounds = target.rounds(with)?;
                if rounds == 0 {
                    return Err(Unsupported::new("not one round fits"));
                }
                found.rounds = Some(rounds);
            }
        }
        let guarantee = accountant.epsilon(&found.composition()?, delta)?;
        Ok((found, guarantee))
    })?;
    let (found, guarantee) = found.map_err(Raise::raise)?;
    let (noise, rate) = (found.noise.unwrap_or(f64::NAN), found.rate.unwrap_or(f64::NAN));
    Ok((noise, rate, found.rounds.unwrap_or(0), answer(guarantee)))
}

type Points<'py> = (Bound<'py, PyArray1<f64>>, Bound<'py, PyArray1<f64>>);

/// The privacy profile at `points` epsilons from 0 to `last`.
#[pyfunction]
pub(crate) fn profile<'py>(
    py: Python<'py>,
    rounds: &Bound<'py, PyAny>,
    last: f64,
    points: usize,
    adjacency: &str,
) -> PyResult<Points<'py>> {
    let source = Source::new(rounds)?;
    let (last, adjacency) = (unit::epsilon(last)?, unit::adjacency(adjacency)?);
    let found = interruptible(py, move || {
        source.planned(adjacency).map(|composition| Profile::new(&composition, last, points))
    })?;
    let found = found.map_err(Raise::raise)?;
    let (epsilons, deltas): (Vec<f64>, Vec<f64>) = found.points().iter().copied().unzip();
    Ok((PyArray1::from_vec(py, epsilons), PyArray1::from_vec(py, deltas)))
}

/// The epsilons from which trade-off curves are read: beyond 40, `e^-40` is below the digits of 1.
const CURVE_LAST: f64 = 40.0;
const CURVE_POINTS: usize = 201;
/// Where the profile is far below every rate that a curve shows.
const CURVE_DELTA: f64 = 1e-9;

/// The largest true positive rate at each false positive rate.
#[pyfunction]
pub(crate) fn tradeoff<'py>(
    py: Python<'py>,
    rounds: &Bound<'py, PyAny>,
    false_positive_rates: PyReadonlyArray1<'py, f64>,
    adjacency: &str,
) -> PyResult<Bound<'py, PyArray1<f64>>> {
    let source = Source::new(rounds)?;
    let adjacency = unit::adjacency(adjacency)?;
    let rates: Vec<f64> = false_positive_rates.as_array().to_vec();
    if let Some(rate) = rates.iter().find(|rate| !(0.0..=1.0).contains(*rate)) {
        return Err(invalid(format!("false positive rate {rate} is not in [0, 1]")));
    }
    let small = unit::delta(CURVE_DELTA)?;
    let found = interruptible(py, move || -> Result<Vec<f64>, Unsupported> {
        let composition = source.planned(adjacency)?;
        let last =
            unit::accountant("best").ok().and_then(|best| best.epsilon(&composition, small).ok());
        let last = last.map_or(CURVE_LAST, |found| found.epsilon.clamp(1e-3, CURVE_LAST));
        let profile = Profile::new(&composition, Epsilon::new(last)?, CURVE_POINTS);
        Ok(rates.iter().map(|rate| profile.true_positive_rate(*rate)).collect())
    })?;
    Ok(PyArray1::from_vec(py, found.map_err(Raise::raise)?))
}

/// How much better than guessing any attack is: true less false positive rate, at most.
#[pyfunction]
pub(crate) fn advantage(
    py: Python<'_>,
    rounds: &Bound<'_, PyAny>,
    adjacency: &str,
) -> PyResult<f64> {
    let source = Source::new(rounds)?;
    let adjacency = unit::adjacency(adjacency)?;
    let found = interruptible(py, move || {
        source.planned(adjacency).map(|composition| veilgrad_accounting::advantage(&composition))
    })?;
    found.map_err(Raise::raise)
}

/// Numbers of rounds, and epsilon after each.
type Curve<'py> = (Bound<'py, PyArray1<u64>>, Bound<'py, PyArray1<f64>>);

/// Epsilon after rounds 1 to the last, at not more than `points` of them.
#[pyfunction]
pub(crate) fn spent<'py>(
    py: Python<'py>,
    rounds: &Bound<'py, PyAny>,
    delta: f64,
    points: u64,
    adjacency: &str,
    accountant: &str,
) -> PyResult<Curve<'py>> {
    let file = rounds_file(rounds)?;
    if file.mode == Some(Mode::Adaptive) {
        return Err(invalid("a curve is that of planned rounds"));
    }
    let runs = file.runs;
    let [run]: [Vec<Rounds>; 1] =
        runs.try_into().map_err(|_| invalid("a curve is that of one run"))?;
    let (delta, adjacency) = (unit::delta(delta)?, unit::adjacency(adjacency)?);
    let accountant = unit::accountant(accountant)?;
    let found = interruptible(py, move || {
        veilgrad_accounting::spent(&run, adjacency, delta, accountant, points)
    })?;
    let (rounds, epsilons): (Vec<u64>, Vec<f64>) = found.map_err(Raise::raise)?.into_iter().unzip();
    Ok((PyArray1::from_vec(py, rounds), PyArray1::from_vec(py, epsilons)))
}
