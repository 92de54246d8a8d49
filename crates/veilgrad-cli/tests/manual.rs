//! Help, manual pages and completions.

mod common;

use common::{ok, refused};

#[test]
fn help_of_a_command_ends_with_examples() {
    for words in [&["train", "--help"][..], &["budget", "create", "--help"], &["--help"]] {
        assert!(ok(words).contains("Examples:\n  veilgrad "), "{words:?}");
    }
}

#[test]
fn pages_and_completions_know_all_commands() {
    let page = ok(&["man"]);
    assert!(page.contains(".TH veilgrad 1") && page.contains("veilgrad\\-statement"), "{page}");
    let page = ok(&["man", "budget", "create"]);
    assert!(page.contains(".TH veilgrad-budget-create 1") && page.contains("epsilon"), "{page}");
    refused(&["man", "budget", "forge"], 2, "no command \"budget forge\"");
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        assert!(ok(&["completions", shell]).contains("statement"), "{shell}");
    }
    refused(&["completions", "sh"], 2, "bash");
}
