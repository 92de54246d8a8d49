//! Help, manual pages and completions.

use crate::common::{ok, refused};

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
    for words in [&["man"][..], &["man", "train"], &["man", "budget", "create"]] {
        let page = ok(words);
        assert!(page.contains("\n.SH EXAMPLES\n") && !page.contains("EXTRA"), "{page}");
        assert!(!page.contains("Examples:") && page.contains("\\-\\-epsilon"), "{page}");
    }
    let page = ok(&["man"]);
    assert!(
        page.contains("\n.SH \"EXIT STATUS\"\n") && page.contains("\n130 interrupted"),
        "{page}"
    );
    refused(&["man", "budget", "forge"], 2, "no command \"budget forge\"");
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        assert!(ok(&["completions", shell]).contains("statement"), "{shell}");
    }
    refused(&["completions", "sh"], 2, "bash");
}
