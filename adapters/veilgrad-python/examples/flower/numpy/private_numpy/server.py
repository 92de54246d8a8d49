"""The server: an ordinary Flower app with a private strategy."""

from __future__ import annotations

from logging import INFO

import numpy as np
from flwr.app import Array, ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.supercore import log

from private_numpy.model import initial, points, probabilities
from veilgrad.flower import PrivateFedAvg, Sgd

app = ServerApp()


def accuracy(_round: int, arrays: ArrayRecord) -> MetricRecord:
    """On public points that belong to no user."""
    inputs, labels = points(seed=0, count=2000)
    model = {name: array.numpy() for name, array in arrays.items()}
    return MetricRecord({"accuracy": float(np.mean((probabilities(model, inputs) > 0.5) == labels))})


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Runs all rounds that are left."""
    settings = context.run_config
    strategy = PrivateFedAvg(
        run=str(settings["run"]) or None,
        rounds=int(settings["rounds"]),
        expected_users=int(settings["users"]),
        sample_rate=float(settings["rate"]),
        clip=1.0,
        target=(float(settings["epsilon"]), float(settings["delta"])),
        adaptive=True,
        server=Sgd(1.0, momentum=0.5),
        min_available=int(settings["users"]),
    )
    arrays = ArrayRecord({name: Array(values) for name, values in initial().items()})
    strategy.start(grid, arrays, timeout=float(settings["deadline"]), evaluate_fn=accuracy)
    log(INFO, "what may be claimed: %s", strategy.claim())
