"""The bytes of local files and of objects in storage, which all sources read, and the paths that name them."""

from __future__ import annotations

from .file import (
    FANCY_BELOW_BYTES,
    Bytes,
    FileStamp,
    Locking,
    RawFile,
    are_small,
    as_bytes,
    by_group,
    copy_runs,
    distinct,
    gather_rows,
    locate_part,
    require_in_range,
    split_by_part,
    stretches,
)
from .identity import digest, spread, without_paths
from .kept_indices import kept
from .lru import ChunkCache, RecentlyUsed, Scratch
from .object_stores import ObjectStore, locate, objects_below
from .paths import PackedNames, expand_paths, is_table, list_hdf5_files, natural_key, table_advice
from .remote import (
    CONNECTIONS,
    Pending,
    RangeStream,
    RemoteFile,
    RemoteStamp,
    Stamp,
    WholeObjects,
    examined_stamp,
    stamp_of,
)
from .store import Place, Store
from .whole import Names, OpenFile, WholeFiles, look_at
