//! Private training metrics (loss, accuracy, class counts) as groups of a round.

use veilgrad_events::{ClipNorm, PublicCount, UnitError};

use crate::{Estimates, Group};

/// A private training metric: the average of a bounded number, or the count of each class.
///
/// A metric is a vector of the structure: [`Metric::encode`] returns a record's vector, [`Metric::group`] the group
/// for the plan, and [`Metric::decode`] the value from a release. Bounds and the number of classes are declared,
/// never computed from the data.
///
/// # Example
/// ```
/// use veilgrad_mechanism::Metric;
///
/// let loss = Metric::loss(4.0)?; // losses above the public bound 4 count as 4
/// assert_eq!(loss.vector(), ("loss".to_owned(), 1));
/// assert_eq!(loss.encode(3.0), [1.0]); // the difference from the middle
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Metric {
    name: String,
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    Bounded { middle: f64, radius: ClipNorm },
    Classes(usize),
}

impl Metric {
    /// The average of a number in `[low, high]`, such as a loss or (in [0, 1]) an accuracy.
    ///
    /// Records contribute the difference from the middle, so the sensitivity is half the width.
    ///
    /// # Errors
    /// When `low < high` does not hold or the width is not a finite f32.
    pub fn bounded(name: impl Into<String>, low: f64, high: f64) -> Result<Self, UnitError> {
        // Rounded to f32, the type of records: a difference must not become infinite there.
        let radius = ClipNorm::new(f64::from(((high - low) / 2.0) as f32))?;
        let middle = low + (high - low) / 2.0;
        Ok(Self { name: name.into(), kind: Kind::Bounded { middle, radius } })
    }

    /// The fraction of correct predictions, named `accuracy`.
    ///
    /// # Errors
    /// Never: its bounds are valid.
    pub fn accuracy() -> Result<Self, UnitError> {
        Self::bounded("accuracy", 0.0, 1.0)
    }

    /// The average loss, named `loss`; losses above the public bound `most` count as `most`.
    ///
    /// # Errors
    /// When the bound is not above 0 or not a finite f32.
    pub fn loss(most: f64) -> Result<Self, UnitError> {
        Self::bounded("loss", 0.0, most)
    }

    /// The number of records in each of `classes` classes.
    #[must_use]
    pub fn class_counts(name: impl Into<String>, classes: usize) -> Self {
        Self { name: name.into(), kind: Kind::Classes(classes) }
    }

    /// The name and dimension of the metric's vector in the structure.
    #[must_use]
    pub fn vector(&self) -> (String, usize) {
        match self.kind {
            Kind::Bounded { .. } => (self.name.clone(), 1),
            Kind::Classes(classes) => (self.name.clone(), classes),
        }
    }

    /// The group of the metric; `expected` is the public expected number of records in a sample.
    ///
    /// # Errors
    /// Never: the bounds were checked before.
    pub fn group(&self, expected: PublicCount) -> Result<Group, UnitError> {
        let group = |clip| Group::new(self.name.as_str(), [self.name.as_str()], clip);
        Ok(match self.kind {
            Kind::Bounded { radius, .. } => group(radius).average(expected),
            Kind::Classes(_) => group(ClipNorm::new(1.0)?),
        })
    }

    /// A record's vector for `value`: a number within the bounds, or the index of a class. Numbers outside the bounds
    /// are clamped; NaN and unknown classes contribute zero.
    #[must_use]
    pub fn encode(&self, value: f64) -> Vec<f32> {
        match self.kind {
            Kind::Bounded { middle, radius } => {
                let difference = (value - middle).clamp(-radius.get(), radius.get());
                vec![if difference.is_nan() { 0.0 } else { difference as f32 }]
            }
            Kind::Classes(classes) => {
                let indicator = |index: usize| if index as f64 == value { 1.0 } else { 0.0 };
                (0..classes).map(indicator).collect()
            }
        }
    }

    /// The estimated average (one number) or the estimated counts of the sample.
    #[must_use]
    pub fn decode(&self, estimates: &Estimates) -> Option<Vec<f64>> {
        let estimate = estimates.vector(&self.name)?;
        Some(match self.kind {
            Kind::Bounded { middle, .. } => estimate.iter().map(|x| x + middle).collect(),
            Kind::Classes(_) => estimate.to_vec(),
        })
    }
}
