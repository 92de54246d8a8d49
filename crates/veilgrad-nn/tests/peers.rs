//! Rounds whose records are shared by several processes have the same bits as those of one.

mod common;

use std::sync::{Arc, Mutex};

use common::*;
use veilgrad_events::{
    Adjacency, BudgetShare, ClipNorm, MemoryLedger, NoiseStd, PublicCount, Run, SampleRate,
};
use veilgrad_mechanism::insecure::seeded_noise;
use veilgrad_mechanism::{
    ClippedSum, Group, Metric, PartialSum, PoissonSampler, Quantile, Sampler,
};
use veilgrad_nn::round::{PeerError, Peers, SharedRound, share_of};
use veilgrad_nn::{InMemory, Performance, TrainError, Trainer, TrainingPlan};

/// Other processes, each a trainer of its own, which get and send nothing but bytes.
struct Others<T> {
    trainers: Vec<T>,
    records: Arc<InMemory>,
    sent: Vec<Vec<u8>>,
    /// The round that was shared last.
    last: Arc<Mutex<Vec<u8>>>,
}

impl<O: veilgrad_nn::Optimizer + Send> Peers for Others<Trainer<O>> {
    fn scatter(
        &mut self,
        round: &SharedRound,
        ids: Vec<u64>,
        records: u64,
    ) -> Result<Vec<u64>, PeerError> {
        let bytes = round.to_bytes()?;
        self.last.lock().unwrap().clone_from(&bytes);
        let size = self.trainers.len() as u64 + 1;
        let of = |rank: u64| -> Vec<u64> {
            let share = share_of(records, rank, size);
            ids.iter().copied().filter(|id| share.contains(id)).collect()
        };
        for (trainer, rank) in self.trainers.iter_mut().zip(1..) {
            let round = SharedRound::from_bytes(&bytes)?;
            let part = trainer.part(&round, &of(rank), &*self.records)?;
            self.sent.push(part.into_bytes()?.expose().to_vec());
        }
        Ok(of(0).into_iter().chain(ids.iter().copied().filter(|id| *id >= records)).collect())
    }

    fn reduce(&mut self, mine: PartialSum, mut total: ClippedSum) -> Result<ClippedSum, PeerError> {
        total.absorb(mine)?;
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

/// The weights after some rounds on this many processes.
fn train(processes: usize) -> Vec<u32> {
    let records = Arc::new(in_memory(&examples(200, 5)));
    let performance = Performance { threads: 2, ..Performance::default() };
    let mut leader = trainer(every_group(), performance);
    let last = Arc::default();
    if processes > 0 {
        let trainers = (1..processes).map(|_| trainer(every_group(), performance));
        leader.share_with(Box::new(Others {
            trainers: trainers.collect(),
            records: Arc::clone(&records),
            sent: Vec::new(),
            last: Arc::clone(&last),
        }));
    }
    let header = leader.header(Adjacency::AddRemove);
    let mut run = Run::open_insecure(MemoryLedger::new(), header, "test").unwrap();
    // Other samples are random, and differ between runs.
    let mut sampler = veilgrad_mechanism::AllRecords;
    for round in 0..8 {
        let permit = run.reserve(&leader.event(&sampler).unwrap(), 1).unwrap().next().unwrap();
        let noise = seeded_noise(leader.plan(), round).unwrap();
        leader.round_insecure(permit, &mut sampler, &*records, noise).unwrap();
    }
    bits(leader.model())
}

#[test]
fn any_number_of_processes_gives_the_same_weights() {
    let alone = train(0);
    for processes in 1..=4 {
        assert_eq!(train(processes), alone, "{processes} processes");
    }
}

#[test]
fn a_process_with_another_model_or_plan_is_refused() {
    let records = in_memory(&examples(20, 5));
    let performance = Performance { threads: 1, ..Performance::default() };
    let last: Arc<Mutex<Vec<u8>>> = Arc::default();
    let mut leader = trainer(plan(1.0, 60.0), performance);
    leader.share_with(Box::new(Others {
        trainers: vec![trainer(plan(1.0, 60.0), performance)],
        records: Arc::new(in_memory(&examples(20, 5))),
        sent: Vec::new(),
        last: Arc::clone(&last),
    }));
    let mut run = Run::open(MemoryLedger::new(), leader.header(Adjacency::AddRemove)).unwrap();
    let mut sampler = PoissonSampler::new(SampleRate::new(0.5).unwrap());
    assert!(sampler.policy().records().is_none());
    let permit = run.reserve(&leader.event(&sampler).unwrap(), 1).unwrap().next().unwrap();
    leader.round(permit, &mut sampler, &records).unwrap();

    let round = SharedRound::from_bytes(&last.lock().unwrap()).unwrap();
    let refused = |trainer: &mut Trainer<_>| trainer.part(&round, &[1, 2], &records).err();
    assert!(refused(&mut trainer(plan(1.0, 60.0), performance)).is_none());
    let other_clip = refused(&mut trainer(plan(2.0, 60.0), performance));
    assert!(matches!(other_clip, Some(TrainError::DifferentPlan)), "{other_clip:?}");
    let smaller = veilgrad_nn::Model::new(&[INPUT], [veilgrad_nn::Layer::linear(3)], 1).unwrap();
    let mut smaller = plain_trainer(&smaller, plan(1.0, 60.0), 0.1, performance).unwrap();
    let other_model = smaller.part(&round, &[1, 2], &records).err();
    assert!(matches!(other_model, Some(TrainError::DifferentPlan)), "{other_model:?}");
}
