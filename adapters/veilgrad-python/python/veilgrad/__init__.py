"""Differential privacy for iterative training.

- `epsilon`, `delta`, `calibrate`, `profile`, `tradeoff`, `spent`: certified accounting of rounds.
- `Group`, `Plan`, `Sampler`, `Run`: a training loop of your own, with exact sums and a durable ledger.
- `train`: the main job, from a configuration to a model, a ledger and a report.
- `veilgrad.sklearn`: `VeilgradClassifier` and `VeilgradRegressor`.
- `veilgrad.plot`: curves, if matplotlib is there.

>>> import veilgrad
>>> rounds = veilgrad.Round.poisson(rate=0.01, noise_multiplier=1.1, rounds=1000)
>>> round(veilgrad.epsilon(rounds, delta=1e-5).epsilon, 3)
1.515
"""

import os as _os

from veilgrad import _native
from veilgrad._accounting import (
    Calibration,
    Guarantee,
    Round,
    advantage,
    calibrate,
    delta,
    epsilon,
    profile,
    spent,
    tradeoff,
)
from veilgrad._native import (
    BudgetExhausted,
    Capability,
    Claim,
    Consumed,
    Estimates,
    Group,
    Metric,
    OtherProcess,
    Permit,
    Permits,
    Plan,
    Run,
    Sample,
    Sampler,
    Sum,
    Unsupported,
    VeilgradError,
    __version__,
    claim,
)
from veilgrad._train import Result, train

# Forked children are recognised without asking the system for every record.
if hasattr(_os, "register_at_fork"):
    _os.register_at_fork(after_in_child=_native.forked)

__all__ = [
    "BudgetExhausted",
    "Calibration",
    "Capability",
    "Claim",
    "Consumed",
    "Estimates",
    "Group",
    "Guarantee",
    "Metric",
    "OtherProcess",
    "Permit",
    "Permits",
    "Plan",
    "Result",
    "Round",
    "Run",
    "Sample",
    "Sampler",
    "Sum",
    "Unsupported",
    "VeilgradError",
    "__version__",
    "advantage",
    "calibrate",
    "claim",
    "delta",
    "epsilon",
    "profile",
    "spent",
    "tradeoff",
    "train",
]
