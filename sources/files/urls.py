"""The URLs of objects in storage, also in a chain of fsspec."""

from __future__ import annotations

import re
from pathlib import Path


def is_url(path: str | Path) -> bool:
    """Return true if `path` names an object in storage (s3://…): its scheme has two letters or more.

    A chain of fsspec counts, too: simplecache::s3://…, or an absolute path after the two colons.
    """
    return isinstance(path, str) and re.match(r"[A-Za-z][A-Za-z0-9+.-]+(://|::(/|.*://))", path) is not None


def split_url(url: str) -> tuple[str, str, str]:
    """Cut a URL before and behind the path in there: ("zip://", "a/b", "::s3://bucket/c.zip").

    Of a chain, that is the path of the first link which has one: a cache (simplecache::s3://…) has none.
    """
    found = re.fullmatch(r"((?:[^:/]+::)*(?:[^:/]+://)?)(.*?)((?:::.*)?)", url, re.DOTALL)
    assert found is not None  # each part may be empty
    before, path, behind = found.groups()
    return before, path, behind


def join_path(folder: str, name: str) -> str:
    """Return the path or URL of `name` in `folder`; what is in an archive is named before the archive."""
    before, path, behind = split_url(folder) if is_url(folder) else ("", folder, "")
    return f"{before}{path.rstrip('/')}/{name}{behind}" if path else f"{before}{name}{behind}"


def folder_of(url: str) -> str:
    """Return the URL of the folder in which `url` lies."""
    before, path, behind = split_url(url)
    return before + path.rpartition("/")[0] + behind
