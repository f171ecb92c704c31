"""The question whether the network file systems that a source lies on answer.

A hard-mounted file system whose server is gone makes each process that asks it wait without end, out of reach of any
signal but SIGKILL. So another process asks first, which can be killed: `stat --file-system`, which NFS and its like
hand on to the server. It is started only if something lies on such a file system, and takes two milliseconds.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from ..base import SourceError, in_folder
from .files import MOUNTS, mounted

_LAST_WORDS_S = 1.0


def require_answers(declared: object, base_dir: Path, patience_s: float, mounts: Path | None = None) -> None:
    """Ask the network file systems of all paths in `declared`, and of `base_dir`, whether they are there.

    `declared`: mappings and lists of anything. Raises SourceError that names the one that does not answer.
    """
    network = {point: what for _, point, what in mounted(mounts or MOUNTS)}
    if not any(network.values()):
        return
    paths = [os.path.abspath(in_folder(base_dir, text)) for text in ("", *_texts(declared))]  # noqa: PTH100
    for point in sorted({point for path in paths if (point := _mount_of(path, network)) is not None}):
        if not _answers(point, patience_s):
            raise SourceError(
                f"the file system at {point} ({network[point]}) has not answered for timeout_s={patience_s:g} s, and "
                "the source lies on it: see whether its server runs"
            )


def _mount_of(path: str, mounts: Mapping[str, str]) -> str | None:
    """The mount point of the network file system that `path` lies on."""
    above = (str(folder) for folder in (Path(path), *Path(path).parents))
    point = next((folder for folder in above if folder in mounts), None)
    return point if point is not None and mounts[point] else None


def _texts(declared: object) -> Iterator[str]:
    if isinstance(declared, str | Path):
        yield str(declared)
    elif isinstance(declared, Mapping):
        for value in declared.values():
            yield from _texts(value)
    elif isinstance(declared, list | tuple):
        for value in declared:
            yield from _texts(value)


def _answers(point: str, patience_s: float) -> bool:
    try:
        asking = subprocess.Popen(
            ["stat", "--file-system", "--", point],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    except FileNotFoundError:  # no such program
        return True
    try:
        asking.wait(patience_s)
    except subprocess.TimeoutExpired:
        return False
    finally:
        asking.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            asking.wait(_LAST_WORDS_S)
    return True
