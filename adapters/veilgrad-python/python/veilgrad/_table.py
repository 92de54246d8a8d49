"""Tables as numbers, by what is declared of their columns and nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from veilgrad import _arrow


def columns(data: Any) -> Mapping[str, npt.NDArray[Any]]:
    """The columns of a DataFrame (pandas, polars, arrow: whatever has `__arrow_c_stream__`) or of a dict, by name.

    Numbers come as float64 with NaN for what is missing, words as objects with `None`.
    """
    if isinstance(data, Mapping):
        return {str(name): np.asarray(values) for name, values in data.items()}
    if hasattr(data, "__arrow_c_stream__"):
        try:
            return _arrow.columns(data)
        except ImportError:
            # pandas wants pyarrow for this; its columns can be read without.
            pass
    if hasattr(data, "columns") and hasattr(data, "__getitem__"):
        return {str(name): np.asarray(data[name]) for name in data.columns}
    raise TypeError(f"expected a DataFrame or a dict of columns, found {type(data).__name__}")


def is_table(data: Any) -> bool:
    """Whether data has columns with names."""
    return (
        isinstance(data, Mapping) or hasattr(data, "__arrow_c_stream__") or hasattr(data, "columns")
    )


def encode(
    declared: Sequence[Mapping[str, Any]], data: Any, missing: str | None = None
) -> npt.NDArray[np.float32]:
    """The numbers of a table as models of tables want them: numbers scaled to [-1, 1], words one-hot."""
    found = columns(data)
    parts: list[npt.NDArray[np.float32]] = []
    for column in declared:
        name = column["name"]
        if name not in found:
            raise ValueError(f"there is no column {name!r}")
        categories, policy = column.get("categories"), column.get("missing") or missing
        if categories is not None:
            parts.append(one_hot(found[name], categories, policy))
        else:
            parts.append(number(found[name], column.get("bounds") or (0.0, 1.0), policy)[:, None])
    return np.concatenate(parts, axis=1)


def number(
    values: npt.NDArray[Any], bounds: Sequence[float], policy: str | None
) -> npt.NDArray[np.float32]:
    """Scaled to [-1, 1] and clamped; what is missing or not a number is NaN, unless a policy replaces it."""
    low, high = (float(bound) for bound in bounds)
    numbers = floats(values)
    if policy is not None:
        replacement = {"zero": 0.0, "mean-of-bounds": 0.5 * low + 0.5 * high}.get(policy, np.nan)
        numbers = np.where(np.isnan(numbers), replacement, numbers)
    middle, half = 0.5 * low + 0.5 * high, 0.5 * high - 0.5 * low
    return np.clip((numbers - middle) / half, -1.0, 1.0).astype(np.float32)


def floats(values: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Numbers; NaN where there is none."""
    if values.dtype.kind in "fiub":
        return values.astype(np.float64)
    found = np.full(len(values), np.nan)
    for place, value in enumerate(values.tolist()):
        try:
            found[place] = float(value)
        except (TypeError, ValueError):
            pass
    return found


def one_hot(
    values: npt.NDArray[Any], categories: Sequence[str], policy: str | None
) -> npt.NDArray[np.float32]:
    """One column per declared word; another word is none of them, unless a policy names one."""
    words = [None if value is None else str(value) for value in values.tolist()]
    places = {word: place for place, word in enumerate(map(str, categories))}
    default = places.get(policy, -1) if policy is not None else -1
    chosen = np.array([places.get(word, default) if word else default for word in words], dtype=int)
    found = np.zeros((len(words), len(categories)), dtype=np.float32)
    rows = np.flatnonzero(chosen >= 0)
    found[rows, chosen[rows]] = 1.0
    return found
