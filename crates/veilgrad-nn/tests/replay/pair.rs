//! Runs rounds on two neighbouring datasets with the same noise, and compares the released integers.

use veilgrad_events::{
    ClipNorm, MemoryLedger, NoiseMultiplier, RoundPermit, Run, RunHeader, Sampling,
};
use veilgrad_mechanism::insecure::{released_integers, seeded_noise};
use veilgrad_mechanism::{
    Allocation, Group, RoundPlan, SampleError, Sampler, Selection, Structure,
};
use veilgrad_nn::{
    Checkpoint, Model, Optimizer, Performance, Schedule, Sgd, Trainer, TrainingPlan,
};

use crate::case::{Case, ROOM};
use crate::data::{Data, Record};
use crate::tally::Tally;

/// The integers of each group.
type Integers = Vec<Vec<i64>>;

/// A sampler that returns a given sample.
struct Chosen(Sampling, Vec<u64>);

impl Sampler for Chosen {
    fn policy(&self) -> Sampling {
        self.0
    }

    fn select(&mut self, _: &RoundPermit, records: u64) -> Result<Selection, SampleError> {
        Ok(match self.0 {
            Sampling::All {} => Selection::all(records),
            _ => Selection::ids(self.1.clone()),
        })
    }
}

/// A trainer in a run that is stamped INSECURE, and the seed of its noise.
struct Twin<O> {
    trainer: Trainer<O>,
    run: Run<MemoryLedger>,
    header: RunHeader,
    sampling: Sampling,
    seed: u64,
    /// The metrics of the last round, and their lengths.
    shown: Vec<(&'static str, Option<usize>)>,
}

fn twin(
    case: &Case,
    plan: &TrainingPlan,
    model: &Model,
    performance: Performance,
    seed: u64,
) -> Twin<impl Optimizer> {
    let (plan, optimizer) = (plan.clone(), Sgd::with_momentum(0.5));
    let rate = Schedule::Constant(0.05);
    let trainer = Trainer::new(model.clone(), case.loss, plan, optimizer, rate, performance);
    let trainer = trainer.unwrap();
    let header = trainer.header(case.adjacency);
    let run = Run::open_insecure(MemoryLedger::new(), header.clone(), "test").unwrap();
    Twin { trainer, run, header, sampling: case.sampling, seed, shown: Vec::new() }
}

impl<O: Optimizer> Twin<O> {
    /// The integers that a round releases, after restoring `start`.
    fn round(
        &mut self,
        start: Option<&Checkpoint>,
        (data, ids): (Data, Vec<u64>),
    ) -> Result<Integers, String> {
        if let Some(start) = start {
            self.trainer.restore(start).unwrap();
        }
        let mut sampler = Chosen(self.sampling, ids);
        let event = self.trainer.event(&sampler).unwrap();
        let permit = self.run.reserve(&event, 1).unwrap().next().unwrap();
        let noise = seeded_noise(self.trainer.plan(), self.seed).unwrap();
        let round = self.trainer.round_insecure(permit, &mut sampler, &data, noise);
        let round = round.map_err(|error| format!("a round failed: {error}"))?;
        let names = ["accuracy", "loss", "classes"];
        self.shown = names.map(|name| (name, round.metric(name).map(<[f64]>::len))).to_vec();
        let released = self.trainer.estimates().ok_or("nothing was released")?;
        Ok(released_integers(released).to_vec())
    }

    /// The messages of two rounds that fail after the records were added: one with the noise of another plan, one with
    /// seeded noise in a run that is not stamped.
    fn failures(
        &mut self,
        start: &Checkpoint,
        data: impl Fn() -> (Data, Vec<u64>),
    ) -> Result<[String; 2], String> {
        self.trainer.restore(start).unwrap();
        let other = other_plan();
        let mut honest = Run::open(MemoryLedger::new(), self.header.clone()).unwrap();
        let mut fail = |is_stamped: bool| -> Result<String, String> {
            let (data, ids) = data();
            let mut sampler = Chosen(self.sampling, ids);
            let event = self.trainer.event(&sampler).unwrap();
            let run = if is_stamped { &mut self.run } else { &mut honest };
            let permit = run.reserve(&event, 1).unwrap().next().unwrap();
            let plan = if is_stamped { &other } else { self.trainer.plan() };
            let noise = seeded_noise(plan, self.seed).unwrap();
            let round = self.trainer.round_insecure(permit, &mut sampler, &data, noise);
            Ok(round.err().ok_or("a round that must fail did not")?.to_string())
        };
        Ok([fail(true)?, fail(false)?])
    }
}

/// A plan whose noise fits no other: none has as many coordinates.
pub(crate) fn other_plan() -> RoundPlan {
    let group = Group::new("other", ["other"], ClipNorm::new(1.0).unwrap());
    let noise = Allocation::Proportional(NoiseMultiplier::new(1.0).unwrap());
    RoundPlan::new(Structure::new([("other", 1009)]).unwrap(), vec![group], noise).unwrap()
}

/// `a - b`, modulo 2^64.
fn difference(a: &Integers, b: &Integers) -> Integers {
    let lengths = |groups: &Integers| groups.iter().map(Vec::len).collect::<Vec<_>>();
    assert_eq!(lengths(a), lengths(b));
    let groups = a.iter().zip(b);
    groups.map(|(a, b)| a.iter().zip(b).map(|(a, b)| a.wrapping_sub(*b)).collect()).collect()
}

pub(crate) fn squared_norm(values: &[i64]) -> u128 {
    values.iter().map(|value| u128::from(value.unsigned_abs()).pow(2)).sum()
}

/// Compares two neighbouring datasets.
pub(crate) fn compare(case: &Case, seed: u64, tally: &mut Tally) -> Result<(), String> {
    let [one, two] = case.performance;
    let mut first = twin(case, &case.plan, &case.model, one, seed);
    let mut second = twin(case, &case.plan, &case.model, two, seed);
    let data = |record: Option<&Record>, blank| case.data(record, blank);
    let (before, after) = (case.before.as_ref(), case.after.as_ref());
    // Both begin after a round that changed weights, statistics and clip norms.
    first.round(None, data(case.blank(), false))?;
    second.round(None, data(case.blank(), false))?;
    let checkpoint = first.trainer.checkpoint(None);
    let start = Some(&checkpoint);
    let with_before = first.round(start, data(before, false))?;
    let with_after = second.round(start, data(after, false))?;
    let charged = |run: &Run<MemoryLedger>| run.store().events().to_vec();
    if charged(&first.run) != charged(&second.run) || first.shown != second.shown {
        return Err("neighbours are charged or shown something else".to_owned());
    }
    let moved = difference(&with_after, &with_before);
    // The record alone, among others that contribute zero.
    let before_alone = first.round(start, data(before, true))?;
    let after_alone = second.round(start, data(after, true))?;
    if difference(&after_alone, &before_alone) != moved {
        return Err("a record contributes something else beside other records".to_owned());
    }
    let nothing = match case.blank() {
        None => before_alone.clone(),
        blank => first.round(start, data(blank, true))?,
    };
    let contributions = [difference(&before_alone, &nothing), difference(&after_alone, &nothing)];
    let plan = first.trainer.plan().clone();
    let names: Vec<String> = plan.group_names().map(str::to_owned).collect();
    // Replacing one record by another changes the sum by up to twice the sensitivity.
    let most: u32 = if case.before.is_some() && !case.is_zeroed() { 2 } else { 1 };
    for (index, name) in names.iter().enumerate() {
        let s_int = plan.grid(name).ok_or("no grid")?.s_int();
        let bound = u128::from(s_int).pow(2);
        for (what, values, times) in [
            ("the record before", &contributions[0], 1),
            ("the record after", &contributions[1], 1),
            ("neighbours", &moved, most),
        ] {
            let squared = squared_norm(&values[index]);
            let ratio = (squared as f64).sqrt() / f64::from(s_int);
            if squared > bound * u128::from(times * times) {
                return Err(format!("{what} in group '{name}': {ratio} times S"));
            }
            if what == "the record after" {
                tally.add(case, name, ratio);
            }
        }
    }
    let is_zero = |values: &Integers| values.iter().flatten().all(|value| *value == 0);
    if case.is_unusable && !is_zero(&contributions[1]) {
        return Err("an unusable record contributes".to_owned());
    }
    // Sums of failed rounds enter no other round; threads and tiles change nothing.
    let messages = [
        first.failures(&checkpoint, || data(before, false))?,
        second.failures(&checkpoint, || data(after, false))?,
    ];
    if messages[0] != messages[1] {
        return Err(format!("failures differ: {messages:?}"));
    }
    if first.round(start, data(after, false))? != with_after {
        return Err("rounds before, threads or tiles change a sum".to_owned());
    }
    if second.round(start, data(before, false))? != with_before {
        return Err("rounds before, threads or tiles change a sum".to_owned());
    }
    long_records_reach_the_bound(case, seed, &mut first, &checkpoint, &contributions[1])
}

/// Records above the clip norm reach at least 0.99 of the sensitivity.
fn long_records_reach_the_bound<O: Optimizer>(
    case: &Case,
    seed: u64,
    first: &mut Twin<O>,
    start: &Checkpoint,
    contribution: &Integers,
) -> Result<(), String> {
    first.trainer.restore(start).unwrap();
    let (plan, model) = (first.trainer.plan().clone(), first.trainer.model());
    let mut wide = twin(case, &case.unclipped, model, case.performance[0], seed);
    let checkpoint = wide.trainer.checkpoint(None);
    let alone = wide.round(Some(&checkpoint), case.data(case.after.as_ref(), true))?;
    let nothing = wide.round(Some(&checkpoint), case.data(case.blank(), true))?;
    let unclipped = difference(&alone, &nothing);
    let wide = wide.trainer.plan();
    let position =
        |plan: &RoundPlan, name: &str| plan.group_names().position(|group| group == name);
    for (name, rule) in &case.rules {
        let length = |plan: &RoundPlan, integers: &Integers| {
            let index = position(plan, name)?;
            let (grid, clip) = (plan.grid(name)?, plan.clip_norm(name)?);
            let ratio = (squared_norm(&integers[index]) as f64).sqrt() / f64::from(grid.s_int());
            Some((ratio, clip.get()))
        };
        let (ratio, clip) = length(&plan, contribution).ok_or("no such group")?;
        let (whole, wide_clip) = length(wide, &unclipped).ok_or("no such group")?;
        let norm = whole * wide_clip / rule.weight;
        let is_long = norm >= if rule.normalised { 1e-3 * wide_clip / ROOM } else { 1.02 * clip };
        if is_long && ratio < 0.99 * rule.weight {
            return Err(format!(
                "group '{name}' has {ratio} of its sensitivity for a norm of {norm}, clip {clip}"
            ));
        }
    }
    Ok(())
}
