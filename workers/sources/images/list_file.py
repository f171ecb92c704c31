"""The text file that lists images: `path label…` lines, found in it by NumPy, a block at a time. No image is touched.

A million lines take 0.4 s. As Python objects, a line, a path and a label each, they took 5 s and 250 MB.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from ...base.errors import SourceError

_LINES_TO_COUNT_LABELS = 1000
_BLOCK_BYTES = 1 << 20
_USUAL_LINE_BYTES = 256
_COMMENT, _NEWLINE, _PLUS, _MINUS, _ZERO = b"#\n+-0"
_MOST_DIGITS = 18
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"

_IS_SOLID = np.ones(256, np.bool_)
_IS_SOLID[list(b" \t\n\r\v\f")] = False

Bytes = NDArray[np.uint8]
Labels = NDArray[np.int64] | NDArray[np.float64]


class Arrays(Protocol):
    """Arrays by name."""

    def __getitem__(self, name: str, /) -> NDArray[Any]: ...


class ListedImages(msgspec.Struct, frozen=True):
    """The paths of one list, in its order, as it has them.

    `arrays`: by name. "text": the whole list. "starts": shape (images,), where each image's line begins in it, behind
    white space. `label_words`: the number of words of each line that are no part of its path.
    """

    name: str
    arrays: Arrays
    label_words: int

    def __len__(self) -> int:
        return len(self.arrays["starts"])

    def __getitem__(self, index: int) -> bytes:
        line = _line(self.arrays["text"], int(self.arrays["starts"][index])).strip()
        return line.rsplit(None, self.label_words)[0] if self.label_words else line

    def line(self, index: int) -> str:
        """`train.txt line 7`, for messages."""
        return _where(self.name, self.arrays["text"], int(self.arrays["starts"][index]))


def _line(text: Bytes, start: int) -> bytes:
    size = _USUAL_LINE_BYTES
    while True:
        part = text[start : start + size].tobytes()
        end = part.find(b"\n")
        if end >= 0 or start + size >= len(text):
            return part[:end] if end >= 0 else part
        size *= 8


def _where(name: str, text: Bytes, at: int) -> str:
    return f"{name} line {1 + int(np.count_nonzero(text[:at] == _NEWLINE))}"


def parse_image_list(text: bytes, name: str, labels: int | None = None) -> tuple[ListedImages, Labels]:
    """The images that `text` lists, one on a line, and their labels; neither blank lines nor `# …` count.

    Labels have the shape (images, labels), int64 if all of them are written as integers, else float64.

    The last `labels` words of a line are its labels and all before them is the path, spaces included. If `labels` is
    None it is the number of trailing numbers that most of the first 1,000 lines have. `name` is the file's, for
    messages. Raises SourceError for an empty list and, naming the line, for a label that is missing or not a finite
    number.
    """
    if text.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise SourceError(f"image list {name} is in UTF-16, as Windows PowerShell writes; write it again in UTF-8")
    whole = np.frombuffer(text, np.uint8)
    if labels is None:
        first = itertools.islice(
            itertools.chain.from_iterable(block.starts for block in _blocks(text)), _LINES_TO_COUNT_LABELS
        )
        labels = _usual_label_count([_line(whole, int(start)) for start in first])
    starts: list[NDArray[np.unsignedinteger[Any]]] = []
    values: list[Labels] = []
    smallest = np.min_scalar_type(len(text))
    for block in _blocks(text):
        starts.append(block.starts.astype(smallest))
        values.append(_labels(block, labels, name, whole))
    if not any(map(len, starts)):
        raise SourceError(f"image list {name} lists no images: expected lines of 'path label', got {len(text)} bytes")
    together: NDArray[Any] = np.concatenate(values)
    return ListedImages(name, {"text": whole, "starts": np.concatenate(starts)}, labels), together


@dataclass(frozen=True, slots=True)
class _Block:
    """Whole lines of the text, from byte `at` of it on, by their words.

    `begins`, `ends`: of each word, in `data`. `first`, `stop`: for each image its line's words [first, stop).
    """

    at: int
    data: Bytes
    begins: NDArray[np.int64]
    ends: NDArray[np.int64]
    first: NDArray[np.int64]
    stop: NDArray[np.int64]

    @property
    def starts(self) -> NDArray[np.int64]:
        """The places at which the images' lines begin in the text."""
        return self.begins[self.first] + self.at


def _blocks(text: bytes) -> Iterator[_Block]:
    at = len(_BYTE_ORDER_MARK) if text.startswith(_BYTE_ORDER_MARK) else 0
    while at < len(text):
        end = text.find(b"\n", min(at + _BLOCK_BYTES, len(text))) + 1 or len(text)
        data = np.frombuffer(text, np.uint8, end - at, at)
        solid = np.zeros(len(data) + 2, np.bool_)
        solid[1:-1] = _IS_SOLID[data]
        edges = np.flatnonzero(solid[1:] != solid[:-1])
        begins, ends = edges[::2], edges[1::2]
        lines = np.searchsorted(np.flatnonzero(data == _NEWLINE), begins)
        first = np.flatnonzero(np.diff(lines, prepend=-1))
        stop = np.append(first[1:], len(begins))
        images = data[begins[first]] != _COMMENT
        yield _Block(at, data, begins, ends, first[images], stop[images])
        at = end


def _usual_label_count(lines: Sequence[bytes]) -> int:
    """Return how many numbers stand at the end of most lines, after a first word that may be a number, too."""
    ends = (itertools.takewhile(_is_number, reversed(line.split()[1:])) for line in lines)
    counts = Counter(len(list(numbers)) for numbers in ends)
    return counts.most_common(1)[0][0] if counts else 0


def _is_number(word: bytes) -> bool:
    try:
        return b"_" not in word and bool(np.isfinite(float(word)))
    except ValueError:
        return False


def _labels(block: _Block, labels: int, name: str, text: Bytes) -> Labels:
    """The labels of a block's images, shape (images, labels)."""
    short = np.flatnonzero(block.stop - block.first <= labels)
    if len(short):
        start = int(block.starts[short[0]])
        raise SourceError(
            f"image list {_where(name, text, start)}: expected a path and {labels} label{'s' * (labels > 1)}, "
            f"got {os.fsdecode(_line(text, start).strip())!r}; complete the line, or say labels: N for the number "
            "on each"
        )
    words = (block.stop[:, None] + np.arange(-labels, 0)).ravel()
    begins, ends = block.begins[words], block.ends[words]
    values: Labels | None = _integers(block.data, begins, ends)
    if values is None:
        written = [block.data[begin:end].tobytes() for begin, end in zip(begins, ends, strict=True)]
        values = _numbers(written)
        if values is None:
            wrong = next(position for position, word in enumerate(written) if not _is_number(word))
            raise SourceError(
                f"image list {_where(name, text, block.at + int(begins[wrong]))}: label "
                f"{os.fsdecode(written[wrong])!r} is not a finite number; expected {labels} "
                f"label{'s' * (labels > 1)} after the path"
            )
    return values.reshape(len(block.first), labels)


def _integers(data: Bytes, begins: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.int64] | None:
    """The words as integers, all digits of the same place at once; None if one is something else."""
    if not len(begins):
        return np.zeros(0, np.int64)
    negative = data[begins] == _MINUS
    begins = begins + (negative | (data[begins] == _PLUS))
    widths = ends - begins
    widest = int(widths.max())
    if widths.min() < 1 or widest > _MOST_DIGITS:
        return None
    values = np.zeros(len(begins), np.int64)
    for place in range(widest):
        inside = place < widths
        digits = data[np.minimum(begins + place, ends - 1)] - np.uint8(_ZERO)  # below "0" it wraps around
        if (inside & (digits > 9)).any():
            return None
        values = np.where(inside, values * 10 + digits, values)
    return np.where(negative, -values, values)


def _numbers(words: Sequence[bytes]) -> Labels | None:
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
