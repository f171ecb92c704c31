"""The tops that members of tar files become, by their extensions."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from functools import partial
from typing import cast

import numpy as np

from ...workers.api import AnyArray, ArraySpec, rounded_integer
from ...workers.base import SourceError
from ..table import Field, put_bytes, put_text

_NUMBERS = ("cls", "cls2", "index", "inx", "id")
_TEXTS = ("txt", "text", "transcript", "json")

Decode = Callable[[bytes], AnyArray]


def member_field(extension: str, key: str, first: bytes, longest: int) -> Field[bytes]:
    """Return the top of members with this extension, which is no picture's, that are like the `first` one.

    `key`: of a JSON object, if only the value under it is wanted. `longest`: the bytes of the largest of them.
    Raises ValueError, EOFError, SourceError.
    """
    last = extension.rpartition(".")[2]
    if not key and last in _TEXTS:
        return Field(ArraySpec((), np.dtype(f"S{max(1, longest)}")), put_text)
    if not key and last not in (*_NUMBERS, "npy"):
        return Field(ArraySpec((max(1, longest),), np.dtype(np.uint8), varies=True), put_bytes)
    decode = partial(_value_of, key=key) if key else _number if last in _NUMBERS else _npy
    value = decode(first)
    if value.dtype.kind not in "biufcS":
        raise SourceError(f"it holds {value.dtype}, which is no array of numbers")
    # No value is longer than the JSON around it.
    dtype = np.dtype(f"S{longest}") if key and value.dtype.kind == "S" else value.dtype.newbyteorder("=")
    return Field(ArraySpec(value.shape, dtype), partial(_put, decode))


def _put(decode: Decode, data: bytes, row: int, rows: AnyArray) -> None:
    """Write what `decode` makes of `data`; raises ValueError if it is not like the first sample's."""
    value = decode(data)
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


def _number(data: bytes) -> AnyArray:
    return np.array(int(data))


def _npy(data: bytes) -> AnyArray:
    return cast("AnyArray", np.load(io.BytesIO(data), allow_pickle=False))


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
