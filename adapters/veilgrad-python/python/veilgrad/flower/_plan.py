"""From the settings of a strategy to the groups of its rounds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import veilgrad

#: The part of a round's privacy loss for everything but the updates: clip norms, a private count, metrics.
SIDE_SHARE = 0.1
COUNT = "count of users"


@dataclass(frozen=True)
class Adaptive:
    """Moves the clip norm to a quantile of the updates' norms (Andrew et al., arXiv 1905.03871), never below `floor`.

    Every user contributes one bit, whether its norm is at most the clip norm. The bits are a group of the round.
    """

    quantile: float = 0.5
    learning_rate: float = 0.2
    floor: float = 1e-3


@dataclass(frozen=True)
class Cohort:
    """How users are drawn: each with probability `rate`, or exactly `size` of `users`."""

    kind: Literal["poisson", "fixed"]
    users: int
    rate: float

    def __post_init__(self) -> None:
        if self.kind not in ("poisson", "fixed"):
            raise ValueError(f"cohort {self.kind!r} is neither 'poisson' nor 'fixed'")
        if self.users < 1:
            raise ValueError("expected_users is at least 1")

    @property
    def size(self) -> int:
        """The size of a fixed cohort."""
        return min(self.users, max(1, round(self.users * self.rate)))

    @property
    def expected(self) -> float:
        """The public expected number of users in a cohort."""
        return float(self.size) if self.kind == "fixed" else self.users * self.rate

    def sampler(self) -> veilgrad.Sampler:
        """Draws cohorts with the system's random numbers."""
        if self.kind == "fixed":
            return veilgrad.Sampler.fixed(self.users, self.size)
        return veilgrad.Sampler.poisson(self.rate)

    def rounds(self, noise_multiplier: float, rounds: int) -> veilgrad.Round:
        """So many rounds with this noise, to account for."""
        if self.kind == "fixed":
            return veilgrad.Round.fixed(self.users, self.size, noise_multiplier, rounds)
        return veilgrad.Round.poisson(self.rate, noise_multiplier, rounds)


def mean_weight(
    weight_bound: float | None,
    expected_weight: float | None,
    denominator: Literal["expected", "private-count"] | float,
    least_count: float | None,
) -> float:
    """The public expected weight of a user over its bound: what a user adds to a denominator that is not given as a number."""
    if weight_bound is None:
        if expected_weight is not None:
            raise ValueError("expected_weight is for users who are weighted: give weight_bound")
        return 1.0
    if not 0 < weight_bound < math.inf:
        raise ValueError(f"weight_bound {weight_bound} is not a number above 0")
    number = denominator if denominator != "private-count" else least_count
    if isinstance(number, (int, float)):
        if expected_weight is not None:
            raise ValueError("expected_weight is not used with a denominator or a least_count that is a number: leave out one")
        return 1.0
    if expected_weight is None:
        raise ValueError(
            "weight_bound needs expected_weight, the public mean weight of a user, or a denominator or least_count that is a number"
        )
    if not 0 < expected_weight <= weight_bound:
        raise ValueError(f"expected_weight {expected_weight} is not in (0, {weight_bound}], up to weight_bound")
    return expected_weight / weight_bound


def make_plan(
    shapes: Mapping[str, tuple[int, ...]],
    *,
    clip: float | None,
    groups: Literal["per-layer"] | Sequence[veilgrad.Group] | None,
    noise_multiplier: float,
    allocation: Literal["proportional", "dimension"],
    expected: float,
    denominator: Literal["expected", "private-count"] | float,
    least_count: float | None,
    weighted: bool,
    mean_weight: float,
    adaptive: Adaptive | None,
    metrics: Sequence[veilgrad.Metric],
) -> veilgrad.Plan:
    """The plan of a round: groups of updates, and what is released beside them."""
    estimator = _estimator(expected * mean_weight, denominator, least_count, weighted)
    vectors = [group.estimating(**estimator) for group in _groups(shapes, clip, groups)]
    beside = (denominator == "private-count") + (len(vectors) if adaptive else 0) + len(metrics)
    share = SIDE_SHARE / beside if beside else None
    structure: dict[str, Any] = dict(shapes)
    all_groups = list(vectors)
    if denominator == "private-count":
        all_groups.append(veilgrad.Group.weight(COUNT, 1.0, share=share))
    if adaptive:
        for group in vectors:
            all_groups.append(
                veilgrad.Group.quantile(
                    f"norm of {group.name}",
                    group.name,
                    adaptive.quantile,
                    expected,
                    adaptive.floor,
                    learning_rate=adaptive.learning_rate,
                    share=share,
                )
            )
    for metric in metrics:
        name, length = metric.vector
        if name in structure:
            raise ValueError(f"a metric and an array of the model are both called {name!r}")
        structure[name] = length
        all_groups.append(metric.group(expected, share=share))
    return veilgrad.Plan(structure, all_groups, noise_multiplier, allocation=allocation)


def _estimator(expected: float, denominator: str | float, least_count: float | None, weighted: bool) -> dict[str, Any]:
    """Weights and denominator; `expected` is the expected sum of weights."""
    chosen: dict[str, Any] = {"weighted": 1.0 if weighted else None}
    if denominator == "private-count":
        # Half of what is expected: more dropouts than that make the average smaller, not noisier.
        chosen["average_over"] = (COUNT, expected / 2 if least_count is None else least_count)
    elif denominator == "expected":
        chosen["average"] = expected
    elif isinstance(denominator, (int, float)):
        chosen["average"] = float(denominator)
    else:
        raise ValueError(f"denominator {denominator!r} is neither 'expected', 'private-count' nor a public number")
    return chosen


def _groups(
    shapes: Mapping[str, tuple[int, ...]],
    clip: float | None,
    groups: Literal["per-layer"] | Sequence[veilgrad.Group] | None,
) -> Sequence[veilgrad.Group]:
    if groups is not None and groups != "per-layer":
        if clip is not None:
            raise ValueError("groups have clip norms of their own: leave out clip")
        return list(groups)
    if clip is None:
        raise ValueError("give clip, or groups with clip norms of their own")
    if groups is None:
        return [veilgrad.Group("update", list(shapes), clip)]
    # The squares of the parts add up to that of the whole.
    return [veilgrad.Group(name, name, clip / math.sqrt(len(shapes))) for name in shapes]
