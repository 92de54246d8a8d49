//! docs/configuration.md, made from the reference.

use super::{Default, Key, Table, Value, tables};

const HEAD: &str = "# Configuration

<!-- Made by `veilgrad man configuration`; a test compares it with the code. -->

Every key of a configuration for `train`, `check` and `audit`. It is TOML. Unknown keys and values of a wrong type are errors,
and `veilgrad check CONFIG` lists everything that is wrong at once, with lines and suggestions. `veilgrad init DATA` writes a
configuration; [advice.md](advice.md) says how to choose values, and has a glossary.

Paths are relative to the configuration's directory. Everything in a configuration is public: what private data could decide
is *declared*, so that no output depends on private data except through noise. A declaration that is read off the private data
is not covered by the guarantee.

In the column \"effect on privacy\", *none* means: whatever the value, the guarantee stays, and only accuracy, time or format
change.
";

/// The reference as a page of Markdown.
pub(crate) fn page() -> String {
    let mut page = HEAD.to_owned();
    for table in tables() {
        page.push_str(&format!("\n## {}\n\n{}\n\n", heading(table), table.about));
        page.push_str(
            "| key | type | default | what it sets | effect on privacy |\n|---|---|---|---|---|\n",
        );
        for key in table.keys {
            page.push_str(&row(key));
        }
    }
    page
}

/// The name of a table, as code.
fn heading(table: &Table) -> String {
    format!("`{}`", table.label.trim_end_matches(':'))
}

fn row(key: &Key) -> String {
    let default = match key.default {
        Default::Required => "required",
        Default::Absent => "not used",
        Default::Is(what) => what,
    };
    let kinds: Vec<String> = key.kinds.iter().map(|kind| format!("`{kind}`")).collect();
    let about = match kinds.is_empty() {
        true => key.about.to_owned(),
        false => format!("{} For {}.", key.about, kinds.join(", ")),
    };
    let (name, kind, effect) = (key.name, short(key.value), key.effect);
    // The example of a hash would make the table too wide.
    let example = if key.example.len() > 50 { "\"...\"" } else { key.example };
    let cells =
        [format!("`{name} = {example}`"), kind, default.to_owned(), about, effect.to_owned()];
    let cells = cells.map(|cell| cell.replace('|', "\\|"));
    format!("| {} |\n", cells.join(" | "))
}

/// The type, for the table.
fn short(value: Value) -> String {
    match value {
        Value::Text => "text".to_owned(),
        Value::Path => "path".to_owned(),
        Value::Character => "character".to_owned(),
        Value::Boolean => "true or false".to_owned(),
        Value::Number => "number".to_owned(),
        Value::Whole(least) => format!("whole number from {least}"),
        Value::WholeTo(least, most) => format!("whole number from {least} to {most}"),
        Value::Pair(each) => format!("two of: {}", short(*each)),
        Value::List(each) => format!("list of: {}", short(*each)),
        Value::OneOf(words) => {
            let words: Vec<String> = words.iter().map(|word| format!("`\"{word}\"`")).collect();
            words.join(", ")
        }
        Value::Either(one, other) => format!("{}, or {}", short(*one), short(*other)),
        Value::Table(path) => format!("table, `{path}`"),
        Value::Tables(path) => format!("tables, `[[{path}]]`"),
    }
}
