//! Groups: which vectors are clipped and noised together.

use pyo3::prelude::*;
use pyo3::types::PyString;
use veilgrad_events::{BudgetShare, ClipNorm, JointScale, NoiseStd, PublicCount, WeightBound};
use veilgrad_mechanism::{LearningRate, Quantile};

use crate::capability::{Capability, Owner, object};
use crate::error::invalid;

/// A set of vectors with one clip norm, one noise level and one estimator.
///
/// Vectors are chosen by name or by glob (``conv*``); every vector belongs to exactly one group.
///
/// Args:
///     name: Its name in the ledger.
///     vectors: A name or glob, or several.
///     clip: The largest L2 norm that one record contributes.
///     scales: Scales of joint clipping, one for each entry of ``vectors``.
///     average: A public denominator: estimates are averages over it instead of sums.
///     weighted: Multiplies each record with its weight, which is clamped into [0, weighted].
///     noise: Insists on this standard deviation of the noise on the sum.
///     share: Insists on this part of the round's privacy loss.
///     normalised: Scales every record to length ``clip`` instead of only shortening long ones.
///     average_over: The name of a group of weights, and the least denominator.
///
/// >>> Group("gradient", "*", 1.0, average=256)
/// Group('gradient')
#[pyclass(frozen, extends = Capability, module = "veilgrad")]
pub(crate) struct Group {
    owner: Owner,
    inner: veilgrad_mechanism::Group,
    is_quantile: bool,
}

impl Group {
    pub(crate) fn wrap(py: Python<'_>, inner: veilgrad_mechanism::Group) -> PyResult<Py<Self>> {
        object(py, Self { owner: Owner::this()?, inner, is_quantile: false })
    }

    pub(crate) fn inner(&self) -> PyResult<&veilgrad_mechanism::Group> {
        self.owner.check()?;
        Ok(&self.inner)
    }
}

/// What every kind of group takes.
fn finished(
    mut group: veilgrad_mechanism::Group,
    average: Option<f64>,
    noise: Option<f64>,
    share: Option<f64>,
) -> PyResult<veilgrad_mechanism::Group> {
    if let Some(count) = average {
        group = group.average(PublicCount::new(count).map_err(invalid)?);
    }
    if let Some(noise) = noise {
        group = group.noise(NoiseStd::new(noise).map_err(invalid)?);
    }
    if let Some(share) = share {
        group = group.share(BudgetShare::new(share).map_err(invalid)?);
    }
    Ok(group)
}

/// Weights and denominator of a group of vectors.
fn estimator(
    mut group: veilgrad_mechanism::Group,
    average: Option<f64>,
    weighted: Option<f64>,
    average_over: Option<(String, f64)>,
) -> PyResult<veilgrad_mechanism::Group> {
    if let Some(bound) = weighted {
        group = group.weighted(WeightBound::new(bound).map_err(invalid)?);
    }
    match (average, average_over) {
        (Some(_), Some(_)) => Err(invalid("give average or average_over, not both")),
        (Some(count), None) => Ok(group.average(PublicCount::new(count).map_err(invalid)?)),
        (None, Some((weights, least))) => {
            Ok(group.average_over(weights, PublicCount::new(least).map_err(invalid)?))
        }
        (None, None) => Ok(group),
    }
}

#[pymethods]
impl Group {
    #[new]
    #[pyo3(signature = (name, vectors, clip, *, scales=None, average=None, weighted=None, noise=None, share=None, normalised=false, average_over=None))]
    #[allow(clippy::too_many_arguments)]
    fn new(
        name: &str,
        vectors: &Bound<'_, PyAny>,
        clip: f64,
        scales: Option<Vec<f64>>,
        average: Option<f64>,
        weighted: Option<f64>,
        noise: Option<f64>,
        share: Option<f64>,
        normalised: bool,
        average_over: Option<(String, f64)>,
    ) -> PyResult<PyClassInitializer<Self>> {
        let vectors: Vec<String> = match vectors.cast::<PyString>() {
            Ok(one) => vec![one.extract()?],
            Err(_) => vectors.extract()?,
        };
        let scales = scales.unwrap_or_else(|| vec![1.0; vectors.len()]);
        if scales.len() != vectors.len() {
            return Err(invalid("scales and vectors differ in number"));
        }
        let scales: Result<Vec<JointScale>, _> = scales.into_iter().map(JointScale::new).collect();
        let vectors = vectors.into_iter().zip(scales.map_err(invalid)?);
        let clip = ClipNorm::new(clip).map_err(invalid)?;
        let mut group = veilgrad_mechanism::Group::joint(name, vectors, clip);
        if normalised {
            group = group.normalised();
        }
        group = estimator(finished(group, None, noise, share)?, average, weighted, average_over)?;
        let group = Self { owner: Owner::this()?, inner: group, is_quantile: false };
        Ok(PyClassInitializer::from(Capability).add_subclass(group))
    }

    /// The same group of vectors, with these weights and this denominator instead of a plain sum: for whoever takes groups
    /// that say only what is clipped.
    #[pyo3(signature = (*, average=None, weighted=None, average_over=None))]
    fn estimating(
        &self,
        py: Python<'_>,
        average: Option<f64>,
        weighted: Option<f64>,
        average_over: Option<(String, f64)>,
    ) -> PyResult<Py<Self>> {
        if self.is_quantile || !self.inner()?.is_sum() {
            return Err(invalid(format!(
                "group {:?} must be a sum of vectors: its denominator is set for it",
                self.inner.name()
            )));
        }
        let group = estimator(self.inner.clone(), average, weighted, average_over)?;
        Self::wrap(py, group)
    }

    /// The sum of the records' weights, each clamped into [0, bound]: a private count.
    #[staticmethod]
    #[pyo3(signature = (name, bound, *, average=None, noise=None, share=None))]
    fn weight(
        py: Python<'_>,
        name: &str,
        bound: f64,
        average: Option<f64>,
        noise: Option<f64>,
        share: Option<f64>,
    ) -> PyResult<Py<Self>> {
        let bound = WeightBound::new(bound).map_err(invalid)?;
        let group = veilgrad_mechanism::Group::weight(name, bound);
        Self::wrap(py, finished(group, average, noise, share)?)
    }

    /// Moves the clip norm of another group to a quantile of its records' norms, never below ``floor``. ``expected`` is
    /// the public expected number of records in a sample; `Plan.adapt` moves the clip norm after each round.
    #[staticmethod]
    #[pyo3(signature = (name, group, target, expected, floor, *, learning_rate=0.2, noise=None, share=None))]
    #[allow(clippy::too_many_arguments)]
    fn quantile(
        py: Python<'_>,
        name: &str,
        group: &str,
        target: f64,
        expected: f64,
        floor: f64,
        learning_rate: f64,
        noise: Option<f64>,
        share: Option<f64>,
    ) -> PyResult<Py<Self>> {
        let expected = PublicCount::new(expected).map_err(invalid)?;
        let floor = ClipNorm::new(floor).map_err(invalid)?;
        let rate = LearningRate::constant(learning_rate).map_err(invalid)?;
        let quantile = Quantile::of_norm(group, target, expected, floor).map_err(invalid)?;
        let made = veilgrad_mechanism::Group::quantile(name, quantile.learning_rate(rate));
        let inner = finished(made, None, noise, share)?;
        object(py, Self { owner: Owner::this()?, inner, is_quantile: true })
    }

    /// Whether it moves the clip norm of another group (`Group.quantile`).
    #[getter]
    const fn is_quantile(&self) -> bool {
        self.is_quantile
    }

    /// Its name.
    #[getter]
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn __repr__(&self) -> String {
        format!("Group('{}')", self.inner.name())
    }
}
