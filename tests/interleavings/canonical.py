"""A state in a form that is equal for states with the same future: so the explorer knows where it has been.

All that an object holds counts, by whatever name: what the ledger comes to remember tells states apart by itself. What
never changes is left out, and so are counters, which differ by the past alone. Tasks are numbered here by their first
mention, loaders by their order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from types import NoneType
from typing import Any

import numpy as np
from blobfeed.supplies import AboutSampler
from blobfeed.workers.api import Parameters
from blobfeed.workers.assembly import Evidence, Task
from blobfeed.workers.order import At, Cut, Supply
from blobfeed.workers.pipeline import Failed
from blobfeed.workers.plan import Plan
from blobfeed.workers.transport import Failure

_FIXED = (Plan, Parameters, AboutSampler, Supply, Cut)
_PLAIN = {bool, int, str, bytes, NoneType, Evidence}
_BY_NAME = (Failure, Failed)
"""Their texts say how long a loader had been at work."""

_COUNTERS = {"tasks_done", "work", "dropped", "next_loader", "elapsed_ns", "_next_task"}
"""The last one numbers the ledger's tasks."""

_GONE = -2


class LoaderNumber(int):
    """The number of a loader, known as one wherever the ledger keeps it."""


class Canonical:
    """`loaders`: the numbers of all loaders, also of those that are only heard of."""

    def __init__(self, loaders: Iterable[int]) -> None:
        self._loaders = {number: rank for rank, number in enumerate(sorted({*loaders}))}
        self._tasks = {0: -1}
        self._seen: dict[int, object] = {}

    def of(self, thing: Any) -> object:
        kind = type(thing)
        if kind in _PLAIN:
            return thing
        if kind is LoaderNumber:
            return self._loaders.get(thing)
        if kind in (list, tuple, deque, At):
            return tuple(map(self.of, _without_keys(thing)))
        if kind is dict:
            return tuple((self.of(key), self.of(value)) for key, value in thing.items() if not self._is_dead(value))
        if kind is set:
            return frozenset(map(self.of, thing))
        if kind is float:
            return round(thing, 6)
        if kind is np.ndarray:
            return thing.tobytes()
        if isinstance(thing, _BY_NAME):
            return kind.__name__
        if id(thing) not in self._seen:
            self._seen[id(thing)] = kind.__name__, *(self._field(thing, name) for name in _names(thing))
        return self._seen[id(thing)]

    def _is_dead(self, thing: object) -> bool:
        return isinstance(thing, LoaderNumber) and thing not in self._loaders

    def _field(self, owner: object, name: str) -> object:
        value = getattr(owner, name)
        if name == "task" or (name == "id" and type(owner) is Task):
            return self._tasks.setdefault(value, len(self._tasks)) if type(value) is int else self.of(value)
        if name == "was_at":
            return self._tasks.get(value, _GONE)
        return self.of(value)


def _without_keys(sequence: Sequence[Any]) -> Sequence[Any]:
    """The entries of a heap in their order, without the numbers that a task repeats; any other sequence as it is."""
    first = sequence[0] if sequence else None
    if not (isinstance(first, tuple) and first and is_dataclass(first[-1])):
        return sequence
    return [entry[-1] if isinstance(entry[-1], Task) else entry for entry in sorted(sequence, key=lambda e: e[:-1])]


def _names(thing: Any) -> list[str]:
    declared = _declared(type(thing))  # type: ignore[arg-type] # mypy takes no class for hashable
    return [name for name in vars(thing) if name not in _COUNTERS] if declared is None else declared


@cache
def _declared(kind: type) -> list[str] | None:
    """The fields of a class that says which it has, but counters."""
    if issubclass(kind, _FIXED):
        return []
    names = [field.name for field in fields(kind)] if is_dataclass(kind) else getattr(kind, "__struct_fields__", None)
    return None if names is None else [name for name in names if name not in _COUNTERS]
