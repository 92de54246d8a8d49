//! `veilgrad completions` and `veilgrad man`, generated from the argument declarations.

use clap::CommandFactory;
use clap_complete::Shell;

use crate::argument::Arguments;
use crate::error::Error;
use crate::output::print_bytes;
use crate::train::reference;

pub(crate) fn completions(shell: Shell) -> Result<(), Error> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "veilgrad", &mut script);
    print_bytes(&script)
}

/// The manual page of a command: of `budget create` for these two words, of all commands for none.
/// The keys of a configuration, in Markdown, for the word `configuration`.
pub(crate) fn page(words: &[String]) -> Result<(), Error> {
    if words == ["configuration"] {
        return print_bytes(reference::page().as_bytes());
    }
    let mut command = Arguments::command();
    // Gives every subcommand its full name and the global options.
    command.build();
    let mut found = &command;
    for word in words {
        found = found
            .find_subcommand(word)
            .ok_or_else(|| Error::Usage(format!("there is no command {:?}", words.join(" "))))?;
    }
    let mut page = Vec::new();
    clap_mangen::Man::new(found.clone())
        .render(&mut page)
        .map_err(|cause| Error::File { path: "the page".to_owned(), cause })?;
    print_bytes(&page)
}
