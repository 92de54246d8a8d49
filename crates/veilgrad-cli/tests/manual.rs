//! Help, manual pages and completions.

use crate::common::{ok, refused};

#[test]
fn help_of_a_command_ends_with_examples() {
    for words in [&["train", "--help"][..], &["budget", "create", "--help"], &["--help"]] {
        assert!(ok(words).contains("Examples:\n  veilgrad "), "{words:?}");
    }
}

/// The words of plans, statements and reports that a reader may look up.
#[test]
fn the_glossary_has_the_words_that_the_command_uses() {
    let page = format!("{}/../../docs/advice.md", env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(page).unwrap();
    let (_, glossary) = page.split_once("\n## Glossary\n").unwrap();
    let entries: Vec<&str> = glossary
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.split(" | ").next())
        .flat_map(|names| names.split(", "))
        .collect();
    for word in [
        "adjacency",
        "unit",
        "epsilon",
        "delta",
        "clip norm",
        "noise multiplier",
        "sampling rate",
        "round",
        "mu",
        "PLD",
        "RDP",
        "trade-off curve",
        "advantage",
        "budget",
        "ledger",
        "canary",
        "post-processing",
    ] {
        assert!(entries.contains(&word), "{word}: {entries:?}");
    }
    // Words in which `plan` answers.
    let plan =
        ["plan", "--rate", "0.01", "--steps", "10", "--delta", "1e-5", "--epsilon", "1", "--json"];
    let plan: serde_json::Value = serde_json::from_str(&ok(&plan)).unwrap();
    for key in ["epsilon", "delta", "noise_multiplier", "adjacency", "mu"] {
        assert!(
            plan.get(key).is_some() && entries.contains(&key.replace('_', " ").as_str()),
            "{key}"
        );
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
