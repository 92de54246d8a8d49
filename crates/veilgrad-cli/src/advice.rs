//! Advice on settings, in one place: `init` uses it to fill in a configuration, `plan` and `check` print it.
//!
//! All of it follows from declared numbers. docs/advice.md gives the reasons.

use serde_json::{Value, json};
use veilgrad_accounting::claim::{Attacker, warnings};
use veilgrad_accounting::display::up;

/// An epsilon up to this one keeps the best attack close to guessing.
const STRONG: f64 = 1.0;
/// Above this one, the guarantee by itself says little.
const WEAK: f64 = 10.0;
/// The largest delta that is proposed.
const LARGEST_DELTA: f64 = 1e-5;
/// A round uses one record in so many: fewer records have more noise in their average, more cost time.
const RECORDS_PER_BATCH: u64 = 8;
/// Larger batches gain little: the noise of a round then shrinks as slowly as epsilon grows.
const LARGEST_BATCH: u64 = 8192;
/// Smaller batches drown in noise.
const SMALLEST_BATCH: u64 = 256;
/// Linear models of tables are about as good after so many rounds as they get: of so many records, or fewer. Measured on
/// the tables of examples/real.
const ROUNDS_OF_LARGE: u64 = 400;
const ROUNDS_OF_SMALL: u64 = 200;
const LARGE: u64 = 20_000;
/// The clip norm.
pub(crate) const CLIP: f64 = 1.0;
pub(crate) const MOMENTUM: f64 = 0.9;

/// The proposed delta: a power of ten below one over the number of records, and at most 1e-5.
pub(crate) fn delta(records: u64) -> f64 {
    let below = (0..=18).map(|power| 10f64.powi(-power)).find(|d| d * (records as f64) < 1.0);
    below.unwrap_or(1e-18).min(LARGEST_DELTA)
}

/// The proposed batch.
pub(crate) fn batch(records: u64) -> u64 {
    (records / RECORDS_PER_BATCH).clamp(SMALLEST_BATCH.min(records), LARGEST_BATCH)
}

/// The proposed number of rounds.
pub(crate) const fn rounds(records: u64) -> u64 {
    if records < LARGE { ROUNDS_OF_SMALL } else { ROUNDS_OF_LARGE }
}

/// The proposed learning rate of a linear model with this many columns, each of which has a norm of at most 1. A step on
/// squared errors is stable if the rate is below the inverse of the squared norm of an example; gradients of classes are
/// bounded, so that steps may be as large as the noise allows.
pub(crate) fn learning_rate(records: u64, columns: usize, classes: bool) -> f64 {
    match (classes, records < LARGE) {
        (true, true) => 1.0,
        (true, false) => 4.0,
        (false, _) => round_down((8.0 / (columns as f64 + 1.0)).min(1.0)),
    }
}

/// Rounded down to one digit.
fn round_down(value: f64) -> f64 {
    let unit = 10f64.powf(value.log10().floor());
    (value / unit).floor() * unit
}

/// The settings of a run, as far as they are known.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Settings {
    pub(crate) epsilon: Option<f64>,
    pub(crate) delta: f64,
    /// What the best attack on a record can do, if that is known better than by epsilon and delta.
    pub(crate) attacker: Option<Attacker>,
    pub(crate) records: Option<u64>,
    pub(crate) batch: Option<f64>,
    pub(crate) rounds: Option<u64>,
    pub(crate) noise_multiplier: Option<f64>,
}

/// Advice on one setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Note {
    pub(crate) about: &'static str,
    pub(crate) text: String,
}

/// Advice on these settings.
pub(crate) fn on(settings: &Settings) -> Vec<Note> {
    let mut notes = Vec::new();
    let mut add = |about, text| notes.push(Note { about, text });
    if let Some(epsilon) = settings.epsilon {
        add("epsilon", about_epsilon(epsilon, settings));
    }
    add("delta", about_delta(settings.delta, settings.records));
    if let (Some(batch), Some(records)) = (settings.batch, settings.records) {
        add("batch", about_batch(batch, records));
    }
    if let Some(rounds) = settings.rounds {
        let advised = self::rounds(settings.records.unwrap_or(LARGE));
        add("rounds", about_rounds(rounds, advised, settings.noise_multiplier));
    }
    add(
        "clip norm",
        format!(
            "begin with {CLIP}: noise is proportional to it, so that epsilon does not depend on it"
        ),
    );
    add(
        "learning rate",
        "for a linear model on a table begin with 1, or 4 from 20000 records on; for numbers as labels with 8 / columns, \
         at most 1; let it fall to 0 (schedule = \"linear\"); try values on public data, since trying them on private data costs budget"
            .to_owned(),
    );
    notes
}

fn about_epsilon(epsilon: f64, settings: &Settings) -> String {
    let by_itself = Attacker::allowed_by(epsilon, settings.delta).protection().phrase();
    let grade = match settings.attacker.map(|attacker| attacker.protection().phrase()) {
        Some(grade) if grade != by_itself => {
            format!("{grade}, by the bound on attacks; epsilon and delta alone promise {by_itself}")
        }
        _ => by_itself.to_owned(),
    };
    let more = match epsilon {
        epsilon if epsilon <= STRONG => "",
        epsilon if epsilon <= WEAK => {
            "; 1 or less is advised for sensitive records, if accuracy allows it"
        }
        _ => "; above 10 the guarantee by itself rules out almost no attack",
    };
    format!("{}: {grade}{more}", up(epsilon))
}

fn about_delta(delta: f64, records: Option<u64>) -> String {
    let Some(records) = records else {
        return format!("{delta:e} should be well below one over the number of records");
    };
    // Epsilon is not what this is about.
    match warnings(0.0, delta, Some(records)).pop() {
        Some(warning) => format!("{warning}; {:e} or less is advised", self::delta(records)),
        None => format!("{delta:e} is below one over {records} records, as it should be"),
    }
}

fn about_batch(batch: f64, records: u64) -> String {
    let advised = self::batch(records);
    if batch < advised as f64 {
        return format!(
            "{batch} is small for {records} records: {advised} has less noise in the average gradient, at the same epsilon"
        );
    }
    format!("{batch} is large enough for {records} records; more costs time and gains little")
}

fn about_rounds(rounds: u64, advised: u64, noise: Option<f64>) -> String {
    let often = match rounds {
        rounds if rounds < advised / 4 => "few: weights may not have settled",
        rounds if rounds > 40 * advised => {
            "many: each needs noise for all of them, so that fewer may be better"
        }
        _ => "a usual number",
    };
    let noise = match noise {
        Some(noise) if noise < 0.5 => {
            "; a noise multiplier below 0.5 makes epsilon grow fast: use fewer rounds or a smaller batch"
        }
        _ => "",
    };
    format!("{rounds} is {often} (linear models on tables need about {advised}){noise}")
}

pub(crate) fn json(notes: &[Note]) -> Vec<Value> {
    notes.iter().map(|Note { about, text }| json!({ "about": about, "text": text })).collect()
}

/// Advice for people.
pub(crate) fn table(notes: &[Note]) -> String {
    if notes.is_empty() {
        return String::new();
    }
    let rows = notes.iter().map(|Note { about, text }| format!("  {about:<16}{text}\n"));
    format!("\nAdvice (docs/advice.md):\n{}", rows.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delta_is_a_power_of_ten_below_one_over_the_number_of_records() {
        for (records, expected) in [
            (1, 1e-5),
            (455, 1e-5),
            (99_999, 1e-5),
            (100_000, 1e-6),
            (1_000_000, 1e-7),
            (u64::MAX, 1e-18),
        ] {
            let found = delta(records);
            assert!((found / expected - 1.0).abs() < 1e-9, "{records}: {found}");
            assert!(records > 1 << 59 || found * (records as f64) < 1.0);
        }
    }

    #[test]
    fn a_batch_is_never_larger_than_the_number_of_records() {
        for (records, expected) in
            [(1, 1), (100, 100), (455, 256), (1594, 256), (32_561, 4070), (1 << 40, 8192)]
        {
            assert_eq!(batch(records), expected);
        }
    }

    #[test]
    fn steps_on_squared_errors_are_smaller_for_more_columns() {
        assert_eq!(learning_rate(455, 5, true).to_string(), "1");
        assert_eq!(learning_rate(30_000, 5, true).to_string(), "4");
        assert_eq!(learning_rate(30_000, 5, false).to_string(), "1");
        assert_eq!(learning_rate(30_000, 31, false).to_string(), "0.2");
        assert!((learning_rate(1594, 120, false) - 0.06).abs() < 1e-12);
        for columns in 1..500 {
            let rate = learning_rate(1000, columns, false);
            assert!(rate > 0.0 && rate * (columns as f64 + 1.0) <= 8.0 * (1.0 + 1e-12));
        }
    }

    #[test]
    fn weak_settings_are_called_so() {
        let settings = Settings {
            epsilon: Some(12.0),
            delta: 1e-3,
            attacker: None,
            records: Some(60_000),
            batch: Some(64.0),
            rounds: Some(10),
            noise_multiplier: Some(0.3),
        };
        let texts: Vec<String> = on(&settings).into_iter().map(|note| note.text).collect();
        for (place, what) in [
            (0, "no meaningful protection"),
            (0, "above 10"),
            (1, "above one over the declared number of records"),
            (1, "1e-5 or less is advised"),
            (2, "small for 60000 records"),
            (3, "few"),
            (3, "below 0.5"),
        ] {
            assert!(texts[place].contains(what), "{what}: {}", texts[place]);
        }
        let good = Settings {
            epsilon: Some(1.0),
            delta: 1e-5,
            batch: Some(8000.0),
            rounds: Some(300),
            noise_multiplier: Some(2.0),
            ..settings
        };
        let attacker = Some(Attacker { advantage: 0.2, true_positive_rate: 0.05 });
        let known = on(&Settings { attacker, epsilon: Some(3.0), ..good });
        assert!(known[0].text.contains(
            "strong protection, by the bound on attacks; epsilon and delta alone promise weak"
        ));
        let texts: Vec<String> = on(&good).into_iter().map(|note| note.text).collect();
        assert!(texts[1].contains("as it should be") && texts[2].contains("large enough"));
    }
}
