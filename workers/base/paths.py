"""Paths as users write them."""

from __future__ import annotations

import os
import re
from pathlib import Path


def in_folder(folder: Path, path: str | Path) -> Path:
    """`path`, a relative one taken from `folder`, `~` and `~user` being home directories."""
    return folder / os.path.expanduser(path)  # noqa: PTH111 - Path.expanduser raises for a user that is not there


def is_url(path: str | Path) -> bool:
    """Whether it names something in object storage (s3://…), and not a file: a scheme of two letters or more."""
    return isinstance(path, str) and re.match(r"[A-Za-z][A-Za-z0-9+.-]+(://|::)", path) is not None
