//! Partial sums of other processes: the same bits for any partition, and nothing that was not certified for this round.

use crate::common::*;
use proptest::prelude::*;
use veilgrad_mechanism::insecure::{no_noise, released_integers, seeded_noise};
use veilgrad_mechanism::{
    ClippedSum, Group, LearningRate, OutgoingSum, PartialSum, Quantile, RecordVector, ReleaseError,
    RoundPlan, Sample, SampleTag, SumError,
};

/// A plan with every kind of group: gradients, joint and weighted vectors, a count, quantiles of a norm and of a value.
fn every_group(first_clip: f64) -> RoundPlan {
    let rate = LearningRate::constant(0.3).unwrap();
    let norm = Quantile::of_norm("gradient", 0.5, count(8.0), clip(0.01)).unwrap();
    let value = Quantile::of_value("loss", 0.5, count(8.0), 0.25).unwrap();
    let vectors = [("w", 5), ("b", 2), ("mean", 3), ("square", 3), ("loss", 1)];
    plan(
        &vectors,
        vec![
            Group::new("gradient", ["w", "b"], clip(first_clip)).average(count(8.0)),
            Group::joint("statistics", [("mean", alpha(1.0)), ("square", alpha(4.0))], clip(1.5))
                .weighted(weight(2.0))
                .average_over("count", count(2.0)),
            Group::new("loss", ["loss"], clip(2.0)).normalised(),
            Group::weight("count", weight(2.0)),
            Group::quantile("median norm", norm.learning_rate(rate)),
            Group::quantile("median loss", value),
        ],
    )
}

/// A record: its vectors one after the other, and its weight.
#[derive(Debug, Clone)]
struct TestRecord(Vec<f32>, f64);

impl TestRecord {
    fn vectors(&self) -> [&[f32]; 5] {
        let x = &self.0;
        [&x[..5], &x[5..7], &x[7..10], &x[10..13], &x[13..14]]
    }

    fn add_to(&self, part: &mut PartialSum) {
        let vectors = self.vectors().map(RecordVector::Values);
        part.add_weighted(&vectors, self.1).unwrap();
    }
}

fn any_record() -> impl Strategy<Value = TestRecord> {
    let value = prop_oneof![
        8 => -3f32..3.0,
        1 => prop::num::f32::ANY,
        1 => prop_oneof![Just(f32::MAX), Just(f32::MIN_POSITIVE), Just(0.0)],
    ];
    (prop::collection::vec(value, 14), -1f64..4.0).prop_map(|(values, w)| TestRecord(values, w))
}

fn some_records(count: usize) -> Vec<TestRecord> {
    let value = |i: usize| ((i * 37 % 101) as f32 - 50.0) / 20.0;
    let record =
        |n: usize| TestRecord((0..14).map(|i| value(14 * n + i)).collect(), n as f64 / 3.0);
    (0..count).map(record).collect()
}

/// A partial sum of these records, as another process begins it: from the plan and the bytes of the tag.
fn part(plan: &RoundPlan, tag: &[u8], records: &[TestRecord]) -> PartialSum {
    let tag = SampleTag::from_bytes(tag).unwrap();
    let mut part = PartialSum::begin(plan, &tag, |_| None).unwrap();
    records.iter().for_each(|record| record.add_to(&mut part));
    part
}

fn bytes(plan: &RoundPlan, tag: &[u8], records: &[TestRecord]) -> Vec<u8> {
    part(plan, tag, records).into_bytes().unwrap().expose().to_vec()
}

fn integers(plan: &RoundPlan, sample: Sample, sum: ClippedSum) -> Vec<Vec<i64>> {
    let noise = seeded_noise(plan, 5).unwrap();
    released_integers(&sum.release(sample, noise).unwrap()).to_vec()
}

/// All records in one sum of one process.
fn alone(plan: &RoundPlan, records: &[TestRecord]) -> Vec<Vec<i64>> {
    let (sample, mut sum) = begin(plan);
    for record in records {
        sum.add_weighted(&record.vectors(), record.1).unwrap();
    }
    integers(plan, sample, sum)
}

/// The integers of a partial sum.
fn values(part: &OutgoingSum) -> Vec<u64> {
    part.blocks(usize::MAX).flatten().copied().collect()
}

/// Adds up the integers of partial sums, as a reduction on unsigned integers does.
fn reduce(parts: &[OutgoingSum]) -> Vec<u64> {
    let mut total = vec![0u64; values(&parts[0]).len()];
    for part in parts {
        total.iter_mut().zip(values(part)).for_each(|(sum, value)| *sum = sum.wrapping_add(value));
    }
    total
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_partition_over_processes_gives_the_bits_of_one_sum(
        records in prop::collection::vec((any_record(), 0usize..5), 0..30),
        block in 1usize..20,
    ) {
        let plan = every_group(1.0);
        let of = |process: usize| -> Vec<TestRecord> {
            let mine = records.iter().filter(|(_, p)| *p == process);
            mine.map(|(record, _)| record.clone()).collect()
        };
        let all: Vec<_> = (0..5).flat_map(of).collect();
        let expected = alone(&plan, &all);

        // As bytes: process 2 passes on what it gets from 3 and 4.
        let (sample, mut sum) = begin(&plan);
        let tag = sample.tag(&plan).to_bytes();
        let mut middle = part(&plan, &tag, &of(2));
        for process in [3, 4] {
            middle.absorb_bytes(&bytes(&plan, &tag, &of(process))).unwrap();
        }
        let mut mine = part(&plan, &tag, &of(0));
        mine.absorb(part(&plan, &tag, &of(1))).unwrap();
        sum.absorb(mine).unwrap();
        sum.absorb_bytes(middle.into_bytes().unwrap().expose()).unwrap();
        prop_assert_eq!(&integers(&plan, sample, sum), &expected);

        // As a reduction in blocks, into a sum that already has its noise.
        let (sample, mut sum) = begin(&plan);
        let tag = sample.tag(&plan).to_bytes();
        let parts: Vec<_> = (0..5).map(|p| part(&plan, &tag, &of(p)).leave().unwrap()).collect();
        sum.add_noise(seeded_noise(&plan, 5).unwrap()).unwrap();
        let mut incoming = sum.receive();
        let lengths: Vec<usize> = parts[0].blocks(block).map(<[u64]>::len).collect();
        prop_assert_eq!(&incoming.block_lengths(block), &lengths);
        prop_assert!(lengths.iter().all(|length| (1..=block).contains(length)));
        for block in reduce(&parts).chunks(block) {
            incoming.add_block(block).unwrap();
        }
        let certificates: Vec<_> =
            parts.iter().map(|part| part.certificate().expose().to_vec()).collect();
        let released = incoming.accept(&certificates).unwrap().release_noisy(sample).unwrap();
        prop_assert_eq!(released_integers(&released), &expected[..]);
    }

    #[test]
    fn every_altered_byte_is_noticed_and_adds_nothing(place in any::<prop::sample::Index>(), flip in 1u8..) {
        let plan = every_group(1.0);
        let (sample, mut sum) = begin(&plan);
        let good = bytes(&plan, &sample.tag(&plan).to_bytes(), &some_records(3));
        let mut bad = good.clone();
        bad[place.index(good.len())] ^= flip;
        prop_assert!(sum.absorb_bytes(&bad).is_err());
        prop_assert!(sum.absorb_bytes(&good[..place.index(good.len())]).is_err());
        sum.absorb_bytes(&good).unwrap();
        prop_assert_eq!(integers(&plan, sample, sum), alone(&plan, &some_records(3)));
    }
}

#[test]
fn a_partial_sum_is_added_once_whatever_it_is_packed_in() {
    let plan = every_group(1.0);
    let (sample, mut sum) = begin(&plan);
    let tag = sample.tag(&plan).to_bytes();
    let twice = bytes(&plan, &tag, &some_records(2));
    let packed = |inside: &[u8]| {
        let mut part = part(&plan, &tag, &some_records(1));
        part.absorb_bytes(inside).unwrap();
        part
    };
    sum.absorb_bytes(&twice).unwrap();
    assert_eq!(sum.absorb_bytes(&twice).err(), Some(SumError::Duplicate));
    assert_eq!(sum.absorb(packed(&twice)).err(), Some(SumError::Duplicate));
    let again = packed(&twice).into_bytes().unwrap();
    assert_eq!(sum.absorb_bytes(again.expose()).err(), Some(SumError::Duplicate));
    // Two sums of the same records are different partial sums; their number is checked at the release.
    sum.absorb_bytes(&bytes(&plan, &tag, &some_records(2))).unwrap();
    // In a reduction: the same certificate twice.
    let leaving = part(&plan, &tag, &some_records(2)).leave().unwrap();
    let doubled: Vec<u64> = values(&leaving).iter().map(|value| value.wrapping_mul(2)).collect();
    let mut incoming = sum.receive();
    incoming.add_block(&doubled).unwrap();
    let certificate = leaving.certificate();
    let refused = incoming.accept(&[certificate.expose(), certificate.expose()]).err();
    assert_eq!(refused, Some(SumError::Duplicate));
}

#[test]
fn a_share_that_was_added_up_twice_is_not_released() {
    let plan = every_group(1.0);
    let records = some_records(9);
    let released = |shares: &[&[TestRecord]], in_blocks: bool| {
        // All records are in the sample.
        let sample = insecure_sample_of(&plan, 9);
        let mut sum = sample.begin(&plan);
        let tag = sample.tag(&plan).to_bytes();
        sum.add_noise(seeded_noise(&plan, 5).unwrap()).unwrap();
        if in_blocks {
            let parts = shares.iter().map(|share| part(&plan, &tag, share).leave().unwrap());
            let parts: Vec<_> = parts.collect();
            let mut incoming = sum.receive();
            incoming.add_block(&reduce(&parts)).unwrap();
            let certificate = |part: &OutgoingSum| part.certificate().expose().to_vec();
            sum = incoming.accept(&parts.iter().map(certificate).collect::<Vec<_>>()).unwrap();
        } else {
            // Each is a partial sum with a unique number of its own.
            shares.iter().for_each(|s| sum.absorb_bytes(&bytes(&plan, &tag, s)).unwrap());
        }
        sum.release_noisy(sample).map(drop).err()
    };
    for in_blocks in [false, true] {
        let (first, second) = records.split_at(4);
        assert_eq!(released(&[first, second], in_blocks), None);
        assert_eq!(released(&[first], in_blocks), None);
        let twice = released(&[first, second, first], in_blocks);
        assert_eq!(twice, Some(ReleaseError::TooManyRecords));
        let one_more = released(&[first, second, &records[..1]], in_blocks);
        assert_eq!(one_more, Some(ReleaseError::TooManyRecords));
    }
}

#[test]
fn partial_sums_of_other_rounds_and_plans_are_refused() {
    let (plan, other) = (every_group(1.0), every_group(1.0 + 1e-15));
    let ((sample, mut sum), (elsewhere, _)) = (begin(&plan), begin(&plan));
    let tag = sample.tag(&plan);
    assert_ne!(tag, elsewhere.tag(&plan));
    assert_ne!(tag, sample.tag(&other));
    // Another process whose plan differs cannot begin.
    assert_eq!(PartialSum::begin(&other, &tag, |_| None).err(), Some(SumError::Foreign));
    let foreign = bytes(&plan, &elsewhere.tag(&plan).to_bytes(), &some_records(2));
    assert_eq!(sum.absorb_bytes(&foreign).err(), Some(SumError::Foreign));
    let foreign = bytes(&other, &sample.tag(&other).to_bytes(), &some_records(2));
    assert_eq!(sum.absorb_bytes(&foreign).err(), Some(SumError::Foreign));
    // The permit alone is not enough: another process counts its permits from the same number.
    let mut same_permit = sample.tag(&plan).to_bytes();
    same_permit[8] ^= 1;
    let foreign = bytes(&plan, &same_permit, &some_records(2));
    assert_eq!(sum.absorb_bytes(&foreign).err(), Some(SumError::Foreign));
    assert_eq!(integers(&plan, sample, sum), alone(&plan, &[]));
}

/// Changes what a reduction returned, and the certificates that came with it.
type Spoil<'a> = &'a dyn Fn(&mut Vec<u64>, &mut Vec<Vec<u8>>);

#[test]
fn a_reduction_that_lost_altered_or_doubled_something_is_refused() {
    let plan = every_group(1.0);
    let refused = |spoil: Spoil<'_>| {
        let (sample, sum) = begin(&plan);
        let tag = sample.tag(&plan).to_bytes();
        let records = some_records(6);
        let parts = [&records[..3], &records[3..]].map(|r| part(&plan, &tag, r).leave().unwrap());
        let mut values = reduce(&parts);
        let mut certificates = parts.map(|part| part.certificate().expose().to_vec()).to_vec();
        spoil(&mut values, &mut certificates);
        let mut incoming = sum.receive();
        let added = incoming.add_block(&values);
        added.and_then(|()| incoming.accept(&certificates).map(drop)).err()
    };
    assert_eq!(refused(&|_, _| ()), None);
    assert_eq!(refused(&|values, _| values[4] ^= 1 << 63), Some(SumError::Altered));
    assert_eq!(refused(&|values, _| values.swap(0, 1)), Some(SumError::Altered));
    assert_eq!(refused(&|_, certificates| drop(certificates.pop())), Some(SumError::Altered));
    let short = refused(&|values, _| values.truncate(3));
    assert!(matches!(short, Some(SumError::Unreadable(_))), "{short:?}");
    let long = refused(&|values, _| values.push(0));
    assert!(matches!(long, Some(SumError::Unreadable(_))), "{long:?}");
    let none = refused(&|values, certificates| {
        values.fill(0);
        certificates.clear();
        values.pop();
    });
    assert!(matches!(none, Some(SumError::Unreadable(_))), "{none:?}");
    let behind = refused(&|_, certificates| certificates[0].push(0));
    assert!(matches!(behind, Some(SumError::Unreadable(_))), "{behind:?}");
}

#[test]
fn a_sum_larger_than_its_certified_records_is_refused_in_every_group() {
    let plan = every_group(1.0);
    let groups: Vec<String> = plan.group_names().map(str::to_owned).collect();
    let starts = [0, 7, 13, 14, 15, 16];
    for (group, start) in groups.iter().zip(starts) {
        let s_int = u64::from(plan.grid(group).unwrap().s_int());
        for (value, fits) in [(s_int, true), (s_int + 1, false), (s_int.wrapping_neg(), true)] {
            let (sample, mut sum) = begin(&plan);
            let tag = sample.tag(&plan).to_bytes();
            // One record, whose integers are exchanged for others with the same checksum.
            let record = TestRecord(vec![0.5; 14], 1.0);
            let honest = part(&plan, &tag, &[record]).leave().unwrap();
            let mut forged = vec![0u64; values(&honest).len()];
            forged[start] = value;
            let bytes = insecure_bytes(&honest, &forged);
            match fits {
                true => sum.absorb_bytes(&bytes).unwrap(),
                false => {
                    let refused = sum.absorb_bytes(&bytes).err();
                    assert_eq!(refused, Some(SumError::Uncertified(group.clone())));
                }
            }
        }
    }
}

/// The certificate of a sum with other integers: its checksum and its hash are computed again.
fn insecure_bytes(sum: &OutgoingSum, values: &[u64]) -> Vec<u8> {
    use sha2::{Digest, Sha256};
    let mut certificate = sum.certificate().expose().to_vec();
    let end = certificate.len() - 32;
    // Checksum, number of parts, one part of 16 bytes, hash.
    let place = end - 16 - 8 - 8;
    let weighted = values.iter().zip((1u64..).step_by(2));
    let checksum =
        weighted.fold(0u64, |sum, (value, odd)| sum.wrapping_add(odd.wrapping_mul(*value)));
    certificate[place..place + 8].copy_from_slice(&checksum.to_le_bytes());
    let hash = Sha256::digest(&certificate[..end]);
    certificate[end..].copy_from_slice(&hash);
    certificate.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    certificate
}

#[test]
fn bytes_of_another_version_are_refused() {
    let plan = every_group(1.0);
    let (sample, mut sum) = begin(&plan);
    let mut later = bytes(&plan, &sample.tag(&plan).to_bytes(), &[]);
    later[7] = 2;
    let refused = sum.absorb_bytes(&later).err();
    assert!(matches!(refused, Some(SumError::Unreadable(_))), "{refused:?}");
    assert!(SampleTag::from_bytes(&[0; 55]).is_err() && SampleTag::from_bytes(&[0; 57]).is_err());
}

#[test]
fn a_fingerprint_is_equal_exactly_where_sums_may_be_added() {
    let base = || Group::new("g", ["a", "b"], clip(1.0));
    let with = |groups: Vec<Group>| plan(&[("a", 2), ("b", 3)], groups);
    let quantile = |target: f64, floor: f64| {
        Group::quantile("q", Quantile::of_norm("g", target, count(4.0), clip(floor)).unwrap())
    };
    let plans = [
        with(vec![base()]),
        with(vec![Group::new("h", ["a", "b"], clip(1.0))]),
        with(vec![Group::new("g", ["a", "b"], clip(2.0))]),
        with(vec![base().normalised()]),
        with(vec![base().weighted(weight(1.0))]),
        with(vec![base().weighted(weight(2.0))]),
        with(vec![base().average(count(2.0))]),
        with(vec![base().average(count(3.0))]),
        with(vec![base().noise(noise(3.0))]),
        with(vec![Group::joint("g", [("a", alpha(2.0)), ("b", alpha(1.0))], clip(1.0))]),
        with(vec![Group::new("g", ["a"], clip(1.0)), Group::new("b", ["b"], clip(1.0))]),
        with(vec![base(), Group::weight("n", weight(1.0))]),
        with(vec![base(), Group::weight("n", weight(2.0))]),
        with(vec![base().average_over("n", count(1.0)), Group::weight("n", weight(1.0))]),
        with(vec![base(), quantile(0.5, 0.1)]),
        with(vec![base(), quantile(0.25, 0.1)]),
        with(vec![base(), quantile(0.5, 0.2)]),
        plan(&[("a", 3), ("b", 2)], vec![base()]),
        plan(&[("b", 3), ("a", 2)], vec![base()]),
    ];
    for (i, one) in plans.iter().enumerate() {
        for (j, two) in plans.iter().enumerate() {
            assert_eq!(one.fingerprint() == two.fingerprint(), i == j, "plans {i} and {j}");
        }
    }
    // An adapted clip norm is another plan.
    let mut adapted = plans[14].clone();
    let (sample, mut sum) = begin(&adapted);
    sum.add(&[&[0.0; 2], &[0.0; 3]]).unwrap();
    let released = sum.release(sample, no_noise(&adapted)).unwrap();
    adapted.adapt(&released).unwrap();
    assert_ne!(adapted.fingerprint(), plans[14].fingerprint());
}
