//! The public parameters of a round.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use veilgrad_events::{NoiseMultiplier, Rounds};
use veilgrad_mechanism::{Adapted, Allocation, RoundPlan, Structure};

use crate::capability::{Capability, Owner, lock};
use crate::error::{Raise, invalid};
use crate::estimates::Estimates;
use crate::group::Group;
use crate::round;
use crate::sampler::Sampler;
use crate::vectors::{Shapes, shapes};

/// The public parameters of a round: what a record looks like, how it is clipped, how much noise there is.
///
/// Args:
///     structure: The name and the shape (an int or a tuple) of every vector of a record.
///     groups: Which vectors are clipped and noised together.
///     noise_multiplier: Of all groups together; ``None`` if every group states its noise.
///     allocation: ``"proportional"`` (the same privacy loss for every group), ``"dimension"`` (in proportion to
///         dimension) or ``"explicit"``.
///
/// >>> plan = Plan({"weight": (3, 2), "bias": 1}, [Group("all", "*", 1.0, average=256)], 1.1)
/// >>> plan.noise_multiplier >= 1.1
/// True
/// >>> plan.groups
/// ['all']
#[pyclass(frozen, extends = Capability, module = "veilgrad")]
pub(crate) struct Plan {
    owner: Owner,
    shapes: Arc<Shapes>,
    inner: Mutex<RoundPlan>,
}

impl Plan {
    /// The plan as it is now.
    pub(crate) fn now(&self) -> PyResult<RoundPlan> {
        self.owner.check()?;
        Ok(lock(&self.inner, "plan")?.clone())
    }

    pub(crate) fn shapes(&self) -> Arc<Shapes> {
        Arc::clone(&self.shapes)
    }

    /// The rounds as a ledger charges them.
    pub(crate) fn event(&self, sampler: &Sampler, count: u64) -> PyResult<Rounds> {
        let round = self.now()?.round(&*sampler.inner()?).map_err(Raise::raise)?;
        Ok(Rounds { count, round })
    }
}

#[pymethods]
impl Plan {
    #[new]
    #[pyo3(signature = (structure, groups, noise_multiplier, *, allocation="proportional"))]
    fn new(
        structure: &Bound<'_, PyAny>,
        groups: &Bound<'_, PyAny>,
        noise_multiplier: Option<f64>,
        allocation: &str,
    ) -> PyResult<PyClassInitializer<Self>> {
        let shapes = shapes(structure)?;
        let vectors = shapes.iter().map(|(name, shape)| (name.clone(), shape.iter().product()));
        let structure = Structure::new(vectors).map_err(invalid)?;
        let mut members = Vec::new();
        for group in groups.try_iter()? {
            let group = group?;
            members.push(group.cast::<Group>().map_err(PyErr::from)?.get().inner()?.clone());
        }
        let noise = || {
            let missing = || invalid("noise_multiplier is missing");
            NoiseMultiplier::new(noise_multiplier.ok_or_else(missing)?).map_err(invalid)
        };
        let allocation = match allocation {
            "proportional" => Allocation::Proportional(noise()?),
            "dimension" => Allocation::DimensionAdjusted(noise()?),
            "explicit" if noise_multiplier.is_none() => Allocation::Explicit,
            "explicit" => return Err(invalid("an explicit allocation has no noise_multiplier")),
            other => {
                let all = "'proportional', 'dimension', 'explicit'";
                return Err(invalid(format!("allocation {other:?} is none of {all}")));
            }
        };
        let plan = RoundPlan::new(structure, members, allocation).map_err(Raise::raise)?;
        let owner = Owner::this()?;
        let (shapes, inner) = (Arc::new(shapes), Mutex::new(plan));
        Ok(PyClassInitializer::from(Capability).add_subclass(Self { owner, shapes, inner }))
    }

    /// The noise multiplier of the one Gaussian that all groups fold to, rounded down.
    #[getter]
    fn noise_multiplier(&self) -> PyResult<f64> {
        self.now()?.noise_multiplier().map(NoiseMultiplier::get).map_err(Raise::raise)
    }

    /// The names of the groups, in order.
    #[getter]
    fn groups(&self) -> PyResult<Vec<String>> {
        Ok(self.now()?.group_names().map(str::to_owned).collect())
    }

    /// The names and shapes of the vectors.
    #[getter]
    fn structure<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let structure = PyDict::new(py);
        for (name, shape) in self.shapes.iter() {
            structure.set_item(name, PyTuple::new(py, shape)?)?;
        }
        Ok(structure)
    }

    /// The clip norm now in force for a group of vectors, or the estimate of a quantile group.
    fn clip_norm(&self, group: &str) -> PyResult<f64> {
        let plan = self.now()?;
        let clip = plan.clip_norm(group).map(|clip| clip.get()).or_else(|| plan.quantile(group));
        clip.ok_or_else(|| invalid(format!("there is no group {group:?} with a clip norm")))
    }

    /// So many rounds of this plan with a sampler, as the ledger charges them: for accounting, and to declare the plan of
    /// a run.
    #[pyo3(signature = (sampler, rounds=1))]
    fn rounds<'py>(
        &self,
        py: Python<'py>,
        sampler: &Bound<'py, Sampler>,
        rounds: u64,
    ) -> PyResult<Bound<'py, PyAny>> {
        round::to_python(py, &self.event(sampler.get(), rounds)?)
    }

    /// Moves clip norms and quantiles by what a round released. Post-processing: no charge.
    fn adapt(&self, estimates: &Bound<'_, Estimates>) -> PyResult<()> {
        self.owner.check()?;
        let mut plan = lock(&self.inner, "plan")?;
        plan.adapt(estimates.get().released()?).map_err(Raise::raise)
    }

    /// What rounds changed in the plan: how many it was adapted to, and its clip norms and quantiles by the name of their
    /// quantile group. For checkpoints; all of it is released.
    fn adapted(&self) -> PyResult<(u64, BTreeMap<String, f64>)> {
        let adapted = self.now()?.adapted();
        Ok((adapted.rounds, adapted.estimates))
    }

    /// Goes back to what `adapted` returned. The ratio of noise to clip norm stays, so privacy does not depend on it.
    fn restore(&self, rounds: u64, estimates: BTreeMap<String, f64>) -> PyResult<()> {
        self.owner.check()?;
        let adapted = Adapted { rounds, estimates };
        lock(&self.inner, "plan")?.restore(&adapted).map_err(Raise::raise)
    }

    fn __repr__(&self) -> String {
        let names: Vec<&str> = self.shapes.iter().map(|(name, _)| name.as_str()).collect();
        format!("Plan({})", names.join(", "))
    }
}
