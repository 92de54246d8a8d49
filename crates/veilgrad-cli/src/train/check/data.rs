//! Checks of `[data]`, and of the declarations in model files.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use veilgrad_data::ImageCopy;
use veilgrad_data::table::{is_parquet, is_table, is_text};

use super::model::WIDEST;
use super::refuse::{ascend, refuse, repeated};
use crate::train::config::{Classes, Column, Config, Data, Declaration, Kind, Record, User};
use crate::train::schema::missing_number;

/// Larger shifts of copies are taken for mistakes.
const MOST_SHIFT: u8 = 16;
/// A limit on memory: every class has a name.
const MOST_CLASSES: usize = 1 << 20;
/// Wider embeddings are taken for mistakes.
const WIDEST_EMBEDDING: usize = 4096;

impl Config {
    /// A column has one role (label, user or feature), and no public file is a private one.
    pub(super) fn check_roles(&self) -> Result<(), String> {
        let data = &self.data;
        let feature = |name: &str| data.columns.iter().any(|column| column.name == name);
        if let Some(label) = data.label.as_deref().filter(|label| feature(label)) {
            return Err(format!("column {label:?} is the label: it cannot be a feature as well"));
        }
        if let Record::User(User { user, .. }) = &data.record {
            if feature(user) {
                return Err(format!("column {user:?} names users: it cannot be a feature as well"));
            }
            if data.label.as_ref() == Some(user) {
                return Err(format!("column {user:?} cannot be both the label and the user"));
            }
        }
        if let Some(header) = &data.header {
            let user = match &data.record {
                Record::User(User { user, .. }) => Some(user),
                _ => None,
            };
            let mut names = data.label.iter().chain(user);
            if let Some(name) = names.find(|name| !header.contains(name)) {
                let count = header.len();
                return Err(format!("[data] header, of {count} names, has no column {name:?}"));
            }
        }
        data.check_apart(|public, private| public == private)
    }

    /// The keys that each kind of file needs.
    pub(super) fn check_files(&self) -> Result<(), String> {
        let data = &self.data;
        let mut files = data.test.iter().chain(&data.calibration).chain([&data.train]);
        let parquet = cfg!(not(feature = "parquet")) && files.any(|file| is_parquet(file));
        let text = data.delimiter.is_some() || data.header.is_some();
        refuse([
            (parquet, "[data] Parquet needs a build with the feature `parquet`"),
            (
                text && !is_text(&data.train),
                "[data] delimiter and header are for .csv and .tsv files",
            ),
            (
                data.calibration.is_some() && data.label_bounds.is_some(),
                "[data] calibration is for classes: a label that is a number has no probability",
            ),
            (
                data.calibration.is_none() && data.calibration_labels.is_some(),
                "[data] calibration_labels are those of [data] calibration, which is missing",
            ),
        ])?;
        if is_table(&data.train) {
            return refuse([
                (data.label.is_none(), "[data] label is missing: which column is the label?"),
                (
                    matches!(data.record, Record::UserIds(_)),
                    "[data] record: user_ids is for arrays; name the column of a table with user = \"column\"",
                ),
                (
                    data.columns.is_empty(),
                    "[[data.columns]] are missing: name the columns to use, with bounds or categories",
                ),
            ]);
        }
        let without_labels = |labels: &Option<_>| labels.is_none() && data.arrays.is_none();
        refuse([
            (
                !data.columns.is_empty() || data.label.is_some(),
                "[data] label and columns are for tables (.csv, .tsv, .jsonl, .parquet)",
            ),
            (
                matches!(data.record, Record::User(_)),
                "[data] record: users are named by a column of a table; for arrays, give user_ids = \"file\"",
            ),
            (
                self.ids_in_archive()
                    && data.arrays.as_ref().is_none_or(|arrays| arrays.users.is_none()),
                "[data] record: user_ids is an .npz file: name the array of ids with arrays = { users = \"name\", ... }",
            ),
            (
                data.shape.is_none(),
                "[data] shape is missing: the shape of an example is declared, not read from private data",
            ),
            (
                data.bounds.is_none(),
                "[data] bounds is missing: the range of numbers is declared, not read from private data",
            ),
            (without_labels(&data.labels), "[data] labels is missing: where are the labels?"),
            (
                data.test.is_some() && without_labels(&data.test_labels),
                "[data] test_labels is missing: where are the labels?",
            ),
            (
                data.calibration.is_some() && without_labels(&data.calibration_labels),
                "[data] calibration_labels is missing: where are the labels?",
            ),
        ])
    }

    /// Whether the ids of users are an array among others.
    fn ids_in_archive(&self) -> bool {
        let Record::UserIds(ids) = &self.data.record else { return false };
        ids.user_ids.extension().is_some_and(|end| end.eq_ignore_ascii_case("npz"))
    }
}

impl Data {
    /// The public files, which are evaluated without charge, each with its key.
    fn public_files(&self) -> impl Iterator<Item = (&'static str, &Path)> {
        let files = [
            ("test", &self.test),
            ("test_labels", &self.test_labels),
            ("calibration", &self.calibration),
            ("calibration_labels", &self.calibration_labels),
        ];
        files.into_iter().filter_map(|(key, file)| Some((key, file.as_deref()?)))
    }

    fn private_files(&self) -> impl Iterator<Item = (&'static str, &Path)> {
        let labels = self.labels.as_deref().map(|labels| ("labels", labels));
        let ids = match &self.record {
            Record::UserIds(ids) => Some(("record: user_ids", ids.user_ids.as_path())),
            _ => None,
        };
        std::iter::once(("train", self.train.as_path())).chain(labels).chain(ids)
    }

    /// Refuses a public file that is a private one under another name, through a link or another spelling of its path. Reads
    /// file metadata only.
    pub(super) fn check_public_files(&self) -> Result<(), String> {
        let identity = |path: &Path| {
            let found = std::fs::metadata(path).ok()?;
            Some((found.dev(), found.ino()))
        };
        // A missing file is reported when it is opened.
        let same = |one: &Path, other: &Path| {
            identity(one).is_some_and(|found| identity(other) == Some(found))
        };
        self.check_apart(same)
    }

    fn check_apart(&self, same: impl Fn(&Path, &Path) -> bool) -> Result<(), String> {
        for (public_key, public) in self.public_files() {
            if let Some((private_key, _)) =
                self.private_files().find(|(_, file)| same(public, file))
            {
                return Err(format!(
                    "[data] {public_key} is the private file of [data] {private_key}: what is printed about a \
                     public test set would be about private records; name another file, or none"
                ));
            }
        }
        if let (Some(calibration), Some(test)) = (&self.calibration, &self.test)
            && same(calibration, test)
        {
            return Err("[data] calibration is the file of [data] test: probabilities would be judged by the \
                        examples that they were fitted to; name another file"
                .to_owned());
        }
        Ok(())
    }
}

impl Declaration {
    /// Checks the declaration of a run or of a model file.
    pub(crate) fn check(&self) -> Result<(), String> {
        self.check_label()?;
        if let Classes::Names(names) = &self.classes
            && let Some(name) = repeated(names)
        {
            return Err(format!("[data] classes has {name:?} twice"));
        }
        let sides = self.shape.iter().flatten();
        let size = sides.clone().try_fold(1usize, |size, side| size.checked_mul(*side));
        if sides.clone().any(|side| *side == 0) || size.is_none_or(|size| size > WIDEST) {
            return Err(format!("[data] shape must be of 1 to {WIDEST} numbers"));
        }
        if let Some(name) = repeated(self.columns.iter().map(|column| &column.name)) {
            return Err(format!("[[data.columns]] has {name:?} twice"));
        }
        for column in &self.columns {
            if let Some(word) = repeated(column.categories.iter().flatten()) {
                return Err(format!("column {:?}: categories has {word:?} twice", column.name));
            }
            column.check_missing()?;
            column.check_embedding()?;
            match (&column.bounds, &column.categories) {
                (Some(bounds), None) if ascend(*bounds) => {}
                (Some(_), None) => {
                    return Err(format!("column {:?}: bounds must ascend", column.name));
                }
                (None, Some(words)) if !words.is_empty() => {}
                _ => {
                    return Err(format!(
                        "column {:?} needs bounds, or categories, declared: they are not inferred \
                         from private data",
                        column.name
                    ));
                }
            }
        }
        if let Some([low, high]) = self.bounds
            && !ascend([low, high])
        {
            return Err(format!("[data] bounds [{low}, {high}] must ascend"));
        }
        if let Some(missing) = self.missing.as_deref()
            && missing_number(missing, [0.0, 1.0]).is_none()
        {
            return Err(format!("[data] missing {missing:?} is not {MISSING_NUMBERS}"));
        }
        self.check_text()?;
        self.check_embeddings()?;
        self.check_augment()?;
        self.model.check()
    }

    /// The label: one of several classes, or a number.
    fn check_label(&self) -> Result<(), String> {
        refuse([
            (
                self.classes.is_empty() && self.label_bounds.is_none(),
                "[data] needs classes, or label_bounds if the label is a number",
            ),
            (
                !self.classes.is_empty() && self.label_bounds.is_some(),
                "[data] has both classes and label_bounds; give one",
            ),
        ])?;
        match self.label_bounds {
            Some([low, high]) if !ascend([low, high]) => {
                Err(format!("[data] label_bounds [{low}, {high}] must ascend"))
            }
            None if !(2..=MOST_CLASSES).contains(&self.classes.count()) => {
                Err(format!("[data] classes must be 2 to {MOST_CLASSES}"))
            }
            _ => Ok(()),
        }
    }

    /// How the lines of a table are split.
    fn check_text(&self) -> Result<(), String> {
        if let Some(delimiter) = self.delimiter
            && (!delimiter.is_ascii() || matches!(delimiter, '"' | '\n' | '\r' | '\0'))
        {
            return Err(format!(
                "[data] delimiter {delimiter:?} is not one ASCII character other than a quote or a line break"
            ));
        }
        if let Some(name) = repeated(self.header.iter().flatten()) {
            return Err(format!("[data] header has {name:?} twice"));
        }
        if let Some(header) = &self.header
            && let Some(column) = self.columns.iter().find(|c| !header.contains(&c.name))
        {
            let (name, count) = (&column.name, header.len());
            return Err(format!("[data] header, of {count} names, has no column {name:?}"));
        }
        Ok(())
    }

    /// Numbers that name categories must reach the model as they are, and a linear model would add nothing to them.
    fn check_embeddings(&self) -> Result<(), String> {
        let Some(column) = self.columns.iter().find(|column| column.embedding.is_some()) else {
            return Ok(());
        };
        let wrong = match () {
            () if self.model.kind == Kind::Linear => {
                "needs a model with hidden layers: without embedding, each category has its own weight already"
            }
            () if self.model.input_norm.is_some() => "cannot be used with [model] input_norm",
            () if self.precondition.is_some() => "cannot be used with [privacy.precondition]",
            () => return Ok(()),
        };
        Err(format!("column {:?}: embedding {wrong}", column.name))
    }

    fn check_augment(&self) -> Result<(), String> {
        let Some(augment) = self.model.augment else { return Ok(()) };
        let all = ImageCopy::all(augment.shift.min(MOST_SHIFT), augment.flip).len();
        if augment.shift > MOST_SHIFT {
            return Err(format!("[model.augment] shift must be {MOST_SHIFT} or less"));
        }
        for (key, copies) in
            [("copies", augment.copies), ("predict_copies", augment.predict_copies())]
        {
            if !(1..=all).contains(&copies) {
                return Err(format!(
                    "[model.augment] {key} must be 1 to {all}, the copies with this shift and flip"
                ));
            }
        }
        match self.shape.as_deref() {
            Some([_, _] | [_, _, _]) if self.columns.is_empty() => Ok(()),
            _ => Err(
                "[model.augment] needs images: [data] shape = [rows, columns] or [rows, columns, \
                      colours]"
                    .to_owned(),
            ),
        }
    }
}

const MISSING_NUMBERS: &str = "\"zero\" or \"mean-of-bounds\"";

impl Column {
    fn check_missing(&self) -> Result<(), String> {
        let (name, Some(missing)) = (&self.name, &self.missing) else { return Ok(()) };
        match &self.categories {
            Some(words) if words.contains(missing) || missing == "zero" => Ok(()),
            Some(_) => Err(format!(
                "column {name:?}: missing {missing:?} is neither \"zero\" nor one of its categories"
            )),
            None if missing_number(missing, [0.0, 1.0]).is_some() => Ok(()),
            None => Err(format!("column {name:?}: missing {missing:?} is not {MISSING_NUMBERS}")),
        }
    }
    fn check_embedding(&self) -> Result<(), String> {
        let (name, Some(width)) = (&self.name, self.embedding) else { return Ok(()) };
        if self.categories.is_none() {
            return Err(format!("column {name:?}: embedding is for categories"));
        }
        match (1..=WIDEST_EMBEDDING).contains(&width) {
            true => Ok(()),
            false => {
                Err(format!("column {name:?}: embedding {width} is not in 1 to {WIDEST_EMBEDDING}"))
            }
        }
    }
}
