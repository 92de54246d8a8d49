//! Names of datasets: names that look the same count as one.

use unicode_normalization::UnicodeNormalization;

/// The canonical form of a name: without case, character width, composition of accents and invisible characters, and
/// with white space collapsed.
pub(crate) fn canonical(name: &str) -> String {
    let visible: String = name.nfkc().filter(|c| !is_invisible(*c)).collect();
    // Upper case first, so that ß equals ss and both small sigmas are equal.
    let folded: String =
        visible.chars().flat_map(char::to_uppercase).flat_map(char::to_lowercase).nfkc().collect();
    folded.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Checks the name of a new dataset.
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

/// Whether a character is invisible: control and format characters, fillers and variation selectors of Unicode 16.
/// White space counts as visible.
fn is_invisible(c: char) -> bool {
    c.is_control()
        || matches!(
            u32::from(c),
            0xad | 0x34f | 0x600..=0x605 | 0x61c | 0x6dd | 0x70f | 0x890..=0x891 | 0x8e2
                | 0x115f..=0x1160 | 0x17b4..=0x17b5 | 0x180b..=0x180f | 0x200b..=0x200f
                | 0x202a..=0x202e | 0x2060..=0x206f | 0x2800 | 0x3164 | 0xfe00..=0xfe0f | 0xfeff
                | 0xffa0 | 0xfff0..=0xfffb | 0x110bd | 0x110cd | 0x13430..=0x1343f
                | 0x1bca0..=0x1bca3 | 0x1d173..=0x1d17a | 0xe0000..=0xe0fff
        )
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
