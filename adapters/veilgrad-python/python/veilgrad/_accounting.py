"""Accounting: certified bounds of epsilon and delta."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from veilgrad import _native

Adjacency: TypeAlias = Literal["add-remove", "replace-one", "zero-out"]
Accountant: TypeAlias = Literal["best", "pld", "rdp"]
Floats: TypeAlias = npt.NDArray[np.float64]


class HasDict(Protocol):
    """Anything that can be written as a line of a rounds file."""

    def to_dict(self) -> dict[str, Any]:
        """The line."""


RoundLike: TypeAlias = Mapping[str, Any] | HasDict
Rounds: TypeAlias = RoundLike | Iterable[RoundLike] | str | os.PathLike[str]


@dataclass(frozen=True)
class Round:
    """A number of identical rounds: one sample each, and the sum queries that were asked of it.

    `sampling` and `queries` are in the form of a rounds file.

    >>> Round.poisson(rate=0.01, noise_multiplier=1.1, rounds=1000).to_dict()["sampling"]
    {'policy': 'poisson', 'rate': 0.01}
    """

    sampling: Mapping[str, Any]
    queries: Sequence[Mapping[str, Any]]
    rounds: int = 1

    def to_dict(self) -> dict[str, Any]:
        """The line of a rounds file."""
        return {
            "rounds": self.rounds,
            "sampling": dict(self.sampling),
            "queries": [dict(query) for query in self.queries],
        }

    @classmethod
    def from_dict(cls, line: Mapping[str, Any]) -> Round:
        """From a line of a rounds file."""
        return cls(line["sampling"], line["queries"], line["rounds"])

    @classmethod
    def poisson(cls, rate: float, noise_multiplier: float, rounds: int = 1) -> Round:
        """Each record independently with probability `rate`; one sum, clipped to norm 1."""
        return cls({"policy": "poisson", "rate": rate}, _queries(noise_multiplier), rounds)

    @classmethod
    def fixed(cls, records: int, batch: int, noise_multiplier: float, rounds: int = 1) -> Round:
        """A random batch of a fixed size, without replacement, afresh in every round."""
        sampling = {"policy": "fixed", "records": records, "batch": batch}
        return cls(sampling, _queries(noise_multiplier), rounds)

    @classmethod
    def allocation(cls, rounds_per_epoch: int, noise_multiplier: float, rounds: int = 1) -> Round:
        """Each record in one of the rounds of each epoch, uniformly and independently; a begun epoch counts whole."""
        sampling = {"policy": "allocation", "rounds_per_epoch": rounds_per_epoch}
        return cls(sampling, _queries(noise_multiplier), rounds)

    @classmethod
    def shuffle(cls, records: int, batch: int, noise_multiplier: float, rounds: int = 1) -> Round:
        """Disjoint batches of a permutation per epoch, without amplification: `allocation` has it."""
        sampling = {"policy": "shuffle", "records": records, "batch": batch}
        return cls(sampling, _queries(noise_multiplier), rounds)

    @classmethod
    def all(cls, noise_multiplier: float, rounds: int = 1) -> Round:
        """Every record in every round: the Gaussian mechanism."""
        return cls({"policy": "all"}, _queries(noise_multiplier), rounds)


def _queries(noise_multiplier: float) -> list[dict[str, Any]]:
    return [{"group": "gradient", "clip": 1.0, "noise": noise_multiplier}]


@dataclass(frozen=True)
class Guarantee:
    """An epsilon at a delta. `epsilon` is never below the truth, `lower` never above it."""

    epsilon: float
    delta: float
    lower: float | None
    accountant: str
    method: str | None
    adjacency: str

    def __float__(self) -> float:
        return self.epsilon

    @classmethod
    def _of(cls, answer: _native.Answer, adjacency: str) -> Guarantee:
        epsilon, lower, delta, accountant, method = answer
        return cls(epsilon, delta, lower, accountant, method, adjacency)


@dataclass(frozen=True)
class Calibration:
    """Parameters that keep a budget, and what they cost."""

    noise_multiplier: float
    rate: float
    rounds: int
    guarantee: Guarantee


def epsilon(
    rounds: Rounds,
    delta: float,
    *,
    adjacency: Adjacency = "add-remove",
    accountant: Accountant = "best",
) -> Guarantee:
    """Epsilon of rounds at `delta`, by the tightest sound accountant: the same bits as `veilgrad account`.

    `rounds` is a `Round`, a dict in the form of a rounds file, an iterable of these, or the path of such a file.

    >>> found = epsilon(Round.poisson(0.01, 1.0, rounds=1000), 1e-5)
    >>> found.lower <= 1.82823666 and 1.82823666 <= found.epsilon < 1.8283
    True
    """
    return Guarantee._of(_native.epsilon(rounds, delta, adjacency, accountant), adjacency)


def delta(
    rounds: Rounds,
    epsilon: float,
    *,
    adjacency: Adjacency = "add-remove",
    accountant: Accountant = "best",
) -> Guarantee:
    """Delta of rounds at `epsilon`.

    >>> 0.99e-5 < delta(Round.poisson(0.01, 1.0, rounds=1000), 1.8282367).delta < 1.01e-5
    True
    """
    return Guarantee._of(_native.delta(rounds, epsilon, adjacency, accountant), adjacency)


def calibrate(
    epsilon: float,
    delta: float,
    *,
    rate: float | None = None,
    batch: int | None = None,
    records: int | None = None,
    rounds: int | None = None,
    noise_multiplier: float | None = None,
    find: Literal["noise", "rate", "rounds"] | None = None,
    sampling: Literal["poisson", "fixed", "truncated", "allocation", "shuffle", "all"] = "poisson",
    maximum: int | None = None,
    adjacency: Adjacency = "add-remove",
    accountant: Accountant = "best",
) -> Calibration:
    """The noise multiplier, rate or number of rounds that keeps (epsilon, delta): what is missing, or what `find` names.

    The answer is on the safe side: accounting for it again never exceeds the target. With `sampling="truncated"`, `maximum` is the
    largest batch. With `sampling="allocation"` an epoch has one over `rate` rounds, rounded, and a begun epoch counts whole.

    >>> found = calibrate(3.0, 1e-5, rate=256 / 60000, rounds=14040)
    >>> found.guarantee.epsilon <= 3.0
    True
    >>> round(found.noise_multiplier, 3)
    0.968
    """
    if batch is not None:
        if rate is not None or records is None:
            raise ValueError("a batch needs records, and says the same as a rate")
        if not 0 < batch <= records:
            raise ValueError(f"batch {batch} is not between 1 and the number of records {records}")
        rate = batch / records
    known = {
        "rate": rate is not None or sampling == "all",
        "rounds": rounds is not None,
        "noise": noise_multiplier is not None,
    }
    missing = [name for name, given in known.items() if not given]
    if find is None and len(missing) != 1:
        raise ValueError(f"leave out one of rate, rounds and noise_multiplier; missing: {missing}")
    found = find or missing[0]
    if found not in known or any(name != found for name in missing):
        raise ValueError(f"cannot find {found!r} with {missing} missing")
    noise, at, count, answer = _native.calibrate(
        epsilon,
        delta,
        found,
        sampling,
        maximum,
        rate,
        records,
        rounds,
        noise_multiplier,
        adjacency,
        accountant,
    )
    return Calibration(noise, at, count, Guarantee._of(answer, adjacency))


def profile(
    rounds: Rounds,
    *,
    last: float | None = None,
    points: int = 65,
    adjacency: Adjacency = "add-remove",
) -> tuple[Floats, Floats]:
    """The privacy profile: epsilons from 0 to `last`, and never less than delta at each.

    By default `last` is epsilon at delta 1e-6.

    >>> epsilons, deltas = profile(Round.all(1.0), last=4.0, points=5)
    >>> epsilons.tolist()
    [0.0, 1.0, 2.0, 3.0, 4.0]
    >>> round(float(deltas[0]), 4)  # the total variation distance of two Gaussians
    0.3829
    """
    if last is None:
        last = epsilon(rounds, 1e-6, adjacency=adjacency).epsilon
    return _native.profile(rounds, last, points, adjacency)


def tradeoff(
    rounds: Rounds,
    false_positive_rates: npt.ArrayLike | None = None,
    *,
    adjacency: Adjacency = "add-remove",
) -> tuple[Floats, Floats]:
    """The trade-off curve: false positive rates, and the largest true positive rate that any attack has at each.

    >>> rates, found = tradeoff(Round.all(1.0), [0.01, 0.1, 1.0])
    >>> [round(float(rate), 2) for rate in found]
    [0.09, 0.39, 1.0]
    """
    if false_positive_rates is None:
        false_positive_rates = np.concatenate([np.logspace(-5, -1, 33), np.linspace(0.125, 1, 36)])
    rates = np.atleast_1d(np.asarray(false_positive_rates, dtype=np.float64))
    return rates, _native.tradeoff(rounds, rates, adjacency)


def advantage(rounds: Rounds, *, adjacency: Adjacency = "add-remove") -> float:
    """How much better than guessing any attack can be: true less false positive rate, at most.

    >>> round(advantage(Round.all(1.0)), 4)
    0.3829
    """
    return _native.advantage(rounds, adjacency)


def spent(
    rounds: Rounds,
    delta: float,
    *,
    points: int = 48,
    adjacency: Adjacency = "add-remove",
    accountant: Accountant = "best",
) -> tuple[npt.NDArray[np.uint64], Floats]:
    """Epsilon after rounds 1 to the last, at not more than `points` of them.

    >>> after, epsilons = spent(Round.poisson(0.01, 1.0, rounds=1000), 1e-5, points=4)
    >>> after.tolist()
    [250, 500, 750, 1000]
    """
    return _native.spent(rounds, delta, points, adjacency, accountant)
