"""Sizes along the spatial axes, given together or one by one: `kernel_size`, or `kernel_h` and `kernel_w`."""

from __future__ import annotations

from typing import Any

from .blobs import Shape
from .layer import LayerContext


def read_sizes(
    context: LayerContext, field: str, both: str, single: str, default: int | None, axes: int = 2, least: int = 0
) -> Shape:
    """One size per spatial axis, from `both` or from `single`_h and `single`_w in the layer's message `field`.

    Raises PrototxtError if a size is below `least`, or missing without `default`.
    """
    message: Any = getattr(context.param, field)
    singles = [name for name in (f"{single}_h", f"{single}_w") if name in message.DESCRIPTOR.fields_by_name]
    given = [name for name in singles if message.HasField(name)]
    value = getattr(message, both)
    sizes = ([value] if message.HasField(both) else []) if isinstance(value, int) else list(value)
    if given:
        if sizes:
            raise context.unsupported(f"give {both} or {given[0]}, not both", field, given[0])
        if axes != 2:
            raise context.unsupported(f"{given[0]} is for two spatial axes; the bottom has {axes}", field, given[0])
        if default is None and len(given) < 2:
            (missing,) = set(singles) - set(given)
            raise context.unsupported(f"{missing} is needed as well", field)
        sizes = [getattr(message, name) if name in given else default for name in singles]
    elif len(sizes) not in (0, 1, axes):
        raise context.unsupported(f"{both} is given {len(sizes)} times for {axes} spatial axes", field, both)
    elif not sizes and default is None:
        raise context.unsupported(f"{both} is needed", field)
    result = tuple(sizes * (axes if len(sizes) == 1 else 1)) or (default or 0,) * axes
    if any(size < least for size in result):
        raise context.unsupported(f"{both} must be at least {least}, got {result}", field)
    return result
