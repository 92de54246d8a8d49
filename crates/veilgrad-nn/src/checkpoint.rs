//! Checkpoints: enough to go on, and nothing to go back with.

use std::path::Path;

use veilgrad_events::ClipNorm;
use veilgrad_ledger::{Hash, Head, Ledger};
use veilgrad_mechanism::{Adapted, RoundPlan};

use crate::file::{Arrays, FileError};
use crate::optimizer::WeightAverage;
use crate::{Optimizer, Trainer};

const FORMAT: &str = "veilgrad-checkpoint-2";

impl<O: Optimizer> Trainer<O> {
    /// Writes weights, running statistics, optimizer state, averages, clip norms, quantile estimates,
    /// the number of rounds, and where the ledger's chain ends.
    ///
    /// # Guarantee
    /// All of it is released or public. There is no randomness in it: whoever goes on from a
    /// checkpoint draws new samples and new noise and charges new rounds, so that an old checkpoint
    /// cannot undo a charge or repeat noise.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn save(&self, path: &Path, head: Option<&Head>) -> Result<(), FileError> {
        let mut arrays = Arrays::default();
        for (name, shape, values) in self.model.parameters() {
            arrays.insert(format!("model/{name}"), shape, values);
        }
        if let Some(average) = self.averaged_model() {
            for (name, shape, values) in average.parameters() {
                arrays.insert(format!("average/{name}"), shape, values);
            }
        }
        for (name, values) in self.optimizer.state() {
            arrays.insert(format!("optimizer/{name}"), &[values.len()], &values);
        }
        let mut text = |name: String, value: String| arrays.texts.insert(name, value);
        text("format".to_owned(), FORMAT.to_owned());
        text("round".to_owned(), self.round.to_string());
        text("optimizer".to_owned(), self.optimizer.kind());
        let bits = |value: f64| format!("{:016x}", value.to_bits());
        for group in &self.groups {
            if let Some(clip) = self.plan.clip_norm(group) {
                text(format!("clip/{group}"), bits(clip.get()));
            }
        }
        let adapted = self.plan.adapted();
        text("adapted".to_owned(), adapted.rounds.to_string());
        for (group, estimate) in adapted.estimates {
            text(format!("quantile/{group}"), bits(estimate));
        }
        if let Some(head) = head {
            text("ledger".to_owned(), head.id.clone());
            text("sequence".to_owned(), head.sequence.to_string());
            text("hash".to_owned(), head.hash.to_string());
        }
        arrays.write(path)
    }

    /// Goes on from a checkpoint of the same model, plan and kind of optimizer: clip norms that no
    /// quantile adapts must be the plan's own. A checkpoint that names a ledger needs that ledger, and the ledger
    /// must contain what was charged when the checkpoint was written.
    ///
    /// # Errors
    /// When the file cannot be read or does not fit, or the ledger is another one or was rolled back.
    /// Nothing was changed then.
    pub fn resume(&mut self, path: &Path, ledger: Option<&Ledger>) -> Result<(), FileError> {
        let arrays = Arrays::read(path)?;
        let text = |name: &str| arrays.texts.get(name);
        let wrong = |name: &str| FileError::Format(format!("'{name}' is missing or wrong"));
        if text("format").is_none_or(|format| format != FORMAT) {
            return Err(wrong("format"));
        }
        match (text("ledger"), ledger) {
            (None, None) => {}
            (Some(id), Some(ledger)) => {
                let sequence = text("sequence").and_then(|sequence| sequence.parse().ok());
                let hash = text("hash").and_then(|hash| hash.parse::<Hash>().ok());
                let (sequence, hash) = sequence.zip(hash).ok_or_else(|| wrong("hash"))?;
                ledger.contains(&Head { id: id.clone(), sequence, hash })?;
            }
            _ => return Err(wrong("ledger")),
        }
        let round = text("round").and_then(|round| round.parse().ok());
        let round = round.ok_or_else(|| wrong("round"))?;
        let mut model = self.model.clone();
        arrays.load("model/", &mut model)?;
        if text("optimizer").is_none_or(|kind| *kind != self.optimizer.kind()) {
            return Err(wrong("optimizer"));
        }
        let plan = self.adapted_plan(&arrays)?;
        let average = self.average.as_ref().map(|average| {
            let mut averaged = model.clone();
            arrays.load("average/", &mut averaged)?;
            Ok::<_, FileError>(WeightAverage { values: averaged.values, ..*average })
        });
        let average = average.transpose()?;
        let state = arrays.arrays.iter().filter_map(|(name, (_, values))| {
            Some((name.strip_prefix("optimizer/")?.to_owned(), values.clone()))
        });
        self.optimizer.restore(state.collect(), &model)?;
        (self.model, self.plan, self.round, self.average) = (model, plan, round, average);
        Ok(())
    }

    /// The plan where the checkpoint stands.
    fn adapted_plan(&self, arrays: &Arrays) -> Result<RoundPlan, FileError> {
        let wrong = |name: &str| FileError::Format(format!("'{name}' is missing or wrong"));
        let number = |bits: &str| u64::from_str_radix(bits, 16).ok().map(f64::from_bits);
        let rounds = arrays.texts.get("adapted").and_then(|rounds| rounds.parse().ok());
        let rounds = rounds.ok_or_else(|| wrong("adapted"))?;
        let quantiles =
            arrays.texts.iter().filter_map(|(n, bits)| Some((n.strip_prefix("quantile/")?, bits)));
        let estimates = quantiles
            .map(|(name, bits)| Ok((name.to_owned(), number(bits).ok_or_else(|| wrong(name))?)))
            .collect::<Result<_, FileError>>()?;
        let mut plan = self.plan.clone();
        plan.restore(&Adapted { rounds, estimates })
            .map_err(|error| FileError::Format(error.to_string()))?;
        for group in &self.groups {
            let name = format!("clip/{group}");
            let clip = arrays.texts.get(&name).and_then(|bits| number(bits));
            if clip.is_none() || clip != plan.clip_norm(group).map(ClipNorm::get) {
                return Err(wrong(&name));
            }
        }
        Ok(plan)
    }
}
