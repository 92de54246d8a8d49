//! Speed of exact Gaussian noise, compared with floating-point samplers, in one run.
//!
//! `benches/noise.sh` installs numpy into a virtual environment and runs this with it;
//! `cargo bench -p veilgrad-benches --bench noise [-- --quick]` runs it without.
#![allow(clippy::print_stdout, missing_docs)]

use std::hint::black_box;
use std::process::Command;

use rand_distr::{Distribution, StandardNormal};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::SeedableRng;
use veilgrad::events::IntegerGrid;
use veilgrad_benches::race;
use veilgrad_random::{Cipher, RoundKey, gaussian};

const SAMPLES: usize = 1 << 20;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let quick = std::env::args().any(|argument| argument == "--quick");
    let turns = if quick { 3 } else { 15 };
    let (mut exact, mut float) = (vec![0i64; SAMPLES], vec![0f64; SAMPLES]);
    let (mut exact_12, mut exact_two) = (exact.clone(), exact.clone());
    let keys = [RoundKey::from_os()?, RoundKey::from_os_with(Cipher::ChaCha12)?];
    let grid = IntegerGrid::new(IntegerGrid::MAX_SENSITIVITY, 27)?;
    let mut insecure = Xoshiro256PlusPlus::seed_from_u64(1);
    let add = |key: &RoundKey, sums: &mut [i64], threads| {
        gaussian::add(key, 0, grid, black_box(sums), threads).expect("this process drew the key");
    };
    let seconds = race(
        turns,
        1,
        &mut [
            &mut || add(&keys[0], &mut exact, 1),
            &mut || add(&keys[1], &mut exact_12, 1),
            &mut || {
                let values = black_box(&mut float);
                values.iter_mut().for_each(|value| *value = StandardNormal.sample(&mut insecure));
            },
            &mut || add(&keys[0], &mut exact_two, 2),
        ],
    );
    let ns: Vec<f64> = seconds.iter().map(|seconds| seconds * 1e9 / SAMPLES as f64).collect();
    let [chacha20, chacha12, ziggurat, two_threads] = ns[..] else { return Err("four".into()) };
    let numpy = numpy(turns)?;

    println!("AVX-512 kernel of the cipher: {}", avx512());
    println!("ns per sample, one thread, best of {turns} turns of {SAMPLES} samples");
    println!("{:<44}{:>8}", "exact + ChaCha20", format!("{chacha20:.2}"));
    println!("{:<44}{:>8}", "exact + ChaCha12", format!("{chacha12:.2}"));
    println!("{:<44}{:>8}", "exact + ChaCha20, two threads", format!("{two_threads:.2}"));
    println!("{:<44}{:>8}", "rand_distr + xoshiro256++ (insecure)", format!("{ziggurat:.2}"));
    println!("{:<44}{:>8.2}", "ratio to rand_distr (at most 2.5)", chacha20 / ziggurat);
    match numpy {
        Some(numpy) => {
            println!("{:<44}{:>8.2}", "numpy standard_normal (insecure)", numpy);
            println!("{:<44}{:>8.2}", "ratio to numpy (at most 0.45)", chacha20 / numpy);
        }
        None => println!("numpy: not measured; run benches/noise.sh"),
    }
    Ok(())
}

fn avx512() -> &'static str {
    #[cfg(target_arch = "x86_64")]
    let detected = is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512vl");
    #[cfg(not(target_arch = "x86_64"))]
    let detected = false;
    match (cfg!(chacha20_avx512), detected) {
        (true, true) => "used",
        (true, false) => "compiled in, not on this machine",
        (false, true) => "left out; RUSTFLAGS=\"--cfg chacha20_avx512\" compiles it in",
        (false, false) => "left out, not on this machine",
    }
}

/// Nanoseconds per sample of numpy, if VEILGRAD_PYTHON names a Python that has it.
fn numpy(turns: usize) -> Result<Option<f64>, Box<dyn std::error::Error>> {
    let Some(python) = std::env::var_os("VEILGRAD_PYTHON") else { return Ok(None) };
    let script = format!(
        "import numpy, time\n\
         random, values, best = numpy.random.default_rng(1), numpy.empty({SAMPLES}), 1e9\n\
         for _ in range({turns}):\n\
         \x20   start = time.perf_counter()\n\
         \x20   random.standard_normal(out=values)\n\
         \x20   best = min(best, time.perf_counter() - start)\n\
         print(best * 1e9 / {SAMPLES})"
    );
    let output = Command::new(python).arg("-c").arg(script).output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into());
    }
    Ok(Some(String::from_utf8(output.stdout)?.trim().parse()?))
}
