//! A seeded pseudo-random generator: SplitMix64 (Steele, Lea and Flood, 2014).

/// A seeded pseudo-random generator.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// The generator of one input: of this seed, target and number.
    #[must_use]
    pub fn of(seed: u64, target: &str, number: u64) -> Self {
        // FNV-1a, so that targets do not share their streams.
        let name = target.bytes().fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
        });
        let mut start = Self(seed ^ name);
        Self(start.word().wrapping_add(number.wrapping_mul(0xd6e8_feb8_6659_fd93)))
    }

    /// 64 random bits.
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below a bound; 0 if the bound is 0.
    pub fn below(&mut self, bound: usize) -> usize {
        let product = u128::from(self.word()) * bound as u128;
        (product >> 64) as usize
    }

    /// True with probability `1 / times`.
    pub fn one_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    /// A random element; `None` of an empty slice.
    pub fn choose<'a, T>(&mut self, from: &'a [T]) -> Option<&'a T> {
        from.get(self.below(from.len()))
    }
}
