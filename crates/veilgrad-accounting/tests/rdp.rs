//! Rényi divergences against high-precision values.

use serde_json::Value;
use veilgrad_accounting::{Composition, rdp};
use veilgrad_events::{
    Adjacency, ClipNorm, Delta, FixedBatch, NoiseStd, Round, Rounds, SampleRate, Sampling, SumQuery,
};

fn oracles() -> Value {
    serde_json::from_str(include_str!("oracles.json")).unwrap()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| value.as_str().unwrap().parse().unwrap())
}

fn composition(sampling: Sampling, z: f64, count: u64, adjacency: Adjacency) -> Composition {
    let query = SumQuery::new("g", ClipNorm::new(1.0).unwrap(), NoiseStd::new(z).unwrap());
    let rounds = [Rounds { count, round: Round::new(sampling, vec![query]).unwrap() }];
    Composition::fold(&rounds, adjacency).unwrap()
}

fn poisson(q: f64) -> Sampling {
    Sampling::Poisson { rate: SampleRate::new(q).unwrap() }
}

#[test]
fn divergences_agree_with_high_precision_values() {
    let oracles = oracles();
    let points = oracles["rdp_points_poisson_gaussian"].as_array().unwrap();
    for point in points {
        let (q, z, order) = (number(&point["q"]), number(&point["z"]), number(&point["order"]));
        let step = composition(poisson(q), z, 1, Adjacency::AddRemove);
        let found = rdp::divergence(&step, order);
        let expected = number(&point["rdp_exact"]);
        assert!((found / expected - 1.0).abs() < 1e-10, "{point}: {found}");
        assert!(found >= expected * (1.0 - 1e-15), "{point}: {found}");
    }
    assert!(points.len() >= 80);
}

/// Wang, Balle, Kasiviswanathan's bound for fixed-size samples is the looser one, at every order.
#[test]
fn fixed_size_samples_cost_less_than_the_known_bound() {
    for row in oracles()["wor_fixed_size_rdp_replace_one"].as_array().unwrap() {
        let whole = |key: &str| row[key].as_u64().unwrap();
        let sampling = Sampling::Fixed(FixedBatch::new(whole("n"), whole("batch")).unwrap());
        // Theirs is in units of the distance 2 that replacing makes.
        let z = 2.0 * number(&row["z_in_units_of_replace_one_sensitivity"]);
        let steps = composition(sampling, z, whole("steps"), Adjacency::ReplaceOne);
        for (order, key) in [(2.0, "rdp_at_2"), (8.0, "rdp_at_8")] {
            let (found, known) = (rdp::divergence(&steps, order), number(&row[key]));
            assert!(found <= known * (1.0 + 1e-12) && found > 0.2 * known, "{row}: {found}");
        }
        let delta = Delta::new(number(&row["delta"])).unwrap();
        let found = rdp::epsilon(&steps, delta).unwrap().epsilon.get();
        assert!(found <= number(&row["rdp_eps"]) * (1.0 + 1e-9), "{row}: {found}");
    }
}

/// Near order 1 everything cancels but the bound: for small tilts t the divergence is that of order 1, which
/// is at least (here, by 40 digits) this.
#[test]
fn divergences_near_order_1_are_not_rounded_down() {
    let step = composition(poisson(0.3), 5.0, 1, Adjacency::AddRemove);
    // Increasing in the order, so never below a smaller order's upper side by more than its rounding.
    let orders = [1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2];
    let found: Vec<f64> = orders.iter().map(|t| rdp::divergence(&step, 1.0 + t)).collect();
    let exact_at_1 = 0.001_801_6;
    for (order, found) in orders.iter().zip(&found) {
        assert!(*found > exact_at_1 * 0.99 && *found < exact_at_1 * 1.05, "{order} {found}");
    }
    // A tiny rate with little noise: the log of the ratio must not lose its digits.
    let tiny = composition(poisson(1e-20), 0.2, 1, Adjacency::AddRemove);
    let (a, b) = (rdp::divergence(&tiny, 1.5), rdp::divergence(&tiny, 1.500_001));
    assert!(a > 0.0 && (b / a - 1.0).abs() < 1e-3, "{a} {b}");
}

fn rounds(q: f64, z: f64, count: u64) -> Composition {
    let sampling = if q < 1.0 { poisson(q) } else { Sampling::All {} };
    composition(sampling, z, count, Adjacency::AddRemove)
}

/// Rates, noises, rounds and deltas with the epsilons that dp_accounting 0.6.0 gives for them with its own
/// orders, drawn log-uniformly: tiny rates and few rounds included, where moments explode between two orders.
fn dp_accounting_table() -> Vec<[f64; 5]> {
    let lines = include_str!("dp_accounting_rdp.csv").lines().skip(1);
    let row = |line: &str| -> [f64; 5] {
        let cells: Vec<f64> = line.split(',').map(|cell| cell.parse().unwrap()).collect();
        cells.try_into().unwrap()
    };
    lines.map(row).collect()
}

#[test]
fn the_best_order_is_never_looser_than_the_orders_of_dp_accounting() {
    let table = dp_accounting_table();
    for [q, z, count, delta, theirs] in &table {
        let steps = rounds(*q, *z, *count as u64);
        let found = rdp::epsilon(&steps, Delta::new(*delta).unwrap()).unwrap();
        let what = format!("q {q} z {z} T {count} delta {delta}: {found:?} for {theirs}");
        assert!(found.epsilon.get() <= theirs * (1.0 + 1e-9), "{what}");
    }
    assert!(table.len() >= 400);
}

/// Epsilon over a dense grid of orders, which knows nothing about where the best one is.
#[test]
fn no_order_of_a_dense_grid_beats_the_best_order() {
    let dense: Vec<f64> = (0..2000).map(|i| 1.0 + (f64::from(i) * 0.009 - 7.0).exp()).collect();
    for [q, z, count, delta, _] in dp_accounting_table().iter().step_by(7) {
        let steps = rounds(*q, *z, *count as u64);
        let delta = Delta::new(*delta).unwrap();
        let found = rdp::epsilon(&steps, delta).unwrap().epsilon.get();
        let grid = rdp::epsilon_on_orders(&steps, delta, &dense).unwrap().epsilon.get();
        let what = format!("q {q} z {z} T {count} {delta:?}: {found} for {grid}");
        assert!(found <= grid * (1.0 + 1e-9), "{what}");
    }
}
