//! Checking configurations: all that is wrong, with lines; messages say what would be valid.

mod correlated;
mod data;
mod declaration;
mod federated;
mod model;
mod record;
mod shape;
mod source;
mod values;

use veilgrad_events::{BudgetShare, ClipNorm, Delta, NoiseMultiplier};

use super::config::{Classes, Config, Kind, Named, Optimizer, Precondition, Record, Sampling};
use crate::output::check_name;
use crate::problem::{Problem, Problems};
pub(crate) use source::{Source, named_key};

/// A limit on work: every canary has a coordinate in all others, so the work is quadratic.
const MOST_CANARIES: u32 = 100_000;
/// More rounds are taken for mistakes.
const MOST_ROUNDS: f64 = 1e12;
const LARGEST_WEIGHT: f32 = 1e6;

impl Config {
    /// All that is wrong with a configuration that was changed after it was read.
    pub(crate) fn problems(&self) -> Vec<Problem> {
        let mut found = Problems::default();
        self.check(&mut found);
        found.0
    }

    /// Adds all problems of a configuration whose keys and types are right.
    fn check(&self, problems: &mut Problems) {
        self.check_privacy(problems);
        self.check_groups(problems);
        self.check_federated(problems);
        self.check_precondition(problems);
        let size =
            ["data.records", "privacy.expected_batch", "privacy.epsilon", "privacy.sampling"];
        let keys = [&size[..], &["train.rounds", "train.epochs"]].concat();
        problems.relying_on(&keys, |problems| self.check_correlated(problems));
        self.declaration().find_problems(problems);
        self.model.check_start(problems);
        self.check_files(problems);
        self.check_roles(problems);
        self.check_names(problems);
        self.check_train(problems);
        self.check_optimizer(problems);
        self.check_loss(problems);
    }

    fn check_privacy(&self, problems: &mut Problems) {
        let (data, privacy) = (&self.data, &self.privacy);
        let given = [privacy.epsilon, privacy.noise_multiplier].iter().flatten().count();
        problems.relying_on(&["privacy.epsilon", "privacy.noise_multiplier"], |problems| {
            let text = "[privacy] needs epsilon, or noise_multiplier";
            problems.refuse(given == 0, "privacy", text);
        });
        problems.refuse(
            given == 2,
            "privacy.noise_multiplier",
            "[privacy] has both epsilon and noise_multiplier; give one",
        );
        if let Some(epsilon) = privacy.epsilon.filter(|e| !(*e > 0.0 && e.is_finite())) {
            let text = format!("[privacy] epsilon {epsilon} is not a number greater than 0");
            problems.add("privacy.epsilon", text);
        }
        if let Some(noise) = privacy.noise_multiplier {
            problems.check(NoiseMultiplier::new(noise), "privacy.noise_multiplier", "[privacy]");
        }
        problems.check(Delta::new(privacy.delta), "privacy.delta", "[privacy]");
        problems.refuse(data.records == 0, "data.records", "[data] records must be 1 or more");
        let rate = privacy.expected_batch / data.records as f64;
        if data.records > 0 && !(rate > 0.0 && rate <= 1.0) {
            let text = format!(
                "[privacy] expected_batch {} is not in (0, {}], the declared [data] records",
                privacy.expected_batch, data.records
            );
            let add = |problems: &mut Problems| problems.add("privacy.expected_batch", text);
            problems.relying_on(&["data.records"], add);
        }
        let sized = matches!(privacy.sampling, Sampling::Fixed | Sampling::Shuffle);
        problems.refuse(
            sized && privacy.expected_batch.fract() != 0.0,
            "privacy.expected_batch",
            "[privacy] expected_batch must be whole for batches of a fixed size",
        );
        problems.relying_on(&["privacy.sampling"], |problems| {
            problems.refuse(
                privacy.max_batch.is_some() && privacy.sampling != Sampling::Truncated,
                "privacy.max_batch",
                "[privacy] max_batch is for sampling = \"truncated\"",
            );
        });
        problems.relying_on(&["data.records"], |problems| {
            problems.refuse(
                privacy.max_batch.is_some_and(|most| most == 0 || most > data.records),
                "privacy.max_batch",
                "[privacy] max_batch must be between 1 and the declared [data] records",
            );
        });
        let example = matches!(data.record, Record::Named(Named::Example));
        problems.refuse(
            self.copies() > 1 && !example,
            "model.augment.copies",
            "[model.augment] copies is for [data] record = \"example\"",
        );
    }

    fn check_groups(&self, problems: &mut Problems) {
        let privacy = &self.privacy;
        if let Some(clip) = privacy.clip {
            problems.check(ClipNorm::new(clip), "privacy.clip", "[privacy]");
        }
        let mut of_parameters = false;
        for (number, group) in (1..).zip(&privacy.groups) {
            let place = |key: &str| format!("privacy.groups[{number}].{key}");
            let label = format!("[[privacy.groups]] {number}:");
            problems.check(ClipNorm::new(group.clip), &place("clip"), &label);
            if let Some(share) = group.share {
                problems.check(BudgetShare::new(share), &place("share"), &label);
            }
            let estimate = group.is_estimate();
            of_parameters |= !estimate;
            if estimate && group.share.is_none() {
                let vectors = &group.vectors;
                let text = format!("{label} {vectors:?} needs share = its fraction of the budget");
                problems.relying_on(&[place("share")], |problems| {
                    problems.add(place("vectors"), text);
                });
            }
        }
        problems.refuse(
            of_parameters && privacy.clip.is_some(),
            "privacy.clip",
            "[privacy] has both clip and groups of parameters; give one",
        );
    }

    fn check_precondition(&self, problems: &mut Problems) {
        let Some(precondition) = self.privacy.precondition else { return };
        let is_share = |share: f64| share > 0.0 && share < 1.0;
        let Precondition { mean_share, directions_share, directions, rounds, floor } = precondition;
        let table = "privacy.precondition";
        for (key, share) in [("mean_share", mean_share), ("directions_share", directions_share)] {
            if !is_share(share) {
                let text = format!("[privacy.precondition] {key} {share} is not in (0, 1)");
                problems.add(format!("{table}.{key}"), text);
            }
        }
        let shares = ["mean_share", "directions_share"].map(|key| format!("{table}.{key}"));
        problems.relying_on(&shares, |problems| {
            problems.refuse(
                is_share(mean_share)
                    && is_share(directions_share)
                    && mean_share + directions_share >= 1.0,
                table,
                "[privacy.precondition] mean_share and directions_share leave nothing for training",
            );
        });
        if !(floor > 0.0 && floor <= 1.0) {
            let text = format!("[privacy.precondition] floor {floor} is not in (0, 1]");
            problems.add("privacy.precondition.floor", text);
        }
        problems.refuse(
            !(1..=256).contains(&directions),
            "privacy.precondition.directions",
            "[privacy.precondition] directions must be 1 to 256",
        );
        problems.refuse(
            !(1..=64).contains(&rounds),
            "privacy.precondition.rounds",
            "[privacy.precondition] rounds must be 1 to 64",
        );
        problems.relying_on(&["privacy.epsilon"], |problems| {
            problems.refuse(
                self.privacy.epsilon.is_none(),
                table,
                "[privacy.precondition] needs [privacy] epsilon: its shares are of that target",
            );
        });
        problems.refuse(
            !matches!(self.data.record, Record::Named(Named::Example)),
            table,
            "[privacy.precondition] is for [data] record = \"example\"",
        );
        problems.refuse(
            matches!(self.privacy.sampling, Sampling::Shuffle | Sampling::Allocation),
            table,
            "[privacy.precondition] is for sampling = \"poisson\", \"truncated\" or \"fixed\": epochs begin at the first \
             round of a run",
        );
        problems.relying_on(&["model.input_norm"], |problems| {
            problems.refuse(
                self.model.input_norm.is_none(),
                table,
                "[privacy.precondition] needs [model] input_norm: the norm of inputs after whitening, for example 63",
            );
        });
        problems.refuse(
            self.model.kind == Kind::Cnn,
            table,
            "[privacy.precondition] is for models of kind \"linear\" or \"mlp\"",
        );
    }

    /// Names are printed, so they must not contain hidden characters.
    fn check_names(&self, problems: &mut Problems) {
        let data = &self.data;
        let mut check = |key: &str, what: &str, name: &str| {
            if let Err(text) = check_name(what, name) {
                problems.add(key, text);
            }
        };
        check("data.dataset", "[data] dataset", &self.dataset());
        data.label.iter().for_each(|name| check("data.label", "[data] label", name));
        let header = data.header.iter().flatten();
        header.for_each(|name| check("data.header", "[data] header:", name));
        if let Record::User(user) = &data.record {
            check("data.record.user", "[data] record: user", &user.user);
        }
        if let Classes::Names(names) = &data.classes {
            names.iter().for_each(|name| check("data.classes", "[data] classes:", name));
        }
        for (number, column) in (1..).zip(&data.columns) {
            let place = |key: &str| format!("data.columns[{number}].{key}");
            check(&place("name"), "[[data.columns]] name", &column.name);
            for word in column.categories.iter().flatten() {
                check(&place("categories"), "[[data.columns]] categories:", word);
            }
        }
        for (key, patterns) in [("frozen", &self.model.frozen), ("fresh", &self.model.fresh)] {
            let (place, what) = (format!("model.{key}"), format!("[model] {key}:"));
            patterns.iter().for_each(|name| check(&place, &what, name));
        }
        for (number, group) in (1..).zip(&self.privacy.groups) {
            let place = |key: &str| format!("privacy.groups[{number}].{key}");
            let name = group.name.iter();
            name.for_each(|name| check(&place("name"), "[[privacy.groups]] name", name));
            for name in &group.vectors {
                check(&place("vectors"), "[[privacy.groups]] vectors:", name);
            }
        }
    }

    fn check_train(&self, problems: &mut Problems) {
        let train = &self.train;
        if self.canaries() > MOST_CANARIES {
            let text = format!("[audit] canaries must be {MOST_CANARIES} or fewer");
            problems.add("audit.canaries", text);
        }
        problems.relying_on(&["train.rounds", "train.epochs"], |problems| {
            let neither = train.rounds.is_none() && train.epochs.is_none();
            problems.refuse(neither, "train", "[train] needs rounds, or epochs");
        });
        problems.refuse(
            train.rounds.is_some() && train.epochs.is_some(),
            "train.epochs",
            "[train] has both rounds and epochs; give one",
        );
        problems.refuse(
            train.ema.is_some_and(|decay| !(0.0..1.0).contains(&decay)),
            "train.ema",
            "[train] ema is not in [0, 1)",
        );
        problems.refuse(
            train.cosine && train.schedule.is_some(),
            "train.cosine",
            "[train] has both cosine and schedule; give schedule",
        );
        if let Some(epochs) = train.epochs {
            let rounds = epochs * self.data.records as f64 / self.privacy.expected_batch;
            if !(epochs > 0.0 && rounds <= MOST_ROUNDS) {
                let text = format!(
                    "[train] epochs {epochs} is not above 0, or makes more than {MOST_ROUNDS:e} rounds"
                );
                problems.relying_on(&["data.records", "privacy.expected_batch"], |problems| {
                    problems.add("train.epochs", text);
                });
            }
        }
    }

    fn check_optimizer(&self, problems: &mut Problems) {
        let lr = self.train.optimizer.learning_rate();
        if !(lr > 0.0 && lr.is_finite()) {
            let text = format!("[train] optimizer: lr {lr} is not a positive number");
            problems.add("train.optimizer.lr", text);
        }
        match self.train.optimizer {
            Optimizer::Sgd { momentum, .. } if !(0.0..1.0).contains(&momentum) => {
                let text = format!("[train] optimizer: momentum {momentum} is not in [0, 1)");
                problems.add("train.optimizer.momentum", text);
            }
            Optimizer::Adamw { weight_decay, .. } if !(0.0..1e6).contains(&weight_decay) => {
                let text =
                    format!("[train] optimizer: weight_decay {weight_decay} is not in [0, 1e6)");
                problems.add("train.optimizer.weight_decay", text);
            }
            _ => {}
        }
    }

    /// What is for classes alone, or for numbers alone.
    fn check_loss(&self, problems: &mut Problems) {
        let (train, classes) = (&self.train, self.data.classes.count());
        let number = self.data.label_bounds.is_some();
        problems.relying_on(&["data.label_bounds"], |problems| {
            problems.refuse(
                !number && train.huber.is_some(),
                "train.huber",
                "[train] huber is for a label that is a number, with [data] label_bounds",
            );
        });
        if let Some(huber) = train.huber.filter(|huber| !(*huber > 0.0 && huber.is_finite())) {
            problems.add("train.huber", format!("[train] huber {huber} is not a positive number"));
        }
        match &train.class_weights {
            Some(_) if number => problems.add(
                "train.class_weights",
                "[train] class_weights is for classes, and the label is a number",
            ),
            Some(weights) => {
                let (count, place) = (weights.len(), "train.class_weights");
                if count != classes {
                    let text =
                        format!("[train] class_weights has {count} numbers, for {classes} classes");
                    problems.relying_on(&["data.classes"], |problems| problems.add(place, text));
                }
                let is_right = |weight: f32| weight > 0.0 && weight <= LARGEST_WEIGHT;
                for weight in weights.iter().filter(|weight| !is_right(**weight)) {
                    let text = format!(
                        "[train] class_weights: {weight} is not in (0, {LARGEST_WEIGHT:e}]"
                    );
                    problems.add(place, text);
                }
            }
            None => {}
        }
        for (place, group) in (1..).zip(&self.privacy.groups).filter(|_| number) {
            if let [name] = group.vectors.as_slice()
                && (name == "accuracy" || name == "classes")
            {
                let text = format!(
                    "[[privacy.groups]] {place}: {name:?} is for classes, and the label is a number; \"loss\" is for \
                     both"
                );
                problems.add(format!("privacy.groups[{place}].vectors"), text);
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
