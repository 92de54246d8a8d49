//! A claim in plain words, with its conditions: what a privacy officer can sign or refuse.

use veilgrad_events::{Adjacency, NoiseMultiplier, Numerics, RecordUnit, Sampling};

use super::claim::{Claim, FALSE_POSITIVE_RATE, NoClaim, warnings};
use super::verdict::RunVerdict;
use crate::display::{claimed_noise_down, down, percent, percent_down, percent_up, runs, up};

/// A privacy statement: a claim with the facts and conditions that a reader needs to judge it. All of it is public.
#[derive(Debug, Clone)]
pub struct Statement<'a> {
    /// The dataset's name.
    pub dataset: &'a str,
    /// What a record is.
    pub unit: RecordUnit,
    /// Which datasets are neighbours.
    pub adjacency: Adjacency,
    /// What may be claimed, or why nothing may.
    pub claim: &'a Result<Claim, NoClaim>,
    /// Numbers of records of one person, each with its epsilon at the delta of the claim.
    pub group_epsilons: Vec<(u64, f64)>,
    /// The declared, public number of records, if there is one.
    pub records: Option<u64>,
    /// How many runs the ledger has on the data.
    pub runs: usize,
    /// What its rounds released.
    pub done: Done<'a>,
    /// Whether the arithmetic of all runs is proven to keep records apart.
    pub numerics: Numerics,
    /// Whether a public test set was evaluated.
    pub public_test: bool,
    /// The model that training started from, if it was not a new one.
    pub start: Option<Start<'a>>,
    /// Whether the users were made up from public data, for an experiment.
    pub made_up_users: bool,
    /// The ledger that the statement was computed from, and its last row.
    pub ledger: LedgerHead<'a>,
    /// What changed in the ledger since the results were written, one phrase per change; `None` without results.
    pub since_results: Option<&'a [String]>,
    /// The verdict of the audit, if the results are those of one.
    pub audit: Option<&'a RunVerdict>,
}

/// A model file that training started from.
#[derive(Debug, Clone)]
pub struct Start<'a> {
    /// SHA-256 of the file.
    pub sha256: &'a str,
    /// The ledger that its own training was charged to, if the file says that it was trained privately.
    pub trained: Option<LedgerHead<'a>>,
}

/// The rounds that ran, summarised.
#[derive(Debug, Clone)]
pub struct Done<'a> {
    /// How many were charged.
    pub rounds: u64,
    /// How samples were drawn, if the same way in all rounds.
    pub sampling: Option<Sampling>,
    /// Whether all rounds were the same; if not, the groups are those of the last.
    pub uniform: bool,
    /// The smallest noise multiplier of any round.
    pub noise_multiplier: NoiseMultiplier,
    /// What each round released.
    pub groups: Vec<ReleasedGroup<'a>>,
}

/// One noisy sum of a round.
#[derive(Debug, Clone)]
pub struct ReleasedGroup<'a> {
    /// Its name.
    pub name: &'a str,
    /// How many numbers it has, where that is known.
    pub dimension: Option<u64>,
    /// The clip norm.
    pub clip: f64,
    /// The standard deviation of the noise: on the sum; with noise that is correlated between rounds, of the Gaussian mechanism
    /// that measures a record once.
    pub noise: f64,
    /// Over how many rounds the noise is correlated, if it is.
    pub bands: Option<usize>,
}

/// The last row of a ledger when it was read.
#[derive(Debug, Clone)]
pub struct LedgerHead<'a> {
    /// The ledger's id.
    pub id: &'a str,
    /// The number of its last row.
    pub sequence: u64,
    /// The head, as `ledger verify --against` takes it.
    pub head: &'a str,
}

/// The paragraph about made-up users.
const EXPERIMENT: &str = "EXPERIMENT. The users were made up: public examples were dealt out to them, and who got an example \
                          depended on the others. No user is a person, so that the promise protects nobody; it says what \
                          the same settings promise to real users.";

impl Statement<'_> {
    /// The statement as text: paragraphs that each begin with their topic, separated by empty lines.
    pub fn text(&self) -> String {
        let mut paragraphs = vec![match self.claim {
            Ok(claim) => self.promised(claim),
            Err(reason) => self.nothing(reason),
        }];
        paragraphs.extend(self.grouped());
        paragraphs.extend(self.claim.as_ref().ok().and_then(tuned));
        paragraphs.extend(self.made_up_users.then(|| EXPERIMENT.to_owned()));
        paragraphs.extend(self.audit.map(audited));
        paragraphs.extend(self.warned());
        paragraphs.extend(self.start.as_ref().map(|start| self.started(start)));
        paragraphs.extend([self.done(), self.arithmetic().to_owned(), self.assumed()]);
        paragraphs.extend([self.not_covered(), self.as_of()]);
        paragraphs.join("\n\n") + "\n"
    }

    /// What is promised to people with several records.
    fn grouped(&self) -> Option<String> {
        if self.group_epsilons.is_empty() {
            return None;
        }
        let row =
            |(records, epsilon): &(u64, f64)| format!("{} for {records} records", up(*epsilon));
        let rows: Vec<String> = self.group_epsilons.iter().map(row).collect();
        Some(format!(
            "People with several records. The promise is for one record. Of somebody with several of them, more may be learnt: \
             epsilon, at the same delta, is then {}.",
            rows.join(", ")
        ))
    }

    /// What is protected, as the subject of a sentence.
    fn record(&self) -> String {
        match self.unit {
            RecordUnit::Example => "one example".to_owned(),
            RecordUnit::User => "all examples of one user (those that count)".to_owned(),
            RecordUnit::Microbatch { examples } => format!(
                "one microbatch of {examples} examples (replacing one example inside of it is twice that)"
            ),
            other => other.to_string(),
        }
    }

    /// How neighbours differ, as the predicate of that sentence.
    const fn difference(&self) -> &'static str {
        match self.adjacency {
            Adjacency::AddRemove => "is in the data or not",
            Adjacency::ReplaceOne => "is in the data or another one is in its place",
            _ => "is in the data or counts as zero",
        }
    }

    fn nothing(&self, reason: &NoClaim) -> String {
        format!(
            "NOTHING MAY BE CLAIMED. No epsilon holds for what training on {:?} released: {reason}. Whoever sees it may \
             learn whether {} {}.",
            self.dataset,
            self.record(),
            self.difference()
        )
    }

    fn promised(&self, claim: &Claim) -> String {
        let attacker = claim.attacker();
        let record = self.record();
        format!(
            "What is promised. Everything that training on {:?} released (the model, and the numbers in this report \
             that are marked as private estimates) is ({}, {:e})-differentially private for {record}, under {} \
             adjacency. That is {}. Suppose that an attacker sees all of it, knows everything else, and must decide \
             whether {record} {}. An attacker who accuses wrongly in {} of cases is right about at most {} of \
             those that were in the data. For any attack, the true positive rate minus the false positive rate is \
             at most {} (0.00 % is guessing, 100.00 % is certainty). Why this epsilon: {}. Computed by veilgrad \
             {}; epsilon is an upper bound that includes its own numerical error. The rounds charged so far cost {}.",
            self.dataset,
            up(claim.epsilon),
            claim.delta,
            self.adjacency,
            attacker.protection().phrase(),
            self.difference(),
            percent(FALSE_POSITIVE_RATE),
            percent_up(attacker.true_positive_rate),
            percent_up(attacker.advantage),
            claim.why(),
            env!("CARGO_PKG_VERSION"),
            up(claim.spent)
        )
    }

    fn warned(&self) -> Vec<String> {
        let Ok(claim) = self.claim else { return Vec::new() };
        let mut warned: Vec<String> = warnings(claim.epsilon, claim.delta, self.records)
            .iter()
            .map(|warning| format!("WARNING. This promise is weak: {warning}."))
            .collect();
        if self.records.is_none() {
            warned.push(
                "Delta. It must be well below one over the number of records, which is not known here.".to_owned(),
            );
        }
        warned
    }

    /// What the promise says about the data of the model that training started from.
    fn started(&self, start: &Start<'_>) -> String {
        let hash = start.sha256;
        match &start.trained {
            None => format!(
                "Start. Training started from a model file with SHA-256 {hash}, which does not say that it was trained \
                 privately. It is taken for public: the promise does not cover records that it was made from."
            ),
            Some(head) if head.id == self.ledger.id => format!(
                "Start. Training started from a model file with SHA-256 {hash}, which was trained privately before and \
                 charged to the same ledger, at row {} or before. The promise is about all runs on {:?} together, so it \
                 covers that training too if it was on {:?}. If it was on another dataset, that dataset's own budget \
                 covers it, and this promise says nothing about its records.",
                head.sequence, self.dataset, self.dataset
            ),
            Some(head) => format!(
                "WARNING. Training started from a model file with SHA-256 {hash}, which was trained privately before and \
                 charged to another ledger, {}. What that training revealed is not part of this promise: for a record \
                 that was in its data, too, the epsilons and deltas of both add up.",
                head.id
            ),
        }
    }

    fn done(&self) -> String {
        let sampling = match self.done.sampling {
            Some(Sampling::Poisson { rate }) => format!(
                "each record was chosen by itself at rate {} in every round (Poisson sampling)",
                up(rate.get())
            ),
            Some(Sampling::Fixed(batch)) => format!(
                "a batch of fixed size was drawn without replacement at rate {} in every round",
                up(batch.batch() as f64 / batch.records() as f64)
            ),
            Some(Sampling::Shuffle(_)) => {
                "the data was shuffled and went through in batches; the shuffling is not \
                                           counted as protection"
                    .to_owned()
            }
            Some(Sampling::CyclicPoisson { rate, groups, .. }) => format!(
                "one of {groups} groups of records had its turn, and each of its records was chosen by itself at rate {} \
                 (cyclic Poisson sampling; every record was put into a group at random, and no one was told which)",
                up(rate.get())
            ),
            Some(Sampling::TruncatedPoisson(truncated)) => format!(
                "each record was chosen by itself at rate {}, and never more than {} of them (truncated Poisson \
                 sampling)",
                up(truncated.rate().get()),
                truncated.maximum()
            ),
            Some(Sampling::Allocation { rounds_per_epoch }) => format!(
                "each record took part if it had been put there: into one of {rounds_per_epoch} rounds of every epoch, by \
                 itself and at random (random allocation)"
            ),
            Some(Sampling::All {}) => "all records were used in every round".to_owned(),
            Some(other) => format!("samples were drawn as the ledger says ({other:?})"),
            None => {
                "samples were drawn as the ledger says, not the same way in all rounds".to_owned()
            }
        };
        let bands = self.done.groups.iter().filter_map(|group| group.bands).max();
        let correlated = bands.map_or_else(String::new, |bands| {
            format!(
                " The noise of a round is correlated with that of up to {} rounds before it, in which other groups had their \
                 turn; noise and noise multiplier are those of the Gaussian mechanism that measures one turn of a record over \
                 all rounds that it affects, and an interrupted run pays for every turn that it began.",
                bands.saturating_sub(1)
            )
        });
        let groups: Vec<String> = self.done.groups.iter().map(released).collect();
        format!(
            "What was done. In each of {} rounds, {sampling}. Released from that one sample{}: {}. Together, the \
             releases of a round are one Gaussian mechanism with noise multiplier {}{}.{correlated} Every round was charged \
             to the ledger, on disk, before its sample was drawn.",
            self.done.rounds,
            if self.done.uniform { "" } else { ", in the last round (the ledger has all of them)" },
            groups.join("; "),
            claimed_noise_down(self.done.noise_multiplier.get()),
            if self.done.uniform { "" } else { " or more" },
        )
    }

    const fn arithmetic(&self) -> &'static str {
        match self.numerics {
            Numerics::Exact => {
                "Arithmetic. Contributions of records are integers whose norm was certified without rounding, and the \
                 noise is exact Gaussian noise on the same grid from a cryptographic generator keyed by the operating \
                 system; no floating-point rounding enters the promise."
            }
            Numerics::Unverified => {
                "Arithmetic. It was NOT established that a record's contribution depends on that record alone in \
                 floating-point arithmetic (numerics: unverified)."
            }
        }
    }

    fn assumed(&self) -> String {
        let runs = match self.runs {
            1 => "This ledger has one run on this data.".to_owned(),
            runs => {
                format!("This ledger has {runs} runs on this data, and epsilon covers all of them.")
            }
        };
        let conditions = self.claim.as_ref().map_or(&[][..], |claim| &claim.conditions);
        let conditions: String = conditions
            .iter()
            .map(|condition| format!(" It is assumed that {condition}."))
            .collect();
        let chosen = match self.claim {
            Ok(claim) if claim.is_planned() => {
                " The number of rounds, sampling and noise were fixed before the first round of each run and not \
                 chosen by looking at this data."
            }
            Ok(_) => {
                " Rounds may have been chosen from what earlier ones released, which epsilon accounts for; nothing \
                 else about them was chosen by looking at this data."
            }
            Err(_) => "",
        };
        format!(
            "What is assumed. {runs}{chosen}{conditions} Settings that were tuned on this data in other runs are \
             covered only if those runs are in the same ledger. The declared sizes, bounds and classes are public. The \
             generator is as good as ideal randomness. Nobody saw the memory of the machine or measured its time."
        )
    }

    fn not_covered(&self) -> String {
        let test = match self.public_test {
            true => "The test set was declared public and has no protection. ",
            false => "",
        };
        format!(
            "What is not covered. {test}The input file, theft of the ledger, and the time that training took are not \
             covered. Copies of the ledger that are used independently each count only their own charges."
        )
    }

    fn as_of(&self) -> String {
        let since = match self.since_results {
            None | Some([]) => String::new(),
            Some(changes) => format!(
                " The results were written before its last rows; since then: {}. This statement covers those rows.",
                changes.join("; ")
            ),
        };
        format!(
            "As of. All of this was computed from ledger {}, which ended at row {}.{since} Its head was:\n{}",
            self.ledger.id, self.ledger.sequence, self.ledger.head
        )
    }
}

/// The paragraph about tunings, if there were any.
fn tuned(claim: &Claim) -> Option<String> {
    let means: Vec<String> = claim.tunings.iter().map(|tuning| runs(tuning.mean_runs())).collect();
    let released = match means.as_slice() {
        [] => return None,
        [mean] => format!(
            "What was released is the best of a secret number of runs, on average {mean}, with settings drawn at random \
             from a public list"
        ),
        means => format!(
            "{} times, what was released is the best of a secret number of runs, on average {}, with settings drawn at \
             random from a public list",
            means.len(),
            means.join(", ")
        ),
    };
    Some(format!(
        "Tuning. {released}. Epsilon covers the choice and all of these runs; rounds, sampling and noise below are those of \
         one of them. It is assumed that the number of runs stays secret, and that nothing else of the other runs was \
         seen: the time that the tuning took tells roughly how many there were."
    ))
}

/// The paragraph about an audit.
fn audited(audit: &RunVerdict) -> String {
    let found = format!(
        "{} of {} guesses about {} canaries were right, which contradicts every epsilon below {} for rounds of this kind \
         ({} confidence); {} is claimed for them",
        audit.correct,
        audit.guesses,
        audit.canaries,
        down(audit.epsilon_lower),
        percent_down(audit.confidence),
        up(audit.claimed)
    );
    let verdict = match audit.contradicted {
        true => "THE AUDIT CONTRADICTS THE CLAIM, which must not be relied on",
        false => "This does not contradict the claim, and does not prove it",
    };
    format!(
        "AUDIT. Artificial records (canaries) took part in this run along with the real ones, in separate coordinates: \
         {found}. {verdict}. The audit tests sampler, clipping, sum, noise and release as they ran, not the code that \
         computes gradients."
    )
}

fn released(group: &ReleasedGroup<'_>) -> String {
    let numbers = group.dimension.map_or(String::new(), |numbers| format!("{numbers} numbers, "));
    let (clip, noise) = (up(group.clip), claimed_noise_down(group.noise));
    // A name comes from a ledger, which anybody may have written: it must not look like a paragraph.
    let name = group.name.escape_debug();
    let on = if group.bands.is_some() { "for each turn of a record" } else { "on the sum" };
    format!("{name} ({numbers}clipped to norm {clip}, noise {noise} {on})")
}
