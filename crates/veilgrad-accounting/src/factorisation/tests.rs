use super::*;

fn ratio(rounds: usize, bands: usize) -> f64 {
    let workload = Workload::prefix_sums(rounds);
    workload.error_ratio(&workload.strategy(bands).unwrap())
}

/// A learning rate that falls linearly, as `Schedule::Linear` does.
fn linear(rounds: usize) -> Workload {
    Workload::sgd((0..rounds).map(|t| 2.0 * (1.0 - t as f64 / rounds as f64)))
}

fn cosine(rounds: usize) -> Workload {
    let half = std::f64::consts::PI / rounds as f64;
    Workload::sgd((0..rounds).map(|t| 1.0 + (half * t as f64).cos()))
}

/// A warmup, then steps, then rates that jump up and down.
fn uneven(rounds: usize) -> Workload {
    Workload::sgd((0..rounds).map(|t| match t * 3 / rounds {
        0 => (t + 1) as f64 / rounds as f64,
        1 => 0.5,
        _ => ((t * 7919) % 13) as f64 / 13.0,
    }))
}

/// From an independent prototype, to four digits.
#[test]
fn errors_are_those_of_the_prototype() {
    for (rounds, bands, expected) in [
        (500, 2, 0.7144),
        (500, 16, 0.2971),
        (500, 64, 0.2074),
        (10_000, 16, 0.2571),
        (10_000, 64, 0.1393),
    ] {
        let found = ratio(rounds, bands);
        assert!((found - expected).abs() < 5e-4, "{rounds} {bands}: {found}");
    }
}

#[test]
fn one_band_is_independent_noise_and_more_bands_are_never_worse() {
    assert_eq!(ratio(300, 1), 1.0);
    let ratios: Vec<f64> = [1, 2, 3, 4, 8, 16, 32].map(|bands| ratio(300, bands)).to_vec();
    assert!(ratios.is_sorted_by(|a, b| a > b), "{ratios:?}");
    // No more bands than rounds.
    assert_eq!(Workload::prefix_sums(5).strategy(64).unwrap().bands(), 5);
    assert!(Workload::prefix_sums(5).strategy(0).is_err());
    assert!(Workload::prefix_sums(9999).strategy(4097).is_err());
}

/// The matrix A: what the parameters after each round have of each release, by running the optimizer on a release of 1 in one round
/// and 0 in all others.
fn dense(workload: &Workload) -> Vec<Vec<f64>> {
    let Workload { rates, momentum, nesterov, decay } = workload;
    let mut a = vec![vec![0.0; rates.len()]; rates.len()];
    for column in 0..rates.len() {
        let (mut velocity, mut theta) = (0.0, 0.0);
        for (t, row) in a.iter_mut().enumerate() {
            let release = f64::from(u8::from(t == column));
            velocity = momentum * velocity + release;
            let direction = if *nesterov { release + momentum * velocity } else { velocity };
            theta = (1.0 - rates[t] * decay) * theta + rates[t] * direction;
            row[column] = theta;
        }
    }
    a
}

/// The ratio by dense triangular matrices: `|c| |A C^-1|_F / |A|_F`.
fn dense_ratio(workload: &Workload, strategy: &BandedStrategy) -> f64 {
    let (a, one) = (dense(workload), f64::from(1u32 << strategy.precision()));
    let c: Vec<f64> = strategy.entries().iter().map(|m| f64::from(*m) / one).collect();
    let rounds = a.len();
    // B C = A, row by row from the last column.
    let mut error = 0.0;
    for row in &a {
        let mut b = vec![0.0; rounds];
        for column in (0..rounds).rev() {
            let known = (1..c.len()).filter(|j| column + j < rounds);
            b[column] = row[column] - known.map(|j| c[j] * b[column + j]).sum::<f64>();
        }
        error += dot(&b, &b);
    }
    let plain: f64 = a.iter().map(|row| dot(row, row)).sum();
    (dot(&c, &c) * error / plain).sqrt()
}

#[test]
fn the_error_is_that_of_the_dense_matrices() {
    for rounds in [1, 2, 7, 40] {
        for schedule in [Workload::prefix_sums, linear, cosine, uneven] {
            for (bands, momentum, decay) in
                [(1, 0.0, 0.0), (3, 0.0, 0.0), (5, 0.9, 0.0), (2, 0.0, 0.3), (40, 0.5, 0.1)]
            {
                let plain = schedule(rounds).with_decay(decay);
                for workload in
                    [plain.clone().with_momentum(momentum), plain.with_nesterov(momentum)]
                {
                    let strategy = workload.strategy(bands).unwrap();
                    let expected = dense_ratio(&workload, &strategy);
                    let found = workload.error_ratio(&strategy);
                    assert!(
                        (found / expected - 1.0).abs() < 1e-11,
                        "{workload:?}: {found} {expected}"
                    );
                }
            }
        }
    }
}

#[test]
fn derivatives_are_differences() {
    for schedule in [Workload::prefix_sums, linear, uneven] {
        let plain = schedule(60).with_decay(0.01);
        for workload in [plain.clone().with_momentum(0.8), plain.with_nesterov(0.6)] {
            let rounds = workload.entries();
            let theta = [0.3, -0.4, 1.5, 2.0, 0.1];
            let (_, gradient) = objective(&rounds, workload.momentum, &theta);
            assert_eq!(gradient.len(), theta.len());
            for (i, derivative) in gradient.iter().enumerate() {
                let at = |step: f64| {
                    let mut moved = theta;
                    moved[i] += step;
                    objective(&rounds, workload.momentum, &moved).0
                };
                let difference = (at(1e-5) - at(-1e-5)) / 2e-5;
                assert!((difference - derivative).abs() < 1e-8, "{i}: {derivative} {difference}");
            }
        }
    }
}

/// No entry can be changed for the better by more than what rounding to the grid costs.
#[test]
fn no_small_change_of_a_strategy_has_a_smaller_error() {
    for workload in [
        Workload::prefix_sums(200),
        Workload::prefix_sums(200).with_momentum(0.9),
        Workload::prefix_sums(200).with_decay(0.02),
        linear(200),
        cosine(200).with_nesterov(0.9),
    ] {
        let best = workload.strategy(8).unwrap();
        let error = workload.error_ratio(&best);
        for (j, step) in (1..8).flat_map(|j| [-40i64, -8, 8, 40].map(|step| (j, step))) {
            let mut m = best.entries().to_vec();
            m[j] = u32::try_from(i64::from(m[j]) + step).unwrap();
            if let Ok(other) = BandedStrategy::new(best.precision(), m) {
                let other = workload.error_ratio(&other);
                assert!(other > error * (1.0 - 1e-6), "{workload:?} {j} {step}");
            }
        }
    }
}

/// What a model adds up decides which strategy is best: that of its own learning rates has less error than that of a constant rate.
#[test]
fn the_strategy_of_a_schedule_is_better_for_it_than_that_of_a_constant_rate() {
    let constant = Workload::prefix_sums(400).strategy(16).unwrap();
    for workload in [linear(400), cosine(400)] {
        let own = workload.strategy(16).unwrap();
        assert_ne!(own, constant);
        assert!(workload.error_ratio(&own) < workload.error_ratio(&constant));
    }
    // The figures of docs/correlated-noise.md.
    let (constant, falling) = (Workload::prefix_sums(1172).strategy(32).unwrap(), linear(1172));
    let own = falling.error_ratio(&falling.strategy(32).unwrap());
    let other = falling.error_ratio(&constant);
    assert!((own - 0.2096).abs() < 5e-5 && (other - 0.2102).abs() < 5e-5, "{own} {other}");
}

#[test]
fn rates_that_are_no_rates_count_as_nothing_and_only_their_ratios_matter() {
    let odd = Workload::sgd([1.0, f64::NAN, -2.0, f64::INFINITY, 0.5]);
    assert_eq!(odd, Workload::sgd([1.0, 0.0, 0.0, 0.0, 0.5]));
    assert_eq!(Workload::sgd([0.0, 0.0]), Workload::prefix_sums(2));
    assert_eq!(Workload::sgd([]), Workload::prefix_sums(1));
    let (one, tiny) = (linear(50), linear(50).rates.into_iter().map(|rate| rate * 1e-300));
    let strategy = one.strategy(4).unwrap();
    let ratio = Workload::sgd(tiny).error_ratio(&strategy);
    assert!((ratio / one.error_ratio(&strategy) - 1.0).abs() < 1e-12, "{ratio}");
}
