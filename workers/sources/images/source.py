"""Images that a text file lists, as Caffe's ImageData layer takes them: `path label…` on each line."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, cast

import cv2
import msgspec
import numpy as np
from numpy.typing import NDArray

from ...base.checks import check_options, nearest
from ...base.errors import ParameterError, SampleError, SampleTooLargeError, SourceError
from ...base.source import Source
from ...base.specs import AnyArray, ArraySpec, IndexArray, NamedRows, RaggedRows
from .decode import REDUCES, ImageDecoder, TargetSize
from .file import FileReader, announce_files
from .list_file import ListedImages, parse_image_list

_DATA = "data"
_LABEL = "label"
_LONGEST_SIDE_RATIO = 4  # of a picture with a shorter_side, where no max_height or max_width is declared

_NotNegative = Annotated[int, msgspec.Meta(ge=0)]


class ImageListOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What `source: {image_list: …}` takes; sizes in pixels, 0 for not given."""

    path: str
    root_folder: str = ""
    labels: _NotNegative | None = None
    label_dtype: Literal["auto", "int64", "float32"] = "auto"
    new_height: _NotNegative = 0
    new_width: _NotNegative = 0
    shorter_side: _NotNegative = 0
    max_height: _NotNegative = 0
    max_width: _NotNegative = 0
    is_color: bool = True
    color: Literal["bgr", "rgb"] = "bgr"
    exif: bool = False
    interpolation: Literal["nearest", "linear", "cubic", "area", "lanczos"] = "linear"
    dct_scaling: bool = True
    strict: bool = True
    check_files: bool = True


class ImageListSource(Source):
    """Decoded images, `data` uint8 (channels, height, width), and their labels, `label` () or (labels,).

    `data` varies in size unless new_height and new_width are given. `label` is int64 where all labels are written as
    integers, else float32; one label on each line has no axis of its own, as in Caffe.

    Raises ParameterError for options that contradict each other, SourceError for a list that cannot be read, holds an
    impossible label, or names an image that is missing or empty.
    """

    kind: ClassVar[str] = "image_list"
    modules = (f"{__package__}.decode",)

    def __init__(
        self, options: ImageListOptions, *, tops: Sequence[str] | None = None, base_dir: Path = Path()
    ) -> None:
        self._options = options
        self._size = _target_size(options)
        self._path = base_dir / options.path
        self._root = os.fsencode(base_dir / options.root_folder)
        text = _read_list(self._path)
        self._listed = parse_image_list(text, str(self._path), options.labels)
        self._labels = _labels(self._listed, options.label_dtype)
        self._specs = self._chosen(tops)
        digest = hashlib.blake2b(text, digest_size=16)
        if options.check_files:
            digest.update(self._check_files().tobytes())
        self._digest = digest.hexdigest()
        self._home = os.getpid()
        self._decoder: ImageDecoder | None = None
        self._reader: FileReader | None = None

    @classmethod
    def from_options(cls, options: Mapping[str, Any], *, tops: Sequence[str] | None, base_dir: Path) -> Self:
        return cls(check_options(options, ImageListOptions, f"source {cls.kind}"), tops=tops, base_dir=base_dir)

    def __len__(self) -> int:
        return len(self._listed)

    @property
    def specs(self) -> Mapping[str, ArraySpec]:
        return self._specs

    def read(self, indices: IndexArray, out: NamedRows) -> None:
        if _LABEL in out:
            _array(out[_LABEL])[...] = self._labels[indices]
        if _DATA in out:
            rows = out[_DATA]
            for row, index in enumerate(indices.tolist()):
                self._read_image(index, row, rows)

    def where(self, index: int) -> str:
        return f"{self._listed.line(index)}: {os.fsdecode(self._image_path(index))}"

    def will_need(self, indices: IndexArray) -> None:
        if _DATA in self._specs:
            announce_files([self._image_path(index) for index in indices.tolist()])

    def fingerprint(self) -> str:
        """Holds each image's size and modification time, except with `check_files: false`."""
        options = msgspec.structs.asdict(self._options) | {"path": str(self._path), "root_folder": str(self._root)}
        return f"{self.kind}:{self._digest}:{list(self._specs)}:{REDUCES}:{sorted(options.items(), key=str)}"

    def close(self) -> None:
        """Give back the buffers."""
        self._decoder = self._reader = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_decoder": None, "_reader": None}

    def _chosen(self, tops: Sequence[str] | None) -> dict[str, ArraySpec]:
        known = {_DATA: self._data_spec(), _LABEL: ArraySpec(self._labels.shape[1:], self._labels.dtype)}
        if not self._labels.size:
            del known[_LABEL]
        for name in tops or ():
            if name not in known:
                raise ParameterError(
                    f"source {self.kind}: unknown top {name!r}{nearest(name, known)}; {self._path} gives "
                    f"{' and '.join(known)}{'' if _LABEL in known else ' (its lines have no labels)'}"
                )
        return known if tops is None else {name: known[name] for name in tops}

    def _data_spec(self) -> ArraySpec:
        channels = 3 if self._options.is_color else 1
        height, width = self._size.fixed or _largest_size(self._options)
        return ArraySpec((channels, height, width), np.dtype(np.uint8), varies=self._size.fixed is None)

    def _check_files(self) -> NDArray[np.int64]:
        """Each image's size and modification time, shape (images, 2); raises SourceError for the first that is none."""
        seen: list[tuple[int, int]] = []
        wrong: list[tuple[int, str]] = []
        for index, path in enumerate(self._listed.paths()):
            size, changed, reason = _look_at(self._under_root(path))
            seen.append((size, changed))
            if reason:
                wrong.append((index, reason))
        if wrong:
            index, reason = wrong[0]
            more = f" ({len(wrong) - 1} more of {len(self)} images are missing, too)" if len(wrong) > 1 else ""
            raise SourceError(
                f"image list {self.where(index)} is no image: {reason}{more}; check the list and root_folder "
                f"{self._options.root_folder!r}, or pass over this check by check_files: false"
            )
        return np.array(seen, np.int64)

    def _image_path(self, index: int) -> bytes:
        return self._under_root(self._listed.path(index))

    def _under_root(self, path: bytes) -> bytes:
        # Caffe puts root_folder before every path, whether it begins with a slash or not.
        return self._root + b"/" + path if self._options.root_folder else os.path.join(self._root, path)  # noqa: PTH118 - bytes

    def _tools(self) -> tuple[FileReader, ImageDecoder]:
        if self._reader is None or self._decoder is None:
            if os.getpid() != self._home:  # a loader: its cores are shared with the other ones. The trainer's are not
                cv2.setNumThreads(1)
            options = self._options
            self._reader = FileReader()
            self._decoder = ImageDecoder(
                self._size,
                is_color=options.is_color,
                rgb=options.color == "rgb",
                exif=options.exif,
                interpolation=options.interpolation,
                dct_scaling=options.dct_scaling,
                strict=options.strict,
            )
        return self._reader, self._decoder

    def _read_image(self, index: int, row: int, rows: AnyArray | RaggedRows) -> None:
        reader, decoder = self._tools()
        try:
            image, size = decoder.decode(reader.read(self._image_path(index)))
            shape = (3 if self._options.is_color else 1, *size)
            place = rows.reserve(row, shape) if isinstance(rows, RaggedRows) else rows[row]
            decoder.place(image, cast("NDArray[np.uint8]", place))
        except SampleTooLargeError as error:
            raise SampleTooLargeError(f"{self.where(index)}: {error} (max_height, max_width)") from None
        except (OSError, ValueError, MemoryError) as error:
            raise SampleError(
                f"image {self.where(index)} cannot be read: {error}",
                source=str(self._path),
                index=index,
                path=os.fsdecode(self._image_path(index)),
            ) from error


def _look_at(path: bytes) -> tuple[int, int, str]:
    """Size, time of the last change in ns, and the reason why this cannot be an image, or nothing."""
    try:
        status = os.stat(path)  # noqa: PTH116 - a Path for each of a million costs more than this
    except OSError as error:
        return 0, 0, (error.strerror or str(error)).lower()
    reason = "" if stat.S_ISREG(status.st_mode) and status.st_size else "an empty file"
    return status.st_size, status.st_mtime_ns, reason if stat.S_ISREG(status.st_mode) else "not a file"


def _read_list(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise SourceError(f"image list {path} cannot be read: {error.strerror}; check path") from error


def _target_size(options: ImageListOptions) -> TargetSize:
    height, width, shorter = options.new_height, options.new_width, options.shorter_side
    if bool(height) != bool(width):
        raise ParameterError(
            f"source image_list: new_height is {height} and new_width {width}: give both, or shorter_side alone"
        )
    if height and shorter:
        raise ParameterError(
            f"source image_list: new_height and new_width ({height}×{width}) and shorter_side ({shorter}) exclude "
            "each other: give one or the other"
        )
    if not (height or shorter or options.max_height or options.max_width):
        raise ParameterError(
            "source image_list: images keep their own sizes, so their largest must be declared: give max_height and "
            "max_width (one of them stands for both), or resize them all by new_height and new_width or shorter_side"
        )
    return TargetSize((height, width) if height else None, shorter)


def _largest_size(options: ImageListOptions) -> tuple[int, int]:
    declared = options.max_height or options.max_width
    default = declared or _LONGEST_SIDE_RATIO * options.shorter_side
    return options.max_height or default, options.max_width or default


def _labels(listed: ListedImages, dtype: str) -> NDArray[np.int64] | NDArray[np.float32]:
    """The labels in the type that `dtype` asks for, shape (images,) where each has one, else (images, labels)."""
    written = listed.labels
    whole = np.issubdtype(written.dtype, np.integer)
    target: np.dtype[Any] = np.dtype(("int64" if whole else "float32") if dtype == "auto" else dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        cast = written.astype(target)
    # A fraction that is rounded is still the label; a whole number that changes, or a number turned infinite, is not.
    kept = np.isfinite(cast) if target.kind == "f" and not whole else cast.astype(written.dtype) == written
    if not kept.all():
        index, label = np.argwhere(~kept)[0]
        raise SourceError(
            f"image list {listed.line(index)}: label {written[index, label].item()} cannot be held by {target.name}; "
            "choose another label_dtype"
        )
    return cast[:, 0] if cast.shape[1:] == (1,) else cast


def _array(rows: AnyArray | RaggedRows) -> AnyArray:
    assert isinstance(rows, np.ndarray)
    return rows
