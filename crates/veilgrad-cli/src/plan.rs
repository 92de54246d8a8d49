//! `veilgrad plan`: solves for the missing parameter of a run.

pub(crate) mod correlated;

use serde_json::{Value, json};
use veilgrad_accounting::display::{required_noise_up, up};
use veilgrad_accounting::{Composition, NoiseChoice, PrivacyTarget, Profile, Unsupported, spent};
use veilgrad_events::{
    ClipNorm, Epsilon, FixedBatch, NoiseMultiplier, NoiseStd, Round, Rounds, SampleRate, Sampling,
    SumQuery,
};

use crate::answer::{Answer, Outcome, Parameters};
use crate::argument::{Common, Plan, Sampler, Solve};
use crate::error::Error;
use crate::output::{print, print_json, with_notice, write_file};
use crate::report::Curves;
use crate::report::chart::picture;
use crate::report::page::{plan_page, privacy_charts};

/// Points of the epsilon curve and of the privacy profile.
const CURVE: u64 = 48;
const PROFILE: usize = 48;

pub(crate) fn run(arguments: &Plan, common: &Common) -> Result<(), Error> {
    let solve = solve(arguments)?;
    let request = Request::new(arguments, solve)?;
    let (_, solved_key, solved_row) = names(solve);
    let what = format!("solving for the {solved_row}");
    let solution = with_notice(&what, common.quiet, || request.solve(solve));
    let (parameters, outcome) = match solution {
        Ok((known, outcome)) => (known, Ok(outcome)),
        Err(reason) => (request.known.clone(), Err(reason)),
    };
    let advice = match (&outcome, solve) {
        (Ok(_), Solve::Noise) => {
            with_notice("comparing other batch sizes", common.quiet, || request.batch_advice())
        }
        _ => Vec::new(),
    };
    let correlated = match (&outcome, solve) {
        (Ok(_), Solve::Noise) => {
            with_notice("comparing correlated noise", common.quiet, || request.correlated())
        }
        _ => None,
    };
    let answer = Answer {
        parameters: Parameters {
            noise_multiplier: parameters.noise,
            rate: parameters.rate,
            steps: parameters.steps,
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
    let drawn = arguments.html.is_some() || arguments.svg.is_some();
    if let (true, Ok(outcome)) = (drawn, &answer.outcome) {
        let rounds = request.rounds(&parameters).map_err(Error::failure)?;
        let adjacency = arguments.view.adjacency();
        let accountant = arguments.view.accountant();
        let curve = with_notice("drawing curves", common.quiet, || {
            spent(&rounds, adjacency, arguments.delta, accountant, CURVE)
        });
        let curve = curve.map_err(Error::failure)?;
        let table = answer.table(solved_row);
        let composition = request.composition(&parameters).map_err(Error::failure)?;
        let last = Epsilon::new(outcome.guarantee.epsilon).map_err(Error::failure)?;
        let profile = with_notice("drawing the profile", common.quiet, || {
            Profile::new(&composition, last, PROFILE)
        });
        let (curves, delta) = (Curves::new(&curve, &profile), arguments.delta.get());
        if let Some(path) = &arguments.html {
            write_file(path, plan_page(&curves, delta, &table).as_bytes())?;
        }
        if let Some(path) = &arguments.svg {
            write_file(path, picture(&privacy_charts(&curves, delta)).as_bytes())?;
        }
    }
    if common.json {
        let mut document = answer.json();
        document.insert("solved".to_owned(), json!(solved_key));
        document.insert("batch".to_owned(), json!(parameters.batch(arguments.records)));
        document.insert("batch_advice".to_owned(), json!(advice_json(&advice)));
        document.insert("correlated".to_owned(), correlated::as_json(correlated.as_ref()));
        print_json(&Value::Object(document))?;
    } else {
        let correlated = correlated::as_text(correlated.as_ref());
        print(&format!("{}{}{correlated}", answer.table(solved_row), advice_table(&advice)))?;
    }
    answer.answered()
}

/// The epsilon of the solved plan, without output.
pub(crate) fn epsilon(arguments: &Plan) -> Result<f64, String> {
    let solve = solve(arguments).map_err(|error| error.to_string())?;
    let request = Request::new(arguments, solve).map_err(|error| error.to_string())?;
    let (_, outcome) = request.solve(solve)?;
    Ok(outcome.guarantee.epsilon)
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
        (arguments.epsilon.is_some(), Solve::Epsilon),
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

/// The option that sets a parameter, its key in JSON, and its row in tables.
fn names(solve: Solve) -> (&'static str, &'static str, &'static str) {
    match solve {
        Solve::Rate => ("--rate (or --records and --batch)", "rate", "rate"),
        Solve::Steps => ("--steps (or --epochs)", "steps", "rounds"),
        Solve::Epsilon => ("--epsilon", "epsilon", "epsilon"),
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
        require(arguments.epsilon.is_none(), Solve::Epsilon)?;
        if sized && arguments.records.is_none() {
            return Err(Error::Usage("fixed and shuffled batches need --records".to_owned()));
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
        Ok(Self { arguments, known: Known { rate, steps, noise } })
    }

    fn sampling_name(&self) -> &'static str {
        match self.arguments.sampling {
            Sampler::Poisson => "poisson",
            Sampler::Fixed => "fixed",
            Sampler::Shuffle => "shuffle",
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
            sampler => {
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
            _ => rate,
        }
    }

    fn composition(&self, known: &Known) -> Result<Composition, Unsupported> {
        Composition::fold(&self.rounds(known)?, self.arguments.view.adjacency())
    }

    fn target(&self) -> Result<PrivacyTarget<'static>, Unsupported> {
        let epsilon = self.arguments.epsilon.map_or_else(|| Epsilon::new(0.0), Ok)?;
        let (delta, accountant) = (self.arguments.delta, self.arguments.view.accountant());
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
                let target = self.target().map_err(text)?;
                let steps = target.rounds(composition_for).map_err(text)?;
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
                let target = self.target().map_err(text)?;
                known = known_at(target.rate(composition_for).map_err(text)?.get());
            }
        }
        let composition = self.composition(&known).map_err(text)?;
        let accountant = self.arguments.view.accountant();
        let outcome =
            Outcome::new(&composition, || accountant.epsilon(&composition, self.arguments.delta));
        Ok((known, outcome.map_err(text)?))
    }

    /// Why not even one round keeps the target.
    fn not_one_round(&self) -> String {
        let one = self.composition(&Known { steps: Some(1), ..self.known.clone() });
        let accountant = self.arguments.view.accountant();
        let cost = one
            .and_then(|one| accountant.epsilon(&one, self.arguments.delta))
            .map_or("unknown".to_owned(), |found| up(found.epsilon));
        let target = self.arguments.epsilon.map_or(0.0, Epsilon::get);
        format!("not one round fits: its epsilon alone is {cost}, and {target} is allowed")
    }

    fn noise(&self, known: &Known) -> Result<NoiseMultiplier, Unsupported> {
        let composition_for =
            |z: NoiseMultiplier| self.composition(&Known { noise: Some(z.get()), ..known.clone() });
        self.target()?.noise_multiplier(composition_for)
    }

    /// The best of plain noise and noise that is correlated between rounds, for Poisson samples.
    fn correlated(&self) -> Option<NoiseChoice> {
        let (rate, rounds) = (self.known.rate?, self.known.steps?);
        if self.arguments.sampling != Sampler::Poisson {
            return None;
        }
        correlated::best(&self.target().ok()?, rate, rounds, self.arguments.view.adjacency())
    }

    /// The noise that other batch sizes need with the same number of rounds. The noise in the average gradient is the noise
    /// multiplier divided by the batch size.
    fn batch_advice(&self) -> Vec<Advice> {
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
                let noise = self.noise(&known).ok()?.get();
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
struct Advice {
    batch: f64,
    noise: f64,
    ratio: f64,
}

fn advice_json(advice: &[Advice]) -> Vec<Value> {
    let row = |Advice { batch, noise, ratio }: &Advice| json!({ "batch": batch, "noise_multiplier": noise, "noise_per_record": ratio });
    advice.iter().map(row).collect()
}

fn advice_table(advice: &[Advice]) -> String {
    if advice.len() < 2 {
        return String::new();
    }
    let mut text =
        "\nWith the same number of rounds, a larger batch has less noise in the average:\n"
            .to_owned();
    text.push_str("   batch   noise multiplier   noise/batch\n");
    for Advice { batch, noise, ratio } in advice {
        let (noise, ratio) = (required_noise_up(*noise), required_noise_up(*ratio));
        text.push_str(&format!("{batch:>8}   {noise:>16}   {ratio:>11}\n"));
    }
    text
}
