"""`PrivateFedAvg`: federated averaging with user-level differential privacy, on Flower's message API."""

from __future__ import annotations

import math
import os
import secrets
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from logging import INFO, WARNING
from pathlib import Path
from typing import Any, Literal

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from flwr.supercore import log

import veilgrad
from veilgrad._accounting import Adjacency
from veilgrad.flower._mail import send_and_receive
from veilgrad.flower._plan import Adaptive, Cohort, make_plan, mean_weight
from veilgrad.flower._reply import Model, Reader
from veilgrad.flower._server import ServerOptimizer, Sgd
from veilgrad.flower._session import Session, Terms

__all__ = ["Adaptive", "PrivateFedAvg"]


@dataclass
class _Round:
    """A charged round: its sample, and the invitations by the node that they were sent to."""

    number: int
    sample: veilgrad.Sample
    invited: dict[int, Message]


class PrivateFedAvg(Strategy):
    """Federated averaging whose every released number is differentially private for a user.

    A round draws a cohort of users with the system's random numbers and asks each of them once. Replies are clipped, added
    exactly and released with noise; the server optimizer sees nothing else. A reply that is missing, late, malformed, not
    finite or not asked for counts as zero, and a user who replies twice counts once.

    Args:
        run: The directory of the run: its checkpoint and, unless `ledger` names another file, its ledger. A server that
            is started again with the same directory continues where the last release was saved. Without it, the run is
            charged in memory and forgotten with the process.
        rounds: How many rounds there will be. The ledger holds the budget for all of them from the start.
        expected_users: The declared, public number of users. With a fixed cohort it must be the exact number.
        sample_rate: Each user is in a cohort with this probability; of a fixed cohort, the part of all users.
        clip: The largest norm that an update contributes, all arrays together.
        noise_multiplier: Standard deviation of the noise over the clip norm; or
        target: (epsilon, delta), from which the noise multiplier follows.
        groups: `None` clips all arrays together, `"per-layer"` each array to an equal part of `clip`. A list of
            `veilgrad.Group` says which arrays are clipped together, by name or glob, and to which norms.
        allocation: How noise is shared among groups, as in `veilgrad.Plan`.
        weight_bound: Weights each user by the number that it reports as `weight_key`, at most this one. The weight is a
            part of the bound, so it is in [0, 1]. Without it, all users weigh the same.
        expected_weight: The declared, public mean of the numbers that users report, at most `weight_bound`, which needs it
            unless the denominator or `least_count` is a number.
        denominator: `"expected"` divides the sum by the expected sum of weights: without weights, by the expected size of a
            cohort. `"private-count"` divides by a private sum of the weights of the users who replied, at least
            `least_count` (half the expected sum by default). A number is a public denominator of your own. Both numbers
            count a user who weighs `weight_bound` as 1.
        adaptive: Moves the clip norm to a quantile of the updates' norms; `True` to the median.
        metrics: Numbers that clients report, by name, and that are released as private averages. No other leaves.
        server: Moves the model by a released average.
        cohort: `"poisson"`, or `"fixed"`, which needs replace-one adjacency.
        user_of: The user whom a node belongs to, from a `flwr.proto.node_pb2.NodeInfo` (`node_id`, `public_key`, ...), or
            `None` for a node that must not be asked. Without it, the ledger's statement is about nodes, not users.
        min_available: How many users must be connected before a round begins.
        adjacency: `"add-remove"`, `"replace-one"` or `"zero-out"`.
        ledger, dataset: The file of the ledger and the name of the users' data in it.
        budget: (epsilon, delta) with which the data begins if it is new in the ledger; `target` if that is given.
        charge_ahead: How many rounds are charged at once. A crash loses those that were charged and not released.
    """

    def __init__(
        self,
        *,
        run: str | os.PathLike[str] | None = None,
        rounds: int,
        expected_users: int,
        sample_rate: float,
        clip: float | None = None,
        noise_multiplier: float | None = None,
        target: tuple[float, float] | None = None,
        groups: Literal["per-layer"] | Sequence[veilgrad.Group] | None = None,
        allocation: Literal["proportional", "dimension"] = "proportional",
        weight_bound: float | None = None,
        weight_key: str = "num-examples",
        expected_weight: float | None = None,
        denominator: Literal["expected", "private-count"] | float = "expected",
        least_count: float | None = None,
        adaptive: Adaptive | bool = False,
        metrics: Sequence[veilgrad.Metric] = (),
        server: ServerOptimizer | None = None,
        cohort: Literal["poisson", "fixed"] = "poisson",
        user_of: Callable[[Any], Hashable | None] | None = None,
        min_available: int = 1,
        adjacency: Adjacency = "add-remove",
        ledger: str | os.PathLike[str] | None = None,
        dataset: str = "federation",
        budget: tuple[float, float] | None = None,
        charge_ahead: int = 1,
    ) -> None:
        if rounds < 1 or charge_ahead < 1 or min_available < 1:
            raise ValueError("rounds, charge_ahead and min_available are at least 1")
        self.cohort = Cohort(cohort, expected_users, sample_rate)
        if cohort == "fixed" and adjacency == "add-remove":
            raise veilgrad.Unsupported(
                "a fixed cohort has no guarantee under add-remove adjacency: with one user more, another one is drawn less "
                "often, and the sum moves by twice the clip norm. Use cohort='poisson' or adjacency='replace-one'"
            )
        if (noise_multiplier is None) == (target is None):
            raise ValueError("give noise_multiplier or target=(epsilon, delta)")
        self.rounds = rounds
        self.noise_multiplier = self._calibrated(*target, adjacency) if target is not None else float(noise_multiplier or 0)
        self.server = server or Sgd()
        self.min_available = min_available
        self.user_of = user_of
        self.weight_bound, self.weight_key, self.expected_weight = weight_bound, weight_key, expected_weight
        self.metrics = tuple(metrics)
        chosen = Adaptive() if adaptive is True else adaptive or None
        self._plan_settings: dict[str, Any] = {
            "clip": clip,
            "groups": groups,
            "allocation": allocation,
            "denominator": denominator,
            "least_count": least_count,
            "weighted": weight_bound is not None,
            "mean_weight": mean_weight(weight_bound, expected_weight, denominator, least_count),
            "adaptive": chosen,
        }
        directory = None if run is None else Path(run).absolute()
        inside = None if directory is None else directory / "ledger.db"
        self.terms = Terms(
            directory=directory,
            ledger=inside if ledger is None else Path(ledger).absolute(),
            dataset=dataset,
            budget=budget or target,
            unit="node" if user_of is None else "user",
            adjacency=adjacency,
            charge_ahead=charge_ahead,
        )
        self._known: dict[Hashable, None] = {}
        self._timeout = 3600.0
        self._session: Session | None = None
        self._current: _Round | None = None
        self._last_claim: veilgrad.Claim | None = None

    def planned_epsilon(self, delta: float) -> float:
        """The epsilon of all rounds, before any of them runs."""
        rounds = self.cohort.rounds(self.noise_multiplier, self.rounds)
        return veilgrad.epsilon(rounds, delta, adjacency=self.terms.adjacency).epsilon

    def claim(self, delta: float | None = None) -> veilgrad.Claim:
        """What may be claimed about everything that was charged. A run in memory needs a delta, while it runs."""
        run = None if self._session is None else self._session.run
        if run is not None:
            return run.claim(delta)
        if self.terms.ledger is not None and self.terms.ledger.exists():
            return veilgrad.claim(self.terms.ledger, self.terms.dataset)
        if self._last_claim is None:
            raise veilgrad.VeilgradError("nothing was charged yet")
        return self._last_claim

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int | None = None,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Runs all rounds that are left, and returns the model.

        `timeout` is the deadline for the replies of a round, in seconds. `evaluate_fn` is called on the model before the
        first round and after each: evaluate on public data. Clients are not asked to evaluate, because what they would
        report is not private; use `metrics`.
        """
        if num_rounds is not None and num_rounds != self.rounds:
            raise ValueError(f"{self.rounds} rounds are planned, and budget is held for them: num_rounds cannot be another")
        self._timeout = timeout
        result = Result()
        session = self._open(initial_arrays)
        try:
            self.summary()
            arrays = session.model.record(self._order)
            result.arrays = arrays
            self._evaluate(session.released, arrays, evaluate_fn, result)
            while session.released < session.last:
                number = session.released + 1
                log(INFO, "[ROUND %s/%s]", number, self.rounds)
                messages = self.configure_train(number, arrays, train_config or ConfigRecord(), grid)
                replies = send_and_receive(grid, list(messages), timeout)
                new, metrics = self.aggregate_train(number, replies)
                arrays = result.arrays = new
                if len(metrics):
                    log(INFO, "private estimates: %s", dict(metrics))
                    result.train_metrics_clientapp[number] = metrics
                self._evaluate(number, arrays, evaluate_fn, result)
        finally:
            self._close()
        return result

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Iterable[Message]:
        """Charges the round, draws its cohort, and makes one invitation for each of its users who is connected."""
        session = self._running()
        users = self._wait_for_users(grid)
        sample = session.permit().draw(session.sampler, self._records(users))
        names = list(users)
        # A fixed cohort is drawn from all declared users; those who were never seen are not there to be asked.
        drawn = [names[record] for record in sample.ids() if record < len(names)]
        session.model = Model.of(arrays)
        content = RecordDict({"arrays": arrays, "config": ConfigRecord({**config, "server-round": server_round})})
        self._current = _Round(server_round, sample, {})
        for user in drawn:
            if users[user]:
                node = secrets.choice(users[user])
                self._current.invited[node] = Message(
                    content, dst_node_id=node, message_type=MessageType.TRAIN, ttl=self._timeout, group_id=str(server_round)
                )
        return list(self._current.invited.values())

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> tuple[ArrayRecord, MetricRecord]:
        """Adds what each invited user replied, once; releases the sum with noise, and moves the model by it."""
        session = self._running()
        current, self._current = self._current, None
        if current is None or current.number != server_round:
            raise veilgrad.Consumed(f"round {server_round} was not drawn, or was released already")
        with current.sample as sample:
            total = sample.begin(session.plan)
            base = session.model.singles()
            for metric in self.metrics:
                name, length = metric.vector
                base[name] = np.zeros(length, np.float32)
            for reply in _expected(current, replies):
                found = self._reader.read(reply)
                if found is not None:
                    total.add({**found.arrays, **found.metrics}, found.weight, minus=base)
            estimates = total.release()
        session.advance(estimates, server_round)
        values = {metric.vector[0]: metric.decode(estimates) for metric in self.metrics}
        released = MetricRecord({name: value[0] if len(value) == 1 else value for name, value in values.items()})
        return session.model.record(self._order), released

    def configure_evaluate(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Iterable[Message]:
        """Asks nobody: what clients would report is not private."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Nothing."""
        return None

    def summary(self) -> None:
        """Logs the public parameters."""
        cohort, terms = self.cohort, self.terms
        log(INFO, "PrivateFedAvg: %s rounds, %s cohorts of %g expected %ss", self.rounds, cohort.kind, cohort.expected, terms.unit)
        log(INFO, "noise multiplier %g, %s, ledger %s", self.noise_multiplier, terms.adjacency, terms.ledger or "in memory")
        if terms.budget is not None:
            delta = terms.budget[1]
            # Rounded up.
            epsilon = math.ceil(1e4 * self.planned_epsilon(delta)) / 1e4
            log(INFO, "epsilon of all rounds: %.4f at delta %g", epsilon, delta)
        if terms.unit == "node":
            log(WARNING, "the guarantee is about nodes, not users: user_of says which user a node belongs to")

    def clip_norm(self, group: str = "update") -> float:
        """The clip norm now in force for a group. It is released."""
        return self._running().plan.clip_norm(group)

    def _calibrated(self, epsilon: float, delta: float, adjacency: Adjacency) -> float:
        sampling: dict[str, Any] = {"rate": self.cohort.rate}
        if self.cohort.kind == "fixed":
            sampling = {"sampling": "fixed", "records": self.cohort.users, "batch": self.cohort.size}
        return veilgrad.calibrate(epsilon, delta, rounds=self.rounds, adjacency=adjacency, **sampling).noise_multiplier

    def _running(self) -> Session:
        if self._session is None:
            raise veilgrad.VeilgradError("rounds run inside of start()")
        return self._session

    def _open(self, initial_arrays: ArrayRecord) -> Session:
        """Begins the run, or continues it."""
        if self._session is not None:
            raise veilgrad.VeilgradError("this strategy is running already")
        model = Model.of(initial_arrays)
        shapes = {name: values.shape for name, values in model.trained.items()}
        sampler = self.cohort.sampler()

        def plan() -> veilgrad.Plan:
            return make_plan(
                shapes,
                noise_multiplier=self.noise_multiplier,
                expected=self.cohort.expected,
                metrics=self.metrics,
                **self._plan_settings,
            )

        charged = plan()
        settings = {
            "rounds": self.rounds,
            "round": charged.rounds(sampler),
            "shapes": {name: list(shape) for name, shape in shapes.items()},
            "unit": self.terms.unit,
            "adjacency": self.terms.adjacency,
            "weights": [self.weight_key, self.weight_bound, self.expected_weight],
            "denominator": [self._plan_settings["denominator"], self._plan_settings["least_count"]],
            "adaptive": repr(self._plan_settings["adaptive"]),
            "server": repr(self.server),
        }
        optimizer = {name: self.server.begin(shape) for name, shape in shapes.items()}
        session = Session(self.terms, self.rounds, charged, plan(), sampler, model, self.server, optimizer, settings)
        session.open()
        self._session, self._order = session, list(initial_arrays)
        self._reader = Reader(shapes, self.weight_key, self.weight_bound, self.metrics)
        return session

    def _wait_for_users(self, grid: Grid) -> dict[Hashable, list[int]]:
        """The nodes of each user who is connected, as soon as there are enough users."""
        deadline = time.monotonic() + self._timeout
        while True:
            users: dict[Hashable, list[int]] = {}
            for node in grid.get_nodes():
                user = node.node_id if self.user_of is None else self.user_of(node)
                if user is not None and node.node_id not in users.get(user, ()):
                    users.setdefault(user, []).append(node.node_id)
            if len(users) >= self.min_available:
                return self._in_declared_order(users)
            if time.monotonic() > deadline:
                raise veilgrad.VeilgradError("fewer users than min_available connected before the deadline")
            time.sleep(0.5)

    def _in_declared_order(self, users: dict[Hashable, list[int]]) -> dict[Hashable, list[int]]:
        """Of a fixed cohort: all users who were ever seen, in the order in which they were, with the nodes of today."""
        if self.cohort.kind != "fixed":
            return users
        self._known.update(dict.fromkeys(users))
        if len(self._known) > self.cohort.users:
            raise veilgrad.VeilgradError(
                f"there are more than the {self.cohort.users} declared users. A fixed cohort needs their exact number"
            )
        return {user: users.get(user, []) for user in self._known}

    def _records(self, users: dict[Hashable, list[int]]) -> int:
        return self.cohort.users if self.cohort.kind == "fixed" else len(users)

    def _evaluate(
        self,
        number: int,
        arrays: ArrayRecord,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None,
        result: Result,
    ) -> None:
        found = evaluate_fn(number, arrays) if evaluate_fn is not None else None
        if found is not None:
            log(INFO, "evaluation on the server: %s", dict(found))
            result.evaluate_metrics_serverapp[number] = found

    def _close(self) -> None:
        session, self._session = self._session, None
        if session is None:
            return
        if session.run is not None and self.terms.ledger is None and self.terms.budget is not None:
            self._last_claim = session.run.claim(self.terms.budget[1])
        session.close()


def _expected(current: _Round, replies: Iterable[Message]) -> Iterable[Message]:
    """The first reply of each invited user to the invitation of this round."""
    waiting = dict(current.invited)
    for reply in replies:
        metadata = reply.metadata
        invitation = waiting.get(metadata.src_node_id)
        if invitation is None or metadata.message_type != MessageType.TRAIN:
            continue
        if metadata.reply_to_message_id == invitation.metadata.message_id:
            del waiting[metadata.src_node_id]
            yield reply
