"""Loaders on other machines: the bridge between assembler and Ray cluster, and its actors. No other imports ray."""

from __future__ import annotations

if __name__ != "blobfeed.cluster":
    raise ImportError(f"import blobfeed.cluster: as {__name__!r} its classes would exist a second time")

from .actor import RemoteLoader, code_digest
from .cluster import address_of, require_answer, why_not_joined
from .home import Bridge
