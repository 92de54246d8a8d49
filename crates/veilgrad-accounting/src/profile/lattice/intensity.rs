//! The losses of rounds that rarely sample a record, as one measure on a lattice.

use crate::work;

/// The sum over rounds of the law of their loss away from 0, each divided by its mass at 0.
pub(super) struct Intensity {
    /// Index on the lattice and mass, indices ascending.
    pub(super) atoms: Vec<(i64, f64)>,
    /// The log of the product of the masses at 0.
    pub(super) log_rest: f64,
    /// An upper bound on the probability of an infinite loss.
    pub(super) infinite: f64,
    /// What is added to every sum of losses.
    pub(super) offset: f64,
    /// For lower bounds: two losses in one round, both moved up to the larger one. The exponential has them, rounds do not.
    pub(super) twice: Vec<(i64, f64)>,
    /// An upper bound on the mass of two losses in one round of which one is above epsilon.
    pub(super) twice_apart: f64,
}

impl Intensity {
    /// The sum of `mass e^{tilt loss}`.
    pub(super) fn moment(&self, grid: f64, tilt: f64) -> f64 {
        moment(&self.atoms, grid, tilt)
    }
}

/// The sum of `mass e^{tilt loss}`.
pub(super) fn moment(atoms: &[(i64, f64)], grid: f64, tilt: f64) -> f64 {
    work::spend(atoms.len() as u64);
    atoms.iter().map(|(index, mass)| mass * (tilt * grid * *index as f64).exp()).sum()
}
