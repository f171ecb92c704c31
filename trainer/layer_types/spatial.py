"""Sizes for height and width, given together or one by one: `kernel_size`, or `kernel_h` and `kernel_w`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .layer import LayerContext

Pair = tuple[int, int]
"""(for height, for width)"""


def read_pair(context: LayerContext, field: str, both: str, single: str, default: int | None) -> Pair:
    """The values of `both`, or of `single`_h and `single`_w, in the layer's message `field`; raises PrototxtError.

    Without `default`, one of them is needed.
    """
    message: Any = getattr(context.param, field)
    sizes = _given(message, both)
    singles = [name for name in (f"{single}_h", f"{single}_w") if name in message.DESCRIPTOR.fields_by_name]
    given = [name for name in singles if message.HasField(name)]
    if given and sizes:
        raise context.unsupported(f"give {both} or {given[0]}, not both", field, given[0])
    if given:
        return _from_singles(context, field, message, singles, default)
    if len(sizes) > 2:
        raise context.unsupported(f"{both} is given {len(sizes)} times, for two spatial axes", field, both)
    if not sizes and default is None:
        raise context.unsupported(f"{both} is needed", field)
    height, width = (*sizes, *sizes)[:2] if sizes else (default or 0, default or 0)
    return height, width


def _given(message: Any, name: str) -> Sequence[int]:
    value = getattr(message, name)
    if isinstance(value, int):
        return [value] if message.HasField(name) else []
    return list(value)


def _from_singles(context: LayerContext, field: str, message: Any, names: Sequence[str], default: int | None) -> Pair:
    for name in names:
        if default is None and not message.HasField(name):
            raise context.unsupported(f"{name} is needed as well", field)
    height, width = (int(getattr(message, name)) if message.HasField(name) else default or 0 for name in names)
    return height, width


def need_positive(context: LayerContext, field: str, name: str, pair: Pair) -> None:
    if min(pair) < 1:
        raise context.unsupported(f"{name} must be at least 1, got {pair}", field)
