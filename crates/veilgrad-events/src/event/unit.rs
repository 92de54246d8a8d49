//! Numbers with units, validated in their constructors.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A number is outside the range of its unit.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[error("{unit} {value} is not {rule}")]
pub struct UnitError {
    unit: &'static str,
    value: f64,
    rule: &'static str,
}

macro_rules! unit {
    ($(#[$doc:meta])* $name:ident, $unit:literal, positive) => {
        unit!($(#[$doc])* $name, $unit, "finite and greater than 0", |v| v.is_finite() && v > 0.0);
    };
    ($(#[$doc:meta])* $name:ident, $unit:literal, fraction) => {
        unit!($(#[$doc])* $name, $unit, "in (0, 1)", |v| v > 0.0 && v < 1.0);
    };
    ($(#[$doc:meta])* $name:ident, $unit:literal, $rule:literal, $holds:expr) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Serialize, Deserialize)]
        #[serde(try_from = "f64", into = "f64")]
        pub struct $name(f64);

        impl $name {
            #[doc = concat!("Checks that the ", $unit, " is ", $rule, ".")]
            ///
            /// # Errors
            /// When it is not, NaN included; the message names the value and the rule.
            pub fn new(value: f64) -> Result<Self, UnitError> {
                let holds: fn(f64) -> bool = $holds;
                if holds(value) {
                    Ok(Self(value))
                } else {
                    Err(UnitError { unit: $unit, value, rule: $rule })
                }
            }

            /// The plain number.
            #[must_use]
            pub const fn get(self) -> f64 {
                self.0
            }
        }

        impl TryFrom<f64> for $name {
            type Error = UnitError;
            fn try_from(value: f64) -> Result<Self, UnitError> {
                Self::new(value)
            }
        }

        impl From<$name> for f64 {
            fn from(value: $name) -> f64 {
                value.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

unit!(
    /// `S`: the largest L2 norm that one record may contribute to a group.
    ClipNorm, "clip norm", positive
);
unit!(
    /// The standard deviation of the noise added to a *sum* (the paper's tilde sigma).
    NoiseStd, "noise standard deviation", positive
);
unit!(
    /// `z = sigma / S`: the noise standard deviation in units of sensitivity.
    NoiseMultiplier, "noise multiplier", positive
);
unit!(
    /// `q`: the probability with which Poisson sampling takes each record.
    SampleRate,
    "sample rate",
    "in (0, 1]",
    |v| v > 0.0 && v <= 1.0
);
unit!(
    /// The delta of an (epsilon, delta) guarantee.
    Delta, "delta", fraction
);
unit!(
    /// The epsilon of an (epsilon, delta) guarantee.
    Epsilon,
    "epsilon",
    "finite and at least 0",
    |v| v.is_finite() && v >= 0.0
);
unit!(
    /// A public denominator that is declared, never computed from the data, such as `q n`.
    PublicCount, "public count", positive
);
unit!(
    /// `w_max`: the largest weight that one record may have in a weighted sum.
    WeightBound, "weight bound", positive
);
unit!(
    /// `alpha_j`: the scale of one vector under joint clipping.
    JointScale,
    "joint scale",
    "in [1e-30, 1e30]",
    |v| (1e-30..=1e30).contains(&v)
);
impl JointScale {
    /// Scale 1: no scaling.
    pub const ONE: Self = Self(1.0);
}
unit!(
    /// The share of a round's `1/z^2` that one group gets.
    BudgetShare, "budget share", fraction
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_names_the_unit_the_value_and_the_rule() {
        let error = SampleRate::new(1.2).unwrap_err();
        assert_eq!(error.to_string(), "sample rate 1.2 is not in (0, 1]");
        assert_eq!(
            ClipNorm::new(f64::NAN).unwrap_err().to_string(),
            "clip norm NaN is not finite and greater than 0"
        );
    }

    #[test]
    fn zero_noise_zero_clip_and_non_finite_numbers_are_refused() {
        for bad in [0.0, -1.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            assert!(ClipNorm::new(bad).is_err());
            assert!(NoiseStd::new(bad).is_err());
            assert!(NoiseMultiplier::new(bad).is_err());
            assert!(PublicCount::new(bad).is_err());
            assert!(WeightBound::new(bad).is_err());
            assert!(SampleRate::new(bad).is_err());
            assert!(Delta::new(bad).is_err());
        }
        assert!(Epsilon::new(0.0).is_ok());
        assert!(Epsilon::new(-0.1).is_err());
        assert!(Delta::new(1.0).is_err());
        assert!(SampleRate::new(5e-324).is_ok());
        assert!(SampleRate::new(1.0).is_ok());
    }

    #[test]
    fn a_unit_is_read_from_json_with_the_same_check() {
        assert_eq!(serde_json::from_str::<ClipNorm>("1").unwrap().get(), 1.0);
        let message = serde_json::from_str::<ClipNorm>("-2.5").unwrap_err().to_string();
        assert!(message.contains("clip norm -2.5"), "{message}");
    }
}
