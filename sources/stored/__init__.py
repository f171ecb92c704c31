"""Arrays at known offsets in files: contiguous, chunked, npy. Read without a library if the layout allows it."""

from __future__ import annotations

from .grid import LIBRARY_MODULE, Parts
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
from .opening import ArrayOptions, ChunkedOptions, stored_table
from .packing import CF_ATTRIBUTES, Attributes
from .patches import Enough, PatchOptions
from .store import FileStore
