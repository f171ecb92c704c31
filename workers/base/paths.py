"""Paths as users write them."""

from __future__ import annotations

import os
from pathlib import Path


def in_folder(folder: Path, path: str | Path) -> Path:
    """`path`, a relative one taken from `folder`, `~` and `~user` being home directories."""
    return folder / os.path.expanduser(path)  # noqa: PTH111 - Path.expanduser raises for a user that is not there
