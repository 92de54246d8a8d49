//! Checks of the declarations of a run, which are also those of a model file.

use veilgrad_data::ImageCopy;

use super::model::WIDEST;
use super::values::{ascend, repeated};
use crate::problem::{Problems, joined};
use crate::train::config::{Classes, Column, Declaration, Kind};
use crate::train::schema::missing_number;

/// Larger shifts of copies are taken for mistakes.
const MOST_SHIFT: u8 = 16;
/// A limit on memory: every class has a name.
const MOST_CLASSES: usize = 1 << 20;
/// Wider embeddings are taken for mistakes.
const WIDEST_EMBEDDING: usize = 4096;
const MISSING_NUMBERS: &str = "\"zero\" or \"mean-of-bounds\"";

impl Declaration {
    /// Checks the declaration of a model file.
    pub(crate) fn check(&self) -> Result<(), String> {
        let mut problems = Problems::default();
        self.find_problems(&mut problems);
        if problems.0.is_empty() { Ok(()) } else { Err(joined(&problems.0)) }
    }

    /// Adds all problems of the declaration.
    pub(super) fn find_problems(&self, problems: &mut Problems) {
        self.check_label(problems);
        if let Classes::Names(names) = &self.classes
            && let Some(name) = repeated(names)
        {
            problems.add("data.classes", format!("[data] classes has {name:?} twice"));
        }
        let sides = self.shape.iter().flatten();
        let size = sides.clone().try_fold(1usize, |size, side| size.checked_mul(*side));
        if sides.clone().any(|side| *side == 0) || size.is_none_or(|size| size > WIDEST) {
            problems.add("data.shape", format!("[data] shape must be of 1 to {WIDEST} numbers"));
        }
        if let Some(name) = repeated(self.columns.iter().map(|column| &column.name)) {
            let second = self.columns.iter().rposition(|column| column.name == name).unwrap_or(0);
            let place = format!("data.columns[{}].name", second + 1);
            let text = format!("[[data.columns]] has {name:?} twice");
            problems.relying_on(&self.column_names(), |problems| problems.add(place, text));
        }
        for (number, column) in (1..).zip(&self.columns) {
            column.check(&format!("data.columns[{number}]"), problems);
        }
        if let Some([low, high]) = self.bounds
            && !ascend([low, high])
        {
            problems.add("data.bounds", format!("[data] bounds [{low}, {high}] must ascend"));
        }
        if let Some(missing) = self.missing.as_deref()
            && missing_number(missing, [0.0, 1.0]).is_none()
        {
            let text = format!("[data] missing {missing:?} is not {MISSING_NUMBERS}");
            problems.add("data.missing", text);
        }
        self.check_text(problems);
        self.check_embeddings(problems);
        self.check_augment(problems);
        self.model.check(problems);
    }

    /// The places of the names of columns.
    fn column_names(&self) -> Vec<String> {
        (1..=self.columns.len()).map(|number| format!("data.columns[{number}].name")).collect()
    }

    /// The label: one of several classes, or a number.
    fn check_label(&self, problems: &mut Problems) {
        match (self.classes.is_empty(), self.label_bounds) {
            (true, None) => problems.relying_on(&["data.classes", "data.label_bounds"], |found| {
                found.add("data", "[data] needs classes, or label_bounds if the label is a number");
            }),
            (false, Some(_)) => problems
                .add("data.label_bounds", "[data] has both classes and label_bounds; give one"),
            _ => {}
        }
        match self.label_bounds {
            Some([low, high]) if !ascend([low, high]) => {
                let text = format!("[data] label_bounds [{low}, {high}] must ascend");
                problems.add("data.label_bounds", text);
            }
            None if !self.classes.is_empty()
                && !(2..=MOST_CLASSES).contains(&self.classes.count()) =>
            {
                problems.add("data.classes", format!("[data] classes must be 2 to {MOST_CLASSES}"));
            }
            _ => {}
        }
    }

    /// How the lines of a table are split.
    fn check_text(&self, problems: &mut Problems) {
        if let Some(delimiter) = self.delimiter
            && (!delimiter.is_ascii() || matches!(delimiter, '"' | '\n' | '\r' | '\0'))
        {
            let text = format!(
                "[data] delimiter {delimiter:?} is not one ASCII character other than a quote or a line break"
            );
            problems.add("data.delimiter", text);
        }
        let Some(header) = &self.header else { return };
        if let Some(name) = repeated(header) {
            problems.add("data.header", format!("[data] header has {name:?} twice"));
        }
        for column in self.columns.iter().filter(|column| !header.contains(&column.name)) {
            let (name, count) = (&column.name, header.len());
            let text = format!("[data] header, of {count} names, has no column {name:?}");
            let add = |problems: &mut Problems| problems.add("data.header", text);
            problems.relying_on(&self.column_names(), add);
        }
    }

    /// Numbers that name categories must reach the model as they are, and a linear model would add nothing to them.
    fn check_embeddings(&self, problems: &mut Problems) {
        let embedded = (1..).zip(&self.columns).find(|(_, column)| column.embedding.is_some());
        let Some((number, column)) = embedded else { return };
        let wrong = match () {
            () if self.model.kind == Kind::Linear => {
                "needs a model with hidden layers: without embedding, each category has its own weight already"
            }
            () if self.model.input_norm.is_some() => "cannot be used with [model] input_norm",
            () if self.precondition.is_some() => "cannot be used with [privacy.precondition]",
            () => return,
        };
        let text = format!("column {:?}: embedding {wrong}", column.name);
        problems.relying_on(&["model.kind"], |problems| {
            problems.add(format!("data.columns[{number}].embedding"), text);
        });
    }

    fn check_augment(&self, problems: &mut Problems) {
        let Some(augment) = self.model.augment else { return };
        let all = ImageCopy::all(augment.shift.min(MOST_SHIFT), augment.flip).len();
        if augment.shift > MOST_SHIFT {
            let text = format!("[model.augment] shift must be {MOST_SHIFT} or less");
            problems.add("model.augment.shift", text);
        }
        for (key, copies) in
            [("copies", augment.copies), ("predict_copies", augment.predict_copies())]
        {
            if !(1..=all).contains(&copies) {
                let text = format!(
                    "[model.augment] {key} must be 1 to {all}, the copies with this shift and flip"
                );
                let keys = ["model.augment.shift", "model.augment.flip", "model.augment.copies"];
                problems.relying_on(&keys, |problems| {
                    problems.add(format!("model.augment.{key}"), text);
                });
            }
        }
        let images = matches!(self.shape.as_deref(), Some([_, _] | [_, _, _]));
        problems.relying_on(&["data.shape"], |problems| {
            problems.refuse(
                !(images && self.columns.is_empty()),
                "model.augment",
                "[model.augment] needs images: [data] shape = [rows, columns] or [rows, columns, colours]",
            );
        });
    }
}

impl Column {
    fn check(&self, place: &str, problems: &mut Problems) {
        let name = &self.name;
        let key = |key: &str| format!("{place}.{key}");
        if let Some(word) = repeated(self.categories.iter().flatten()) {
            let text = format!("column {name:?}: categories has {word:?} twice");
            problems.add(key("categories"), text);
        }
        problems.relying_on(&[key("categories")], |problems| {
            if let Some(text) = self.wrong_missing() {
                problems.add(key("missing"), format!("column {name:?}: missing {text}"));
            }
            if let Some(text) = self.wrong_embedding() {
                problems.add(key("embedding"), format!("column {name:?}: embedding {text}"));
            }
        });
        match (&self.bounds, &self.categories) {
            (Some(bounds), None) if !ascend(*bounds) => {
                problems.add(key("bounds"), format!("column {name:?}: bounds must ascend"));
            }
            (Some(_), None) => {}
            (None, Some(words)) if !words.is_empty() => {}
            (Some(_), Some(_)) => {
                let text = format!("column {name:?} has both bounds and categories; give one");
                problems.add(key("categories"), text);
            }
            _ => {
                let text = format!(
                    "column {name:?} needs bounds, or categories, declared: they are not inferred from private data"
                );
                problems.relying_on(&[key("bounds"), key("categories")], |problems| {
                    problems.add(place, text);
                });
            }
        }
    }

    fn wrong_missing(&self) -> Option<String> {
        let missing = self.missing.as_ref()?;
        match &self.categories {
            Some(words) if words.contains(missing) || missing == "zero" => None,
            Some(_) => Some(format!("{missing:?} is neither \"zero\" nor one of its categories")),
            None if missing_number(missing, [0.0, 1.0]).is_some() => None,
            None => Some(format!("{missing:?} is not {MISSING_NUMBERS}")),
        }
    }

    fn wrong_embedding(&self) -> Option<String> {
        let width = self.embedding?;
        if self.categories.is_none() {
            return Some("is for categories".to_owned());
        }
        let right = (1..=WIDEST_EMBEDDING).contains(&width);
        (!right).then(|| format!("{width} is not in 1 to {WIDEST_EMBEDDING}"))
    }
}
