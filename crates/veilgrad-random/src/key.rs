//! Keys, and the streams of random words derived from them.

use chacha20::cipher::{KeyIvInit, StreamCipher};
use chacha20::{ChaCha12, ChaCha20};
use veilgrad_events::{ProcessIdentity, UnknownProcess};
use zeroize::Zeroizing;

/// Random words could not be drawn.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RandomError {
    /// The operating system has no randomness to give.
    #[error("the operating system gave no randomness: {0}")]
    System(String),
    /// This process has no identity, so a forked copy of it could use the key too.
    #[error(transparent)]
    UnknownProcess(#[from] UnknownProcess),
    /// The key was drawn by another process, from which this one was forked.
    #[error("the key belongs to another process, from which this one was forked")]
    OtherProcess,
}

/// The stream cipher that expands a key into random words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Cipher {
    /// 20 rounds; the default.
    #[default]
    ChaCha20,
    /// 12 rounds, about 40 % faster; no known attack comes near breaking it.
    ChaCha12,
}

/// What a stream is for. Streams of different purposes never share a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Purpose {
    /// Noise on a sum.
    Noise = 1,
    /// The draw of a sample.
    Sample = 2,
}

/// A 256-bit key, fresh from the operating system, for one round's noise or one draw of a sample.
///
/// # Guarantee
/// A key cannot be cloned, printed or serialised, and is wiped from memory when dropped. No state is kept between
/// keys: a resumed, restarted or forked process asks the operating system again. A fork copies a key that was
/// drawn before it, but the child cannot use the copy.
///
/// # Example
/// ```
/// use veilgrad_events::SampleRate;
/// use veilgrad_random::{RoundKey, subset};
///
/// let key = RoundKey::from_os()?; // one key, one use
/// let ids = subset::Poisson::new(SampleRate::new(0.5)?).draw(&key, 1000)?;
/// assert!(ids.is_sorted() && ids.iter().all(|id| *id < 1000));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct RoundKey {
    // On the heap, so that moving the key leaves no copy behind.
    key: Box<Zeroizing<[u8; 32]>>,
    cipher: Cipher,
    // The process that drew the key; `None` for a seeded key.
    process: Option<ProcessIdentity>,
}

impl RoundKey {
    /// A fresh key from the operating system.
    ///
    /// # Errors
    /// When the system has no randomness, or the identity of this process cannot be determined.
    pub fn from_os() -> Result<Self, RandomError> {
        Self::from_os_with(Cipher::default())
    }

    /// A fresh key from the operating system, for a given cipher.
    ///
    /// # Errors
    /// As for [`from_os`](Self::from_os).
    pub fn from_os_with(cipher: Cipher) -> Result<Self, RandomError> {
        let process = Some(ProcessIdentity::current()?);
        let mut key = Box::new(Zeroizing::new([0; 32]));
        let bytes = key.as_mut().as_mut();
        getrandom::fill(bytes).map_err(|error| RandomError::System(error.to_string()))?;
        Ok(Self { key, cipher, process })
    }

    /// A reproducible key from a seed, for tests. It protects nothing.
    #[cfg(feature = "insecure-testing")]
    #[must_use]
    pub fn from_seed(seed: u64, cipher: Cipher) -> Self {
        let mut key = Box::new(Zeroizing::new([0; 32]));
        for (byte, seed) in key.iter_mut().zip(seed.to_le_bytes()) {
            *byte = seed;
        }
        Self { key, cipher, process: None }
    }

    /// The process that drew the key; `None` for a seeded key.
    #[must_use]
    pub const fn process(&self) -> Option<ProcessIdentity> {
        self.process
    }

    /// The streams of this key, for one draw.
    ///
    /// # Errors
    /// When another process drew the key.
    pub(crate) fn streams(&self) -> Result<Streams<'_>, RandomError> {
        match self.process.is_none_or(|process| process.is_current()) {
            true => Ok(Streams(self)),
            false => Err(RandomError::OtherProcess),
        }
    }
}

/// A random number from the operating system, to tell things apart: no two draws are equal, except with probability
/// 2^-128. It may be public: no key is derived from it.
///
/// # Errors
/// When the system has no randomness.
pub fn unique_number() -> Result<u128, RandomError> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| RandomError::System(error.to_string()))?;
    Ok(u128::from_le_bytes(bytes))
}

/// The streams of a key, after the check that this process drew it. The value lives only during one draw; a fork
/// does not copy the threads of that draw.
#[derive(Clone, Copy)]
pub(crate) struct Streams<'a>(&'a RoundKey);

impl Streams<'_> {
    /// The stream for one purpose, group and block: a pure function of the key and these three.
    pub(crate) fn stream(self, purpose: Purpose, group: u16, block: u64) -> KeyStream {
        let mut nonce = [0; 12];
        let [first, second] = group.to_le_bytes();
        let fields = [purpose as u8, 0, first, second].into_iter().chain(block.to_le_bytes());
        nonce.iter_mut().zip(fields).for_each(|(byte, field)| *byte = field);
        let key: &[u8; 32] = &self.0.key;
        let state = match self.0.cipher {
            Cipher::ChaCha20 => State::ChaCha20(ChaCha20::new(key.into(), &nonce.into())),
            Cipher::ChaCha12 => State::ChaCha12(ChaCha12::new(key.into(), &nonce.into())),
        };
        KeyStream { state, buffer: Zeroizing::new([[0; 8]; BUFFER_WORDS]), unread: 0 }
    }
}

/// The random words of one block, from its start.
///
/// # Guarantee
/// Cannot be cloned, printed or serialised; its state is wiped when dropped.
pub(crate) struct KeyStream {
    state: State,
    buffer: Zeroizing<[[u8; 8]; BUFFER_WORDS]>,
    unread: usize,
}

/// Words generated at once for single-word reads: enough for the cipher to use full SIMD width.
const BUFFER_WORDS: usize = 64;

// The cipher's state is a few hundred bytes either way, and lives on the stack of one block.
#[allow(clippy::large_enum_variant)]
enum State {
    ChaCha20(ChaCha20),
    ChaCha12(ChaCha12),
}

impl State {
    /// Writes the next bytes. A stream has 2^38 bytes; no draw comes near that.
    fn write(&mut self, bytes: &mut [u8]) {
        match self {
            Self::ChaCha20(cipher) => cipher.write_keystream(bytes),
            Self::ChaCha12(cipher) => cipher.write_keystream(bytes),
        }
    }
}

impl KeyStream {
    /// Fills `bytes` with the next bytes of the stream.
    pub(crate) fn fill(&mut self, bytes: &mut [u8]) {
        self.state.write(bytes);
    }

    /// The next word.
    pub(crate) fn word(&mut self) -> u64 {
        if self.unread == 0 {
            self.state.write(self.buffer.as_flattened_mut());
            self.unread = BUFFER_WORDS;
        }
        self.unread -= 1;
        self.buffer.get(self.unread).map_or(0, |bytes| u64::from_le_bytes(*bytes))
    }

    /// A uniformly random integer below `bound`, exactly (Lemire, arXiv 1805.10941).
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        let mut product = u128::from(self.word()) * u128::from(bound);
        let mut low = product as u64;
        if low < bound {
            let threshold = bound.wrapping_neg() % bound;
            while low < threshold {
                product = u128::from(self.word()) * u128::from(bound);
                low = product as u64;
            }
        }
        (product >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn words(stream: &mut KeyStream, count: usize) -> Vec<u64> {
        (0..count).map(|_| stream.word()).collect()
    }

    #[test]
    fn streams_differ_in_every_field_and_repeat_for_the_same_fields() {
        let key = RoundKey::from_os().unwrap();
        let other = RoundKey::from_os().unwrap();
        let mut seen = HashSet::new();
        for key in [&key, &other] {
            for purpose in [Purpose::Noise, Purpose::Sample] {
                for group in [0, 1, 255, 256, u16::MAX] {
                    for block in [0, 1, 1 << 32, u64::MAX] {
                        let stream = || key.streams().unwrap().stream(purpose, group, block);
                        let once = words(&mut stream(), 20);
                        assert_eq!(once, words(&mut stream(), 20));
                        assert!(once.into_iter().all(|word| seen.insert(word)));
                    }
                }
            }
        }
    }

    /// That a byte is 0 in all 16 keys by chance has probability 2^-128.
    #[test]
    fn all_bytes_of_a_key_are_random() {
        let keys: Vec<RoundKey> = (0..16).map(|_| RoundKey::from_os().unwrap()).collect();
        for byte in 0..32 {
            assert!(keys.iter().any(|key| key.key[byte] != 0), "byte {byte}");
        }
    }

    /// RFC 8439, section 2.3.2: key 00..1f, nonce 00:00:00:09:00:00:00:4a:00:00:00:00, block 1.
    #[test]
    fn the_cipher_is_the_one_of_rfc_8439() {
        let key: [u8; 32] = std::array::from_fn(|i| i as u8);
        let nonce = [0, 0, 0, 9, 0, 0, 0, 0x4a, 0, 0, 0, 0];
        let mut cipher = ChaCha20::new(&key.into(), &nonce.into());
        let mut bytes = [0; 128];
        cipher.write_keystream(&mut bytes);
        assert_eq!(bytes[64..72], [0x10, 0xf1, 0xe7, 0xe4, 0xd1, 0x3b, 0x59, 0x15]);
    }

    /// All 3 values of a bound that does not divide 2^64 occur equally often: each count of 30,000
    /// draws has standard deviation 82; 600 is 7.3 of those, false alarm below 1e-12.
    #[test]
    fn bounded_integers_are_uniform() {
        let key = RoundKey::from_os().unwrap();
        let mut stream = key.streams().unwrap().stream(Purpose::Sample, 0, 0);
        let mut counts = [0i32; 3];
        for _ in 0..30_000 {
            counts[stream.below(3) as usize] += 1;
        }
        assert!(counts.iter().all(|count| (count - 10_000).abs() < 600), "{counts:?}");
        // A bound of 3/4 of the range: without rejection, remainders by 3 would be 1/2, 1/4, 1/4.
        let mut counts = [0i32; 3];
        for _ in 0..30_000 {
            counts[(stream.below(3 << 62) % 3) as usize] += 1;
        }
        assert!(counts.iter().all(|count| (count - 10_000).abs() < 600), "{counts:?}");
        assert!((0..100).all(|_| stream.below(1) == 0));
        assert!((0..100).all(|_| stream.below(u64::MAX) < u64::MAX));
    }
}
