//! Epsilon and delta against near-exact values.

use serde_json::Value;
use veilgrad_accounting::{
    Accountant, Composition, Pld, Rdp, Tightest, Unsupported, check_accountant, profile, rdp, work,
};
use veilgrad_events::{
    Adjacency, ClipNorm, Delta, Epsilon, FixedBatch, NoiseMultiplier, NoiseStd, Round, Rounds,
    SampleRate, Sampling, SumQuery,
};

fn oracles() -> Value {
    serde_json::from_str(include_str!("oracles.json")).unwrap()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| value.as_str().unwrap().parse().unwrap())
}

fn rows(kind: &str) -> Vec<Value> {
    let rows = oracles()[kind].as_array().unwrap().clone();
    assert!(!rows.is_empty());
    rows
}

fn poisson(q: f64, z: f64, count: u64) -> Composition {
    let (rate, noise) = (SampleRate::new(q).unwrap(), NoiseMultiplier::new(z).unwrap());
    Composition::poisson(rate, noise, count, Adjacency::AddRemove).unwrap()
}

fn delta(value: f64) -> Delta {
    Delta::new(value).unwrap()
}

fn rounds(sampling: Sampling, tuples: &[(f64, f64)], count: u64) -> Rounds {
    let query = |&(clip, noise): &(f64, f64)| {
        SumQuery::new("g", ClipNorm::new(clip).unwrap(), NoiseStd::new(noise).unwrap())
    };
    let round = Round::new(sampling, tuples.iter().map(query).collect()).unwrap();
    Rounds { count, round }
}

fn sampled(q: f64) -> Sampling {
    Sampling::Poisson { rate: SampleRate::new(q).unwrap() }
}

/// What a case composes.
fn items(case: &Value) -> Vec<Rounds> {
    let item = |item: &Value| {
        let count = item["steps"].as_u64().unwrap();
        rounds(sampled(number(&item["q"])), &[(1.0, number(&item["z"]))], count)
    };
    case["items"].as_array().unwrap().iter().map(item).collect()
}

/// Cases with a near-exact epsilon, with what they compose.
fn cases() -> Vec<(String, Composition, Delta, f64)> {
    rows("cases")
        .iter()
        .filter_map(|case| {
            let exact = case["eps_near_exact"].as_f64()?;
            let adjacency = match case["adjacency"].as_str().unwrap() {
                "add_remove" => Adjacency::AddRemove,
                "replace_one_poisson" => Adjacency::ReplaceOne,
                other => panic!("{other}"),
            };
            let composition = Composition::fold(&items(case), adjacency).unwrap();
            Some((case["id"].to_string(), composition, delta(number(&case["delta"])), exact))
        })
        .collect()
}

/// The near-exact values are good to about 1e-9 relative.
const ORACLE: f64 = 1e-9;

#[test]
fn renyi_bounds_are_never_below_the_near_exact_value() {
    let cases = cases();
    assert!(cases.len() >= 50);
    for (id, composition, delta, exact) in cases {
        let found = rdp::epsilon(&composition, delta).unwrap().epsilon.get();
        assert!(found >= exact * (1.0 - ORACLE), "{id}: {found} {exact}");
    }
}

#[test]
fn certified_bounds_enclose_the_near_exact_value() {
    for (id, composition, delta, exact) in cases() {
        let bounds = profile::epsilon(&composition, delta).unwrap();
        let (lower, upper) = (bounds.bounds.lower, bounds.bounds.upper);
        assert!(upper >= exact * (1.0 - ORACLE), "{id}: {upper} {exact}");
        assert!(lower <= exact * (1.0 + ORACLE), "{id}: {lower} {exact}");
        assert!(upper <= exact * 1.0005 || upper <= exact + 1e-5, "{id}: {upper} {exact}");
        // The lattice moves every loss down, which costs the lower bound more.
        let least =
            if bounds.method == profile::Method::Lattice { 0.0 } else { exact * (1.0 - 1e-4) };
        assert!(lower >= least, "{id}: {lower} {exact}");
        // And back: delta at that epsilon is about the delta that was asked for.
        let back = profile::delta(&composition, Epsilon::new(exact).unwrap());
        assert!(back.bounds.lower <= delta.get() * (1.0 + 1e-6), "{id}: {back:?} {delta:?}");
        assert!(back.bounds.upper >= delta.get() * (1.0 - 1e-6), "{id}: {back:?} {delta:?}");
    }
}

#[test]
fn profiles_of_one_step_agree_with_high_precision_values() {
    for row in rows("single_step_profile") {
        let epsilon = number(&row["eps"]);
        if epsilon < 0.0 {
            continue;
        }
        let exact = number(&row["delta_remove"]).max(number(&row["delta_add"]));
        let step = poisson(number(&row["q"]), number(&row["z"]), 1);
        let found = profile::delta(&step, Epsilon::new(epsilon).unwrap());
        assert!(found.bounds.lower <= exact && exact <= found.bounds.upper, "{row}: {found:?}");
        assert!(
            found.bounds.upper - found.bounds.lower <= 1e-9 * exact + 1e-30,
            "{row}: {found:?}"
        );
    }
}

#[test]
fn gaussians_have_their_closed_form() {
    for row in rows("gaussian_closed_form") {
        let exact = number(&row["eps_exact"]);
        let gaussian = poisson(1.0, 1.0 / number(&row["mu"]), 1);
        let found = profile::epsilon(&gaussian, delta(number(&row["delta"]))).unwrap();
        assert!(found.bounds.upper >= exact * (1.0 - 1e-13), "{row}: {found:?}");
        assert!(found.bounds.lower <= exact * (1.0 + 1e-13), "{row}: {found:?}");
        assert!(
            found.bounds.upper - found.bounds.lower <= 1e-8 * exact + 1e-12,
            "{row}: {found:?}"
        );
    }
}

/// Two queries on one sample are one Gaussian: 4.4808 (oracle `correlated_sample…`), not the 2.5839
/// that two independent samples would have.
#[test]
fn groups_of_one_sample_are_not_composed_as_independent_samples() {
    let together = [rounds(sampled(0.01), &[(1.0, 1.0), (1.0, 1.0)], 1000)];
    let together = Composition::fold(&together, Adjacency::AddRemove).unwrap();
    let found = profile::epsilon(&together, delta(1e-5)).unwrap().bounds.upper;
    assert!((found - 4.4808).abs() < 1e-4, "{found}");
    let found = rdp::epsilon(&together, delta(1e-5)).unwrap().epsilon.get();
    // dp_accounting's order grid gives 5.2612; continuous orders a little less.
    assert!(found <= 5.2612 && found > 5.25, "{found}");
    let apart = profile::epsilon(&poisson(0.01, 1.0, 2000), delta(1e-5)).unwrap().bounds.upper;
    assert!((apart - 2.5839).abs() < 1e-4, "{apart}");
}

#[test]
fn folded_groups_agree_with_one_gaussian() {
    for row in rows("nested_groups") {
        let tuples: Vec<(f64, f64)> = row["groups_S_sigma"]
            .as_array()
            .unwrap()
            .iter()
            .map(|pair| (number(&pair[0]), number(&pair[1])))
            .collect();
        let folded = [rounds(sampled(number(&row["q"])), &tuples, row["steps"].as_u64().unwrap())];
        let folded = Composition::fold(&folded, Adjacency::AddRemove).unwrap();
        let delta = delta(number(&row["delta"]));
        // Theirs is an upper bound on a grid of 1e-4, ours a closer one.
        let (found, theirs) = (profile::epsilon(&folded, delta).unwrap(), number(&row["pld_eps"]));
        assert!(found.bounds.upper <= theirs * (1.0 + 1e-9), "{row}: {found:?}");
        assert!(found.bounds.upper >= theirs * (1.0 - 1e-3), "{row}: {found:?}");
        let (found, theirs) = (rdp::epsilon(&folded, delta).unwrap(), number(&row["rdp_eps"]));
        assert!(found.epsilon.get() <= theirs * (1.0 + 1e-9), "{row}: {found:?}");
    }
}

#[test]
fn grids_of_orders_reproduce_other_libraries() {
    for row in rows("cases").iter().filter(|row| row["adjacency"] == "add_remove") {
        let Some(theirs) = row["rdp_eps_default_orders"].as_f64() else { continue };
        let composition = Composition::fold(&items(row), Adjacency::AddRemove).unwrap();
        let orders = rdp::dp_accounting_orders();
        let delta = delta(number(&row["delta"]));
        let found = rdp::epsilon_on_orders(&composition, delta, &orders).unwrap();
        // At fractional orders they add terms without their sign, which only makes theirs larger.
        let (found, order) = (found.epsilon.get(), found.order);
        assert!(found <= theirs * (1.0 + 1e-7), "{row}: {found} at {order}");
        if order.fract() == 0.0 && row["rdp_best_order"].as_f64() == Some(order) {
            assert!(found >= theirs * (1.0 - 1e-9), "{row}: {found} at {order}");
        }
    }
    let orders: Vec<f64> = rows("rdp_orders_default").iter().map(number).collect();
    let ours = rdp::dp_accounting_orders();
    assert_eq!(orders.len(), ours.len());
    assert!(orders.iter().zip(&ours).all(|(a, b)| (a - b).abs() < 1e-9));
}

/// Thousands of distinct rounds lie between the same schedule a hair earlier and a hair later, and their bounds are
/// as close as those of few.
#[test]
fn tens_of_thousands_of_distinct_rounds_cost_a_thousandth_more_at_most_and_have_a_lower_bound() {
    let each = |i: u32| {
        let part = f64::from(i) / 20_000.0;
        rounds(sampled(0.001 + 0.001 * part), &[(1.0, 1.5 - 0.5 * part)], 1)
    };
    let lines: Vec<Rounds> = (0..20_000).map(each).collect();
    let all = Composition::fold(&lines, Adjacency::AddRemove).unwrap();
    assert_eq!(all.steps().len(), 20_000);
    // Every hundredth of them, a hundred times: later is dearer.
    let schedule = |offset: u32| {
        let lines: Vec<Rounds> =
            (0..200).map(|i| Rounds { count: 100, ..each(100 * i + offset) }).collect();
        Composition::fold(&lines, Adjacency::AddRemove).unwrap()
    };
    let (early, late) = (schedule(0), schedule(99));
    let renyi =
        |composition: &Composition| rdp::epsilon(composition, delta(1e-5)).unwrap().epsilon.get();
    let found = renyi(&all);
    assert!(found >= renyi(&early) && found <= renyi(&late), "{found}");
    // Every tenth, ten times, is few enough to be exact: of ten, the fifth costs a little less than the mean, and the sixth
    // a little more.
    let exact = |offset: u32| {
        let tenths = (0..2000).map(|i| Rounds { count: 10, ..each(10 * i + offset) });
        let tenths: Vec<Rounds> = tenths.collect();
        let composition = Composition::fold(&tenths, Adjacency::AddRemove).unwrap();
        let found = Pld.epsilon(&composition, delta(1e-5)).unwrap();
        assert!(found.epsilon_lower.unwrap() > found.epsilon * (1.0 - 1e-6), "{found:?}");
        found.epsilon
    };
    let (less, more) = (exact(4), exact(5));
    assert!(less < more && more < less * (1.0 + 1e-4), "{less} {more}");
    let found = Pld.epsilon(&all, delta(1e-5)).unwrap();
    assert!(found.epsilon >= less && found.epsilon <= more * (1.0 + 1e-3), "{found:?} {less}");
    let lower = found.epsilon_lower.unwrap();
    assert!(lower <= more && lower >= less * (1.0 - 1e-3), "{found:?} {less}");
}

/// Thousands of distinct rounds with noise over six decades.
fn six_decades(rate: f64, noise: f64) -> Vec<Rounds> {
    let each = |i: u32| {
        let (a, b) = (f64::from(i * 37 % 2101) / 2101.0, f64::from(i) / 2101.0);
        rounds(sampled(rate * 100f64.powf(a)), &[(1.0, noise * 1e6f64.powf(b))], 1)
    };
    (0..2101).map(each).collect()
}

/// Records are often sampled, so that cumulants are added up: the lower bound shows how close the upper one is.
#[test]
fn distinct_rounds_with_noise_over_six_decades_cost_a_thousandth_more_at_most() {
    let composition = Composition::fold(&six_decades(1e-3, 0.8), Adjacency::AddRemove).unwrap();
    assert_eq!(composition.steps().len(), 2101);
    let found = Tightest.epsilon(&composition, delta(1e-6)).unwrap();
    let lower = found.epsilon_lower.unwrap();
    assert!(lower <= found.epsilon && lower >= found.epsilon * (1.0 - 1e-3), "{found:?}");
}

/// Records are hardly ever sampled, so that few rounds stand for all. Those with the least noise alone, few enough to be
/// taken one by one, cost nearly as much.
#[test]
fn rare_distinct_rounds_with_noise_over_six_decades_cost_a_thousandth_more_at_most() {
    let lines = six_decades(1e-4, 0.5);
    let epsilon = |lines: &[Rounds]| {
        let composition = Composition::fold(lines, Adjacency::AddRemove).unwrap();
        Tightest.epsilon(&composition, delta(1e-5)).unwrap().epsilon
    };
    let (all, some) = (epsilon(&lines), epsilon(&lines[..1000]));
    assert!(all >= some * (1.0 - 1e-4) && all <= some * (1.0 + 1e-3), "{all} {some}");
}

/// Rates and noises that scatter over decades: interpolating between few rounds agrees with taking every one, and takes
/// bounded work. Every second round is a hair dearer than the one before, so that half of them are few enough to be taken
/// one by one.
#[test]
fn scattered_rounds_are_within_a_thousandth_of_steps_one_by_one() {
    for (low, high, quiet, loud, count) in [
        (1e-6, 1e-3, 0.3, 1.0, 60),
        (1e-4, 1e-1, 0.5, 3.0, 20),
        // Losses in the tens, with a deviation in the hundreds.
        (1e-5, 1e-1, 0.15, 5.0, 40),
        (1e-7, 1e-1, 0.05, 5.0, 5),
    ] {
        for adjacency in [Adjacency::AddRemove, Adjacency::ReplaceOne] {
            // Every round by itself takes long with so little noise.
            if quiet < 0.1 && adjacency == Adjacency::ReplaceOne {
                continue;
            }
            // Two sequences that fill the square evenly.
            let each = |i: u32, dearer: f64, count: u64| {
                let part = |irrational: f64| (f64::from(i) * irrational).fract();
                let (a, b) = (part(0.754_877_666_246_693), part(0.569_840_290_998_053));
                let q = low * f64::powf(high / low, a) * (1.0 + dearer);
                rounds(sampled(q), &[(1.0, quiet * f64::powf(loud / quiet, b))], count)
            };
            let half = |dearer: f64, count: u64| (1..=1100).map(move |i| each(i, dearer, count));
            let few: Vec<Rounds> = half(0.0, 2 * count).collect();
            let many: Vec<Rounds> = half(0.0, count).chain(half(1e-9, count)).collect();
            let epsilon = |lines: &[Rounds]| {
                let composition = Composition::fold(lines, adjacency).unwrap();
                (composition.steps().len(), Pld.epsilon(&composition, delta(1e-6)).unwrap())
            };
            let (distinct, exact) = epsilon(&few);
            assert_eq!(distinct, 1100);
            let before = work::spent();
            let (distinct, found) = epsilon(&many);
            let spent = work::spent() - before;
            assert_eq!(distinct, 2200);
            let what = format!("{low} {quiet} {adjacency}: {exact:?} {found:?} {spent}");
            assert!(found.epsilon >= exact.epsilon_lower.unwrap(), "{what}");
            assert!(found.epsilon <= exact.epsilon * (1.0 + 1e-3), "{what}");
            let lower = found.epsilon_lower.unwrap();
            assert!(lower <= exact.epsilon * (1.0 + 1e-7), "{what}");
            assert!(lower >= found.epsilon * (1.0 - 1e-3), "{what}");
            assert!(spent < 600_000_000, "{what}");
        }
    }
}

/// The same rounds, above and below the number of distinct ones from which on they are interpolated: large losses,
/// heavy tails, several neighbours and rounds that are always sampled among them.
#[test]
fn interpolation_agrees_with_steps_one_by_one() {
    for adjacency in [Adjacency::AddRemove, Adjacency::ReplaceOne] {
        let each = |i: u32| {
            let (a, b) = (f64::from(i * 37 % 300) / 300.0, f64::from(i) / 300.0);
            let q = 1e-4 * 500f64.powf(a);
            rounds(sampled(q), &[(1.0, 0.7 * 10f64.powf(b))], 8)
        };
        let mut lines: Vec<Rounds> = (0..300).map(each).collect();
        lines.push(rounds(Sampling::All {}, &[(1.0, 30.0)], 2));
        let few = Composition::fold(&lines, adjacency).unwrap();
        // So rare and with so much noise that they cost less than 1e-9 of the others.
        lines.extend((0..2000).map(|i| rounds(sampled(1e-9), &[(1.0, 1e3 + f64::from(i))], 1)));
        let many = Composition::fold(&lines, adjacency).unwrap();
        for d in [1e-3, 1e-6, 1e-10] {
            let (one, other) =
                (Pld.epsilon(&few, delta(d)).unwrap(), Pld.epsilon(&many, delta(d)).unwrap());
            let what = format!("{adjacency} {d}: {one:?} {other:?}");
            assert!(other.epsilon >= one.epsilon_lower.unwrap(), "{what}");
            assert!(other.epsilon_lower.unwrap() <= one.epsilon * (1.0 + 1e-8), "{what}");
            assert!((other.epsilon / one.epsilon - 1.0).abs() < 1e-3, "{what}");
            assert!(other.epsilon_lower.unwrap() > 0.999 * one.epsilon, "{what}");
            let (one, other) =
                (rdp::epsilon(&few, delta(d)).unwrap(), rdp::epsilon(&many, delta(d)).unwrap());
            let ratio = other.epsilon.get() / one.epsilon.get();
            assert!((1.0 - 1e-8..1.001).contains(&ratio), "{adjacency} {d}: {one:?} {other:?}");
        }
    }
}

/// Rényi's delta is never below the profile's, at any epsilon; and it calls nothing free that is not.
#[test]
fn renyi_deltas_and_zeros_are_bounds() {
    for (q, z, count) in [(0.01, 1.0, 1000), (0.2, 3.0, 100), (1.0, 2.0, 1), (0.5, 40.0, 300)] {
        let composition = poisson(q, z, count);
        for i in 0..=8 {
            let at = Epsilon::new(f64::from(i) * 0.3).unwrap();
            let exact = profile::delta(&composition, at).bounds.lower;
            let found = rdp::delta(&composition, at);
            assert!(found >= exact, "{q} {z} {count} {at:?}: {found} {exact}");
        }
        // Just below the advantage epsilon is above 0; at twice it, by whichever bound, it may be 0.
        let advantage = profile::delta(&composition, Epsilon::new(0.0).unwrap()).bounds.lower;
        let found = rdp::epsilon(&composition, delta(advantage * 0.999)).unwrap();
        assert!(found.epsilon.get() > 0.0, "{q} {z} {count}: {found:?}");
    }
    // Without the square root the bound of total variation would call this free: it costs.
    let composition = poisson(1.0, 30.0, 1);
    assert!(rdp::epsilon(&composition, delta(1e-3)).unwrap().epsilon.get() > 0.0);
    assert_eq!(rdp::epsilon(&composition, delta(0.1)).unwrap().epsilon.get(), 0.0);
}

/// At epsilon 0 a step has the closed form `q (2 Phi(1/(2z)) - 1)`, in both directions, also where terms
/// cancel almost entirely.
#[test]
fn single_steps_are_enclosed_where_terms_cancel() {
    for (q, z) in [(1.686e-12, 35.875), (1e-9, 3.0), (0.3, 5.0), (1e-5, 1000.0), (0.999, 0.7)] {
        let exact = q * libm::erf(0.5 / z / std::f64::consts::SQRT_2);
        let found = profile::delta(&poisson(q, z, 1), Epsilon::new(0.0).unwrap());
        assert!(found.bounds.lower <= exact * (1.0 + 1e-13), "{q} {z}: {found:?} {exact}");
        assert!(found.bounds.upper >= exact * (1.0 - 1e-13), "{q} {z}: {found:?} {exact}");
        assert!(found.bounds.upper - found.bounds.lower < 1e-3 * exact, "{q} {z}: {found:?}");
    }
}

#[test]
fn no_lower_bound_where_neighbours_may_pay_less() {
    let lower = |records: u64, batch: u64, adjacency: Adjacency| {
        let sampling = Sampling::Fixed(FixedBatch::new(records, batch).unwrap());
        let composition =
            Composition::fold(&[rounds(sampling, &[(1.0, 2.0)], 9)], adjacency).unwrap();
        Pld.epsilon(&composition, delta(1e-5)).unwrap().epsilon_lower
    };
    assert!(lower(100, 10, Adjacency::AddRemove).is_some());
    assert_eq!(lower(10, 10, Adjacency::AddRemove), None);
    assert_eq!(lower(100, 10, Adjacency::ReplaceOne), None);
    assert_eq!(lower(100, 10, Adjacency::ZeroOut), None);
}

#[test]
fn our_accountants_keep_their_contract() {
    for accountant in [&Pld as &dyn Accountant, &Rdp, &Tightest] {
        check_accountant(accountant).unwrap();
    }
}

/// An accountant that is a little too optimistic.
struct Optimist;

impl Accountant for Optimist {
    fn name(&self) -> &'static str {
        "optimist"
    }

    fn epsilon(
        &self,
        composition: &Composition,
        delta: Delta,
    ) -> Result<veilgrad_accounting::Guarantee, Unsupported> {
        let found = Pld.epsilon(composition, delta)?;
        Ok(veilgrad_accounting::Guarantee { epsilon: found.epsilon * 0.9999, ..found })
    }

    fn delta(&self, composition: &Composition, epsilon: Epsilon) -> veilgrad_accounting::Guarantee {
        Pld.delta(composition, epsilon)
    }
}

#[test]
fn an_optimist_is_noticed() {
    let error = check_accountant(&Optimist).unwrap_err();
    assert!(error.contains("is below"), "{error}");
}

#[test]
fn epsilon_grows_with_rate_rounds_and_less_noise() {
    let epsilon = |q: f64, z: f64, count: u64| {
        profile::epsilon(&poisson(q, z, count), delta(1e-6)).unwrap().bounds.upper
    };
    let mut last = 0.0;
    for q in [1e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.3, 0.9, 1.0] {
        let found = epsilon(q, 1.5, 1000);
        assert!(found >= last * (1.0 - 1e-4), "q {q}: {found} after {last}");
        last = found;
    }
    last = 0.0;
    for count in [1, 2, 5, 20, 100, 1000, 10_000, 100_000, 1_000_000] {
        let found = epsilon(0.005, 1.0, count);
        assert!(found >= last * (1.0 - 1e-4), "T {count}: {found} after {last}");
        last = found;
    }
    last = 0.0;
    for z in [100.0, 30.0, 10.0, 3.0, 1.0, 0.7, 0.5, 0.3] {
        let found = epsilon(0.01, z, 500);
        assert!(found >= last * (1.0 - 1e-4), "z {z}: {found} after {last}");
        last = found;
    }
}

#[test]
fn extremes_give_a_bound_or_say_why() {
    for q in [1e-300, 1e-9, 0.5, 1.0 - 1e-12, 1.0] {
        for z in [1e-3, 0.05, 1.0, 1e6] {
            for (count, d) in [(1, 1e-300), (1, 0.9), (100, 1e-12), (u64::MAX, 1e-5)] {
                let composition = poisson(q, z, count);
                for accountant in [&Pld as &dyn Accountant, &Rdp] {
                    if let Ok(found) = accountant.epsilon(&composition, delta(d)) {
                        assert!(found.epsilon >= 0.0 && found.epsilon.is_finite());
                        let lower = found.epsilon_lower.unwrap_or(0.0);
                        assert!(lower <= found.epsilon, "{q} {z} {count} {d}: {found:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn nothing_costs_nothing_and_the_unknown_is_refused() {
    let empty = Composition::fold(&[], Adjacency::AddRemove).unwrap();
    assert_eq!(profile::epsilon(&empty, delta(1e-5)).unwrap().bounds.upper, 0.0);
    assert_eq!(rdp::epsilon(&empty, delta(1e-5)).unwrap().epsilon.get(), 0.0);
    assert_eq!(profile::delta(&empty, Epsilon::new(0.0).unwrap()).bounds.upper, 0.0);
    let shuffled = Sampling::Shuffle(FixedBatch::new(100, 10).unwrap());
    let error =
        Composition::fold(&[rounds(shuffled, &[(1.0, 1.0)], 1)], Adjacency::AddRemove).unwrap_err();
    assert!(error.to_string().starts_with("unsupported: "), "{error}");
    let nothing = [rounds(shuffled, &[(1.0, 1.0)], 0)];
    assert!(Composition::fold(&nothing, Adjacency::AddRemove).is_ok());
}

/// Shuffling is not amplified: a record is in one batch of each epoch, so E epochs are E Gaussians.
#[test]
fn shuffled_epochs_are_gaussians_without_amplification() {
    let shuffled = |z: f64, count: u64| {
        rounds(Sampling::Shuffle(FixedBatch::new(105, 10).unwrap()), &[(1.0, z)], count)
    };
    let epsilon = |lines: &[Rounds], adjacency: Adjacency| {
        let composition = Composition::fold(lines, adjacency).unwrap();
        Pld.epsilon(&composition, delta(1e-5)).unwrap()
    };
    let gaussians = |uses: u64, z: f64| {
        profile::epsilon(&poisson(1.0, z, uses), delta(1e-5)).unwrap().bounds.upper
    };
    // Ten batches of ten make an epoch; five records sit it out.
    let close = |a: f64, b: f64| (a - b).abs() < 1e-9 * b;
    let found = epsilon(&[shuffled(2.0, 20)], Adjacency::ZeroOut);
    assert!(close(found.epsilon, gaussians(2, 2.0)));
    assert_eq!(found.epsilon_lower, None);
    assert!(close(epsilon(&[shuffled(2.0, 21)], Adjacency::ZeroOut).epsilon, gaussians(3, 2.0)));
    // Replacing moves the sum twice as far.
    let replaced = epsilon(&[shuffled(2.0, 20)], Adjacency::ReplaceOne).epsilon;
    assert!(close(replaced, gaussians(2, 1.0)));
    // Ten rounds that begin amid an epoch touch two, and a record may be in both halves; the first epoch counts as
    // its rounds with less noise.
    let lines = [shuffled(3.0, 5), shuffled(2.0, 10)];
    assert!(close(epsilon(&lines, Adjacency::ZeroOut).epsilon, gaussians(2, 2.0)));
}

#[test]
fn fixed_size_samples_under_each_adjacency() {
    let fixed = [rounds(Sampling::Fixed(FixedBatch::new(1000, 10).unwrap()), &[(1.0, 4.0)], 500)];
    let epsilon = |adjacency: Adjacency| {
        let composition = Composition::fold(&fixed, adjacency).unwrap();
        Pld.epsilon(&composition, delta(1e-5)).unwrap().epsilon
    };
    // Whoever is added pushes somebody out: a Poisson sample with twice the sensitivity.
    let twice = profile::epsilon(&poisson(0.01, 2.0, 500), delta(1e-5)).unwrap().bounds.upper;
    assert!((epsilon(Adjacency::AddRemove) / twice - 1.0).abs() < 1e-6);
    // Replacing costs both directions of that, so at least one and at most their sum.
    let replaced = epsilon(Adjacency::ReplaceOne);
    assert!(replaced >= twice && replaced <= 2.0 * twice, "{replaced} {twice}");
    assert_eq!(epsilon(Adjacency::ZeroOut), replaced);
    // Rényi divergences of the same pair can only be looser.
    let composition = Composition::fold(&fixed, Adjacency::ReplaceOne).unwrap();
    assert!(rdp::epsilon(&composition, delta(1e-5)).unwrap().epsilon.get() >= replaced);
}

/// The profile of two rounds with removal, from that of one: `E_P delta_1(eps - L)`, one integral of closed forms.
fn two_rounds(q: f64, z: f64, epsilon: f64) -> f64 {
    let tail = |x: f64| 0.5 * libm::erfc(x / std::f64::consts::SQRT_2);
    let ratio = |y: f64| q * libm::expm1(y / z - 0.5 / (z * z));
    let one = |epsilon: f64| {
        // Losses are above epsilon from this output on.
        let odds = libm::expm1(epsilon) / q;
        if odds <= -1.0 {
            return -libm::expm1(epsilon);
        }
        let y = z * libm::log1p(odds) + 0.5 / z;
        q * tail(y - 1.0 / z) - (libm::expm1(epsilon) + q) * tail(y)
    };
    let (from, to, parts) = (-12.0, 12.0 + 1.0 / z, 40_000);
    let step = (to - from) / f64::from(parts);
    let at = |i: i32| {
        let y = from + step * f64::from(i);
        let density = (-0.5 * y * y).exp() / (2.0 * std::f64::consts::PI).sqrt();
        step * density * (1.0 + ratio(y)) * one(epsilon - libm::log1p(ratio(y)))
    };
    (0..=parts).map(at).sum()
}

#[test]
fn two_rounds_are_enclosed_by_an_integral_of_closed_forms() {
    for (q, z, d) in [
        (0.004, 0.774_382_8, 1e-6),
        (0.3, 1.5, 1e-5),
        (0.05, 0.5, 1e-8),
        (1e-3, 3.0, 1e-10),
        (1e-5, 0.6, 1e-9),
        (0.9, 2.0, 1e-3),
    ] {
        let found = profile::epsilon(&poisson(q, z, 2), delta(d)).unwrap();
        let (above, below) =
            (two_rounds(q, z, found.bounds.upper), two_rounds(q, z, found.bounds.lower));
        assert!(above <= d * (1.0 + 1e-9), "{q} {z}: {found:?} {above}");
        // Addition is never the dearer of both here.
        assert!(below >= d * (1.0 - 1e-9), "{q} {z}: {found:?} {below}");
        assert!(
            found.bounds.upper - found.bounds.lower <= 3e-4 * found.bounds.upper,
            "{q} {z}: {found:?}"
        );
    }
}
