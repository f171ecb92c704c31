"""A member's bytes as a row, by its extension."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import cast

import numpy as np

from ...base.errors import SourceError
from ...base.specs import AnyArray, ArraySpec, RaggedRows, Rows, rounded_integer

PICTURES = ("jpg", "jpeg", "png", "bmp", "webp", "ppm", "pgm", "tif", "tiff")
_NUMBERS = ("cls", "cls2", "index", "inx", "id")
_TEXTS = ("txt", "text", "transcript", "json")

Decode = Callable[[bytes], AnyArray]


def decoder_of(extension: str, key: str) -> Decode | None:
    """How a member with this extension becomes an array; None for a picture, which is decoded into the row itself.

    `key`: of a JSON object, if only the value under it is wanted.
    """
    last = extension.rpartition(".")[2]
    if key:
        return lambda data: _value_of(data, key)
    if last in PICTURES:
        return None
    if last in _NUMBERS:
        return lambda data: np.array(int(data))
    if last == "npy":
        return lambda data: cast("AnyArray", np.load(io.BytesIO(data), allow_pickle=False))
    return np.array if last in _TEXTS else lambda data: np.frombuffer(data, np.uint8)


def spec_of(extension: str, key: str, first: AnyArray, longest: int) -> ArraySpec:
    """What all members like the first one are; `longest`: the bytes of the largest of them."""
    last = extension.rpartition(".")[2]
    if not key and last in _TEXTS:
        return ArraySpec((), np.dtype(f"S{max(1, longest)}"))
    if not key and last not in (*_NUMBERS, "npy"):
        return ArraySpec((max(1, longest),), np.dtype(np.uint8), varies=True)
    if key and first.dtype.kind == "S":  # no value is longer than the JSON around it
        return ArraySpec(first.shape, np.dtype(f"S{longest}"))
    if first.dtype.kind not in "biufcS":
        raise SourceError(f"it holds {first.dtype}, which is no array of numbers")
    return ArraySpec(first.shape, first.dtype.newbyteorder("="))


def put_array(value: AnyArray, row: int, rows: Rows) -> None:
    """Raises ValueError if it is not like the first sample's."""
    if isinstance(rows, RaggedRows):
        rows.put(row, value)
        return
    whole = rows[row]
    fits = (value.dtype.kind == "S") == (rows.dtype.kind == "S") and np.can_cast(value.dtype, rows.dtype, "safe")
    if value.shape != whole.shape or not fits:
        raise ValueError(
            f"it holds {value.shape} {value.dtype}, and the first sample {whole.shape} {rows.dtype}: all need one "
            "shape and type; members of other extensions, such as .bin, may differ in length"
        )
    if (rounded := rounded_integer(value, rows.dtype)) is not None:
        raise ValueError(
            f"it holds {rounded}, and the first sample {rows.dtype}, which would round it: store it as one type in all"
        )
    rows[row] = value


def _value_of(data: bytes, key: str) -> AnyArray:
    held = json.loads(data)
    if not isinstance(held, dict) or key not in held:
        raise ValueError(f"its JSON has no key {key!r}: {', '.join(held) if isinstance(held, dict) else 'no object'}")
    value = np.asarray(held[key])
    if value.dtype.kind == "f":  # NumPy makes floats of all if one of them is
        whole = [number for number in np.asarray(held[key], object).ravel().tolist() if isinstance(number, int)]
        if rounded := [number for number in whole if float(number) != number]:
            raise ValueError(f"it holds {rounded[0]} beside floats, which would round it: store it under another key")
    return np.char.encode(value, "utf-8") if value.dtype.kind == "U" else value
