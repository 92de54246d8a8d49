//! What follows from a profile: attacks, calibration, curves, adaptive runs.

use serde_json::Value;
use veilgrad_accounting::{
    Accountant, Composition, Envelope, Pld, PrivacyTarget, Profile, Tightest, adaptive, advantage,
    profile, rdp, spent, true_positive_rate,
};
use veilgrad_events::{
    Adjacency, ClipNorm, Delta, Epsilon, Mode, NoiseMultiplier, NoiseStd, Round, Rounds,
    SampleRate, Sampling, SumQuery,
};

fn oracles(kind: &str) -> Vec<Value> {
    let oracles: Value = serde_json::from_str(include_str!("oracles.json")).unwrap();
    oracles[kind].as_array().unwrap().clone()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap()
}

fn rate(q: f64) -> SampleRate {
    SampleRate::new(q).unwrap()
}

fn noise(z: f64) -> NoiseMultiplier {
    NoiseMultiplier::new(z).unwrap()
}

fn poisson(q: f64, z: f64, count: u64) -> Composition {
    Composition::poisson(rate(q), noise(z), count, Adjacency::AddRemove).unwrap()
}

fn rounds(q: f64, z: f64, count: u64) -> Rounds {
    let query = SumQuery::new("g", ClipNorm::new(1.0).unwrap(), NoiseStd::new(z).unwrap());
    let sampling = Sampling::Poisson { rate: rate(q) };
    Rounds { count, round: Round::new(sampling, vec![query]).unwrap() }
}

fn epsilon(value: f64) -> Epsilon {
    Epsilon::new(value).unwrap()
}

fn delta() -> Delta {
    Delta::new(1e-5).unwrap()
}

#[test]
fn attacks_agree_with_another_library() {
    for row in oracles("tradeoff") {
        let steps = row["steps"].as_u64().unwrap();
        let composition = poisson(number(&row["q"]), number(&row["z"]), steps);
        let profile = Profile::new(&composition, epsilon(8.0), 800);
        // Theirs is from a grid of losses; the advantage is exact for the Gaussian.
        let theirs = number(&row["riskcal_advantage"]);
        assert!((profile.advantage() - theirs).abs() < 2e-5, "{row} {}", profile.advantage());
        for (alpha, beta) in row["riskcal_beta_at_alpha"].as_object().unwrap() {
            let found = 1.0 - profile.true_positive_rate(alpha.parse().unwrap());
            let theirs = number(beta);
            // Theirs is no bound: its attacks may be a little weaker than the best, never stronger.
            assert!(found <= theirs + 2e-5 && found >= theirs - 6e-4, "{row} {alpha}: {found}");
        }
    }
    assert!(Profile::default().true_positive_rate(f64::NAN).is_nan());
    assert_eq!(Profile::default().true_positive_rate(0.3), 1.0);
}

/// A mu that ignores small deltas is below the truth there: (0.01, 1, 1000) has .4631 down to delta 1e-5,
/// and costs more than that Gaussian at 1e-12.
#[test]
fn mu_is_reported_only_where_a_gaussian_dominates_at_every_delta() {
    let sampled = poisson(0.01, 1.0, 1000);
    let gaussian = poisson(1.0, 1.0 / 0.4631, 1);
    let tiny = Delta::new(1e-12).unwrap();
    let cost = |composition: &Composition| Pld.epsilon(composition, tiny).unwrap();
    assert!(cost(&sampled).epsilon_lower.unwrap() > cost(&gaussian).epsilon);
    assert_eq!(sampled.mu(), None);
    assert_eq!(Composition::join(&[sampled, gaussian]).mu(), None);
    let mu = Composition::join(&[poisson(1.0, 0.5, 3), poisson(1.0, 0.5, 1)]).mu().unwrap();
    assert!((4.0..4.0 + 1e-12).contains(&mu), "{mu}");
    assert_eq!(Composition::join(&[]).mu(), Some(0.0));
}

/// The trade-off curve of the Gaussian is known: `Phi(Phi^-1(fpr) + mu)`.
#[test]
fn attacks_on_gaussians_are_bounded_from_above_and_closely() {
    let quantile_of_one_percent = -2.326_347_874_040_841;
    let normal = |x: f64| 0.5 * libm::erfc(-x * std::f64::consts::FRAC_1_SQRT_2);
    for mu in [0.01, 0.1, 0.5, 1.0, 2.0, 4.0, 6.0] {
        let gaussian = poisson(1.0, 1.0 / mu, 1);
        let (found, exact) = (advantage(&gaussian), 2.0 * normal(0.5 * mu) - 1.0);
        assert!(found >= exact && found <= exact * (1.0 + 1e-9), "{mu}: {found} {exact}");
        let found = true_positive_rate(&gaussian, 0.01);
        let exact = normal(quantile_of_one_percent + mu);
        assert!(found >= exact && found <= exact + 1e-5, "{mu}: {found} {exact}");
    }
    let nothing = Composition::join(&[]);
    assert_eq!(advantage(&nothing), 0.0);
    assert!((true_positive_rate(&nothing, 0.01) - 0.01).abs() < 1e-12);
    assert!(true_positive_rate(&nothing, 1.5).is_nan());
    assert!(true_positive_rate(&nothing, f64::NAN).is_nan());
}

#[test]
fn attacks_on_sampled_rounds_agree_with_their_profile() {
    for (q, z, count) in [(0.01, 1.0, 1000), (0.1, 2.0, 50), (1e-5, 0.8, 5000)] {
        let rounds = poisson(q, z, count);
        let profile = Profile::new(&rounds, epsilon(8.0), 300);
        let bounds = profile::delta(&rounds, epsilon(0.0));
        let found = advantage(&rounds);
        let what = format!("{q} {z} {count}");
        assert!(
            found >= bounds.bounds.lower && found <= bounds.bounds.upper * 1.01,
            "{what}: {found} {bounds:?}"
        );
        for fpr in [1e-3, 0.01, 0.2, 0.9] {
            let (found, other) =
                (true_positive_rate(&rounds, fpr), profile.true_positive_rate(fpr));
            assert!(
                found <= other + 1e-3 && found >= other - 2e-2,
                "{what} {fpr}: {found} {other}"
            );
            assert!(found >= fpr, "{what} {fpr}: {found}");
        }
    }
}

#[test]
fn noise_is_calibrated_to_the_optimum_from_the_safe_side() {
    for row in oracles("calibration") {
        let target = PrivacyTarget {
            epsilon: epsilon(number(&row["target_eps"])),
            delta: Delta::new(number(&row["delta"])).unwrap(),
            accountant: &Tightest,
        };
        let (q, steps) = (number(&row["q"]), row["steps"].as_u64().unwrap());
        let with = |z| Composition::poisson(rate(q), z, steps, Adjacency::AddRemove);
        let (found, exact) = (target.noise_multiplier(with).unwrap(), number(&row["z_exact"]));
        assert!(found.get() >= exact * (1.0 - 1e-9), "{row}: {found:?}");
        assert!(found.get() <= exact * (1.0 + 1e-5), "{row}: {found:?}");
        let again = Tightest.epsilon(&with(found).unwrap(), target.delta).unwrap().epsilon;
        assert!(again <= target.epsilon.get(), "{row}: {again}");
    }
}

#[test]
fn rates_and_rounds_are_the_largest_that_keep_the_budget() {
    let target = PrivacyTarget { epsilon: epsilon(2.0), delta: delta(), accountant: &Tightest };
    let cost =
        |q: f64, count: u64| Tightest.epsilon(&poisson(q, 1.59, count), delta()).unwrap().epsilon;
    let q = target.rate(|q| Composition::poisson(q, noise(1.59), 5000, Adjacency::AddRemove));
    let q = q.unwrap().get();
    assert!(cost(q, 5000) <= 2.0 && cost(q * 1.0001, 5000) > 2.0, "{q}");
    let with = |n| Composition::poisson(rate(0.01), noise(1.59), n, Adjacency::AddRemove);
    let count = target.rounds(with).unwrap();
    assert!(cost(0.01, count) <= 2.0 && cost(0.01, count + 1) > 2.0, "{count}");
    // How many more rounds after what a ledger holds.
    let before = poisson(0.02, 2.0, 500);
    let more = target.rounds(|n| Ok(Composition::join(&[before.clone(), with(n)?]))).unwrap();
    assert!(more > 0 && more < count);
    // None, where one is too many; all rates, where none is.
    let tight = PrivacyTarget { epsilon: epsilon(0.001), ..target };
    let with = |n| Composition::poisson(rate(0.5), noise(0.5), n, Adjacency::AddRemove);
    assert_eq!(tight.rounds(with).unwrap(), 0);
    let all = target.rate(|q| Composition::poisson(q, noise(100.0), 5, Adjacency::AddRemove));
    assert_eq!(all.unwrap().get(), 1.0);
}

#[test]
fn epsilon_after_every_round_ends_with_all_rounds() {
    let lines = [rounds(0.01, 1.0, 700), rounds(0.02, 1.5, 300)];
    let curve = spent(&lines, Adjacency::AddRemove, delta(), &Tightest, 10).unwrap();
    assert_eq!(curve.len(), 10);
    assert!(curve.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1));
    let all = Composition::fold(&lines, Adjacency::AddRemove).unwrap();
    let whole = Tightest.epsilon(&all, delta()).unwrap().epsilon;
    assert_eq!(curve.last(), Some(&(1000, whole)));
    assert_eq!(spent(&[], Adjacency::AddRemove, delta(), &Tightest, 10).unwrap(), []);
}

#[test]
fn adaptive_rounds_need_an_envelope_or_a_filter() {
    let lines = [rounds(0.01, 1.0, 700), rounds(0.005, 1.5, 300)];
    let fold = |mode, envelope: Option<Envelope>| {
        adaptive::composition(mode, &lines, Adjacency::AddRemove, envelope.as_ref())
    };
    assert!(fold(Mode::Planned, None).is_ok());
    let error = fold(Mode::Adaptive, None).unwrap_err().to_string();
    assert!(error.contains("declared before the first round"), "{error}");
    let envelope = Envelope { rate: rate(0.01), noise_multiplier: noise(1.0), rounds: 1000 };
    // A round that the envelope admits may have a little less noise than was declared, by rounding.
    let priced = fold(Mode::Adaptive, Some(envelope)).unwrap();
    assert_eq!(priced, poisson(0.01, 1.0 - 1e-12, 1000));
    for outside in [
        Envelope { rate: rate(0.009), ..envelope },
        Envelope { noise_multiplier: noise(1.01), ..envelope },
        Envelope { rounds: 999, ..envelope },
    ] {
        let error = fold(Mode::Adaptive, Some(outside)).unwrap_err().to_string();
        assert!(error.contains("outside the declared envelope"), "{error}");
    }
}

#[test]
fn a_filter_admits_rounds_up_to_its_budget_and_not_beyond() {
    let budget = epsilon(3.0);
    let typical = poisson(0.01, 1.0, 1);
    let filter = adaptive::Filter::for_rounds_like(&typical, budget, delta()).unwrap();
    // The most rounds that any order admits are those of the planned accountant, about.
    let admitted = (1..20_000u64)
        .collect::<Vec<_>>()
        .partition_point(|count| filter.admits(&poisson(0.01, 1.0, *count)));
    let planned =
        |count: u64| rdp::epsilon(&poisson(0.01, 1.0, count), delta()).unwrap().epsilon.get();
    let admitted = admitted as u64;
    assert!(planned(admitted) <= 3.0 && planned(admitted) > 2.9, "{admitted}");
    assert!(!filter.admits(&poisson(0.01, 1.0, admitted + 1)));
    assert_eq!((filter.epsilon(), filter.delta()), (budget, delta()));
    assert!(adaptive::Filter::new(1.0, budget, delta()).is_err());
    assert!(adaptive::Filter::new(f64::NAN, budget, delta()).is_err());
    assert!(adaptive::Filter::new(1.5, budget, delta()).is_err());
}

/// The budget of a filter, converted back, is never more than was declared: not by a last digit.
#[test]
fn filters_never_promise_more_than_their_budget() {
    for i in 0..2000 {
        let order = 1.5 + f64::from(i) * 0.01;
        let budget = epsilon(0.1 + f64::from(i % 97) * 0.13);
        let Ok(filter) = adaptive::Filter::new(order, budget, delta()) else { continue };
        let tilt = order - 1.0;
        // Canonne, Kamath, Steinke (2020), proposition 12, with its own rounding on the other side.
        let free = libm::log1p(-1.0 / order) - (delta().get().ln() + order.ln()) / tilt;
        let found = filter.divergence() + free;
        let room = 4e-16 * (filter.divergence() + free.abs());
        assert!(found + room <= budget.get() * (1.0 + 1e-15), "{order}: {found} {budget:?}");
    }
}

/// A profile is as good at its ends as one made for a single epsilon.
#[test]
fn profiles_are_close_everywhere_also_for_few_rounds() {
    for (q, z, count, last) in [(0.004, 0.7743, 2, 0.5), (0.1, 1.0, 7, 2.0)] {
        let composition = poisson(q, z, count);
        let profile = Profile::new(&composition, epsilon(last), 9);
        for (at, found) in profile.points().iter().copied() {
            let exact = profile::delta(&composition, epsilon(at)).bounds.upper;
            assert!(found <= 1.1 * exact, "q {q}, epsilon {at}: {found} for {exact}");
        }
    }
}
