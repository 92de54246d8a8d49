//! Groups, clipping and estimators, compared with closed forms.

use crate::common::*;
use proptest::prelude::*;
use veilgrad_events::BudgetShare;
use veilgrad_mechanism::{Allocation, Group, Metric, PlanError, RoundPlan, Structure, SumError};

#[test]
fn a_long_record_is_shortened_and_a_short_one_stays() {
    let plan = plan(&[("x", 2)], Group::flat("all", "*", clip(5.0)));
    let estimates = release_of(&plan, &[&[&[-6.0, 8.0]], &[&[4.0, -3.0]]]);
    assert_close(&vector(&estimates, "x"), &[1.0, 1.0]);
    assert!(estimates.is_insecure());
}

#[test]
fn a_group_is_clipped_as_one_concatenated_vector() {
    let plan = plan(&[("a", 1), ("b", 1)], Group::flat("all", "*", clip(1.0)));
    let estimates = release_of(&plan, &[&[&[3.0], &[4.0]]]);
    assert_close(&vector(&estimates, "a"), &[0.6]);
    assert_close(&vector(&estimates, "b"), &[0.8]);
}

#[test]
fn separate_groups_do_not_clip_each_other() {
    let groups = vec![Group::new("a", ["a"], clip(1.0)), Group::new("b", ["b"], clip(10.0))];
    let plan = plan(&[("a", 1), ("b", 1)], groups);
    let estimates = release_of(&plan, &[&[&[3.0], &[4.0]]]);
    assert_close(&vector(&estimates, "a"), &[1.0]);
    assert_close(&vector(&estimates, "b"), &[4.0]);
}

#[test]
fn presets_keep_the_total_bound() {
    let structure = Structure::new([("w1", 90), ("w2", 10), ("metric", 1)]).unwrap();
    let layers = Group::per_layer(&structure, "w*", clip(3.0)).unwrap();
    let sizes = Group::dimension_aware(&structure, "w*", clip(3.0)).unwrap();
    for (preset, expected) in [
        (layers, [3.0 / 2f64.sqrt(), 3.0 / 2f64.sqrt()]),
        (sizes, [3.0 * 0.9f64.sqrt(), 3.0 * 0.1f64.sqrt()]),
    ] {
        let mut groups = preset;
        groups.push(Group::new("metric", ["metric"], clip(1.0)));
        let plan =
            RoundPlan::new(structure.clone(), groups, Allocation::Proportional(z(1.0))).unwrap();
        let found = ["w1", "w2"].map(|group| plan.clip_norm(group).unwrap().get());
        assert_close(&found, &expected);
        assert!(found.iter().map(|s| s * s).sum::<f64>() <= 9.0);
    }
}

/// The paper's example: `||v1|| <= 1`, `||v2|| <= 100`, tolerable noise 0.01 and 1 on the average,
/// and one of the two is always zero. Joint clipping with alphas 1 and 100, clip norm 1, keeps both
/// unclipped at half the privacy loss of separate clipping with the same noise.
#[test]
fn joint_clipping_leaves_the_papers_two_scales_unclipped() {
    let vectors = [("v1", 2), ("v2", 2)];
    let structure = Structure::new(vectors).unwrap();
    let joint = Group::joint("both", [("v1", alpha(1.0)), ("v2", alpha(100.0))], clip(1.0))
        .noise(noise(1.0));
    let plan = RoundPlan::new(structure.clone(), vec![joint], Allocation::Explicit).unwrap();
    let records: [&[&[f32]]; 2] = [&[&[0.6, 0.8], &[0.0, 0.0]], &[&[0.0, 0.0], &[60.0, -80.0]]];
    let estimates = release_of(&plan, &records);
    assert_close(&vector(&estimates, "v1"), &[0.6, 0.8]);
    assert_close(&vector(&estimates, "v2"), &[60.0, -80.0]);

    let separate = vec![
        Group::new("v1", ["v1"], clip(1.0)).noise(noise(1.0)),
        Group::new("v2", ["v2"], clip(100.0)).noise(noise(100.0)),
    ];
    let separate = RoundPlan::new(structure, separate, Allocation::Explicit).unwrap();
    let ratio = plan.noise_multiplier().unwrap().get() / separate.noise_multiplier().unwrap().get();
    assert!((ratio - 2f64.sqrt()).abs() < 1e-6, "{ratio}");
}

#[test]
fn joint_clipping_shortens_the_scaled_concatenation() {
    let group = Group::joint("both", [("v1", alpha(1.0)), ("v2", alpha(100.0))], clip(1.0));
    let plan = plan(&[("v1", 1), ("v2", 1)], vec![group]);
    // Scaled (3, 4), norm 5, clipped to (0.6, 0.8), scaled back to (0.6, 80).
    let estimates = release_of(&plan, &[&[&[3.0], &[400.0]]]);
    assert_close(&vector(&estimates, "v1"), &[0.6]);
    assert_close(&vector(&estimates, "v2"), &[80.0]);
}

#[test]
fn normalised_groups_give_every_record_the_same_length() {
    let plan = plan(&[("x", 2)], vec![Group::new("x", ["x"], clip(1.0)).normalised()]);
    let records: [&[&[f32]]; 3] = [&[&[0.003, 0.004]], &[&[-300.0, 400.0]], &[&[0.0, 0.0]]];
    let estimates = release_of(&plan, &records);
    assert_close(&vector(&estimates, "x"), &[0.0, 1.6]);
}

#[test]
fn averages_divide_by_the_declared_count_and_not_by_the_realised_one() {
    let group = Group::new("x", ["x"], clip(5.0)).average(count(4.0));
    let plan = plan(&[("x", 2)], vec![group]);
    let estimates = release_of(&plan, &[&[&[-6.0, 8.0]], &[&[4.0, -3.0]]]);
    assert_close(&vector(&estimates, "x"), &[0.25, 0.25]);
}

#[test]
fn weights_multiply_clipped_vectors_and_scale_the_sensitivity() {
    let group = Group::new("x", ["x"], clip(2.0)).weighted(weight(3.0)).average(count(4.0));
    let plan = plan(&[("x", 1)], vec![group]);
    let (sample, mut sum) = begin(&plan);
    sum.add_weighted(&[&[4.0]], 1.0).unwrap(); // clipped to 2, weight 1
    sum.add_weighted(&[&[-1.0]], 3.0).unwrap(); // weight 3
    sum.add_weighted(&[&[1.0]], 100.0).unwrap(); // weight clamped to 3
    sum.add_weighted(&[&[1.0]], -5.0).unwrap(); // weight clamped to 0
    sum.add_weighted(&[&[1.0]], f64::NAN).unwrap(); // weight 0
    assert_close(&vector(&release(&plan, sample, sum), "x"), &[0.5]);
    let query = &plan.round(&veilgrad_mechanism::AllRecords).unwrap().queries()[0].clone();
    assert_eq!(query.clip().get(), 6.0);
}

#[test]
fn the_clipped_denominator_is_the_private_weight_sum_but_never_below_its_minimum() {
    let groups = vec![
        Group::new("x", ["x"], clip(10.0)).weighted(weight(3.0)).average_over("n", count(2.0)),
        Group::weight("n", weight(3.0)),
    ];
    let plan = plan(&[("x", 1)], groups);
    let (sample, mut sum) = begin(&plan);
    sum.add_weighted(&[&[4.0]], 1.0).unwrap();
    sum.add_weighted(&[&[-1.0]], 3.0).unwrap();
    let estimates = release(&plan, sample, sum);
    assert_close(&[estimates.scalar("n").unwrap()], &[4.0]);
    assert_close(&vector(&estimates, "x"), &[0.25]);
    let (sample, mut sum) = begin(&plan);
    sum.add_weighted(&[&[4.0]], 1.0).unwrap();
    assert_close(&vector(&release(&plan, sample, sum), "x"), &[2.0]);
}

#[test]
fn metrics_are_groups_of_the_same_round() {
    let loss = Metric::bounded("loss", 0.0, 4.0).unwrap();
    let accuracy = Metric::bounded("accuracy", 0.0, 1.0).unwrap();
    let classes = Metric::class_counts("classes", 3);
    let vectors = [("grad".to_owned(), 2), loss.vector(), accuracy.vector(), classes.vector()];
    let structure = Structure::new(vectors).unwrap();
    let share = BudgetShare::new(0.01).unwrap();
    let mut groups = vec![Group::new("grad", ["grad"], clip(1.0)).average(count(3.0))];
    for metric in [&loss, &accuracy, &classes] {
        groups.push(metric.group(count(3.0)).unwrap().share(share));
    }
    let plan = RoundPlan::new(structure, groups, Allocation::Proportional(z(1.5))).unwrap();
    let z = plan.noise_multiplier().unwrap().get();
    assert!((1.5..1.5 * (1.0 + 1e-7)).contains(&z), "{z}");
    let (sample, mut sum) = begin(&plan);
    for (value, right, class) in [(1.0, 1.0, 0.0), (99.0, 0.0, 2.0), (f64::NAN, 1.0, 7.0)] {
        let encoded = [loss.encode(value), accuracy.encode(right), classes.encode(class)];
        let [loss, accuracy, classes] = encoded.each_ref().map(Vec::as_slice);
        sum.add(&[&[0.3, 0.0], loss, accuracy, classes]).unwrap();
    }
    let estimates = release(&plan, sample, sum);
    assert_close(&vector(&estimates, "grad"), &[0.3, 0.0]);
    // Differences from 2: -1, 2 (clamped), 0 (NaN).
    assert_close(&loss.decode(&estimates).unwrap(), &[2.0 + 1.0 / 3.0]);
    assert_close(&accuracy.decode(&estimates).unwrap(), &[2.0 / 3.0]);
    assert_close(&classes.decode(&estimates).unwrap(), &[1.0, 0.0, 1.0]);
    assert!(Metric::bounded("loss", 1.0, 1.0).is_err());
    assert!(Metric::bounded("loss", f64::NAN, 1.0).is_err());
    // With a width beyond f32, differences would be infinite and whole records would be dropped.
    assert!(Metric::bounded("loss", 0.0, 1e39).is_err());
}

#[test]
fn a_bad_record_contributes_zero_and_never_raises() {
    let groups = vec![
        Group::new("x", ["x"], clip(1.0)),
        Group::new("y", ["y"], clip(1.0)),
        Group::weight("n", weight(1.0)),
    ];
    let plan = plan(&[("x", 3), ("y", 1)], groups);
    let (sample, mut sum) = begin(&plan);
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        sum.add(&[&[0.1, bad, 0.1], &[0.5]]).unwrap();
        sum.add(&[&[0.1, 0.1, 0.1], &[bad]]).unwrap();
    }
    sum.add(&[]).unwrap();
    sum.add(&[&[0.0; 3], &[-0.0]]).unwrap();
    sum.add(&[&[1e-45; 3], &[-1e-45]]).unwrap();
    let estimates = release(&plan, sample, sum);
    assert_close(&vector(&estimates, "x"), &[0.0; 3]);
    assert_close(&vector(&estimates, "y"), &[0.0]);
    assert_close(&[estimates.scalar("n").unwrap()], &[2.0]);
    // A huge record is clipped exactly like any other.
    let estimates = release_of(&plan, &[&[&[f32::MAX, 0.0, -f32::MAX], &[f32::MAX]]]);
    let half = 0.5f64.sqrt();
    assert_close(&vector(&estimates, "x"), &[half, 0.0, -half]);
    assert_close(&vector(&estimates, "y"), &[1.0]);
}

#[test]
fn a_record_of_the_wrong_shape_is_refused_before_anything_is_added() {
    let plan = plan(&[("x", 2), ("y", 1)], Group::flat("all", "*", clip(1.0)));
    let (sample, mut sum) = begin(&plan);
    sum.add(&[&[0.1, 0.2], &[0.3]]).unwrap();
    let error = sum.add(&[&[0.1, 0.2]]).unwrap_err();
    assert_eq!(error, SumError::Count { expected: 2, found: 1 });
    let error = sum.add(&[&[0.1, 0.2], &[0.3, 0.4]]).unwrap_err();
    assert_eq!(error.to_string(), "'y' has 2 coordinates, not 1");
    let estimates = release(&plan, sample, sum);
    assert_close(&vector(&estimates, "x"), &[0.1, 0.2]);
    assert_close(&vector(&estimates, "y"), &[0.3]);
}

#[test]
fn groups_must_partition_the_vectors() {
    let vectors = [("conv1", 2), ("conv2", 2), ("layer[0].bias", 1)];
    let plan = |groups: Vec<Group>| {
        RoundPlan::new(Structure::new(vectors).unwrap(), groups, Allocation::Proportional(z(1.0)))
            .map(|plan| plan.round(&veilgrad_mechanism::AllRecords).unwrap().queries().len())
            .map_err(|error| error.to_string())
    };
    let group = |name: &str, pattern: &str| Group::new(name, [pattern], clip(1.0));
    assert_eq!(plan(vec![group("c", "conv?"), group("b", "layer[0].bias")]), Ok(2));
    for (groups, message) in [
        (vec![group("c", "conv*")], "vector 'layer[0].bias' is in no group"),
        (
            vec![group("c", "conv*"), group("d", "*")],
            "vector 'conv1' is in group 'c' and again in group 'd'",
        ),
        (
            vec![group("c", "dense*"), group("d", "*")],
            "pattern 'dense*' of group 'c' matches no vector",
        ),
        (vec![group("c", "conv*"), group("c", "layer*")], "group 'c' is named twice"),
        (vec![group("c", "conv[*")], "'conv[*' is not a valid pattern"),
        (
            vec![group("c", "*").average_over("n", count(1.0))],
            "group 'c' refers to 'n', which is not a group of weights",
        ),
    ] {
        assert_eq!(plan(groups), Err(message.to_owned()));
    }
}

#[test]
fn noise_outside_the_range_of_the_grid_is_refused_by_group() {
    let structure = Structure::new([("x", 1)]).unwrap();
    for sigma in [1e-9, 1e16] {
        let group = Group::new("x", ["x"], clip(1.0)).noise(noise(sigma));
        let error =
            RoundPlan::new(structure.clone(), vec![group], Allocation::Explicit).unwrap_err();
        assert!(matches!(error, PlanError::Grid(..)), "{error}");
        assert!(error.to_string().starts_with("group 'x': noise multiplier"), "{error}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn partial_sums_merged_in_any_order_and_partition_give_the_same_bits(
        records in prop::collection::vec((prop::array::uniform5(any::<f32>()), 0f64..4.0, 0usize..4), 0..60),
        order in any::<u64>(),
    ) {
        let groups = vec![
            Group::new("x", ["x"], clip(1.0)).weighted(weight(2.0)),
            Group::new("y", ["y"], clip(1e20)),
            Group::weight("n", weight(2.0)),
        ];
        let plan = plan(&[("x", 3), ("y", 2)], groups);
        let (whole_sample, mut whole) = begin(&plan);
        for (values, weight, _) in &records {
            let (x, y) = values.split_at(3);
            whole.add_weighted(&[x, y], *weight).unwrap();
        }
        let whole = release(&plan, whole_sample, whole);
        let sample = insecure_sample(&plan);
        let mut parts: Vec<_> = (0..4).map(|_| sample.begin(&plan)).collect();
        // Records in reverse order, parts in any order.
        for (values, weight, part) in records.iter().rev() {
            let (x, y) = values.split_at(3);
            parts[*part].add_weighted(&[x, y], *weight).unwrap();
        }
        let mut merged = sample.begin(&plan);
        let mut order = order;
        while !parts.is_empty() {
            let part = parts.remove(order as usize % parts.len());
            order /= 5;
            merged.merge(part).unwrap();
        }
        let merged = release(&plan, sample, merged);
        for name in ["x", "y"] {
            let bits = |e| vector(e, name).iter().map(|v| v.to_bits()).collect::<Vec<_>>();
            prop_assert_eq!(bits(&whole), bits(&merged));
        }
        prop_assert_eq!(whole.scalar("n"), merged.scalar("n"));
    }
}

#[test]
fn sums_of_different_plans_or_rounds_do_not_merge() {
    let vectors = [("x", 1)];
    let one = plan(&vectors, Group::flat("all", "*", clip(1.0)));
    let other = plan(&vectors, Group::flat("all", "*", clip(2.0)));
    let same = plan(&vectors, Group::flat("all", "*", clip(1.0)));
    let sample = insecure_sample(&one);
    assert_eq!(sample.begin(&one).merge(sample.begin(&other)), Err(SumError::Foreign));
    assert_eq!(sample.begin(&one).merge(sample.begin(&same)), Ok(()));
    // A sum over two rounds would have twice the sensitivity.
    let next = insecure_sample(&one);
    assert_eq!(sample.begin(&one).merge(next.begin(&one)), Err(SumError::Foreign));
}

#[test]
fn names_that_look_like_globs_are_names() {
    let structure = Structure::new([("layer[0]", 1), ("layer0", 2), ("a*", 1)]).unwrap();
    let groups = Group::per_layer(&structure, "*", clip(1.0)).unwrap();
    let plan = RoundPlan::new(structure, groups, Allocation::Proportional(z(1.0))).unwrap();
    assert_eq!(plan.vectors("layer[0]").collect::<Vec<_>>(), ["layer[0]"]);
    assert_eq!(plan.vectors("a*").collect::<Vec<_>>(), ["a*"]);
}

#[test]
fn options_that_do_not_apply_are_refused() {
    for (group, message) in [
        (Group::weight("n", weight(1.0)).weighted(weight(2.0)), "group 'n' cannot be weighted"),
        (Group::weight("n", weight(1.0)).normalised(), "group 'n' cannot be normalised"),
    ] {
        let structure = Structure::new([("x", 1)]).unwrap();
        let groups = vec![Group::new("x", ["x"], clip(1.0)), group];
        let error = RoundPlan::new(structure, groups, Allocation::Proportional(z(1.0)));
        assert_eq!(error.unwrap_err().to_string(), message);
    }
}
