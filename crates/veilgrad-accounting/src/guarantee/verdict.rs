//! What an audit says beside a claim.

/// What an audit of a run found.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RunVerdict {
    /// How many canaries there were.
    pub canaries: u64,
    /// About how many of them a guess was made: fixed before the run.
    pub guesses: u64,
    /// How many of these guesses were right.
    pub correct: u64,
    /// The epsilon, at the claim's delta, of the same rounds with so much noise that their whole trade-off curve is just
    /// contradicted by these guesses. 0 if nothing is contradicted.
    pub epsilon_lower: f64,
    /// With which confidence the bound holds.
    pub confidence: f64,
    /// The epsilon that is claimed for the rounds.
    pub claimed: f64,
    /// The delta of both.
    pub delta: f64,
    /// Whether the guesses contradict the claimed trade-off curve.
    pub contradicted: bool,
}
