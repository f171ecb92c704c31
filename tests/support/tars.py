"""Tar files of members in memory."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable
from pathlib import Path


def add(file: tarfile.TarFile, name: str, content: bytes = b"", kind: bytes = tarfile.REGTYPE, link: str = "") -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.type, entry.linkname = len(content), kind, link
    file.addfile(entry, io.BytesIO(content))


def write_tar(path: Path, members: Iterable[tuple[str, bytes]], form: int = tarfile.PAX_FORMAT) -> Path:
    with tarfile.open(path, "w", format=form) as file:
        for name, content in members:
            add(file, name, content)
    return path
