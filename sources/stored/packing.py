"""The attributes by which the conventions of netCDF (CF) say what stored numbers mean: packed, missing, out of range.

They are found with an array, and applied if `decode_cf` asks for it; else the log names them.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Collection
from typing import Any

import msgspec
import numpy as np

from ...workers.api import AnyArray

CF_ATTRIBUTES = (
    *("scale_factor", "add_offset", "_FillValue", "missing_value", "valid_range", "valid_min", "valid_max"),
    "_Unsigned",
)

Attributes = dict[str, list[Any]]
"""The values of those of CF_ATTRIBUTES that an array has."""

Number = int | float


class Packing(msgspec.Struct, frozen=True):
    """The values that stored numbers stand for: number × scale + offset, or NaN for what is missing.

    `stored`: the type in which the numbers are meant. `missing`: the numbers that stand for no value. `lowest`,
    `highest`: the bounds of valid numbers, or of valid values if `bounds_values`.
    """

    stored: str
    scale: float = 1.0
    offset: float = 0.0
    missing: tuple[Number, ...] = ()
    lowest: Number | None = None
    highest: Number | None = None
    bounds_values: bool = False

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """The type of the values: float32, or float64 for numbers that float32 would round."""
        return np.dtype(np.float32 if np.can_cast(self.stored, np.float32) else np.float64)

    @property
    def is_scaled(self) -> bool:
        return (self.scale, self.offset) != (1, 0)

    def values(self, numbers: AnyArray) -> AnyArray:
        """Return the values of stored numbers, computed in float64."""
        numbers = numbers.view(self.stored)
        values: AnyArray = numbers.astype(np.float64) * self.scale + self.offset if self.is_scaled else numbers
        bounded, is_missing = values if self.bounds_values else numbers, np.zeros(numbers.shape, np.bool_)
        with np.errstate(over="ignore"):  # a fill value may be infinite in the type of the numbers
            for number in self.missing:
                is_missing |= numbers == number
            if self.lowest is not None:
                is_missing |= bounded < self.lowest
            if self.highest is not None:
                is_missing |= bounded > self.highest
        values = values.astype(self.dtype)
        values[is_missing] = np.nan
        return values


def packing_of(attributes: Attributes, stored: np.dtype[np.generic]) -> Packing | None:
    """Return what the attributes of an array of the type `stored` say; None if it has none, or they change nothing.

    Raises ValueError for attributes that are not as the conventions have them.
    """
    if stored.kind not in "iuf":
        return None
    numbers = {name: _numbers(name, values) for name, values in attributes.items() if name != "_Unsigned"}
    meant = stored
    if stored.kind != "f" and "_Unsigned" in attributes:
        is_unsigned = str(attributes["_Unsigned"][0]).lower() == "true"
        meant = np.dtype(stored.str.replace(stored.kind, "u" if is_unsigned else "i"))
    (scale,), (offset,) = numbers.get("scale_factor", [1]), numbers.get("add_offset", [0])
    lowest, highest = numbers.get("valid_range") or [
        *numbers.get("valid_min", [None]),
        *numbers.get("valid_max", [None]),
    ]
    is_scaled = (scale, offset) != (1, 0)
    # By netCDF's rule bounds of a wider type than that of the packed numbers are those of the values.
    bounds_values = is_scaled and meant.kind != "f" and float in (type(lowest), type(highest))
    missing = [*numbers.get("_FillValue", []), *numbers.get("missing_value", [])]
    packing = Packing(
        meant.str,
        float(scale),
        float(offset),
        tuple(_as_meant(number, stored, meant) for number in dict.fromkeys(missing) if number == number),
        lowest if bounds_values or lowest is None else _as_meant(lowest, stored, meant),
        highest if bounds_values or highest is None else _as_meant(highest, stored, meant),
        bounds_values,
    )
    return packing if packing != Packing(stored.str) else None


def _numbers(name: str, values: Collection[Any]) -> list[Number]:
    found = [number for value in values if (number := _number(value)) is not None]
    expected = {"valid_range": 2, "missing_value": len(values)}.get(name, 1)
    if len(found) != len(values) or len(values) != expected:
        raise ValueError(f"its attribute {name} is {values}: expected {'two numbers' if expected == 2 else 'a number'}")
    return found


def _number(value: Any) -> Number | None:
    """Return an attribute's value as a number, None if it is none. In zarr, xarray writes the bytes of a float."""
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            pass
        try:
            return float(struct.unpack("<d", base64.b64decode(value))[0])
        except (ValueError, struct.error):
            return None
    return value if isinstance(value, int | float) else None


def _as_meant(number: Number, stored: np.dtype[np.generic], meant: np.dtype[np.generic]) -> Number:
    """Return a number of the attributes in the type that is meant: -1 of 8 bits is 255 if they are unsigned."""
    if meant == stored:
        return number
    values = 1 << (8 * meant.itemsize)
    return number % values if meant.kind == "u" or number < values // 2 else number - values
