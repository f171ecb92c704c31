"""HDF5 with one data set per top: one file or several, any layout, read into the rows of the batch slot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from ...base.checks import check_options
from ...base.errors import ParameterError
from ..stored.columns import Access, Column
from ..stored.dims import arrange, named_dims, names_from_torch
from ..stored.paths import as_strings
from ..stored.source import StoredSource
from .files import list_hdf5_files
from .options import HDF5Options

_DEFAULT_TOPS = ("data", "label")


class HDF5Source(StoredSource):
    """The samples of one or several HDF5 files, put end to end; each top is the data set of that name.

    Bytes are read at their place in the file, without the library, where the layout allows (docs/sources_hdf5.md).
    Raises ParameterError for a bad option, SourceError where a file or a data set is missing, damaged or does not fit
    the others.
    """

    kind = "hdf5"

    def __init__(self, *, tops: Sequence[str] | None = None, base_dir: Path = Path(), **options: object) -> None:
        """`options`: the fields of HDF5Options. `tops`: names of data sets, "data" and "label" where None."""
        # Only here, since it needs h5py: a loader that reads by file offsets is spared the time to import that.
        from .examine import examine_file, require_same_length

        checked = check_options(
            {name: as_strings(value) for name, value in options.items()}, HDF5Options, "source hdf5"
        )
        wanted = tuple(tops or _DEFAULT_TOPS)
        dims = _dims(checked, wanted)
        files = []
        for path in list_hdf5_files(checked.path, base_dir, "source hdf5"):
            files.append(arrange(examine_file(path, wanted, checked), dims))
            require_same_length(files[-1])
            for top, array in files[-1].items():
                array.require_like(files[0][top], "source hdf5")
        columns = {top: Column([arrays[top] for arrays in files]) for top in wanted}
        access = Access(checked.memory_map, checked.locking, checked.chunk_cache_bytes, checked.open_files)
        super().__init__(columns, access, limit=checked.limit)

    @classmethod
    def from_options(cls, options: Mapping[str, Any], *, tops: Sequence[str] | None, base_dir: Path) -> Self:
        return cls(tops=tops, base_dir=base_dir, **options)


def _dims(options: HDF5Options, tops: Sequence[str]) -> dict[str, tuple[str, ...]]:
    places = {name: getattr(options, name) for name in ("num_dim", "h_dim", "w_dim", "cha_dim")}
    from_places = names_from_torch(places, "source hdf5")
    if from_places and options.dims:
        raise ParameterError("source hdf5: 'dims' and 'num_dim, h_dim, w_dim, cha_dim' say the same: give one of them")
    return named_dims(from_places or options.dims, tops, "source hdf5")
