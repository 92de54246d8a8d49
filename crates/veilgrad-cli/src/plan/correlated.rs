//! Whether noise that is correlated between rounds would be better than plain noise.

use serde_json::{Value, json};
use veilgrad_accounting::display::required_noise_up;
use veilgrad_accounting::{Composition, NoiseChoice, PrivacyTarget, Workload};
use veilgrad_events::{Adjacency, Folded, SampleRate};

/// The numbers of bands that are compared. More than 64 take much memory, and make restarts expensive.
pub(crate) const TRIED: [usize; 6] = [2, 4, 8, 16, 32, 64];
/// Runs of more rounds than this are compared as if they had this many: they are hundreds of times as long as the noise is
/// correlated, and the error relative to plain noise hardly changes.
pub(crate) const MOST_ROUNDS: u64 = 20_000;

/// The best of plain and correlated noise for so many rounds of plain SGD; `None` if there is nothing to compare.
pub(super) fn best(
    target: &PrivacyTarget<'_>,
    rate: SampleRate,
    count: u64,
    adjacency: Adjacency,
) -> Option<NoiseChoice> {
    let workload = Workload::prefix_sums(usize::try_from(count.min(MOST_ROUNDS)).ok()?);
    let choices = workload.choices(target, rate, TRIED, |sampling, noise_multiplier| {
        Composition::of([Folded { count, sampling, noise_multiplier }], adjacency)
    });
    NoiseChoice::best(&choices.ok()?).cloned()
}

pub(super) fn as_json(best: Option<&NoiseChoice>) -> Value {
    best.map_or(Value::Null, |best| {
        json!({
            "bands": best.bands(),
            "noise_multiplier": best.noise.get(),
            "error_ratio": best.error_ratio,
        })
    })
}

/// The choice in a sentence; empty if there is none.
pub(crate) fn as_text(best: Option<&NoiseChoice>) -> String {
    match best {
        None => String::new(),
        Some(best) if best.bands() == 1 => {
            "Use plain noise: with SGD at a constant learning rate, noise that is correlated between rounds would not have \
             less error here."
                .to_owned()
        }
        Some(best) => format!(
            "With SGD at a constant learning rate, noise that is correlated over {} rounds has {:.2} of the error of plain \
             noise in the model (noise multiplier {}): [privacy.correlated] in a configuration of train.",
            best.bands(),
            best.error_ratio,
            required_noise_up(best.noise.get())
        ),
    }
}

/// The sentence as a paragraph of its own.
pub(super) fn as_paragraph(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!("\n{text}\n") }
}
