"""The options of the HDF5 source."""

from __future__ import annotations

from typing import Annotated

import msgspec

from ..stored.columns import Locking

Positive = Annotated[int, msgspec.Meta(ge=1)]
NotNegative = Annotated[int, msgspec.Meta(ge=0)]
Place = Annotated[int, msgspec.Meta(ge=1, le=4)]


class HDF5Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What stands under `source: {hdf5: …}`.

    path: an HDF5 file, a list of them, a glob, or a text file that lists them, one a line, as Caffe's HDF5Data takes.
    limit: only the first so many samples.
    dims: the stored order of the first top's dimensions, such as [h, w, c, n], or a mapping from top to such a list;
        delivered as N×C×H×W.
    num_dim, h_dim, w_dim, cha_dim: the same for the first top as 1-based places (torch.async-hdf5-reader).
    max_length: of strings (bytes) or arrays of varying length; without it they are all looked at once, at the start.
    locking: whether files are locked while open; false for network file systems that cannot lock.
    chunk_cache_bytes: decoded chunks that each loader keeps.
    open_files: files that each loader keeps open at a time; without it what a quarter of its descriptors allows.
    memory_map: true or false to have uncompressed data always or never read from a memory map; by the size of a sample
        where it is left out. A map is faster below half a megabyte; the cached file then counts as the loader's memory.
    """

    path: str | tuple[str, ...]
    limit: Positive | None = None
    dims: tuple[str, ...] | dict[str, tuple[str, ...]] | None = None
    num_dim: Place | None = None
    h_dim: Place | None = None
    w_dim: Place | None = None
    cha_dim: Place | None = None
    max_length: Positive | None = None
    locking: Locking = None
    chunk_cache_bytes: NotNegative = 32 << 20
    open_files: Positive | None = None
    memory_map: bool | None = None
