//! No record changes a sum by more than the sensitivity, whatever its values.

use veilgrad_events::{JointScale, NoiseMultiplier, WeightBound};

use super::*;
use crate::kernel::Part;
use crate::outer::SparseRows;
use crate::{Allocation, Group, RoundPlan, Structure};

/// A small random generator, for magnitudes that proptest strategies rarely reach.
struct TestRng(u64);

impl TestRng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 ^ (self.0 >> 29)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 16
    }

    /// Uniform in [0, 1).
    fn uniform(&mut self) -> f64 {
        self.next() as f64 / 2f64.powi(48)
    }

    fn log_uniform(&mut self, low: f64, high: f64) -> f64 {
        (low.ln() + self.uniform() * (high.ln() - low.ln())).exp()
    }

    fn sign(&mut self) -> f64 {
        if self.next() & 1 == 0 { 1.0 } else { -1.0 }
    }
}

const LONGEST: usize = 100_000;

/// Long vectors whose slices are the records: all magnitudes of f32, and values that always round in one direction.
fn pools(rng: &mut TestRng) -> Vec<Vec<f32>> {
    let mut pool = |value: &mut dyn FnMut(&mut TestRng) -> f64| -> Vec<f32> {
        (0..2 * LONGEST).map(|_| value(rng) as f32).collect()
    };
    vec![
        // Well scaled, dense.
        pool(&mut |w| w.sign() * w.uniform()),
        // All magnitudes at once.
        pool(&mut |w| w.sign() * w.log_uniform(1e-45, 3e38)),
        // All coordinates equal, with an odd mantissa.
        pool(&mut |_| 1.000_000_1),
        pool(&mut |_| -0.333_333_34),
        // Subnormal.
        pool(&mut |w| w.sign() * w.log_uniform(1e-45, 1e-38)),
        // Near f32::MAX.
        pool(&mut |w| w.sign() * (3.4e38 * (1.0 - 1e-3 * w.uniform()))),
        // Sparse.
        pool(&mut |w| if w.next() % 64 == 0 { w.sign() * w.uniform() } else { 0.0 }),
        // Rare spikes among tiny values.
        pool(&mut |w| if w.next() % 4096 == 0 { 1.0 } else { 1e-6 * w.uniform() }),
        // Zero.
        pool(&mut |_| 0.0),
        // Rarely NaN or infinite.
        pool(&mut |w| match w.next() % 100_000 {
            0 => f64::NAN,
            1 => f64::INFINITY,
            2 => f64::NEG_INFINITY,
            _ => w.sign() * w.uniform(),
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
    let mut sum = PartialSum::new(&plan.inner, SampleId::NONE, |_| None);
    sum.add_record(vectors, weight).unwrap();
    sum.groups.remove(0).sums.into_sums()
}

fn exact_squared_norm(u: &[i64]) -> u128 {
    u.iter().map(|u| u128::from(u.unsigned_abs()) * u128::from(u.unsigned_abs())).sum()
}

#[test]
fn no_integer_vector_is_longer_than_the_sensitivity_and_good_ones_keep_their_length() {
    let (threads, vectors) = (2, 1_000_000);
    let pools = pools(&mut TestRng(20_261_115));
    let clipped: usize = std::thread::scope(|scope| {
        let part = |seed| {
            scope.spawn({
                let pools = &pools;
                move || clip_many(pools, TestRng(seed), vectors / threads)
            })
        };
        let parts: Vec<_> = (0..threads as u64).map(part).collect();
        parts.into_iter().map(|part| part.join().unwrap()).sum()
    });
    assert!(clipped > vectors / 4, "only {clipped} vectors were clipped");
}

/// Checks `vectors` vectors and returns how many were clipped.
fn clip_many(pools: &[Vec<f32>], mut rng: TestRng, vectors: usize) -> usize {
    let mut clipped = 0;
    for index in 0..vectors {
        let kind = index % pools.len();
        let d = (rng.uniform().powi(3) * (LONGEST as f64).ln()).exp().round() as usize;
        let start = rng.next() as usize % LONGEST;
        let x = &pools[kind][start..start + d];
        let norm = x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt();
        // Most clip norms near the record's norm, some anywhere.
        let clip = match rng.next() % 4 {
            0 => rng.log_uniform(1e-40, 1e40),
            _ => norm * rng.log_uniform(0.01, 2.0),
        };
        let clip = if clip.is_finite() && clip > 0.0 { clip } else { 1.0 };
        let plan = plan(d, clip, rng.log_uniform(1e-3, 1e3));
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
    let mut rng = TestRng(99);
    let pools = pools(&mut rng);
    for index in 0..200_000 {
        let mut slice = || {
            let d = rng.log_uniform(1.0, 300.0) as usize;
            let start = rng.next() as usize % LONGEST;
            &pools[rng.next() as usize % pools.len()][start..start + d]
        };
        let vectors = [slice(), slice(), slice()];
        let alphas = [(); 3].map(|()| match rng.next() % 4 {
            0 => rng.log_uniform(1e-30, 1e30),
            _ => rng.log_uniform(0.1, 10.0),
        });
        let names = ["a", "b", "c"];
        let scales = alphas.map(|alpha| JointScale::new(alpha).unwrap());
        let clip = ClipNorm::new(rng.log_uniform(1e-3, 1e3)).unwrap();
        let mut group = Group::joint("g", names.into_iter().zip(scales), clip);
        if index % 3 == 0 {
            group = group.normalised();
        }
        let bound = WeightBound::new(rng.log_uniform(0.1, 10.0)).unwrap();
        if index % 5 == 0 {
            group = group.weighted(bound);
        }
        let weight = [1.0, 0.0, f64::NAN, 1e300, rng.log_uniform(0.01, 20.0)][index % 5];
        let structure =
            Structure::new(names.into_iter().zip(vectors).map(|(n, v)| (n, v.len()))).unwrap();
        let plan = plan_of(structure, group, rng.log_uniform(1e-3, 1e3));
        let squared = exact_squared_norm(&integers_of(&plan, &vectors, weight));
        let s_int = u128::from(plan.grid("g").unwrap().s_int());
        assert!(squared <= s_int * s_int, "{alphas:?} {clip} {weight}");
        let scaled: f64 = vectors
            .iter()
            .zip(alphas)
            .flat_map(|(v, alpha)| v.iter().map(move |&x| (f64::from(x) / alpha).powi(2)))
            .sum();
        // A normalised record of moderate magnitude keeps its full norm.
        let has_moderate_scales = alphas.iter().all(|alpha| (0.1..=10.0).contains(alpha));
        if index % 15 == 3 && has_moderate_scales && (1e-20..1e70).contains(&scaled) {
            let retained = squared as f64 / (s_int * s_int) as f64;
            assert!(retained >= 0.9999, "{alphas:?} {retained}");
        }
    }
}

#[test]
fn a_record_that_fails_its_certificate_is_taken_back() {
    let plan = plan(40, 1.0, 1.0);
    let grid = plan.inner.groups[0].grid;
    let mut sum = PartialSum::new(&plan.inner, SampleId::NONE, |_| None).groups.remove(0);
    let (good, long) = ([0.01f32; 40], [1f32; 40]);
    let factor = f64::from(grid.s_int());
    sum.add_certified::<[&[f32]]>(grid, &[&good], factor);
    // A factor that is far too large: forty coordinates of S_int each.
    sum.add_certified::<[&[f32]]>(grid, &[&long], factor);
    assert_eq!(sum.certified, 1);
    assert_eq!(sum.sums.into_sums(), integers(&plan, &good));
}

/// Outer products as dense vectors, rounded like other coordinates.
struct DenseProducts {
    s_int: u32,
    left: Vec<f32>,
    rounded: Vec<i64>,
    sum: Vec<i64>,
}

impl OuterProducts for DenseProducts {
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
        let squares =
            kernel::quantise(&product, c, self.s_int, Direction::Add, &mut rounded).squares;
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

/// A plan with "a" of two coordinates, "w" of two by three, and "b" of one, in one group.
fn mixed_plan() -> RoundPlan {
    let structure = Structure::new([("a", 2), ("w", 6), ("b", 1)]).unwrap();
    plan_of(structure, Group::new("g", ["*"], ClipNorm::new(1.0).unwrap()), 1.0)
}

fn part_with_products(plan: &RoundPlan) -> PartialSum {
    let s_int = plan.inner.groups[0].grid.s_int();
    let products =
        || DenseProducts { s_int, left: Vec::new(), rounded: Vec::new(), sum: vec![0; 6] };
    PartialSum::new(&plan.inner, SampleId::NONE, |name| {
        (name == "w").then(|| -> Box<dyn OuterProducts> { Box::new(products()) })
    })
}

fn absorbed(plan: &RoundPlan, part: PartialSum) -> Vec<i64> {
    let mut total = crate::ClippedSum::new(&plan.inner, SampleId::NONE);
    total.absorb(part).unwrap();
    total.into_integers().remove(0)
}

#[test]
fn outer_products_give_the_integers_of_their_coordinates() {
    let plan = mixed_plan();
    for scale in [1e-3f32, 1.0, 1e3] {
        let (a, left, right, b) =
            ([0.5 * scale, -0.25], [scale, -2.0], [3.0, 0.0, -1.0], [0.125f32]);
        let product: Vec<f32> =
            left.iter().flat_map(|a| right.iter().map(move |b| a * b)).collect();
        let expected = integers_of(&plan, &[&a, &product, &b], 1.0);
        let mut part = part_with_products(&plan);
        let outer = RecordVector::Outer(&left, &right);
        part.add(&[RecordVector::Values(&a), outer, RecordVector::Values(&b)]).unwrap();
        // The product of two norms and the norm of the product round differently.
        let is_near = |(x, y): (&i64, &i64)| (x - y).abs() <= 64;
        let found = absorbed(&plan, part);
        assert!(found.iter().zip(&expected).all(is_near), "{found:?} {expected:?}");
        assert!(exact_squared_norm(&found) > 0);
    }
}

/// A plan with a table of 40 rows between two other vectors.
fn table_plan(width: usize) -> RoundPlan {
    let structure = Structure::new([("a", 3), ("table", 40 * width), ("b", 1)]).unwrap();
    let group = Group::new("all", ["*"], ClipNorm::new(0.7).unwrap());
    let noise = Allocation::Proportional(NoiseMultiplier::new(1.1).unwrap());
    RoundPlan::new(structure, vec![group], noise).unwrap()
}

#[test]
fn sparse_rows_give_the_norm_and_the_integers_of_the_whole_table() {
    let mut rng = TestRng(11);
    for width in [1, 4, 5, 31, 32, 33, 64, 70] {
        let plan = table_plan(width);
        let (mut sparse, mut dense) = (
            PartialSum::new(&plan.inner, SampleId::NONE, |_| None),
            PartialSum::new(&plan.inner, SampleId::NONE, |_| None),
        );
        for record in 0..60 {
            let rows: Vec<u32> = (0..40).filter(|_| rng.next() % 40 < record).collect();
            let scale = rng.log_uniform(1e-6, 1e6);
            let mut numbers = |count: usize| -> Vec<f32> {
                (0..count).map(|_| (scale * rng.sign() * rng.uniform()) as f32).collect()
            };
            let (a, values, b) = (numbers(3), numbers(rows.len() * width), numbers(1));
            let mut table = vec![0.0; 40 * width];
            for (row, values) in rows.iter().zip(values.chunks_exact(width)) {
                table[*row as usize * width..][..width].copy_from_slice(values);
            }
            let (a, b) = (RecordVector::Values(&a), RecordVector::Values(&b));
            let rows = SparseRows { length: 40 * width, width, rows: &rows, values: &values };
            sparse.add(&[a, RecordVector::Rows(rows), b]).unwrap();
            dense.add(&[a, RecordVector::Values(&table), b]).unwrap();
            assert_eq!(sparse.measures[0].to_bits(), dense.measures[0].to_bits());
        }
        assert_eq!(sparse.groups[0].certified, dense.groups[0].certified);
        let (sparse, dense) = (absorbed(&plan, sparse), absorbed(&plan, dense));
        assert!(dense.iter().any(|u| *u != 0));
        assert_eq!(sparse, dense, "rows of {width}");
    }
}

#[test]
fn a_record_with_rows_twice_or_out_of_the_table_adds_nothing() {
    let plan = table_plan(2);
    let mut part = PartialSum::new(&plan.inner, SampleId::NONE, |_| None);
    let (a, b) = ([0.5f32; 3], [0.5f32]);
    let mut add = |rows: &[u32], values: usize, length: usize, width: usize| {
        let values = &vec![0.5; values];
        let rows = RecordVector::Rows(SparseRows { length, width, rows, values });
        part.add(&[RecordVector::Values(&a), rows, RecordVector::Values(&b)])
    };
    let unusable: [(&[u32], usize, usize); 7] = [
        // Twice, in the wrong order, out of the table.
        (&[3, 3], 4, 2),
        (&[4, 3], 4, 2),
        (&[40], 2, 2),
        (&[u32::MAX], 2, 2),
        // Too few and too many coordinates, and none.
        (&[1, 2], 3, 2),
        (&[1, 2], 5, 2),
        (&[1, 2], 0, 0),
    ];
    for (rows, values, width) in unusable {
        assert_eq!(add(rows, values, 80, width), Ok(()));
    }
    assert!(matches!(add(&[1], 2, 82, 2), Err(SumError::Dimension { .. })));
    assert_eq!(part.groups[0].certified, 0);
    assert!(absorbed(&plan, part).iter().all(|u| *u == 0));
    // The last row is in the table, and a record may have none.
    let mut part = PartialSum::new(&plan.inner, SampleId::NONE, |_| None);
    for rows in [&[0, 39][..], &[]] {
        let values = &vec![0.5; 2 * rows.len()];
        let rows = RecordVector::Rows(SparseRows { length: 80, width: 2, rows, values });
        part.add(&[RecordVector::Values(&a), rows, RecordVector::Values(&b)]).unwrap();
    }
    assert_eq!(part.groups[0].certified, 2);
}

#[test]
fn a_table_whose_rows_are_together_too_long_adds_nothing() {
    let plan = table_plan(2);
    let (grid, mut part) =
        (plan.inner.groups[0].grid, PartialSum::new(&plan.inner, SampleId::NONE, |_| None));
    let rows = SparseRows { length: 80, width: 2, rows: &[3, 7], values: &[0.9, 0.0, 0.0, 0.9] };
    let vectors =
        [RecordVector::Values(&[0.0; 3]), RecordVector::Rows(rows), RecordVector::Values(&[0.0])];
    // Each row alone is within the sensitivity, both together are not.
    part.groups[0].add_certified(grid, &vectors[..], f64::from(grid.s_int()));
    assert_eq!(part.groups[0].certified, 0);
    assert!(absorbed(&plan, part).iter().all(|u| *u == 0));
}

#[test]
fn a_record_without_a_certificate_adds_nothing_to_any_vector() {
    let plan = mixed_plan();
    let (grid, mut part) = (plan.inner.groups[0].grid, part_with_products(&plan));
    let (a, left, right, b) = ([0.6f32, 0.0], [0.6f32, 0.0], [1.0f32, 0.0, 0.0], [0.6f32]);
    let vectors = [
        RecordVector::Values(&a[..]),
        RecordVector::Outer(&left, &right),
        RecordVector::Values(&b),
    ];
    // Each vector alone is within the sensitivity, all three together are not.
    part.groups[0].squared_norm(&vectors[..]);
    part.groups[0].add_certified(grid, &vectors[..], f64::from(grid.s_int()));
    assert_eq!(part.groups[0].certified, 0);
    assert!(absorbed(&plan, part).iter().all(|u| *u == 0));
    // With its true norm it is certified.
    let mut part = part_with_products(&plan);
    part.add(&vectors).unwrap();
    assert_eq!(part.groups[0].certified, 1);
    let s_int = u128::from(grid.s_int());
    let squared = exact_squared_norm(&absorbed(&plan, part));
    assert!(squared <= s_int * s_int && squared as f64 > 0.99 * (s_int * s_int) as f64);
}

#[test]
fn a_vector_comes_in_one_form_and_a_sum_is_no_larger_than_its_records_make_it() {
    let plan = mixed_plan();
    let mut part = part_with_products(&plan);
    let dense = [0.0f32; 6];
    let values = RecordVector::Values(&dense[..2]);
    let b = RecordVector::Values(&dense[..1]);
    let form = Err(SumError::Form("w".to_owned()));
    assert_eq!(part.add(&[values, RecordVector::Values(&dense), b]), form);
    let short = RecordVector::Outer(&dense[..2], &dense[..2]);
    assert!(matches!(part.add(&[values, short, b]), Err(SumError::Dimension { .. })));
    assert!(matches!(part.add(&[values]), Err(SumError::Count { .. })));
    // The same number of coordinates, with swapped factors.
    let turned = RecordVector::Outer(&dense[..3], &dense[..2]);
    assert!(matches!(part.add(&[values, turned, b]), Err(SumError::Dimension { .. })));
    let product = RecordVector::Outer(&dense[..2], &dense[..3]);
    assert_eq!(part.add(&[product, product, b]), Err(SumError::Form("a".to_owned())));
    // Nothing was certified, so the sum must be zero.
    let Storage::Outer(products) = &mut part.groups[0].members[1].storage else { unreachable!() };
    products.squared_norm(&[1.0, 0.0], &[1.0, 0.0, 0.0]);
    products.round(&[1.0, 0.0, 0.0], 9.0);
    products.add();
    let mut total = crate::ClippedSum::new(&plan.inner, SampleId::NONE);
    assert_eq!(total.absorb(part).err(), Some(SumError::Uncertified("w".to_owned())));
    assert_eq!(total.absorb(part_with_products(&mixed_plan())).map(|memory| memory.len()), Ok(1));
    let other_round =
        PartialSum::new(&plan.inner, SampleId { permit: 1, ..SampleId::NONE }, |_| None);
    assert_eq!(total.absorb(other_round).err(), Some(SumError::Foreign));
}

#[test]
fn a_part_of_another_plan_is_refused_and_adds_nothing() {
    let structure = || Structure::new([("x", 2)]).unwrap();
    let group = |clip| Group::new("x", ["*"], ClipNorm::new(clip).unwrap());
    let mine = plan_of(structure(), group(1.0), 1.0);
    let mut total = crate::ClippedSum::new(&mine.inner, SampleId { permit: 7, ..SampleId::NONE });
    let part = |plan: &RoundPlan| {
        let mut part =
            PartialSum::new(&plan.inner, SampleId { permit: 7, ..SampleId::NONE }, |_| None);
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
    // Chosen so that the norm of the product and the product of the norms are the same number.
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
        let mut part = part_with_products(&plan);
        part.add_weighted(&outer[..], weight).unwrap();
        assert_eq!(absorbed(&plan, part), expected, "weight {weight}");
        // The norm grows with the weight, up to the bound.
        let is_within_bound = weight > 0.0 && weight <= 4.0;
        assert!(exact_squared_norm(&expected) > exact_squared_norm(&last) || !is_within_bound);
        last = expected;
    }
}

/// A group of three vectors with this sensitivity: two as coordinates, one as an outer product.
fn group_of_three(s_int: u32) -> GroupSum {
    let member =
        |vector, storage| MemberSum { vector, alpha: 1.0, range: vector..vector + 1, storage };
    let products = DenseProducts { s_int, left: vec![1.0], rounded: Vec::new(), sum: vec![0] };
    let members = vec![
        member(0, Storage::Sums(0..1)),
        member(1, Storage::Sums(1..2)),
        member(2, Storage::Outer(Box::new(products))),
    ];
    GroupSum { sums: Accumulator::new(2), members, certified: 0 }
}

/// Every record of three small integers: the certificate is on the sum of squares, not on the largest vector.
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
            let mut group = group_of_three(s_int);
            group.add_certified(grid, record.as_slice(), 1.0);
            let u = [a, b, c].map(|value| i64::from(value).clamp(-s, s));
            let is_certified = u.iter().map(|u| u * u).sum::<i64>() <= s * s;
            let expected = if is_certified { u } else { [0; 3] };
            let mut found = vec![0];
            if let Storage::Outer(products) = &group.members[2].storage {
                products.sum().add_to(&mut found);
            }
            found.splice(0..0, group.sums.into_sums());
            assert_eq!(found, expected, "({a}, {b}, {c}) against {s_int}");
            assert_eq!(group.certified, u64::from(is_certified));
        }
    }
}
