"""The text file that lists images: `path label…` lines. No image is touched.

A million lines take about a second. Their paths are then one array of bytes: as Python objects they would take 80 MB.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import os
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...workers.api import FLOAT32_WHOLE, AnyArray
from ...workers.base import SourceError
from ..files import Names, PackedNames

_LINES_TO_COUNT_LABELS = 1000
_FLOAT64_WHOLE = 2**53
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"

Labels = NDArray[np.int64] | NDArray[np.float64]


class ListedImages(Names, frozen=True):
    """The paths of one list, in its order, as it has them; `arrays` has the number of the line of each, "lines"."""

    name: str

    def line(self, index: int) -> str:
        """`train.txt line 7`, for messages."""
        return f"{self.name} line {self.arrays['lines'][index]}"


def parse_image_list(text: bytes, name: str, labels: int | None = None) -> tuple[ListedImages, Labels]:
    """The images that `text` lists, one on a line, and their labels; blank lines do not count.

    As in Caffe, a line has no comments, and white space in front belongs to the path: both are names that files have.

    Labels have the shape (images, labels), int64 if all of them are written as integers, else float64.

    The last `labels` words of a line are its labels and all before them is the path, spaces included. If `labels` is
    None it is the number of trailing numbers that most of the first 1,000 lines have. `name` is the file's, for
    messages. Raises SourceError for an empty list and, naming the line, for a label that is missing or not a finite
    number.
    """
    if text.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise SourceError(f"image list {name} is in UTF-16, as Windows PowerShell writes; write it again in UTF-8")
    text = text.removeprefix(_BYTE_ORDER_MARK)
    if labels is None:
        labels = _usual_label_count(text)
    paths: list[bytes] = []
    words: list[bytes] = []
    lines: list[int] = []
    for number, line in enumerate(io.BytesIO(text), 1):
        parts = line.rsplit(None, labels)
        if not parts:
            continue
        if len(parts) <= labels:
            raise SourceError(
                f"image list {name} line {number}: expected a path and {labels} label{'s' * (labels > 1)}, "
                f"got {os.fsdecode(line.strip())!r}; complete the line, or say labels: N for the number on each"
            )
        paths.append(parts[0])
        words += parts[1:]
        lines.append(number)
    if not paths:
        raise SourceError(f"image list {name} lists no images: expected lines of 'path label', got {len(text)} bytes")
    if (values := finite_numbers(words)) is None:
        wrong = next(position for position, word in enumerate(words) if not is_number(word))
        raise SourceError(
            f"image list {name} line {lines[wrong // labels]}: label {os.fsdecode(words[wrong])!r} is not a finite "
            f"number; expected {labels} label{'s' * (labels > 1)} after the path"
        )
    packed, smallest = PackedNames.of(paths), np.min_scalar_type(len(text))
    arrays = {
        "paths": np.frombuffer(packed.joined, np.uint8),
        "ends": packed.ends.astype(smallest),
        "lines": np.array(lines, smallest),
    }
    return ListedImages(arrays, name), values.reshape(len(paths), labels)


def label_values(written: Labels, dtype: str, where: Callable[[int], str], advice: str) -> AnyArray:
    """Return the labels in the type that `dtype` asks for, shape (images,) if each has one, else (images, labels).

    "auto": as ImageListOptions says. `where` names the place of label `index`. Raises SourceError, with `advice`, for a
    label that the type cannot hold.
    """
    whole = np.issubdtype(written.dtype, np.integer)
    target: np.dtype[Any] = np.dtype(("int64" if whole else "float32") if dtype == "auto" else dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        cast = written.astype(target)
    kept = cast.astype(written.dtype) == written
    if not whole:
        # A fraction that is rounded is still the label; a whole number is not, and beyond 2**53 it was rounded before.
        size = np.abs(written)
        kept = (kept | ((target.kind == "f") & (size <= FLOAT32_WHOLE))) & (size < _FLOAT64_WHOLE)
    if not kept.all():
        index, label = np.argwhere(~kept)[0]
        raise SourceError(
            f"{where(int(index))}: label {written[index, label].item()} cannot be held by {target.name}; {advice}"
        )
    return cast[:, 0] if cast.shape[1:] == (1,) else cast


def _usual_label_count(text: bytes) -> int:
    """Return how many numbers stand at the end of most lines, after a first word that may be a number, too."""
    lines = (words for words in map(bytes.split, io.BytesIO(text)) if words)
    first = itertools.islice(lines, _LINES_TO_COUNT_LABELS)
    counts = Counter(len(list(itertools.takewhile(is_number, reversed(words[1:])))) for words in first)
    return counts.most_common(1)[0][0] if counts else 0


def is_number(word: bytes) -> bool:
    try:
        return b"_" not in word and bool(np.isfinite(float(word)))
    except ValueError:
        return False


def finite_numbers(words: Sequence[bytes]) -> Labels | None:
    """The words as integers or, if that is not what they are, as finite numbers; None if they are neither."""
    if any(b"_" in word for word in words):  # Python would read 2_0 as 20
        return None
    with contextlib.suppress(ValueError, OverflowError):
        return np.array(list(map(int, words)), np.int64)
    with contextlib.suppress(ValueError):
        values = np.array(list(map(float, words)), np.float64)
        if np.isfinite(values).all():
            return values
    return None
