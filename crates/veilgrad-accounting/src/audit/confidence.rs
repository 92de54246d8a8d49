//! The confidence of an audit's bounds.

use crate::Unsupported;

/// The confidence with which a bound holds: one minus the largest probability of a false alarm.
///
/// # Example
/// ```
/// use veilgrad_accounting::audit::Confidence;
///
/// assert_eq!(Confidence::STANDARD.get(), 0.95);
/// assert_eq!(Confidence::with_false_alarms(1e-6)?.false_alarms(), 1e-6);
/// assert!(Confidence::with_false_alarms(0.0).is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Confidence {
    false_alarms: f64,
}

impl Confidence {
    /// 95 %: at most one false alarm in twenty audits.
    pub const STANDARD: Self = Self { false_alarms: 0.05 };

    /// The confidence with this largest probability of a false alarm.
    ///
    /// # Errors
    /// When it is not between 0 and 1.
    pub fn with_false_alarms(probability: f64) -> Result<Self, Unsupported> {
        if probability > 0.0 && probability < 1.0 {
            return Ok(Self { false_alarms: probability });
        }
        Err(Unsupported::new(format!("{probability} is not a probability of false alarms")))
    }

    /// The largest probability of a false alarm.
    #[must_use]
    pub const fn false_alarms(self) -> f64 {
        self.false_alarms
    }

    /// The confidence as a fraction: 0.95, say.
    #[must_use]
    pub fn get(self) -> f64 {
        1.0 - self.false_alarms
    }

    /// The confidence of each of two bounds that must hold together (union bound).
    pub(super) fn halved(self) -> Self {
        Self { false_alarms: 0.5 * self.false_alarms }
    }
}
