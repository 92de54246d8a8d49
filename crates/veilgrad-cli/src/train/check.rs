//! Reading and checking configurations; error messages say what would be valid.

mod data;
mod model;
mod refuse;

use std::path::Path;

use super::config::{
    Bands, Classes, Config, Correlated, Kind, Named, Optimizer, Precondition, Record, Sampling,
};
use crate::error::Error;
use crate::output::check_name;
use refuse::refuse;

/// A limit on work: every canary has a coordinate in all others, so the work is quadratic.
const MOST_CANARIES: u32 = 100_000;
/// More rounds are taken for mistakes.
const MOST_ROUNDS: f64 = 1e12;
/// As many as a strategy may have.
const MOST_BANDS: usize = veilgrad_events::BandedStrategy::MAX_BANDS;
const LARGEST_WEIGHT: f32 = 1e6;

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
            self.model.check_start(),
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
        let sized = matches!(privacy.sampling, Sampling::Fixed | Sampling::Shuffle);
        let whole = !sized || privacy.expected_batch.fract() == 0.0;
        refuse([
            (!whole, "[privacy] expected_batch must be whole for batches of a fixed size"),
            (
                privacy.max_batch.is_some() && privacy.sampling != Sampling::Truncated,
                "[privacy] max_batch is for sampling = \"truncated\"",
            ),
            (
                privacy.max_batch.is_some_and(|most| most == 0 || most > data.records),
                "[privacy] max_batch must be between 1 and the declared [data] records",
            ),
        ])?;
        let example = matches!(data.record, Record::Named(Named::Example));
        refuse([(
            self.copies() > 1 && !example,
            "[model.augment] copies is for [data] record = \"example\"",
        )])?;
        self.check_precondition()?;
        self.check_correlated()
    }

    fn check_correlated(&self) -> Result<(), String> {
        let Some(Correlated { bands }) = self.privacy.correlated else { return Ok(()) };
        let privacy = &self.privacy;
        refuse([
            (
                privacy.sampling != Sampling::Poisson,
                "[privacy.correlated] is for sampling = \"poisson\", which it makes cyclic",
            ),
            (
                privacy.precondition.is_some(),
                "[privacy.correlated] cannot follow [privacy.precondition]: its groups of records are drawn for the first \
                 round of a run",
            ),
            (
                self.canaries() > 0,
                "[privacy.correlated] cannot be audited by canaries, whose scores assume independent rounds",
            ),
            (
                matches!(bands, Bands::Named(_)) && privacy.epsilon.is_none(),
                "[privacy.correlated] bands = \"auto\" needs [privacy] epsilon: the best number of bands depends on it",
            ),
        ])?;
        let Bands::Number(bands) = bands else { return Ok(()) };
        let most = (self.data.records as f64 / privacy.expected_batch) as usize;
        let most = most.min(MOST_BANDS).min(usize::try_from(self.rounds()).unwrap_or(usize::MAX));
        match (1..=most).contains(&bands) {
            true => Ok(()),
            false => Err(format!(
                "[privacy.correlated] bands {bands} is not between 1 and {most}: there are at most {MOST_BANDS}, no more \
                 than rounds, and each of as many groups of records has at least an expected batch"
            )),
        }
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
                matches!(self.privacy.sampling, Sampling::Shuffle | Sampling::Allocation),
                "[privacy.precondition] is for sampling = \"poisson\", \"truncated\" or \"fixed\": epochs begin at \
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
        let mut header = data.header.iter().flatten();
        header.try_for_each(|name| check_name("[data] header:", name))?;
        user.into_iter().try_for_each(|name| check_name("[data] record: user", name))?;
        if let Classes::Names(names) = &data.classes {
            names.iter().try_for_each(|name| check_name("[data] classes:", name))?;
        }
        for column in &data.columns {
            check_name("[[data.columns]] name", &column.name)?;
            let mut words = column.categories.iter().flatten();
            words.try_for_each(|word| check_name("[[data.columns]] categories:", word))?;
        }
        let mut patterns = self.model.frozen.iter().chain(&self.model.fresh);
        patterns.try_for_each(|name| check_name("[model] frozen or fresh:", name))?;
        for group in &self.privacy.groups {
            group.name.iter().try_for_each(|name| check_name("[[privacy.groups]] name", name))?;
            let mut vectors = group.vectors.iter();
            vectors.try_for_each(|name| check_name("[[privacy.groups]] vectors:", name))?;
        }
        Ok(())
    }

    fn check_train(&self) -> Result<(), String> {
        let train = &self.train;
        if self.canaries() > MOST_CANARIES {
            return Err(format!("[audit] canaries must be {MOST_CANARIES} or fewer"));
        }
        let bad_ema = train.ema.is_some_and(|decay| !(0.0..1.0).contains(&decay));
        refuse([
            (train.rounds.is_none() && train.epochs.is_none(), "[train] needs rounds, or epochs"),
            (
                train.rounds.is_some() && train.epochs.is_some(),
                "[train] has both rounds and epochs; give one",
            ),
            (train.rounds == Some(0), "[train] rounds must be 1 or more"),
            (bad_ema, "[train] ema is not in [0, 1)"),
            (
                train.cosine && train.schedule.is_some(),
                "[train] has both cosine and schedule; give schedule",
            ),
        ])?;
        if let Some(epochs) = train.epochs {
            let rounds = epochs * self.data.records as f64 / self.privacy.expected_batch;
            if !(epochs > 0.0 && rounds <= MOST_ROUNDS) {
                return Err(format!(
                    "[train] epochs {epochs} is not above 0, or makes more than {MOST_ROUNDS:e} rounds"
                ));
            }
        }
        self.check_loss()?;
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

impl Config {
    /// What is for classes alone, or for numbers alone.
    fn check_loss(&self) -> Result<(), String> {
        let (train, classes) = (&self.train, self.data.classes.count());
        let number = self.data.label_bounds.is_some();
        refuse([
            (
                number && train.class_weights.is_some(),
                "[train] class_weights is for classes, and the label is a number",
            ),
            (
                !number && train.huber.is_some(),
                "[train] huber is for a label that is a number, with [data] label_bounds",
            ),
        ])?;
        if let Some(huber) = train.huber.filter(|huber| !(*huber > 0.0 && huber.is_finite())) {
            return Err(format!("[train] huber {huber} is not a positive number"));
        }
        if let Some(weights) = &train.class_weights {
            let count = weights.len();
            if count != classes {
                return Err(format!(
                    "[train] class_weights has {count} numbers, for {classes} classes"
                ));
            }
            let wrong =
                weights.iter().find(|weight| !(**weight > 0.0 && **weight <= LARGEST_WEIGHT));
            if let Some(weight) = wrong {
                return Err(format!(
                    "[train] class_weights: {weight} is not in (0, {LARGEST_WEIGHT:e}]"
                ));
            }
        }
        let metric = self.privacy.groups.iter().find_map(|group| match group.vectors.as_slice() {
            [name] if name == "accuracy" || name == "classes" => Some(name),
            _ => None,
        });
        match metric.filter(|_| number) {
            Some(name) => Err(format!(
                "[[privacy.groups]] {name:?} is for classes, and the label is a number; \"loss\" is for both"
            )),
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
