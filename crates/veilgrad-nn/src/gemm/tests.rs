//! Every kernel computes the same chains, for any shape and any number of chains.

use proptest::prelude::*;

use super::*;
use crate::test::SplitMix64;

/// The chains of the module's guarantee, element by element.
fn reference(
    (m, k, n): (usize, usize, usize),
    a: impl Fn(usize, usize) -> f32,
    b: &[f32],
    start: impl Fn(usize, usize) -> f32,
) -> Vec<u32> {
    let element = |i: usize, j: usize| {
        let chain = |first: usize, start: f32| {
            let part = first..(first + 128).min(k);
            part.fold(start, |sum, p| a(i, p).mul_add(b[p * n + j], sum))
        };
        let others = (0..k).step_by(128).skip(1);
        others.fold(chain(0, start(i, j)), |sum, first| sum + chain(first, 0.0)).to_bits()
    };
    (0..m * n).map(|index| element(index / n, index % n)).collect()
}

proptest! {
    #[test]
    fn every_element_is_the_sum_of_chains_of_its_own_row_and_column(
        m in prop_oneof![1usize..15, 16usize..40], k in prop_oneof![1usize..40, 127usize..130, 250usize..600],
        n in prop_oneof![1usize..150, Just(64), Just(128)], seed: u64,
    ) {
        let mut random = SplitMix64(seed);
        let mut numbers = |count| (0..count).map(|_| random.normal()).collect::<Vec<f32>>();
        let (a, b, bias, old) = (numbers(m * k), numbers(k * n), numbers(n), numbers(m * n));
        let bits = |c: &[f32]| c.iter().map(|c| c.to_bits()).collect::<Vec<u32>>();
        let (mut panels, mut spare, mut c) = (Panels::default(), Panels::default(), old.clone());
        panels.pack(&b, k, n);
        multiply(m, Left::Rows(&a), &panels, Start::Bias(&bias), &mut c);
        prop_assert_eq!(bits(&c), reference((m, k, n), |i, p| a[i * k + p], &b, |_, j| bias[j]));
        multiply_plain((m, k, n), Left::Rows(&a), &b, Start::Zero, &mut c, &mut spare);
        prop_assert_eq!(bits(&c), reference((m, k, n), |i, p| a[i * k + p], &b, |_, _| 0.0));
        c.copy_from_slice(&old);
        multiply_plain((m, k, n), Left::Columns(&a), &b, Start::Existing, &mut c, &mut spare);
        let expected = reference((m, k, n), |i, p| a[p * m + i], &b, |i, j| old[i * n + j]);
        prop_assert_eq!(bits(&c), expected);
        let mut transposed = vec![0.0; n * k];
        for (index, value) in b.iter().enumerate() {
            transposed[index % n * k + index / n] = *value;
        }
        panels.pack_transposed(&transposed, k, n);
        multiply(m, Left::Rows(&a), &panels, Start::Zero, &mut c);
        prop_assert_eq!(bits(&c), reference((m, k, n), |i, p| a[i * k + p], &b, |_, _| 0.0));
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn the_kernels_for_avx2_and_for_any_machine_give_the_same_bits(
        m in 1usize..15, k in 1usize..300, n in 1usize..40, seed: u64,
    ) {
        let mut random = SplitMix64(seed);
        let mut numbers = |count| (0..count).map(|_| random.normal()).collect::<Vec<f32>>();
        let (a, b) = (numbers(m * k), numbers(k * n));
        let mut panels = Panels::default();
        panels.pack_with(false, &b, k, n);
        let (shape, start) = (Shape { m, n, k }, Start::Zero);
        for a in [Left::Rows(&a), Left::Columns(&a)] {
            let (mut best, mut portable, mut avx2) = (vec![0.0; m * n], vec![0.0; m * n], vec![0.0; m * n]);
            multiply(m, a, &panels, start, &mut best);
            let (right, c) = (panels.right(), &mut portable);
            Blocks { kernel: Portable, shape, a, b: right, start, c, column: 0 }.run();
            prop_assert_eq!(&best, &portable);
            if let Some(v3) = pulp::x86::V3::try_new() {
                let (right, c) = (panels.right(), &mut avx2);
                Blocks { kernel: v3, shape, a, b: right, start, c, column: 0 }.run();
                prop_assert_eq!(&best, &avx2);
            }
        }
    }

    #[test]
    fn patches_are_rows_and_columns_like_any_other(
        places in 1usize..20, lines in 1usize..4, run in 1usize..20, n in 1usize..100, seed: u64,
    ) {
        let mut random = SplitMix64(seed);
        let image: Vec<f32> = (0..400).map(|_| random.normal()).collect();
        let corners: Vec<usize> = (0..places).map(|_| random.next() as usize % 100).collect();
        let lines: Vec<usize> = (0..lines).map(|_| random.next() as usize % 250).collect();
        let patches = Patches { image: &image, corners: &corners, lines: &lines, run };
        let length = lines.len() * run;
        let number = |place: usize, p: usize| image[corners[place] + lines[p / run] + p % run];
        let all: Vec<f32> = (0..places * length).map(|i| number(i / length, i % length)).collect();
        let (mut found, mut expected) = (vec![0.0; places * n], vec![0.0; places * n]);
        let mut spare = Panels::default();
        let b: Vec<f32> = (0..length * n).map(|_| random.normal()).collect();
        let shape = (places, length, n);
        multiply_plain(shape, Left::Patches(patches), &b, Start::Zero, &mut found, &mut spare);
        multiply_plain(shape, Left::Rows(&all), &b, Start::Zero, &mut expected, &mut spare);
        prop_assert_eq!(found, expected);
        let (mut found, mut expected) = (vec![0.0; length * n], vec![0.0; length * n]);
        let b: Vec<f32> = (0..places * n).map(|_| random.normal()).collect();
        let shape = (length, places, n);
        multiply_plain(shape, Left::PatchColumns(patches), &b, Start::Zero, &mut found, &mut spare);
        multiply_plain(shape, Left::Columns(&all), &b, Start::Zero, &mut expected, &mut spare);
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn all_kernels_give_the_same_bits(m in 1usize..15, k in 1usize..40, n in 1usize..150, seed: u64) {
        let mut random = SplitMix64(seed);
        let mut numbers = |count| (0..count).map(|_| random.any()).collect::<Vec<f32>>();
        let (a, b) = (numbers(m * k), numbers(k * n));
        let (mut panels, mut wide) = <(Panels, Panels)>::default();
        panels.pack_with(false, &b, k, n);
        wide.pack_with(true, &b, k, n);
        let (shape, start) = (Shape { m, n, k }, Start::Zero);
        for a in [Left::Rows(&a), Left::Columns(&a)] {
            let mut slow = vec![0.0; m * n];
            let (b, c) = (panels.right(), &mut slow[..]);
            Blocks { kernel: Portable, shape, a, b, start, c, column: 0 }.run();
            for b in [panels.right(), wide.right()] {
                let mut all = vec![vec![0.0; m * n]; 3];
                let [portable, avx2, dispatched] = &mut all[..] else { unreachable!() };
                Blocks { kernel: Portable, shape, a, b, start, c: portable, column: 0 }.run();
                // With AVX-512 where the machine has it.
                multiply_blocks(shape, a, b, start, dispatched);
                #[cfg(target_arch = "x86_64")]
                match pulp::x86::V3::try_new() {
                    Some(kernel) => Blocks { kernel, shape, a, b, start, c: avx2, column: 0 }.run(),
                    None => avx2.copy_from_slice(&slow),
                }
                #[cfg(not(target_arch = "x86_64"))]
                avx2.copy_from_slice(&slow);
                for (fast, slow) in all.iter().flat_map(|fast| fast.iter().zip(&slow)) {
                    prop_assert!(fast.to_bits() == slow.to_bits() || (fast.is_nan() && slow.is_nan()));
                }
            }
        }
    }
}
