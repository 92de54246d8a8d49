"""What is read from a client's reply. Nothing here trusts it.

A reply is read on its own, so that what one client sends cannot change what another one contributes. Whatever is wrong with
it, it counts as nothing: no error of a reply reaches the round, because an error would tell something about its user.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, Message

import veilgrad

#: Longer headers are not those of arrays that numpy saved.
LONGEST_HEADER = 4096


@dataclass(frozen=True)
class Model:
    """The arrays of a model: those that are trained, and those that stay what they are."""

    trained: dict[str, npt.NDArray[Any]]
    kept: dict[str, Array]

    @classmethod
    def of(cls, arrays: ArrayRecord) -> Model:
        """Arrays of floats are trained. Others (counters, for example) and empty ones are kept."""
        trained, kept = {}, {}
        for name, array in arrays.items():
            values = array.numpy()
            if values.dtype.kind == "f" and values.dtype.itemsize > 8:
                raise veilgrad.Unsupported(f"array {name!r} is {values.dtype}: convert it to float32")
            if values.dtype.kind == "f" and values.size:
                trained[name] = values
            else:
                kept[name] = array
        if not trained:
            raise ValueError("the initial arrays have no array of floats: there is nothing to train")
        return cls(trained, kept)

    def singles(self) -> dict[str, npt.NDArray[Any]]:
        """The trained arrays, those of half precision as single precision."""
        return {name: _at_least_single(values) for name, values in self.trained.items()}

    def record(self, order: Sequence[str]) -> ArrayRecord:
        """The arrays in this order, as they are sent."""
        return ArrayRecord({name: Array(self.trained[name]) if name in self.trained else self.kept[name] for name in order})


@dataclass(frozen=True)
class Contribution:
    """What a reply contributes: the trained arrays, a weight in [0, 1], and the numbers for metrics."""

    arrays: dict[str, npt.NDArray[Any]]
    weight: float
    metrics: dict[str, npt.NDArray[np.float32]]


@dataclass(frozen=True)
class Reader:
    """Reads replies for a model with these shapes."""

    shapes: Mapping[str, tuple[int, ...]]
    weight_key: str
    weight_bound: float | None
    metrics: Sequence[veilgrad.Metric]

    def read(self, reply: Message) -> Contribution | None:
        """What the reply contributes; `None` if it has an error, or is not what was asked for."""
        try:
            return self._read(reply)
        except Exception:  # noqa: BLE001  whatever a client can cause, and no more than that, is inside of _read
            return None

    def _read(self, reply: Message) -> Contribution | None:
        if reply.has_error():
            return None
        content = reply.content
        (arrays,) = content.array_records.values()
        # Arrays that are kept may be in it or not.
        found = {name: read_array(arrays[name], shape) for name, shape in self.shapes.items()}
        numbers = [dict(record) for record in content.metric_records.values()]
        return Contribution(found, self._weight(numbers), self._metrics(numbers))

    def _weight(self, numbers: Sequence[Mapping[str, Any]]) -> float:
        """1, or the reported number as a part of its bound, at most 1. Without a valid number it is 0."""
        if self.weight_bound is None:
            return 1.0
        (value,) = [record[self.weight_key] for record in numbers if self.weight_key in record]
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
            return 0.0
        return 1.0 if value >= self.weight_bound else float(value) / self.weight_bound

    def _metrics(self, numbers: Sequence[Mapping[str, Any]]) -> dict[str, npt.NDArray[np.float32]]:
        """The vector of each metric. One that is missing counts as zero; the update still counts."""
        vectors = {}
        for metric in self.metrics:
            name = metric.vector[0]
            values = [record[name] for record in numbers if name in record]
            value = values[0] if len(values) == 1 else float("nan")
            number = float(value) if isinstance(value, (int, float)) else float("nan")
            vectors[name] = metric.encode(np.array([number]))[0]
        return vectors


def read_array(array: Array, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """The numbers of an array, which must have this shape and be floats.

    The bytes are used in place. They are checked against the shape first: `np.load` would allocate whatever a header asks
    for, and open archives.
    """
    if array.stype != "numpy.ndarray":
        raise ValueError("the array is not one of numpy")
    data = array.data
    header = BytesIO(data[:LONGEST_HEADER])
    version = np.lib.format.read_magic(header)
    read_header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
    found, is_fortran, dtype = read_header(header)
    if found != shape or dtype.kind != "f" or dtype.itemsize not in (2, 4, 8):
        raise ValueError("the array has another shape or type")
    count = int(np.prod(shape, dtype=np.int64))
    if len(data) - header.tell() != count * dtype.itemsize:
        raise ValueError("the array has more or fewer bytes than its shape")
    values = np.frombuffer(data, dtype, count, header.tell()).reshape(shape, order="F" if is_fortran else "C")
    return _at_least_single(values.astype(dtype.newbyteorder("="), copy=False))


def _at_least_single(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    # Every number of half precision is one of single precision.
    return values.astype(np.float32) if values.dtype.itemsize == 2 else values
