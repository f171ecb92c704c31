"""Windows of pictures that a text file lists, as Caffe's WindowData layer reads it: cut out and warped to a square."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

import cv2
import msgspec
import numpy as np
from numpy.typing import NDArray

from ...api import ArraySpec, NotNegative, Positive, Tops, check_options
from ...base import ParameterError, SourceError, blake2b, in_folder, read_whole
from ..files import PackedNames, without_paths
from ..table import Field, Memory, Records, Resident, Table
from .decode import Image, ImageDecoder
from .file import WholeFiles
from .options import PictureOptions

_FULL_SIZE = PictureOptions(dct_scaling=False)
_NUMBERS = 6
"""On each line of a window: class, overlap, x1, y1, x2, y2."""


class WindowListOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The options of `source: {windows: …}`, named as in Caffe.

    path: the list of pictures and windows, as Caffe's WindowData takes it.
    crop_size: height and width of each sample.
    root_folder: put before each path.
    context_pad: how many of the sample's pixels, on each side, show what lies around the window.
    crop_mode: "square" widens each window to a square first.
    fg_threshold: a window is foreground if its overlap is this or more.
    bg_threshold: a window is background if its overlap is less than this; in between it is no sample.
    mirror: whether each window comes once more, mirrored, behind all others.
    """

    path: str
    crop_size: Positive
    root_folder: str = ""
    context_pad: NotNegative = 0
    crop_mode: Literal["warp", "square"] = "warp"
    fg_threshold: float = 0.5
    bg_threshold: float = 0.5
    mirror: bool = False


class WindowTable(Table):
    """The windows of a list; `background` and `foreground` count them, without the mirrored ones."""

    background: int
    foreground: int


def open_windows(options: Mapping[str, object], *, tops: Tops = None, base_dir: Path = Path()) -> WindowTable:
    """`data`, uint8 (3, crop_size, crop_size), BGR; `label`, int64; `area`, int64 (4,).

    `area` is the top, left, height and width of the part of `data` that shows the picture: the rest, beyond the
    picture's border, is 0. The background windows, of label 0, come before the foreground ones. Raises ParameterError,
    SourceError for a file that is no list of windows.
    """
    checked = check_options(options, WindowListOptions, "source windows")
    if 2 * checked.context_pad >= checked.crop_size:
        raise ParameterError(
            f"source windows: context_pad is {checked.context_pad} and crop_size {checked.crop_size}: the pad on "
            "both sides must leave pixels for the window"
        )
    path = in_folder(base_dir, checked.path)
    try:
        text = read_whole(os.fsencode(path))
    except OSError as error:
        raise SourceError(f"window file {path} cannot be read: {error.strerror}; check path") from error
    paths, images, windows = _parse(text, str(path))
    front = windows[:, 1] >= np.float32(checked.fg_threshold)
    back = ~front & (windows[:, 1] < np.float32(checked.bg_threshold))
    if (windows[front, 0] <= 0).any():
        raise SourceError(f"window file {path}: a foreground window has a class below 1; 0 is the background")
    if not (front | back).any():
        raise SourceError(
            f"window file {path}: no window has an overlap of fg_threshold {checked.fg_threshold} or more, "
            f"or less than bg_threshold {checked.bg_threshold}"
        )
    order = np.concatenate([np.flatnonzero(back), np.flatnonzero(front)])
    labels = np.where(front, windows[:, 0], 0)[order].astype(np.int64)
    arrays = {"images": images[order], "boxes": windows[order, 2:].astype(np.int32)}
    memory = Memory("windows", {**arrays, "label": np.tile(labels, 2 if checked.mirror else 1)})
    names, root = PackedNames.of(paths), os.fsencode(in_folder(base_dir, checked.root_folder))
    files = WholeFiles("windows", names, root, prefixed=bool(checked.root_folder))
    windowed = _Windows(memory, files, checked, str(path))
    size = checked.crop_size
    fields = {
        "data": Field(ArraySpec((3, size, size), np.dtype(np.uint8)), _put_data),
        "area": Field(ArraySpec((4,), np.dtype(np.int64)), _put_area),
    }
    pictures = Records(
        files,
        len(memory["label"]),
        fields,
        place=windowed.picture,
        parse=windowed.cut,
        path=windowed.path,
        others=[memory],
        modules=(f"{__package__}.decode",),
    )
    table = WindowTable(
        "windows",
        [pictures, Resident("label", memory)],
        held_in=str(path),
        where=windowed.where,
        tops=tops or ("data", "label", "area"),
        what=f"source windows: {path}",
        options=(blake2b(text, digest_size=16).hexdigest(), without_paths(checked)),
    )
    table.background, table.foreground = int(back.sum()), int(front.sum())
    return table


class _Cut(NamedTuple):
    """A window as it shall appear, shape (height, width, 3), and its area in the sample."""

    picture: Image
    area: tuple[int, int, int, int]


def _put_data(cut: _Cut, row: int, rows: Any) -> None:
    data, (top, left, height, width) = rows[row], cut.area
    data[...] = 0
    data[:, top : top + height, left : left + width] = cut.picture.transpose(2, 0, 1)


def _put_area(cut: _Cut, row: int, rows: Any) -> None:
    rows[row] = cut.area


class _Windows:
    """The windows of the list, which lie in `memory`; mirrored ones come once more behind all others."""

    def __init__(self, memory: Memory, files: WholeFiles, options: WindowListOptions, list_path: str) -> None:
        self._memory = memory
        self._files = files
        self._options = options
        self._list_path = list_path
        self._count = len(memory["boxes"])
        self._decoder = ImageDecoder(_FULL_SIZE)

    def picture(self, index: int) -> int:
        """The number of the window's picture in the list."""
        return int(self._memory["images"][index % self._count])

    def path(self, index: int) -> str:
        return os.fsdecode(self._files.path(self.picture(index)))

    def where(self, index: int) -> str:
        box = self._memory["boxes"][index % self._count].tolist()
        return f"{self._list_path}: window {box} of {self.path(index)}"

    def cut(self, data: bytes, index: int) -> _Cut:
        image, (height, width) = self._decoder.decode(data)
        options, mirrored = self._options, index >= self._count
        box = tuple(self._memory["boxes"][index % self._count].tolist())
        if options.context_pad or options.crop_mode == "square":
            box, area = expanded(box, (height, width), options, mirrored=mirrored)
        else:
            area = (0, 0, options.crop_size, options.crop_size)
        x1, y1, x2, y2 = box
        if not (0 <= x1 <= x2 < width and 0 <= y1 <= y2 < height) or min(area[2:]) < 1:
            raise ValueError(f"the window {box} does not lie in the picture of {width}×{height}")
        warped = cv2.resize(image[y1 : y2 + 1, x1 : x2 + 1], (area[3], area[2]), interpolation=cv2.INTER_LINEAR)
        return _Cut(cast("Image", warped[:, ::-1] if mirrored else warped), area)


def expanded(
    box: tuple[int, ...], image: tuple[int, int], options: WindowListOptions, *, mirrored: bool
) -> tuple[tuple[int, int, int, int], tuple[int, int, int, int]]:
    """The part (x1, y1, x2, y2) of the picture that `box` grows to with its context, and its area in the sample.

    Computed in float32 and rounded away from zero, as Caffe does it: else some windows would shift by a pixel.
    """
    size, real = options.crop_size, np.float32
    scale = real(size) / real(size - 2 * options.context_pad)
    x1, y1, x2, y2 = box
    half = [real((y2 - y1 + 1) / 2), real((x2 - x1 + 1) / 2)]
    center = [real(y1) + half[0], real(x1) + half[1]]
    if options.crop_mode == "square":
        half = [max(half)] * 2
    found = []
    for middle, reach, edge in zip(center, half, image, strict=True):
        first, last = _rounded(middle - reach * scale), _rounded(middle + reach * scale)
        before, after = max(0, -first), max(0, last - edge + 1)
        factor = real(size) / real(last - first + 1)
        first, last = first + before, last - after
        length = _rounded(real(last - first + 1) * factor)
        found.append((first, last, _rounded(real(before) * factor), _rounded(real(after) * factor), length))
    (top1, top2, above, _, height), (left1, left2, left, right, width) = found
    left = right if mirrored else left
    return (left1, top1, left2, top2), (above, left, min(height, size - above), min(width, size - left))


def _rounded(number: Any) -> int:
    return int(math.copysign(math.floor(abs(float(number)) + 0.5), number))


def _parse(text: bytes, name: str) -> tuple[list[bytes], NDArray[np.int32], NDArray[np.float32]]:
    """The paths of the pictures; for each window the number of its picture, and its six numbers; raises SourceError."""
    paths: list[bytes] = []
    counts: list[int] = []
    windows: list[NDArray[np.float32]] = []
    for number, path, lines in _pictures(text, name):
        # A file may have ten millions of windows: so they are not converted number by number.
        try:
            windows.append(np.array(b" ".join(lines).split(), np.float32).reshape(len(lines), _NUMBERS))
            if not np.isfinite(windows[-1]).all():
                raise ValueError("one of them is not finite")
        except ValueError as error:
            raise SourceError(
                f"window file {name} line {number}: each window needs {_NUMBERS} numbers: {error}"
            ) from None
        paths.append(path)
        counts.append(len(lines))
    if not sum(counts):
        raise SourceError(f"window file {name} lists no windows")
    return paths, np.repeat(np.arange(len(paths), dtype=np.int32), counts), np.concatenate(windows)


def _pictures(text: bytes, name: str) -> Iterator[tuple[int, bytes, list[bytes]]]:
    """For each picture: the line on which its windows begin, its path, and their lines."""
    lines = text.split(b"\n")
    while lines and not lines[-1].strip():
        lines.pop()
    at = 0
    while at < len(lines):
        head = [line.strip() for line in lines[at : at + 6]]
        try:
            mark, count = head[0][:1], int(head[5])
        except (IndexError, ValueError):
            mark, count = b"", 0
        if mark != b"#" or count < 0 or at + 6 + count > len(lines):
            raise SourceError(
                f"window file {name} line {at + 1}: expected '# number', the picture's path, its channels, height and "
                f"width, the number of its windows, and a line for each, got {os.fsdecode(lines[at])!r}"
            )
        yield at + 7, head[1], lines[at + 6 : at + 6 + count]
        at += 6 + count
