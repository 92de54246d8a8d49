//! Checks of what is for users: weights, denominators, adaptive clipping, local steps, made-up federations.

use veilgrad_events::{Adjacency, BudgetShare, ClipNorm, PublicCount, WeightBound};
use veilgrad_mechanism::LearningRate;

use crate::problem::Problems;
use crate::train::config::{
    Adaptive, Config, Denominator, Local, MadeUp, Partition, Record, Simulate, Weights,
};

/// More made-up users or classes of each are taken for mistakes.
const MOST_USERS: u32 = 10_000_000;
const MOST_CLASSES: u32 = 1000;

impl Config {
    pub(super) fn check_federated(&self, problems: &mut Problems) {
        let (privacy, train) = (&self.privacy, &self.train);
        let users = self.data.record.user_examples().is_some();
        for (key, given) in [
            ("privacy.weights", privacy.weights.is_some()),
            ("train.local", train.local.is_some()),
            ("train.simulate", train.simulate.is_some()),
        ] {
            let (table, name) = key.split_once('.').unwrap_or(("", key));
            let text = format!("[{table}] {name} is for records that are users: set [data] record");
            problems.relying_on(&["data.record"], |problems| {
                problems.refuse(given && !users, key, text);
            });
        }
        problems.relying_on(&["privacy.adjacency"], |problems| {
            let sampling = privacy.sampling;
            problems.refuse(
                sampling.needs_record_count() && privacy.adjacency == Adjacency::AddRemove,
                "privacy.sampling",
                format!(
                    "[privacy] sampling = {:?} needs adjacency = \"replace-one\" or \"zero-out\": its batches are drawn from \
                     a known number of records, which is private under add-remove; or use sampling = \"poisson\"",
                    sampling.name()
                ),
            );
        });
        if let Some(weights) = privacy.weights {
            check_weights(weights, privacy.denominator.is_some(), problems);
        }
        if let Some(Denominator { floor, share }) = privacy.denominator {
            let label = "[privacy] denominator: floor:";
            problems.check(PublicCount::new(floor), "privacy.denominator.floor", label);
            problems.check(
                BudgetShare::new(share),
                "privacy.denominator.share",
                "[privacy] denominator:",
            );
        }
        if let Some(adaptive) = privacy.adaptive {
            self.check_adaptive(adaptive, problems);
        }
        problems.refuse(
            self.audit.is_some() && (privacy.adaptive.is_some() || privacy.denominator.is_some()),
            "audit",
            "[audit] is not for [privacy] adaptive or denominator: canaries would change clip norms and denominators",
        );
        if let Some(Local { lr, .. }) =
            train.local.filter(|local| !(local.lr > 0.0 && local.lr.is_finite()))
        {
            problems
                .add("train.local.lr", format!("[train] local: lr {lr} is not a positive number"));
        }
        if let Some(Simulate { availability, dropout }) = train.simulate {
            if !(availability > 0.0 && availability <= 1.0) {
                let text =
                    format!("[train] simulate: availability {availability} is not in (0, 1]");
                problems.add("train.simulate.availability", text);
            }
            if !(0.0..1.0).contains(&dropout) {
                let text = format!("[train] simulate: dropout {dropout} is not in [0, 1)");
                problems.add("train.simulate.dropout", text);
            }
        }
        if let Record::MadeUp(made_up) = &self.data.record {
            self.check_made_up(made_up, problems);
        }
    }

    fn check_adaptive(&self, adaptive: Adaptive, problems: &mut Problems) {
        let (label, place) = ("[privacy] adaptive:", |key: &str| format!("privacy.adaptive.{key}"));
        let Adaptive { quantile, floor, share, lr } = adaptive;
        if !(quantile > 0.0 && quantile < 1.0) {
            problems
                .add(place("quantile"), format!("{label} quantile {quantile} is not in (0, 1)"));
        }
        problems.check(BudgetShare::new(share), &place("share"), label);
        problems.check(LearningRate::constant(lr), &place("lr"), label);
        problems.check(ClipNorm::new(floor), &place("floor"), "[privacy] adaptive: floor:");
        let groups = self.privacy.groups.iter().filter(|group| !group.is_estimate());
        let mut clips: Vec<f64> = groups.map(|group| group.clip).collect();
        if clips.is_empty() {
            clips.push(self.privacy.clip.unwrap_or(1.0));
        }
        for clip in clips.into_iter().filter(|clip| *clip < floor) {
            let text = format!("{label} floor {floor} is above the clip norm {clip}");
            problems.relying_on(&["privacy.clip", "privacy.groups"], |problems| {
                problems.add(place("floor"), text);
            });
        }
    }

    fn check_made_up(&self, made_up: &MadeUp, problems: &mut Problems) {
        let (label, place) = ("[data] record:", |key: &str| format!("data.record.{key}"));
        let users = made_up.users.get();
        if u64::from(users) != self.data.records {
            let text = format!(
                "{label} users is {users}, and [data] records is {}: made-up users are all records",
                self.data.records
            );
            let add = |problems: &mut Problems| problems.add(place("users"), text);
            problems.relying_on(&["data.records"], add);
        }
        problems.refuse(
            users > MOST_USERS,
            &place("users"),
            format!("{label} users must be {MOST_USERS} or fewer"),
        );
        problems.refuse(
            self.data.label_bounds.is_some() && made_up.partition != Partition::Uniform,
            &place("partition"),
            format!("{label} the label is a number: partition must be \"uniform\""),
        );
        problems.relying_on(&[place("partition")], |problems| {
            problems.refuse(
                made_up.concentration.is_some() && made_up.partition != Partition::Dirichlet,
                &place("concentration"),
                format!("{label} concentration is for partition = \"dirichlet\""),
            );
            problems.refuse(
                made_up.classes_per_user.is_some() && made_up.partition != Partition::ByClass,
                &place("classes_per_user"),
                format!("{label} classes_per_user is for partition = \"by-class\""),
            );
        });
        if let Some(found) =
            made_up.concentration.filter(|found| !(*found >= 1e-3 && *found <= 1e6))
        {
            let text = format!("{label} concentration {found} is not in [0.001, 1e6]");
            problems.add(place("concentration"), text);
        }
        problems.refuse(
            made_up.classes_per_user.is_some_and(|classes| classes.get() > MOST_CLASSES),
            &place("classes_per_user"),
            format!("{label} classes_per_user must be {MOST_CLASSES} or fewer"),
        );
    }
}

fn check_weights(weights: Weights, private_denominator: bool, problems: &mut Problems) {
    let (label, place) = ("[privacy] weights:", "privacy.weights.expected");
    let Weights { bound, expected } = weights;
    problems.check(WeightBound::new(bound), "privacy.weights.bound", label);
    problems.refuse(
        private_denominator && expected.is_some(),
        place,
        format!(
            "{label} expected is for a public denominator, and [privacy] denominator is private"
        ),
    );
    problems.relying_on(&[place, "privacy.denominator"], |problems| {
        problems.refuse(
            !private_denominator && expected.is_none(),
            "privacy.weights",
            format!(
                "{label} needs expected, the public mean weight of a user, or [privacy] denominator"
            ),
        );
    });
    if let Some(expected) = expected.filter(|expected| !(*expected > 0.0 && *expected <= bound)) {
        let text = format!("{label} expected {expected} is not in (0, {bound}], up to bound");
        problems.relying_on(&["privacy.weights.bound"], |problems| problems.add(place, text));
    }
}
