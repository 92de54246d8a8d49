//! What a public sample proposes: bounds of numbers, categories of words, classes.

use std::collections::BTreeSet;
use std::path::Path;

use veilgrad_data::table::{Schema, Target, TextFormat, column_names};

use crate::error::Error;

/// Columns with more words are taken for names or free text.
const MOST_WORDS: usize = 100;
/// Labels with more values are taken for numbers.
const MOST_CLASSES: usize = 20;
/// A column is of numbers if this share of its cells is.
const NUMBERS: f64 = 0.95;
/// Bounds are rounded outwards to a multiple of 1, 2 or 5 times a power of ten, of which so many fit between them.
const STEPS: f64 = 20.0;

/// What a column holds, by a public sample.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Proposal {
    /// Numbers; some cells are not, if `missing`.
    Number {
        bounds: [String; 2],
        missing: bool,
    },
    Words(Vec<String>),
    /// Why it should not be used.
    Nothing(String),
}

/// What a label is, by a public sample.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Label {
    Classes(Vec<String>),
    Bounds([String; 2]),
}

/// A public table.
pub(super) struct Sample {
    pub(super) columns: Vec<(String, Vec<Option<String>>)>,
}

impl Sample {
    /// Reads a public table; `header` has the names of its columns, if the file has none.
    pub(super) fn read(
        path: &Path,
        delimiter: Option<u8>,
        header: Option<Vec<String>>,
    ) -> Result<Self, Error> {
        let text = TextFormat { delimiter, header };
        let data_error = |error: veilgrad_data::DataError| Error::Data {
            path: path.display().to_string(),
            cause: error.to_string(),
        };
        let names = column_names(path, &text).map_err(data_error)?;
        let schema = Schema {
            columns: Vec::new(),
            label: String::new(),
            target: Target::Classes(Vec::new()),
            user: None,
            text,
        };
        let column = |name: String| {
            let (_, texts) = schema.read_inputs_with(path, &name).map_err(data_error)?;
            Ok((name, texts))
        };
        let columns = names.into_iter().map(column).collect::<Result<Vec<_>, Error>>()?;
        Ok(Self { columns })
    }

    pub(super) fn column(&self, name: &str) -> Option<&[Option<String>]> {
        let found = self.columns.iter().find(|(column, _)| column == name);
        found.map(|(_, texts)| texts.as_slice())
    }
}

/// What a column holds, by the texts of its cells.
pub(super) fn propose(texts: &[Option<String>]) -> Proposal {
    let words: BTreeSet<&str> = texts.iter().flatten().map(String::as_str).collect();
    let numbers: Vec<f64> = texts.iter().flatten().filter_map(|text| number(text)).collect();
    let cells = texts.iter().flatten().count();
    match words.len() {
        0 => Proposal::Nothing("the sample has no value of it".to_owned()),
        1 => Proposal::Nothing("the sample has one value of it".to_owned()),
        _ if numbers.len() as f64 >= NUMBERS * cells as f64 => match outward(&numbers) {
            Some(bounds) => Proposal::Number { bounds, missing: numbers.len() < texts.len() },
            None => Proposal::Nothing("its numbers are all the same, or too large".to_owned()),
        },
        count if count > MOST_WORDS => Proposal::Nothing(format!(
            "the sample has more than {MOST_WORDS} different words of it"
        )),
        _ => Proposal::Words(words.into_iter().map(str::to_owned).collect()),
    }
}

/// What a label is, by the texts of its cells.
pub(super) fn propose_label(texts: &[Option<String>]) -> Result<Label, String> {
    let words: BTreeSet<&str> = texts.iter().flatten().map(String::as_str).collect();
    let whole = |text: &&str| number(text).is_some_and(|number| number.fract() == 0.0);
    let classes = || Ok(Label::Classes(words.iter().map(|word| (*word).to_owned()).collect()));
    if (2..=MOST_CLASSES).contains(&words.len()) && words.iter().all(whole) {
        return classes();
    }
    match propose(texts) {
        Proposal::Number { bounds, .. } => Ok(Label::Bounds(bounds)),
        Proposal::Words(_) => classes(),
        Proposal::Nothing(why) => Err(why),
    }
}

fn number(text: &str) -> Option<f64> {
    text.parse::<f64>().ok().filter(|number| number.is_finite())
}

/// Friendly bounds that contain these numbers; `None` if they are all the same or too far apart.
fn outward(numbers: &[f64]) -> Option<[String; 2]> {
    let low = numbers.iter().copied().fold(f64::INFINITY, f64::min);
    let high = numbers.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let width = high - low;
    if !(width > 0.0 && width.is_finite()) {
        return None;
    }
    let all_whole = numbers.iter().all(|number| number.fract() == 0.0);
    let least = width / STEPS;
    let power = 10f64.powf(least.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|times| times * power).into_iter();
    let step = step.into_iter().find(|step| *step >= least)?;
    let step = if all_whole { step.max(1.0) } else { step };
    let decimals = (-step.log10().floor()).max(0.0) as usize;
    // Rounded to the digits of a step, and then as short as possible.
    let shown = |value: f64| {
        let rounded = format!("{value:.decimals$}").parse::<f64>();
        rounded.unwrap_or(value).to_string()
    };
    let is_below = |text: &str| text.parse::<f64>().is_ok_and(|bound| bound <= low);
    let is_above = |text: &str| text.parse::<f64>().is_ok_and(|bound| bound >= high);
    // The last one is a step further out, should rounding have gone inwards.
    let lows = [low / step, low / step - 1.0].map(|steps| shown(steps.floor() * step + 0.0));
    let highs = [high / step, high / step + 1.0].map(|steps| shown(steps.ceil() * step + 0.0));
    let first = lows.into_iter().find(|text| is_below(text))?;
    Some([first, highs.into_iter().find(|text| is_above(text))?])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(list: &[&str]) -> Vec<Option<String>> {
        list.iter().map(|text| (!text.is_empty()).then(|| (*text).to_owned())).collect()
    }

    #[test]
    fn bounds_are_rounded_outwards_to_friendly_numbers() {
        for (numbers, low, high) in [
            (vec![17.0, 90.0], "15", "90"),
            (vec![0.0, 99_999.0], "0", "100000"),
            (vec![0.0, 1.0], "0", "1"),
            (vec![-2.0, 8.0], "-2", "8"),
            (vec![0.05263, 0.1634], "0.05", "0.17"),
            (vec![1.5e9, 3.25e9], "1500000000", "3300000000"),
            (vec![-0.3, 0.31], "-0.3", "0.35"),
        ] {
            assert_eq!(outward(&numbers), Some([low.to_owned(), high.to_owned()]), "{numbers:?}");
        }
        assert_eq!(outward(&[3.0, 3.0]), None);
        assert_eq!(outward(&[-f64::MAX, f64::MAX]), None);
        let mut state = 1u64;
        let mut random = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 11) as f64 / (1u64 << 53) as f64
        };
        for _ in 0..2000 {
            let scale = 10f64.powf(20.0 * random() - 10.0);
            let (one, other) = ((random() - 0.5) * scale, (random() - 0.5) * scale);
            let Some([low, high]) = outward(&[one, other]) else { continue };
            let (low, high): (f64, f64) = (low.parse().unwrap(), high.parse().unwrap());
            assert!(low <= one.min(other) && high >= one.max(other), "{one} {other} {low} {high}");
            assert!(high - low <= 1.3 * (one - other).abs(), "{one} {other} {low} {high}");
        }
    }

    #[test]
    fn a_column_is_of_numbers_or_of_words_or_not_used() {
        let number = |low: &str, high: &str, missing| Proposal::Number {
            bounds: [low.to_owned(), high.to_owned()],
            missing,
        };
        assert_eq!(propose(&texts(&["1", "5", "3"])), number("1", "5", false));
        assert_eq!(propose(&texts(&["1", "", "5"])), number("1", "5", true));
        let words = Proposal::Words(vec!["a".to_owned(), "b".to_owned()]);
        assert_eq!(propose(&texts(&["b", "a", "", "b"])), words);
        for list in [&["", ""][..], &["a", "a"], &["7", "7"]] {
            assert!(matches!(propose(&texts(list)), Proposal::Nothing(_)), "{list:?}");
        }
        let many: Vec<Option<String>> = (0..200).map(|i| Some(format!("name {i}"))).collect();
        assert!(matches!(propose(&many), Proposal::Nothing(why) if why.contains("more than 100")));
        // Numbers, of which one in a hundred is written as a word.
        let mut mixed: Vec<Option<String>> = (0..100).map(|i| Some(i.to_string())).collect();
        mixed.push(Some("unknown".to_owned()));
        assert!(matches!(propose(&mixed), Proposal::Number { missing: true, .. }));
    }

    #[test]
    fn a_label_of_few_whole_numbers_is_a_class() {
        let classes =
            |list: &[&str]| Label::Classes(list.iter().map(|c| (*c).to_owned()).collect());
        assert_eq!(propose_label(&texts(&["1", "0", "1"])), Ok(classes(&["0", "1"])));
        assert_eq!(propose_label(&texts(&["yes", "no"])), Ok(classes(&["no", "yes"])));
        let bounds = Label::Bounds(["0".to_owned(), "1".to_owned()]);
        assert_eq!(propose_label(&texts(&["0.1", "0.97", "0.02"])), Ok(bounds));
        assert!(propose_label(&texts(&["yes", "yes"])).is_err());
    }
}
