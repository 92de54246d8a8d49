//! Training on several processes: what the command needs of a transport between them.

use veilgrad_mechanism::PartialSum;
use veilgrad_nn::round::{PeerError, Peers, SharedRound};

/// The other processes of a training job, as the one that has the ledger sees them.
pub trait Leader: Peers {
    /// The number of processes, this one included.
    fn size(&self) -> u64;

    /// Sends public bytes to every other process.
    ///
    /// # Errors
    /// When a process cannot be reached.
    fn announce(&mut self, message: &[u8]) -> Result<(), PeerError>;
}

/// What a process without the ledger is to do next.
pub enum Order {
    /// Read an announcement of the leader.
    Message(Vec<u8>),
    /// Add up the records with these ids, which are private, for a round.
    Round(SharedRound, Vec<u64>),
    /// End: training is done, or was refused.
    End,
}

/// The leader of a training job, as the other processes see it.
pub trait Follower {
    /// The number of this process, from 1.
    fn rank(&self) -> u64;

    /// The number of processes, the leader included.
    fn size(&self) -> u64;

    /// Waits for the next order.
    ///
    /// # Errors
    /// When the leader cannot be reached.
    fn next(&mut self) -> Result<Order, PeerError>;

    /// Sends the partial sum of a round.
    ///
    /// # Errors
    /// When the leader cannot be reached.
    fn give(&mut self, part: PartialSum) -> Result<(), PeerError>;
}
