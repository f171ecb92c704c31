"""Paths as users write them, and as another host has them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

_MEMORY = "/proc/self/fd/"


def in_folder(folder: Path, path: str | Path) -> Path:
    """`path`, a relative one taken from `folder`, `~` and `~user` being home directories."""
    return folder / os.path.expanduser(path)  # noqa: PTH111 - Path.expanduser raises for a user that is not there


def is_url(path: str | Path) -> bool:
    """Whether it names something in object storage (s3://…), and not a file: a scheme of two letters or more."""
    return isinstance(path, str) and re.match(r"[A-Za-z][A-Za-z0-9+.-]+(://|::)", path) is not None


class AnotherHost:
    """What a process that is not on the trainer's host has to know of the trainer's files.

    `shipped`: a folder of the trainer's host that was brought here as `copy`; all other paths are the same there and
    here. `memory`: for each memory file's descriptor there, that of its copy here.
    """

    def __init__(self, shipped: str = "", copy: str = "", memory: Mapping[int, int] | None = None) -> None:
        self._shipped = shipped
        self._copy = copy
        self._memory = memory or {}

    def path(self, there: str) -> str:
        """Where a file of the trainer's host is here."""
        if there.startswith(_MEMORY):
            return f"{_MEMORY}{self.descriptor(int(there.removeprefix(_MEMORY)))}"
        if not self.was_shipped(there):
            return there
        return str(Path(self._copy, Path(there).relative_to(self._shipped)))

    def was_shipped(self, there: str) -> bool:
        return there.startswith(_MEMORY) or (bool(self._shipped) and Path(there).is_relative_to(self._shipped))

    def descriptor(self, there: int) -> int:
        """That of a memory file's copy."""
        return self._memory[there]


_another_host: AnotherHost | None = None


def be_another_host(known: AnotherHost) -> None:
    """From now on sources that are unpickled in this process look for their files as `known` says."""
    global _another_host  # noqa: PLW0603 - a process is on one host
    _another_host = known


def another_host() -> AnotherHost | None:
    """None on the trainer's own host."""
    return _another_host
