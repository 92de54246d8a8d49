//! Valid inputs at the ends of their ranges: all are answered, in bounded work, and none below the truth.

use std::num::NonZeroU64;

use veilgrad_accounting::{
    Accountant, Composition, PrivacyTarget, Rdp, RiskTarget, Tightest, Unsupported, advantage, rdp,
    true_positive_rate, work,
};
use veilgrad_events::{
    Adjacency, Delta, Epsilon, FixedBatch, Folded, NoiseMultiplier, SampleRate, Sampling,
};

const RATES: [f64; 4] = [1e-12, 1e-9, 0.1, 0.999_999];
const NOISES: [f64; 5] = [1e-308, 1e-17, 1.0, 1e6, 1e308];
const ROUNDS: [u64; 4] = [1, 10, 1000, 1 << 63];
const EPSILONS: [f64; 6] = [1e-300, 1e-6, 0.1, 10.0, 1000.0, 1e300];

/// What an answer may cost, in units of about ten nanoseconds: its allowance, and what Rényi's bound takes beside it.
const MOST_WORK: u64 = 45_000_000;
/// The same for a search, half of one for random allocation, and for one with a budget that nobody trains with.
const MOST_SEARCH: u64 = 190_000_000;
const MOST_UNUSUAL_SEARCH: u64 = 150_000_000;

/// What `answer` returns, after it took not more than so much work.
fn within<T>(most: u64, what: &str, answer: impl FnOnce() -> T) -> T {
    let before = work::spent();
    let answer = answer();
    let spent = work::spent() - before;
    assert!(spent <= most, "{what}: {spent} units of work");
    answer
}

fn delta(value: f64) -> Delta {
    Delta::new(value).unwrap()
}

fn epsilon(value: f64) -> Epsilon {
    Epsilon::new(value).unwrap()
}

fn rounds(q: f64, z: f64, count: u64) -> Composition {
    let (rate, noise) = (SampleRate::new(q).unwrap(), NoiseMultiplier::new(z).unwrap());
    Composition::poisson(rate, noise, count, Adjacency::AddRemove).unwrap()
}

#[test]
fn every_delta_is_answered_between_nothing_and_everything() {
    let mut answered = 0;
    for q in RATES {
        for z in NOISES {
            for count in ROUNDS {
                let composition = rounds(q, z, count);
                for at in EPSILONS {
                    let what = format!("q {q} z {z} T {count} epsilon {at}");
                    let found = within(MOST_WORK, &what, || {
                        Tightest.delta(&composition, epsilon(at)).delta
                    });
                    assert!(found > 0.0 && found <= 1.0, "{what}: {found}");
                    answered += 1;
                }
            }
        }
    }
    assert_eq!(answered, 480);
}

#[test]
fn every_epsilon_is_answered_or_refused_with_a_reason() {
    let (mut answered, mut refused) = (0, 0);
    for q in RATES {
        for z in NOISES {
            for count in ROUNDS {
                let composition = rounds(q, z, count);
                for at in [1e-300, 1e-9, 0.5, 0.9999] {
                    let what = format!("q {q} z {z} T {count} delta {at}");
                    match within(MOST_WORK, &what, || Tightest.epsilon(&composition, delta(at))) {
                        Ok(found) => {
                            let lower = found.epsilon_lower.unwrap_or(0.0);
                            assert!(found.epsilon >= lower && lower >= 0.0, "{what}: {found:?}");
                            answered += 1;
                        }
                        Err(reason) => {
                            assert!(reason.to_string().len() > 20, "{reason}");
                            refused += 1;
                        }
                    }
                }
            }
        }
    }
    assert_eq!(answered + refused, 320);
    assert!(answered > 200, "{answered}");
}

/// Without noise whoever is sampled is seen, so delta is the chance to be sampled at every epsilon.
#[test]
fn with_hardly_any_noise_delta_is_the_chance_to_be_sampled() {
    for z in [1e-308, 1e-100, 1e-17, 1e-3] {
        for (q, count) in [(0.01f64, 3u64), (1e-9, 1000), (0.5, 2)] {
            let composition = rounds(q, z, count);
            let exact = -libm::expm1(count as f64 * libm::log1p(-q));
            for at in [0.0, 0.1, 10.0] {
                let found = Tightest.delta(&composition, epsilon(at)).delta;
                let what = format!("q {q} z {z} T {count} epsilon {at}: {found} {exact}");
                assert!(found >= exact * (1.0 - 1e-14) && found <= exact * (1.0 + 1e-9), "{what}");
            }
            assert!((advantage(&composition) / exact - 1.0).abs() < 1e-9);
            // More than that needs no epsilon, and less than that nothing finite that is small.
            let more = Tightest.epsilon(&composition, delta(exact * 1.01)).unwrap();
            assert_eq!(more.epsilon, 0.0);
            let less = Tightest.epsilon(&composition, delta(exact * 0.99));
            assert!(less.is_err() || less.unwrap().epsilon > 1e4);
        }
    }
    // Rounds with noise beside them cost what they cost alone, at the delta that is left.
    let (tiny, usual) = (rounds(1e-9, 1e-17, 10), rounds(0.01, 1.0, 1000));
    let alone = Tightest.epsilon(&usual, delta(1e-5 - 1e-8)).unwrap().epsilon;
    let both = Composition::join(&[tiny, usual]);
    let found = Tightest.epsilon(&both, delta(1e-5)).unwrap().epsilon;
    assert!((found / alone - 1.0).abs() < 1e-6, "{found} {alone}");
}

#[test]
fn every_search_ends_and_keeps_its_budget() {
    let mut found = 0;
    for (q, z, count) in [(0.01, 1e6, 1000), (0.5, 0.3, 1 << 53)] {
        for at in [2.0, 1000.0] {
            for d in [1e-30, 1e-5] {
                let target =
                    PrivacyTarget { epsilon: epsilon(at), delta: delta(d), accountant: &Tightest };
                let cost = |composition: &Composition| {
                    Tightest.epsilon(composition, delta(d)).unwrap().epsilon
                };
                let what = format!("q {q} z {z} T {count} epsilon {at} delta {d}");
                if let Ok(steps) = target.rounds(|n| Ok(rounds(q, z, n))) {
                    assert!(steps == 0 || cost(&rounds(q, z, steps)) <= at, "{what}: {steps}");
                    found += 1;
                }
                if let Ok(noise) = target.noise_multiplier(|z| Ok(rounds(q, z.get(), count))) {
                    assert!(cost(&rounds(q, noise.get(), count)) <= at, "{what}: {noise:?}");
                    found += 1;
                }
                if let Ok(rate) = target.rate(|q| Ok(rounds(q.get(), z, count))) {
                    assert!(cost(&rounds(rate.get(), z, count)) <= at, "{what}: {rate:?}");
                    found += 1;
                }
            }
        }
    }
    assert!(found >= 16, "{found}");
}

/// A budget, what is searched for, and the parameters of the rounds that are not.
struct Search {
    sampling: fn(f64) -> Sampling,
    adjacency: Adjacency,
    known: (f64, f64, u64),
    epsilon: f64,
    delta: f64,
}

impl Search {
    fn rounds(&self, q: f64, z: f64, count: u64) -> Result<Composition, Unsupported> {
        let sampling = (self.sampling)(q);
        let noise_multiplier = NoiseMultiplier::new(z).unwrap();
        Composition::of([Folded { count, sampling, noise_multiplier }], self.adjacency)
    }

    /// Searches for the noise and the rate, and accounts for what was found.
    fn keeps_its_budget(&self, most: u64) {
        let Self { known: (q, z, count), epsilon: budget, .. } = *self;
        let (epsilon, delta) = (epsilon(budget), delta(self.delta));
        let target = PrivacyTarget { epsilon, delta, accountant: &Tightest };
        let what = format!("q {q} z {z} T {count} epsilon {budget:e} delta {delta:?}");
        let keeps = |found: Result<Composition, Unsupported>| {
            let again = Tightest.epsilon(&found.unwrap(), delta).unwrap();
            assert!(again.epsilon <= budget, "{what}: {again:?}");
            assert!(again.epsilon_lower.unwrap_or(0.0) <= again.epsilon, "{what}: {again:?}");
        };
        let noise = || target.noise_multiplier(|noise| self.rounds(q, noise.get(), count));
        if let Ok(noise) = within(most, &what, noise) {
            keeps(self.rounds(q, noise.get(), count));
        }
        let rate = || target.rate(|rate| self.rounds(rate.get(), z, count));
        if let Ok(rate) = within(most, &what, rate) {
            keeps(self.rounds(rate.get(), z, count));
        }
        let steps = || target.rounds(|steps| self.rounds(q, z, steps));
        if let Ok(steps) = within(most, &what, steps)
            && steps > 0
        {
            keeps(self.rounds(q, z, steps));
        }
    }
}

fn poisson(q: f64) -> Sampling {
    Sampling::Poisson { rate: SampleRate::new(q).unwrap() }
}

fn fixed(q: f64) -> Sampling {
    let records = 1_000_000_000;
    Sampling::Fixed(FixedBatch::new(records, ((q * records as f64) as u64).max(1)).unwrap())
}

/// Budgets whose searches took minutes before work was counted.
#[test]
fn searches_take_bounded_work_and_keep_their_budgets() {
    for (sampling, adjacency, known, epsilon, delta) in [
        (poisson as fn(f64) -> Sampling, Adjacency::ZeroOut, (0.01, 0.1, 10), 1e-300, 1e-300),
        (poisson, Adjacency::AddRemove, (1e-12, 1.0, 1_000_000), 1e-6, 1e-9),
        (fixed, Adjacency::AddRemove, (1e-3, 1.0, 1_000_000), 0.1, 0.9999),
        (poisson, Adjacency::AddRemove, (0.01, 1.0, 1000), 1000.0, 1e-5),
        (poisson, Adjacency::AddRemove, (1e-7, 1.0, 1000), 0.1, 0.1),
        (fixed, Adjacency::ReplaceOne, (3e-5, 0.1, 972), 5e-4, 2e-5),
        (poisson, Adjacency::ReplaceOne, (1e-9, 1000.0, 10_000), 1e-8, 1e-30),
    ] {
        Search { sampling, adjacency, known, epsilon, delta }.keeps_its_budget(MOST_UNUSUAL_SEARCH);
    }
    for (sampling, adjacency, known, epsilon, delta) in [
        (poisson as fn(f64) -> Sampling, Adjacency::ZeroOut, (1e-6, 1.0, 2), 30.0, 1e-9),
        (fixed, Adjacency::ZeroOut, (1e-3, 0.1, 40), 0.25, 1e-9),
    ] {
        Search { sampling, adjacency, known, epsilon, delta }.keeps_its_budget(MOST_SEARCH);
    }
}

fn allocation(t: u64, z: f64, count: u64) -> Folded {
    let sampling = Sampling::Allocation { rounds_per_epoch: NonZeroU64::new(t).unwrap() };
    Folded { count, sampling, noise_multiplier: NoiseMultiplier::new(z).unwrap() }
}

/// The Rényi bound knows no amplification by random allocation, and here it is above what other rounds need lattices for.
#[test]
fn random_allocation_is_amplified_however_large_its_epsilon() {
    let rounds = Composition::of([allocation(1000, 0.5, 5_000_000)], Adjacency::AddRemove).unwrap();
    let renyi = Rdp.epsilon(&rounds, delta(1e-5)).unwrap().epsilon;
    let found = Tightest.epsilon(&rounds, delta(1e-5)).unwrap().epsilon;
    assert!(renyi > 1e4 && found < 0.1 * renyi, "{found}, and {renyi} by Rényi divergences");
}

/// What an answer about random allocation may cost: both directions need a lattice, and so does a replaced record.
const MOST_ALLOCATION: u64 = 120_000_000;

/// No answer about up to 100 epochs of up to 1e5 rounds takes longer than about two seconds: work is counted in units of about
/// ten nanoseconds. Prints the work and time of every answer with `--nocapture`.
#[allow(clippy::print_stdout)]
#[test]
fn answers_about_random_allocation_take_bounded_work() {
    let report = |what: &str, most: u64, answer: &mut dyn FnMut() -> f64| {
        let (before, begin) = (work::spent(), std::time::Instant::now());
        let found = within(most, what, answer);
        let (units, seconds) = (work::spent() - before, begin.elapsed().as_secs_f64());
        println!("{what}: {found}, {units} units, {seconds:.2} s");
        found
    };
    let delta = delta(1e-5);
    for adjacency in [Adjacency::AddRemove, Adjacency::ReplaceOne] {
        for (t, e) in [(2, 100), (1000, 1), (100_000, 100)] {
            let with = |z: f64| Composition::of([allocation(t, z, t * e)], adjacency);
            let typical = with(1.0 + 0.2 * (e as f64 / t as f64).sqrt()).unwrap();
            let what = |question: &str| format!("{question}, {adjacency}, t {t}, E {e}");
            let mut question = || Tightest.epsilon(&typical, delta).unwrap().epsilon;
            let found = report(&what("epsilon"), MOST_ALLOCATION, &mut question);
            assert!(found > 0.0);
            let mut question = || Tightest.delta(&typical, epsilon(1.0)).delta;
            report(&what("delta"), MOST_ALLOCATION, &mut question);
            let mut question = || true_positive_rate(&typical, 0.01);
            report(&what("true positive rate"), MOST_ALLOCATION, &mut question);
            let target = PrivacyTarget { epsilon: epsilon(2.0), delta, accountant: &Tightest };
            let mut question = || target.noise_multiplier(|z| with(z.get())).unwrap().get();
            let noise = report(&what("noise"), 2 * MOST_SEARCH, &mut question);
            let found = Tightest.epsilon(&with(noise).unwrap(), delta).unwrap().epsilon;
            assert!(found <= 2.0 && found > 1.9, "{}: {found}", what("noise"));
            let risk = RiskTarget::true_positive_rate(0.1, 0.01).unwrap();
            let mut question = || risk.noise_multiplier(|z| with(z.get())).unwrap().get();
            let noise = report(&what("noise for a risk"), 2 * MOST_SEARCH, &mut question);
            assert!(risk.risk(&with(noise).unwrap()) <= risk.limit());
        }
    }
}

/// As many different epochs as a run may have.
#[allow(clippy::print_stdout)]
#[test]
fn answers_about_epochs_of_many_different_noises_take_bounded_work() {
    let delta = delta(1e-5);
    // Rounds per epoch, how many more each epoch has than the one before, and epochs.
    for (t, longer, e) in [(20, 0, 1000), (100_000, 0, 100), (10, 1, 1000)] {
        let with = |z: f64| {
            let epochs = (0..e).map(|i| {
                let t = t + i * longer;
                allocation(t, z * (1.0 + i as f64 / e as f64), t)
            });
            Composition::of(epochs, Adjacency::AddRemove)
        };
        let what = format!("t {t} + {longer}, E {e}");
        let begin = std::time::Instant::now();
        let typical = with(3.0).unwrap();
        within(MOST_ALLOCATION, &what, || Tightest.epsilon(&typical, delta).unwrap());
        println!("epsilon, {what}: {:.2} s", begin.elapsed().as_secs_f64());
        within(MOST_ALLOCATION, &what, || Tightest.delta(&typical, epsilon(0.5)));
        within(MOST_ALLOCATION, &what, || advantage(&typical));
        let begin = std::time::Instant::now();
        let target = PrivacyTarget { epsilon: epsilon(2.0), delta, accountant: &Tightest };
        let noise = || target.noise_multiplier(|z| with(z.get())).unwrap();
        let noise = within(2 * MOST_SEARCH, &what, noise);
        println!("noise {noise:?}, {what}: {:.2} s", begin.elapsed().as_secs_f64());
        assert!(Tightest.epsilon(&with(noise.get()).unwrap(), delta).unwrap().epsilon <= 2.0);
    }
}

/// Where there is no work left for transforms, answers are Rényi's: not below what transforms certify.
#[test]
fn attacks_on_rare_and_noisy_rounds_take_bounded_work() {
    let (rate, noise) = (SampleRate::new(1e-9).unwrap(), NoiseMultiplier::new(1000.0).unwrap());
    let rounds = Composition::poisson(rate, noise, 10_000, Adjacency::ReplaceOne).unwrap();
    let advantage = within(MOST_WORK, "advantage", || advantage(&rounds));
    let rate = within(MOST_WORK, "true positive rate", || true_positive_rate(&rounds, 0.01));
    // The total variation distance of one round, which is at most the advantage of all: q (2 Phi(1/z) - 1).
    let one = 1e-9 * (1.0 - libm::erfc(1e-3 * std::f64::consts::FRAC_1_SQRT_2));
    assert!((one..=1e4 * one * (1.0 + 1e-9)).contains(&advantage), "{advantage} {one}");
    assert!((0.01..=0.01 + advantage + 1e-15).contains(&rate), "{rate} {advantage}");
}

#[test]
fn attacks_are_bounded_whatever_the_rounds() {
    for q in RATES {
        for z in NOISES {
            for count in ROUNDS {
                let composition = rounds(q, z, count);
                let what = format!("q {q} z {z} T {count}");
                let advantage = within(MOST_WORK, &what, || advantage(&composition));
                let found = within(MOST_WORK, &what, || true_positive_rate(&composition, 0.01));
                let what = format!("{what}: {advantage} {found}");
                assert!(advantage > 0.0 && advantage <= 1.0, "{what}");
                assert!((0.01..=1.0).contains(&found), "{what}");
                assert!(found <= 0.01 + advantage + 1e-12, "{what}");
                assert!(advantage <= rdp::total_variation(&composition), "{what}");
            }
        }
    }
}

/// Total variation of a Gaussian is known.
#[test]
fn total_variation_is_never_below_that_of_a_gaussian() {
    for z in [0.1, 0.5, 1.0, 10.0, 1e8] {
        let exact = 1.0 - libm::erfc(0.5 / z * std::f64::consts::FRAC_1_SQRT_2);
        let found = rdp::total_variation(&rounds(1.0, z, 1));
        assert!(found >= exact && found <= 1.5 * exact + 1e-9, "{z}: {found} {exact}");
    }
    let found = Rdp.delta(&rounds(1.0, 1e3, 1), epsilon(0.0)).delta;
    assert!((3.9e-4..6e-4).contains(&found), "{found}");
}
