"""Arrays at known offsets in files: contiguous, chunked, npy. Read without a library if the layout allows it."""

from __future__ import annotations

from .external import ExternalFiles
from .grid import LIBRARY_MODULE, ArrayOptions, Parts, stored_table
from .hdf5_library import errors_named, find_dataset, h5py, open_file, read_whole, require_filters
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
from .library_rows import LibraryRows, longest_element
from .npy import open_npy, read_header
from .store import FileStore
