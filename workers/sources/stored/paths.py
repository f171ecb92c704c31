"""The files that an option with paths means: paths as they stand, and globs in natural order."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Sequence
from pathlib import Path

from ...base.errors import SourceError

Paths = str | Path | Sequence[str | Path]


def natural_key(text: str) -> tuple[tuple[int, str], ...]:
    """Sorts `trajectory_2` before `trajectory_10`: runs of digits compare as numbers."""
    parts = re.split(r"(\d+)", text)
    return tuple((int(part), "") if position % 2 else (-1, part) for position, part in enumerate(parts))


def as_strings(paths: object) -> object:
    """Path objects, alone or in a list, as strings; anything else as it is."""
    if isinstance(paths, list | tuple):
        return [as_strings(path) for path in paths]
    return os.fspath(paths) if isinstance(paths, Path) else paths


def expand_paths(paths: str | Sequence[str], base_dir: Path, what: str) -> list[Path]:
    """The files that `paths` names, relative ones from `base_dir`, the files of a glob in natural order.

    A path that exists as it stands is no glob, whatever characters it has. Raises SourceError, its message begun by
    `what`, where a glob matches nothing; whether the other files exist is not looked at.
    """
    return [file for path in ([paths] if isinstance(paths, str) else paths) for file in _expand(base_dir / path, what)]


def _expand(path: Path, what: str) -> list[Path]:
    if path.exists() or not glob.has_magic(str(path)):
        return [path]
    found = sorted(glob.glob(str(path), recursive=True), key=natural_key)
    if not found:
        raise SourceError(f"{what}: no file matches {str(path)!r}")
    return [Path(name) for name in found]
