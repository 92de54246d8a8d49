//! Input of the command: configurations, arguments, stored reports.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use veilgrad_cli::input;

/// A configuration that is accepted survives a round trip through a file.
pub(crate) fn configuration(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let Ok(written) = input::configuration(text) else { return };
    let again = input::configuration(&written);
    assert_eq!(again.as_ref(), Ok(&written), "a configuration changed on its way through a file");
}

/// Larger models take too long to build.
const MOST_PARAMETERS: u64 = 1 << 14;

/// A planned run has at most the target epsilon of its configuration.
pub(crate) fn job(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok((allowed, epsilon)) = input::job(text, MOST_PARAMETERS) {
        assert!(epsilon >= 0.0, "epsilon {epsilon}");
        assert!(allowed.is_none_or(|allowed| epsilon <= allowed), "{epsilon} of {allowed:?}");
    }
}

/// Arguments from one word per line, after the program's name.
fn words(bytes: &[u8]) -> Vec<OsString> {
    let words = bytes.split(|byte| *byte == b'\n').filter(|word| !word.is_empty());
    let words = words.map(|word| OsString::from_vec(word.to_vec()));
    std::iter::once(OsString::from("veilgrad")).chain(words).collect()
}

/// Arguments parse, or there is an error message.
pub(crate) fn arguments(bytes: &[u8]) {
    if let Err(message) = input::arguments(&words(bytes)) {
        assert!(!message.is_empty());
    }
}

/// `plan` has an answer, or there is an error message.
pub(crate) fn plan(bytes: &[u8]) {
    match input::plan(&words(bytes)) {
        Ok(Some(epsilon)) => assert!(epsilon >= 0.0, "epsilon {epsilon}"),
        Ok(None) => {}
        Err(message) => assert!(!message.is_empty()),
    }
}

/// Nothing in a stored report becomes a script on its page.
pub(crate) fn report(bytes: &[u8]) {
    let Ok(page) = input::report(bytes) else { return };
    assert!(!page.to_ascii_lowercase().contains("<script"), "a report has a script");
}
