"""The plug-ins that say which samples come, and make rows of those that have no index."""

from __future__ import annotations

if __name__ != "blobfeed.supplies":
    raise ImportError(f"import blobfeed.supplies: as {__name__!r} its classes would exist a second time")
