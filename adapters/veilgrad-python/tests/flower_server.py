"""A server on a federation in memory that kills itself at a chosen moment of round 3: flower_server.py DIRECTORY MOMENT."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from flower_grid import FakeGrid, answer, trained
from flwr.app import Array, ArrayRecord, Message

from veilgrad.flower import Adam, Adaptive, PrivateFedAvg
from veilgrad.flower._checkpoint import Checkpoint
from veilgrad.flower._session import Session

ROUNDS, USERS, DELTA = 6, 40, 1e-6
FATAL_ROUND = 3
#: In the directory of the run: whom round 3 invited.
COHORT = "cohort.json"


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def strategy(directory: Path, **changes: Any) -> PrivateFedAvg:
    settings: dict[str, Any] = {
        "run": directory,
        "rounds": ROUNDS,
        "expected_users": USERS,
        "sample_rate": 0.5,
        "clip": 1.0,
        "target": (8.0, DELTA),
        "adaptive": Adaptive(),
        "server": Adam(0.1),
        **changes,
    }
    return PrivateFedAvg(**settings)


def initial() -> ArrayRecord:
    return ArrayRecord({"w": Array(np.zeros(50, np.float32))})


class Federation(FakeGrid):
    """40 users. Notes which rounds had a cohort, and in a directory, if there is one, the cohort of round 3."""

    def __init__(self, moment: str = "never", directory: Path | None = None) -> None:
        super().__init__({number: self.train for number in range(1, USERS + 1)})
        self.moment, self.directory = moment, directory
        self.rounds: list[int] = []

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        messages = list(messages)
        if self.directory is not None and len(self.invited) == FATAL_ROUND - 1:
            (self.directory / COHORT).write_text(json.dumps([message.metadata.dst_node_id for message in messages]))
        return super().push_messages(messages)

    def train(self, message: Message) -> list[Message]:
        number = int(message.content["config"]["server-round"])
        if number == FATAL_ROUND and self.moment == "after the charge":
            die()
        if number not in self.rounds:
            self.rounds.append(number)
        return [answer(message, {"w": trained(message)["w"] + np.float32(0.05)})]


def kill_at(moment: str) -> None:
    """Replaces the step after the moment by death."""
    advance, replace = Session.advance, os.replace

    def dying_advance(session: Session, estimates: Any, released: int) -> None:
        if released == FATAL_ROUND and moment == "after the release":
            die()
        advance(session, estimates, released)
        if released == FATAL_ROUND and moment == "after the save":
            die()

    def dying_replace(source: Any, target: Any) -> None:
        saved = Path(target)
        if moment == "during the save" and saved.exists() and Checkpoint.read(saved).released == FATAL_ROUND - 1:
            die()
        replace(source, target)

    Session.advance = dying_advance  # type: ignore[method-assign]
    os.replace = dying_replace


if __name__ == "__main__":
    kill_at(sys.argv[2])
    strategy(Path(sys.argv[1])).start(Federation(sys.argv[2], Path(sys.argv[1])), initial(), timeout=1)
