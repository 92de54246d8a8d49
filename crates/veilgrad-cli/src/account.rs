//! `veilgrad account`: epsilon of a ledger or of a rounds file.

use serde_json::json;
use veilgrad_accounting::claim::{Claim, FALSE_POSITIVE_RATE, NoClaim, allowed_rate, rate_by};
use veilgrad_accounting::display::claimed_noise_down;
use veilgrad_accounting::{Guarantee, Tightest, Unsupported, rdp, true_positive_rate};
use veilgrad_events::{Adjacency, Budget, Folded, Mode, Rounds, RoundsFile};
use veilgrad_ledger::Ledger;

use crate::adjust::Adjusted;
use crate::answer::{Answer, Outcome, Parameters, Risk, rate, sampling_name};
use crate::argument::{Account, Accounting, Common};
use crate::error::Error;
use crate::output::{print, print_json, table, with_notice};

pub(crate) fn run(arguments: &Account, common: &Common) -> Result<(), Error> {
    let adjusted = Adjusted::new(&arguments.view)?;
    let source = read(arguments, common)?;
    let adjacency = match (arguments.view.adjacency, &source.budget) {
        (None, Some(budget)) => budget.adjacency,
        // A ledger is charged under its own adjacency; another one could give a smaller epsilon.
        (Some(asked), Some(budget)) if asked.adjacency() != budget.adjacency => {
            return Err(Error::Usage(format!(
                "the budget of {:?} is for adjacency {}",
                budget.dataset,
                budget.adjacency.name()
            )));
        }
        _ => arguments.view.adjacency(),
    };
    let accountant = arguments.view.accountant();
    let asked = arguments.view.accountant.map(|_| accountant.name());
    let what = "computing what these rounds cost";
    let outcome =
        with_notice(what, common.quiet, || outcome(arguments, &adjusted, &source, adjacency));
    let all: Vec<Folded> = source.runs.concat();
    let mut parameters = parameters(&all, adjacency);
    parameters.delta = arguments.delta.map(|delta| delta.get());
    let answer = Answer { parameters, outcome, asked, show_noise: claimed_noise_down };
    if common.json {
        let mut document = answer.json();
        adjusted.describe(&mut document);
        document.insert("mode".to_owned(), json!(source.mode));
        document.insert("mode_assumed".to_owned(), json!(source.assumed));
        if let Some(claim) = &source.claim {
            let running = document.get("epsilon").cloned();
            document.insert("guarantee".to_owned(), crate::claim::json(claim));
            document.insert("running".to_owned(), json!(running));
            if let Err(reason) = claim {
                document.entry("reason").or_insert_with(|| json!(reason.to_string()));
            }
        }
        print_json(&json!(document))?;
    } else {
        let table = answer.table(if arguments.delta.is_some() { "epsilon" } else { "delta" });
        let claim = source.claim.as_ref().map_or(String::new(), claim_table);
        print(&format!("{table}{}{}{claim}", adjusted.rows(), mode_row(&source)))?;
    }
    answer.answered()
}

fn mode_row(source: &Source) -> &'static str {
    match (source.mode, source.assumed) {
        (Mode::Planned, false) => "mode              planned\n",
        (Mode::Planned, true) => {
            "mode              planned, because the file does not say; valid only if sampling, noise and number \
             of rounds were not chosen from outputs\n"
        }
        (Mode::Adaptive, _) => "mode              adaptive\n",
    }
}

/// What may be claimed about the dataset, printed below the cost of its rounds so far.
fn claim_table(claim: &Result<Claim, NoClaim>) -> String {
    let rows = table(&crate::claim::rows(claim));
    format!(
        "\nThe table above is the cost of the rounds charged so far. What may be claimed:\n{rows}"
    )
}

/// The rounds to account for, and what is known about their origin.
struct Source {
    /// The rounds of each run, in their order.
    runs: Vec<Vec<Folded>>,
    /// Whether rounds may have been chosen from earlier outputs.
    mode: Mode,
    /// Whether the mode is assumed, because the file does not say.
    assumed: bool,
    /// The Rényi order that was fixed before the first round, if one was.
    order: Option<f64>,
    budget: Option<Budget>,
    insecure: Option<String>,
    /// Whether a run is a tuning, whose cost is not that of its rounds.
    tuned: bool,
    /// What may be claimed about the dataset of a ledger.
    claim: Option<Result<Claim, NoClaim>>,
}

fn outcome(
    arguments: &Account,
    adjusted: &Adjusted,
    source: &Source,
    adjacency: Adjacency,
) -> Result<Outcome, String> {
    if let Some(reason) = &source.insecure {
        return Err(format!("a run protects nothing: {reason}"));
    }
    if source.tuned {
        return Err("unsupported: a run is a tuning, whose cost is not that of its rounds; `veilgrad budget show` and \
                    `veilgrad statement` have it"
            .to_owned());
    }
    let text = |error: Unsupported| error.to_string();
    let runs = || source.runs.iter().map(|rounds| rounds.iter().copied()).collect();
    let (composition, one_record) = adjusted.compose(runs, adjacency).map_err(text)?;
    // Rounds that may have been chosen from earlier outputs are bounded at an order that was fixed before the first.
    match (arguments.delta, arguments.epsilon, source.mode) {
        (Some(delta), _, Mode::Adaptive)
            if arguments.view.accountant != Some(Accounting::Pld)
                && !one_record
                && !adjusted.is_tuned()
                && let Some(order) = source.order =>
        {
            let found = rdp::epsilon_on_orders(&composition, delta, &[order]).map_err(text)?;
            let (epsilon, delta) = (found.epsilon.get(), delta.get());
            let (accountant, method) = ("rdp", None);
            let guarantee = Guarantee { epsilon, epsilon_lower: None, delta, accountant, method };
            let risk = risk(arguments, |fpr| allowed_rate(epsilon, delta, fpr));
            Ok(Outcome { risk, ..Outcome::adaptive(guarantee) })
        }
        (_, _, Mode::Adaptive) => {
            Err("unsupported: sampling or noise may have been chosen from earlier outputs \
                 (no plan was declared, or the mode is adaptive), which only a Rényi filter at an \
                 order that was fixed before the first round bounds, for a delta"
                .to_owned())
        }
        (delta, epsilon, Mode::Planned) => adjusted.with(one_record, |accountant, is_more| {
            let guarantee = || match (delta, epsilon) {
                (Some(delta), _) => accountant.epsilon(&composition, delta).map_err(text),
                (None, Some(epsilon)) => Ok(accountant.delta(&composition, epsilon)),
                (None, None) => Err("neither delta nor epsilon is given".to_owned()),
            };
            let outcome = match is_more {
                true => Outcome::adjusted(&composition, accountant, guarantee()?),
                false => Outcome::new(&composition, guarantee)?,
            };
            let risk = risk(arguments, |fpr| match is_more {
                true => rate_by(accountant, &composition, fpr),
                false => true_positive_rate(&composition, fpr),
            });
            Ok(Outcome { risk, ..outcome })
        }),
    }
}

/// The bound on an attacker at the false positive rate of `--fpr`, if that or a prior is given.
fn risk(arguments: &Account, rate: impl Fn(f64) -> f64) -> Option<Risk> {
    let fpr = arguments.fpr.or(arguments.prior.map(|_| FALSE_POSITIVE_RATE))?;
    Some(Risk { target: None, fpr: Some(fpr), achieved: rate(fpr), prior: arguments.prior })
}

fn read(arguments: &Account, common: &Common) -> Result<Source, Error> {
    let Some(file) = arguments.file.file() else { return read_ledger(arguments, common) };
    let path = file.display().to_string();
    // A file with an anchor is a ledger, even if its first bytes are damaged.
    if Ledger::anchor_path(file).exists() {
        return read_ledger(arguments, common);
    }
    let bytes = crate::ledger::read_bytes(file)?;
    if bytes.starts_with(crate::ledger::DATABASE) {
        return read_ledger(arguments, common);
    }
    let data_error = |cause: String| Error::Data { path: path.clone(), cause };
    let text = String::from_utf8(bytes).map_err(|_| data_error("is not UTF-8 text".to_owned()))?;
    let file = RoundsFile::from_jsonl(&text).map_err(|error| data_error(error.to_string()))?;
    let fold = |run: &Vec<Rounds>| run.iter().map(Folded::try_from).collect::<Result<Vec<_>, _>>();
    let runs: Result<Vec<_>, _> = file.runs.iter().map(fold).collect();
    Ok(Source {
        runs: runs.map_err(|error| data_error(error.to_string()))?,
        mode: file.mode.unwrap_or(Mode::Planned),
        assumed: file.mode.is_none(),
        order: file.order,
        budget: None,
        insecure: None,
        tuned: false,
        claim: None,
    })
}

fn read_ledger(arguments: &Account, common: &Common) -> Result<Source, Error> {
    let ledger = Ledger::read(&arguments.file, common.options())?;
    let dataset = crate::ledger::dataset(&ledger, arguments.dataset.as_deref())?;
    let charges = dataset.charges();
    let planned = charges.iter().all(|run| run.planned);
    let budget = dataset.terms(&Tightest);
    Ok(Source {
        runs: charges.iter().map(|run| run.rounds.to_vec()).collect(),
        mode: if planned { budget.mode } else { Mode::Adaptive },
        assumed: false,
        order: budget.order,
        budget: Some(budget),
        insecure: dataset.insecure().map(str::to_owned),
        tuned: charges.iter().any(|run| run.tuning.is_some()),
        claim: Some(crate::claim::of(dataset)),
    })
}

fn parameters(rounds: &[Folded], adjacency: Adjacency) -> Parameters {
    let rounds: Vec<&Folded> = rounds.iter().filter(|entry| entry.count > 0).collect();
    let noise = |entry: &&Folded| entry.noise_multiplier.get();
    let rate = |entry: &&Folded| rate(entry.sampling);
    let names: Vec<&str> = rounds.iter().map(|entry| sampling_name(entry.sampling)).collect();
    Parameters {
        noise_multiplier: common(rounds.iter().map(noise)),
        rate: common(rounds.iter().map(rate)).flatten(),
        steps: rounds.iter().try_fold(0u64, |sum, entry| sum.checked_add(entry.count)),
        sampling: match common(names.iter()) {
            Some(name) => name,
            None if names.is_empty() => "none",
            None => "mixed",
        },
        adjacency: adjacency.name(),
        ..Parameters::default()
    }
}

/// The common value, if all are equal.
fn common<T: PartialEq>(mut values: impl Iterator<Item = T>) -> Option<T> {
    let first = values.next()?;
    values.all(|value| value == first).then_some(first)
}
