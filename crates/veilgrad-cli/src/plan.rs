//! `veilgrad plan`: solves for the missing parameter of a run.

mod configuration;
pub(crate) mod correlated;
mod request;

use serde_json::{Map, Value, json};
use veilgrad_accounting::display::required_noise_up;
use veilgrad_accounting::{NoiseChoice, Profile, spent};
use veilgrad_events::{Epsilon, SampleRate};

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
pub(crate) use request::{Advice, SHUFFLE_ADVICE};
use request::{Known, Request, names, solve};

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
    let best = with_notice("comparing correlated noise", common.quiet, || solved.correlated());
    let correlated = correlated::as_text(best.as_ref());
    let drawn = arguments.html.is_some() || arguments.svg.is_some();
    if drawn && solved.answer.outcome.is_ok() {
        let curves = match solved.adjusted.is_adjusted() {
            true => Curves::default(),
            false => with_notice("drawing curves", common.quiet, || solved.curves())?,
        };
        if let Some(path) = &arguments.html {
            let page = plan_page(&solved.page(), &curves, &batch_rows(&batches), &correlated);
            write_file(path, page.as_bytes())?;
        }
        if let Some(path) = &arguments.svg {
            let charts = privacy_charts(&curves, arguments.delta.get());
            write_file(path, picture(&charts).as_bytes())?;
        }
    }
    if common.json {
        print_json(&Value::Object(solved.document(&batches, best.as_ref())))?;
    } else {
        let (batches, advice) = (batches_table(&batches), advice::table(&solved.advice()));
        let correlated = correlated::as_paragraph(&correlated);
        print(&format!("{}{batches}{correlated}{advice}", solved.table()))?;
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
    pub(crate) fn document(
        &self,
        batches: &[Advice],
        correlated: Option<&NoiseChoice>,
    ) -> Map<String, Value> {
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
        document.insert("correlated".to_owned(), correlated::as_json(correlated));
        document.insert("advice".to_owned(), json!(advice::json(&self.advice())));
        document
    }

    /// The best of plain and correlated noise for plain SGD, if the noise was asked for, samples are Poisson's, and the target is
    /// the epsilon of one run and one record. `None` if there is nothing to compare.
    pub(crate) fn correlated(&self) -> Option<NoiseChoice> {
        let request = self.request;
        let is_one_run = !self.adjusted.is_tuned() && self.adjusted.group.get() == 1;
        let is_comparable = is_one_run
            && self.solve == Solve::Noise
            && self.answer.outcome.is_ok()
            && request.arguments.sampling == Sampler::Poisson
            && request.risk.is_none();
        if !is_comparable {
            return None;
        }
        let (target, count) = (request.target().ok()?, self.known.steps?);
        let rate = SampleRate::new(self.known.rate?).ok()?;
        correlated::best(&target, rate, count, request.arguments.view.adjacency())
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
            advice: self.advice(),
            configuration: self.configuration(),
        }
    }
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
