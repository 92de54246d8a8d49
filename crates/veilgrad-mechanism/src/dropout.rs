//! Simulated dropouts: sampled records that do not take part.

use veilgrad_events::SampleRate;
use veilgrad_random::{RandomError, RoundKey, subset};

/// Simulates users who are not available or drop out: each sampled record answers with the same public probability,
/// independently of all data and all other draws.
///
/// # Guarantee
/// Records that do not answer contribute zero. The charge and public denominators stay those of the whole sample, so that
/// the guarantee is that of the charged rounds: it counts no dropout as protection.
///
/// # Example
/// ```
/// use veilgrad_events::SampleRate;
/// use veilgrad_mechanism::Dropouts;
///
/// let dropouts = Dropouts::new(SampleRate::new(0.9)?);
/// let mut sample = vec![3, 5, 8, 13];
/// dropouts.keep_answering(&mut sample)?;
/// assert!(sample.iter().all(|id| [3, 5, 8, 13].contains(id)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Dropouts {
    answers: subset::Poisson,
}

impl Dropouts {
    /// Each record answers with this probability.
    #[must_use]
    pub fn new(answering: SampleRate) -> Self {
        Self { answers: subset::Poisson::new(answering) }
    }

    /// Removes the ids that do not answer, with a fresh key.
    ///
    /// # Errors
    /// When the operating system gives no randomness.
    pub fn keep_answering(&self, ids: &mut Vec<u64>) -> Result<(), RandomError> {
        let places = self.answers.draw(&RoundKey::from_os()?, ids.len() as u64)?;
        let answering = places.into_iter().filter_map(|place| {
            usize::try_from(place).ok().and_then(|place| ids.get(place).copied())
        });
        *ids = answering.collect();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_who_answer_keep_their_order_and_are_as_many_as_the_probability_says() {
        let all: Vec<u64> = (0..100_000).map(|id| 3 * id + 1).collect();
        for rate in [0.01, 0.5, 0.9, 1.0] {
            let mut ids = all.clone();
            Dropouts::new(SampleRate::new(rate).unwrap()).keep_answering(&mut ids).unwrap();
            assert!(ids.is_sorted_by(|a, b| a < b) && ids.iter().all(|id| id % 3 == 1));
            // Seven standard deviations: a false alarm once in 10^11 runs.
            let (mean, deviation) = (1e5 * rate, (1e5 * rate * (1.0 - rate)).sqrt());
            assert!((ids.len() as f64 - mean).abs() <= 7.0 * deviation, "{rate}: {}", ids.len());
        }
    }
}
