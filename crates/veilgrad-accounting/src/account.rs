//! The number that is reported: the smallest sound bound, and where it comes from.

use std::fmt;
use std::str::FromStr;

use veilgrad_events::{Delta, Epsilon};

use crate::pld::Method;
use crate::{Composition, Unsupported, pld, rdp};

/// Who computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accountant {
    /// The privacy profile itself.
    Pld,
    /// Rényi divergences.
    Rdp,
}

impl fmt::Display for Accountant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pld => "pld",
            Self::Rdp => "rdp",
        })
    }
}

impl FromStr for Accountant {
    type Err = Unsupported;

    fn from_str(name: &str) -> Result<Self, Unsupported> {
        match name {
            "pld" => Ok(Self::Pld),
            "rdp" => Ok(Self::Rdp),
            _ => Err(Unsupported::new(format!("accountant {name:?}: must be pld or rdp"))),
        }
    }
}

/// An epsilon for a delta, or a delta for an epsilon: what may be claimed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Guarantee {
    /// Never below the truth, its own numerical error included.
    pub epsilon: f64,
    /// Never above what the events cost the unluckiest neighbours; absent where this is not known.
    pub epsilon_lower: Option<f64>,
    /// The delta at which the epsilon holds.
    pub delta: f64,
    /// Who found it.
    pub accountant: Accountant,
    /// How, if it was the privacy profile.
    pub method: Option<Method>,
}

/// The smallest sound epsilon for `delta` that the accountant, or the better of both, can give.
///
/// # Errors
/// When none gives a finite one.
pub fn epsilon(
    composition: &Composition,
    delta: Delta,
    accountant: Option<Accountant>,
) -> Result<Guarantee, Unsupported> {
    let by_rdp = || -> Result<Guarantee, Unsupported> {
        let epsilon = rdp::epsilon(composition, delta)?.epsilon.get();
        Ok(Guarantee {
            epsilon,
            epsilon_lower: None,
            delta: delta.get(),
            accountant: Accountant::Rdp,
            method: None,
        })
    };
    let by_pld = || -> Result<Guarantee, Unsupported> {
        let bounds = pld::epsilon(composition, delta)?;
        Ok(Guarantee {
            epsilon: bounds.upper,
            epsilon_lower: composition.attained().then_some(bounds.lower * (1.0 - LOWERED)),
            delta: delta.get(),
            accountant: Accountant::Pld,
            method: Some(bounds.method),
        })
    };
    match accountant {
        Some(Accountant::Pld) => by_pld(),
        Some(Accountant::Rdp) => by_rdp(),
        None => match by_pld() {
            Ok(found) if found.method != Some(Method::Lattice) => Ok(found),
            Ok(found) => match by_rdp() {
                Ok(other) if other.epsilon < found.epsilon => {
                    Ok(Guarantee { epsilon_lower: found.epsilon_lower, ..other })
                }
                _ => Ok(found),
            },
            Err(_) => by_rdp(),
        },
    }
}

/// Noise multipliers were rounded down when queries were folded; lower bounds must not profit.
const LOWERED: f64 = 1e-12;

/// The smallest sound delta at `epsilon` that the accountant, or the better of both, can give.
#[must_use]
pub fn delta(
    composition: &Composition,
    epsilon: Epsilon,
    accountant: Option<Accountant>,
) -> Guarantee {
    let rdp = || Guarantee {
        epsilon: epsilon.get(),
        epsilon_lower: None,
        delta: rdp::delta(composition, epsilon),
        accountant: Accountant::Rdp,
        method: None,
    };
    let pld = || {
        let bounds = pld::delta(composition, epsilon);
        Guarantee {
            epsilon: epsilon.get(),
            epsilon_lower: None,
            delta: bounds.upper,
            accountant: Accountant::Pld,
            method: Some(bounds.method),
        }
    };
    match accountant {
        Some(Accountant::Pld) => pld(),
        Some(Accountant::Rdp) => rdp(),
        None => {
            let (a, b) = (pld(), rdp());
            if b.delta < a.delta { b } else { a }
        }
    }
}
