"""The server of the test: it writes what it ended with."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

from veilgrad.flower import Adaptive, PrivateFedAvg, Sgd

app = ServerApp()
DELTA = 1e-5


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Runs all rounds."""
    directory = Path(str(context.run_config["run"]))
    strategy = PrivateFedAvg(
        run=directory,
        rounds=int(context.run_config["rounds"]),
        expected_users=4,
        sample_rate=1.0,
        clip=1.0,
        # So little noise that the model shows who has contributed.
        noise_multiplier=1e-3,
        budget=(1e12, DELTA),
        adaptive=Adaptive(),
        weight_bound=10,
        expected_weight=5,
        denominator="private-count",
        server=Sgd(1.0, momentum=0.9),
        min_available=4,
    )
    initial = ArrayRecord({"w": Array(np.zeros((20, 30), np.float32)), "b": Array(np.zeros(30, np.float32))})
    result = strategy.start(grid, initial, timeout=float(context.run_config["deadline"]))
    values = np.concatenate([array.numpy().ravel() for array in result.arrays.values()])
    found = {
        "finite": bool(np.isfinite(values).all()),
        "norm": float(np.linalg.norm(values)),
        "bias": result.arrays["b"].numpy().tolist(),
        "planned": strategy.planned_epsilon(DELTA),
        "claimed": strategy.claim().epsilon,
        "metrics": {str(number): dict(metrics) for number, metrics in result.train_metrics_clientapp.items()},
    }
    (directory / "part.json").write_text(json.dumps(found))
    (directory / "part.json").replace(directory / "found.json")
