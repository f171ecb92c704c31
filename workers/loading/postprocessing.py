"""Running the user's whole-batch hook on a slot's rows, in a loader."""

from __future__ import annotations

import numpy as np

from ..base.hooks import PostprocessHook
from ..base.specs import AnyArray, NamedRows, RaggedRows, Rows
from .transform import CROPS


def postprocess_rows(hook: PostprocessHook, rows: NamedRows) -> None:
    """Call `hook` with the batch by name; it may change it in place or return what shall take its place.

    Raises what the hook raises, ValueError where what it returned has another shape or name.
    """
    batch = {name: _array(name, top) for name, top in rows.items() if name != CROPS}
    result = hook(dict(batch))
    if result is None:
        return
    if unknown := [name for name in result if name not in batch]:
        raise ValueError(f"postprocess returned {', '.join(map(str, unknown))}, but the tops are {', '.join(batch)}")
    for name, value in result.items():
        if value is batch[name]:
            continue
        if np.shape(value) != batch[name].shape:
            raise ValueError(
                f"postprocess returned shape {np.shape(value)} for top {name!r}, expected {batch[name].shape}"
            )
        batch[name][...] = value


def _array(name: str, top: Rows) -> AnyArray:
    if isinstance(top, RaggedRows):
        raise ValueError(f"postprocess needs samples of one shape, but top {name!r} has {top.spec}")
    return top


def cut_rows(rows: NamedRows, first: int, count: int) -> dict[str, Rows]:
    """Rows first … first+count-1 of every top."""
    return {name: top[first : first + count] for name, top in rows.items()}
