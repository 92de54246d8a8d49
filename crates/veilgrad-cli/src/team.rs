//! Training on several processes: what the command needs of a transport between them.

use veilgrad_mechanism::PartialSum;
use veilgrad_nn::round::{PeerError, Peers, SharedRound};
use zeroize::Zeroizing;

/// The other processes of a training job, as the one that has the ledger sees them.
pub trait Leader: Send {
    /// The number of processes, this one included.
    fn size(&self) -> u64;

    /// Sends public bytes to every other process.
    ///
    /// # Errors
    /// When a process cannot be reached.
    fn announce(&mut self, message: &[u8]) -> Result<(), PeerError>;

    /// Waits until every other process has read what the announcement of a job asks for, or failed to. Says which failed, and
    /// why; this process reports it, and then ends the others.
    ///
    /// # Errors
    /// When a process cannot be reached.
    fn failures(&mut self) -> Result<Vec<(u64, String)>, PeerError>;

    /// The other processes, for rounds that they share. Several of these are used one after the other.
    fn peers(&self) -> Box<dyn Peers>;
}

/// What a process without the ledger is to do next.
pub enum Order {
    /// Read an announcement of the leader.
    Message(Vec<u8>),
    /// Add up the records with these ids, which are private, for a round.
    Round(SharedRound, Zeroizing<Vec<u64>>),
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

    /// Says whether this process has read what the announcement of the job asks for, and else why not.
    ///
    /// # Errors
    /// When the leader cannot be reached.
    fn report(&mut self, failure: Option<&str>) -> Result<(), PeerError>;

    /// Sends the partial sum of a round.
    ///
    /// # Errors
    /// When the leader cannot be reached.
    fn give(&mut self, part: PartialSum) -> Result<(), PeerError>;
}
