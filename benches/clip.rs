//! Speed of clip + quantise + certify + accumulate, compared with plain f32 norm + clip + axpy, in one run.
//!
//! `cargo bench -p veilgrad-benches --bench clip [-- --quick]`
//!
//! Both baselines do the same work per record: norm, factor, add. "plain" is compiled with the default
//! instruction set; "plain, AVX2" with the one that our kernel detects at run time. The ratio is against the
//! faster one, "plain, AVX2".
#![allow(clippy::print_stdout, missing_docs)]

use std::hint::black_box;

use veilgrad::prelude::*;
use veilgrad_benches::race;

const LANES: usize = 32;

#[inline(always)]
fn plain(x: &[f32], clip: f32, sum: &mut [f32]) {
    let mut lanes = [0f32; LANES];
    let (steps, rest) = x.as_chunks::<LANES>();
    for step in steps {
        for (lane, x) in lanes.iter_mut().zip(step) {
            *lane += x * x;
        }
    }
    let squared = lanes.iter().sum::<f32>() + rest.iter().map(|x| x * x).sum::<f32>();
    let factor = (clip / squared.sqrt()).min(1.0);
    for (sum, x) in sum.iter_mut().zip(x) {
        *sum += factor * x;
    }
}

struct Plain<'a> {
    x: &'a [f32],
    clip: f32,
    sum: &'a mut [f32],
}

impl pulp::NullaryFnOnce for Plain<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        plain(self.x, self.clip, self.sum);
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let quick = std::env::args().any(|argument| argument == "--quick");
    let (turns, elements) = if quick { (5, 4_000_000) } else { (15, 30_000_000) };
    #[cfg(target_arch = "x86_64")]
    let arch = pulp::x86::V3::try_new().map_or(pulp::Arch::Scalar, pulp::Arch::V3);
    #[cfg(not(target_arch = "x86_64"))]
    let arch = pulp::Arch::new();
    println!("ns per f32 element, best of {turns} alternating turns");
    println!(
        "{:>10}{:>10}{:>14}{:>10}{:>10}{:>14}",
        "d", "plain", "plain, AVX2", "ours", "ratio", "vs plain"
    );
    for d in [10_000usize, 100_000, 1_000_000, 10_000_000] {
        let structure = Structure::new([("x", d)])?;
        let groups = vec![Group::new("x", ["x"], ClipNorm::new(1.0)?)];
        let allocation = Allocation::Proportional(NoiseMultiplier::new(1.0)?);
        let plan = RoundPlan::new(structure, groups, allocation)?;
        let header = RunHeader::new(RecordUnit::Example, Adjacency::AddRemove);
        let mut run = Run::open(MemoryLedger::new(), header)?;
        let permit = run.reserve(&plan.round(&AllRecords)?, 1)?.next().ok_or("no permit")?;
        let mut exact = Sample::draw(permit, &mut AllRecords, 0)?.begin(&plan);
        let x: Vec<f32> = (0..d).map(|i| ((i * 7919) % 1000) as f32 / 500.0 - 1.0).collect();
        let (mut sum, mut sum_avx2) = (vec![0f32; d], vec![0f32; d]);
        let mut failed = false;
        let seconds = race(
            turns,
            (elements / d).max(2),
            &mut [
                &mut || plain(black_box(&x), 1.0, &mut sum),
                &mut || arch.dispatch(Plain { x: black_box(&x), clip: 1.0, sum: &mut sum_avx2 }),
                &mut || failed |= exact.add(&[black_box(&x)]).is_err(),
            ],
        );
        if failed {
            return Err("a record did not fit".into());
        }
        let ns: Vec<f64> = seconds.iter().map(|seconds| seconds * 1e9 / d as f64).collect();
        let [plain, avx2, ours] = ns[..] else { return Err("three candidates".into()) };
        println!(
            "{d:>10}{plain:>10.3}{avx2:>14.3}{ours:>10.3}{:>10.2}{:>14.2}",
            ours / avx2,
            ours / plain
        );
    }
    Ok(())
}
