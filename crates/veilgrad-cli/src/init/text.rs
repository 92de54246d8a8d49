//! The text of a configuration, with comments.

use std::path::Path;

use super::declared::{Column, Content, Declared, FileKind, Target};
use crate::advice;

/// The configuration of these declarations.
pub(super) fn configuration(declared: &Declared, output: &Path) -> String {
    let mut lines = Lines(String::new());
    let name = output.file_name().unwrap_or_default().to_string_lossy();
    lines.comment("Written by `veilgrad init`, which does not open the private data. Read every line: what is declared");
    lines.comment("here is taken for public. docs/configuration.md explains every key, docs/advice.md the settings.");
    lines.comment(&format!("Next: veilgrad check {name}, then: veilgrad train {name}"));
    if let Some(sample) = &declared.public_sample {
        let sample =
            sample.file_name().unwrap_or_default().to_string_lossy().replace(char::is_control, "?");
        lines.comment(&format!("Bounds, categories and classes that are not given were proposed from the public {sample}."));
    }
    lines.empty();
    data(declared, &mut lines);
    lines.empty();
    lines.line("[model]");
    lines.noted(
        "kind = \"linear\"",
        "\"mlp\" with hidden = [32] learns more complicated things, and needs more data",
    );
    lines.empty();
    training(declared, &mut lines);
    lines.0
}

fn data(declared: &Declared, lines: &mut Lines) {
    lines.line("[data]");
    lines.noted(
        &format!("train = {}", path(&declared.train)),
        "private: opened when the budget covers the whole run",
    );
    if let FileKind::Array { labels: Some(labels), .. } = &declared.kind {
        lines.noted(&format!("labels = {}", path(labels)), "private");
    }
    if let Some(test) = &declared.test {
        lines.noted(
            &format!("test = {}", path(test)),
            "public: the accuracy on it is printed without charge",
        );
    }
    if let FileKind::Array { test_labels: Some(labels), .. } = &declared.kind {
        lines.line(&format!("test_labels = {}", path(labels)));
    }
    if let FileKind::Array { arrays: Some(names), .. } = &declared.kind {
        let keys = ["inputs", "labels", "users"].iter().zip(names);
        let keys: Vec<String> =
            keys.map(|(key, name)| format!("{key} = {}", quoted(name))).collect();
        lines.noted(&format!("arrays = {{ {} }}", keys.join(", ")), "their names in .npz files");
    }
    if let Some(dataset) = &declared.dataset {
        lines.noted(&format!("dataset = {}", quoted(dataset)), "its name in budgets");
    }
    if let FileKind::Table { label, delimiter, header, .. } = &declared.kind {
        if let Some(names) = header {
            let line = format!("header = {}", list(names));
            lines.noted(&line, "the first line of the file is a record already");
        }
        lines.line(&format!("label = {}", quoted(label)));
        if let Some(delimiter) = delimiter {
            lines.line(&format!("delimiter = {}", quoted(&delimiter.to_string())));
        }
    }
    match &declared.label {
        Target::Count(count) => lines.line(&format!("classes = {count}")),
        Target::Classes(names) => {
            lines.noted(
                &format!("classes = {}", list(names)),
                "an example of another class contributes zero",
            );
        }
        Target::Bounds([low, high]) => {
            lines.noted(
                &format!("label_bounds = [{low}, {high}]"),
                "labels are clamped to them; narrow bounds need less noise",
            );
        }
    }
    lines.noted(
        &format!("records = {}", declared.records),
        "a number that you would print: the true one is private",
    );
    match &declared.kind {
        FileKind::Table { user, columns, unused, .. } => {
            match user {
                Some((user, count)) => lines.noted(
                    &format!("record = {{ user = {}, max_examples = {count} }}", quoted(user)),
                    "the guarantee protects a person with all rows",
                ),
                None => lines.noted("record = \"example\"", "the guarantee protects a row; { user = \"column\", max_examples = 8 } protects persons"),
            }
            if !unused.is_empty() {
                lines.empty();
                lines.comment("Columns that are not used:");
                for (name, why) in unused {
                    lines.comment(&format!("  {}: {why}", quoted(name)));
                }
            }
            columns.iter().for_each(|one| column(one, lines));
        }
        FileKind::Array { shape, bounds: [low, high], users, .. } => {
            match users {
                Some((ids, count)) => lines.noted(
                    &format!("record = {{ user_ids = {}, max_examples = {count} }}", path(ids)),
                    "the guarantee protects a person with all examples",
                ),
                None => lines.noted("record = \"example\"", "the guarantee protects an example; { user_ids = \"file\", max_examples = 8 } protects persons"),
            }
            lines.line(&format!("shape = {shape:?}"));
            lines.noted(
                &format!("bounds = [{low}, {high}]"),
                "numbers are clamped to them, and scaled to [0, 1]",
            );
        }
    }
}

fn column(column: &Column, lines: &mut Lines) {
    lines.empty();
    lines.line("[[data.columns]]");
    lines.line(&format!("name = {}", quoted(&column.name)));
    match &column.content {
        Content::Number { bounds: [low, high], missing } => {
            lines.line(&format!("bounds = [{low}, {high}]"));
            if *missing {
                lines
                    .noted("missing = \"mean-of-bounds\"", "the sample has cells without a number");
            }
        }
        Content::Words(words) => lines.line(&format!("categories = {}", list(words))),
    }
}

fn training(declared: &Declared, lines: &mut Lines) {
    let records = declared.records;
    let columns = match &declared.kind {
        FileKind::Table { columns, .. } => columns.len(),
        FileKind::Array { shape, .. } => shape.iter().product(),
    };
    let classes = !matches!(declared.label, Target::Bounds(_));
    lines.line("[privacy]");
    lines.noted(
        &format!("epsilon = {:?}", declared.epsilon),
        "the whole run costs at most this; the noise follows from it",
    );
    lines.noted(&format!("delta = {:e}", declared.delta), "below one over the number of records");
    lines.noted(
        &format!("expected_batch = {}", advice::batch(records)),
        "records of a round; more have less noise in their average",
    );
    lines.noted(
        &format!("clip = {:?}", advice::CLIP),
        "the largest gradient of a record; noise is proportional to it",
    );
    lines.empty();
    lines.line("[train]");
    lines.noted(
        &format!("rounds = {}", advice::rounds(records)),
        "more rounds need more noise each",
    );
    let (rate, momentum) = (advice::learning_rate(records, columns, classes), advice::MOMENTUM);
    lines
        .line(&format!("optimizer = {{ kind = \"sgd\", lr = {rate:?}, momentum = {momentum:?} }}"));
    lines.noted("schedule = \"linear\"", "the learning rate falls to 0");
}

fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

fn path(path: &Path) -> String {
    quoted(&path.display().to_string())
}

fn list(words: &[String]) -> String {
    let words: Vec<String> = words.iter().map(|word| quoted(word)).collect();
    let line = format!("[{}]", words.join(", "));
    if line.len() <= 110 { line } else { format!("[\n    {},\n]", words.join(",\n    ")) }
}

struct Lines(String);

impl Lines {
    fn line(&mut self, text: &str) {
        self.0.push_str(text);
        self.0.push('\n');
    }

    fn empty(&mut self) {
        self.0.push('\n');
    }

    fn comment(&mut self, text: &str) {
        self.line(&format!("# {text}"));
    }

    /// A line with a comment behind it, or before it if it is long.
    fn noted(&mut self, text: &str, note: &str) {
        match text.len() {
            0..=40 => self.line(&format!("{text:<40} # {note}")),
            _ => {
                self.comment(note);
                self.line(text);
            }
        }
    }
}
