//! The vectors that a round estimates, by name.

/// A vector that a round estimates: the gradient of a parameter, or a statistic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vector {
    /// The name of the parameter.
    pub name: String,
    /// Its length.
    pub length: usize,
    /// Whether a record's gradient is the outer product of two vectors, of these lengths.
    pub outer: Option<(usize, usize)>,
}

/// The vectors of a model: gradients of trained parameters, then statistics.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Vectors {
    /// Gradients of trained parameters.
    pub trained: Vec<Vector>,
    /// Averages that batch norm needs.
    pub statistics: Vec<Vector>,
}
