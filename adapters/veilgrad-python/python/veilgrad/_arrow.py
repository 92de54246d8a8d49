"""Columns from Arrow's C stream interface, with ctypes alone: no Arrow library is needed to read them."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt


class _Schema(ctypes.Structure):
    pass


class _Array(ctypes.Structure):
    pass


class _Stream(ctypes.Structure):
    pass


_Release = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_Schema._fields_ = [
    ("format", ctypes.c_char_p),
    ("name", ctypes.c_char_p),
    ("metadata", ctypes.c_void_p),
    ("flags", ctypes.c_int64),
    ("n_children", ctypes.c_int64),
    ("children", ctypes.POINTER(ctypes.POINTER(_Schema))),
    ("dictionary", ctypes.POINTER(_Schema)),
    ("release", _Release),
    ("private_data", ctypes.c_void_p),
]
_Array._fields_ = [
    ("length", ctypes.c_int64),
    ("null_count", ctypes.c_int64),
    ("offset", ctypes.c_int64),
    ("n_buffers", ctypes.c_int64),
    ("n_children", ctypes.c_int64),
    ("buffers", ctypes.POINTER(ctypes.c_void_p)),
    ("children", ctypes.POINTER(ctypes.POINTER(_Array))),
    ("dictionary", ctypes.POINTER(_Array)),
    ("release", _Release),
    ("private_data", ctypes.c_void_p),
]
_Stream._fields_ = [
    ("get_schema", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(_Schema))),
    ("get_next", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(_Array))),
    ("get_last_error", ctypes.CFUNCTYPE(ctypes.c_char_p, ctypes.c_void_p)),
    ("release", _Release),
    ("private_data", ctypes.c_void_p),
]

# Formats of fixed-width numbers (Arrow C data interface).
_NUMBERS: dict[str, str] = {
    "c": "int8",
    "C": "uint8",
    "s": "int16",
    "S": "uint16",
    "i": "int32",
    "I": "uint32",
    "l": "int64",
    "L": "uint64",
    "f": "float32",
    "g": "float64",
}

_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype = ctypes.c_void_p
_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]


def columns(data: Any) -> dict[str, npt.NDArray[Any]]:
    """All columns of a stream of record batches, copied."""
    capsule = data.__arrow_c_stream__()
    stream = _Stream.from_address(_pointer(capsule, b"arrow_array_stream"))
    place = ctypes.addressof(stream)
    schema = _Schema()
    if stream.get_schema(place, ctypes.byref(schema)) != 0:
        raise ValueError("the stream has no schema")
    try:
        if schema.format != b"+s":
            raise TypeError("the stream is not one of record batches")
        fields = [schema.children[i].contents for i in range(schema.n_children)]
        parts: list[list[npt.NDArray[Any]]] = [[] for _ in fields]
        for batch in _batches(stream, place):
            for index, field in enumerate(fields):
                column = batch.children[index].contents
                parts[index].append(_values(field, column, batch.offset, batch.length))
        names = [field.name.decode() for field in fields]
        joined = (np.concatenate(part) if part else np.empty(0) for part in parts)
        return dict(zip(names, joined, strict=True))
    finally:
        _release(schema)


def _batches(stream: _Stream, place: int) -> Iterator[_Array]:
    while True:
        batch = _Array()
        if stream.get_next(place, ctypes.byref(batch)) != 0:
            raise ValueError("the stream broke off")
        if not batch.release:
            return
        try:
            yield batch
        finally:
            _release(batch)


def _release(owned: _Schema | _Array) -> None:
    if owned.release:
        owned.release(ctypes.addressof(owned))


def _values(field: _Schema, array: _Array, skipped: int, length: int) -> npt.NDArray[Any]:
    """The values of a column, from the offset of its batch on: numbers as float64 with NaN, words with None."""
    start = array.offset + skipped
    form = field.format.decode()
    if field.dictionary:
        indices = _numbers(_NUMBERS[form], array, 1, start, length)
        words = array.dictionary.contents
        known = _values(field.dictionary.contents, words, 0, words.length)
        return _known(array, start, known[np.clip(indices, 0, len(known) - 1)])
    if form in _NUMBERS:
        return _known(array, start, _numbers(_NUMBERS[form], array, 1, start, length))
    if form == "b":
        return _known(array, start, _bits(array.buffers[1], start, length).astype(np.float64))
    if form in ("u", "U"):
        kind = "int32" if form == "u" else "int64"
        ends = _numbers(kind, array, 1, start, length + 1)
        text = ctypes.string_at(array.buffers[2] or 0, int(ends[-1])) if length else b""
        cells = [text[a:b].decode() for a, b in zip(ends[:-1], ends[1:], strict=True)]
        return _known(array, start, np.array(cells, dtype=object))
    if form == "vu":
        return _known(array, start, _views(array, start, length))
    if form == "n":
        return np.full(length, None, dtype=object)
    raise TypeError(f"columns of Arrow type {form!r} are not supported: cast {field.name!r} first")


def _numbers(
    kind: str, array: _Array, buffer: int, start: int, length: int
) -> npt.NDArray[Any]:
    dtype = np.dtype(kind)
    if length == 0:
        return np.empty(0, dtype)
    place = array.buffers[buffer] + start * dtype.itemsize
    found: npt.NDArray[Any] = np.frombuffer(ctypes.string_at(place, length * dtype.itemsize), dtype)
    return found


def _bits(place: int, start: int, length: int) -> npt.NDArray[np.bool_]:
    packed = np.frombuffer(ctypes.string_at(place, (start + length + 7) // 8), np.uint8)
    bits = np.unpackbits(packed, bitorder="little")
    return bits[start : start + length].astype(np.bool_)


def _known(array: _Array, start: int, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The values with what is missing marked as such."""
    is_number = values.dtype != object
    values = values.astype(np.float64) if is_number else values
    if array.buffers[0] and len(values):
        missing = ~_bits(array.buffers[0], start, len(values))
        values = values.copy()
        values[missing] = np.nan if is_number else None
    return values


def _views(array: _Array, start: int, length: int) -> npt.NDArray[Any]:
    """Words in Arrow's view format: 16 bytes each, inline if they are short, else in one of several buffers."""
    found = np.full(length, None, dtype=object)
    # What is behind a missing word is not defined.
    there = _bits(array.buffers[0], start, length) if array.buffers[0] else np.full(length, True)
    for row in np.flatnonzero(there).tolist():
        place = array.buffers[1] + 16 * (start + row)
        size = ctypes.c_int32.from_address(place).value
        if size > 12:
            buffer = ctypes.c_int32.from_address(place + 8).value
            offset = ctypes.c_int32.from_address(place + 12).value
            place = array.buffers[2 + buffer] + offset
        else:
            place += 4
        found[row] = ctypes.string_at(place, size).decode()
    return found
