//! Update rules, schedules, averages and states, compared with values computed by hand.

use super::*;

/// A weight after one step per gradient, from 1 with rate 0.1.
fn weight_after<R: Rule<N>, const N: usize>(optimizer: &PerWeight<R, N>, gradients: &[f32]) -> f32 {
    let mut memory = [0.0; N];
    let rounds = (1..).zip(gradients);
    rounds.fold(1.0, |weight, (round, gradient)| {
        optimizer.rule.update(weight, *gradient, &mut memory, Step { rate: 0.1, round })
    })
}

#[test]
fn rules_give_what_their_papers_say() {
    let close = |a: f32, b: f32| assert!((a - b).abs() < 1e-6, "{a} {b}");
    close(weight_after(&Sgd::plain(), &[1.0, 2.0]), 0.7);
    // 1 - .1 * 1 - .1 * (.9 + 2)
    close(weight_after(&Sgd::with_momentum(0.9), &[1.0, 2.0]), 0.61);
    // 1 - .1 * (1 + .9) - .1 * (2 + .9 * 2.9)
    close(weight_after(&Sgd::nesterov(0.9), &[1.0, 2.0]), 0.349);
    // The first step of Adam has the length of the rate for any gradient.
    close(weight_after(&Adam::standard(), &[7.0]), 0.9);
    close(weight_after(&Adam::with_decay(0.5), &[7.0]), 0.85);
    // The first step of Yogi is Adam's but for its larger epsilon.
    close(weight_after(&Yogi::standard(), &[7.0]), 1.0 - 0.1 * 7.0 / 7.001);
    // The mean square is 0.001 * 49, below 1, so that it rises by 0.001 * 1.
    let (mean, square) = ((0.9 * 0.7 + 0.1f32) / 0.19, (0.049 + 0.001f32) / 0.001_999);
    let first = 1.0 - 0.1 * 7.0 / 7.001;
    close(
        weight_after(&Yogi::standard(), &[7.0, 1.0]),
        first - 0.1 * mean / (square.sqrt() + 1e-3),
    );
    // Below the mean square, it falls by 0.001 g^2 whatever the mean square is, where Adam's falls by 0.001 of itself.
    let fast = PerWeight::new(Yogi { beta1: 0.0, beta2: 0.5, epsilon: 0.0 });
    // 0.5 * 16 = 8, then 8 - 0.5 * 4 = 6, corrected by 1 - 0.5^2.
    close(weight_after(&fast, &[4.0, 2.0]), 0.9 - 0.1 * 2.0 / (6.0f32 / 0.75).sqrt());
    close(weight_after(&Adagrad::standard(), &[3.0]), 0.9);
    close(weight_after(&Adagrad::standard(), &[3.0, 4.0]), 0.9 - 0.1 * 4.0 / 5.0);
    close(weight_after(&RmsProp::standard(), &[2.0]), 1.0 - 0.1 * 2.0 / (0.01f32 * 4.0).sqrt());
}

#[test]
fn schedules_start_and_end_where_they_say() {
    let close = |a: f64, b: f64| assert!((a - b).abs() < 1e-12, "{a} {b}");
    let steps = Schedule::Steps { first: 1.0, factor: 0.5, every: 10 };
    close(steps.rate(9), 1.0);
    close(steps.rate(25), 0.25);
    let cosine = Schedule::Cosine { first: 1.0, last: 0.1, warmup: 4, rounds: 104 };
    close(cosine.rate(0), 0.25);
    close(cosine.rate(4), 1.0);
    close(cosine.rate(54), 0.55);
    close(cosine.rate(104), 0.1);
    close(cosine.rate(1000), 0.1);
    let linear = Schedule::Linear { first: 2.0, last: 0.0, rounds: 10 };
    close(linear.rate(5), 1.0);
    close(linear.rate(20), 0.0);
}

#[test]
fn a_state_that_does_not_fit_is_refused() {
    let model = Model::new(&[2], [crate::Layer::linear(1)], 1).unwrap();
    let state = |weight: Vec<f32>, bias: Vec<f32>| {
        let named = [("linear1.weight", weight), ("linear1.bias", bias)];
        BTreeMap::from(named.map(|(name, values)| (name.to_owned(), values)))
    };
    let sound = state(vec![1.0, 2.0, 3.0, 4.0], vec![5.0, 6.0]);
    let mut adam = Adam::standard();
    adam.restore(sound.clone(), &model).unwrap();
    assert_eq!(adam.state(), sound);
    let mut unknown = sound.clone();
    unknown.insert("linear2.bias".to_owned(), vec![0.0; 2]);
    let mut missing = sound.clone();
    missing.remove("linear1.bias");
    for wrong in [
        unknown,
        missing,
        state(vec![1.0, 2.0], vec![5.0]),
        state(vec![0.0; 6], vec![0.0; 2]),
        state(vec![0.0, f32::NAN, 0.0, 0.0], vec![0.0; 2]),
        state(vec![0.0; 4], vec![f32::INFINITY, 0.0]),
    ] {
        assert!(adam.restore(wrong, &model).is_err());
        assert_eq!(adam.state(), sound);
    }
    adam.restore(BTreeMap::new(), &model).unwrap();
    assert!(adam.state().is_empty());
}

#[test]
fn averages_forget_at_their_decay_and_faster_while_young() {
    let mut model = Model::new(&[1], [crate::Layer::linear(1)], 1).unwrap();
    // (1 + t) / (10 + t) is 2/11 in round 1 and beyond 0.75 after round 26.
    for (round, decay) in [(1, 2.0 / 11.0), (8, 0.5), (27, 0.75), (1000, 0.75)] {
        model.values = vec![vec![4.0], vec![-1.0]];
        let mut average = WeightAverage { decay: 0.75, values: model.values.clone() };
        model.values = vec![vec![8.0], vec![0.0]];
        average.add(&model, round);
        let found = average.values;
        assert!((found[0][0] - (8.0 - 4.0 * decay)).abs() < 1e-6, "{round}: {found:?}");
        assert!((found[1][0] + decay).abs() < 1e-6, "{round}: {found:?}");
    }
}
