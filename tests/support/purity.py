"""Tests marked `pure`, which `make quick` runs: they start no process and import no framework, and are held to it.

All tests of some rooms are pure; a file elsewhere says so itself, by `pytestmark = pytest.mark.pure`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

import numpy.testing  # noqa: F401 - NumPy 1.26 starts `lscpu` when it is imported, and pure tests use it

_TESTS = Path(__file__).resolve().parent.parent
ROOMS = (
    "trainer/prototxt",
    "workers/api",
    "workers/base",
    "workers/loading",
    "workers/order",
    "workers/assembly",
    "sources/stored",
    "supplies",
)
_STARTS = ("os.fork", "os.forkpty", "os.posix_spawn", "subprocess.Popen")
_FRAMEWORKS = ("keras", "tensorflow", "torch")

_pure = ContextVar("pure", default=False)


def is_in_pure_room(path: Path) -> bool:
    return path.relative_to(_TESTS).parent.as_posix() in ROOMS


def watch() -> None:
    """Once in a process: an audit hook cannot be taken back."""
    sys.addaudithook(_refuse)


@contextmanager
def held_to_it() -> Iterator[None]:
    token = _pure.set(True)
    try:
        yield
    finally:
        _pure.reset(token)


def _refuse(event: str, arguments: tuple[object, ...]) -> None:
    if not _pure.get():
        return
    if event in _STARTS:
        raise AssertionError(f"a test marked pure starts a process ({event})")
    if event == "import" and str(arguments[0]).partition(".")[0] in _FRAMEWORKS:
        raise AssertionError(f"a test marked pure imports {arguments[0]}")
