"""A source that reads some files, as far as can be guessed: its tops, its labels, the sizes of its pictures."""

from __future__ import annotations

import math
import os
import re
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from tokenize import TokenError
from typing import Any, BinaryIO, cast

import numpy as np
import yaml

from ..sources import color_of, open_source
from ..sources.file_samples.source import largest_shapes
from ..sources.files import FileStamp, list_hdf5_files, natural_key
from ..sources.files.roles import in_order
from ..sources.hdf5.examine import holds_values
from ..sources.hdf5_samples.scan import label_array
from ..sources.images import LONGEST_SIDE_RATIO
from ..sources.kinds import KINDS
from ..sources.stored import read_header
from ..sources.stored.hdf5_library import errors_named, h5py, open_file
from ..sources.zarr.examine import examine_array
from ..workers.api import AnyArray, ArraySpec, Source
from ..workers.base import BlobfeedError, SourceError, in_folder, need
from ..workers.loading import read_one

COLOR_ATTRIBUTE = "color"
"""The attribute of a packed file that has the order of the channels, if it is known."""

WORDS_FOR = {"label": r"label|class|target|(^|_)y($|_)", "data": r"image|data|(^|_)x($|_)"}
"""The words in a file's name that mean a top."""
MANY_SAMPLES = 8
"""From so many data sets, or files, that differ in their numbers alone, each is taken for a sample and not a top."""

_Shapes = dict[str, tuple[int, ...] | None]
"""The shapes of arrays by name; None for what holds no numbers or strings."""

_LOOKED_AT = 32
_LARGEST_SIDE = 1 << 15
_USUAL_SIDE = 256


@dataclass(frozen=True)
class Found:
    """The data behind paths: the declaration for `source:`, the tops to name beside it (None: by default), and remarks.

    `transform`: the crop that brings pictures to one size.
    """

    declared: Mapping[str, Any]
    tops: tuple[str, ...] | None = None
    remarks: tuple[str, ...] = ()
    transform: Mapping[str, Any] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        return next(iter(self.declared))

    @property
    def color(self) -> str:
        """The order of the channels of pictures, "rgb" or "bgr"; "" if nothing says it."""
        return color_in(self.declared, Path.cwd())

    def open(self) -> Source:
        source = open_source(self.declared, tops=self.tops, base_dir=Path.cwd())
        source.check_samples()
        return source


def sample_of(source: Source, index: int) -> dict[str, AnyArray]:
    """One sample, by top; raises what the source does, a BlobfeedError for one that cannot be read."""
    return {top: np.asarray(value) for top, value in read_one(source, index).items()}


def samples_of(source: Source, indices: Iterable[int], bad: dict[int, str]) -> Iterator[dict[str, AnyArray]]:
    """One by one those samples of `source` that can be read; what the others say goes into `bad`, by index."""
    for index in indices:
        try:
            yield sample_of(source, index)
        except BlobfeedError as error:
            bad[int(index)] = str(error)  # the error itself would keep the sample's bytes, by its traceback


def in_yaml(value: object) -> str:
    """`value` on one line, as it stands in a prototxt's param_str."""
    # Letters as they are: an escape needs quotation marks, which end a param_str.
    text: str = yaml.safe_dump(value, default_flow_style=True, width=10**6, sort_keys=False, allow_unicode=True)
    return text.strip().removesuffix("\n...")


def color_in(declared: Mapping[str, Any], base_dir: Path) -> str:
    """Return the order of the channels that a source, which can be opened, gives; "" if nothing says it."""
    ((kind, options),) = declared.items()
    if kind == "hdf5":
        path = options["path"] if isinstance(options, Mapping) else options
        first = list_hdf5_files(path, base_dir, kind)[0]
        with open_file(FileStamp.of(first), None) as file, errors_named(first):
            return str(file.attrs.get(COLOR_ATTRIBUTE, ""))
    if kind in KINDS and KINDS[kind].is_list:  # of a zip the first source has the pictures that a net sees
        parts = [{name: part[name] for name in part if name in KINDS} for part in options]
        colors = {color_in(part, base_dir) for part in (parts[:1] if kind == "zip" else parts)}
        return colors.pop() if len(colors) == 1 else ""
    return "bgr" if _is_raw(declared, base_dir) else color_of(declared)


def said_of_color(found: Found, specs: Mapping[str, ArraySpec]) -> str:
    """Return a sentence about the order of the channels, "" where there are no colours."""
    if not has_colors(specs) or not found.color:
        return ""
    options = found.declared[found.kind]
    if _is_raw(found.declared, Path.cwd()):
        return "the channels of raw records come as they are stored: BGR if Caffe's convert_imageset wrote them"
    if found.kind == "hdf5" or (isinstance(options, Mapping) and "color" in options):
        return f"the channels are {found.color.upper()}"
    return "the channels are RGB here and in readers, and BGR in layers: `color` in the source says one for both"


def has_colors(specs: Mapping[str, ArraySpec]) -> bool:
    return any(spec.dtype == np.uint8 and len(spec.shape) == 3 and spec.shape[0] == 3 for spec in specs.values())


def _is_raw(declared: Mapping[str, Any], base_dir: Path) -> bool:
    if "lmdb" not in declared:
        return False
    from ..sources.lmdb.source import holds_raw_pictures  # its library may be missing

    options = declared["lmdb"]
    return holds_raw_pictures(str(in_folder(base_dir, options["path"] if isinstance(options, Mapping) else options)))


def _one_or_all(paths: Sequence[Path]) -> str | list[str]:
    """Return the value of the option `path`."""
    return str(paths[0]) if len(paths) == 1 else [str(path) for path in paths]


# ---- named arrays


def hdf5(paths: Sequence[Path]) -> Found:
    path = _one_or_all(paths)
    shapes: _Shapes = {}

    def visit(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset) and not holds_values(item):
            shapes[name] = None
        elif getattr(item, "shape", ()):
            shapes[name] = item.shape

    with open_file(FileStamp.of(str(paths[0])), None) as file, errors_named(str(paths[0])):
        file.visititems(visit)
        patterns = {name: re.sub(r"\d+", "#", name) for name, shape in shapes.items() if shape}
        pattern, most = Counter(patterns.values()).most_common(1)[0] if patterns else ("", 0)
        if most >= MANY_SAMPLES and "#" in pattern:
            numbered = {name: shape for name, shape in shapes.items() if shape and patterns[name] == pattern}
            unnumbered = {name: shape for name, shape in shapes.items() if shape and "#" not in patterns[name]}
            if not _have_labels(numbered, unnumbered):
                return _hdf5_samples(file, {"path": path}, list(numbered))
    tops, remarks = _tops_of(shapes, paths[0])
    return Found({"hdf5": {"path": path}}, None if tops == ("data", "label") else tops, remarks)


def _have_labels(numbered: Mapping[str, tuple[int, ...]], others: Mapping[str, tuple[int, ...]]) -> bool:
    """Return true for the arrays of one data set, as feature_0 to feature_9 beside a label for each entry."""
    if any(len(shape) > 2 for shape in numbered.values()):  # pictures, beside which names of three classes may lie
        return False
    lengths = {shape[:1] for shape in numbered.values()}
    label = re.compile(WORDS_FOR["label"])
    return any(lengths == {shape} and label.search(name.lower().rpartition("/")[2]) for name, shape in others.items())


def _tops_of(shapes: _Shapes, path: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the arrays of the usual length, in the order that their names decide; and remarks on the ignored ones.

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
    first = in_order(sorted(fitting, key=lambda name: (-math.prod(usable[name][1:]), name)))
    reasons = {
        f"they have another length than {length:,}": set(usable) - set(fitting),
        "they are empty or have no axis": set(shapes) - set(usable) - set(others),
        "they are no arrays of numbers or strings": set(others),
    }
    return first, tuple(
        f"ignored, since {reason}: {', '.join(sorted(names))}" for reason, names in reasons.items() if names
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
    shapes: _Shapes = {}
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


def files(path: str | list[str]) -> Found:
    """A .npy or .npz file for each sample; their headers say which tops differ in shape."""
    options: dict[str, Any] = {"path": path}
    with closing(open_source({"files": options}, tops=None, base_dir=Path.cwd())) as source:
        shapes = {top: spec.shape for top, spec in source.specs.items()}
        largest = largest_shapes([source.where(index) for index in range(len(source))])
    if differing := {top: list(shape) for top, shape in largest.items() if shape != shapes[top]}:
        options["max_shapes"] = differing
    said = "each file is a sample; if they are parts to be put end to end, declare {npy: {data: FILES}}"
    return Found({"files": options}, None, (said,) if "data" in shapes and len(shapes) == 1 else ())


def zarr(path: Path) -> Found:
    need("zarr", f"{path}")
    shapes: _Shapes = {}
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


# ---- pictures


def records(kind: str, paths: Sequence[Path]) -> Found:
    """WebDataset's shards, or Parquet files; the first picture of a sample is `data`, its class `label`."""
    options: dict[str, Any] = {"path": _one_or_all(paths)}
    with closing(_opened_at_any_size(kind, options)) as source:
        specs = source.specs
    picture = next((name for name, spec in specs.items() if spec.varies and len(spec.shape) == 3), None)
    if picture is None:
        return Found({kind: options})
    tops = {picture: "data"} if "label" in specs else {picture: "data", "cls": "label"}
    chosen = {tops.get(name, name): name for name in specs if name == picture or name != "data"}
    found = sized(kind, {**options, "members" if kind == "tar" else "columns": chosen})
    if len(chosen) == len(specs):
        return found
    return replace(found, remarks=(*found.remarks, "ignored, since the pictures take its name: data"))


def sized(kind: str, options: dict[str, Any]) -> Found:
    """Return the declaration with the options for the pictures' sizes, found by looking at some pictures."""
    with closing(_opened_at_any_size(kind, options)) as source:
        sizes, samples = _sizes_of(source), len(source)
    smallest, largest = sizes.min(axis=0), sizes.max(axis=0)
    resizes, seen = (
        kind in ("files", "image_list", "tar", "parquet"),
        f"{smallest[0]}×{smallest[1]} to {largest[0]}×{largest[1]}",
    )
    if (smallest == largest).all():
        return Found({kind: options | ({"equal_sizes": True} if resizes else {})})
    how = "shorter_side resizes them, take the same one for training and for validation; " if resizes else ""
    remark = f"{len(sizes)} of {samples:,} pictures looked at: {seen}; {how}crop_size in transform gives one size"
    side, bounds, crop = 0, dict[str, int](), int(sizes.min())
    if resizes:
        side = _round(min(_USUAL_SIDE, int(np.median(sizes.min(axis=1)))))
        crop = max(1, side * 7 // 8)  # 224 of 256, as is usual
        largest = np.ceil(sizes * side / sizes.min(axis=1, keepdims=True)).astype(np.int64).max(axis=0)
        bounds = {"shorter_side": side}
    if not resizes or largest.max() > LONGEST_SIDE_RATIO * side:
        least = LONGEST_SIDE_RATIO * side  # of the others some may be long the other way
        height, width = (max(least, 1 << int(length - 1).bit_length()) for length in largest)
        bounds |= {"max_height": height, "max_width": width}
    return Found({kind: {**options, **bounds}}, None, (remark,), transform={"crop_size": crop})


def _round(side: int) -> int:
    """The largest usual side up to `side`: pictures of training and of validation are to get the same one."""
    step = next((step for step in (32, 8) if side >= step), 1)
    return side // step * step


def _opened_at_any_size(kind: str, options: Mapping[str, Any]) -> Source:
    limits = {"max_height": _LARGEST_SIDE, "max_width": _LARGEST_SIDE}
    return open_source({kind: {**options, **limits}}, tops=None, base_dir=Path.cwd())


def _sizes_of(source: Source) -> Any:
    """Height and width of some samples over the whole of `source`, shape (samples, 2); leaves out bad ones.

    Raises SourceError, which says what the first one does, if all are bad.
    """
    bad: dict[int, str] = {}
    indices = np.unique(np.linspace(0, len(source) - 1, _LOOKED_AT).astype(np.int64))
    sizes = [sample["data"].shape[-2:] for sample in samples_of(source, indices, bad)]
    if not sizes:
        raise SourceError(bad[0])
    return np.array(sizes)
