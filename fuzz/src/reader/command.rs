//! What people write for the command: configurations, words on a command line, stored reports.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use veilgrad_cli::input;

/// A configuration that is accepted is written and read again as the same.
pub(crate) fn configuration(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let Ok(written) = input::configuration(text) else { return };
    let again = input::configuration(&written);
    assert_eq!(again.as_ref(), Ok(&written), "a configuration changed on its way through a file");
}

/// Models of more parameters take time, as their configurations ask for.
const MOST_PARAMETERS: u64 = 1 << 14;

/// A run that is planned costs no more than its configuration allows.
pub(crate) fn job(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok((allowed, epsilon)) = input::job(text, MOST_PARAMETERS) {
        assert!(epsilon >= 0.0, "epsilon {epsilon}");
        assert!(allowed.is_none_or(|allowed| epsilon <= allowed), "{epsilon} of {allowed:?}");
    }
}

/// One word per line, the program's name first.
fn words(bytes: &[u8]) -> Vec<OsString> {
    let words = bytes.split(|byte| *byte == b'\n').filter(|word| !word.is_empty());
    let words = words.map(|word| OsString::from_vec(word.to_vec()));
    std::iter::once(OsString::from("veilgrad")).chain(words).collect()
}

/// Words are understood, or there is a message.
pub(crate) fn arguments(bytes: &[u8]) {
    if let Err(message) = input::arguments(&words(bytes)) {
        assert!(!message.is_empty());
    }
}

/// A question about a plan has an answer, or there is a message.
pub(crate) fn plan(bytes: &[u8]) {
    match input::plan(&words(bytes)) {
        Ok(Some(epsilon)) => assert!(epsilon >= 0.0, "epsilon {epsilon}"),
        Ok(None) => {}
        Err(message) => assert!(!message.is_empty()),
    }
}

/// A stored report makes a page in which nothing of it is markup.
pub(crate) fn report(bytes: &[u8]) {
    let Ok(page) = input::report(bytes) else { return };
    assert!(!page.to_ascii_lowercase().contains("<script"), "a report has a script");
}
