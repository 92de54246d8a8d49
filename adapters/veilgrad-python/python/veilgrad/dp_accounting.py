"""Google's dp_accounting with this accountant: events become rounds, and rounds become events.

>>> import dp_accounting
>>> from veilgrad.dp_accounting import VeilgradAccountant
>>> event = dp_accounting.PoissonSampledDpEvent(0.01, dp_accounting.GaussianDpEvent(1.1))
>>> round(VeilgradAccountant().compose(event, 1000).get_epsilon(1e-5), 3)
1.515

`VeilgradAccountant` goes wherever a `dp_accounting.PrivacyAccountant` does: `calibrate_dp_mechanism`, TensorFlow
Privacy, and (through `veilgrad.jax_privacy`) JAX Privacy. What it cannot account for, it refuses by name.

**Replace-one.** The noise multiplier of an event is the standard deviation over the clip norm C, and dp_accounting's own
`PLDAccountant` reads it so under every relation. Its `RdpAccountant` reads it, under `REPLACE_ONE`, as the standard
deviation over 2C, the distance between neighbouring sums: the same number means half the noise. So under `REPLACE_ONE`
you say which one your events mean.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from typing import Any, Literal, TypeAlias

import dp_accounting
from dp_accounting import NeighboringRelation, dp_event

import veilgrad
from veilgrad._accounting import Adjacency, Round, RoundLike

__all__ = ["UnsupportedEvent", "VeilgradAccountant", "rounds", "to_event"]

#: What the noise multiplier of an event is relative to.
RelativeTo: TypeAlias = Literal["clip-norm", "replacement"]

_ADJACENCY: dict[NeighboringRelation, Adjacency] = {
    NeighboringRelation.ADD_OR_REMOVE_ONE: "add-remove",
    NeighboringRelation.REPLACE_ONE: "replace-one",
    NeighboringRelation.REPLACE_SPECIAL: "zero-out",
}


class UnsupportedEvent(veilgrad.Unsupported, dp_accounting.UnsupportedEventError):
    """An event, or a sampling policy, that the other side cannot express."""

    def __init__(self, event: dp_event.DpEvent | None, why: str) -> None:
        super().__init__(why)
        self.event = event


def _factor(relation: NeighboringRelation, relative_to: RelativeTo | None) -> int:
    """How often the clip norm is in what noise multipliers are relative to."""
    if relation not in _ADJACENCY:
        raise ValueError(f"neighbouring relation {relation} is unknown")
    if relative_to not in (None, "clip-norm", "replacement"):
        raise ValueError(f"noise_relative_to {relative_to!r} is neither 'clip-norm' nor 'replacement'")
    if relation is not NeighboringRelation.REPLACE_ONE:
        if relative_to == "replacement":
            raise ValueError("noise relative to a replacement is for REPLACE_ONE only")
        return 1
    if relative_to is None:
        raise ValueError(
            "under REPLACE_ONE, say what noise multipliers are relative to: noise_relative_to='clip-norm' (standard "
            "deviation / C, as GaussianDpEvent is defined and PLDAccountant reads it) or 'replacement' (standard "
            "deviation / 2C, as RdpAccountant reads it)"
        )
    return 1 if relative_to == "clip-norm" else 2


def rounds(
    event: dp_event.DpEvent,
    neighboring_relation: NeighboringRelation = NeighboringRelation.ADD_OR_REMOVE_ONE,
    *,
    noise_relative_to: RelativeTo | None = None,
) -> list[Round]:
    """The rounds that an event stands for. Raises `UnsupportedEvent`, which names the event, for all others.

    Gaussian events, alone or Poisson-sampled, sampled without replacement or with truncated samples, and compositions of
    these. Several Gaussians under one sampling event become the queries of one round.

    >>> from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
    >>> rounds(SelfComposedDpEvent(PoissonSampledDpEvent(0.01, GaussianDpEvent(1.1)), 1000))[0].to_dict()
    {'rounds': 1000, 'sampling': {'policy': 'poisson', 'rate': 0.01}, 'queries': [{'group': 'g0', 'clip': 1.0, 'noise': 1.1}]}
    """
    return list(_rounds(event, 1, _factor(neighboring_relation, noise_relative_to)))


def _rounds(event: dp_event.DpEvent, count: int, factor: int) -> Iterator[Round]:
    # Exact types: a subclass may mean something else.
    kind = type(event)
    if kind is dp_event.NoOpDpEvent:
        return
    if kind is dp_event.SelfComposedDpEvent:
        yield from _rounds(event.event, count * _whole(event, event.count, 0), factor)
    elif kind is dp_event.ComposedDpEvent:
        for part in event.events:
            yield from _rounds(part, count, factor)
    elif kind is dp_event.GaussianDpEvent:
        yield from _repeated({"policy": "all"}, _noises(event), count, factor)
    elif kind is dp_event.PoissonSampledDpEvent:
        if rate := _probability(event, event.sampling_probability):
            yield from _repeated({"policy": "poisson", "rate": rate}, _noises(event.event), count, factor)
        else:
            list(_noises(event.event))
    elif kind is dp_event.SampledWithoutReplacementDpEvent:
        records = _whole(event, event.source_dataset_size, 1)
        batch = _whole(event, event.sample_size, 0)
        if batch > records:
            raise UnsupportedEvent(event, f"{kind.__name__} draws {batch} of {records} records")
        if batch:
            sampling = {"policy": "fixed", "records": records, "batch": batch}
            yield from _repeated(sampling, _noises(event.event), count, factor)
    elif kind is dp_event.TruncatedSubsampledGaussianDpEvent:
        records = _whole(event, event.dataset_size, 1)
        sampling = {
            "policy": "truncated-poisson",
            "rate": _probability(event, event.sampling_probability),
            "records": records,
            "maximum": min(_whole(event, event.truncated_batch_size, 1), records),
        }
        noise = _noise(event, event.noise_multiplier)
        if sampling["rate"]:
            yield from _repeated(sampling, [noise], count, factor)
    else:
        raise UnsupportedEvent(event, f"{kind.__name__} is not a sampled Gaussian, and has no analysis here")


def _repeated(
    sampling: dict[str, Any], noises: Iterable[float], count: int, factor: int
) -> Iterator[Round]:
    queries = [
        {"group": f"g{number}", "clip": 1.0, "noise": factor * noise} for number, noise in enumerate(noises)
    ]
    # A sampling event around nothing releases nothing.
    if count and queries:
        yield Round(sampling, queries, count)


def _noises(event: dp_event.DpEvent) -> Iterator[float]:
    """The noise multipliers of Gaussians that share one sample."""
    kind = type(event)
    if kind is dp_event.GaussianDpEvent:
        yield _noise(event, event.noise_multiplier)
    elif kind is dp_event.ComposedDpEvent:
        for part in event.events:
            yield from _noises(part)
    elif kind is dp_event.SelfComposedDpEvent:
        if count := _whole(event, event.count, 0):
            # One Gaussian in place of many: 1/z^2 adds up. Rounded down, which can only cost more.
            root = math.nextafter(math.sqrt(count), math.inf)
            for noise in _noises(event.event):
                yield noise if count == 1 else math.nextafter(noise / root, 0.0)
    elif kind is not dp_event.NoOpDpEvent:
        raise UnsupportedEvent(event, f"{kind.__name__} within a sampling event has no analysis here")


class _NotPrivate(UnsupportedEvent):
    """Gaussian noise of no size."""


def _noise(event: dp_event.DpEvent, noise: float) -> float:
    if noise == 0:
        raise _NotPrivate(event, f"{type(event).__name__} has noise multiplier 0, which protects nothing")
    if not 0 < noise < math.inf:
        raise UnsupportedEvent(event, f"{type(event).__name__} has noise multiplier {noise}")
    return float(noise)


def _probability(event: dp_event.DpEvent, probability: float) -> float:
    if not 0 <= probability <= 1:
        raise UnsupportedEvent(event, f"{type(event).__name__} has sampling probability {probability}")
    return float(probability)


def _whole(event: dp_event.DpEvent, number: int, least: int) -> int:
    if int(number) != number or number < least:
        raise UnsupportedEvent(event, f"{type(event).__name__} has {number} where a count belongs")
    return int(number)


def to_event(
    rounds: RoundLike | Iterable[RoundLike],
    neighboring_relation: NeighboringRelation = NeighboringRelation.ADD_OR_REMOVE_ONE,
    *,
    noise_relative_to: RelativeTo | None = None,
) -> dp_event.DpEvent:
    """The event that rounds stand for: what dp_accounting's own accountants take.

    Noise multipliers are rounded down where they are no floating-point number. Raises `UnsupportedEvent` for shuffled
    batches, which dp_accounting has no event for.

    >>> to_event(veilgrad.Round.poisson(rate=0.01, noise_multiplier=1.1, rounds=1000))
    SelfComposedDpEvent(event=PoissonSampledDpEvent(sampling_probability=0.01, event=GaussianDpEvent(noise_multiplier=1.1)), count=1000)
    """
    factor = _factor(neighboring_relation, noise_relative_to)
    entries: Any = [rounds] if isinstance(rounds, Mapping) or hasattr(rounds, "to_dict") else rounds
    events = []
    for entry in entries:
        line = entry if isinstance(entry, Mapping) else entry.to_dict()
        if (count := line["rounds"]) > 0:
            event = _sampled(line["sampling"], [_gaussian(query, factor) for query in line["queries"]])
            events.append(event if count == 1 else dp_event.SelfComposedDpEvent(event, count))
    if not events:
        return dp_event.NoOpDpEvent()
    return events[0] if len(events) == 1 else dp_event.ComposedDpEvent(events)


def _sampled(sampling: Mapping[str, Any], gaussians: list[dp_event.DpEvent]) -> dp_event.DpEvent:
    event = gaussians[0] if len(gaussians) == 1 else dp_event.ComposedDpEvent(gaussians)
    match sampling["policy"]:
        case "all":
            return event
        case "poisson":
            return dp_event.PoissonSampledDpEvent(sampling["rate"], event)
        case "fixed":
            return dp_event.SampledWithoutReplacementDpEvent(sampling["records"], sampling["batch"], event)
        case "truncated-poisson" if len(gaussians) == 1:
            return dp_event.TruncatedSubsampledGaussianDpEvent(
                sampling["records"], sampling["rate"], sampling["maximum"], gaussians[0].noise_multiplier
            )
        case policy:
            many = f" with {len(gaussians)} queries" if len(gaussians) > 1 else ""
            raise UnsupportedEvent(None, f"dp_accounting has no event for {policy} samples{many}")


def _gaussian(query: Mapping[str, Any], factor: int) -> dp_event.GaussianDpEvent:
    exact = Fraction(query["noise"]) / Fraction(query["clip"])
    if "s_int" in query:
        # What the mechanism really did.
        exact = min(exact, Fraction(2 ** query["k"], query["s_int"]))
    exact /= factor
    noise = float(exact)
    return dp_event.GaussianDpEvent(noise if Fraction(noise) <= exact else math.nextafter(noise, 0.0))


class VeilgradAccountant(dp_accounting.PrivacyAccountant):
    """A `dp_accounting.PrivacyAccountant` with certified bounds: epsilon and delta are never below the truth.

    Args:
        neighboring_relation: As everywhere in dp_accounting.
        noise_relative_to: Needed under `REPLACE_ONE` (see the top of this module): `"clip-norm"` if noise multipliers
            are standard deviations over the clip norm, `"replacement"` if over twice the clip norm.

    >>> from dp_accounting import GaussianDpEvent, LaplaceDpEvent
    >>> VeilgradAccountant().supports(LaplaceDpEvent(1.0))
    False
    >>> round(VeilgradAccountant().compose(GaussianDpEvent(1.0)).get_delta(1.0), 4)
    0.1269
    """

    def __init__(
        self,
        neighboring_relation: NeighboringRelation = NeighboringRelation.ADD_OR_REMOVE_ONE,
        *,
        noise_relative_to: RelativeTo | None = None,
    ) -> None:
        super().__init__(neighboring_relation)
        self._factor = _factor(neighboring_relation, noise_relative_to)
        self._not_private = False
        #: How many rounds of each kind: no policy that an event has depends on their order.
        self._counts: dict[tuple[Any, ...], Round] = {}

    def rounds(self) -> list[Round]:
        """The rounds that were composed so far, for `veilgrad.epsilon`, `profile` and the others."""
        if self._not_private:
            raise veilgrad.Unsupported("something that is not private was composed")
        return list(self._counts.values())

    def _maybe_compose(
        self, event: dp_event.DpEvent, count: int, do_compose: bool
    ) -> dp_accounting.PrivacyAccountant.CompositionErrorDetails | None:
        try:
            found = list(_rounds(_private_part(event), 1, self._factor))
        except _NotPrivate:
            found, not_private = [], True
        except UnsupportedEvent as error:
            return self.CompositionErrorDetails(error.event, str(error))
        else:
            not_private = _has_non_private(event)
        if do_compose:
            self._not_private |= not_private
            for entry in found:
                noises = tuple(query["noise"] for query in entry.queries)
                key = (*entry.sampling.values(), noises)
                known = self._counts.get(key)
                total = entry.rounds * count + (known.rounds if known else 0)
                self._counts[key] = Round(entry.sampling, entry.queries, total)
        return None

    def get_epsilon(self, target_delta: float) -> float:
        """An upper bound of epsilon at `target_delta`, tight to about 1e-7."""
        if not 0 <= target_delta <= 1:
            raise ValueError(f"delta {target_delta} is not in [0, 1]")
        if target_delta == 1 or not (self._counts or self._not_private):
            return 0.0
        if target_delta == 0 or self._not_private:
            return math.inf
        return self._ask(veilgrad.epsilon, target_delta).epsilon

    def get_delta(self, target_epsilon: float) -> float:
        """An upper bound of delta at `target_epsilon`."""
        if not target_epsilon >= 0:
            raise ValueError(f"epsilon {target_epsilon} is negative")
        if target_epsilon == math.inf or not (self._counts or self._not_private):
            return 0.0
        if self._not_private:
            return 1.0
        return self._ask(veilgrad.delta, target_epsilon).delta

    def _ask(self, question: Any, target: float) -> veilgrad.Guarantee:
        found = question(self.rounds(), target, adjacency=_ADJACENCY[self.neighboring_relation])
        assert isinstance(found, veilgrad.Guarantee)
        return found


def _has_non_private(event: dp_event.DpEvent) -> bool:
    if isinstance(event, dp_event.ComposedDpEvent):
        return any(map(_has_non_private, event.events))
    if isinstance(event, dp_event.SelfComposedDpEvent):
        return _has_non_private(event.event)
    return isinstance(event, dp_event.NonPrivateDpEvent)


def _private_part(event: dp_event.DpEvent) -> dp_event.DpEvent:
    """The event without non-private ones, which an accountant supports and says infinity for."""
    kind = type(event)
    if kind is dp_event.NonPrivateDpEvent:
        return dp_event.NoOpDpEvent()
    if kind is dp_event.ComposedDpEvent:
        return dp_event.ComposedDpEvent([_private_part(part) for part in event.events])
    if kind is dp_event.SelfComposedDpEvent:
        return dp_event.SelfComposedDpEvent(_private_part(event.event), event.count)
    return event
