//! The epsilon of charged rounds under the terms of a budget.

use std::collections::HashMap;

use veilgrad_events::{Adjacency, Budget, Delta, Epsilon, Folded, Meter, Mode, Pricing, RunRounds};

use super::accountant::{Accountant, Tightest};
use super::tuning::{Tuned, Tuning};
use crate::adaptive::Filter;
use crate::composition::grouping::corner;
use crate::composition::participation::{Cost, RunSoFar};
use crate::{Composition, Step, rdp};

/// The composition of all runs of a budget, tunings apart, and whether all of them were planned.
struct Spent {
    /// All runs that are no tunings; `None` if there are only tunings.
    composition: Option<Composition>,
    /// One run of each tuning.
    tunings: Vec<(Composition, Tuning)>,
    planned: bool,
}

/// The shares of delta that are tried for the runs beside tunings. Every one gives a bound.
const SHARES: [f64; 5] = [0.015625, 0.125, 0.5, 0.875, 0.984375];

impl Spent {
    fn new(budget: &Budget, runs: &[RunRounds<'_>]) -> Result<Self, String> {
        let planned = budget.mode == Mode::Planned && runs.iter().all(|run| run.planned);
        let compose = |runs: &[&RunRounds<'_>]| {
            let rounds = runs.iter().map(|run| run.rounds.iter().copied());
            Composition::of_runs(rounds, budget.adjacency).map_err(|error| error.to_string())
        };
        let (mut others, mut tunings) = (Vec::new(), Vec::new());
        for run in runs {
            match run.tuning {
                // A tuning that charged nothing costs nothing, and takes no part of delta.
                Some(_) if run.rounds.is_empty() => {}
                Some(count) => tunings.push((compose(&[run])?, Tuning::of(count))),
                None => others.push(run),
            }
        }
        let composition = match others.is_empty() && !tunings.is_empty() {
            true => None,
            false => Some(compose(&others)?),
        };
        Ok(Self { composition, tunings, planned })
    }

    fn price(&self, budget: &Budget) -> Result<f64, String> {
        let is_alone = match (&self.composition, self.tunings.as_slice()) {
            (Some(composition), []) => {
                return self.price_without_tunings(composition, budget, budget.delta);
            }
            (None, [one]) => return tuned(one, budget.delta),
            (composition, _) => composition.is_none(),
        };
        if !self.planned {
            let why = "a tuning has no price together with runs that declared no plan, or in an adaptive budget";
            return Err(why.to_owned());
        }
        // An (epsilon, delta) for each of them holds at every delta, and these add up.
        let shares: &[f64] = if is_alone { &[0.0] } else { &SHARES };
        let prices = shares.iter().map(|share| self.price_of_split(budget, *share));
        // An unsupported split is no bound; without any other, its reason is the answer.
        prices
            .reduce(|best, found| match (best, found) {
                (Ok(best), Ok(found)) => Ok(f64::min(best, found)),
                (Ok(best), Err(_)) => Ok(best),
                (Err(_), found) => found,
            })
            .unwrap_or_else(|| Err("there is no share of delta".to_owned()))
    }

    /// The sum of what runs cost at this share of delta and what each tuning costs at an equal part of the rest.
    fn price_of_split(&self, budget: &Budget, share: f64) -> Result<f64, String> {
        let delta = budget.delta.get();
        let part = |delta: f64| Delta::new(delta).map_err(|error| error.to_string());
        let mut sum = 0.0;
        if let Some(composition) = &self.composition {
            sum = self.price_without_tunings(composition, budget, part(share * delta)?)?;
        }
        // Rounded down, so that all parts together are not above delta.
        let each = (1.0 - share) * delta / self.tunings.len() as f64 * (1.0 - 4.0 * f64::EPSILON);
        for tuning in &self.tunings {
            sum = (sum + tuned(tuning, part(each)?)?).next_up();
        }
        Ok(sum)
    }

    /// Where all runs were planned, the smallest sound epsilon. Otherwise rounds may have been chosen from earlier
    /// outputs, and the Rényi divergence at one order that was fixed before the first round bounds them.
    fn price_without_tunings(
        &self,
        composition: &Composition,
        budget: &Budget,
        delta: Delta,
    ) -> Result<f64, String> {
        let epsilon = match (self.planned, budget.order) {
            // `above` drops the lower bound, which a price does not need.
            (true, _) => Tightest.epsilon(composition.above(), delta).map(|found| found.epsilon),
            (false, Some(order)) => rdp::epsilon_on_orders(composition, delta, &[order])
                .map(|found| found.epsilon.get()),
            (false, None) => {
                let why =
                    "runs that declared no plan need a Rényi order that was fixed with the budget";
                return Err(why.to_owned());
            }
        };
        epsilon.map_err(|error| error.to_string())
    }
}

/// The epsilon of one tuning. Rounds of a tuning are always declared before its first run.
fn tuned((one_run, tuning): &(Composition, Tuning), delta: Delta) -> Result<f64, String> {
    let tuned = Tuned { inner: &Tightest, tuning: *tuning };
    let found = tuned.epsilon(one_run.above(), delta).map_err(|error| error.to_string())?;
    Ok(found.epsilon)
}

impl Pricing for Tightest {
    fn price(&self, budget: &Budget, runs: &[RunRounds<'_>]) -> Result<f64, String> {
        Spent::new(budget, runs)?.price(budget)
    }

    fn check(&self, budget: &Budget, runs: &[RunRounds<'_>]) -> Result<(), String> {
        let spent = Spent::new(budget, runs)?;
        // The RDP epsilon is quick and never below the tightest one: if it fits, so does that.
        if spent.planned
            && spent.tunings.is_empty()
            && let Some(composition) = &spent.composition
            && rdp::epsilon(composition, budget.delta)
                .is_ok_and(|found| found.epsilon.get() <= budget.epsilon.get())
        {
            return Ok(());
        }
        let price = spent.price(budget)?;
        if price <= budget.epsilon.get() {
            return Ok(());
        }
        Err(format!("epsilon would be {price}, and {} is allowed", budget.epsilon.get()))
    }

    /// Adds up Rényi divergences at the budget's order.
    fn meter(&self, budget: &Budget) -> Option<Box<dyn Meter>> {
        let filter = Filter::new(budget.order?, budget.epsilon, budget.delta).ok()?;
        let runs = HashMap::new();
        let adjacency = budget.adjacency;
        let (last, cells) = (None, Cells::default());
        Some(Box::new(RenyiMeter { filter, adjacency, runs, divergence: 0.0, last, cells }))
    }

    /// The order that admits the most unsampled Gaussian rounds.
    fn order(&self, epsilon: Epsilon, delta: Delta) -> Option<f64> {
        let room = |order: &f64| {
            let allowed = Filter::new(*order, epsilon, delta).map_or(0.0, |f| f.divergence());
            // A Gaussian has divergence order/(2 z^2), so this is the sum of 1/(2 z^2) that fits.
            allowed / order
        };
        let orders = (0..=120).map(|i| 1.0 + (f64::from(i) * 0.1 - 2.0).exp());
        orders.max_by(|a, b| room(a).total_cmp(&room(b))).filter(|order| room(order) > 0.0)
    }
}

#[derive(Debug)]
struct RenyiMeter {
    filter: Filter,
    adjacency: Adjacency,
    runs: HashMap<u64, RunSoFar>,
    /// An upper bound on the divergence of all rounds.
    divergence: f64,
    /// The sampled Gaussian that was added last, and its divergence; usually the next one is the same.
    last: Option<(Step, f64)>,
    cells: Cells,
}

/// A cache of Rényi divergences at one order. After [`EXACT_LOOKUPS`](Self::EXACT_LOOKUPS) lookups, steps whose rate and noise lie in
/// one cell of a logarithmic grid share the divergence of the cell's worst corner, which is never smaller than theirs.
#[derive(Debug, Default)]
struct Cells {
    /// How many divergences were looked up: one each time a step differs from the step before it.
    steps: usize,
    known: HashMap<(u8, i64, i64), f64>,
}

impl Cells {
    /// The first steps are computed exactly, without the grid.
    const EXACT_LOOKUPS: usize = 2048;
    /// The width of cells, in logs of rate and noise. Meters then overcount by about 0.3 % (a test allows 0.4 %).
    const WIDTH: f64 = 1e-3;
    /// The cache is emptied at this many cells, to bound its memory.
    const MOST_CELLS: usize = 1 << 16;

    fn divergence(&mut self, step: Step, order: f64) -> f64 {
        self.steps += 1;
        if self.steps <= Self::EXACT_LOOKUPS || !step.has_two_parameters() {
            return rdp::step_divergence(step, order);
        }
        let ((kind, q, z), corner) = corner(step, Self::WIDTH);
        if self.known.len() >= Self::MOST_CELLS {
            self.known.clear();
        }
        *self.known.entry((kind, q, z)).or_insert_with(|| rdp::step_divergence(corner, order))
    }
}

impl RenyiMeter {
    fn cost(&mut self, cost: Cost) -> f64 {
        match cost {
            Cost::Nothing => 0.0,
            // A Gaussian has divergence order/(2 z^2).
            Cost::Always(squares) => {
                (0.5 * self.filter.order() * squares).max(f64::MIN_POSITIVE) * ROUNDED
            }
            Cost::Sampled(step, count) => {
                let one = match self.last {
                    Some((last, one)) if last == step => one,
                    _ => self.cells.divergence(step, self.filter.order()),
                };
                self.last = Some((step, one));
                one * count as f64 * ROUNDED
            }
        }
    }
}

impl Meter for RenyiMeter {
    fn add(&mut self, run: u64, rounds: Folded) {
        let added = self.runs.entry(run).or_default().add(&rounds, self.adjacency);
        // Rounds without an analysis never fit the budget.
        let cost = added.map_or(f64::INFINITY, |(cost, _)| self.cost(cost));
        self.divergence = (self.divergence + cost).next_up();
    }

    fn part(&self) -> f64 {
        (self.divergence / self.filter.divergence()).next_up()
    }
}

/// Covers the rounding error of a product of a few factors.
const ROUNDED: f64 = 1.0 + 4.0 * f64::EPSILON;

#[cfg(test)]
mod tests {
    use super::*;
    use veilgrad_events::{FixedBatch, NoiseMultiplier, RecordUnit, SampleRate, Sampling};

    fn budget(epsilon: f64, mode: Mode) -> Budget {
        let (epsilon, delta) = (Epsilon::new(epsilon).unwrap(), Delta::new(1e-5).unwrap());
        Budget {
            dataset: "d".to_owned(),
            unit: RecordUnit::Example,
            adjacency: Adjacency::ReplaceOne,
            delta,
            epsilon,
            mode,
            order: Tightest.order(epsilon, delta),
        }
    }

    fn rounds(sampling: Sampling, z: f64, count: u64) -> Folded {
        Folded { count, sampling, noise_multiplier: NoiseMultiplier::new(z).unwrap() }
    }

    #[test]
    fn rounds_whose_parts_fit_keep_the_budget_however_they_are_divided() {
        let poisson = Sampling::Poisson { rate: SampleRate::new(0.01).unwrap() };
        let shuffle = Sampling::Shuffle(FixedBatch::new(1000, 100).unwrap());
        let kinds =
            [rounds(poisson, 4.0, 1), rounds(Sampling::All {}, 40.0, 1), rounds(shuffle, 60.0, 1)];
        for mode in [Mode::Planned, Mode::Adaptive] {
            for size in [1, 3, 7, 64] {
                let budget = budget(2.0, mode);
                let mut meter = Tightest.meter(&budget).unwrap();
                let (mut all, mut blocks) = (Vec::new(), 0);
                loop {
                    let block = kinds.iter().map(|kind| Folded { count: size, ..*kind });
                    let block: Vec<Folded> =
                        block.cycle().skip(blocks).take(1 + blocks % 3).collect();
                    block.iter().for_each(|rounds| meter.add(1, *rounds));
                    assert!(meter.part() > 0.0);
                    if meter.part() > 1.0 {
                        break;
                    }
                    blocks += 1;
                    all.extend(block);
                }
                let planned = mode == Mode::Planned;
                let price = Tightest
                    .price(&budget, &[RunRounds { planned, rounds: &all, tuning: None }])
                    .unwrap();
                assert!(price <= 2.0, "{mode:?} in blocks of {size}: {price}");
                // The meter does not overestimate so much that it would be useless.
                assert!(blocks > 1 && price > 1.0, "{mode:?} in blocks of {size}: {price}");
            }
        }
        // A budget of epsilon 0 has no meter.
        assert!(Tightest.meter(&budget(0.0, Mode::Planned)).is_none());
    }

    #[test]
    fn a_meter_of_thousands_of_distinct_rounds_is_never_below_their_divergence_and_close() {
        let terms = budget(20.0, Mode::Adaptive);
        let order = terms.order.unwrap();
        let distinct_round = |i: u32| {
            let rate = SampleRate::new(0.001 + 1e-7 * f64::from(i)).unwrap();
            rounds(Sampling::Poisson { rate }, 2.0 + 1e-4 * f64::from(i * 37 % 5000), 1)
        };
        let all: Vec<Folded> = (0..5000).map(distinct_round).collect();
        let mut meter = Tightest.meter(&terms).unwrap();
        all.iter().for_each(|rounds| meter.add(1, *rounds));
        let composition = Composition::of(all, terms.adjacency).unwrap();
        let filter = Filter::new(order, terms.epsilon, terms.delta).unwrap();
        let exact = rdp::divergence(&composition, order) / filter.divergence();
        let ratio = meter.part() / exact;
        assert!((1.0 - 1e-9..1.004).contains(&ratio), "{ratio}");
    }

    #[test]
    fn a_run_without_a_plan_is_priced_at_the_order_of_the_budget() {
        let poisson = Sampling::Poisson { rate: SampleRate::new(0.01).unwrap() };
        let rounds = [rounds(poisson, 1.0, 1000)];
        let terms = budget(4.0, Mode::Planned);
        let price = |planned| {
            Tightest.price(&terms, &[RunRounds { planned, rounds: &rounds, tuning: None }])
        };
        let composition = Composition::of(rounds, terms.adjacency).unwrap();
        let order = terms.order.unwrap();
        let at_order = rdp::epsilon_on_orders(&composition, terms.delta, &[order]).unwrap();
        assert_eq!(price(false).unwrap(), at_order.epsilon.get());
        assert!(price(true).unwrap() < price(false).unwrap());
        // One unplanned run decides for all of them, and without an order there is no price.
        let runs =
            [true, false].map(|planned| RunRounds { planned, rounds: &rounds, tuning: None });
        let twice = Composition::join(&[composition.clone(), composition]);
        let both = rdp::epsilon_on_orders(&twice, terms.delta, &[order]).unwrap();
        assert_eq!(Tightest.price(&terms, &runs).unwrap(), both.epsilon.get());
        let no_order = Budget { order: None, ..terms.clone() };
        assert!(Tightest.price(&no_order, &runs).unwrap_err().contains("order"));
        assert!(Tightest.check(&no_order, &runs).is_err());
        assert!(Tightest.price(&no_order, &runs[..1]).is_ok());
    }

    #[test]
    fn a_tuning_costs_what_its_plan_says_and_adds_to_other_runs_at_a_share_of_delta() {
        use veilgrad_events::RunCount;
        let poisson = Sampling::Poisson { rate: SampleRate::new(0.01).unwrap() };
        let rounds = [rounds(poisson, 2.0, 200)];
        let terms = budget(4.0, Mode::Planned);
        let count = Tuning::logarithmic(10.0).unwrap().run_count().unwrap();
        let run = |tuning: Option<RunCount>| RunRounds { planned: true, rounds: &rounds, tuning };
        let price = |runs: &[RunRounds<'_>]| Tightest.price(&terms, runs);
        let composition = Composition::of(rounds, terms.adjacency).unwrap();
        let epsilon = |delta: f64, is_tuned: bool| {
            let delta = Delta::new(delta).unwrap();
            let tuned = Tuned { inner: &Tightest, tuning: Tuning::of(count) };
            let accountant: &dyn Accountant = if is_tuned { &tuned } else { &Tightest };
            accountant.epsilon(&composition, delta).unwrap().epsilon
        };
        let alone = price(&[run(Some(count))]).unwrap();
        assert_eq!(alone, epsilon(1e-5, true));
        let plain = price(&[run(None)]).unwrap();
        assert!(alone > plain);
        // No better than halves of delta would be if both were only as good as (epsilon, delta), and no worse.
        let both = price(&[run(None), run(Some(count))]).unwrap();
        assert!(both > alone && both > plain && both >= epsilon(1e-5, false) + epsilon(1e-5, true));
        assert!(both <= epsilon(0.5e-5, false) + epsilon(0.499e-5, true), "{both}");
        let nothing = RunRounds { rounds: &[], ..run(Some(count)) };
        assert_eq!(price(&[run(Some(count)), nothing]).unwrap(), alone);
        let two = price(&[run(Some(count)); 2]).unwrap();
        assert!((two / (2.0 * epsilon(0.5e-5, true)) - 1.0).abs() < 1e-6, "{two}");
        // The quick check must not take a tuning for a run.
        let tight =
            Budget { epsilon: Epsilon::new(0.5 * (plain + alone)).unwrap(), ..terms.clone() };
        assert!(Tightest.check(&tight, &[run(None)]).is_ok());
        assert!(Tightest.check(&tight, &[run(Some(count))]).is_err());
        // Not together with rounds that may have been chosen from its output.
        let unplanned = RunRounds { planned: false, ..run(None) };
        assert!(price(&[unplanned, run(Some(count))]).unwrap_err().contains("tuning"));
        let adaptive = Budget { mode: Mode::Adaptive, ..terms.clone() };
        let two = [run(None), run(Some(count))];
        assert!(Tightest.price(&adaptive, &two).is_err());
    }
}
