"""Files and folders of named arrays: HDF5, npz and zarr."""

from __future__ import annotations

import math
import os
import re
import zipfile
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tokenize import TokenError
from typing import Any, BinaryIO, cast

from ...workers.base.errors import SourceError
from ...workers.base.extras import need
from ...workers.sources.files.file import FileStamp
from ...workers.sources.files.paths import natural_key
from ...workers.sources.hdf5.examine import holds_values
from ...workers.sources.hdf5_samples.scan import label_array
from ...workers.sources.stored.hdf5_library import h5py
from ...workers.sources.stored.library_rows import errors_named, open_file
from ...workers.sources.stored.npy import read_header
from ...workers.sources.zarr.examine import examine_array
from .found import COLOR_ATTRIBUTE, Found, one_or_all

WORDS_FOR = {"label": r"label|class|target|(^|_)y($|_)", "data": r"image|data|(^|_)x($|_)"}
"""What a file's name says of its top."""
_MANY_DATASETS = 8
"""From so many data sets that differ in their numbers alone, each is taken for a sample and not for a top."""

Shapes = dict[str, tuple[int, ...] | None]
"""Of arrays, by name; None for what holds no numbers or strings."""


def hdf5(paths: Sequence[Path]) -> Found:
    path = one_or_all(paths)
    shapes: Shapes = {}

    def visit(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset) and not holds_values(item):
            shapes[name] = None
        elif getattr(item, "shape", ()):
            shapes[name] = item.shape

    with open_file(FileStamp.of(str(paths[0])), None) as file, errors_named(str(paths[0])):
        file.visititems(visit)
        patterns = {name: re.sub(r"\d+", "#", name) for name, shape in shapes.items() if shape}
        pattern, most = Counter(patterns.values()).most_common(1)[0] if patterns else ("", 0)
        if most >= _MANY_DATASETS and "#" in pattern:
            numbered = {name: shape for name, shape in shapes.items() if shape and patterns[name] == pattern}
            unnumbered = {name: shape for name, shape in shapes.items() if shape and "#" not in patterns[name]}
            if not _have_labels(numbered, unnumbered):
                return _hdf5_samples(file, {"path": path}, list(numbered))
        noted_bgr = file.attrs.get(COLOR_ATTRIBUTE) == "bgr"
    tops, remarks = _tops_of(shapes, paths[0])
    return Found({"hdf5": {"path": path}}, None if tops == ("data", "label") else tops, remarks, noted_bgr)


def _have_labels(numbered: Mapping[str, tuple[int, ...]], others: Mapping[str, tuple[int, ...]]) -> bool:
    """Whether these are arrays of one data set, as feature_0 to feature_9 beside a label for each of their entries."""
    if any(len(shape) > 2 for shape in numbered.values()):  # pictures, beside which names of three classes may lie
        return False
    lengths = {shape[:1] for shape in numbered.values()}
    label = re.compile(WORDS_FOR["label"])
    return any(lengths == {shape} and label.search(name.lower().rpartition("/")[2]) for name, shape in others.items())


def _tops_of(shapes: Shapes, path: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Of arrays with these shapes, those of the usual length, the largest first; and what is left out, for remarks.

    Raises SourceError if none counts samples.
    """
    others = [name for name, shape in shapes.items() if shape is None]
    counting = {name: shape for name, shape in shapes.items() if shape}
    usable = {name: shape for name, shape in counting.items() if all(shape)} or counting
    if not usable:
        held = f"; {', '.join(others)} cannot be read" if others else ""
        raise SourceError(f"{path} has no array of numbers or strings with an axis that could count samples{held}")
    lengths = Counter(shape[0] for shape in usable.values())
    # What has one entry is rather about all samples, such as MATLAB's single numbers or the names that pandas stores.
    has_one = usable.get("data", (0,))[0] == 1
    length = max(lengths, key=lambda length: (length > 1 or has_one, lengths[length], length))
    fitting = [name for name, shape in usable.items() if shape[0] == length]
    first = sorted(fitting, key=lambda name: (name != "data", -math.prod(usable[name][1:]), name != "label", name))
    reasons = {
        f"they have another length than {length:,}": set(usable) - set(fitting),
        "they are empty or have no axis": set(shapes) - set(usable) - set(others),
        "they are no arrays of numbers or strings": set(others),
    }
    return tuple(first), tuple(
        f"left out, since {reason}: {', '.join(sorted(names))}" for reason, names in reasons.items() if names
    )


def _hdf5_samples(file: Any, options: dict[str, Any], names: list[str]) -> Found:
    """One data set, or one group of data sets, is a sample: the names differ in their numbers alone."""
    first = file[min(names, key=natural_key)]
    if not re.search(r"\d", first.name.rpartition("/")[2]):
        first = first.parent
        inside: list[str] = []

        def note(name: str, item: Any) -> None:  # hdf5_samples takes no elements of varying length
            if hasattr(item, "shape") and holds_values(item) and item.dtype.kind in "biufcS":
                inside.append(name)

        first.visititems(note)
        other = file[max(names, key=natural_key)].parent
        options["datasets"] = [name for name in inside if name in other]
    labels = []
    for label in first.attrs:
        with suppress(TypeError, OSError):  # NumPy has no such type
            if label_array(first.attrs[label]) is not None:
                labels.append(label)
    if labels:
        return Found({"hdf5_samples": {**options, "labels": labels}})
    said = "the samples have no attributes that hold numbers or strings, so there are no labels"
    return Found({"hdf5_samples": options}, None, (said,))


def npz(path: Path) -> Found:
    shapes: Shapes = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for member in archive.namelist():
                with archive.open(member) as stream, suppress(ValueError, TokenError):
                    shape, _, dtype = read_header(cast("BinaryIO", stream))
                    shapes[member.removesuffix(".npy")] = shape if dtype.kind in "biufcSU" else None
    except Exception as error:  # a damaged one makes zipfile raise NotImplementedError, RuntimeError and more
        raise SourceError(f"{path} cannot be read: {error}; write or copy it again") from error
    tops, remarks = _tops_of(shapes, path)
    return Found({"npz": {"path": str(path)}}, tops if remarks else None, remarks)


def zarr(path: Path) -> Found:
    need("zarr", f"{path}")
    shapes: Shapes = {}
    for folder, below, names in os.walk(path):
        if not {"zarr.json", ".zarray"} & set(names):
            continue
        if (name := str(Path(folder).relative_to(path))) == ".":
            name = ""
        try:
            array = examine_array(folder, name)
        except SourceError:
            if not name:
                raise
            shapes[name] = None
        else:
            if array is None:
                continue
            if not name:
                return Found({"zarr": {"path": str(path)}})
            shapes[name] = array.shape
        below.clear()  # chunks
    tops, remarks = _tops_of(shapes, path)
    return Found({"zarr": {"path": str(path)}}, None if tops == ("data", "label") else tops, remarks)
