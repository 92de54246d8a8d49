//! Private tuning: charged once and ahead, then any number of runs of which only the best leaves.

use std::cmp::Ordering;

use super::run::Run;
use super::store::{LedgerError, LedgerKind, LedgerStore};
use crate::event::{Event, Mode, RunCount, RunHeader};

/// A tuning whose whole cost is charged: the best of a secret number of runs, each of which makes the rounds of its plan.
///
/// # Guarantee
/// It exists only after the ledger stored that the best of a random number of runs is charged, and all rounds of one run.
/// Its runs charge nothing more and can make only the planned rounds; they exist only inside of [`best`](Self::best), which
/// drops all results but one. A crash refunds nothing. The price holds if all of this does:
/// - the number of runs is drawn from the distribution of the header and stays secret;
/// - a run depends on the private data through its own permits alone, and not on other runs;
/// - nothing leaves a run but its result; scores come from public data or from what the run itself released.
///
/// # Example
/// ```
/// use veilgrad_events::{
///     Adjacency, ClipNorm, LedgerError, MemoryLedger, NoiseStd, RecordUnit, Round, Rounds, Run, RunCount, RunHeader,
///     Sampling, SumQuery, TuningRun,
/// };
///
/// let query = SumQuery::new("gradient", ClipNorm::new(1.0)?, NoiseStd::new(1.1)?);
/// let round = Round::new(Sampling::All {}, vec![query])?;
/// let header = RunHeader::new(RecordUnit::Example, Adjacency::AddRemove)
///     .with_plan(vec![Rounds { count: 8, round: round.clone() }])
///     .with_tuning(RunCount::poisson(3.0)?);
/// // An ordinary run cannot be opened with it.
/// assert!(Run::open(MemoryLedger::new(), header.clone()).is_err());
///
/// let tuning = TuningRun::charge(MemoryLedger::new(), header)?;
/// // `veilgrad_mechanism::best_of` draws the number; a fixed one protects less than the ledger says.
/// let (best, run) = tuning.best(
///     |_| Ok::<_, LedgerError>(2),
///     |run| Ok((1.0, run.reserve(&round, 8)?.count())),
/// )?;
/// assert_eq!((best, run.close()?.rounds()[0].count), (Some(8), 8)); // charged once, as one run
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct TuningRun<S: LedgerStore> {
    run: Run<S>,
    header: RunHeader,
    count: RunCount,
}

impl<S: LedgerStore> TuningRun<S> {
    /// Charges a tuning. The header must declare the plan of one run, and the distribution of their number.
    ///
    /// # Errors
    /// [`LedgerError::BudgetExhausted`] when the budget does not cover it, and as for [`Run::open`].
    pub fn charge(store: S, header: RunHeader) -> Result<Self, LedgerError> {
        let refused = |why: &str| LedgerError::Refused(why.to_owned());
        let count =
            header.tuning.ok_or_else(|| refused("a tuning needs a distribution of its runs"))?;
        let plan = header.plan.clone().unwrap_or_default();
        if header.mode != Mode::Planned || plan.iter().all(|rounds| rounds.count == 0) {
            return Err(refused("a tuning needs a plan with the rounds of one run"));
        }
        let mut run = Run::open_any(store, header.clone())?;
        // These permits are for nobody: every run of the tuning gets its own.
        drop(run.reserve_each(&plan)?);
        Ok(Self { run, header, count })
    }

    /// Makes as many runs as `draw` says and returns the result with the highest score, or `None` if there was no run, and
    /// the charged run, to close; it can charge nothing more. Of equal scores the first wins, which is as good as a random choice, since runs are independent; NaN is
    /// the lowest score.
    ///
    /// `draw` must draw from the given distribution and show the number to nobody. `base` makes one run and returns its
    /// score and result. It is not `FnMut`, so that a run cannot easily leave anything to another run or outside.
    ///
    /// # Errors
    /// The first error of any of them; nothing is released then, and the charge stays.
    pub fn best<T, E: From<LedgerError>>(
        self,
        draw: impl FnOnce(RunCount) -> Result<u64, E>,
        base: impl Fn(&mut Run<ChargedAhead>) -> Result<(f64, T), E>,
    ) -> Result<(Option<T>, Run<S>), E> {
        let kind = self.run.store().kind();
        // One run, as an ordinary one.
        let header = RunHeader { tuning: None, ..self.header };
        let mut best: Option<(f64, T)> = None;
        for _ in 0..draw(self.count)? {
            let mut run = Run::open(ChargedAhead { kind }, header.clone())?;
            let (score, result) = base(&mut run)?;
            if best.as_ref().is_none_or(|(known, _)| is_higher(score, *known)) {
                best = Some((score, result));
            }
        }
        Ok((best.map(|(_, result)| result), self.run))
    }

    /// The ledger store, read-only.
    pub fn store(&self) -> &S {
        self.run.store()
    }
}

fn is_higher(score: f64, known: f64) -> bool {
    match score.partial_cmp(&known) {
        Some(order) => order == Ordering::Greater,
        None => known.is_nan() && !score.is_nan(),
    }
}

/// The store of a run inside a tuning, whose charge is in the tuning's own store. Only [`TuningRun::best`] makes one.
#[derive(Debug)]
pub struct ChargedAhead {
    kind: LedgerKind,
}

impl LedgerStore for ChargedAhead {
    /// Nothing is left to charge: the run grants the rounds of its plan, which are charged.
    fn append(&mut self, _: &[Event]) -> Result<(), LedgerError> {
        Ok(())
    }

    fn visit(&self, _: &mut dyn FnMut(&Event)) -> Result<(), LedgerError> {
        Ok(())
    }

    fn kind(&self) -> LedgerKind {
        self.kind
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Adjacency, ClipNorm, MemoryLedger, NoiseStd, RecordUnit, Round, Rounds, Sampling, SumQuery,
    };
    use std::cell::Cell;

    fn round(noise: f64) -> Round {
        let (clip, noise) = (ClipNorm::new(1.0).unwrap(), NoiseStd::new(noise).unwrap());
        Round::new(Sampling::All {}, vec![SumQuery::new("g", clip, noise)]).unwrap()
    }

    fn header() -> RunHeader {
        RunHeader::new(RecordUnit::Example, Adjacency::AddRemove)
            .with_plan(vec![Rounds { count: 4, round: round(1.0) }])
            .with_tuning(RunCount::geometric(0.5).unwrap())
    }

    fn best_of(scores: &[f64]) -> Option<usize> {
        let tuning = TuningRun::charge(MemoryLedger::new(), header()).unwrap();
        let next = Cell::new(0);
        let base = |_: &mut Run<ChargedAhead>| {
            let number = next.replace(next.get() + 1);
            Ok::<_, LedgerError>((scores[number], number))
        };
        tuning.best(|_| Ok(scores.len() as u64), base).unwrap().0
    }

    #[test]
    fn the_first_highest_score_wins_and_nan_never_does() {
        assert_eq!(best_of(&[]), None);
        assert_eq!(best_of(&[f64::NAN]), Some(0));
        assert_eq!(best_of(&[f64::NAN, -1.0, f64::NAN]), Some(1));
        assert_eq!(best_of(&[0.5, 0.7, 0.7, 0.1]), Some(1));
        assert_eq!(best_of(&[f64::NEG_INFINITY, f64::NAN]), Some(0));
    }

    #[test]
    fn runs_of_a_tuning_make_the_planned_rounds_and_no_others() {
        let tuning = TuningRun::charge(MemoryLedger::new(), header()).unwrap();
        let charged = tuning.store().events().to_vec();
        let base = |run: &mut Run<ChargedAhead>| {
            assert!(matches!(run.reserve(&round(0.5), 1), Err(LedgerError::NotPlanned(0))));
            let permits: Vec<_> = run.reserve(&round(1.0), 3)?.collect();
            assert!(permits.iter().all(|permit| permit.charged_to() == LedgerKind::Memory));
            assert!(matches!(run.reserve(&round(1.0), 2), Err(LedgerError::NotPlanned(3))));
            assert_eq!(run.reserve(&round(1.0), 1)?.count(), 1);
            assert!(run.reserve(&round(1.0), 1).is_err());
            Ok::<_, LedgerError>((0.0, ()))
        };
        let (best, mut run) = tuning.best(|_| Ok(5), base).unwrap();
        assert!(best.is_some());
        assert!(matches!(run.reserve(&round(1.0), 1), Err(LedgerError::NotPlanned(4))));
        let ledger = run.close().unwrap();
        // However many runs there were, only the end is added to what was charged ahead.
        assert_eq!(ledger.events().len(), charged.len() + 1);
        assert_eq!(ledger.rounds(), [Rounds { count: 4, round: round(1.0) }]);
    }

    #[test]
    fn a_tuning_that_is_not_charged_makes_no_run() {
        let small = MemoryLedger::with_round_limit(3);
        let refused = TuningRun::charge(small, header()).err();
        assert!(matches!(refused, Some(LedgerError::BudgetExhausted(_))));
        let mut no_plan = header();
        no_plan.plan = None;
        assert!(TuningRun::charge(MemoryLedger::new(), no_plan).is_err());
        let mut no_tuning = header();
        no_tuning.tuning = None;
        assert!(TuningRun::charge(MemoryLedger::new(), no_tuning).is_err());
        // Nor is it taken for an ordinary run, which would be charged less.
        assert!(matches!(Run::open(MemoryLedger::new(), header()), Err(LedgerError::Refused(_))));
    }
}
