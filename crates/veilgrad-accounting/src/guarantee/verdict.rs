//! The verdict of an audit.

/// The verdict of an audit of a training run: a lower bound on epsilon, next to the claim.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RunVerdict {
    /// How many canaries there were.
    pub canaries: u64,
    /// For how many of them a guess was made; fixed before the run.
    pub guesses: u64,
    /// How many of these guesses were right.
    pub correct: u64,
    /// A lower bound on epsilon at the claim's delta: the epsilon of the same rounds with their noise scaled until these
    /// guesses just contradict their trade-off curve. 0 if they contradict no curve.
    pub epsilon_lower: f64,
    /// The confidence of the bound.
    pub confidence: f64,
    /// The epsilon that is claimed for the rounds.
    pub claimed: f64,
    /// The delta of both.
    pub delta: f64,
    /// Whether the guesses contradict the claimed trade-off curve.
    pub contradicted: bool,
}
