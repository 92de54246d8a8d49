//! The inputs of a target, by their numbers.

use crate::mutate;
use crate::random::Random;
use crate::reader::Target;

/// Input number `number` of a target: first the saved ones, then altered ones.
#[must_use]
pub fn input(target: &Target, saved: &[Vec<u8>], seed: u64, number: u64) -> Vec<u8> {
    if let Some(bytes) = usize::try_from(number).ok().and_then(|number| saved.get(number)) {
        return bytes.clone();
    }
    let mut random = Random::of(seed, target.name, number);
    let words: Vec<&str> = target.words.split(';').collect();
    mutate::input(&mut random, target.format, saved, &words)
}
