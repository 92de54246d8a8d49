//! No record, whatever it holds, moves a sum by more than the sensitivity.

use veilgrad_events::{JointScale, NoiseMultiplier, WeightBound};

use super::*;
use crate::kernel::Part;
use crate::{Allocation, Group, RoundPlan, Structure};

/// A small generator of its own: the test must reach magnitudes that strategies rarely try.
struct Words(u64);

impl Words {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 ^ (self.0 >> 29)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 16
    }

    /// In [0, 1).
    fn unit(&mut self) -> f64 {
        self.next() as f64 / 2f64.powi(48)
    }

    fn log_uniform(&mut self, low: f64, high: f64) -> f64 {
        (low.ln() + self.unit() * (high.ln() - low.ln())).exp()
    }

    fn sign(&mut self) -> f64 {
        if self.next() & 1 == 0 { 1.0 } else { -1.0 }
    }
}

const LONGEST: usize = 100_000;

/// Long vectors whose slices are the records: every magnitude that f32 has, and shapes that
/// provoke rounding in one direction.
fn pools(words: &mut Words) -> Vec<Vec<f32>> {
    let mut pool = |value: &mut dyn FnMut(&mut Words) -> f64| -> Vec<f32> {
        (0..2 * LONGEST).map(|_| value(words) as f32).collect()
    };
    vec![
        // Well scaled, dense.
        pool(&mut |w| w.sign() * w.unit()),
        // All magnitudes at once.
        pool(&mut |w| w.sign() * w.log_uniform(1e-45, 3e38)),
        // All coordinates equal, with an odd mantissa.
        pool(&mut |_| 1.000_000_1),
        pool(&mut |_| -0.333_333_34),
        // Subnormal.
        pool(&mut |w| w.sign() * w.log_uniform(1e-45, 1e-38)),
        // Near the largest number.
        pool(&mut |w| w.sign() * (3.4e38 * (1.0 - 1e-3 * w.unit()))),
        // Sparse.
        pool(&mut |w| if w.next() % 64 == 0 { w.sign() * w.unit() } else { 0.0 }),
        // A spike over a floor of dust.
        pool(&mut |w| if w.next() % 4096 == 0 { 1.0 } else { 1e-6 * w.unit() }),
        // Zero.
        pool(&mut |_| 0.0),
        // Finite, then suddenly not.
        pool(&mut |w| match w.next() % 100_000 {
            0 => f64::NAN,
            1 => f64::INFINITY,
            2 => f64::NEG_INFINITY,
            _ => w.sign() * w.unit(),
        }),
    ]
}

fn plan(dimension: usize, clip: f64, z: f64) -> RoundPlan {
    let structure = Structure::new([("x", dimension)]).unwrap();
    plan_of(structure, Group::new("x", ["*"], ClipNorm::new(clip).unwrap()), z)
}

fn plan_of(structure: Structure, group: Group, z: f64) -> RoundPlan {
    let allocation = Allocation::Proportional(NoiseMultiplier::new(z).unwrap());
    RoundPlan::new(structure, vec![group], allocation).unwrap()
}

fn integers(plan: &RoundPlan, x: &[f32]) -> Vec<i64> {
    integers_of(plan, &[x], 1.0)
}

fn integers_of(plan: &RoundPlan, vectors: &[&[f32]], weight: f64) -> Vec<i64> {
    let mut sum = PartialSum::new(&plan.inner, 0, |_| None);
    sum.add_weighted(vectors, weight).unwrap();
    sum.groups.remove(0).sums.into_sums()
}

fn exact_squared_norm(u: &[i64]) -> u128 {
    u.iter().map(|u| u128::from(u.unsigned_abs()) * u128::from(u.unsigned_abs())).sum()
}

#[test]
fn no_integer_vector_is_longer_than_the_sensitivity_and_good_ones_keep_their_length() {
    let (threads, vectors) = (2, 1_000_000);
    let pools = pools(&mut Words(20_261_115));
    let clipped: usize = std::thread::scope(|scope| {
        let part = |seed| {
            scope.spawn({
                let pools = &pools;
                move || clip_many(pools, Words(seed), vectors / threads)
            })
        };
        let parts: Vec<_> = (0..threads as u64).map(part).collect();
        parts.into_iter().map(|part| part.join().unwrap()).sum()
    });
    assert!(clipped > vectors / 4, "only {clipped} vectors were clipped");
}

/// Checks that many vectors and returns how many were clipped.
fn clip_many(pools: &[Vec<f32>], mut words: Words, vectors: usize) -> usize {
    let mut clipped = 0;
    for index in 0..vectors {
        let kind = index % pools.len();
        let d = (words.unit().powi(3) * (LONGEST as f64).ln()).exp().round() as usize;
        let start = words.next() as usize % LONGEST;
        let x = &pools[kind][start..start + d];
        let norm = x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt();
        // Clip norms around the record's own length, and some that have nothing to do with it.
        let clip = match words.next() % 4 {
            0 => words.log_uniform(1e-40, 1e40),
            _ => norm * words.log_uniform(0.01, 2.0),
        };
        let clip = if clip.is_finite() && clip > 0.0 { clip } else { 1.0 };
        let plan = plan(d, clip, words.log_uniform(1e-3, 1e3));
        let u = integers(&plan, x);
        let squared = exact_squared_norm(&u);
        let s_int = u128::from(plan.grid("x").unwrap().s_int());
        assert!(squared <= s_int * s_int, "pool {kind}, d {d}, clip {clip}, norm {norm}");
        if !x.iter().all(|x| x.is_finite()) {
            assert_eq!(squared, 0, "pool {kind}");
        } else if norm >= clip && (1e-30..1e38).contains(&clip) {
            clipped += 1;
            let retained = squared as f64 / (s_int * s_int) as f64;
            assert!(retained >= 0.9999, "pool {kind}, d {d}, clip {clip}: {retained}");
        }
    }
    clipped
}

#[test]
fn groups_of_several_scaled_and_weighted_vectors_keep_the_bound_too() {
    let mut words = Words(99);
    let pools = pools(&mut words);
    for index in 0..200_000 {
        let mut slice = || {
            let d = words.log_uniform(1.0, 300.0) as usize;
            let start = words.next() as usize % LONGEST;
            &pools[words.next() as usize % pools.len()][start..start + d]
        };
        let vectors = [slice(), slice(), slice()];
        let alphas = [(); 3].map(|()| match words.next() % 4 {
            0 => words.log_uniform(1e-30, 1e30),
            _ => words.log_uniform(0.1, 10.0),
        });
        let names = ["a", "b", "c"];
        let scales = alphas.map(|alpha| JointScale::new(alpha).unwrap());
        let clip = ClipNorm::new(words.log_uniform(1e-3, 1e3)).unwrap();
        let mut group = Group::joint("g", names.into_iter().zip(scales), clip);
        if index % 3 == 0 {
            group = group.normalised();
        }
        let bound = WeightBound::new(words.log_uniform(0.1, 10.0)).unwrap();
        if index % 5 == 0 {
            group = group.weighted(bound);
        }
        let weight = [1.0, 0.0, f64::NAN, 1e300, words.log_uniform(0.01, 20.0)][index % 5];
        let structure =
            Structure::new(names.into_iter().zip(vectors).map(|(n, v)| (n, v.len()))).unwrap();
        let plan = plan_of(structure, group, words.log_uniform(1e-3, 1e3));
        let squared = exact_squared_norm(&integers_of(&plan, &vectors, weight));
        let s_int = u128::from(plan.grid("g").unwrap().s_int());
        assert!(squared <= s_int * s_int, "{alphas:?} {clip} {weight}");
        let scaled: f64 = vectors
            .iter()
            .zip(alphas)
            .flat_map(|(v, alpha)| v.iter().map(move |&x| (f64::from(x) / alpha).powi(2)))
            .sum();
        // A normalised record that is neither zero nor unruly has all of the length.
        let ruly = alphas.iter().all(|alpha| (0.1..=10.0).contains(alpha));
        if index % 15 == 3 && ruly && (1e-20..1e70).contains(&scaled) {
            let retained = squared as f64 / (s_int * s_int) as f64;
            assert!(retained >= 0.9999, "{alphas:?} {retained}");
        }
    }
}

#[test]
fn a_record_that_fails_its_certificate_is_taken_back() {
    let plan = plan(40, 1.0, 1.0);
    let grid = plan.inner.groups[0].grid;
    let mut sum = PartialSum::new(&plan.inner, 0, |_| None).groups.remove(0);
    let (good, long) = ([0.01f32; 40], [1f32; 40]);
    let factor = f64::from(grid.s_int());
    sum.add_certified::<[&[f32]]>(grid, &[&good], factor);
    // The factor of a much shorter record: forty coordinates of S_int each.
    sum.add_certified::<[&[f32]]>(grid, &[&long], factor);
    assert_eq!(sum.certified, 1);
    assert_eq!(sum.sums.into_sums(), integers(&plan, &good));
}

/// Outer products in the open: coordinates rounded as those of other vectors are, sums in one vector.
struct Open {
    s_int: u32,
    left: Vec<f32>,
    rounded: Vec<i64>,
    sum: Vec<i64>,
}

impl OuterProducts for Open {
    fn lengths(&self) -> (usize, usize) {
        (2, 3)
    }

    fn squared_norm(&mut self, left: &[f32], right: &[f32]) -> f64 {
        self.left = left.to_vec();
        kernel::squared_norm(left) * kernel::squared_norm(right)
    }

    fn slack(&self) -> f64 {
        0.0
    }

    fn round(&mut self, right: &[f32], factor: f64) -> u128 {
        let product = self.left.iter().flat_map(|a| right.iter().map(move |b| a * b));
        let product: Vec<f32> = product.collect();
        let mut rounded = vec![0; product.len()];
        let c = round_down(factor);
        let squares = kernel::quantise(&product, c, self.s_int, Direction::Add, &mut rounded);
        self.rounded = rounded.into_iter().map(i64::from).collect();
        squares
    }

    fn add(&mut self) {
        self.sum.iter_mut().zip(&self.rounded).for_each(|(sum, u)| *sum += u);
    }

    fn finish(&mut self) {}

    fn sum(&self) -> Part<'_> {
        Part::Wide(&self.sum)
    }

    fn restart(&mut self) {
        self.sum.fill(0);
    }
}

/// A plan for "a" of two coordinates, "w" of two by three, and "b" of one, in one group.
fn mixed() -> RoundPlan {
    let structure = Structure::new([("a", 2), ("w", 6), ("b", 1)]).unwrap();
    plan_of(structure, Group::new("g", ["*"], ClipNorm::new(1.0).unwrap()), 1.0)
}

fn open_part(plan: &RoundPlan) -> PartialSum {
    let s_int = plan.inner.groups[0].grid.s_int();
    let open = || Open { s_int, left: Vec::new(), rounded: Vec::new(), sum: vec![0; 6] };
    PartialSum::new(&plan.inner, 0, |name| {
        (name == "w").then(|| -> Box<dyn OuterProducts> { Box::new(open()) })
    })
}

fn whole(plan: &RoundPlan, part: PartialSum) -> Vec<i64> {
    let mut total = crate::ClippedSum::new(&plan.inner, 0);
    total.absorb(part).unwrap();
    total.into_integers().remove(0)
}

#[test]
fn outer_products_stand_where_their_coordinates_would() {
    let plan = mixed();
    for scale in [1e-3f32, 1.0, 1e3] {
        let (a, left, right, b) =
            ([0.5 * scale, -0.25], [scale, -2.0], [3.0, 0.0, -1.0], [0.125f32]);
        let product: Vec<f32> =
            left.iter().flat_map(|a| right.iter().map(move |b| a * b)).collect();
        let expected = integers_of(&plan, &[&a, &product, &b], 1.0);
        let mut part = open_part(&plan);
        let outer = RecordVector::Outer(&left, &right);
        part.add(&[RecordVector::Values(&a), outer, RecordVector::Values(&b)]).unwrap();
        // The product of two norms is rounded otherwise than the norm of the product.
        let near = |(x, y): (&i64, &i64)| (x - y).abs() <= 64;
        let found = whole(&plan, part);
        assert!(found.iter().zip(&expected).all(near), "{found:?} {expected:?}");
        assert!(exact_squared_norm(&found) > 0);
    }
}

#[test]
fn a_record_without_a_certificate_leaves_nothing_behind_in_any_place() {
    let plan = mixed();
    let (grid, mut part) = (plan.inner.groups[0].grid, open_part(&plan));
    let (a, left, right, b) = ([0.6f32, 0.0], [0.6f32, 0.0], [1.0f32, 0.0, 0.0], [0.6f32]);
    let vectors = [
        RecordVector::Values(&a[..]),
        RecordVector::Outer(&left, &right),
        RecordVector::Values(&b),
    ];
    // Each vector fits alone, and all three do not.
    part.groups[0].squared_norm(&vectors[..]);
    part.groups[0].add_certified(grid, &vectors[..], f64::from(grid.s_int()));
    assert_eq!(part.groups[0].certified, 0);
    assert!(whole(&plan, part).iter().all(|u| *u == 0));
    // By its true norm it fits.
    let mut part = open_part(&plan);
    part.add(&vectors).unwrap();
    assert_eq!(part.groups[0].certified, 1);
    let s_int = u128::from(grid.s_int());
    let squared = exact_squared_norm(&whole(&plan, part));
    assert!(squared <= s_int * s_int && squared as f64 > 0.99 * (s_int * s_int) as f64);
}

#[test]
fn a_vector_comes_in_one_form_and_a_sum_is_no_larger_than_its_records_make_it() {
    let plan = mixed();
    let mut part = open_part(&plan);
    let dense = [0.0f32; 6];
    let values = RecordVector::Values(&dense[..2]);
    let b = RecordVector::Values(&dense[..1]);
    let form = Err(SumError::Form("w".to_owned()));
    assert_eq!(part.add(&[values, RecordVector::Values(&dense), b]), form);
    let short = RecordVector::Outer(&dense[..2], &dense[..2]);
    assert!(matches!(part.add(&[values, short, b]), Err(SumError::Dimension { .. })));
    assert!(matches!(part.add(&[values]), Err(SumError::Count { .. })));
    // As many coordinates, and other factors.
    let turned = RecordVector::Outer(&dense[..3], &dense[..2]);
    assert!(matches!(part.add(&[values, turned, b]), Err(SumError::Dimension { .. })));
    let product = RecordVector::Outer(&dense[..2], &dense[..3]);
    assert_eq!(part.add(&[product, product, b]), Err(SumError::Form("a".to_owned())));
    // Nothing was certified, so that nothing but zeros can be in the sum.
    let Place::Outer(products) = &mut part.groups[0].members[1].place else { unreachable!() };
    products.squared_norm(&[1.0, 0.0], &[1.0, 0.0, 0.0]);
    products.round(&[1.0, 0.0, 0.0], 9.0);
    products.add();
    let mut total = crate::ClippedSum::new(&plan.inner, 0);
    assert_eq!(total.absorb(part).err(), Some(SumError::Uncertified("w".to_owned())));
    assert_eq!(total.absorb(open_part(&mixed())).map(|memory| memory.len()), Ok(1));
    let other_round = PartialSum::new(&plan.inner, 1, |_| None);
    assert_eq!(total.absorb(other_round).err(), Some(SumError::Foreign));
}

#[test]
fn a_part_of_another_plan_is_refused_and_adds_nothing() {
    let structure = || Structure::new([("x", 2)]).unwrap();
    let group = |clip| Group::new("x", ["*"], ClipNorm::new(clip).unwrap());
    let mine = plan_of(structure(), group(1.0), 1.0);
    let mut total = crate::ClippedSum::new(&mine.inner, 7);
    let part = |plan: &RoundPlan| {
        let mut part = PartialSum::new(&plan.inner, 7, |_| None);
        let length = plan.structure().vectors().map(|(_, length)| length).sum();
        part.add(&[RecordVector::Values(&vec![0.5; length])]).unwrap();
        part
    };
    for other in [
        // Another clip norm, other noise, another clipping rule, another length.
        plan_of(structure(), group(2.0), 1.0),
        plan_of(structure(), group(1.0), 3.0),
        plan_of(structure(), group(1.0).normalised(), 1.0),
        plan(3, 1.0, 1.0),
    ] {
        assert_eq!(total.absorb(part(&other)).err(), Some(SumError::Foreign));
    }
    // An equal plan is the same plan.
    total.absorb(part(&plan_of(structure(), group(1.0), 1.0))).unwrap();
    assert_eq!(total.into_integers().remove(0), integers(&mine, &[0.5; 2]));
}

#[test]
fn a_weighted_group_of_outer_products_gives_the_integers_of_its_coordinates() {
    let structure = Structure::new([("a", 2), ("w", 6), ("b", 1)]).unwrap();
    let bound = WeightBound::new(4.0).unwrap();
    let group = Group::new("g", ["*"], ClipNorm::new(1.0).unwrap()).weighted(bound);
    let plan = plan_of(structure, group, 1.0);
    // Powers of two: the norm of the product and the product of the norms are the same number.
    let (a, left, right, b) = ([0.5f32, -0.25], [0.25f32, -2.0], [4.0f32, 0.0, -1.0], [0.125f32]);
    let product: Vec<f32> = left.iter().flat_map(|a| right.iter().map(move |b| a * b)).collect();
    let outer = [
        RecordVector::Values(&a[..]),
        RecordVector::Outer(&left, &right),
        RecordVector::Values(&b),
    ];
    let mut last = Vec::new();
    for weight in [f64::NAN, -1.0, 0.0, 0.3, 1.0, 3.9, 4.0, 1e300] {
        let expected = integers_of(&plan, &[&a, &product, &b], weight);
        let mut part = open_part(&plan);
        part.add_weighted(&outer[..], weight).unwrap();
        assert_eq!(whole(&plan, part), expected, "weight {weight}");
        // A larger weight counts more, up to the bound.
        let counts_more = weight > 0.0 && weight <= 4.0;
        assert!(exact_squared_norm(&expected) > exact_squared_norm(&last) || !counts_more);
        last = expected;
    }
}

/// Three vectors in one group, on a grid of this sensitivity: two as coordinates, one as an outer product.
fn three(s_int: u32) -> GroupSum {
    let member = |vector, place| MemberSum { vector, alpha: 1.0, range: vector..vector + 1, place };
    let open = Open { s_int, left: vec![1.0], rounded: Vec::new(), sum: vec![0] };
    let members = vec![
        member(0, Place::Sums(0..1)),
        member(1, Place::Sums(1..2)),
        member(2, Place::Outer(Box::new(open))),
    ];
    GroupSum { sums: Accumulator::new(2), members, certified: 0 }
}

/// The sum of squares counts, not the largest vector: every record of three small integers, alone in a sum.
#[test]
fn several_vectors_are_certified_together_for_every_small_record() {
    for s_int in 1u32..=6 {
        let grid = IntegerGrid::new(s_int, 1).unwrap();
        let (s, within) = (i64::from(s_int), s_int as i16 + 1);
        let each = || -within..=within;
        for (a, b, c) in
            each().flat_map(|a| each().flat_map(move |b| each().map(move |c| (a, b, c))))
        {
            let (x, y, z) = ([f32::from(a)], [f32::from(b)], [f32::from(c)]);
            let record = [
                RecordVector::Values(&x),
                RecordVector::Values(&y),
                RecordVector::Outer(&[1.0], &z),
            ];
            let mut group = three(s_int);
            group.add_certified(grid, record.as_slice(), 1.0);
            let u = [a, b, c].map(|value| i64::from(value).clamp(-s, s));
            let counts = u.iter().map(|u| u * u).sum::<i64>() <= s * s;
            let expected = if counts { u } else { [0; 3] };
            let mut found = vec![0];
            if let Place::Outer(products) = &group.members[2].place {
                products.sum().add_to(&mut found);
            }
            found.splice(0..0, group.sums.into_sums());
            assert_eq!(found, expected, "({a}, {b}, {c}) against {s_int}");
            assert_eq!(group.certified, u64::from(counts));
        }
    }
}
