//! The recursion of correlated noise, in 64-bit integers that provably hold it.

use std::collections::VecDeque;
use std::ops::Range;

use veilgrad_events::BandedStrategy;
use veilgrad_random::vectorised::vectorised;
use zeroize::Zeroizing;

/// The largest noise exponent: noise of 64 standard deviations is 2^55, which leaves room for the sum of the bands.
pub(crate) const MAX_EXPONENT: u8 = 49;
/// Noise beyond 2^6 = 64 standard deviations is refused; its probability is below 2^-2900 for up to 2^50 numbers.
const DEVIATION_BITS: u32 = 6;
/// Coordinates that are processed at once, so that their sums stay in the L1 cache.
const CHUNK: usize = 512;
/// Fewer coordinates than this are not worth a thread.
const LEAST_PER_THREAD: usize = 1 << 15;
/// The most products that are spent on the bound of a strategy's gain: about a second.
const MOST_PRODUCTS: u64 = 1 << 28;

/// The recursion for the coordinates of one group:
/// `e_t = floor((N_t - m_1 e_{t-1} - ... - m_{b-1} e_{t-b+1}) / 2^p)` over the integers, with `e = 0` before the first round.
///
/// # Guarantee
/// It computes these integers, or says that they are out of range. If every `|N|` is at most `2^(k + 6)`, none is out of range for
/// the number of rounds that it was made for. The past values are wiped when it is dropped.
pub(crate) struct Recursion {
    strategy: BandedStrategy,
    /// `|N| <= 2^noise_bits` and `|e| <= 2^value_bits` in range; then no sum exceeds 63 bits.
    noise_bits: u32,
    value_bits: u32,
    /// The values of up to `b - 1` earlier rounds, the latest first.
    past: VecDeque<Zeroizing<Vec<i64>>>,
}

impl Recursion {
    /// A recursion for noise of exponent `k`; `None` if its values may be out of range within `rounds` rounds.
    pub(crate) fn new(strategy: &BandedStrategy, k: u8, rounds: u64) -> Option<Self> {
        if k > MAX_EXPONENT {
            return None;
        }
        let noise_bits = u32::from(k) + DEVIATION_BITS;
        // At most 4096 entries of at most 2^16.
        let total: u64 = strategy.entries().iter().skip(1).map(|m| u64::from(*m)).sum();
        let room = i64::MAX.unsigned_abs() - (1 << noise_bits);
        // The largest power of two whose product with the sum of the entries fits.
        let value_bits = (room / total.max(1)).checked_ilog2()?;
        // Values are sums of `N - r`, where `0 <= r < 2^p` is what rounding drops, with the weights `d / 2^p`.
        let rounding = 1.0 + exp2(noise_bits) / exp2(strategy.precision().into());
        // Twice: more than the rounding errors of the gain.
        let largest = 2.0 * gain(strategy, rounds)? * rounding;
        let past = VecDeque::with_capacity(strategy.bands());
        (largest <= exp2(value_bits)).then_some(Self {
            strategy: strategy.clone(),
            noise_bits,
            value_bits,
            past,
        })
    }

    /// Replaces independent noise `N_t` by the values `e_t` of the next round. Returns false if a number is out of range; the
    /// values are then meaningless, and so are all later ones.
    #[must_use]
    pub(crate) fn advance(&mut self, values: &mut [i64], threads: usize) -> bool {
        if self.past.iter().any(|row| row.len() != values.len()) {
            return false;
        }
        let p = u32::from(self.strategy.precision());
        let entries = self.strategy.entries().iter().skip(1).copied();
        let rows: Vec<(u32, &[i64])> =
            entries.zip(self.past.iter().map(|row| row.as_slice())).collect();
        let threads = threads_for(values.len(), threads);
        let share = values.len().div_ceil(threads).next_multiple_of(CHUNK);
        let magnitudes = if threads == 1 {
            advance_part(values, &rows, p)
        } else {
            std::thread::scope(|scope| {
                let parts = values.chunks_mut(share).enumerate().map(|(part, values)| {
                    let (first, end) = (part * share, part * share + values.len());
                    let rows: Vec<_> = rows
                        .iter()
                        .map(|(m, row)| (*m, row.get(first..end).unwrap_or_default()))
                        .collect();
                    scope.spawn(move || advance_part(values, &rows, p))
                });
                let parts: Vec<_> = parts.collect();
                // A thread that panicked counts as out of range.
                let panicked = Magnitudes { noise: u64::MAX, values: u64::MAX };
                let joined = parts.into_iter().map(|part| part.join().unwrap_or(panicked));
                joined.fold(Magnitudes::default(), Magnitudes::or)
            })
        };
        let keep = self.strategy.bands() - 1;
        let mut row = match self.past.len() < keep {
            true => Zeroizing::new(Vec::new()),
            false => self.past.pop_back().unwrap_or_default(),
        };
        if keep > 0 {
            row.clear();
            row.reserve_exact(values.len());
            row.extend_from_slice(values);
            self.past.push_front(row);
        }
        magnitudes.noise >> self.noise_bits == 0 && magnitudes.values >> self.value_bits == 0
    }
}

/// How many threads are worth starting.
fn threads_for(count: usize, threads: usize) -> usize {
    threads.min(count / LEAST_PER_THREAD).max(1)
}

/// The bits that occur in the absolute values of numbers (in `-v - 1` for negative ones).
#[derive(Default, Clone, Copy)]
struct Magnitudes {
    noise: u64,
    values: u64,
}

impl Magnitudes {
    const fn or(self, other: Self) -> Self {
        Self { noise: self.noise | other.noise, values: self.values | other.values }
    }
}

#[inline(always)]
fn magnitude(values: &[i64]) -> u64 {
    values.iter().fold(0, |bits, v| bits | (v ^ (v >> 63)) as u64)
}

/// The recursion for some coordinates, from their values in earlier rounds with the entry of each. Sums may wrap only if a
/// number was out of range before.
fn advance_part(values: &mut [i64], rows: &[(u32, &[i64])], p: u32) -> Magnitudes {
    let mut found = Magnitudes::default();
    for (chunk, values) in values.chunks_mut(CHUNK).enumerate() {
        let range = chunk * CHUNK..chunk * CHUNK + values.len();
        let (fours, rest) = rows.as_chunks::<4>();
        found = found.or(vectorised(
            #[inline(always)]
            || {
                let noise = magnitude(values);
                // Four rows at once, so that sums are loaded and stored less often.
                for four in fours {
                    let [(m, a), (n, b), (o, c), (q, d)] =
                        four.each_ref().map(|row| part(row, &range));
                    let rows = a.iter().zip(b).zip(c).zip(d);
                    for (value, (((a, b), c), d)) in values.iter_mut().zip(rows) {
                        let first = m.wrapping_mul(*a).wrapping_add(n.wrapping_mul(*b));
                        let second = o.wrapping_mul(*c).wrapping_add(q.wrapping_mul(*d));
                        *value = value.wrapping_sub(first.wrapping_add(second));
                    }
                }
                for row in rest {
                    let (m, row) = part(row, &range);
                    for (value, e) in values.iter_mut().zip(row) {
                        *value = value.wrapping_sub(m.wrapping_mul(*e));
                    }
                }
                // A shift of a signed number rounds down.
                values.iter_mut().for_each(|value| *value >>= p);
                Magnitudes { noise, values: magnitude(values) }
            },
        ));
    }
    found
}

/// The entry of a row, and some of its coordinates.
#[inline(always)]
fn part<'a>((m, row): &(u32, &'a [i64]), range: &Range<usize>) -> (i64, &'a [i64]) {
    (i64::from(*m), row.get(range.clone()).unwrap_or_default())
}

fn exp2(exponent: u32) -> f64 {
    f64::from(exponent).exp2()
}

/// An upper bound (but for rounding) on `|d_0| + ... + |d_{rounds-1}|`, where `d` are the coefficients of `1/c`: the largest factor
/// by which the recursion amplifies its input. `None` if it is not found in reasonable time.
///
/// With `q_j = c_{j-1} - c_j` (and `c_b = 0`), which are not negative and sum to 1, `(1 - x) c(x) = 1 - q(x)`. So `d_n` is
/// `u_n - u_{n-1}`, where `u = 1 / (1 - q)`: every `u_n` is a weighted mean of the `b` before it. The range of `b`
/// consecutive ones therefore never grows, and bounds all later `|d|`.
fn gain(strategy: &BandedStrategy, rounds: u64) -> Option<f64> {
    let one = exp2(strategy.precision().into());
    let (bands, m) = (strategy.bands(), strategy.entries());
    let next = m.iter().skip(1).copied().chain(std::iter::once(0));
    let q: Vec<f64> = m.iter().zip(next).map(|(m, next)| f64::from(m - next) / one).collect();
    let mut window: VecDeque<f64> = std::iter::repeat_n(0.0, bands).collect();
    window.pop_back();
    window.push_front(1.0);
    let mut sum = 1.0;
    for n in 1..rounds {
        if n % bands as u64 == 0 {
            let (low, high) =
                window.iter().fold((f64::MAX, 0f64), |(l, h), u| (l.min(*u), h.max(*u)));
            let later = (high - low) * (rounds - n) as f64;
            if later < 0.01 {
                return Some(sum + later);
            }
            if n.checked_mul(bands as u64)? > MOST_PRODUCTS {
                return None;
            }
        }
        let u: f64 = q.iter().zip(&window).map(|(q, u)| q * u).sum();
        sum += window.front().map_or(0.0, |last| (u - last).abs());
        window.pop_back();
        window.push_front(u);
    }
    Some(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A small generator for tests (splitmix64).
    struct Words(u64);

    impl Words {
        fn next(&mut self) -> u64 {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = self.0;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        }

        fn below(&mut self, bound: u64) -> u64 {
            self.next() % bound
        }

        /// Uniform in `-2^bits..2^bits`.
        fn signed(&mut self, bits: u32) -> i64 {
            (self.next() as i64) >> (63 - bits)
        }

        fn strategy(&mut self) -> BandedStrategy {
            let p = self.below(17) as u8;
            let mut m = vec![1u32 << p];
            for _ in 0..self.below(6) {
                m.push(1 + self.below(u64::from(*m.last().unwrap())) as u32);
            }
            BandedStrategy::new(p, m).unwrap()
        }
    }

    /// What the releases of a segment are a function of: `w_t = sum_j m_j x_{t-j} + N_t`, over the integers.
    fn measured(strategy: &BandedStrategy, x: &[i128], noise: &[i64]) -> Vec<i128> {
        let m = strategy.entries();
        let sum =
            |t: usize| (0..m.len().min(t + 1)).map(|j| i128::from(m[j]) * x[t - j]).sum::<i128>();
        (0..x.len()).map(|t| i128::from(noise[t]) + sum(t)).collect()
    }

    /// The function: `y_t = floor((w_t - sum_{j>=1} m_j y_{t-j}) / 2^p)`. It knows neither records nor noise.
    fn released(strategy: &BandedStrategy, w: &[i128]) -> Vec<i128> {
        let m = strategy.entries();
        let mut y: Vec<i128> = Vec::new();
        for (t, w) in w.iter().enumerate() {
            let earlier = (1..m.len().min(t + 1)).map(|j| i128::from(m[j]) * y[t - j]);
            y.push((w - earlier.sum::<i128>()).div_euclid(1 << strategy.precision()));
        }
        y
    }

    #[test]
    fn releases_are_a_function_of_a_gaussian_mechanism_in_100_000_random_segments() {
        let mut words = Words(24);
        for _ in 0..100_000 {
            let (strategy, rounds) = (words.strategy(), 1 + words.below(12) as usize);
            let k = words.below(u64::from(MAX_EXPONENT) + 1) as u8;
            let mut recursion = Recursion::new(&strategy, k, rounds as u64).unwrap();
            // Sums of records far beyond 64 bits, and noise of up to 64 standard deviations.
            let x: Vec<i128> =
                (0..rounds).map(|_| i128::from(words.next() as i64) << words.below(30)).collect();
            let noise: Vec<i64> =
                (0..rounds).map(|_| words.signed(u32::from(k) + DEVIATION_BITS)).collect();
            let y: Vec<i128> = noise
                .iter()
                .zip(&x)
                .map(|(noise, x)| {
                    let mut value = [*noise];
                    assert!(recursion.advance(&mut value, 1), "{strategy:?} {k} {noise}");
                    x + i128::from(value[0])
                })
                .collect();
            assert_eq!(y, released(&strategy, &measured(&strategy, &x, &noise)), "{strategy:?}");
        }
    }

    /// The same with sums that wrap at 64 bits: releases would depend on records and noise otherwise than through `w`.
    #[test]
    fn a_recursion_that_wraps_is_no_function_of_the_mechanism_and_is_refused() {
        let mut words = Words(25);
        let strategy = BandedStrategy::new(12, vec![4096, 2048, 1536, 1280]).unwrap();
        let (mut broken, segments, rounds) = (0, 1000, 64);
        for _ in 0..segments {
            let x: Vec<i128> = (0..rounds).map(|_| i128::from(words.signed(20))).collect();
            // Noise of a huge scale, so that sums wrap.
            let noise: Vec<i64> = (0..rounds).map(|_| words.next() as i64).collect();
            let (mut e, m): (Vec<i64>, _) = (Vec::new(), strategy.entries());
            for t in 0..rounds {
                let earlier =
                    (1..m.len().min(t + 1)).map(|j| i64::from(m[j]).wrapping_mul(e[t - j]));
                let earlier = earlier.fold(0i64, i64::wrapping_add);
                e.push(noise[t].wrapping_sub(earlier) >> 12);
            }
            let y: Vec<i128> = x.iter().zip(&e).map(|(x, e)| x + i128::from(*e)).collect();
            broken += usize::from(y != released(&strategy, &measured(&strategy, &x, &noise)));
            let mut recursion = Recursion::new(&strategy, 40, rounds as u64).unwrap();
            let in_range =
                noise.iter().filter(|noise| recursion.advance(&mut [**noise], 1)).count();
            assert!(in_range < rounds);
        }
        assert!(broken > segments * 9 / 10, "only {broken} of {segments} are broken");
    }

    /// The same numbers by the definition, one coordinate at a time, for lengths around those of chunks and threads.
    #[test]
    fn every_length_and_number_of_threads_gives_the_same_numbers() {
        let mut words = Words(26);
        for (bands, length) in [(1, 5), (2, 511), (3, 512), (6, 513), (11, 1025), (6, 100_000)] {
            let m = (0..bands).map(|j| (4096 - 300 * j) as u32).collect();
            let strategy = BandedStrategy::new(12, m).unwrap();
            let mut on_threads: Vec<Recursion> =
                (0..3).map(|_| Recursion::new(&strategy, 40, 20).unwrap()).collect();
            let mut past: Vec<Vec<i64>> = Vec::new();
            for _ in 0..14 {
                let noise: Vec<i64> = (0..length).map(|_| words.signed(42)).collect();
                let mut expected = Vec::new();
                for (i, noise) in noise.iter().enumerate() {
                    let rows = past.iter().rev().zip(&strategy.entries()[1..]);
                    let earlier: i64 = rows.map(|(row, m)| i64::from(*m) * row[i]).sum();
                    expected.push((noise - earlier).div_euclid(4096));
                }
                for (recursion, threads) in on_threads.iter_mut().zip([1, 2, 3]) {
                    let mut values = noise.clone();
                    assert!(recursion.advance(&mut values, threads));
                    assert!(
                        values == expected,
                        "{bands} bands, {length} numbers, {threads} threads"
                    );
                    assert_eq!(recursion.past.len(), (bands - 1).min(past.len() + 1));
                }
                past.push(expected);
            }
        }
    }

    /// The tests of laws rely on two threads for 2^16 coordinates and more.
    #[test]
    fn small_groups_are_not_worth_a_thread() {
        assert_eq!([65_535, 65_536, 131_072].map(|count| threads_for(count, 2)), [1, 2, 2]);
        assert_eq!([0, 1, 65_536].map(|count| threads_for(count, 0)), [1, 1, 1]);
    }

    #[test]
    fn numbers_are_in_range_up_to_their_limit_and_not_beyond() {
        let strategy = BandedStrategy::new(2, vec![4, 2]).unwrap();
        let limit = 1i64 << (30 + DEVIATION_BITS);
        for (noise, expected) in
            [(limit - 1, true), (-limit, true), (limit, false), (-limit - 1, false)]
        {
            let mut recursion = Recursion::new(&strategy, 30, 10).unwrap();
            // In the middle of a chunk of small numbers.
            let mut values = vec![3; 700];
            values[600] = noise;
            assert_eq!(recursion.advance(&mut values, 1), expected, "{noise}");
        }
        // Noise in range and a value out of range, of which the next sums could wrap.
        let undivided = BandedStrategy::new(0, vec![1, 1]).unwrap();
        for (past, noise, expected) in [
            (-(1 << 62), -1, true),
            (-(1 << 62), 0, false),
            (1 << 62, 0, true),
            (1 << 62, -1, false),
        ] {
            let mut recursion = Recursion::new(&undivided, 30, 10).unwrap();
            recursion.past.push_front(Zeroizing::new(vec![past]));
            assert_eq!(recursion.advance(&mut [noise], 1), expected, "{past} {noise}");
        }
        let mut other_length = Recursion::new(&strategy, 30, 10).unwrap();
        assert!(other_length.advance(&mut [1, 2], 1) && !other_length.advance(&mut [1], 1));
    }

    /// The coefficients of `1/c` by long division.
    fn gain_by_division(strategy: &BandedStrategy, rounds: usize) -> f64 {
        let one = f64::from(strategy.entries()[0]);
        let c: Vec<f64> = strategy.entries().iter().map(|m| f64::from(*m) / one).collect();
        let mut d: Vec<f64> = Vec::new();
        for t in 0..rounds {
            let earlier: f64 = (1..c.len().min(t + 1)).map(|j| c[j] * d[t - j]).sum();
            d.push(f64::from(u8::from(t == 0)) - earlier);
        }
        d.iter().map(|d| d.abs()).sum()
    }

    #[test]
    fn the_gain_bounds_the_sum_of_the_coefficients_closely() {
        let mut words = Words(27);
        for _ in 0..300 {
            let (strategy, rounds) = (words.strategy(), 1 + words.below(400));
            let (found, sum) =
                (gain(&strategy, rounds).unwrap(), gain_by_division(&strategy, rounds as usize));
            assert!(
                found >= sum * (1.0 - 1e-9) && found <= sum + 0.011,
                "{strategy:?}: {found} {sum}"
            );
        }
        // All entries equal: the coefficients 1, -1 come back every b rounds for ever, so the gain grows with the rounds.
        let flat = BandedStrategy::new(12, vec![4096; 8]).unwrap();
        assert_eq!(gain(&flat, 800), Some(200.0));
        assert!(
            Recursion::new(&flat, 49, 800).is_none() && Recursion::new(&flat, 40, 800).is_some()
        );
        assert!(gain(&flat, u64::MAX).is_none());
        // One band: only division by 2^p.
        assert_eq!(gain(&BandedStrategy::new(12, vec![4096]).unwrap(), u64::MAX), Some(1.0));
    }
}
