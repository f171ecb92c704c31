"""Arrays at known offsets in files: contiguous, chunked, npy. Read without a library if the layout allows it."""

from __future__ import annotations

from .grid import LIBRARY_MODULE, ArrayOptions, Parts, stored_table
from .layout import (
    Arrangement,
    Chunked,
    ChunkFilter,
    ChunkObjects,
    Layout,
    StoredArray,
    ThroughLibrary,
    dims_by_top,
    from_names,
)
from .npy import open_npy, read_header
from .store import FileStore
