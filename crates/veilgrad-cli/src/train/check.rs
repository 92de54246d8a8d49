//! Reading and checking configurations; error messages say what would be valid.

use std::collections::HashSet;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use veilgrad_data::ImageCopy;

use super::config::{
    Classes, Column, Config, Data, Declaration, Features, Kind, Model, Named, Optimizer,
    Precondition, Record, Sampling, User,
};
use super::data::is_table;
use super::inputs::missing_number;
use crate::error::Error;
use crate::output::check_name;

/// More layers or wider ones are taken for mistakes.
const MOST_LAYERS: usize = 64;
const WIDEST: usize = 1 << 24;
/// Larger shifts of copies are taken for mistakes.
const MOST_SHIFT: u8 = 16;
/// A limit on memory: every class has a name.
const MOST_CLASSES: usize = 1 << 20;
/// A limit on work: every canary has a coordinate in all others, so the work is quadratic.
const MOST_CANARIES: u32 = 100_000;

impl Config {
    pub(crate) fn read(path: &Path) -> Result<Self, Error> {
        let name = path.display().to_string();
        let text = std::fs::read_to_string(path)
            .map_err(|cause| Error::File { path: name.clone(), cause })?;
        let usage = |why: String| Error::Usage(format!("{name}: {why}"));
        let mut config = Self::parse(&text).map_err(usage)?;
        config.find_files(path.parent().unwrap_or(Path::new("")));
        config.data.check_public_files().map_err(usage)?;
        Ok(config)
    }

    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let config: Self =
            toml::from_str(text).map_err(|error| with_suggestion(&error.to_string()))?;
        config.check()?;
        Ok(config)
    }

    /// All problems, at most one line for each part of the configuration.
    fn check(&self) -> Result<(), String> {
        let parts = [
            self.check_privacy(),
            self.declaration().check(),
            self.check_files(),
            self.check_roles(),
            self.check_names(),
            self.check_train(),
        ];
        let problems: Vec<String> = parts.into_iter().filter_map(Result::err).collect();
        if problems.is_empty() { Ok(()) } else { Err(problems.join("\n")) }
    }

    fn check_privacy(&self) -> Result<(), String> {
        let (data, privacy) = (&self.data, &self.privacy);
        let given = [privacy.epsilon, privacy.noise_multiplier].iter().flatten().count();
        refuse([
            (given == 0, "[privacy] needs epsilon, or noise_multiplier"),
            (given == 2, "[privacy] has both epsilon and noise_multiplier; give one"),
        ])?;
        if let Some(epsilon) = privacy.epsilon.filter(|e| !(*e > 0.0 && e.is_finite())) {
            return Err(format!("[privacy] epsilon {epsilon} is not a number greater than 0"));
        }
        refuse([(data.records == 0, "[data] records must be 1 or more")])?;
        let rate = privacy.expected_batch / data.records as f64;
        if !(rate > 0.0 && rate <= 1.0) {
            return Err(format!(
                "[privacy] expected_batch {} is not in (0, {}], the declared [data] records",
                privacy.expected_batch, data.records
            ));
        }
        let whole = privacy.sampling == Sampling::Poisson || privacy.expected_batch.fract() == 0.0;
        refuse([(!whole, "[privacy] expected_batch must be whole for batches of a fixed size")])?;
        let example = matches!(data.record, Record::Named(Named::Example));
        refuse([(
            self.copies() > 1 && !example,
            "[model.augment] copies is for [data] record = \"example\"",
        )])?;
        self.check_precondition()
    }

    fn check_precondition(&self) -> Result<(), String> {
        let Some(precondition) = self.privacy.precondition else { return Ok(()) };
        let is_share = |share: f64| share > 0.0 && share < 1.0;
        let Precondition { mean_share, directions_share, directions, rounds, floor } = precondition;
        for (key, share) in [("mean_share", mean_share), ("directions_share", directions_share)] {
            if !is_share(share) {
                return Err(format!("[privacy.precondition] {key} {share} is not in (0, 1)"));
            }
        }
        if !is_share(mean_share + directions_share) {
            return Err(
                "[privacy.precondition] mean_share and directions_share leave nothing for training"
                    .to_owned(),
            );
        }
        if !(floor > 0.0 && floor <= 1.0) {
            return Err(format!("[privacy.precondition] floor {floor} is not in (0, 1]"));
        }
        refuse([
            (
                !(1..=256).contains(&directions),
                "[privacy.precondition] directions must be 1 to 256",
            ),
            (!(1..=64).contains(&rounds), "[privacy.precondition] rounds must be 1 to 64"),
            (
                self.privacy.epsilon.is_none(),
                "[privacy.precondition] needs [privacy] epsilon: its shares are of that target",
            ),
            (
                !matches!(self.data.record, Record::Named(Named::Example)),
                "[privacy.precondition] is for [data] record = \"example\"",
            ),
            (
                self.privacy.sampling == Sampling::Shuffle,
                "[privacy.precondition] is for sampling = \"poisson\" or \"fixed\": epochs of a shuffle begin at \
                 the first round of a run",
            ),
            (
                self.model.input_norm.is_none(),
                "[privacy.precondition] needs [model] input_norm: the norm of inputs after whitening, for example 63",
            ),
            (
                self.model.kind == Kind::Cnn,
                "[privacy.precondition] is for models of kind \"linear\" or \"mlp\"",
            ),
        ])
    }

    /// Names are printed, so they must not contain hidden characters.
    fn check_names(&self) -> Result<(), String> {
        let data = &self.data;
        let user = match &data.record {
            Record::User(user) => Some(&user.user),
            _ => None,
        };
        check_name("[data] dataset", &self.dataset())?;
        data.label.iter().try_for_each(|name| check_name("[data] label", name))?;
        user.into_iter().try_for_each(|name| check_name("[data] record: user", name))?;
        if let Classes::Names(names) = &data.classes {
            names.iter().try_for_each(|name| check_name("[data] classes:", name))?;
        }
        for column in &data.columns {
            check_name("[[data.columns]] name", &column.name)?;
            let mut words = column.categories.iter().flatten();
            words.try_for_each(|word| check_name("[[data.columns]] categories:", word))?;
        }
        for group in &self.privacy.groups {
            group.name.iter().try_for_each(|name| check_name("[[privacy.groups]] name", name))?;
            let mut vectors = group.vectors.iter();
            vectors.try_for_each(|name| check_name("[[privacy.groups]] vectors:", name))?;
        }
        Ok(())
    }

    /// A column has one role (label, user or feature), and no public file is a private one.
    fn check_roles(&self) -> Result<(), String> {
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
        data.check_apart(|public, private| public == private)
    }

    /// The keys that each kind of file needs.
    fn check_files(&self) -> Result<(), String> {
        let data = &self.data;
        let mut files = data.test.iter().chain([&data.train]);
        let parquet = |end: &std::ffi::OsStr| end.eq_ignore_ascii_case("parquet");
        let parquet = cfg!(not(feature = "parquet"))
            && files.any(|file| file.extension().is_some_and(parquet));
        refuse([(parquet, "[data] Parquet needs a build with the feature `parquet`")])?;
        if is_table(&data.train) {
            return refuse([
                (data.label.is_none(), "[data] label is missing: which column is the label?"),
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
                "[data] label and columns are for tables (.csv, .parquet)",
            ),
            (
                matches!(data.record, Record::User(_)),
                "[data] record: users are named by a column of a table",
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
        ])
    }

    fn check_train(&self) -> Result<(), String> {
        let train = &self.train;
        if self.canaries() > MOST_CANARIES {
            return Err(format!("[audit] canaries must be {MOST_CANARIES} or fewer"));
        }
        let bad_ema = train.ema.is_some_and(|decay| !(0.0..1.0).contains(&decay));
        refuse([
            (train.rounds == 0, "[train] rounds must be 1 or more"),
            (bad_ema, "[train] ema is not in [0, 1)"),
            (
                train.cosine && train.schedule.is_some(),
                "[train] has both cosine and schedule; give schedule",
            ),
        ])?;
        let lr = train.optimizer.learning_rate();
        if !(lr > 0.0 && lr.is_finite()) {
            return Err(format!("[train] optimizer: lr {lr} is not a positive number"));
        }
        match train.optimizer {
            Optimizer::Sgd { momentum, .. } if !(0.0..1.0).contains(&momentum) => {
                Err(format!("[train] optimizer: momentum {momentum} is not in [0, 1)"))
            }
            Optimizer::Adamw { weight_decay, .. } if !(0.0..1e6).contains(&weight_decay) => {
                Err(format!("[train] optimizer: weight_decay {weight_decay} is not in [0, 1e6)"))
            }
            _ => Ok(()),
        }
    }
}

impl Data {
    /// The public files, which are evaluated without charge, each with its key.
    fn public_files(&self) -> impl Iterator<Item = (&'static str, &Path)> {
        let files = [("test", &self.test), ("test_labels", &self.test_labels)];
        files.into_iter().filter_map(|(key, file)| Some((key, file.as_deref()?)))
    }

    fn private_files(&self) -> impl Iterator<Item = (&'static str, &Path)> {
        let labels = self.labels.as_deref().map(|labels| ("labels", labels));
        std::iter::once(("train", self.train.as_path())).chain(labels)
    }

    /// Refuses a public file that is a private one under another name, through a link or another spelling of its path. Reads
    /// file metadata only.
    fn check_public_files(&self) -> Result<(), String> {
        let identity = |path: &Path| {
            let found = std::fs::metadata(path).ok()?;
            Some((found.dev(), found.ino()))
        };
        // A missing file is reported when it is opened.
        self.check_apart(|public, private| {
            identity(public).is_some_and(|public| identity(private) == Some(public))
        })
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
        Ok(())
    }
}

/// The first of these reasons that holds, as an error.
fn refuse<const N: usize>(reasons: [(bool, &str); N]) -> Result<(), String> {
    let found = reasons.into_iter().find(|(holds, _)| *holds);
    found.map_or(Ok(()), |(_, reason)| Err(reason.to_owned()))
}

/// The first value that occurs twice.
fn repeated<'a>(values: impl IntoIterator<Item = &'a String>) -> Option<&'a str> {
    let mut seen = HashSet::new();
    values.into_iter().map(String::as_str).find(|value| !seen.insert(*value))
}

impl Declaration {
    /// Checks the declaration of a run or of a model file.
    pub(crate) fn check(&self) -> Result<(), String> {
        if !(2..=MOST_CLASSES).contains(&self.classes.count()) {
            return Err(format!("[data] classes must be 2 to {MOST_CLASSES}"));
        }
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
            let finite = |[low, high]: &[f64; 2]| low < high && (high - low).is_finite();
            match (&column.bounds, &column.categories) {
                (Some(bounds), None) if finite(bounds) => {}
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
            && !(low < high && (high - low).is_finite())
        {
            return Err(format!("[data] bounds [{low}, {high}] must ascend"));
        }
        if let Some(missing) = self.missing.as_deref()
            && missing_number(missing, [0.0, 1.0]).is_none()
        {
            return Err(format!("[data] missing {missing:?} is not {MISSING_NUMBERS}"));
        }
        self.check_augment()?;
        self.model.check()
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
}

impl Model {
    fn check(&self) -> Result<(), String> {
        let widths = || self.hidden.iter().chain(self.filters.iter().flatten());
        if self.hidden.len() > MOST_LAYERS || widths().any(|width| !(1..=WIDEST).contains(width)) {
            return Err(format!(
                "[model] widths must be 1 to {WIDEST}, of {MOST_LAYERS} layers at most"
            ));
        }
        if let Some(norm) = self.input_norm.filter(|norm| !(*norm > 0.0 && *norm <= 1e6)) {
            return Err(format!("[model] input_norm {norm} is not in (0, 1e6]"));
        }
        if self.kind == Kind::Mlp && self.hidden.is_empty() {
            return Err("[model] kind = \"mlp\" needs hidden = [widths]".to_owned());
        }
        let useless = [
            ("hidden", self.kind == Kind::Linear && !self.hidden.is_empty()),
            ("filters", self.kind != Kind::Cnn && self.filters.is_some()),
            ("batch_norm", self.kind != Kind::Mlp && self.batch_norm),
            ("features", self.kind == Kind::Cnn && self.features != Features::None),
        ];
        match useless.iter().find(|(_, useless)| *useless) {
            Some((key, _)) => Err(format!("[model] {key} is not for this kind of model")),
            None => Ok(()),
        }
    }
}

/// Adds the most similar known key to the error about an unknown one.
fn with_suggestion(message: &str) -> String {
    let mut quoted = message.split('`').skip(1).step_by(2);
    if !message.contains("unknown field") && !message.contains("unknown variant") {
        return message.trim_end().to_owned();
    }
    let Some(unknown) = quoted.next() else { return message.to_owned() };
    let similarity = |known: &str| {
        let common = known.chars().filter(|c| unknown.contains(*c)).count();
        2 * common + 3 * known.chars().zip(unknown.chars()).take_while(|(a, b)| a == b).count()
    };
    match quoted.max_by_key(|known| (similarity(known), usize::MAX - known.len())) {
        Some(known) => format!("{}\ndid you mean `{known}`?", message.trim_end()),
        None => message.trim_end().to_owned(),
    }
}

#[cfg(test)]
pub(crate) mod tests;
