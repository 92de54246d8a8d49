"""The server: an ordinary Flower app with a private strategy."""

from __future__ import annotations

from logging import INFO

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.supercore import log

from private_torch.model import network, points
from veilgrad.flower import PrivateFedAvg, Sgd

app = ServerApp()


def accuracy(_round: int, arrays: ArrayRecord) -> MetricRecord:
    """On public points that belong to no user."""
    inputs, labels = points(seed=0, count=2000)
    model = network()
    model.load_state_dict(arrays.to_torch_state_dict())
    return MetricRecord({"accuracy": float((model(inputs).argmax(1) == labels).float().mean())})


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
        server=Sgd(1.0),
        min_available=int(settings["users"]),
    )
    strategy.start(grid, ArrayRecord(network().state_dict()), timeout=float(settings["deadline"]), evaluate_fn=accuracy)
    log(INFO, "what may be claimed: %s", strategy.claim())
