"""A file a sample: `{files: {path: "scans/*.npz", arrays: {data: image, label: mask}}}`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np

from ...workers.api import AnyArray, ArraySpec, Outlier, Paths, Positive, Tops, chosen
from ...workers.base import ParameterError, SampleError, SourceError
from ..arrays import require_arrays
from ..files import Names, PackedNames, WholeFiles, expand_paths, look_at, without_paths
from ..files.roles import in_order
from ..files.urls import is_url
from ..images import PICTURES, PictureOptions, picture_field, picture_options, require_sizes
from ..table import Column, Field, Memory, Records, Resident, Table, learnt_of, naming, put_bytes
from .arrays import FileArrays, Opened, members
from .labels import labels_of

_KIND = "files"
_WHAT = f"source {_KIND}"

Format = Literal["npy", "npz", "pictures", "bytes"]


class FilesOptions(PictureOptions, frozen=True, forbid_unknown_fields=True, kw_only=True):
    r"""The options of `source: {files: …}`, beside those of all pictures.

    path: a glob such as "scans/*.npz", or a list of files and globs; files or URLs. A glob's files come in the order of
        their names, 2 before 10.
    format: what a file is; "auto" goes by the end of the first one's name: .npy, .npz, a picture's, or else bytes.
    arrays: of .npz files, for each top the name of its array; without it all that the first file has.
    labels: the label of each file: "folder" for the name of its folder; a table such as labels.csv, of lines
        `path,label`; or a regular expression whose group is the label, such as "class(\d+)_", looked for in the path.
        What is not written as a number is the name of a class.
    classes: the names of the classes in the order of their numbers, from 0; without it they are sorted.
    max_shapes: of .npy and .npz files, for each top whose shapes differ the largest, such as {data: [512, 512, 128]}.
    max_length: of bytes, the most that a file may have; without it there is room for the largest.
    limit: only the first so many files.
    """

    path: Paths
    format: Literal["auto", Format] = "auto"
    arrays: dict[str, str] = msgspec.field(default_factory=dict)
    labels: str = ""
    classes: tuple[str, ...] = ()
    max_shapes: dict[str, tuple[Positive, ...]] = msgspec.field(default_factory=dict)
    max_length: Positive | None = None
    limit: Positive | None = None


def open_files(options: Mapping[str, object], *, tops: Tops = None, base_dir: Path = Path()) -> Table:
    """Samples that are files: the arrays of .npz files by name, or `data`, of .npy files as they are, of pictures uint8
    (channels, height, width), of other files uint8 (bytes,); and `label`, if `labels` says where they are from.

    Raises ParameterError, SourceError, SampleError for a first sample that cannot be read.
    """
    checked = picture_options(options, FilesOptions, _WHAT)
    paths = expand_paths(checked.path, base_dir, _WHAT)
    if not paths:
        raise SourceError(f"{_WHAT}: no files: 'path' is {checked.path!r}")
    _require_files(paths)
    which = checked.format if checked.format != "auto" else format_of(paths[0])
    _check_use(checked, which)
    root = _common_root(paths)
    names = [path[len(root) :] for path in paths]
    packed = PackedNames.of(map(os.fsencode, names))
    arrays: dict[str, AnyArray] = {"paths": np.frombuffer(packed.joined, np.uint8), "ends": packed.ends}
    if checked.labels:
        arrays["labels"] = labels_of(paths, names, checked.labels, checked.classes, base_dir, _WHAT)
    memory = Memory(_KIND, arrays)
    files = WholeFiles(Names(memory), os.fsencode(root), _WHAT, any_remote=any(map(is_url, paths)))
    column, bad = _Content(checked, which, files, memory, paths).column(tops)
    columns: list[Column] = [column]
    if checked.labels:
        if "label" in column.specs:
            raise ParameterError(
                f"{_WHAT}: {paths[0]} has an array for the top 'label', and 'labels' gives one: give the array another "
                "name, as in arrays: {data: image, mask: label}"
            )
        columns.append(Resident("label", memory, "labels"))

    def check() -> None:
        if bad:
            raise bad[0]

    known = [top for each in columns for top in each.specs]
    return Table(
        _KIND,
        columns,
        held_in=root or paths[0],
        where=_Path(files),
        tops=tops or (known if checked.arrays else in_order(known)),
        what=f"{_WHAT}: {paths[0]}",
        limit=checked.limit,
        options=without_paths(msgspec.structs.replace(checked, labels="")),  # the labels themselves are in memory
        check=check,
    )


def format_of(path: str) -> Format:
    """Return what a file is by the end of its name."""
    end = path.lower().rpartition(".")[2]
    return "npy" if end == "npy" else "npz" if end == "npz" else "pictures" if end in PICTURES else "bytes"


def largest_shapes(paths: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Return the largest extents of each array in these .npy or .npz files, whose headers are read.

    Raises SampleError for a file that cannot be read.
    """
    files, is_npz = WholeFiles(list(map(os.fsencode, paths)), b"", _WHAT), format_of(paths[0]) == "npz"
    largest: dict[str, tuple[int, ...]] = {}
    for index, path in enumerate(paths):
        with naming(_KIND, path, index, path), files.opened(index) as file:
            opened = Opened(file, is_npz=is_npz)
            for name in members(opened.archive) if opened.archive else [""]:
                shape = opened[name].header.shape
                known = largest.setdefault(name or "data", shape)
                if len(shape) == len(known):  # one of other axes is an error when it is read
                    largest[name or "data"] = tuple(map(max, shape, known))
    return largest


def _common_root(paths: Sequence[str]) -> str:
    """Return what all paths or URLs have in common, up to a slash."""
    first, last = min(paths), max(paths)  # all others begin with what these two have in common
    length = next((at for at, (one, other) in enumerate(zip(first, last, strict=False)) if one != other), len(first))
    return first[: first.rfind("/", 0, length) + 1]


def _require_files(paths: Sequence[str]) -> None:
    """Raise SourceError if the first path is that of a folder, or of nothing."""
    if is_url(paths[0]):
        return
    if Path(paths[0]).is_dir():
        raise SourceError(f"{_WHAT}: {paths[0]!r} is a folder: name its files, such as '{paths[0].rstrip('/')}/*.npz'")
    if reason := look_at(os.fsencode(paths[0]))[2]:
        raise SourceError(f"{_WHAT}: {paths[0]!r}: {reason}; check 'path'")


def _check_use(options: FilesOptions, which: Format) -> None:
    """Raise ParameterError for an option that files of this format do not have."""
    for name, formats in (("arrays", ("npz",)), ("max_shapes", ("npy", "npz")), ("max_length", ("bytes",))):
        if getattr(options, name) and which not in formats:
            raise ParameterError(
                f"{_WHAT}: parameter {name!r} is of the format {' and '.join(formats)}, and the files are {which}, by "
                "the end of the first one's name or by 'format'"
            )
    if options.classes and not options.labels:
        raise ParameterError(f"{_WHAT}: parameter 'classes' needs 'labels', which says where the labels are from")
    if which == "pictures":
        require_sizes(options, _WHAT)


class _Path(msgspec.Struct, frozen=True):
    """The place of a sample, for messages."""

    files: WholeFiles

    def __call__(self, index: int) -> str:
        return os.fsdecode(self.files.path(index))


class _Content(msgspec.Struct, frozen=True):
    """The content of the files, as the first one shows it."""

    options: FilesOptions
    format: Format
    files: WholeFiles
    memory: Memory
    paths: Sequence[str]

    def column(self, tops: Tops) -> tuple[Column, list[SampleError]]:
        """Return the column of the files' content, and the error of the first file if that cannot be read."""
        samples, place = len(self.paths), _Path(self.files)
        if self.format in ("npy", "npz"):
            (specs, arrays), bad = learnt_of(partial(self._arrays, tops), range(samples))
            return FileArrays(self.files, samples, specs, arrays, self.memory), bad
        if self.format == "pictures":
            picture, bad = learnt_of(self._picture, range(samples))
            return Records(self.files, samples, {"data": picture}, path=place, others=[self.memory]), bad
        longest, outliers = self._room()
        fields = {"data": Field(ArraySpec((longest,), np.dtype(np.uint8), varies=True), put_bytes, _seen)}
        column = Records(self.files, samples, fields, path=place, others=[self.memory])
        column.outliers = outliers
        return column, []

    def _arrays(self, tops: Tops, index: int) -> tuple[dict[str, ArraySpec], dict[str, str]]:
        """Return the spec of each top, and the name of its array, by what file `index` holds."""
        is_npz, path = self.format == "npz", self.paths[index]
        with naming(_KIND, path, index, path), self.files.opened(index) as file:
            opened = Opened(file, is_npz=is_npz)
            arrays = {"data": ""}
            if opened.archive is not None:
                require_arrays(file, len(opened.archive.namelist()))
                arrays = self.options.arrays or {name: name for name in in_order(members(opened.archive))}
            wanted = {top: name for top, name in arrays.items() if not tops or top in tops} or arrays
            specs = {}
            for top, name in wanted.items():
                with naming(_KIND, path, index, f"{path}:{name}" if name else path, path):
                    array = opened[name]
                    spec = specs[top] = ArraySpec(array.header.shape, array.header.dtype.newbyteorder("="))
                    if 0 in spec.shape and top not in self.options.max_shapes:
                        raise ValueError(
                            f"it is empty: its shape is {spec.shape}, and all files need that of the first"
                        )
                    array.read_into(np.empty(spec.shape, spec.dtype))  # a damaged header would pass for all files'
        largest = self.options.max_shapes
        chosen(arrays, largest, f"{_WHAT}: parameter 'max_shapes'")
        for top in largest.keys() & specs.keys():
            if len(largest[top]) != len(specs[top].shape):
                raise ParameterError(
                    f"{_WHAT}: parameter 'max_shapes' is {list(largest[top])} for {top!r}, whose arrays have the shape "
                    f"{specs[top].shape} in {path}: expected {len(specs[top].shape)} numbers"
                )
            specs[top] = ArraySpec(largest[top], specs[top].dtype, varies=True)
        return specs, wanted

    def _picture(self, index: int) -> Field[bytes]:
        with naming(_KIND, self.paths[index], index, self.paths[index]):
            return picture_field(self.options, _WHAT, lambda: self.files.read(index))

    def _room(self) -> tuple[int, dict[str, Outlier]]:
        """Return the most bytes that a file may have, and the largest file, if it was looked for."""
        if self.options.max_length:
            return self.options.max_length, {}
        if self.files.is_remote:
            raise ParameterError(
                f"{_WHAT}: objects in storage would have to be asked one by one how large they are: give max_length, "
                "the most bytes that one may have"
            )
        sizes = np.array([look_at(os.fsencode(path))[0] for path in self.paths], np.int64)
        return max(1, int(sizes.max())), {"data": Outlier.of(sizes)}


def _seen(data: bytes, _needs: object = None) -> AnyArray:
    return np.frombuffer(data, np.uint8)
