//! The configuration that says the same as a plan.

use veilgrad_events::Adjacency;

use super::Solved;
use crate::argument::{Distribution, Plan, Sampler, Solve};
use crate::report::plan_page::Configuration;
use crate::report::whole;

impl Solved<'_> {
    /// The part of a configuration that says the same: `train`, or `tune` for a choice among runs, has the epsilon of the
    /// plan. `None` without a solution.
    ///
    /// # Errors
    /// Says why no configuration says the same.
    pub(super) fn configuration(&self) -> Option<Result<Configuration, String>> {
        self.answer.outcome.as_ref().ok()?;
        Some(self.toml().and_then(|toml| Ok(Configuration { toml, command: self.command()? })))
    }

    fn toml(&self) -> Result<String, String> {
        let Plan { records, delta, epsilon, sampling, view, .. } = self.request.arguments;
        let records = records.ok_or("a configuration needs the number of records")?;
        let known =
            || Some((self.known.steps?, self.known.batch(Some(records))?, self.known.noise?));
        let (steps, batch, noise) = known().ok_or("a parameter is unknown")?;
        if steps == 0 {
            return Err("a run has at least one round".to_owned());
        }
        let adjacency = view.adjacency();
        let needs_count =
            matches!(sampling, Sampler::Fixed | Sampler::Shuffle | Sampler::Truncated);
        if needs_count && adjacency == Adjacency::AddRemove {
            return Err(format!(
                "no run has this plan: batches of sampling {:?} are drawn from a known number of records, which is private \
                 under add-remove adjacency; choose replace-one or zero-out adjacency, or Poisson samples",
                self.request.sampling_name()
            ));
        }
        // A run looks for the noise as this plan did only if it has the same target and accountant: of one record, by the
        // tightest bound.
        let is_target = self.solve == Solve::Noise
            && self.adjusted.group.get() == 1
            && view.accountant.is_none();
        let promise = match epsilon.filter(|_| is_target) {
            Some(epsilon) => format!("epsilon = {:?}", epsilon.get()),
            None => format!("noise_multiplier = {noise:?}"),
        };
        let sampling = match sampling {
            // Every record in every round.
            Sampler::All => "poisson",
            _ => self.request.sampling_name(),
        };
        let most = self.request.max_batch(&self.known);
        let most = most.map_or(String::new(), |most| format!("max_batch = {most}\n"));
        let (delta, batch, adjacency) = (delta.get(), whole(batch), adjacency.name());
        Ok(format!(
            "[data]\nrecords = {records}\n\n[privacy]\n{promise}\ndelta = {delta:?}\nsampling = \"{sampling}\"\n\
             expected_batch = {batch:?}\n{most}adjacency = \"{adjacency}\"\n\n[train]\nrounds = {steps}\n"
        ))
    }

    fn command(&self) -> Result<String, String> {
        let view = &self.request.arguments.view;
        let Some(mean) = view.tuning_mean_runs else {
            return Ok("veilgrad train CONFIG.toml".to_owned());
        };
        let distribution = view.tuning_distribution;
        if !matches!(
            distribution,
            Distribution::Poisson | Distribution::NegativeBinomial(0.0 | 1.0)
        ) {
            return Err("`veilgrad tune` draws geometric, logarithmic and poisson numbers of runs"
                .to_owned());
        }
        let distribution = distribution.name();
        Ok(format!(
            "veilgrad tune CONFIG.toml --vary train.optimizer.lr=0.5,1,2 --mean-runs {mean} --distribution {distribution}"
        ))
    }
}

#[cfg(test)]
mod tests;
