"""The text file that lists images: `path label…` lines into packed paths and an array of labels. No file is touched."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...base.errors import SourceError
from ..stored.paths import PackedNames

_LINES_TO_COUNT_LABELS = 1000
_COMMENT = ord("#")

Labels = NDArray[np.int64] | NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ListedImages:
    """The images of one list, in its order.

    `paths`: as the list has them. `lines`: shape (images,), line numbers from 1. `labels`: shape (images, labels),
    int64 if all of them are written as integers, else float64.
    """

    name: str
    paths: PackedNames
    lines: NDArray[np.int32]
    labels: Labels

    def line(self, index: int) -> str:
        """`train.txt line 7`, for messages."""
        return f"{self.name} line {self.lines[index]}"


def parse_image_list(text: bytes, name: str, labels: int | None = None) -> ListedImages:
    """The images that `text` lists, one on a line; blank lines and lines that begin with `#` are skipped.

    The last `labels` words of a line are its labels and all before them is the path, spaces included. If `labels` is
    None it is the number of trailing numbers that most of the first 1,000 lines have. `name` is the file's, for
    messages. Raises SourceError for an empty list and, naming the line, for a label that is missing or not a finite
    number.
    """
    stripped = list(map(bytes.strip, text.removeprefix(b"\xef\xbb\xbf").split(b"\n")))
    lines = np.array([number for number, line in enumerate(stripped) if line and line[0] != _COMMENT], np.int32)
    if not lines.size:
        raise SourceError(f"image list {name} lists no images: expected lines of 'path label', got {len(text)} bytes")
    entries = [stripped[number] for number in lines.tolist()]
    lines += 1
    if labels is None:
        labels = _usual_label_count(entries[:_LINES_TO_COUNT_LABELS])
    paths, words = _split(entries, lines, labels, name)
    values = _numbers(words, lines, labels, name).reshape(len(paths), labels)
    return ListedImages(name, PackedNames.of(paths), lines, values)


def _usual_label_count(lines: Sequence[bytes]) -> int:
    """How many numbers stand at the end of most lines, after a first word that may be a number, too."""
    ends = (itertools.takewhile(_is_number, reversed(line.split()[1:])) for line in lines)
    return Counter(len(list(numbers)) for numbers in ends).most_common(1)[0][0]


def _is_number(word: bytes) -> bool:
    try:
        return bool(np.isfinite(float(word)))
    except ValueError:
        return False


def _split(
    entries: Sequence[bytes], lines: NDArray[np.int32], labels: int, name: str
) -> tuple[Sequence[bytes], Sequence[bytes]]:
    """The paths, and all their label words, line after line."""
    if not labels:
        return entries, []
    parts = [line.rsplit(None, labels) for line in entries]
    short = next((k for k, part in enumerate(parts) if len(part) <= labels), None)
    if short is not None:
        raise SourceError(
            f"image list {name} line {lines[short]}: expected a path and {labels} label{'s' * (labels > 1)}, "
            f"got {os.fsdecode(entries[short])!r}; complete the line, or say labels: N for the number on each"
        )
    return [part[0] for part in parts], [word for part in parts for word in part[1:]]


def _numbers(words: Sequence[bytes], lines: NDArray[np.int32], labels: int, name: str) -> Labels:
    # All at once, integers first: a check word by word costs several times the conversion. Only a list with a wrong
    # label pays for finding its line.
    with contextlib.suppress(ValueError, OverflowError):
        return np.array(list(map(int, words)), np.int64)
    with contextlib.suppress(ValueError):
        values = np.array(list(map(float, words)), np.float64)
        if np.isfinite(values).all():
            return values
    wrong = next(position for position, word in enumerate(words) if not _is_number(word))
    raise SourceError(
        f"image list {name} line {lines[wrong // labels]}: label {os.fsdecode(words[wrong])!r} is not a finite number; "
        f"expected {labels} label{'s' * (labels > 1)} after the path"
    )
