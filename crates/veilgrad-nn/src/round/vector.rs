//! The gradients and statistics that a round estimates.

/// A vector that a round estimates: the gradient of a parameter, or a statistic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vector {
    /// The name of the parameter.
    pub name: String,
    /// The length of the vector.
    pub length: usize,
    /// The lengths of the two factors, if a record's gradient is an outer product.
    pub outer: Option<(usize, usize)>,
}

/// The vectors of a model: gradients of trained parameters, then statistics.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Vectors {
    /// Gradients of trained parameters.
    pub trained: Vec<Vector>,
    /// Batch-norm statistics.
    pub statistics: Vec<Vector>,
}
