"""From paths to a source that reads them: what `blobfeed inspect`, `pack` and `bench` are given."""

from __future__ import annotations

import itertools
import math
import os
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import shorten
from tokenize import TokenError
from typing import Any, BinaryIO, cast

import numpy as np
import yaml

from ..workers.base.checks import shown
from ..workers.base.errors import BlobfeedError, ParameterError, SourceError
from ..workers.base.extras import need
from ..workers.base.files import writing
from ..workers.base.param_str import parse_param_str
from ..workers.base.source import Source
from ..workers.base.specs import AnyArray
from ..workers.loading.worker import read_one
from ..workers.sources import open_source
from ..workers.sources.files.file import FileStamp
from ..workers.sources.files.paths import natural_key
from ..workers.sources.hdf5.examine import holds_values
from ..workers.sources.hdf5_samples.scan import label_array
from ..workers.sources.images.list_file import parse_image_list
from ..workers.sources.images.options import LONGEST_SIDE_RATIO
from ..workers.sources.stored.hdf5_library import h5py
from ..workers.sources.stored.library_rows import open_file
from ..workers.sources.stored.npy import read_header
from ..workers.sources.tar.fields import PICTURES
from ..workers.sources.zarr.examine import examine_array

_HDF5_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_WORDS_FOR = {"label": r"label|class|target|(^|_)y($|_)", "data": r"image|data|(^|_)x($|_)"}
"""What a file's name says of its top."""
_MARKS = {"data.mdb": "lmdb", "CURRENT": "leveldb", "zarr.json": "zarr", ".zgroup": "zarr", ".zarray": "zarr"}
"""Files that say what their folder is."""
_IDX_NAME = re.compile(r"idx\d-ubyte(\.gz)?$|\.idx(\.gz)?$")
COLOR_ATTRIBUTE = "color"
"""Of a packed file: the order of the channels, if it is known."""

_MANY_DATASETS = 8
"""From so many data sets that differ in their numbers alone, each is taken for a sample and not for a top."""
_IMAGES = (*PICTURES, "gif", "avif", "jp2", "jfif", "jpe")
_DATA = (".h5", ".hdf5", ".npy", ".tar", ".mat")
_LOOKED_AT = 32
_LARGEST_SIDE = 1 << 15
_USUAL_SIDE = 256


Shapes = dict[str, tuple[int, ...] | None]
"""Of arrays, by name; None for what holds no numbers or strings."""


@dataclass(frozen=True)
class Found:
    """What paths hold: the declaration for `source:`, the tops to name beside it (None: by default), and remarks.

    `noted_bgr`: whether a packed file says so of its colours.
    """

    declared: Mapping[str, Any]
    tops: tuple[str, ...] | None = None
    remarks: tuple[str, ...] = ()
    noted_bgr: bool = False

    @property
    def kind(self) -> str:
        return next(iter(self.declared))

    @property
    def is_bgr(self) -> bool:
        """Whether colours come in the order of OpenCV and Caffe."""
        return self.noted_bgr or _gives_bgr(self.declared)

    def open(self) -> Source:
        return open_source(self.declared, tops=self.tops, base_dir=Path.cwd())


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


def source_of(paths: Sequence[str], tops: Sequence[str] | None = None, image_list: Path | None = None) -> Found:
    """What `paths` hold; one of them may be a declaration such as `{npy: {data: x.npy}}`.

    `image_list`: where to write the list of a folder of images. Raises SourceError for what cannot be read, or needs
    something first; it says what.
    """
    if len(paths) == 1 and paths[0].lstrip().startswith("{"):
        found = _declaration(paths[0])
    else:
        found = _recognised([Path(path).expanduser() for path in paths], image_list)
    return replace(found, tops=tuple(tops) if tops else found.tops)


def _declaration(text: str) -> Found:
    declared = parse_param_str(text, "the declaration")
    if len(declared) != 1:
        raise ParameterError(f"{text!r}: expected a mapping with one key, the kind, such as {{npy: {{data: x.npy}}}}")
    ((kind, options),) = declared.items()
    return Found({kind: {"path": options} if isinstance(options, str) else options})


def _gives_bgr(declared: Mapping[str, Any]) -> bool:
    """Whether pictures come as OpenCV decodes them; `declared` can be opened."""
    ((kind, options),) = declared.items()
    if kind == "concat":
        return all(map(_gives_bgr, options))
    if isinstance(options, Mapping) and options.get("color", "bgr") != "bgr":
        return False
    return kind in ("image_list", "tar", "lmdb", "leveldb", "windows")


def _recognised(paths: Sequence[Path], image_list: Path | None) -> Found:
    if missing := [path for path in paths if not path.exists()]:
        raise SourceError(
            f"there is no {str(missing[0])!r}; name files or folders, or a declaration such as {{npy: …}}"
        )
    kinds = {_kind(path) for path in paths}
    if len(kinds) > 1:
        raise SourceError(
            f"{', '.join(map(str, paths))} are of different kinds ({', '.join(sorted(kinds))}): name those of one kind"
        )
    kind = kinds.pop()
    if kind in ("npy", "idx"):
        return Found({kind: _tops_by_file(paths)})
    if kind == "hdf5":
        return _hdf5(paths)
    if kind == "tar":
        return _tar(paths)
    if len(paths) > 1:
        raise SourceError(f"{len(paths)} paths of kind {kind}: name one, or declare {{concat: [{{{kind}: …}}, …]}}")
    (path,) = paths
    if kind == "folder":
        return _folder(path, image_list)
    if kind in ("lmdb", "leveldb"):
        return sized(kind, {"path": str(path)})
    if kind == "npz":
        return _npz(path)
    if kind == "zarr":
        return _zarr(path)
    return _text(path)


def _kind(path: Path) -> str:
    if path.is_dir():
        return next((kind for name, kind in _MARKS.items() if (path / name).exists()), "folder")
    with path.open("rb") as file:
        head = file.read(512)
    if head.startswith(_HDF5_SIGNATURE) or (path.suffix in (".h5", ".hdf5") and b"\0" in head):
        return "hdf5"
    if _IDX_NAME.search(path.name):
        return "idx"
    signs = ((0, b"\x93NUMPY", "npy"), (0, b"PK\3\4", "npz"), (16, b"\xde\xc0\xef\xbe", "lmdb"), (257, b"ustar", "tar"))
    for offset, sign, kind in signs:
        if head[offset:].startswith(sign):
            return kind
    if re.search(r"\.(tar|tgz|tar\.(gz|bz2|xz|zst))$", path.name):  # its source says what is wrong with it
        return "tar"
    if h5py.is_hdf5(path):  # behind other bytes, as in MATLAB's files
        return "hdf5"
    if not head.startswith((b"\xff\xfe", b"\xfe\xff")) and (b"\0" in head or not head.strip()):  # no UTF-16
        kinds = "none of HDF5, npy, npz, IDX, LMDB, tar, or a text that lists files"
        raise SourceError(f"{str(path)!r} is {kinds if head.strip() else 'empty'}")
    return "text"


def _tops_by_file(paths: Sequence[Path]) -> dict[str, str]:
    """A top for each file: `data` and `label` where the names say so, else the file's own name."""
    if len(paths) == 1:
        return {"data": str(paths[0])}
    tops: dict[str, str] = {}
    for path in paths:
        words = re.sub(r"[-.]", "_", path.name).lower()
        name = path.name if _IDX_NAME.search(path.name) else re.split(r"[-.]", path.name)[0]
        top = next((top for top, pattern in _WORDS_FOR.items() if re.search(pattern, words)), name)
        named = top if top not in tops else path.stem
        if named in tops:
            raise SourceError(
                f"{tops[named]} and {path} would both be the top {named!r}: rename one, or declare the tops, such as "
                f"'{{npy: {{{named}: [FILE, FILE]}}}}' for .npy files to be put end to end"
            )
        tops[named] = str(path)
    return dict(sorted(tops.items(), key=lambda top: top[0] != "data"))


def _one_or_all(paths: Sequence[Path]) -> str | list[str]:
    """What the option `path` is given."""
    return str(paths[0]) if len(paths) == 1 else [str(path) for path in paths]


# ---- HDF5


def _hdf5(paths: Sequence[Path]) -> Found:
    path = _one_or_all(paths)
    shapes: Shapes = {}

    def visit(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset) and not holds_values(item):
            shapes[name] = None
        elif getattr(item, "shape", ()):
            shapes[name] = item.shape

    with open_file(FileStamp.of(str(paths[0])), None) as file:
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
    label = re.compile(_WORDS_FOR["label"])
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


# ---- npz, zarr


def _npz(path: Path) -> Found:
    shapes: Shapes = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for member in archive.namelist():
                with archive.open(member) as stream, suppress(ValueError, TokenError):
                    shape, _, dtype = read_header(cast("BinaryIO", stream))
                    shapes[member.removesuffix(".npy")] = shape if dtype.kind in "biufcSU" else None
    except (OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise SourceError(f"{path} cannot be read: {error}; write or copy it again") from error
    tops, remarks = _tops_of(shapes, path)
    return Found({"npz": {"path": str(path)}}, tops if remarks else None, remarks)


def _zarr(path: Path) -> Found:
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


# ---- images


def _text(path: Path) -> Found:
    if path.suffix == ".prototxt":
        raise SourceError(
            f"{path} is a definition of a net or a solver, and no data: name the data that it reads, or draw what a "
            f"net sees by `blobfeed inspect {path} --sheet sheet.png`"
        )
    first = os.fsdecode(parse_image_list(path.read_bytes(), str(path))[0].path(0))
    for folder, name in itertools.product((Path(), path.parent), (first, first.rsplit(None, 1)[0])):
        if not os.path.isfile(folder / name):  # noqa: PTH113 - Path.is_file raises for a name that is too long
            continue
        if h5py.is_hdf5(folder / name):
            found = _hdf5([folder / name])
            return replace(found, declared={found.kind: {**found.declared[found.kind], "path": str(path)}})
        return sized("image_list", {"path": str(path)} | ({"root_folder": str(folder)} if folder != Path() else {}))
    raise SourceError(
        f"{path}: its first path, {shown(first)}, is no file here or beside the list: say where the files are, by "
        f"'{{image_list: {{path: {path}, root_folder: FOLDER, shorter_side: 256}}}}'"
    )


def _folder(path: Path, image_list: Path | None) -> Found:
    files = sorted(_files(path), key=lambda file: natural_key(str(file)))
    if not files:
        raise SourceError(f"the folder {path} holds no files")
    images = [file for file in files if _is_image(file)]
    rest = [file for file in files if not _is_image(file)]
    others = Counter(file.suffix or file.name for file in rest)
    data = max((count for end, count in others.items() if end.lower() in _DATA), default=0)
    # Each may have a text and more beside it; or it may itself lie beside data, to show them.
    if len(images) > data and len(images) >= max(others.values(), default=0):
        found = _folder_of_images(path, images, image_list)
        named = ", ".join(f"{end} ({count:,})" for end, count in sorted(others.items()))
        remark = shorten(f"left out by the ends of their names: {named}", 200, placeholder=" …")
        return replace(found, remarks=(*found.remarks, remark)) if others else found
    counts = Counter(file.suffix for file in rest)
    suffix = max(counts, key=lambda end: (counts[end], end.lower() in _DATA))
    return _recognised([file for file in rest if file.suffix == suffix], image_list)


def _is_image(file: Path) -> bool:
    return file.suffix.lower()[1:] in _IMAGES


def _files(folder: Path) -> Iterator[Path]:
    """All below `folder`, also behind symbolic links, as torchvision finds them; but nothing that is hidden.

    A link that leads nowhere is among them, so that it is missed by its name.
    """
    for root, folders, names in os.walk(folder, followlinks=True):
        here = Path(root).resolve()
        folders[:] = [name for name in folders if name[0] != "." and not here.is_relative_to((here / name).resolve())]
        seen = (Path(root, name) for name in names if name[0] != ".")
        yield from (file for file in seen if file.is_file() or file.is_symlink())


def _folder_of_images(path: Path, images: Sequence[Path], image_list: Path | None) -> Found:
    """Images in a folder for each class, as torchvision's ImageFolder and Keras take them."""
    if image_list is None:
        raise SourceError(
            f"{path} holds {len(images):,} images; a list of them says their order and classes: `blobfeed inspect "
            f"{path} --list train.txt` writes it and goes on"
        )
    folders = [image.relative_to(path).parts[0] if image.parent != path else "" for image in images]
    classes = sorted(set(folders) - {""})  # 10 before 2, as torchvision and Keras number them
    if classes and "" in folders:
        raise SourceError(
            f"{path} holds images beside the folders of classes ({shorten(', '.join(classes), 200, placeholder=' …')})"
        )
    names = [_listed(image) for image in images]
    numbering = image_list.with_name("classes.txt")
    if image_list == numbering:
        raise SourceError(f"{image_list} is where the names of the classes go: name another file for the list")
    classes = _numbered(classes, numbering)
    numbers = {each: f" {number}" for number, each in enumerate(classes)}
    lines = [f"{name}{numbers.get(folder, '')}" for name, folder in zip(names, folders, strict=True)]
    text = os.fsencode("\n".join(lines) + "\n")
    if image_list.is_file() and image_list.read_bytes() != text:
        raise SourceError(f"{image_list} is there already, with other content: name another file, or remove it")
    if classes and not numbering.exists():
        with writing(numbering):
            numbering.write_bytes(os.fsencode("\n".join(classes) + "\n"))
    with writing(image_list):
        image_list.write_bytes(text)
    named = shorten(", ".join(f"{number} {name}" for number, name in enumerate(classes)), 200, placeholder=" …")
    said = f"wrote {image_list}: {len(images):,} images" + (f", classes {named}" if classes else "")
    found = sized("image_list", {"path": str(image_list)})
    return Found(found.declared, None, (said, *found.remarks))


def _listed(image: Path) -> str:
    """As a line of a list has it, where `#` begins a comment, and white space in front does not count."""
    name = str(image)
    if len(name.splitlines()) > 1:
        raise SourceError(f"{name!r} has a line break in its name, and a list has a line for each image: rename it")
    return f"./{name}" if name[0] == "#" or name[0].isspace() else name


def _tar(paths: Sequence[Path]) -> Found:
    """WebDataset's shards; the first picture of a sample is `data`, its class `label`."""
    options: dict[str, Any] = {"path": _one_or_all(paths)}
    with closing(_opened_at_any_size("tar", options)) as source:
        members = list(source.specs)
    picture = next((member for member in members if member in PICTURES), None)
    if picture is None:
        return Found({"tar": options})
    tops = {picture: "data", "cls": "label"}
    return sized("tar", {**options, "members": {tops.get(member, member): member for member in members}})


def _numbered(classes: list[str], file: Path) -> list[str]:
    """The classes in the order of their numbers: those of `file`, a name on each line, if an earlier list wrote it.

    A folder of validation may lack a class, and must not number the others anew.
    """
    if not classes or not file.exists():
        return classes
    known = os.fsdecode(file.read_bytes()).splitlines()
    if unknown := [name for name in classes if name not in known]:
        raise SourceError(
            f"{file}, which an earlier list has written, has no class {unknown[0]!r}: write this list into another "
            f"folder, or remove {file.name} to number the classes anew"
        )
    return known


def sized(kind: str, options: dict[str, Any]) -> Found:
    """With what the source must be told of the pictures' sizes; some of them are looked at."""
    with closing(_opened_at_any_size(kind, options)) as source:
        sizes, samples = _sizes_of(source), len(source)
    smallest, largest = sizes.min(axis=0), sizes.max(axis=0)
    resizes, seen = kind in ("image_list", "tar"), f"{smallest[0]}×{smallest[1]} to {largest[0]}×{largest[1]}"
    if (smallest == largest).all():
        return Found({kind: options | ({"equal_sizes": True} if resizes else {})})
    how = "shorter_side resizes them; " if resizes else ""
    remark = f"{len(sizes)} of {samples:,} pictures looked at: {seen}; {how}crop_size in transform gives one size"
    side, bounds = 0, dict[str, int]()
    if resizes:
        side = min(_USUAL_SIDE, int(np.median(sizes.min(axis=1))))
        largest = np.ceil(sizes * side / sizes.min(axis=1, keepdims=True)).astype(np.int64).max(axis=0)
        bounds = {"shorter_side": side}
    if not resizes or largest.max() > LONGEST_SIDE_RATIO * side:
        least = LONGEST_SIDE_RATIO * side  # of the others some may be long the other way
        height, width = (max(least, 1 << int(length - 1).bit_length()) for length in largest)
        bounds |= {"max_height": height, "max_width": width}
    return Found({kind: {**options, **bounds}}, None, (remark,))


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
