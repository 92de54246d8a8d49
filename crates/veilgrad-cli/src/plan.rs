//! `veilgrad plan`: solves for the missing parameter of a run.

use std::num::NonZeroU64;

use clap::ValueEnum;
use serde_json::{Map, Value, json};
use veilgrad_accounting::claim::FALSE_POSITIVE_RATE;
use veilgrad_accounting::display::{required_noise_up, up};
use veilgrad_accounting::{
    Accountant, Composition, PrivacyTarget, Profile, RiskTarget, Unsupported, spent,
};
use veilgrad_events::{
    ClipNorm, Epsilon, FixedBatch, Folded, NoiseMultiplier, NoiseStd, Round, Rounds, SampleRate,
    Sampling, SumQuery, TruncatedPoisson,
};

use crate::adjust::Adjusted;
use crate::advice::{self, Settings};
use crate::answer::{Answer, Outcome, Parameters};
use crate::argument::{Common, Plan, Sampler, Solve};
use crate::error::Error;
use crate::output::{print, print_json, table, with_notice, write_file};
use crate::report::chart::picture;
use crate::report::page::privacy_charts;
use crate::report::plan_page::{PlanPage, plan_page};
use crate::report::{Curves, whole};

/// What people who shuffle should use.
pub(crate) const SHUFFLE_ADVICE: &str = "sampling by allocation also takes every record once per epoch, and its randomness counts as protection";

/// Points of the epsilon curve and of the privacy profile.
const CURVE: u64 = 48;
const PROFILE: usize = 48;

pub(crate) fn run(arguments: &Plan, common: &Common) -> Result<(), Error> {
    Solved::with(arguments, common.quiet, |solved| print_solved(solved, common))?
}

/// The epsilon of the solved plan, without output.
pub(crate) fn epsilon(arguments: &Plan) -> Result<f64, String> {
    let epsilon = |solved: &Solved<'_>| {
        solved
            .answer
            .outcome
            .as_ref()
            .map(|outcome| outcome.guarantee.epsilon)
            .map_err(Clone::clone)
    };
    Solved::with(arguments, true, epsilon).map_err(|error| error.to_string())?
}

fn print_solved(solved: &Solved<'_>, common: &Common) -> Result<(), Error> {
    let arguments = solved.request.arguments;
    let batches = with_notice("comparing other batch sizes", common.quiet, || solved.batches());
    let drawn = arguments.html.is_some() || arguments.svg.is_some();
    if drawn && solved.answer.outcome.is_ok() {
        let curves = match solved.adjusted.is_adjusted() {
            true => Curves::default(),
            false => with_notice("drawing curves", common.quiet, || solved.curves())?,
        };
        if let Some(path) = &arguments.html {
            write_file(path, plan_page(&solved.page(), &curves, &batch_rows(&batches)).as_bytes())?;
        }
        if let Some(path) = &arguments.svg {
            let charts = privacy_charts(&curves, arguments.delta.get());
            write_file(path, picture(&charts).as_bytes())?;
        }
    }
    if common.json {
        print_json(&Value::Object(solved.document(&batches)))?;
    } else {
        let (batches, advice) = (batches_table(&batches), advice::table(&solved.advice()));
        print(&format!("{}{batches}{advice}", solved.table()))?;
    }
    solved.answer.answered()
}

/// Why there are no curves.
const CURVES: &str = "curves are drawn for one run and one record only";

/// A plan with its solution, or the reason why there is none.
pub(crate) struct Solved<'a> {
    request: &'a Request<'a>,
    adjusted: &'a Adjusted,
    solve: Solve,
    /// All parameters, if there is a solution.
    known: Known,
    answer: Answer,
}

impl<'a> Solved<'a> {
    /// Solves a plan and calls `with` with it.
    ///
    /// # Errors
    /// When the arguments contradict each other. A plan without a solution has a reason instead of an outcome.
    pub(crate) fn with<T>(
        arguments: &Plan,
        quiet: bool,
        with: impl FnOnce(&Solved<'_>) -> T,
    ) -> Result<T, Error> {
        let solve = solve(arguments)?;
        let adjusted = Adjusted::new(&arguments.view)?;
        let request = Request::new(arguments, solve)?;
        let one_record = request.one_record(&adjusted);
        let is_one_run = !adjusted.is_tuned() && !one_record;
        if request.risk.is_some() && !is_one_run {
            let why = "an attacker's rates can be limited for one run and one record, or for a group of records with \
                       Poisson samples";
            return Err(Error::Usage(why.to_owned()));
        }
        if arguments.svg.is_some() && adjusted.is_adjusted() {
            return Err(Error::Usage(CURVES.to_owned()));
        }
        Ok(adjusted.with(one_record, |accountant, is_more| {
            let (accountant, group) = (Some((accountant, is_more)), adjusted.group);
            let request = Request { accountant, group, one_record, ..request };
            with(&Solved::new(&request, &adjusted, solve, quiet))
        }))
    }

    fn new(request: &'a Request<'a>, adjusted: &'a Adjusted, solve: Solve, quiet: bool) -> Self {
        let what = format!("solving for the {}", names(solve).2);
        let (known, outcome) = match with_notice(&what, quiet, || request.solve(solve)) {
            Ok((known, outcome)) => (known, Ok(outcome)),
            Err(reason) => (request.known.clone(), Err(reason)),
        };
        let arguments = request.arguments;
        let answer = Answer {
            parameters: Parameters {
                noise_multiplier: known.noise,
                rate: known.rate,
                steps: known.steps,
                sampling: request.sampling_name(),
                adjacency: arguments.view.adjacency().name(),
                delta: Some(arguments.delta.get()),
            },
            outcome,
            asked: arguments.view.accountant.map(|_| arguments.view.accountant().name()),
            show_noise: match solve {
                Solve::Noise => required_noise_up,
                // Given values are shown as given.
                Solve::Rate | Solve::Steps | Solve::Epsilon => |noise| noise.to_string(),
            },
        };
        Self { request, adjusted, solve, known, answer }
    }

    /// The answer as a table.
    fn table(&self) -> String {
        let answer = self.answer.table(names(self.solve).2);
        let policy = table(&self.request.policy_rows(&self.known));
        format!("{answer}{policy}{}", self.adjusted.rows())
    }

    /// The answer for programs.
    pub(crate) fn document(&self, batches: &[Advice]) -> Map<String, Value> {
        let batch = self.known.batch(self.request.arguments.records);
        let mut document = self.answer.json();
        document.insert("solved".to_owned(), json!(names(self.solve).1));
        document.insert("batch".to_owned(), json!(batch));
        let (most, epoch) =
            (self.request.max_batch(&self.known), self.request.rounds_per_epoch(&self.known));
        document.insert("max_batch".to_owned(), json!(most));
        document.insert("rounds_per_epoch".to_owned(), json!(epoch));
        self.adjusted.describe(&mut document);
        document.insert("batch_advice".to_owned(), json!(batches_json(batches)));
        document.insert("advice".to_owned(), json!(advice::json(&self.advice())));
        document
    }

    /// Other batch sizes, if the noise was asked for.
    pub(crate) fn batches(&self) -> Vec<Advice> {
        match (&self.answer.outcome, self.solve) {
            (Ok(_), Solve::Noise) => self.request.batch_advice(&self.known),
            _ => Vec::new(),
        }
    }

    /// Advice on the settings of the solved plan.
    fn advice(&self) -> Vec<advice::Note> {
        let arguments = self.request.arguments;
        let on = |outcome: &Outcome| {
            advice::on(&Settings {
                epsilon: Some(outcome.guarantee.epsilon),
                delta: arguments.delta.get(),
                attacker: Some(outcome.attacker),
                records: arguments.records,
                batch: self.known.batch(arguments.records),
                rounds: self.known.steps,
                noise_multiplier: self.known.noise,
            })
        };
        self.answer.outcome.as_ref().map_or_else(|_| Vec::new(), on)
    }

    /// Epsilon after every round, the privacy profile, and the best attack.
    pub(crate) fn curves(&self) -> Result<Curves, Error> {
        if self.adjusted.is_adjusted() {
            return Err(Error::Usage(CURVES.to_owned()));
        }
        let reason = |reason: &String| Error::NoAnswer(reason.clone());
        let outcome = self.answer.outcome.as_ref().map_err(reason)?;
        let Plan { view, delta, .. } = self.request.arguments;
        let rounds = self.request.rounds(&self.known).map_err(Error::failure)?;
        let curve = spent(&rounds, view.adjacency(), *delta, self.request.accountant(), CURVE);
        let composition = self.request.composition(&self.known).map_err(Error::failure)?;
        let last = Epsilon::new(outcome.guarantee.epsilon).map_err(Error::failure)?;
        let profile = Profile::new(&composition, last, PROFILE);
        Ok(Curves::new(&curve.map_err(Error::failure)?, &profile))
    }

    /// The answer for people.
    pub(crate) fn page(&self) -> PlanPage {
        let Plan { records, delta, .. } = self.request.arguments;
        let p = &self.answer.parameters;
        let outcome = self.answer.outcome.as_ref().ok();
        PlanPage {
            solved: names(self.solve).2,
            delta: delta.get(),
            epsilon: outcome.map(|outcome| outcome.guarantee.epsilon),
            noise: p.noise_multiplier.map(self.answer.show_noise),
            rounds: p.steps,
            batch: self.known.batch(*records).map(whole),
            records: *records,
            attacker: outcome.map(|outcome| outcome.attacker),
            scope: self.adjusted.scope(),
            subjects: self.adjusted.subjects(),
            reason: self.answer.outcome.as_ref().err().cloned(),
            table: self.table(),
            toml: self.toml(),
        }
    }

    /// The part of a configuration for `train` that says the same, if the number of records is known. What was solved for
    /// is not repeated where `train` computes it.
    fn toml(&self) -> Option<String> {
        let Plan { records, delta, epsilon, sampling, view, .. } = self.request.arguments;
        let (records, steps) = ((*records)?, self.known.steps?);
        let batch = whole(self.known.batch(Some(records))?);
        // A configuration has the epsilon of one record.
        let epsilon = epsilon.filter(|_| self.adjusted.group.get() == 1);
        let promise = match (self.solve, epsilon, self.known.noise) {
            (Solve::Epsilon, _, Some(noise)) | (_, None, Some(noise)) => {
                format!("noise_multiplier = {noise:?}")
            }
            (_, Some(epsilon), _) => format!("epsilon = {:?}", epsilon.get()),
            _ => return None,
        };
        let sampling = match sampling {
            // Every record in every round.
            Sampler::All => Sampler::Poisson,
            other => *other,
        };
        let sampling = sampling.to_possible_value()?.get_name().to_owned();
        Some(format!(
            "[data]\nrecords = {records}\n\n[privacy]\n{promise}\ndelta = {:?}\nsampling = \"{sampling}\"\n\
             expected_batch = {batch:?}\nadjacency = \"{}\"\n\n[train]\nrounds = {steps}\n",
            delta.get(),
            view.adjacency().name()
        ))
    }
}

/// The parameter to solve for: the one that `--solve` names, else the missing one.
fn solve(arguments: &Plan) -> Result<Solve, Error> {
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
const fn has_risk(arguments: &Plan) -> bool {
    arguments.advantage.is_some() || arguments.tpr.is_some() || arguments.posterior.is_some()
}

/// The option that sets a parameter, its key in JSON, and its row in tables.
fn names(solve: Solve) -> (&'static str, &'static str, &'static str) {
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
struct Known {
    rate: Option<f64>,
    steps: Option<u64>,
    noise: Option<f64>,
}

impl Known {
    /// The batch size at this rate and number of records.
    fn batch(&self, records: Option<u64>) -> Option<f64> {
        Some(self.rate? * records? as f64)
    }
}

struct Request<'a> {
    arguments: &'a Plan,
    known: Known,
    /// What an attacker may achieve, if that is the target.
    risk: Option<RiskTarget>,
    /// The accountant, and whether it accounts for more than its composition says; `None` for the one that was asked for.
    accountant: Option<(&'a dyn Accountant, bool)>,
    /// How many records a person has, and whether compositions are of one of them all the same.
    group: NonZeroU64,
    one_record: bool,
}

impl<'a> Request<'a> {
    fn new(arguments: &'a Plan, solve: Solve) -> Result<Self, Error> {
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

    fn accountant(&self) -> &dyn Accountant {
        self.accountant.map_or(self.arguments.view.accountant(), |(accountant, _)| accountant)
    }

    /// Whether the policy has no analysis of groups, so that compositions are of one record.
    fn one_record(&self, adjusted: &Adjusted) -> bool {
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
    fn max_batch(&self, known: &Known) -> Option<u64> {
        let records = self.arguments.records?;
        let batch = known.rate? * records as f64;
        let proposed = (batch + 6.0 * batch.sqrt()).ceil() as u64;
        let most = self.arguments.max_batch.unwrap_or(proposed).clamp(1, records);
        (self.arguments.sampling == Sampler::Truncated).then_some(most)
    }

    /// The rounds of an epoch of random allocation.
    fn rounds_per_epoch(&self, known: &Known) -> Option<u64> {
        let rounds = (1.0 / known.rate?).round().max(1.0);
        (self.arguments.sampling == Sampler::Allocation && rounds < 1e18).then_some(rounds as u64)
    }

    fn policy_rows(&self, known: &Known) -> Vec<(&'static str, String)> {
        let most = self.max_batch(known).map(|most| ("largest batch", most.to_string()));
        let epoch = self.rounds_per_epoch(known).map(|t| ("rounds per epoch", t.to_string()));
        let instead = (self.arguments.sampling == Sampler::Shuffle)
            .then(|| ("instead", SHUFFLE_ADVICE.to_owned()));
        most.into_iter().chain(epoch).chain(instead).collect()
    }

    fn sampling_name(&self) -> &'static str {
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
    fn rounds(&self, known: &Known) -> Result<Vec<Rounds>, Unsupported> {
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
    fn whole_batch(&self, rate: f64) -> f64 {
        match (self.arguments.sampling, self.arguments.records) {
            (Sampler::Fixed | Sampler::Shuffle, Some(records)) => {
                (rate * records as f64 * (1.0 + 1e-12)).floor().max(1.0) / records as f64
            }
            // Lowered to one over a whole number of rounds.
            (Sampler::Allocation, _) => 1.0 / (1.0 / rate * (1.0 - 1e-12)).ceil().max(1.0),
            _ => rate,
        }
    }

    fn composition(&self, known: &Known) -> Result<Composition, Unsupported> {
        let rounds = self.rounds(known)?;
        let folded: Vec<Folded> = rounds.iter().map(Folded::try_from).collect::<Result<_, _>>()?;
        let group = if self.one_record { NonZeroU64::MIN } else { self.group };
        Composition::of_group([folded], self.arguments.view.adjacency(), group)
    }

    fn target(&self) -> Result<PrivacyTarget<'_>, Unsupported> {
        let epsilon = self.arguments.epsilon.map_or_else(|| Epsilon::new(0.0), Ok)?;
        let (delta, accountant) = (self.arguments.delta, self.accountant());
        Ok(PrivacyTarget { epsilon, delta, accountant })
    }

    fn solve(&self, solve: Solve) -> Result<(Known, Outcome), String> {
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
        Ok((known, outcome))
    }

    /// Why not even one round keeps the target.
    fn not_one_round(&self) -> String {
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

    fn noise(&self, known: &Known) -> Result<NoiseMultiplier, Unsupported> {
        let composition_for =
            |z: NoiseMultiplier| self.composition(&Known { noise: Some(z.get()), ..known.clone() });
        match self.risk {
            Some(risk) => risk.noise_multiplier(composition_for),
            None => self.target()?.noise_multiplier(composition_for),
        }
    }

    /// The noise that other batch sizes need with the same number of rounds. The noise in the average gradient is the noise
    /// multiplier divided by the batch size.
    fn batch_advice(&self, solved: &Known) -> Vec<Advice> {
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
fn steps_of(epochs: f64, rate: f64) -> Option<u64> {
    let steps = (epochs / rate * (1.0 - 1e-12)).ceil();
    (steps.is_finite() && steps < 1e18).then_some(steps as u64)
}

/// A batch size, the noise multiplier that it needs, and the noise in the average gradient.
pub(crate) struct Advice {
    batch: f64,
    noise: f64,
    ratio: f64,
}

fn batches_json(advice: &[Advice]) -> Vec<Value> {
    let row = |Advice { batch, noise, ratio }: &Advice| json!({ "batch": batch, "noise_multiplier": noise, "noise_per_record": ratio });
    advice.iter().map(row).collect()
}

/// Other batch sizes for people: batch, noise multiplier, and noise over batch.
pub(crate) fn batch_rows(advice: &[Advice]) -> Vec<[String; 3]> {
    let row = |Advice { batch, noise, ratio }: &Advice| {
        [batch.to_string(), required_noise_up(*noise), required_noise_up(*ratio)]
    };
    advice.iter().map(row).collect()
}

fn batches_table(advice: &[Advice]) -> String {
    if advice.len() < 2 {
        return String::new();
    }
    let mut text =
        "\nWith the same number of rounds, a larger batch has less noise in the average:\n"
            .to_owned();
    text.push_str("   batch   noise multiplier   noise/batch\n");
    for [batch, noise, ratio] in batch_rows(advice) {
        text.push_str(&format!("{batch:>8}   {noise:>16}   {ratio:>11}\n"));
    }
    text
}
