//! What a plan asks for, and its solution: the parameter that is missing.

use std::num::NonZeroU64;

use veilgrad_accounting::claim::FALSE_POSITIVE_RATE;
use veilgrad_accounting::display::up;
use veilgrad_accounting::{Accountant, Composition, PrivacyTarget, RiskTarget, Unsupported};
use veilgrad_events::{
    ClipNorm, Epsilon, FixedBatch, Folded, NoiseMultiplier, NoiseStd, Round, Rounds, SampleRate,
    Sampling, SumQuery, TruncatedPoisson,
};

use crate::adjust::Adjusted;
use crate::answer::{Outcome, Risk};
use crate::argument::{Plan, Sampler, Solve};
use crate::error::Error;

/// What people who shuffle should use.
pub(crate) const SHUFFLE_ADVICE: &str = "sampling by allocation also takes every record once per epoch, and its randomness counts as protection";

/// The parameter to solve for: the one that `--solve` names, else the missing one.
pub(super) fn solve(arguments: &Plan) -> Result<Solve, Error> {
    if let Some(solve) = arguments.solve {
        return Ok(solve);
    }
    let rate = arguments.rate.is_some()
        || (arguments.records.is_some() && arguments.batch.is_some())
        || arguments.sampling == Sampler::All;
    let missing: Vec<Solve> = [
        (rate, Solve::Rate),
        (arguments.steps.is_some() || arguments.epochs.is_some(), Solve::Steps),
        (arguments.epsilon.is_some() || has_risk(arguments), Solve::Epsilon),
        (arguments.noise_multiplier.is_some(), Solve::Noise),
    ]
    .into_iter()
    .filter_map(|(known, what)| (!known).then_some(what))
    .collect();
    match missing.as_slice() {
        [one] => Ok(*one),
        [] => Err(Error::Usage(
            "nothing is missing: leave one of rate, steps, epsilon and noise multiplier out, or name \
             it with --solve"
                .to_owned(),
        )),
        more => {
            let flags: Vec<&str> = more.iter().map(|what| names(*what).0).collect();
            let (count, flags) = (more.len(), flags.join(", "));
            let why = format!("one value can be solved for, and {count} are missing: {flags}");
            Err(Error::Usage(why))
        }
    }
}

/// Whether an attacker's rates are the target.
pub(super) const fn has_risk(arguments: &Plan) -> bool {
    arguments.advantage.is_some() || arguments.tpr.is_some() || arguments.posterior.is_some()
}

/// The option that sets a parameter, its key in JSON, and its row in tables.
pub(super) fn names(solve: Solve) -> (&'static str, &'static str, &'static str) {
    match solve {
        Solve::Rate => ("--rate (or --records and --batch)", "rate", "rate"),
        Solve::Steps => ("--steps (or --epochs)", "steps", "rounds"),
        Solve::Epsilon => (
            "--epsilon (or --advantage, --tpr and --fpr, or --prior and --posterior)",
            "epsilon",
            "epsilon",
        ),
        Solve::Noise => ("--noise-multiplier", "noise_multiplier", "noise multiplier"),
    }
}

/// The parameters of a run; `None` where unknown.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Known {
    pub(super) rate: Option<f64>,
    pub(super) steps: Option<u64>,
    pub(super) noise: Option<f64>,
}

impl Known {
    /// The batch size at this rate and number of records.
    pub(super) fn batch(&self, records: Option<u64>) -> Option<f64> {
        Some(self.rate? * records? as f64)
    }
}

pub(super) struct Request<'a> {
    pub(super) arguments: &'a Plan,
    pub(super) known: Known,
    /// What an attacker may achieve, if that is the target.
    pub(super) risk: Option<RiskTarget>,
    /// The accountant, and whether it accounts for more than its composition says; `None` for the one that was asked for.
    pub(super) accountant: Option<(&'a dyn Accountant, bool)>,
    /// How many records a person has, and whether compositions are of one of them all the same.
    pub(super) group: NonZeroU64,
    pub(super) one_record: bool,
}

impl<'a> Request<'a> {
    pub(super) fn new(arguments: &'a Plan, solve: Solve) -> Result<Self, Error> {
        let require = |missing: bool, what: Solve| {
            if missing && what != solve {
                return Err(Error::Usage(format!("{} is missing", names(what).0)));
            }
            Ok(())
        };
        let rate = match (arguments.rate, arguments.records, arguments.batch) {
            _ if arguments.sampling == Sampler::All => Some(1.0),
            (Some(_), _, Some(_)) => {
                return Err(Error::Usage(
                    "--rate and --batch both set the rate; give one".to_owned(),
                ));
            }
            (Some(rate), _, None) => Some(rate),
            (None, Some(records), Some(batch)) if batch <= records => {
                Some(batch as f64 / records as f64)
            }
            (None, Some(records), Some(batch)) => {
                let why = format!("batch {batch} is larger than the number of records, {records}");
                return Err(Error::Usage(why));
            }
            _ => None,
        };
        let rate = rate.filter(|_| solve != Solve::Rate);
        // An epoch of random allocation has a whole number of rounds.
        let rate = match arguments.sampling {
            Sampler::Allocation => rate.map(|rate| 1.0 / (1.0 / rate).round().max(1.0)),
            _ => rate,
        };
        if arguments.fpr.is_some() && arguments.tpr.is_none() && arguments.posterior.is_none() {
            return Err(Error::Usage("--fpr is for --tpr and --posterior".to_owned()));
        }
        let believed = arguments.prior.zip(arguments.posterior);
        let risk = match (arguments.advantage, arguments.tpr, arguments.fpr) {
            (Some(advantage), _, _) => Some(RiskTarget::advantage(advantage)),
            (None, Some(tpr), Some(fpr)) => Some(RiskTarget::true_positive_rate(tpr, fpr)),
            (None, _, fpr) => believed.map(|(prior, posterior)| {
                RiskTarget::posterior(prior, posterior, fpr.unwrap_or(FALSE_POSITIVE_RATE))
            }),
        };
        let risk = risk.transpose().map_err(Error::usage)?;
        let sized = matches!(arguments.sampling, Sampler::Fixed | Sampler::Shuffle);
        if let (true, Some(rate), Some(records)) = (sized, rate, arguments.records) {
            let batch = rate * records as f64;
            if (batch - batch.round()).abs() > 1e-6 || batch.round() < 1.0 {
                return Err(Error::Usage(format!(
                    "rate {rate} of {records} records is a batch of {batch}, which is not a whole number"
                )));
            }
        }
        require(rate.is_none(), Solve::Rate)?;
        require(arguments.steps.is_none() && arguments.epochs.is_none(), Solve::Steps)?;
        require(arguments.noise_multiplier.is_none(), Solve::Noise)?;
        require(arguments.epsilon.is_none() && risk.is_none(), Solve::Epsilon)?;
        let needs_records = sized || arguments.sampling == Sampler::Truncated;
        if needs_records && arguments.records.is_none() {
            let why = "fixed, shuffled and truncated batches need --records";
            return Err(Error::Usage(why.to_owned()));
        }
        if arguments.max_batch.is_some() && arguments.sampling != Sampler::Truncated {
            return Err(Error::Usage("--max-batch is for --sampling truncated".to_owned()));
        }
        if let (Some(most), Some(records)) = (arguments.max_batch, arguments.records)
            && most > records
        {
            let why = format!("max-batch {most} is larger than the number of records, {records}");
            return Err(Error::Usage(why));
        }
        if solve == Solve::Rate && arguments.sampling == Sampler::All {
            return Err(Error::Usage("--sampling all has rate 1".to_owned()));
        }
        let steps = match (solve, arguments.steps, rate) {
            (Solve::Steps, _, _) => None,
            (_, Some(steps), _) => Some(steps),
            (_, None, rate) => rate.and_then(|rate| steps_of(arguments.epochs?, rate)),
        };
        if steps.is_none() && solve != Solve::Steps && solve != Solve::Rate {
            return Err(Error::Usage(format!(
                "{} epochs at rate {} are not a whole number of rounds",
                arguments.epochs.unwrap_or(0.0),
                rate.unwrap_or(0.0)
            )));
        }
        let noise = arguments.noise_multiplier.map(|z| z.get()).filter(|_| solve != Solve::Noise);
        let (known, group) = (Known { rate, steps, noise }, NonZeroU64::MIN);
        Ok(Self { arguments, known, risk, accountant: None, group, one_record: false })
    }

    pub(super) fn accountant(&self) -> &dyn Accountant {
        self.accountant.map_or(self.arguments.view.accountant(), |(accountant, _)| accountant)
    }

    /// Whether the policy has no analysis of groups, so that compositions are of one record.
    pub(super) fn one_record(&self, adjusted: &Adjusted) -> bool {
        let typical =
            Known { rate: Some(self.known.rate.unwrap_or(0.1)), steps: Some(1), noise: Some(1.0) };
        let Ok(rounds) = self.rounds(&typical) else { return false };
        let folded: Result<Vec<_>, _> = rounds.iter().map(Folded::try_from).collect();
        let Ok(folded) = folded else { return false };
        let adjacency = self.arguments.view.adjacency();
        adjusted.compose(|| vec![folded.clone()], adjacency).is_ok_and(|(_, one)| one)
    }

    /// The largest batch of truncated sampling: as given, or the expected one plus six times its square root, at which truncation
    /// adds almost nothing to epsilon.
    pub(super) fn max_batch(&self, known: &Known) -> Option<u64> {
        let records = self.arguments.records?;
        let batch = known.rate? * records as f64;
        let proposed = (batch + 6.0 * batch.sqrt()).ceil() as u64;
        let most = self.arguments.max_batch.unwrap_or(proposed).clamp(1, records);
        (self.arguments.sampling == Sampler::Truncated).then_some(most)
    }

    /// The rounds of an epoch of random allocation.
    pub(super) fn rounds_per_epoch(&self, known: &Known) -> Option<u64> {
        let rounds = (1.0 / known.rate?).round().max(1.0);
        (self.arguments.sampling == Sampler::Allocation && rounds < 1e18).then_some(rounds as u64)
    }

    pub(super) fn policy_rows(&self, known: &Known) -> Vec<(&'static str, String)> {
        let most = self.max_batch(known).map(|most| ("largest batch", most.to_string()));
        let epoch = self.rounds_per_epoch(known).map(|t| ("rounds per epoch", t.to_string()));
        let instead = (self.arguments.sampling == Sampler::Shuffle)
            .then(|| ("instead", SHUFFLE_ADVICE.to_owned()));
        most.into_iter().chain(epoch).chain(instead).collect()
    }

    pub(super) fn sampling_name(&self) -> &'static str {
        match self.arguments.sampling {
            Sampler::Poisson => "poisson",
            Sampler::Fixed => "fixed",
            Sampler::Shuffle => "shuffle",
            Sampler::Truncated => "truncated",
            Sampler::Allocation => "allocation",
            Sampler::All => "all",
        }
    }

    /// The rounds of a run whose parameters are all known.
    pub(super) fn rounds(&self, known: &Known) -> Result<Vec<Rounds>, Unsupported> {
        let (Some(rate), Some(steps), Some(noise)) = (known.rate, known.steps, known.noise) else {
            return Err(Unsupported::new("a parameter is unknown"));
        };
        if rate == 0.0 || steps == 0 {
            return Ok(Vec::new());
        }
        let records = self.arguments.records.unwrap_or(1);
        let sampling = match self.arguments.sampling {
            Sampler::All => Sampling::All {},
            Sampler::Poisson => Sampling::Poisson { rate: SampleRate::new(rate)? },
            Sampler::Truncated => {
                let most = self.max_batch(known).unwrap_or(records);
                let policy = TruncatedPoisson::new(SampleRate::new(rate)?, records, most);
                let policy = policy.map_err(|error| Unsupported::new(error.to_string()))?;
                Sampling::TruncatedPoisson(policy)
            }
            Sampler::Allocation => {
                let rounds = self.rounds_per_epoch(known).and_then(NonZeroU64::new);
                let too_long = || Unsupported::new(format!("rate {rate}: an epoch is too long"));
                Sampling::Allocation { rounds_per_epoch: rounds.ok_or_else(too_long)? }
            }
            sampler @ (Sampler::Fixed | Sampler::Shuffle) => {
                let batch = (rate * records as f64).round() as u64;
                let batch = FixedBatch::new(records, batch)
                    .map_err(|error| Unsupported::new(error.to_string()))?;
                match sampler {
                    Sampler::Fixed => Sampling::Fixed(batch),
                    _ => Sampling::Shuffle(batch),
                }
            }
        };
        let query = SumQuery::new("gradient", ClipNorm::new(1.0)?, NoiseStd::new(noise)?);
        let round = Round::new(sampling, vec![query]);
        let round = round.map_err(|error| Unsupported::new(error.to_string()))?;
        Ok(vec![Rounds { count: steps, round }])
    }

    /// This rate, lowered to that of a whole batch where batches have a fixed size.
    pub(super) fn whole_batch(&self, rate: f64) -> f64 {
        match (self.arguments.sampling, self.arguments.records) {
            (Sampler::Fixed | Sampler::Shuffle, Some(records)) => {
                (rate * records as f64 * (1.0 + 1e-12)).floor().max(1.0) / records as f64
            }
            // Lowered to one over a whole number of rounds.
            (Sampler::Allocation, _) => 1.0 / (1.0 / rate * (1.0 - 1e-12)).ceil().max(1.0),
            _ => rate,
        }
    }

    pub(super) fn composition(&self, known: &Known) -> Result<Composition, Unsupported> {
        let rounds = self.rounds(known)?;
        let folded: Vec<Folded> = rounds.iter().map(Folded::try_from).collect::<Result<_, _>>()?;
        let group = if self.one_record { NonZeroU64::MIN } else { self.group };
        Composition::of_group([folded], self.arguments.view.adjacency(), group)
    }

    pub(super) fn target(&self) -> Result<PrivacyTarget<'_>, Unsupported> {
        let epsilon = self.arguments.epsilon.map_or_else(|| Epsilon::new(0.0), Ok)?;
        let (delta, accountant) = (self.arguments.delta, self.accountant());
        Ok(PrivacyTarget { epsilon, delta, accountant })
    }

    pub(super) fn solve(&self, solve: Solve) -> Result<(Known, Outcome), String> {
        let text = |error: Unsupported| error.to_string();
        let mut known = self.known.clone();
        match solve {
            Solve::Epsilon => {}
            Solve::Noise => known.noise = Some(self.noise(&known).map_err(text)?.get()),
            Solve::Steps => {
                let composition_for =
                    |steps| self.composition(&Known { steps: Some(steps), ..self.known.clone() });
                if known.rate == Some(0.0) {
                    return Err("at rate 0 any number of rounds keeps the budget".to_owned());
                }
                let steps = match self.risk {
                    Some(risk) => risk.rounds(composition_for),
                    None => self.target().map_err(text)?.rounds(composition_for),
                };
                let steps = steps.map_err(text)?;
                if steps == 0 {
                    return Err(self.not_one_round());
                }
                known.steps = Some(steps);
            }
            Solve::Rate => {
                let known_at = |rate: f64| -> Known {
                    // Batches of a fixed size are whole, and their rate is what is accounted for.
                    let rate = self.whole_batch(rate);
                    let of_epochs = || steps_of(self.arguments.epochs?, rate);
                    let steps = self.known.steps.or_else(of_epochs);
                    Known { rate: Some(rate), steps, ..self.known.clone() }
                };
                let composition_for = |rate: SampleRate| self.composition(&known_at(rate.get()));
                let rate = match self.risk {
                    Some(risk) => risk.rate(composition_for),
                    None => self.target().map_err(text)?.rate(composition_for),
                };
                known = known_at(rate.map_err(text)?.get());
            }
        }
        let composition = self.composition(&known).map_err(text)?;
        let accountant = self.accountant();
        let guarantee = || accountant.epsilon(&composition, self.arguments.delta).map_err(text);
        let outcome = match self.accountant {
            Some((_, true)) => Outcome::adjusted(&composition, accountant, guarantee()?),
            _ => Outcome::new(&composition, guarantee)?,
        };
        let risk = self.risk.map(|risk| Risk {
            target: Some(risk.limit()),
            fpr: risk.false_positive_rate(),
            achieved: risk.risk(&composition),
            prior: self.arguments.prior,
        });
        Ok((known, Outcome { risk, ..outcome }))
    }

    /// Why not even one round keeps the target.
    pub(super) fn not_one_round(&self) -> String {
        let one = self.composition(&Known { steps: Some(1), ..self.known.clone() });
        let cost = one
            .and_then(|one| self.accountant().epsilon(&one, self.arguments.delta))
            .map_or("unknown".to_owned(), |found| up(found.epsilon));
        let target = self.arguments.epsilon.map_or(0.0, Epsilon::get);
        match self.risk {
            Some(_) => format!("not one round fits: its epsilon alone is {cost}"),
            None => {
                format!("not one round fits: its epsilon alone is {cost}, and {target} is allowed")
            }
        }
    }

    pub(super) fn noise(&self, known: &Known) -> Result<NoiseMultiplier, Unsupported> {
        let composition_for =
            |z: NoiseMultiplier| self.composition(&Known { noise: Some(z.get()), ..known.clone() });
        match self.risk {
            Some(risk) => risk.noise_multiplier(composition_for),
            None => self.target()?.noise_multiplier(composition_for),
        }
    }

    /// The noise that other batch sizes need with the same number of rounds. The noise in the average gradient is the noise
    /// multiplier divided by the batch size.
    pub(super) fn batch_advice(&self, solved: &Known) -> Vec<Advice> {
        let (Some(records), Some(rate)) = (self.arguments.records, self.known.rate) else {
            return Vec::new();
        };
        let sampled = matches!(self.arguments.sampling, Sampler::Poisson | Sampler::Fixed);
        let batch = rate * records as f64;
        let candidates = [0.25, 0.5, 1.0, 2.0, 4.0].map(|factor| (batch * factor).round());
        let possible =
            candidates.into_iter().filter(|b| sampled && *b >= 1.0 && *b <= records as f64);
        possible
            .filter_map(|batch| {
                let known = Known { rate: Some(batch / records as f64), ..self.known.clone() };
                // That of the plan itself is known.
                let noise = match solved.noise.filter(|_| known.rate == solved.rate) {
                    Some(noise) => noise,
                    None => self.noise(&known).ok()?.get(),
                };
                Some(Advice { batch, noise, ratio: noise / batch })
            })
            .collect()
    }
}

/// The number of rounds in this many epochs, rounded up.
pub(super) fn steps_of(epochs: f64, rate: f64) -> Option<u64> {
    let steps = (epochs / rate * (1.0 - 1e-12)).ceil();
    (steps.is_finite() && steps < 1e18).then_some(steps as u64)
}

/// A batch size, the noise multiplier that it needs, and the noise in the average gradient.
pub(crate) struct Advice {
    pub(super) batch: f64,
    pub(super) noise: f64,
    pub(super) ratio: f64,
}
