//! Answers that are not given as flags: asked for on a terminal.

use std::io::BufRead;

use crate::error::Error;
use crate::output::say;

/// Where answers come from.
pub(super) struct Answers<R> {
    /// The terminal, if there is one.
    pub(super) terminal: Option<R>,
}

/// A question, and the flag that answers it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Question<'a> {
    pub(super) flag: &'a str,
    pub(super) text: &'a str,
}

impl<R: BufRead> Answers<R> {
    /// The answer to a question. An empty line is the default; an answer that is not valid is asked for again.
    ///
    /// # Errors
    /// When there is neither a terminal nor a default, or the input ends.
    pub(super) fn ask<T>(
        &mut self,
        question: Question<'_>,
        default: Option<&str>,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Result<T, Error> {
        let Question { flag, text } = question;
        let usage = |why: String| Error::Usage(format!("{flag}: {why}"));
        let Some(terminal) = &mut self.terminal else {
            let missing = || Error::Usage(format!("{flag} is missing: {text}"));
            return parse(default.ok_or_else(missing)?).map_err(usage);
        };
        loop {
            let usual = default.filter(|default| !default.is_empty());
            let usual = usual.map_or(String::new(), |usual| format!(" [{usual}]"));
            say(&format!("{text}{usual}: "));
            let mut line = String::new();
            let read = terminal.read_line(&mut line);
            let read = read.map_err(|cause| Error::File { path: "stdin".to_owned(), cause })?;
            if read == 0 {
                return Err(Error::Usage(format!("{flag} is missing: the input ended")));
            }
            match (line.trim(), default) {
                ("", Some(default)) => return parse(default).map_err(usage),
                (answer, _) => match parse(answer) {
                    Ok(value) => return Ok(value),
                    Err(why) => say(&format!("{why}\n")),
                },
            }
        }
    }
}

/// A name that is not empty.
pub(super) fn named(answer: &str) -> Result<String, String> {
    if answer.is_empty() { Err("a name is needed".to_owned()) } else { Ok(answer.to_owned()) }
}
