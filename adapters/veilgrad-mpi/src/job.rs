//! The ranks of a training job: rank 0 leads, the others follow its orders.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use mpi::topology::SimpleCommunicator;
use veilgrad_cli::{Follower, Leader, Order};
use veilgrad_mechanism::{ClippedSum, PartialSum};
use veilgrad_nn::round::{PeerError, Peers, SharedRound, deal};
use zeroize::Zeroizing;

use crate::ranks::Ranks;

/// What rank 0 sends next: a number for each kind of order.
const END: u64 = 0;
const MESSAGE: u64 = 1;
const ROUND: u64 = 2;

/// All ranks of `MPI_COMM_WORLD`, which knows itself: nothing of MPI is kept here, so that it may move between threads.
fn world() -> Ranks<SimpleCommunicator> {
    Ranks::new(SimpleCommunicator::world())
}

/// All ranks of a job, as rank 0 sees them.
#[derive(Clone, Default)]
pub struct World {
    /// Set while the other ranks add up records and wait for a reduction, not for an order.
    in_round: Arc<AtomicBool>,
}

impl World {
    /// Ends the job. False if the other ranks are within a round and cannot be told: then only the end of this process
    /// ends them.
    #[must_use]
    pub fn end(&self) -> bool {
        let can_be_told = !self.in_round.load(Ordering::Relaxed);
        if can_be_told {
            order(END, &[]);
        }
        can_be_told
    }
}

/// Sends an order to all other ranks.
fn order(kind: u64, bytes: &[u8]) {
    let world = world();
    world.broadcast(&mut [kind, bytes.len() as u64]);
    // Broadcasting needs a buffer that may be written to, which rank 0's is not.
    world.broadcast(&mut bytes.to_vec());
}

impl Peers for World {
    fn scatter(
        &mut self,
        mut round: SharedRound,
        ids: Zeroizing<Vec<u64>>,
        records: u64,
    ) -> Result<Zeroizing<Vec<u64>>, PeerError> {
        let (head, world) = (round.head()?, world());
        self.in_round.store(true, Ordering::Relaxed);
        order(ROUND, &head);
        round.weights.iter_mut().for_each(|values| world.broadcast(values));
        Ok(world.scatter(&ids, &deal(round.by_place, &ids, records, world.size()))?)
    }

    fn reduce(&mut self, total: ClippedSum) -> Result<ClippedSum, PeerError> {
        let total = world().collect(total)?;
        self.in_round.store(false, Ordering::Relaxed);
        Ok(total)
    }
}

impl Leader for World {
    fn size(&self) -> u64 {
        world().size()
    }

    fn announce(&mut self, message: &[u8]) -> Result<(), PeerError> {
        order(MESSAGE, message);
        Ok(())
    }

    fn failures(&mut self) -> Result<Vec<(u64, String)>, PeerError> {
        let reports = (0..).zip(world().gather(&[]));
        let failed = reports.filter(|(_, report)| !report.is_empty());
        Ok(failed.map(|(rank, why)| (rank, String::from_utf8_lossy(&why).into_owned())).collect())
    }

    fn peers(&self) -> Box<dyn Peers> {
        Box::new(self.clone())
    }
}

/// One of the other ranks of a job.
#[derive(Default)]
pub struct Rank;

impl Follower for Rank {
    fn rank(&self) -> u64 {
        world().rank()
    }

    fn size(&self) -> u64 {
        world().size()
    }

    fn next(&mut self) -> Result<Order, PeerError> {
        let world = world();
        let mut head = [END; 2];
        world.broadcast(&mut head);
        let [kind, length] = head;
        let mut bytes = vec![0u8; usize::try_from(length)?];
        world.broadcast(&mut bytes);
        Ok(match kind {
            END => Order::End,
            MESSAGE => Order::Message(bytes),
            _ => {
                let (mut round, lengths) = SharedRound::from_head(&bytes)?;
                round.weights = lengths.into_iter().map(|length| vec![0.0; length]).collect();
                round.weights.iter_mut().for_each(|values| world.broadcast(values));
                Order::Round(round, world.receive_ids())
            }
        })
    }

    fn report(&mut self, failure: Option<&str>) -> Result<(), PeerError> {
        // None is no bytes, and an error has a text.
        world().gather(failure.unwrap_or_default().as_bytes());
        Ok(())
    }

    fn give(&mut self, part: PartialSum) -> Result<(), PeerError> {
        Ok(world().send(part)?)
    }
}
