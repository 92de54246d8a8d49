//! Exact Bernoulli trials: their probabilities are computed to as many bits as a comparison needs.

use dashu_int::UBig;

use crate::KeyStream;

/// A Bernoulli distribution with an exact probability.
pub(crate) struct Bernoulli {
    probability: Probability,
    /// `floor(2^64 p)`.
    threshold: u64,
}

/// A probability as a function of a sampling rate q, with r = 1 - q.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Probability {
    /// Binary digit s of a geometric variable: `r^(2^s) / (1 + r^(2^s))`.
    Digit { rate: f64, s: u32 },
    /// That none of 2^log2_records records is selected: `r^(2^log2_records)`.
    NoneOf { rate: f64, log2_records: u32 },
}

impl Bernoulli {
    pub(crate) fn new(probability: Probability) -> Self {
        let threshold = probability.floor(64);
        // Both probabilities are below 1 for a rate above 0.
        Self { probability, threshold: u64::try_from(threshold).unwrap_or(u64::MAX) }
    }

    /// Draws one trial: whether a uniform number, drawn to as many bits as needed, is below the probability.
    pub(crate) fn draw(&self, stream: &mut KeyStream) -> bool {
        let word = stream.word();
        self.decide(stream, word)
    }

    /// The trial whose uniform number starts with `word`.
    fn decide(&self, stream: &mut KeyStream, word: u64) -> bool {
        if word == self.threshold { self.decide_tie(stream, word) } else { word < self.threshold }
    }

    /// The first 64 bits are equal: compares further ones.
    #[cold]
    fn decide_tie(&self, stream: &mut KeyStream, word: u64) -> bool {
        let (mut uniform, mut bits) = (UBig::from(word), 64);
        loop {
            uniform = (uniform << 64usize) + UBig::from(stream.word());
            bits += 64;
            let threshold = self.probability.floor(bits);
            if uniform != threshold {
                return uniform < threshold;
            }
        }
    }
}

impl Probability {
    /// `floor(2^bits p)`, exactly.
    fn floor(self, bits: usize) -> UBig {
        let mut guard = 64;
        loop {
            let (low, high) = self.bounds(bits + guard);
            let (low, high) = (low >> guard, high >> guard);
            if low == high {
                return low;
            }
            // This ends: the bounds stay on both sides of an integer only if the probability is a dyadic
            // rational, and then enough guard bits make both bounds exact.
            guard *= 2;
        }
    }

    /// Lower and upper bound on the probability in units of 2^-bits; equal if it is a multiple of the unit.
    fn bounds(self, bits: usize) -> (UBig, UBig) {
        let (rate, squarings) = match self {
            Self::Digit { rate, s } => (rate, s),
            Self::NoneOf { rate, log2_records } => (rate, log2_records),
        };
        // Every squaring at most doubles the error.
        let guarded_bits = bits + squarings as usize + 8;
        let (mut low, mut high) = complement(rate, guarded_bits);
        for _ in 0..squarings {
            low = (&low * &low) >> guarded_bits;
            high = shift_up(&high * &high, guarded_bits);
        }
        if let Self::Digit { .. } = self {
            // R/(1 + R) is increasing in R.
            let one = UBig::ONE << guarded_bits;
            low = (&low << guarded_bits) / (&one + &low);
            high = (&high << guarded_bits) / (&one + &high) + UBig::ONE;
        }
        let extra = guarded_bits - bits;
        (low >> extra, shift_up(high, extra))
    }
}

/// `ceil(value / 2^bits)`.
fn shift_up(value: UBig, bits: usize) -> UBig {
    let floor = &value >> bits;
    if (&floor << bits) == value { floor } else { floor + UBig::ONE }
}

/// `1 - rate` in units of 2^-bits, rounded down and up.
fn complement(rate: f64, bits: usize) -> (UBig, UBig) {
    // rate = mantissa * 2^-exponent, for a rate in (0, 1).
    let (raw, biased) = (rate.to_bits() & ((1 << 52) - 1), (rate.to_bits() >> 52) as usize);
    let (mantissa, exponent) =
        if biased == 0 { (raw, 1074) } else { (raw | 1 << 52, 1075 - biased) };
    let one = UBig::ONE << exponent;
    let exact = one - UBig::from(mantissa);
    if bits >= exponent {
        let value = exact << (bits - exponent);
        (value.clone(), value)
    } else {
        (&exact >> (exponent - bits), shift_up(exact, exponent - bits))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Purpose, RoundKey};

    fn to_f64(value: &UBig, bits: usize) -> f64 {
        use dashu_int::ops::BitTest;
        let excess = value.bit_len().saturating_sub(60);
        u64::try_from(value >> excess).unwrap() as f64 * 2f64.powi(excess as i32 - bits as i32)
    }

    #[test]
    fn probabilities_agree_with_f64() {
        for rate in [1e-12f64, 1e-6, 1e-3, 0.01, 1.0 / 32.0] {
            for s in 0..16 {
                let r = (f64::from(1u32 << s) * (-rate).ln_1p()).exp();
                if r < 1e-200 {
                    continue;
                }
                let digit = to_f64(&Probability::Digit { rate, s }.floor(800), 800);
                assert!((digit / (r / (1.0 + r)) - 1.0).abs() < 1e-11, "{rate} {s}");
                let none = to_f64(&Probability::NoneOf { rate, log2_records: s }.floor(800), 800);
                assert!((none / r - 1.0).abs() < 1e-11, "{rate} {s}");
            }
        }
    }

    /// Digits of a geometric variable, multiplied out: P(G = g) = q r^g for all g below 8.
    #[test]
    fn independent_digits_make_a_geometric_variable() {
        let rate = 0.03f64;
        let probability = |s| to_f64(&Probability::Digit { rate, s }.floor(200), 200);
        let rest = to_f64(&Probability::NoneOf { rate, log2_records: 3 }.floor(200), 200);
        for gap in 0..8i32 {
            let digits: f64 = (0..3u32)
                .map(|s| if gap >> s & 1 == 1 { probability(s) } else { 1.0 - probability(s) })
                .product();
            let expected = rate * (1.0 - rate).powi(gap);
            assert!((digits * (1.0 - rest) / expected - 1.0).abs() < 1e-12, "{gap}");
        }
    }

    #[test]
    fn the_smallest_rate_decides_ties() {
        let trial = Bernoulli::new(Probability::NoneOf { rate: 5e-324, log2_records: 16 });
        assert_eq!(trial.threshold, u64::MAX);
        let key = RoundKey::from_os().unwrap();
        let mut stream = key.streams().unwrap().stream(Purpose::Sample, 0, 0);
        // 64 bits of ones tie; further bits decide, and 1100 more ones do not occur.
        assert!((0..100).all(|_| trial.decide(&mut stream, u64::MAX)));
        let half = Bernoulli::new(Probability::Digit { rate: 5e-324, s: 0 });
        // One half less 1e-324: after the tie at 0.0111… all further bits are ones too.
        assert!((0..200).all(|_| half.decide(&mut stream, half.threshold)));
        assert!(!half.decide(&mut stream, half.threshold + 1));
    }

    /// With p = t + f in units of 2^-64, t the threshold, a tie is decided as true with probability f. 20,000 ties; 6 standard deviations of at most 71.
    #[test]
    fn ties_are_decided_with_the_right_probability() {
        let probability = Probability::Digit { rate: 0.01, s: 3 };
        let trial = Bernoulli::new(probability);
        let fraction =
            to_f64(&(probability.floor(128) - (UBig::from(trial.threshold) << 64usize)), 64);
        let key = RoundKey::from_os().unwrap();
        let mut stream = key.streams().unwrap().stream(Purpose::Sample, 0, 1);
        let happened =
            (0..20_000).filter(|_| trial.decide(&mut stream, trial.threshold)).count() as f64;
        assert!((happened - 20_000.0 * fraction).abs() < 430.0, "{happened} {fraction}");
    }

    proptest! {
        #[test]
        fn more_bits_refine_the_threshold(rate in 1e-300f64..0.03125, s in 0u32..17, bits in 1usize..200) {
            for probability in [Probability::Digit { rate, s }, Probability::NoneOf { rate, log2_records: s }] {
                prop_assert_eq!(probability.floor(bits + 77) >> 77usize, probability.floor(bits));
            }
        }

        /// Division of the big-integer crate by large divisors, checked by multiplication.
        #[test]
        fn large_divisions_are_right(a in prop::collection::vec(any::<u64>(), 1..12), b in prop::collection::vec(any::<u64>(), 1..8)) {
            let number = |words: &[u64]| words.iter().fold(UBig::ZERO, |n, w| (n << 64usize) + UBig::from(*w));
            let (a, b) = (number(&a), number(&b) + UBig::ONE);
            let quotient = &a / &b;
            prop_assert!(&quotient * &b <= a && a < (quotient + UBig::ONE) * b);
        }
    }
}
