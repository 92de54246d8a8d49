//! Reads lines of text tables, and splits lines of CSV into cells.
//!
//! # Guarantee
//! Every line is one record. A quote that is left open ends with its line, so the text of one record can neither absorb
//! other records nor become several. A line takes a limited amount of memory, whatever a compressed file claims.

use std::io::{self, BufRead, Read};

/// The longest line that is read: longer ones are records that contribute zero.
const LONGEST: u64 = 1 << 26;

/// What [`read_line`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Line {
    Whole,
    /// Longer than [`LONGEST`]; it was skipped.
    TooLong,
    /// The end of the file.
    End,
}

/// Reads the next line, with its line ending.
pub(crate) fn read_line(file: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<Line> {
    read_line_up_to(file, line, LONGEST)
}

fn read_line_up_to(file: &mut impl BufRead, line: &mut Vec<u8>, longest: u64) -> io::Result<Line> {
    line.clear();
    let found = Read::take(&mut *file, longest).read_until(b'\n', line)?;
    if found as u64 == longest && !line.ends_with(b"\n") {
        line.clear();
        file.skip_until(b'\n')?;
        return Ok(Line::TooLong);
    }
    Ok(if found == 0 { Line::End } else { Line::Whole })
}

/// The cells of one line. Not `Debug`: they are private.
#[derive(Default)]
pub(crate) struct Cells {
    text: Vec<u8>,
    ends: Vec<usize>,
}

impl Cells {
    /// Splits a line at its delimiters and removes quotes. False if a quote is left open.
    pub(crate) fn split(&mut self, line: &[u8], delimiter: u8) -> bool {
        self.text.clear();
        self.ends.clear();
        let mut bytes = line.iter().copied().peekable();
        loop {
            let mut quoted = bytes.next_if_eq(&b'"').is_some();
            loop {
                match bytes.next() {
                    None => {
                        self.ends.push(self.text.len());
                        return !quoted;
                    }
                    // Two quotes are one quote in the text.
                    Some(b'"') if quoted && bytes.next_if_eq(&b'"').is_none() => quoted = false,
                    Some(byte) if byte == delimiter && !quoted => {
                        self.ends.push(self.text.len());
                        break;
                    }
                    Some(byte) => self.text.push(byte),
                }
            }
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.ends.len()
    }

    /// A cell, trimmed; `None` if it is not UTF-8 or does not exist.
    pub(crate) fn get(&self, place: usize) -> Option<&str> {
        let end = *self.ends.get(place)?;
        let start = match place.checked_sub(1) {
            Some(before) => *self.ends.get(before)?,
            None => 0,
        };
        std::str::from_utf8(self.text.get(start..end)?).ok().map(str::trim)
    }
}

/// A line without its line ending.
pub(crate) fn without_end(line: &[u8]) -> &[u8] {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    line.strip_suffix(b"\r").unwrap_or(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cells(line: &str) -> Option<Vec<String>> {
        let mut cells = Cells::default();
        let closed = cells.split(line.as_bytes(), b',');
        closed.then(|| (0..cells.count()).map(|i| cells.get(i).unwrap().to_owned()).collect())
    }

    #[test]
    fn lines_are_split_at_commas_outside_of_quotes() {
        for (line, expected) in [
            ("a,b", vec!["a", "b"]),
            ("", vec![""]),
            (",", vec!["", ""]),
            (" a ,\t b", vec!["a", "b"]),
            ("\"a,b\",c", vec!["a,b", "c"]),
            ("\"a\"\"b\",\"\"", vec!["a\"b", ""]),
            ("\"\"\"\"", vec!["\""]),
            ("a\"b,c", vec!["a\"b", "c"]),
            ("\"a\"b,c", vec!["ab", "c"]),
            ("\" a \",c", vec!["a", "c"]),
            ("a\rb,c", vec!["a\rb", "c"]),
        ] {
            assert_eq!(cells(line).unwrap(), expected, "{line:?}");
        }
        for open in ["\"", "a,\"b", "\"a\"\"", "\"a,b"] {
            assert!(cells(open).is_none(), "{open:?}");
        }
    }

    #[test]
    fn a_cell_that_is_not_text_leaves_the_others() {
        let mut cells = Cells::default();
        assert!(cells.split(b"a,\xff,c", b','));
        assert!(cells.get(0) == Some("a") && cells.get(1).is_none() && cells.get(2) == Some("c"));
        assert!(cells.get(3).is_none());
    }

    #[test]
    fn other_delimiters_leave_commas_alone() {
        let mut cells = Cells::default();
        assert!(cells.split(b"a,b;\"c;d\";e", b';'));
        assert!(cells.count() == 3 && cells.get(0) == Some("a,b") && cells.get(1) == Some("c;d"));
        // A tab is trimmed from a cell, but not when it separates cells.
        assert!(cells.split(b"\ta\t\tb", b'\t'));
        assert!(cells.count() == 4 && cells.get(0) == Some("") && cells.get(3) == Some("b"));
    }

    #[test]
    fn a_line_that_is_too_long_is_one_line() {
        let (mut file, mut line) = (&b"ab\nabcdefgh\nabcd\nxyz\n\nabcd"[..], Vec::new());
        let mut next = || {
            let found = read_line_up_to(&mut file, &mut line, 4).unwrap();
            (found, String::from_utf8(line.clone()).unwrap())
        };
        assert_eq!(next(), (Line::Whole, "ab\n".to_owned()));
        assert_eq!(next(), (Line::TooLong, String::new()));
        assert_eq!(next(), (Line::TooLong, String::new()));
        assert_eq!(next(), (Line::Whole, "xyz\n".to_owned()));
        assert_eq!(next(), (Line::Whole, "\n".to_owned()));
        assert_eq!(next(), (Line::TooLong, String::new()));
        assert_eq!(next(), (Line::End, String::new()));
    }

    #[test]
    fn only_one_line_ending_is_removed() {
        for (line, text) in
            [("a\n", "a"), ("a\r\n", "a"), ("a", "a"), ("a\r", "a"), ("a\r\r\n", "a\r"), ("\n", "")]
        {
            assert_eq!(without_end(line.as_bytes()), text.as_bytes());
        }
    }
}
