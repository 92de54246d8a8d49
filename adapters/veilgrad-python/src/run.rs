//! Runs: the charge is stored first, then permits are granted.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pyo3::prelude::*;
use veilgrad_accounting::{Tightest, of_ledger};
use veilgrad_events::{
    Budget, Event, Folded, Head, LedgerError, LedgerKind, LedgerStore, MemoryLedger, Mode,
    RoundPermit, RunHeader, RunRounds,
};
use veilgrad_ledger::{DatasetLedger, Ledger, Options};

use crate::capability::{Capability, Owner, lock, object, take};
use crate::error::{Raise, consumed, invalid, refused};
use crate::interrupt::watched;
use crate::plan::Plan;
use crate::round::rounds_file;
use crate::sample::Sample;
use crate::sampler::Sampler;
use crate::unit;

/// Where a run charges.
pub(crate) enum Store {
    Memory(MemoryLedger),
    Durable(Box<DatasetLedger>),
}

impl LedgerStore for Store {
    fn append(&mut self, events: &[Event]) -> Result<(), LedgerError> {
        match self {
            Self::Memory(ledger) => ledger.append(events),
            Self::Durable(ledger) => ledger.append(events),
        }
    }

    fn visit(&self, visitor: &mut dyn FnMut(&Event)) -> Result<(), LedgerError> {
        match self {
            Self::Memory(ledger) => ledger.visit(visitor),
            Self::Durable(ledger) => ledger.visit(visitor),
        }
    }

    fn kind(&self) -> LedgerKind {
        match self {
            Self::Memory(ledger) => ledger.kind(),
            Self::Durable(ledger) => ledger.kind(),
        }
    }
}

/// Where a run is charged, and under which terms.
pub(crate) struct Terms {
    pub(crate) ledger: Option<PathBuf>,
    pub(crate) dataset: Option<String>,
    pub(crate) epsilon: Option<f64>,
    pub(crate) delta: Option<f64>,
    pub(crate) patience: f64,
    pub(crate) allow_network: bool,
    /// A head that the ledger must contain: that of the checkpoint that the run continues.
    pub(crate) head: Option<Head>,
}

impl Terms {
    /// The store of a run with this header, and the name of its dataset. A dataset that is new in its ledger gets the
    /// budget (epsilon, delta).
    pub(crate) fn open(&self, header: &RunHeader) -> PyResult<Store> {
        let Some(path) = &self.ledger else {
            if self.head.is_some() {
                return Err(invalid("a head needs a ledger"));
            }
            if self.epsilon.is_some() {
                return Err(invalid("a budget needs a ledger"));
            }
            return Ok(Store::Memory(MemoryLedger::new()));
        };
        let missing = || invalid("a run in a ledger needs the name of its dataset");
        let dataset = self.dataset.clone().ok_or_else(missing)?;
        let patience = Duration::try_from_secs_f64(self.patience).map_err(invalid)?;
        let options = Options { allow_network: self.allow_network, patience, witness: None };
        let ledger = match (self.epsilon, self.delta) {
            (Some(epsilon), Some(delta)) => {
                let budget = Budget {
                    dataset: dataset.clone(),
                    unit: header.unit,
                    adjacency: header.adjacency,
                    delta: unit::delta(delta)?,
                    epsilon: unit::epsilon(epsilon)?,
                    mode: Mode::Planned,
                    order: None,
                };
                Ledger::open_dataset(path, options, &budget).map_err(Raise::raise)?.0
            }
            (None, _) => Ledger::open(path, options).map_err(Raise::raise)?,
            (Some(_), None) => return Err(invalid("a budget needs a delta")),
        };
        if let Some(head) = &self.head {
            ledger.contains(head).map_err(Raise::raise)?;
        }
        let known = ledger.state().datasets().get(&dataset).map(|known| known.budget.delta.get());
        if let (Some(known), Some(asked)) = (known, self.delta)
            && known != asked
        {
            return Err(refused(format!("the budget of {dataset:?} is for delta {known:e}")));
        }
        let store = ledger.dataset(&dataset, Arc::new(Tightest)).map_err(Raise::raise)?;
        Ok(Store::Durable(Box::new(store)))
    }
}

/// A run in progress: the only source of permits.
///
/// Args:
///     ledger: The file of a durable ledger; without it the run is charged in memory and forgotten with the process.
///     dataset: The name of the dataset in the ledger.
///     unit: What a record is: ``"example"``, ``"user"``, ``"node"`` (of a federation) or ``"microbatch:N"``.
///     adjacency: ``"add-remove"``, ``"replace-one"`` or ``"zero-out"``.
///     plan: All rounds that the run may charge, in their order (see `Plan.rounds`). Then the tightest accountants apply,
///         and nothing else can be charged. Without it, rounds count as chosen from earlier outputs.
///     epsilon, delta: The budget with which the dataset begins, if it is new in its ledger.
///     head: What `head` returned when a checkpoint was written that this run continues. A ledger that does not contain it
///         was rolled back or is another one, and is refused.
///     numerics: ``"exact"`` if every vector that is added was computed from its record alone, also in floating point;
///         ``"unverified"`` if nobody knows.
///
/// >>> plan = Plan({"x": 2}, [Group("x", "x", 1.0)], 5.0)
/// >>> sampler = Sampler.all()
/// >>> with Run(plan=plan.rounds(sampler, 3), numerics="exact") as run:
/// ...     for permit in run.reserve(plan, sampler, 3):
/// ...         with permit.draw(sampler, records=100) as sample:
/// ...             total = sample.begin(plan)
/// ...             for record in sample.ids():
/// ...                 total.add([[0.6, 0.8]])
/// ...             estimates = total.release()
/// ...     claim = run.claim(delta=1e-5)
/// >>> abs(estimates["x"][0] - 60) < 50 and 0 < claim.epsilon < 3
/// True
#[pyclass(frozen, extends = Capability, module = "veilgrad")]
pub(crate) struct Run {
    owner: Owner,
    dataset: Option<String>,
    inner: Mutex<Option<veilgrad_events::Run<Store>>>,
}

#[pymethods]
impl Run {
    #[new]
    #[pyo3(signature = (*, ledger=None, dataset=None, unit="example", adjacency="add-remove", plan=None, epsilon=None, delta=None, numerics="unverified", patience=60.0, allow_network=false, head=None))]
    #[allow(clippy::too_many_arguments)]
    fn new(
        py: Python<'_>,
        ledger: Option<PathBuf>,
        dataset: Option<String>,
        unit: &str,
        adjacency: &str,
        plan: Option<&Bound<'_, PyAny>>,
        epsilon: Option<f64>,
        delta: Option<f64>,
        numerics: &str,
        patience: f64,
        allow_network: bool,
        head: Option<&str>,
    ) -> PyResult<PyClassInitializer<Self>> {
        let mut header = RunHeader::new(unit::record_unit(unit)?, unit::adjacency(adjacency)?);
        header.numerics = unit::numerics(numerics)?;
        if let Some(plan) = plan {
            header = header.with_plan(rounds_file(plan)?.runs.concat());
        }
        let name = dataset.clone();
        let head = head.map(str::parse).transpose().map_err(invalid)?;
        let terms = Terms { ledger, dataset, epsilon, delta, patience, allow_network, head };
        // A busy ledger is waited for. After Ctrl-C the wait goes on without anybody, and must not open a run.
        let abandoned = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&abandoned);
        let open = move || -> PyResult<_> {
            let store = terms.open(&header)?;
            if seen.load(Ordering::Relaxed) {
                return Err(refused("interrupted"));
            }
            veilgrad_events::Run::open(store, header).map_err(Raise::raise)
        };
        let abandon = || {
            abandoned.store(true, Ordering::Relaxed);
            false
        };
        let run = watched(py, open, |_| Ok(()), abandon)??;
        let owner = Owner::this()?;
        let run = Self { owner, dataset: name, inner: Mutex::new(Some(run)) };
        Ok(PyClassInitializer::from(Capability).add_subclass(run))
    }

    /// Charges rounds and returns that many permits, to be used in order. Durable before any data is touched; a permit
    /// that is not used stays charged.
    fn reserve(
        &self,
        py: Python<'_>,
        plan: &Bound<'_, Plan>,
        sampler: &Bound<'_, Sampler>,
        rounds: u64,
    ) -> PyResult<Py<Permits>> {
        self.owner.check()?;
        let charge = plan.get().event(sampler.get(), rounds)?;
        let mut run = lock(&self.inner, "run")?;
        let run = run.as_mut().ok_or_else(|| consumed("run"))?;
        let permits = py.detach(|| run.reserve(&charge.round, rounds)).map_err(Raise::raise)?;
        object(py, Permits { owner: self.owner, inner: Mutex::new(permits) })
    }

    /// What may be claimed about everything that was charged. ``delta`` is that of the budget, or must be given for a run
    /// in memory.
    #[pyo3(signature = (delta=None))]
    fn claim(&self, py: Python<'_>, delta: Option<f64>) -> PyResult<Claim> {
        self.owner.check()?;
        let run = lock(&self.inner, "run")?;
        let run = run.as_ref().ok_or_else(|| consumed("run"))?;
        match run.store() {
            Store::Memory(ledger) => {
                let missing = || invalid("a run in memory has no budget: give delta");
                let delta = unit::delta(delta.ok_or_else(missing)?)?;
                py.detach(|| of_ledger(ledger, delta)).map(Claim::new).map_err(Raise::raise)
            }
            Store::Durable(store) => {
                let dataset = self.dataset.as_deref().unwrap_or_default();
                claim_of(store.ledger(), dataset, delta)
            }
        }
    }

    /// The last row of the ledger, for checkpoints and to publish elsewhere; ``None`` for a run in memory.
    #[getter]
    fn head(&self) -> PyResult<Option<String>> {
        self.owner.check()?;
        let run = lock(&self.inner, "run")?;
        Ok(match run.as_ref().ok_or_else(|| consumed("run"))?.store() {
            Store::Memory(_) => None,
            Store::Durable(store) => Some(store.ledger().head().to_string()),
        })
    }

    /// Closes the run; its charges stay.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.owner.check()?;
        let run = take(&self.inner, "run")?;
        py.detach(|| run.close()).map(drop).map_err(Raise::raise)
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        _kind: &Bound<'_, PyAny>,
        _value: &Bound<'_, PyAny>,
        _trace: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        // A forked child that leaves the block must neither close its parent's run nor hide what made it leave.
        if self.owner.check().is_err() || lock(&self.inner, "run")?.is_none() {
            return Ok(());
        }
        self.close(py)
    }

    fn __repr__(&self) -> String {
        self.dataset.as_ref().map_or("Run()".to_owned(), |name| format!("Run({name:?})"))
    }
}

/// Permits of a charged block, one at a time.
#[pyclass(frozen, extends = Capability, module = "veilgrad")]
pub(crate) struct Permits {
    owner: Owner,
    inner: Mutex<veilgrad_events::Permits>,
}

#[pymethods]
impl Permits {
    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Py<Permit>>> {
        self.owner.check()?;
        let Some(permit) = lock(&self.inner, "permits")?.next() else { return Ok(None) };
        let (owner, number) = (self.owner, permit.number());
        object(py, Permit { owner, number, slot: Mutex::new(Some(permit)) }).map(Some)
    }
}

/// The right to run one charged round: to draw one sample and release its sums once.
#[pyclass(frozen, extends = Capability, module = "veilgrad")]
pub(crate) struct Permit {
    owner: Owner,
    number: u64,
    slot: Mutex<Option<RoundPermit>>,
}

#[pymethods]
impl Permit {
    /// Draws the sample of the round from records 0 to ``records - 1``. Uses up the permit.
    fn draw(
        &self,
        py: Python<'_>,
        sampler: &Bound<'_, Sampler>,
        records: u64,
    ) -> PyResult<Py<Sample>> {
        self.owner.check()?;
        let mut sampler = sampler.get().inner()?;
        let permit = take(&self.slot, "permit")?;
        let sampler = &mut *sampler;
        let sample = py.detach(move || veilgrad_mechanism::Sample::draw(permit, sampler, records));
        Sample::wrap(py, sample.map_err(Raise::raise)?)
    }

    /// The number of the round within its run, from 0 on.
    #[getter]
    const fn number(&self) -> u64 {
        self.number
    }

    fn __repr__(&self) -> String {
        format!("Permit({})", self.number)
    }
}

/// An (epsilon, delta) that may be claimed, and why.
#[pyclass(frozen, get_all, module = "veilgrad")]
pub(crate) struct Claim {
    epsilon: f64,
    delta: f64,
    spent: f64,
    accountant: &'static str,
    why: String,
    conditions: Vec<&'static str>,
}

impl Claim {
    pub(crate) fn new(claim: veilgrad_accounting::claim::Claim) -> Self {
        let (accountant, why) = (claim.accountant(), claim.why());
        let veilgrad_accounting::claim::Claim { epsilon, delta, spent, conditions, .. } = claim;
        Self { epsilon, delta, spent, accountant, why, conditions }
    }
}

#[pymethods]
impl Claim {
    fn __repr__(&self) -> String {
        let epsilon = veilgrad_accounting::display::up(self.epsilon);
        format!("Claim(epsilon={epsilon}, delta={:e})", self.delta)
    }
}

pub(crate) fn claim_of(ledger: &Ledger, dataset: &str, delta: Option<f64>) -> PyResult<Claim> {
    let dataset = ledger.state().find(dataset).map_err(refused)?;
    let known = dataset.budget.delta.get();
    if delta.is_some_and(|delta| delta != known) {
        return Err(refused(format!("the budget is for delta {known:e}")));
    }
    veilgrad_cli::claim(dataset).map(Claim::new).map_err(Raise::raise)
}

/// How many of these planned rounds, of one kind, the budget of a dataset still covers: all of them if the ledger does not
/// have the dataset yet.
#[pyfunction]
pub(crate) fn affordable(
    ledger: PathBuf,
    dataset: &str,
    rounds: &Bound<'_, PyAny>,
) -> PyResult<u64> {
    let all = rounds_file(rounds)?.runs.concat();
    let [rounds] = all.as_slice() else {
        return Err(invalid("the rounds must be of one kind"));
    };
    let one = Folded::try_from(rounds).map_err(invalid)?;
    let ledger = Ledger::read(&ledger, Options::default()).map_err(Raise::raise)?;
    let Some(dataset) = ledger.state().datasets().get(dataset) else { return Ok(rounds.count) };
    let fits = |count: u64| {
        let rounds = [Folded { count, ..one }];
        let plan = RunRounds { planned: true, rounds: &rounds, tuning: None };
        // What running plans hold may become free, so it makes no run shorter: opening the run says if it must wait.
        dataset.covers(&Tightest, &[plan], &BTreeSet::new()).is_ok()
    };
    if fits(rounds.count) {
        return Ok(rounds.count);
    }
    let (mut fitting, mut too_many) = (0, rounds.count);
    while too_many - fitting > 1 {
        let middle = fitting + (too_many - fitting) / 2;
        if fits(middle) { fitting = middle } else { too_many = middle }
    }
    Ok(fitting)
}

/// What may be claimed about a dataset of a durable ledger. The dataset need not be named if there is one.
#[pyfunction]
#[pyo3(signature = (ledger, dataset=None))]
pub(crate) fn claim(ledger: PathBuf, dataset: Option<&str>) -> PyResult<Claim> {
    let ledger = Ledger::read(&ledger, Options::default()).map_err(Raise::raise)?;
    let datasets = ledger.state().datasets();
    let name = match (dataset, datasets.keys().next()) {
        (Some(name), _) => name.to_owned(),
        (None, Some(only)) if datasets.len() == 1 => only.clone(),
        (None, _) => {
            let names: Vec<&str> = datasets.keys().map(String::as_str).collect();
            return Err(invalid(format!("name one of the datasets: {}", names.join(", "))));
        }
    };
    claim_of(&ledger, &name, None)
}
