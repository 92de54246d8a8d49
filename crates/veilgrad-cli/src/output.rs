//! Output: stdout, which may be full or closed, and files that only their owner can read.
//!
//! Names in ledgers, models and reports are untrusted. Everything that is printed goes through [`visible`], so that no
//! name can move the cursor, colour a line or reverse text.

use std::borrow::Cow;
use std::io::{ErrorKind, IsTerminal, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::Error;

/// Whether this process has written anything to stdout.
static WRITTEN: AtomicBool = AtomicBool::new(false);

/// Whether stdout has something already, so that an error must not add a second JSON document.
pub(crate) fn is_written() -> bool {
    WRITTEN.load(Ordering::Relaxed)
}

/// Writes text to stdout, with hidden characters escaped. A closed stdout is not an error.
pub(crate) fn print(text: &str) -> Result<(), Error> {
    print_bytes(visible(text).as_bytes())
}

pub(crate) fn print_json(document: &impl std::fmt::Display) -> Result<(), Error> {
    print(&format!("{document}\n"))
}

/// One answer: a JSON document for programs, or text for people.
pub(crate) fn print_answer(
    json: bool,
    document: &serde_json::Value,
    text: &str,
) -> Result<(), Error> {
    if json { print_json(document) } else { print(text) }
}

/// A two-column table of names and values.
pub(crate) fn table(rows: &[(&str, String)]) -> String {
    rows.iter().map(|(name, value)| format!("{name:<18}{value}\n")).collect()
}

/// A number with at most this many significant digits, whatever its unit: `0.0000123`, `123457`, `1.5e-9`.
pub(crate) fn significant(value: f64, digits: usize) -> String {
    let scientific = format!("{value:.0$e}", digits.saturating_sub(1));
    let rounded = scientific.parse().unwrap_or(value);
    match rounded.abs() {
        size if size == 0.0 || (1e-5..1e15).contains(&size) => format!("{rounded}"),
        _ => format!("{rounded:e}"),
    }
}

/// Writes text whose bytes must not change. On a terminal, hidden characters are escaped all the same.
pub(crate) fn print_exact(text: &str) -> Result<(), Error> {
    if std::io::stdout().is_terminal() { print(text) } else { print_bytes(text.as_bytes()) }
}

/// Writes bytes to stdout as they are.
pub(crate) fn print_bytes(bytes: &[u8]) -> Result<(), Error> {
    WRITTEN.store(true, Ordering::Relaxed);
    let mut out = std::io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(cause) if cause.kind() == ErrorKind::BrokenPipe => Ok(()),
        result => result.map_err(|cause| Error::File { path: "stdout".to_owned(), cause }),
    }
}

/// Does some work, and prints to stderr what it is if it takes longer than a second.
pub(crate) fn with_notice<T>(what: &str, quiet: bool, work: impl FnOnce() -> T) -> T {
    let (done, waiting) = std::sync::mpsc::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let waited = waiting.recv_timeout(std::time::Duration::from_secs(1));
            if waited == Err(std::sync::mpsc::RecvTimeoutError::Timeout) && !quiet {
                say(&format!("{what} ...\n"));
            }
        });
        let found = work();
        drop(done);
        found
    })
}

/// Writes text to stderr, with hidden characters escaped. A closed stderr is not an error.
pub(crate) fn say(text: &str) {
    let mut out = std::io::stderr().lock();
    let _ = out.write_all(visible(text).as_bytes()).and_then(|()| out.flush());
}

/// Overwrites the current line of a terminal.
pub(crate) fn say_over(text: &str) {
    let mut out = std::io::stderr().lock();
    let _ = write!(out, "\r{}", visible(text)).and_then(|()| out.flush());
}

/// Escapes invisible characters and those that change how others are displayed: `\u202e`. Inside a JSON string the escape
/// means the same character. Line ends and tabs stay.
pub(crate) fn visible(text: &str) -> Cow<'_, str> {
    let needs_escape = |c: char| is_hidden(c) && !matches!(c, '\n' | '\t');
    if !text.contains(needs_escape) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        if needs_escape(c) {
            let mut units = [0; 2];
            escaped.extend(c.encode_utf16(&mut units).iter().map(|unit| format!("\\u{unit:04x}")));
        } else {
            escaped.push(c);
        }
    }
    Cow::Owned(escaped)
}

/// Refuses a declared name with invisible characters or ones that change how others are displayed.
pub(crate) fn check_name(what: &str, name: &str) -> Result<(), String> {
    if name.contains(is_hidden) {
        return Err(format!(
            "{what} \"{}\" has a control character or one that cannot be seen",
            visible(name).replace('\n', "\\n").replace('\t', "\\t")
        ));
    }
    Ok(())
}

/// Whether a character is a control character (terminal escapes begin with one), changes the direction of text, is
/// whitespace other than a space, or is invisible: Unicode's `Default_Ignorable_Code_Point`, separators, and the Braille
/// blank.
fn is_hidden(c: char) -> bool {
    c.is_control()
        || (c.is_whitespace() && c != ' ')
        || matches!(
            u32::from(c),
            0xad | 0x34f | 0x61c | 0x115f..=0x1160 | 0x17b4..=0x17b5 | 0x180b..=0x180f
                | 0x200b..=0x200f | 0x2028..=0x202e | 0x2060..=0x206f | 0x2800 | 0x3164
                | 0xfe00..=0xfe0f | 0xfeff | 0xffa0 | 0xfff0..=0xfffb | 0x1bca0..=0x1bca3
                | 0x1d173..=0x1d17a | 0xe0000..=0xe0fff
        )
}

/// A cell of a CSV file. Spreadsheets evaluate cells that begin like a formula; an apostrophe turns them into text. Plain
/// numbers stay as they are.
pub(crate) fn csv_cell(text: &str) -> String {
    let starts = text.starts_with(['=', '+', '-', '@', '\t', '\r', '\n', '＝', '＋', '－', '＠']);
    let formula = starts && text.parse::<f64>().is_err();
    let text = if formula { format!("'{text}") } else { text.to_owned() };
    if text.contains([',', '"', '\n', '\r', '\'']) {
        return format!("\"{}\"", text.replace('"', "\"\""));
    }
    text
}

/// Creates a directory that only its owner can enter, and its missing parents.
pub(crate) fn create_directory(path: &Path) -> Result<(), Error> {
    let mut builder = std::fs::DirBuilder::new();
    std::os::unix::fs::DirBuilderExt::mode(builder.recursive(true), 0o700);
    builder.create(path).map_err(|cause| file_error(path, cause))
}

/// Writes a file atomically, readable by its owner only.
pub(crate) fn write_file(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    veilgrad_nn::write_private(path, bytes).map_err(|cause| file_error(path, cause))
}

pub(crate) fn file_error(path: &Path, cause: std::io::Error) -> Error {
    Error::File { path: path.display().to_string(), cause }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_characters_are_escaped_and_others_stay() {
        for plain in ["", "mnist", "Größe 東京 e\u{301}", "two\nlines\tand a tab", "-1 = '\"\\"]
        {
            assert!(matches!(visible(plain), Cow::Borrowed(text) if text == plain), "{plain}");
        }
        for (hidden, spelled) in [
            ("\x1b[31mred", "\\u001b[31mred"),
            ("a\rb\u{7}\u{7f}\u{9b}", "a\\u000db\\u0007\\u007f\\u009b"),
            ("\u{202e}live", "\\u202elive"),
            ("a\u{200b}b\u{feff}\u{a0}", "a\\u200bb\\ufeff\\u00a0"),
            ("\u{e0041}", "\\udb40\\udc41"),
        ] {
            assert_eq!(visible(hidden), spelled);
            assert!(check_name("class", hidden).unwrap_err().contains("cannot be seen"));
        }
        assert!(check_name("class", "Größe 東京").is_ok() && check_name("class", "a\nb").is_err());
    }

    #[test]
    fn a_json_document_with_escaped_hidden_characters_means_the_same() {
        let document = serde_json::json!({ "name": "\u{202e}\u{9b}\u{e0041}\x1b", "n": 1 });
        let text = document.to_string();
        assert_ne!(visible(&text), text);
        assert_eq!(serde_json::from_str::<serde_json::Value>(&visible(&text)).unwrap(), document);
    }

    #[test]
    fn numbers_in_small_and_large_units_keep_their_digits() {
        for (value, digits, text) in [
            (0.000_012_345_678, 6, "0.0000123457"),
            (1.5e-9, 6, "1.5e-9"),
            (0.1 + 0.2, 9, "0.3"),
            (-1_234_567.89, 6, "-1234570"),
            (499_999.999_999, 9, "500000"),
            (2.5e20, 6, "2.5e20"),
            (0.0, 6, "0"),
        ] {
            assert_eq!(significant(value, digits), text);
        }
    }

    #[test]
    fn cells_that_begin_like_formulas_become_text_and_numbers_stay() {
        for (text, cell) in [
            ("yes", "yes"),
            ("-1", "-1"),
            ("+1.5e3", "+1.5e3"),
            ("=1+2", "\"'=1+2\""),
            ("@SUM(A1)", "\"'@SUM(A1)\""),
            ("-cmd", "\"'-cmd\""),
            ("+x", "\"'+x\""),
            ("\t=1", "\"'\t=1\""),
            ("a,b", "\"a,b\""),
            ("a\"b", "\"a\"\"b\""),
            ("a\rb", "\"a\rb\""),
            ("=\"x\"", "\"'=\"\"x\"\"\""),
        ] {
            assert_eq!(csv_cell(text), cell, "{text}");
        }
    }
}
