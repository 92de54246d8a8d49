//! Rényi divergences against high-precision values.

use serde_json::Value;
use veilgrad_accounting::{Sampled, Step, rdp};

fn oracles() -> Value {
    serde_json::from_str(include_str!("oracles.json")).unwrap()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| value.as_str().unwrap().parse().unwrap())
}

#[test]
fn divergences_agree_with_high_precision_values() {
    let oracles = oracles();
    let points = oracles["rdp_points_poisson_gaussian"].as_array().unwrap();
    for point in points {
        let (q, z, order) = (number(&point["q"]), number(&point["z"]), number(&point["order"]));
        let sampled = if q < 1.0 { Sampled::Poisson(q) } else { Sampled::Always };
        let found = rdp::step_divergence(Step { sampled, z }, order);
        let expected = number(&point["rdp_exact"]);
        assert!((found / expected - 1.0).abs() < 1e-10, "{point}: {found}");
    }
    assert!(points.len() >= 80);
}
