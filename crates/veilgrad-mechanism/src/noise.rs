//! Where noise comes from.

/// A source of Gaussian noise on the integer grid.
///
/// The trait is sealed: noise that privacy rests on has one implementation, and the sources for
/// tests exist only behind the feature `insecure-testing`.
pub trait NoiseSource: sealed::Noise {}

impl<N: sealed::Noise> NoiseSource for N {}

/// Noise could not be drawn.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no randomness: {0}")]
pub struct NoiseError(pub(crate) String);

pub(crate) mod sealed {
    use super::NoiseError;

    #[allow(unreachable_pub)]
    pub trait Noise {
        /// Adds `floor(2^k Z_j)`, with `Z_j` independent standard normal, to every element of the
        /// sum of group number `group`, modulo 2^64.
        fn add_noise(&mut self, group: usize, k: u8, sums: &mut [i64]) -> Result<(), NoiseError>;

        /// Whether the noise protects nothing.
        fn is_insecure(&self) -> bool;
    }
}
