//! An independent, slow and exact normal sampler as a reference: Karney's algorithm N (ACM Transactions on
//! Mathematical Software 42(1), 2016), on lazily drawn digits.

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

/// A uniform number in [0, 1) whose 32-bit digits are drawn when needed.
#[derive(Default)]
struct Uniform(Vec<u32>);

/// Karney's sampler.
pub struct Karney(Xoshiro256PlusPlus);

impl Karney {
    /// A seeded sampler, for tests only.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(Xoshiro256PlusPlus::seed_from_u64(seed))
    }

    /// One sample of `floor(2^k Z)`, for k up to 50.
    pub fn sample(&mut self, k: u8) -> i64 {
        loop {
            // N1: k with probability exp(-k/2) (1 - exp(-1/2)).
            let mut whole = 0u32;
            while self.half_exponential() {
                whole += 1;
            }
            // N2: accept with probability exp(-k (k-1)/2).
            if !(0..whole * whole.saturating_sub(1)).all(|_| self.half_exponential()) {
                continue;
            }
            // N3, N4: x uniform, accepted with probability exp(-x (2k+x)/2).
            let mut x = Uniform::default();
            if !(0..=whole).all(|_| self.accepts(whole, &mut x)) {
                continue;
            }
            // floor(2^k (whole + x)), for either sign.
            let digits =
                (u64::from(self.digit(&mut x, 0)) << 32) | u64::from(self.digit(&mut x, 1));
            let fraction = if k == 0 { 0 } else { digits >> (64 - u32::from(k)) };
            let magnitude = ((u64::from(whole) << k) | fraction) as i64;
            return if self.0.next_u32() & 1 == 0 { magnitude } else { -magnitude - 1 };
        }
    }

    /// True with probability exp(-1/2): the run 1/2 > u1 > u2 > … has even length.
    fn half_exponential(&mut self) -> bool {
        let mut last = Uniform::default();
        if self.digit(&mut last, 0) >> 31 == 1 {
            return true;
        }
        let mut even = false;
        loop {
            let mut next = Uniform::default();
            if !self.less(&mut next, &mut last) {
                return even;
            }
            last = next;
            even = !even;
        }
    }

    /// True with probability exp(-x (2k+x)/(2k+2)).
    fn accepts(&mut self, k: u32, x: &mut Uniform) -> bool {
        let mut even = true;
        let mut last: Option<Uniform> = None;
        loop {
            let mut next = Uniform::default();
            let below = match &mut last {
                Some(last) => self.less(&mut next, last),
                None => self.less(&mut next, x),
            };
            if !below || !self.continues(k, x) {
                return even;
            }
            last = Some(next);
            even = !even;
        }
    }

    /// True with probability (2k+x)/(2k+2).
    fn continues(&mut self, k: u32, x: &mut Uniform) -> bool {
        // A uniform choice among 2k+2, by rejection from 32 bits.
        let sides = u64::from(2 * k + 2);
        let limit = (1u64 << 32) / sides * sides;
        let choice = loop {
            let word = u64::from(self.0.next_u32());
            if word < limit {
                break word % sides;
            }
        };
        if choice < u64::from(2 * k) {
            return true;
        }
        choice == u64::from(2 * k) && self.less(&mut Uniform::default(), x)
    }

    fn less(&mut self, a: &mut Uniform, b: &mut Uniform) -> bool {
        for index in 0.. {
            let (a, b) = (self.digit(a, index), self.digit(b, index));
            if a != b {
                return a < b;
            }
        }
        false
    }

    fn digit(&mut self, uniform: &mut Uniform, index: usize) -> u32 {
        while uniform.0.len() <= index {
            uniform.0.push(self.0.next_u32());
        }
        uniform.0[index]
    }
}
