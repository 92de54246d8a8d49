//! Names of datasets: two that look alike, or nearly, are one.

use unicode_normalization::UnicodeNormalization;

/// What two names of one dataset have in common: without case, width, composition of accents, invisible characters, and
/// with every run of white space as one space.
pub(crate) fn canonical(name: &str) -> String {
    let visible: String = name.nfkc().filter(|c| !is_invisible(*c)).collect();
    // Upper case first: ß and ss, and both small sigmas, are then the same.
    let folded: String =
        visible.chars().flat_map(char::to_uppercase).flat_map(char::to_lowercase).nfkc().collect();
    folded.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The rules for the name of a new dataset.
pub(crate) fn check_new(name: &str) -> Result<(), String> {
    if let Some(found) = name.chars().find(|c| is_invisible(*c)) {
        return Err(format!(
            "dataset name {name:?}: has the invisible character U+{:04X}",
            u32::from(found)
        ));
    }
    if name.trim() != name || canonical(name).is_empty() {
        return Err(format!("dataset name {name:?}: begins or ends with white space"));
    }
    Ok(())
}

/// Whether a character shows nothing by itself: format characters, fillers and selectors of Unicode 16. White space is
/// visible as such.
fn is_invisible(c: char) -> bool {
    const INVISIBLE: [(char, char); 26] = [
        ('\u{ad}', '\u{ad}'),
        ('\u{34f}', '\u{34f}'),
        ('\u{600}', '\u{605}'),
        ('\u{61c}', '\u{61c}'),
        ('\u{6dd}', '\u{6dd}'),
        ('\u{70f}', '\u{70f}'),
        ('\u{890}', '\u{891}'),
        ('\u{8e2}', '\u{8e2}'),
        ('\u{115f}', '\u{1160}'),
        ('\u{17b4}', '\u{17b5}'),
        ('\u{180b}', '\u{180f}'),
        ('\u{200b}', '\u{200f}'),
        ('\u{202a}', '\u{202e}'),
        ('\u{2060}', '\u{206f}'),
        ('\u{2800}', '\u{2800}'),
        ('\u{3164}', '\u{3164}'),
        ('\u{fe00}', '\u{fe0f}'),
        ('\u{feff}', '\u{feff}'),
        ('\u{ffa0}', '\u{ffa0}'),
        ('\u{fff0}', '\u{fffb}'),
        ('\u{110bd}', '\u{110bd}'),
        ('\u{110cd}', '\u{110cd}'),
        ('\u{13430}', '\u{1343f}'),
        ('\u{1bca0}', '\u{1bca3}'),
        ('\u{1d173}', '\u{1d17a}'),
        ('\u{e0000}', '\u{e0fff}'),
    ];
    c.is_control() || INVISIBLE.iter().any(|(first, last)| (*first..=*last).contains(&c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_of_one_name_have_one_canonical_form() {
        for (one, other) in [
            ("mnist", "MNIST"),
            ("visits 2024", " visits\u{a0}\t 2024 "),
            ("visits", "vis\u{200b}its"),
            ("visits", "\u{202e}visits\u{feff}"),
            ("caf\u{e9}", "cafe\u{301}"),
            ("\u{ff4d}nist", "mnist"),
            ("stra\u{df}e", "STRASSE"),
            ("\u{3c3}\u{3bf}\u{3c2}", "\u{3a3}\u{39f}\u{3a3}"),
        ] {
            assert_eq!(canonical(one), canonical(other), "{one:?} {other:?}");
        }
        for (one, other) in [("visits1", "visits 1"), ("a", "b"), ("a-b", "a_b")] {
            assert_ne!(canonical(one), canonical(other));
        }
    }

    #[test]
    fn new_names_have_nothing_invisible() {
        for good in ["mnist", "visits 2024", "caf\u{e9}", "\u{65e5}\u{672c}"] {
            check_new(good).unwrap();
        }
        for bad in ["a\u{200b}", "a\u{ad}b", "\u{202e}a", " a", "a ", "\u{a0}", "\u{3164}"] {
            assert!(check_new(bad).is_err(), "{bad:?}");
        }
    }
}
