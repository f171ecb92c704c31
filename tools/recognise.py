"""From paths to a source that reads them: what `blobfeed inspect`, `pack` and `bench` are given."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from ..workers.base.errors import BlobfeedError, ParameterError, SampleError, SourceError
from ..workers.base.extras import need
from ..workers.base.source import Source
from ..workers.base.specs import RaggedRows, allocate_rows
from ..workers.sources import open_source
from ..workers.sources.files.paths import natural_key

IMAGE_SUFFIXES = frozenset((".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".pgm"))
_HDF5_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_IDX_NAME = re.compile(r"idx\d-ubyte(\.gz)?$|\.idx(\.gz)?$")
COLOR_ATTRIBUTE = "color"
"""Of a packed file: the order of the channels, if it is known."""

_MANY_DATASETS = 8
"""From so many data sets that differ in their numbers alone, each is taken for a sample and not for a top."""
_LOOKED_AT = 32
_LARGEST_SIDE = 8192
_USUAL_SIDE = 256
_SOME_CLASSES = 10


@dataclass(frozen=True)
class Found:
    """What paths hold: the declaration for `source:`, the tops to name beside it (None: by default), and remarks.

    `is_bgr`: whether colours come in the order of OpenCV and Caffe.
    """

    declared: Mapping[str, Any]
    tops: tuple[str, ...] | None = None
    remarks: tuple[str, ...] = ()
    is_bgr: bool = False

    @property
    def kind(self) -> str:
        return next(iter(self.declared))

    def open(self) -> Source:
        return open_source(self.declared, tops=self.tops, base_dir=Path.cwd())


def in_yaml(value: object) -> str:
    """`value` on one line, as it stands in a prototxt's param_str."""
    return yaml.safe_dump(value, default_flow_style=True, width=10**6, sort_keys=False).strip().removesuffix("\n...")


def source_of(paths: Sequence[str], tops: Sequence[str] | None = None, image_list: Path | None = None) -> Found:
    """What `paths` hold; one of them may be a declaration such as `{npy: {data: x.npy}}`.

    `image_list`: where to write the list of a folder of images. Raises SourceError for what cannot be read, or needs
    something first; it says what.
    """
    if len(paths) == 1 and paths[0].lstrip().startswith("{"):
        found = _declaration(paths[0])
    else:
        found = _recognised([Path(path).expanduser() for path in paths], image_list)
    is_bgr = found.is_bgr or (
        found.kind in ("image_list", "lmdb", "leveldb") and found.declared[found.kind].get("color", "bgr") == "bgr"
    )
    return replace(found, tops=tuple(tops) if tops else found.tops, is_bgr=is_bgr)


def _declaration(text: str) -> Found:
    try:
        declared = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ParameterError(
            f"{text!r} is no mapping in YAML: {error}; expected such as {{npy: {{data: x.npy}}}}"
        ) from None
    if not isinstance(declared, dict) or len(declared) != 1:
        raise ParameterError(f"{text!r}: expected a mapping with one key, the kind, such as {{npy: {{data: x.npy}}}}")
    ((kind, options),) = declared.items()
    return Found({kind: {"path": options} if isinstance(options, str) else options})


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
    if len(paths) > 1:
        raise SourceError(f"{len(paths)} paths of kind {kind}: name one, or declare {{concat: [{{{kind}: …}}, …]}}")
    (path,) = paths
    if kind == "folder":
        return _folder(path, image_list)
    if kind in ("lmdb", "leveldb"):
        need("lmdb" if kind == "lmdb" else "plyvel", f"{path}")
        return _sized(kind, {"path": str(path)})
    if kind == "npz":
        return Found({"npz": {"path": str(path)}})
    if kind == "tar":
        raise SourceError(f"{path} is a tar file: unpack it into a folder, and inspect that")
    return _text(path)


def _kind(path: Path) -> str:
    if path.is_dir():
        databases = {"data.mdb": "lmdb", "CURRENT": "leveldb"}
        return next((kind for name, kind in databases.items() if (path / name).exists()), "folder")
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
    if b"\0" in head or not head.strip():
        kinds = "none of HDF5, npy, npz, IDX, LMDB, tar, or a text that lists files"
        raise SourceError(f"{str(path)!r} is {kinds if head.strip() else 'empty'}")
    return "text"


def _tops_by_file(paths: Sequence[Path]) -> dict[str, str]:
    """A top for each file: `data` and `label` where the names say so, else the file's own name."""
    if len(paths) == 1:
        return {"data": str(paths[0])}
    names = [re.split(r"[-.]", path.name)[0] if _IDX_NAME.search(path.name) is None else path.name for path in paths]
    tops = {}
    for name, path in zip(names, paths, strict=True):
        is_label = re.search(r"label|class|target|(^|_)y($|_)", name.lower()) is not None
        is_data = re.search(r"image|data|(^|_)x($|_)", name.lower()) is not None
        top = "label" if is_label else "data" if is_data else name
        tops[top if top not in tops else path.stem] = str(path)
    return dict(sorted(tops.items(), key=lambda top: top[0] != "data"))


# ---- HDF5


def _hdf5(paths: Sequence[Path]) -> Found:
    from ..workers.sources.stored.hdf5_library import h5py

    path = str(paths[0]) if len(paths) == 1 else [str(path) for path in paths]
    with h5py.File(paths[0], "r") as file:
        shapes: dict[str, tuple[int, ...]] = {}
        attributes: dict[str, tuple[str, ...]] = {}

        def note(name: str, item: Any) -> None:
            attributes[name] = tuple(item.attrs)
            if isinstance(item, h5py.Dataset) and item.shape:
                shapes[name] = item.shape

        file.visititems(note)
        is_bgr = file.attrs.get(COLOR_ATTRIBUTE) == "bgr"
    if not shapes:
        raise SourceError(f"{paths[0]} has no data set with an axis that could count samples")
    alike = Counter(re.sub(r"\d+", "#", name) for name in shapes)
    pattern, most = alike.most_common(1)[0]
    if most >= _MANY_DATASETS and "#" in pattern:
        return _hdf5_samples(path, [name for name in shapes if re.sub(r"\d+", "#", name) == pattern], attributes, alike)
    length = Counter(shape[0] for shape in shapes.values()).most_common(1)[0][0]
    fitting = [name for name, shape in shapes.items() if shape[0] == length]
    others = sorted(set(shapes) - set(fitting))
    first = sorted(fitting, key=lambda name: (name != "data", -int(np.prod(shapes[name][1:])), name != "label", name))
    remarks = (f"left out, since they have another length than {length:,}: {', '.join(others)}",) if others else ()
    named = tuple(first) if first != ["data", "label"] else None
    return Found({"hdf5": {"path": path}}, named, remarks, is_bgr)


def _hdf5_samples(
    path: str | list[str], names: list[str], attributes: Mapping[str, tuple[str, ...]], alike: Counter[str]
) -> Found:
    """One data set, or one group of data sets, is a sample: the names differ in their numbers alone."""
    options: dict[str, Any] = {"path": path}
    first = min(names, key=natural_key)
    group, _, leaf = first.rpartition("/")
    remarks: tuple[str, ...] = ()
    if not re.search(r"\d", leaf):
        own = [name.removeprefix(f"{group}/") for name in attributes if name.startswith(f"{group}/")]
        options["datasets"] = [each for each in own if alike[re.sub(r"\d+", "#", f"{group}/{each}")] == len(names)]
        options["labels"] = list(attributes.get(group, ()))
    else:
        options["labels"] = list(attributes[first])
    if not options["labels"]:
        del options["labels"]
        remarks = ("the samples have no attributes, so there are no labels",)
    return Found({"hdf5_samples": options}, None, remarks)


# ---- images


def _text(path: Path) -> Found:
    first = next((line.strip() for line in path.read_text(errors="replace").splitlines() if line.strip()), "")
    beside = [folder / first for folder in (Path(), path.parent)]
    if any(file.is_file() and _kind(file) == "hdf5" for file in beside):
        listed = next(file for file in beside if file.is_file())
        found = _hdf5([listed])
        return Found({found.kind: {**found.declared[found.kind], "path": str(path)}}, found.tops, found.remarks)
    name = first.rsplit(None, 1)[0]
    here = next(
        (folder for folder in (Path(), path.parent) for each in (name, first) if (folder / each).is_file()), None
    )
    if here is None:
        raise SourceError(
            f"{path}: its first line, {first!r}, names no file here or beside the list: say where they are, by "
            f"'{{image_list: {{path: {path}, root_folder: FOLDER, shorter_side: 256}}}}'"
        )
    options = {"path": str(path)} | ({"root_folder": str(here)} if here != Path() else {})
    need("cv2", f"{path}")
    return _sized("image_list", options)


def _folder(path: Path, image_list: Path | None) -> Found:
    files = sorted((file for file in path.rglob("*") if file.is_file()), key=lambda file: natural_key(str(file)))
    if not files:
        raise SourceError(f"the folder {path} holds no files")
    images = [file for file in files if file.suffix.lower() in IMAGE_SUFFIXES]
    if len(images) * 2 > len(files):
        return _folder_of_images(path, images, image_list)
    suffix = Counter(file.suffix for file in files).most_common(1)[0][0]
    return _recognised([file for file in files if file.suffix == suffix], image_list)


def _folder_of_images(path: Path, images: Sequence[Path], image_list: Path | None) -> Found:
    """Images in a folder for each class, as torchvision's ImageFolder and Keras take them."""
    if image_list is None:
        raise SourceError(
            f"{path} holds {len(images):,} images; a list of them says their order and classes: `blobfeed inspect "
            f"{path} --list train.txt` writes it and goes on"
        )
    folders = [image.relative_to(path).parts[0] if image.parent != path else "" for image in images]
    classes = sorted(set(folders) - {""}, key=natural_key)
    if classes and "" in folders:
        raise SourceError(f"{path} holds images beside the folders of classes ({', '.join(classes[:_SOME_CLASSES])})")
    numbers = {each: f" {number}" for number, each in enumerate(classes)}
    lines = [f"{image}{numbers.get(folder, '')}" for image, folder in zip(images, folders, strict=True)]
    image_list.write_text("\n".join(lines) + "\n")
    said = f"wrote {image_list}: {len(images):,} images"
    if classes:
        some = ", ".join(f"{number} {name}" for number, name in enumerate(classes[:_SOME_CLASSES]))
        said += f", classes {some}{' …' if len(classes) > _SOME_CLASSES else ''}"
    found = _sized("image_list", {"path": str(image_list)})
    return Found(found.declared, None, (said, *found.remarks))


def _sized(kind: str, options: dict[str, Any]) -> Found:
    """With what the source must be told of the pictures' sizes; some of them are looked at."""
    limits = {"max_height": _LARGEST_SIDE, "max_width": _LARGEST_SIDE}
    source = open_source({kind: {**options, **limits}}, tops=None, base_dir=Path.cwd())
    try:
        sizes = _sizes_of(source)
    finally:
        source.close()
    smallest, largest = sizes.min(axis=0), sizes.max(axis=0)
    if (smallest == largest).all():
        return Found({kind: {**options, "equal_sizes": True} if kind == "image_list" else options})
    seen = (
        f"{len(sizes)} of {len(source):,} pictures looked at: {smallest[0]}×{smallest[1]} to {largest[0]}×{largest[1]}"
    )
    if kind == "image_list":
        side = min(_USUAL_SIDE, int(np.median(sizes.min(axis=1))))
        return Found(
            {kind: {**options, "shorter_side": side}},
            None,
            (f"{seen}; shorter_side resizes them; crop_size in transform gives one size",),
        )
    height, width = (int(2 ** np.ceil(np.log2(side))) for side in largest)
    return Found(
        {kind: {**options, "max_height": height, "max_width": width}},
        None,
        (f"{seen}; crop_size in transform gives one size",),
    )


def _sizes_of(source: Source) -> Any:
    """Height and width of some samples over the whole of `source`, shape (samples, 2); leaves out bad ones.

    Raises the last one's error if all are bad.
    """
    sizes: list[Any] = []
    error: BlobfeedError = SourceError("no samples")
    for index in np.unique(np.linspace(0, len(source) - 1, _LOOKED_AT).astype(np.int64)):
        rows = allocate_rows(source.specs, 1)
        try:
            source.read(np.array([index]), rows)
        except SampleError as bad:
            error = bad
            continue
        data = rows["data"]
        sizes.append((data.shapes[0] if isinstance(data, RaggedRows) else data.shape[1:])[-2:])
    if not sizes:
        raise error
    return np.array(sizes)
