"""The apps in examples/flower: their servers and clients, on a federation in memory."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")
sys.path.insert(0, str(Path(__file__).parent))

from flower_grid import FakeGrid, Node  # noqa: E402
from flwr.app import Context, Message, RecordDict  # noqa: E402

import veilgrad  # noqa: E402
from veilgrad.flower._checkpoint import Checkpoint  # noqa: E402

USERS, ROUNDS = 4, 2


def context(node: dict[str, Any], run: dict[str, Any]) -> Context:
    return Context(run_id=1, node_id=1, node_config=node, state=RecordDict(), run_config=run)


@pytest.mark.parametrize("name", ["numpy", "torch"])
def test_the_clients_of_an_example_train_and_its_server_keeps_the_budget(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(name)
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "examples" / "flower" / name))
    client, server = (importlib.import_module(f"private_{name}.{part}") for part in ("client", "server"))
    seen: list[tuple[Message, Message]] = []

    def node(user: int) -> Node:
        def train(message: Message) -> list[Message]:
            reply = client.app(message, context({"user": user}, {}))
            seen.append((message, reply))
            return [reply]

        return train

    # Everybody is in every cohort.
    settings = {"run": str(tmp_path), "rounds": ROUNDS, "users": USERS, "rate": 1.0, "epsilon": 50.0, "delta": 1e-5, "deadline": 1.0}
    server.app(FakeGrid({user + 1: node(user) for user in range(USERS)}), context({}, settings))
    assert len(seen) == USERS * ROUNDS
    assert Checkpoint.read(tmp_path / "checkpoint.npz").released == ROUNDS
    assert 49.0 < veilgrad.claim(tmp_path / "ledger.db").epsilon <= 50.0
    for message, reply in seen[:USERS]:
        assert reply.content["metrics"]["num-examples"] == 200
        before, after = (server.accuracy(1, each.content["arrays"])["accuracy"] for each in (message, reply))
        # The data of every client, and the model that all begin with, follow from fixed seeds.
        assert after > before + 0.2, (before, after)
