//! The largest contribution for each kind of case.

use std::collections::BTreeMap;

use crate::case::Case;

#[derive(Default)]
pub(crate) struct Tally(BTreeMap<String, (u64, f64)>);

impl Tally {
    /// Adds a record's contribution to a group, as a fraction of the sensitivity. Quantile bits, weights and metrics are
    /// tallied under their group alone: they reach the full sensitivity with any model.
    pub(crate) fn add(&mut self, case: &Case, group: &str, ratio: f64) {
        let rule = case.rules.get(group);
        let own = format!("group: {}", rule.map_or(group, |rule| rule.kind));
        let mut kinds = vec![own];
        if rule.is_some() {
            kinds.extend(case.kinds.iter().cloned());
            kinds.push(format!("threads: {}", case.performance[1].threads));
            kinds.push(format!("tile: {}", case.performance[1].tile));
            kinds.push(format!("sampling: {}", first_word(&case.sampling)));
            kinds.push(format!("loss: {}", first_word(&case.loss)));
        }
        for kind in kinds {
            let (count, largest) = self.0.entry(kind).or_default();
            *count += 1;
            *largest = largest.max(ratio);
        }
    }

    /// The largest ratio of each kind.
    pub(crate) fn largest(&self) -> impl Iterator<Item = (&str, f64)> {
        self.0.iter().map(|(kind, (_, largest))| (kind.as_str(), *largest))
    }

    pub(crate) fn text(&self) -> String {
        let mut text = format!("{:<34}{:>10}  largest contribution / S_int\n", "kind", "groups");
        for (kind, (count, largest)) in &self.0 {
            text.push_str(&format!("{kind:<34}{count:>10}  {largest:.9}\n"));
        }
        text
    }
}

fn first_word(value: &impl std::fmt::Debug) -> String {
    let text = format!("{value:?}");
    text.split([' ', '(', '{']).next().unwrap_or_default().to_owned()
}
