"""A source whose run is traced or not from moment to moment, as a flag in a file says: for benchmarks/watching.py.

Two runs side by side differ by more than a trace costs, if only in where their memory lies. So there is one, and all
that its processes do for a trace asks the flag first. The source brings the change to the assembler, from which the
loaders are forked.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

from blobfeed.workers.processes import loader
from blobfeed.workers.sources.stored import open_npy
from blobfeed.workers.transport import LoaderStatus
from blobfeed.workers.watching import TraceFile, TrainerTrace

from blobfeed import Table


class Flag:
    """A byte that all processes see."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(b"\1")
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 1)

    def __bool__(self) -> bool:
        return bool(self._map[0])

    def set(self, value: bool) -> None:
        self._map[0] = value


class SwitchedSource(Table):
    """The array `image` of a .npy file."""

    def __init__(self, path: Path, flag: Path) -> None:
        self.__dict__.update(open_npy({"image": str(path)}).__dict__)
        self._flag = flag

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        switch(Flag(self._flag))


@contextmanager
def switched(flag: Flag) -> Iterator[None]:
    """In the block, this process does for a trace only what the flag allows at that moment."""
    before = switch(flag)
    try:
        yield
    finally:
        for owner, name, original in before:
            setattr(owner, name, original)


def switch(flag: Flag) -> list[tuple[Any, str, Callable[..., Any]]]:
    """The same from now on, in this process and those that are forked from it; returns what it has replaced."""
    asked: list[tuple[Any, str, object]] = [
        (TraceFile, "write", None),
        (TraceFile, "span", None),
        *((TrainerTrace, name, None) for name in ("asks", "has", "takes")),
        (LoaderStatus, "busy_times", (0, 0, 0)),
        (loader, "_timings", {}),
    ]
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in asked]
    if any(hasattr(original, "asks_first") for *_, original in before):
        return []  # the source was unpickled before
    for (owner, name, otherwise), (*_, original) in zip(asked, before, strict=True):
        setattr(owner, name, _asking_first(flag, original, otherwise))
    return before


def _asking_first(flag: Flag, original: Callable[..., Any], otherwise: object) -> Callable[..., Any]:
    @wraps(original)
    def asking(*given: Any, **named: Any) -> Any:
        return original(*given, **named) if flag else otherwise

    asking.asks_first = True  # type: ignore[attr-defined]
    return asking
