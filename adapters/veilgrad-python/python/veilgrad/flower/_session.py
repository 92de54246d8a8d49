"""A federated run in progress: its ledger, its checkpoint, and the state that rounds change."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from logging import INFO, WARNING
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
from flwr.supercore import log

import veilgrad
from veilgrad import _native
from veilgrad._accounting import Adjacency
from veilgrad.flower._checkpoint import Checkpoint, lock
from veilgrad.flower._reply import Model
from veilgrad.flower._server import ServerOptimizer, State


@dataclass(frozen=True)
class Terms:
    """Where a run is charged and kept, and what it promises."""

    directory: Path | None
    ledger: Path | None
    dataset: str
    budget: tuple[float, float] | None
    unit: Literal["user", "node"]
    adjacency: Adjacency
    charge_ahead: int


@dataclass
class Session:
    """A run: opened, advanced round by round, closed."""

    terms: Terms
    rounds: int
    #: What every round is charged as. Clip norms move, and noise moves with them: the charge stays the same.
    charged: veilgrad.Plan
    plan: veilgrad.Plan
    sampler: veilgrad.Sampler
    model: Model
    server: ServerOptimizer
    optimizer: dict[str, State]
    settings: dict[str, Any]
    #: How many rounds were released, and how many will have been in the end.
    released: int = 0
    last: int = 0
    run: veilgrad.Run | None = None
    permits: Iterator[veilgrad.Permit] = field(default_factory=lambda: iter(()))
    directory_lock: IO[bytes] | None = None

    def open(self) -> None:
        """Begins the run, or continues after the last release that was saved."""
        try:
            self._open_run(self._restore())
            # So that a server that ends in the first round is continued like any other.
            self.save()
        except BaseException:
            self.close()
            raise

    def _restore(self) -> str | None:
        """Takes the state of the checkpoint, if there is one. Returns the head that the ledger must contain."""
        if self.terms.directory is None:
            return None
        self.directory_lock = lock(self.terms.directory)
        if not self._checkpoint.exists():
            return None
        found = Checkpoint.read(self._checkpoint)
        found.check(self.settings, self.terms.directory)
        self.released = found.released
        self.model = Model(found.model, self.model.kept)
        self.optimizer = found.optimizer
        self.plan.restore(*found.adapted)
        log(INFO, "continuing after round %s of %s", found.released, self.rounds)
        return found.head

    def _open_run(self, head: str | None) -> None:
        """Opens a run for the rounds that are left, as far as the budget covers them: a crash may have lost charged ones."""
        terms, left = self.terms, self.rounds - self.released
        if left and head is not None and terms.ledger is not None:
            covered = _native.affordable(terms.ledger, terms.dataset, self._declared(left))
            if covered < left:
                log(WARNING, "the budget of %r has room for %s of the %s rounds that are left", terms.dataset, covered, left)
            left = covered
        self.last = self.released + left
        if left == 0:
            return
        durable: dict[str, Any] = {}
        if terms.ledger is not None:
            epsilon, delta = terms.budget or (None, None)
            durable = {"ledger": terms.ledger, "dataset": terms.dataset, "epsilon": epsilon, "delta": delta, "head": head}
        self.run = veilgrad.Run(
            unit=terms.unit,
            adjacency=terms.adjacency,
            plan=self._declared(left),
            # Each update is computed from one reply and the public model, and added exactly.
            numerics="exact",
            **durable,
        )

    def _declared(self, rounds: int) -> dict[str, Any]:
        return self.charged.rounds(self.sampler, rounds)

    def permit(self) -> veilgrad.Permit:
        """The right to one round, which is charged."""
        permit = next(self.permits, None)
        if permit is not None:
            return permit
        if self.run is None or self.released >= self.last:
            raise veilgrad.Consumed("all planned rounds are used")
        count = min(self.terms.charge_ahead, self.last - self.released)
        self.permits = iter(self.run.reserve(self.charged, self.sampler, count))
        return next(self.permits)

    def advance(self, estimates: veilgrad.Estimates, released: int) -> None:
        """Moves clip norms and the model by what a round released, and saves them."""
        self.plan.adapt(estimates)
        moved = {}
        for name, values in self.model.trained.items():
            step = self.server.step(estimates[name].reshape(values.shape), self.optimizer[name])
            # An array also if it has no axis.
            moved[name] = np.asarray(values + step, values.dtype)
        self.model = Model(moved, self.model.kept)
        self.released = released
        self.save()

    @property
    def _checkpoint(self) -> Path:
        return (self.terms.directory or Path()) / "checkpoint.npz"

    def save(self) -> None:
        """Writes the checkpoint, if the run has a directory."""
        if self.terms.directory is None or self.run is None:
            return
        Checkpoint(
            self.released, self.settings, self.run.head, self.plan.adapted(), self.model.trained, self.optimizer
        ).write(self._checkpoint)

    def close(self) -> None:
        """Ends the run. What was charged stays charged."""
        if self.run is not None:
            self.run.close()
        if self.directory_lock is not None:
            self.directory_lock.close()
