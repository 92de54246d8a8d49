//! Rounds whose records are shared by several processes have the same bits as those of one.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::common::*;
use veilgrad_events::{
    Adjacency, BudgetShare, ClipNorm, MemoryLedger, NoiseMultiplier, NoiseStd, PublicCount,
    RoundPermit, Run, SampleRate, Sampling, TruncatedPoisson,
};
use veilgrad_mechanism::insecure::seeded_noise;
use veilgrad_mechanism::{
    AllRecords, ClippedSum, Group, Metric, PartialSum, PoissonSampler, Quantile, SampleError,
    Sampler, Selection,
};
use veilgrad_nn::round::{PeerError, Peers, SharedRound, deal, share_of};
use veilgrad_nn::{
    Performance, PreconditionPlan, Preconditioning, TrainError, Trainer, TrainingPlan,
};
use zeroize::Zeroizing;

fn counted(count: usize) -> Arc<Counted> {
    let records = in_memory(&examples(count, 5));
    Arc::new(Counted { records, reads: AtomicUsize::new(0) })
}

/// A process that adds up records.
trait Process: Send {
    fn part(
        &mut self,
        round: SharedRound,
        ids: Zeroizing<Vec<u64>>,
        records: &Counted,
    ) -> Result<PartialSum, TrainError>;
}

impl<O: veilgrad_nn::Optimizer + Send> Process for Trainer<O> {
    fn part(
        &mut self,
        round: SharedRound,
        ids: Zeroizing<Vec<u64>>,
        records: &Counted,
    ) -> Result<PartialSum, TrainError> {
        Trainer::part(self, round, ids, records)
    }
}

impl Process for Preconditioning {
    fn part(
        &mut self,
        round: SharedRound,
        ids: Zeroizing<Vec<u64>>,
        records: &Counted,
    ) -> Result<PartialSum, TrainError> {
        Preconditioning::part(self, &round, ids, records)
    }
}

/// Other processes, each of them apart, which get and send nothing but bytes.
struct Others<T> {
    processes: Vec<T>,
    records: Arc<Counted>,
    /// How many examples each process read in each round.
    reads: Arc<Mutex<Vec<usize>>>,
    sent: Vec<Vec<u8>>,
    /// The round that was shared last.
    last: Arc<Mutex<Option<SharedRound>>>,
}

impl<P: Process> Peers for Others<P> {
    fn scatter(
        &mut self,
        round: SharedRound,
        ids: Zeroizing<Vec<u64>>,
        records: u64,
    ) -> Result<Zeroizing<Vec<u64>>, PeerError> {
        let shares = deal(round.by_place, &ids, records, self.processes.len() as u64 + 1);
        for (process, share) in self.processes.iter_mut().zip(&shares[1..]) {
            let (mut theirs, lengths) = SharedRound::from_head(&round.head()?)?;
            assert!(round.weights.iter().map(Vec::len).eq(lengths));
            theirs.weights.clone_from(&round.weights);
            let part = process.part(theirs, ids[share.clone()].to_vec().into(), &self.records)?;
            self.sent.push(part.into_bytes()?.expose().to_vec());
            self.reads.lock().unwrap().push(self.records.reads.swap(0, Ordering::Relaxed));
        }
        *self.last.lock().unwrap() = Some(round);
        Ok(ids[shares[0].clone()].to_vec().into())
    }

    fn reduce(&mut self, mut total: ClippedSum) -> Result<ClippedSum, PeerError> {
        for bytes in self.sent.drain(..) {
            total.absorb_bytes(&bytes)?;
        }
        Ok(total)
    }
}

/// Gradients, a metric and a quantile that adapts the clip norm.
fn every_group() -> TrainingPlan {
    let expected = PublicCount::new(60.0).unwrap();
    let median =
        Quantile::of_norm("gradient", 0.5, expected, ClipNorm::new(0.01).unwrap()).unwrap();
    plan(1.0, 60.0)
        .metric(Metric::accuracy().unwrap(), BudgetShare::new(0.05).unwrap())
        .group(Group::quantile("median", median).noise(NoiseStd::new(6.0).unwrap()))
}

/// The weights after some rounds on this many processes, and how many examples each process read in each round.
fn train(processes: usize, sampler: &mut impl Sampler) -> (Vec<u32>, Vec<usize>) {
    let records = counted(200);
    let performance = Performance { threads: 2, ..Performance::default() };
    let mut leader = trainer(every_group(), performance);
    let reads: Arc<Mutex<Vec<usize>>> = Arc::default();
    if processes > 0 {
        let trainers = (1..processes).map(|_| trainer(every_group(), performance));
        leader.share_with(Box::new(Others {
            processes: trainers.collect(),
            records: Arc::clone(&records),
            reads: Arc::clone(&reads),
            sent: Vec::new(),
            last: Arc::default(),
        }));
    }
    let header = leader.header(Adjacency::ZeroOut);
    let mut run = Run::open_insecure(MemoryLedger::new(), header, "test").unwrap();
    for round in 0..8 {
        let permit = run.reserve(&leader.event(sampler).unwrap(), 1).unwrap().next().unwrap();
        let noise = seeded_noise(leader.plan(), round).unwrap();
        leader.round_insecure(permit, sampler, &*records, noise).unwrap();
        reads.lock().unwrap().push(records.reads.swap(0, Ordering::Relaxed));
    }
    let reads = reads.lock().unwrap().clone();
    (bits(leader.model()), reads)
}

/// Other records in every round, so many of them, and the policy that is charged for them.
struct Chosen(Sampling, Vec<u64>);

impl Sampler for Chosen {
    fn policy(&self) -> Sampling {
        self.0
    }

    fn select(&mut self, _: &RoundPermit, records: u64) -> Result<Selection, SampleError> {
        self.1.rotate_left(1);
        let ids: Vec<u64> = (0..self.1[0]).map(|place| place * records / 31).collect();
        Ok(Selection::ids(ids))
    }
}

#[test]
fn every_process_computes_its_share_of_a_public_number_of_rows_and_gives_the_same_bits() {
    let rate = SampleRate::new(0.1).unwrap();
    let truncated = TruncatedPoisson::new(rate, 200, 30).unwrap();
    let sizes = vec![0, 1, 29, 30, 14, 30, 7, 22];
    let (alone, _) = train(0, &mut Chosen(Sampling::Poisson { rate }, sizes.clone()));
    for processes in 1..=4 {
        let mut sampler = Chosen(Sampling::TruncatedPoisson(truncated), sizes.clone());
        let (weights, reads) = train(processes, &mut sampler);
        assert_eq!(weights, alone, "{processes} processes");
        // The others, then the leader.
        for (index, rows) in reads.iter().enumerate() {
            let rank = ((index + 1) % processes) as u64;
            let share = share_of(30, rank, processes as u64);
            assert_eq!(*rows as u64, share.end - share.start, "rank {rank} of {processes}");
        }
        assert_eq!(reads.len(), 8 * processes);
        // Without a public number, rows are those of the sample.
        let (weights, reads) =
            train(processes, &mut Chosen(Sampling::Poisson { rate }, sizes.clone()));
        assert_eq!(weights, alone, "{processes} processes");
        assert_eq!(reads.iter().sum::<usize>() as u64, sizes.iter().sum::<u64>());
    }
}

#[test]
fn any_number_of_processes_gives_the_same_weights() {
    // Other samples are random, and differ between runs.
    let (alone, _) = train(0, &mut AllRecords);
    for processes in 1..=4 {
        assert_eq!(train(processes, &mut AllRecords).0, alone, "{processes} processes");
    }
}

#[test]
fn a_process_with_another_model_or_plan_is_refused() {
    let records = in_memory(&examples(20, 5));
    let performance = Performance { threads: 1, ..Performance::default() };
    let last: Arc<Mutex<Option<SharedRound>>> = Arc::default();
    let mut leader = trainer(plan(1.0, 60.0), performance);
    leader.share_with(Box::new(Others {
        processes: vec![trainer(plan(1.0, 60.0), performance)],
        records: counted(20),
        reads: Arc::default(),
        sent: Vec::new(),
        last: Arc::clone(&last),
    }));
    let mut run = Run::open(MemoryLedger::new(), leader.header(Adjacency::AddRemove)).unwrap();
    let mut sampler = PoissonSampler::new(SampleRate::new(0.5).unwrap());
    assert!(sampler.policy().records().is_none());
    let permit = run.reserve(&leader.event(&sampler).unwrap(), 1).unwrap().next().unwrap();
    leader.round(permit, &mut sampler, &records).unwrap();

    let round = last.lock().unwrap().take().unwrap();
    let refused =
        |trainer: &mut Trainer<_>| trainer.part(round.clone(), vec![1, 2].into(), &records).err();
    assert!(refused(&mut trainer(plan(1.0, 60.0), performance)).is_none());
    let other_clip = refused(&mut trainer(plan(2.0, 60.0), performance));
    assert!(matches!(other_clip, Some(TrainError::DifferentPlan)), "{other_clip:?}");
    let smaller = veilgrad_nn::Model::new(&[INPUT], [veilgrad_nn::Layer::linear(3)], 1).unwrap();
    let mut smaller = plain_trainer(&smaller, plan(1.0, 60.0), 0.1, performance).unwrap();
    let other_model = smaller.part(round.clone(), vec![1, 2].into(), &records).err();
    assert!(matches!(other_model, Some(TrainError::DifferentPlan)), "{other_model:?}");
}

/// A phase whose next round is not done.
fn phase(rounds: usize) -> Preconditioning {
    let plan = PreconditionPlan {
        width: INPUT,
        records: PublicCount::new(60.0).unwrap(),
        mean: NoiseMultiplier::new(2.0).unwrap(),
        directions: NoiseMultiplier::new(2.0).unwrap(),
        count: 2,
        rounds,
        floor: 0.02,
    };
    Preconditioning::new(plan, Performance { threads: 2, tile: 0 }).unwrap()
}

/// What every round of preconditioning released on this many processes, and how many examples each process read.
fn precondition(processes: usize) -> (Vec<Vec<i64>>, Vec<usize>) {
    let (records, reads) = (counted(60), Arc::<Mutex<Vec<usize>>>::default());
    let mut leader = phase(3);
    let header = leader.header(Adjacency::AddRemove);
    let mut run = Run::open_insecure(MemoryLedger::new(), header, "test").unwrap();
    let mut released = Vec::new();
    while let Some(round) = leader.event().unwrap() {
        let permit = run.reserve(&round, 1).unwrap().next().unwrap();
        let noise = seeded_noise(&leader.round_plan().unwrap(), released.len() as u64).unwrap();
        let others = || -> Box<dyn Peers> {
            Box::new(Others {
                // They have done no round.
                processes: (1..processes).map(|_| phase(3)).collect(),
                records: Arc::clone(&records),
                reads: Arc::clone(&reads),
                sent: Vec::new(),
                last: Arc::default(),
            })
        };
        let others = (processes > 0).then(others);
        released.push(leader.round_insecure(permit, &*records, others, noise).unwrap());
        reads.lock().unwrap().push(records.reads.swap(0, Ordering::Relaxed));
    }
    let reads = reads.lock().unwrap().clone();
    (released, reads)
}

#[test]
fn any_number_of_processes_shares_preconditioning_and_releases_the_same_bits() {
    let (alone, _) = precondition(0);
    assert_eq!(alone.len(), 4);
    for processes in 1..=4 {
        let (released, reads) = precondition(processes);
        assert!(released == alone, "{processes} processes");
        assert_eq!(reads, vec![60 / processes; 4 * processes]);
    }
}

#[test]
fn a_round_of_preconditioning_with_another_plan_or_weights_is_refused() {
    let (records, last) = (counted(60), Arc::<Mutex<Option<SharedRound>>>::default());
    let mut leader = phase(2);
    let mut run = Run::open(MemoryLedger::new(), leader.header(Adjacency::AddRemove)).unwrap();
    let mut refused = Vec::new();
    while let Some(round) = leader.event().unwrap() {
        let permit = run.reserve(&round, 1).unwrap().next().unwrap();
        let others = Others {
            processes: vec![phase(2)],
            records: Arc::clone(&records),
            reads: Arc::default(),
            sent: Vec::new(),
            last: Arc::clone(&last),
        };
        leader.round_with(permit, &*records, Some(Box::new(others))).unwrap();
        let round = last.lock().unwrap().take().unwrap();
        let part = |round: &SharedRound| phase(2).part(round, vec![1].into(), &*records).err();
        assert!(part(&round).is_none());
        let mut other = round.clone();
        match other.weights.last_mut() {
            Some(directions) => drop(directions.pop()),
            None => other.weights.push(vec![0.0; INPUT]),
        }
        refused.push(part(&other));
        // The plan of another round, with the weights of this one.
        let mut other = round;
        match other.weights.is_empty() {
            true => other.weights = vec![vec![0.0; INPUT], vec![0.0; 2 * INPUT]],
            false => other.weights.clear(),
        }
        refused.push(part(&other));
    }
    assert_eq!(refused.len(), 6);
    let is_refused = |error: &Option<TrainError>| matches!(error, Some(TrainError::DifferentPlan));
    assert!(refused.iter().all(is_refused), "{refused:?}");
}
