//! Configurations as people write them: read, checked, and answered with what would be right.

use std::path::Path;

use super::config::{Config, Declaration, Features, Kind, Model, Optimizer, Record, Sampling};
use super::data::is_table;
use crate::error::Error;

/// Layers and widths beyond this are mistakes.
const MOST_LAYERS: usize = 64;
const WIDEST: usize = 1 << 24;

impl Config {
    pub(crate) fn read(path: &Path) -> Result<Self, Error> {
        let name = path.display().to_string();
        let text = std::fs::read_to_string(path)
            .map_err(|cause| Error::File { path: name.clone(), cause })?;
        Self::parse(&text).map_err(|why| Error::Usage(format!("{name}: {why}")))
    }

    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let config: Self =
            toml::from_str(text).map_err(|error| with_suggestion(&error.to_string()))?;
        config.check()?;
        Ok(config)
    }

    fn check(&self) -> Result<(), String> {
        let (data, privacy) = (&self.data, &self.privacy);
        match (privacy.epsilon, privacy.noise_multiplier) {
            (None, None) => return Err("[privacy] needs epsilon, or noise_multiplier".to_owned()),
            (Some(_), Some(_)) => {
                return Err("[privacy] has both epsilon and noise_multiplier; give one".to_owned());
            }
            _ => {}
        }
        self.declaration().check()?;
        if data.records == 0 {
            return Err("[data] records must be 1 or more".to_owned());
        }
        let rate = privacy.expected_batch / data.records as f64;
        if !(rate > 0.0 && rate <= 1.0) {
            return Err(format!(
                "[privacy] expected_batch {} is not in (0, {}], the declared [data] records",
                privacy.expected_batch, data.records
            ));
        }
        if privacy.sampling != Sampling::Poisson && privacy.expected_batch.fract() != 0.0 {
            return Err(
                "[privacy] expected_batch must be whole for batches of a fixed size".to_owned()
            );
        }
        self.check_files()?;
        self.check_train()
    }

    /// What the kind of file needs to have declared beside it.
    fn check_files(&self) -> Result<(), String> {
        let data = &self.data;
        let mut files = data.test.iter().chain([&data.train]);
        let parquet = |end: &std::ffi::OsStr| end.eq_ignore_ascii_case("parquet");
        if cfg!(not(feature = "parquet")) && files.any(|file| file.extension().is_some_and(parquet))
        {
            return Err("[data] Parquet needs a build with the feature `parquet`".to_owned());
        }
        if is_table(&data.train) {
            if data.label.is_none() {
                return Err("[data] label is missing: which column is the label?".to_owned());
            }
            if data.columns.is_empty() {
                return Err(
                    "[[data.columns]] are missing: name the columns to use, with bounds or \
                            categories"
                        .to_owned(),
                );
            }
            return Ok(());
        }
        let declared = "is declared, not read from private data";
        if !data.columns.is_empty() || data.label.is_some() {
            return Err("[data] label and columns are for tables (.csv, .parquet)".to_owned());
        }
        if matches!(data.record, Record::User(_)) {
            return Err("[data] record: users are named by a column of a table".to_owned());
        }
        if data.shape.is_none() {
            return Err(format!("[data] shape is missing: the shape of an example {declared}"));
        }
        if data.bounds.is_none() {
            return Err(format!("[data] bounds is missing: the range of numbers {declared}"));
        }
        if data.labels.is_none() && data.arrays.is_none() {
            return Err("[data] labels is missing: where are the labels?".to_owned());
        }
        if data.test.is_some() && data.test_labels.is_none() && data.arrays.is_none() {
            return Err("[data] test_labels is missing: where are the labels?".to_owned());
        }
        Ok(())
    }

    fn check_train(&self) -> Result<(), String> {
        let train = &self.train;
        if train.rounds == 0 {
            return Err("[train] rounds must be 1 or more".to_owned());
        }
        if train.ema.is_some_and(|decay| !(0.0..1.0).contains(&decay)) {
            return Err("[train] ema is not in [0, 1)".to_owned());
        }
        let (Optimizer::Sgd { lr, .. }
        | Optimizer::Adam { lr }
        | Optimizer::Adamw { lr, .. }
        | Optimizer::Adagrad { lr }
        | Optimizer::Rmsprop { lr }) = train.optimizer;
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

impl Declaration {
    /// Whether it can be the declaration of a model: of a run, or from a model's file.
    pub(crate) fn check(&self) -> Result<(), String> {
        let names = self.classes.count();
        if !(2..=WIDEST).contains(&names) {
            return Err("[data] classes must be 2 or more".to_owned());
        }
        let sides = self.shape.iter().flatten();
        let size = sides.clone().try_fold(1usize, |size, side| size.checked_mul(*side));
        if sides.clone().any(|side| *side == 0) || size.is_none_or(|size| size > WIDEST) {
            return Err(format!("[data] shape must be of 1 to {WIDEST} numbers"));
        }
        for column in &self.columns {
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
        self.model.check()
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

/// An unknown key gets the known one that is most like it.
fn with_suggestion(message: &str) -> String {
    let mut quoted = message.split('`').skip(1).step_by(2);
    if !message.contains("unknown field") && !message.contains("unknown variant") {
        return message.trim_end().to_owned();
    }
    let Some(unknown) = quoted.next() else { return message.to_owned() };
    let alike = |known: &str| {
        let common = known.chars().filter(|c| unknown.contains(*c)).count();
        2 * common + 3 * known.chars().zip(unknown.chars()).take_while(|(a, b)| a == b).count()
    };
    match quoted.max_by_key(|known| (alike(known), usize::MAX - known.len())) {
        Some(known) => format!("{}\ndid you mean `{known}`?", message.trim_end()),
        None => message.trim_end().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::config::Adjacency;
    use super::*;

    const GOOD: &str = r#"
[data]
train = "data/mnist/train-images-idx3-ubyte.gz"
labels = "data/mnist/train-labels-idx1-ubyte.gz"
records = 60000
classes = 10
shape = [28, 28]
bounds = [0, 255]
[model]
kind = "linear"
features = "scattering"
[privacy]
epsilon = 3.0
delta = 1e-5
expected_batch = 8192
[train]
rounds = 700
optimizer = { kind = "sgd", lr = 0.6, momentum = 0.9 }
ema = 0.99
"#;

    #[test]
    fn a_configuration_is_read_and_means_what_it_says() {
        let config = Config::parse(GOOD).unwrap();
        assert_eq!(config.dataset(), "mnist");
        assert_eq!(config.privacy.adjacency, Adjacency::AddRemove);
        let named = GOOD.replace("classes = 10", "classes = [\"a\", \"b\"]");
        let config = Config::parse(&named.replace("linear", "logistic")).unwrap();
        assert_eq!(config.data.classes.names(), ["a", "b"]);
        let micro = GOOD.replace("classes = 10", "classes = 10\nrecord = { microbatch = 4 }");
        assert!(matches!(Config::parse(&micro).unwrap().data.record, Record::Microbatch(_)));
        assert_ne!(Config::parse(&micro).unwrap().hash(), Config::parse(GOOD).unwrap().hash());
    }

    #[test]
    fn what_is_wrong_is_named_with_what_would_be_right() {
        for (from, to, what) in [
            ("epsilon = 3.0", "epsilom = 3.0", "did you mean `epsilon`"),
            ("kind = \"linear\"", "kind = \"liner\"", "did you mean `linear`"),
            ("epsilon = 3.0\n", "", "needs epsilon, or noise_multiplier"),
            ("epsilon = 3.0", "epsilon = 3.0\nnoise_multiplier = 1.0", "both"),
            ("records = 60000\n", "", "missing field `records`"),
            ("shape = [28, 28]\n", "", "shape is missing"),
            ("bounds = [0, 255]\n", "", "bounds is missing"),
            ("labels = \"data/mnist/train-labels-idx1-ubyte.gz\"\n", "", "labels is missing"),
            ("classes = 10", "classes = \"ten\"", "classes is their number"),
            ("classes = 10", "classes = 10\nrecord = { usr = \"x\" }", "max_examples = N"),
            (
                "classes = 10",
                "classes = 10\nrecord = { user = \"x\", max_examples = 3 }",
                "a table",
            ),
            ("shape = [28, 28]", "shape = [28, 0]", "shape must be"),
            ("shape = [28, 28]", "shape = [99999999999, 99999999999]", "shape must be"),
            ("kind = \"linear\"", "kind = \"linear\"\nhidden = [3]", "hidden is not for this kind"),
            ("kind = \"linear\"", "kind = \"mlp\"\nhidden = [0]", "widths must be"),
            (
                "expected_batch = 8192",
                "expected_batch = 1.5\nsampling = \"fixed\"",
                "must be whole",
            ),
            ("ema = 0.99", "ema = 1.5", "ema is not in"),
            ("lr = 0.6", "lr = -1.0", "lr -1"),
            ("expected_batch = 8192", "expected_batch = 99999", "is not in (0, 60000]"),
            ("rounds = 700", "rounds = 0", "rounds must be"),
            ("classes = 10", "classes = 1", "classes must be"),
            ("bounds = [0, 255]", "bounds = [255, 0]", "must ascend"),
        ] {
            let error = Config::parse(&GOOD.replace(from, to)).unwrap_err();
            assert!(error.contains(what), "{what}: {error}");
        }
    }
}
