"""Private federated averaging on Flower: `PrivateFedAvg` is a strategy for a `flwr.serverapp.ServerApp`.

A user's update of the model is a record. In each round, users are drawn at random, train on their own data and reply with
their model. The strategy clips every update, adds them exactly, adds noise once, and lets a server optimizer (`Sgd`, `Adam`,
`Yogi`, `Adagrad`) move the model by what was released. Every round is charged to a ledger before a client is asked.

Whatever a client replies counts at most as one update of the clip norm: see `docs/flower.md`.
"""

from veilgrad.flower._server import Adagrad, Adam, ServerOptimizer, Sgd, Yogi
from veilgrad.flower._strategy import Adaptive, PrivateFedAvg

__all__ = ["Adagrad", "Adam", "Adaptive", "PrivateFedAvg", "ServerOptimizer", "Sgd", "Yogi"]
