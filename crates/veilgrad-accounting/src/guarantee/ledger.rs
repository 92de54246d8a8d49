//! The claim of a ledger without a budget.

use veilgrad_events::{
    Adjacency, Budget, Delta, Epsilon, Event, Folded, LedgerStore, Mode, RecordUnit, Rounds,
    RunHeader, RunRounds, Sampling,
};

use super::claim::{Claim, ClaimedRun, NoClaim, claim_without_budget, order_without_budget};

/// The epsilon at `delta` that may be claimed about everything charged to a ledger.
///
/// # Guarantee
/// The adjacency is that of the headers. If a run is stamped INSECURE, nothing may be claimed; unverified numerics are a
/// condition of the claim. A single run that declared its plan costs what its plan costs. Rounds of runs without a plan are
/// bounded by the Rényi divergence at one order that depends on delta alone. Events do not name their run: where charges
/// of several open runs may be mixed, none counts as planned, and each charge counts as a run of its own.
///
/// For a ledger with a budget, use [`claim`](super::claim::claim).
///
/// # Errors
/// The reason why nothing may be claimed.
///
/// # Example
/// ```
/// use veilgrad_accounting::of_ledger;
/// use veilgrad_events::{
///     Adjacency, ClipNorm, Delta, MemoryLedger, NoiseStd, RecordUnit, Round, Rounds, Run, RunHeader, SampleRate,
///     Sampling, SumQuery,
/// };
///
/// let query = SumQuery::new("gradient", ClipNorm::new(1.0)?, NoiseStd::new(1.1)?);
/// let round = Round::new(Sampling::Poisson { rate: SampleRate::new(0.01)? }, vec![query])?;
/// let mut header = RunHeader::new(RecordUnit::Example, Adjacency::AddRemove);
/// header.plan = Some(vec![Rounds { count: 1000, round: round.clone() }]);
/// let mut run = Run::open(MemoryLedger::new(), header)?;
/// drop(run.reserve(&round, 10)?);
/// let claim = of_ledger(run.store(), Delta::new(1e-5)?)?;
/// // All of the plan, and never less than what is charged so far.
/// assert!(claim.epsilon > 1.0 && claim.spent < claim.epsilon);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn of_ledger(store: &dyn LedgerStore, delta: Delta) -> Result<Claim, NoClaim> {
    let (mut seen, mut problem) = (Seen::default(), None);
    let mut visit = |event: &Event| {
        if let Err(why) = seen.take(event) {
            problem.get_or_insert(why);
        }
    };
    store.visit(&mut visit).map_err(|error| NoClaim(error.to_string()))?;
    if let Some(problem) = problem {
        return Err(NoClaim(problem));
    }
    let Some((unit, adjacency)) = seen.terms else {
        return Err(NoClaim(
            "no run has begun, so nothing says which datasets are neighbours".to_owned(),
        ));
    };
    let terms = Budget {
        dataset: String::new(),
        unit,
        adjacency,
        delta,
        // There is no budget: the claim is what is spent.
        epsilon: Epsilon::new(0.0).map_err(|error| NoClaim(error.to_string()))?,
        mode: Mode::Planned,
        order: Some(order_without_budget(delta)),
    };
    if seen.mixed && seen.has_epochs() {
        return Err(NoClaim(
            "charges of several open runs are mixed, and shuffled epochs or those of random allocation cannot be \
             told apart"
                .to_owned(),
        ));
    }
    if seen.mixed && seen.runs.iter().any(|run| run.header.tuning.is_some()) {
        let why =
            "charges of several open runs are mixed, and those of a tuning cannot be told apart";
        return Err(NoClaim(why.to_owned()));
    }
    let runs: Vec<ClaimedRun<'_>> = seen.runs.iter().map(|run| run.claimed(seen.mixed)).collect();
    claim_without_budget(&terms, &runs)
}

#[derive(Default)]
struct Seen {
    terms: Option<(RecordUnit, Adjacency)>,
    runs: Vec<SeenRun>,
    /// Whether charges of several runs may be mixed.
    mixed: bool,
}

struct SeenRun {
    header: RunHeader,
    /// One entry for every charge.
    charges: Vec<Folded>,
    next_round: u64,
    insecure: Option<String>,
    closed: bool,
}

impl Seen {
    fn has_epochs(&self) -> bool {
        let mut charges = self.runs.iter().flat_map(|run| &run.charges);
        charges.any(|charge| {
            matches!(charge.sampling, Sampling::Shuffle(_) | Sampling::Allocation { .. })
        })
    }

    fn take(&mut self, event: &Event) -> Result<(), String> {
        if let Event::Open(header) = event {
            let terms = (header.unit, header.adjacency);
            if *self.terms.get_or_insert(terms) != terms {
                return Err("runs have different record units or adjacencies".to_owned());
            }
            self.mixed |= self.runs.iter().any(|run| !run.closed);
            let (header, charges, insecure) = (header.clone(), Vec::new(), None);
            self.runs.push(SeenRun { header, charges, next_round: 0, insecure, closed: false });
            return Ok(());
        }
        let run = self.runs.last_mut().ok_or("an event comes before its run was opened")?;
        match event {
            Event::Reserve(reservation) => {
                self.mixed |= run.closed || reservation.first_round != run.next_round;
                run.next_round = reservation.first_round.saturating_add(reservation.charge.count);
                let charge = Folded::try_from(&reservation.charge);
                run.charges.push(charge.map_err(|error| error.to_string())?);
            }
            Event::Insecure(insecure) => run.insecure = Some(insecure.reason.clone()),
            Event::Close(_) => run.closed = true,
            _ => return Err("an unknown event".to_owned()),
        }
        Ok(())
    }
}

impl SeenRun {
    fn claimed(&self, mixed: bool) -> ClaimedRun<'_> {
        let plan: Option<&[Rounds]> =
            self.header.plan.as_deref().filter(|_| !mixed && self.header.mode == Mode::Planned);
        let (planned, tuning) = (plan.is_some(), self.header.tuning);
        let charges = match mixed {
            true => {
                self.charges.chunks(1).map(|rounds| RunRounds { planned, rounds, tuning }).collect()
            }
            false => vec![RunRounds { planned, rounds: &self.charges, tuning }],
        };
        let (insecure, numerics) = (self.insecure.as_deref(), self.header.numerics);
        ClaimedRun { charges, plan, insecure, numerics, tuning }
    }
}
