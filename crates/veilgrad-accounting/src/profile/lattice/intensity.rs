//! One measure on a lattice for the losses of all rounds that rarely sample a record.

use crate::work;

/// The sum over rounds of the distribution of their loss without its atom at 0, each divided by the mass of that atom.
pub(super) struct Intensity {
    /// Lattice index and mass, indices ascending.
    pub(super) atoms: Vec<(i64, f64)>,
    /// The log of the product of the masses at 0.
    pub(super) log_rest: f64,
    /// An upper bound on the probability of an infinite loss.
    pub(super) infinite: f64,
    /// A constant that is added to every total loss.
    pub(super) offset: f64,
    /// For lower bounds: pairs of losses in one round, both moved up to the larger one. The exponential of the measure contains
    /// such pairs, the rounds do not, so they are subtracted.
    pub(super) twice: Vec<(i64, f64)>,
    /// An upper bound on the mass of such pairs whose larger loss is above the planned epsilon.
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
