//! `veilgrad completions` and `veilgrad man`, generated from the argument declarations.

use clap::CommandFactory;
use clap::builder::Resettable;
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Inline, Roff, line_break, roman};

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
    let page = render(found).map_err(|cause| Error::File { path: "the page".to_owned(), cause })?;
    print_bytes(&page)
}

/// The page of a command. What follows its options in `--help` has the headings of manual pages.
fn render(command: &clap::Command) -> std::io::Result<Vec<u8>> {
    let mut page = Vec::new();
    Man::new(command.clone().after_help(Resettable::Reset)).render(&mut page)?;
    let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let (examples, codes) = help.split_once("\n\nExit codes: ").unwrap_or((&help, ""));
    page.extend(section("EXIT STATUS", codes.replace('\n', " ").split("; ")).bytes());
    page.extend(section("EXAMPLES", examples.lines().skip(1).map(str::trim)).bytes());
    Ok(page)
}

/// A section with a line for every text; nothing without any.
fn section<'a>(heading: &str, lines: impl Iterator<Item = &'a str>) -> String {
    let lines: Vec<&str> = lines.filter(|line| !line.is_empty()).collect();
    if lines.is_empty() {
        return String::new();
    }
    let text: Vec<Inline> = lines.iter().flat_map(|line| [roman(*line), line_break()]).collect();
    Roff::new().control("SH", [heading]).text(text).to_roff()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(command: &clap::Command) -> usize {
        let page = String::from_utf8(render(command).unwrap()).unwrap();
        let name = command.get_name();
        assert!(page.matches("\n.SH EXAMPLES\n").count() == 1, "{name}: {page}");
        assert!(!page.contains("EXTRA") && !page.contains("Examples:"), "{name}: {page}");
        1 + command
            .get_subcommands()
            .filter(|below| below.get_name() != "help")
            .map(check)
            .sum::<usize>()
    }

    #[test]
    fn the_page_of_every_command_has_examples_under_their_heading() {
        let mut command = Arguments::command();
        command.build();
        assert!(check(&command) >= 20);
    }
}
