"""The kinds of source: what stands under `source:` for each, the module that opens it, and how its files look.

A new kind is a function that opens a source, and an entry here. In another package it is an entry point of the group
GROUP. Modules are imported when a kind is first used.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

_HDF5 = b"\x89HDF\r\n\x1a\n"


class Kind(msgspec.Struct, frozen=True):
    """One kind of source.

    `opener`, `options`: `module:name`, of the class or function that opens a source, and of the class of its options,
    "" if it has none; a dot in front means this package. `library`: a library that it needs and blobfeed does not
    require.
    `example`: of options whose keys are the tops; such a kind takes no bare path. `about`: what `blobfeed params` says
    of such keys. `is_list`: it is made of a list of sources. `finds_tops`: the files say which tops there are, if no
    option lists them. `has_pictures`: it decodes pictures, in the order `color`.

    The rest tells files by their looks. `names`: a pattern for the end of a file's name. `signatures`: bytes, each with
    the offset where a file has them. `markers`: files of which a folder has one.
    """

    opener: str
    options: str = ""
    library: str = ""
    example: str = ""
    about: str = ""
    is_list: bool = False
    finds_tops: bool = False
    has_pictures: bool = False
    names: str = ""
    signatures: tuple[tuple[int, bytes], ...] = ()
    markers: tuple[str, ...] = ()


KINDS: Mapping[str, Kind] = {
    "hdf5": Kind(
        ".hdf5.source:open_hdf5",
        ".hdf5.source:HDF5Options",
        finds_tops=True,
        names=r"\.(h5|hdf5)",
        signatures=((0, _HDF5), *((512 << n, _HDF5) for n in range(12))),  # other bytes may precede, as in MATLAB's
    ),
    "hdf5_samples": Kind(".hdf5_samples.source:open_hdf5_samples", ".hdf5_samples.source:HDF5SamplesOptions"),
    "npy": Kind(
        ".stored.npy:open_npy",
        ".stored.npy:NpyOptions",
        example="{data: data.npy, label: label.npy}",
        about="Every other key is a top, with a path, a glob or a list of them: {npy: {data: x.npy, label: y.npy}}.",
        names=r"\.npy",
        signatures=((0, b"\x93NUMPY"),),
    ),
    "npz": Kind(".arrays:open_npz", ".arrays:NpzOptions", finds_tops=True, signatures=((0, b"PK\3\4"),)),
    "files": Kind(
        ".file_samples.source:open_files",
        ".file_samples.source:FilesOptions",
        finds_tops=True,
        has_pictures=True,
    ),
    "image_list": Kind(
        ".images.source:open_image_list", ".images.options:ImageListOptions", library="cv2", has_pictures=True
    ),
    "lmdb": Kind(
        ".lmdb.source:open_lmdb",
        ".lmdb.source:LmdbOptions",
        library="lmdb",
        has_pictures=True,
        signatures=((16, b"\xde\xc0\xef\xbe"),),
        markers=("data.mdb", "CURRENT"),  # the latter of a LevelDB: the source says how to make an LMDB of it
    ),
    "tar": Kind(
        ".tar.source:open_tar",
        ".tar.source:TarOptions",
        finds_tops=True,
        has_pictures=True,
        names=r"\.(tar|tgz|tar\.(gz|bz2|xz|zst))",  # the source says how to unpack compressed ones
        signatures=((257, b"ustar"),),
    ),
    "parquet": Kind(
        ".parquet.source:open_parquet",
        ".parquet.source:ParquetOptions",
        finds_tops=True,
        library="pyarrow",
        has_pictures=True,
        names=r"\.(parquet|arrow|feather)",
        signatures=((0, b"PAR1"), (0, b"ARROW1\0\0")),
        markers=("dataset_dict.json", "state.json"),
    ),
    "zarr": Kind(
        ".zarr.source:open_zarr",
        ".zarr.source:ZarrOptions",
        library="zarr",
        markers=("zarr.json", ".zgroup", ".zarray"),
    ),
    "stream": Kind(".stream:StreamSource", ".stream:StreamOptions"),
    "arrays": Kind(
        ".arrays:open_arrays",
        example="{data: x, label: y}",
        about="arrays in memory, each under a top's name: {arrays: {data: images, label: classes}}; in Python alone. "
        "A mapping `window` among them makes windows of their rows.",
    ),
    "idx": Kind(
        ".arrays:open_idx",
        example="{data: train-images-idx3-ubyte.gz, label: train-labels-idx1-ubyte.gz}",
        about="the files of MNIST and its like, each under a top's name: {idx: {data: images.gz, label: labels.gz}}.",
        names=r"(idx\d-ubyte|\.idx)(\.gz)?",
    ),
    "concat": Kind(
        ".mixed:open_concat",
        about="a list of sources, one behind the other: {concat: [{hdf5: …}, {npy: …}]}.",
        is_list=True,
    ),
    "zip": Kind(
        ".zipped:open_zip",
        about="a list of sources of one length, side by side: {zip: [{image_list: …}, {hdf5: …, tops: {mask: data}}]}. "
        "Beside a source stand its tops, or for each top its name there; without it those of the source.",
        is_list=True,
    ),
}


GROUP = "blobfeed.sources"
"""The entry points by which installed packages add kinds: the name is the kind, the object its opener."""


def installed_kinds() -> dict[str, Kind]:
    """Return the kinds that installed packages add. It reads their metadata, which takes milliseconds."""
    from importlib.metadata import entry_points  # takes 20 ms, and no kind of ours needs it

    return {point.name: Kind(point.value) for point in entry_points(group=GROUP)}


def imported(place: str) -> Any:
    """Import what `place` names: `module:name`, in this package if it begins with a dot."""
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module, __package__), name)


def kind_of(path: Path) -> str:
    """The kind of the file or folder at `path` by its looks, "" if it looks like none; raises OSError.

    The name decides before the content: the source then says what is wrong with a damaged file.
    """
    if path.is_dir():
        marked = (kind for kind, each in KINDS.items() for name in each.markers if (path / name).exists())
        return next(marked, "")
    if kind := kind_of_name(path.name):
        return kind
    # The signature nearest to the start decides: a tar file may begin with an HDF5 file, at offset 512.
    signatures = sorted((at, sign, kind) for kind, each in KINDS.items() for at, sign in each.signatures)
    with path.open("rb") as file:
        for at, sign, kind in signatures:
            file.seek(at)
            if file.read(len(sign)) == sign:
                return kind
    return ""


def kind_of_name(name: str) -> str:
    """The kind of files whose names end as `name` does, "" for none."""
    return next((kind for kind, each in KINDS.items() if each.names and re.search(f"(?:{each.names})$", name)), "")
