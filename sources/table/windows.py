"""Windows over arrays: rows that overlap their neighbours, found by arithmetic, with nothing copied to index them.

A window never crosses the end of a file or of a sequence in it. A column whose steps lie one behind the other gives a
window in one copy; of any other one the steps are read one by one into the window's row.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import pairwise
from typing import Literal

import msgspec
import numpy as np

from ...workers.api import AnyArray, ArraySpec, IndexArray, Positive, chosen
from ...workers.base import SourceError, text_digest
from ..files import distinct
from .columns import Column, OutRows

Step = Literal["first", "middle", "last"]


class WindowOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The option `window` of hdf5, hdf5_samples, npy, arrays and zarr: a sample is a window of several steps.

    Steps are what would be samples without it; a top of windows has the shape (length, …).

    length: the number of steps in a window.
    stride: the number of steps from one window to the next.
    boundaries: the name of an array of the ends of sequences, counted from the start of their file, the last one its
        length, as `episode_ends` is; no window crosses them. In npy and arrays it stands beside the tops, under its
        name.
    labels: the step of a window from which all tops but the first are taken: first, middle or last; or a mapping from
        top to such a step. Without it all tops are windows.
    """

    length: Positive
    stride: Positive = 1
    boundaries: str | None = None
    labels: Step | dict[str, Step] | None = None


class Sequences:
    """The steps in which windows lie. Window k is a function of k: as many numbers are kept as there are sequences.

    `ends`: of each sequence, ascending, counted from the first step of all. `start`: the first window's step in each;
    `length` counts it, too. Raises SourceError, begun by `what`, if no sequence is as long as a window.
    """

    def __init__(self, ends: IndexArray, length: int, stride: int, what: str, start: int = 0) -> None:
        begins = np.concatenate([[0], ends[:-1]])
        sizes = ends - begins
        windows = np.maximum((sizes - length) // stride + 1, 0)
        self._begins = begins[windows > 0] + start
        self._starts = np.cumsum([0, *windows[windows > 0].tolist()], dtype=np.int64)
        self._stride, self._start = stride, start
        self.digest = text_digest(repr(ends.tolist()))
        if not len(self):
            longest = int(sizes.max(initial=0))
            raise SourceError(
                f"{what}: no window of {length} steps: the longest sequence has {longest}; set a smaller length"
            )

    def __len__(self) -> int:
        return int(self._starts[-1])

    def first(self, windows: IndexArray) -> IndexArray:
        """Return the first step of each of these windows."""
        if len(self._begins) == 1:
            return windows * self._stride + int(self._begins[0])
        numbers = np.searchsorted(self._starts, windows, side="right") - 1
        first: IndexArray = self._begins[numbers] + (windows - self._starts[numbers]) * self._stride
        return first

    def blocks(self, steps: int) -> IndexArray:
        """Return where in the windows those begin that start in the next `steps` steps of a sequence, and the end."""
        found = [self._starts]
        for begin, end in pairwise(self._starts.tolist()):
            borders = np.arange(0, self._start + (end - begin) * self._stride, steps) - self._start
            found.append(begin + np.clip(-(-borders // self._stride), 0, end - begin))
        return distinct(np.concatenate(found))


class Windows(Column):
    """The tops of `column`, whose samples are steps: windows of `length` steps, or if that is 0 the step `offset`."""

    def __init__(self, column: Column, sequences: Sequences, length: int, stride: int, offset: int = 0) -> None:
        in_one_copy = column.spanned(length) if length else column
        self._column = in_one_copy or column
        self.samples, self._sequences = len(sequences), sequences
        self._offset = offset
        self._steps = None if in_one_copy else np.arange(length)
        self.specs = {top: _windowed(spec, length) for top, spec in column.specs.items()}
        self.stores, self.modules, self.reads_ahead = column.stores, column.modules, column.reads_ahead
        self.options, self.may_be_empty = column.options, column.may_be_empty
        self.stores_rows = column.stores_rows
        self.chunk_samples = column.chunk_samples and max(1, column.chunk_samples // stride)

    @property
    def gathered(self) -> Collection[str]:
        return self._column.gathered if self._steps is None else ()

    def read(self, indices: IndexArray, positions: IndexArray, out: OutRows) -> None:
        if self._steps is None:
            self._column.read(self._read_of(indices), positions, out)
            return
        steps = len(self._steps)
        rows = {top: out[top].reshape(len(out[top]) * steps, *out[top].shape[2:]) for top in self.specs if top in out}
        self._column.read(self._read_of(indices), (positions[:, None] * steps + self._steps).ravel(), rows)

    def _read_of(self, indices: IndexArray) -> IndexArray:
        """The samples of the column that are read for these windows."""
        first = self._sequences.first(indices) + self._offset
        return first if self._steps is None else (first[:, None] + self._steps).ravel()

    def will_need(self, indices: IndexArray, *, now: bool = False) -> bool:
        return self._column.will_need(self._read_of(indices), now=now)

    def close(self) -> None:
        self._column.close()


def _windowed(spec: ArraySpec, length: int) -> ArraySpec:
    return ArraySpec((length, *spec.shape), spec.dtype) if length else spec


class WindowPlaces:
    """The answers of `where` for windows; `where` gives those of steps, which end in [number]."""

    def __init__(self, where: Callable[[int], str], sequences: Sequences, length: int, axis: str) -> None:
        self._where, self._sequences, self._length, self._axis = where, sequences, length, axis

    def __call__(self, index: int) -> str:
        held_in, _, step = self._where(int(self._sequences.first(np.array([index]))[0])).rpartition("[")
        return f"{held_in}[{step[:-1]}:{int(step[:-1]) + self._length}]"

    def by_axis(self, windows: IndexArray) -> dict[str, IndexArray]:
        """Return the first steps by the name of their axis."""
        return {self._axis: self._sequences.first(windows)}


def windows_of(
    columns: Sequence[Column], tops: Sequence[str], options: WindowOptions, sequences: Sequences, what: str
) -> list[Column]:
    """Return the columns of windows over `columns`.

    Raises ParameterError for labels that are no tops, SourceError for windows of samples that vary in size.
    """
    named = options.labels
    taken: Mapping[str, Step] = named if isinstance(named, dict) else dict.fromkeys(tops[1:], named) if named else {}
    chosen(dict.fromkeys(tops), taken, f"{what}: parameter 'window.labels'")
    offsets = {"first": 0, "middle": options.length // 2, "last": options.length - 1}
    made: list[Column] = []
    for column in columns:
        for step in dict.fromkeys(taken.get(top) for top in column.specs):
            part = column.only([top for top in column.specs if taken.get(top) == step])
            if step is None and (varying := [top for top, spec in part.specs.items() if spec.varies]):
                raise SourceError(
                    f"{what}: the samples of {varying[0]!r} vary in size, so windows of them have no shape: name the "
                    "step to take it from in 'window.labels', or leave it out of 'tops'"
                )
            length, offset = (0, offsets[step]) if step else (options.length, 0)
            made.append(Windows(part, sequences, length, options.stride, offset))
    return made


def sequence_ends(ends: AnyArray, bound_files: IndexArray, step_files: IndexArray, what: str) -> IndexArray:
    """Return `ends`, counted from the start of each file, as counted from the first step of all.

    `bound_files`, `step_files`: the end of each file, in values of `ends` and in steps. Raises SourceError for ends
    that are no ascending whole numbers, or of which the last one is not the file's.
    """
    if len(bound_files) != len(step_files):
        raise SourceError(
            f"{what} have {len(bound_files)} files and the steps {len(step_files)}: expected one for each file of steps"
        )
    if ends.ndim != 1 or ends.dtype.kind not in "iu":
        raise SourceError(f"{what} have the shape {ends.shape} and the type {ends.dtype}: expected whole numbers")
    found, begin = [np.empty(0, np.int64)], 0
    for end, first, last in zip(bound_files.tolist(), [0, *step_files[:-1].tolist()], step_files.tolist(), strict=True):
        values, begin = ends[begin:end].astype(np.int64), end
        bounds = np.concatenate([[0], values])
        if (np.diff(bounds) < 0).any() or bounds[-1] != last - first:
            raise SourceError(
                f"{what} begin {values[:3].tolist()} and end {values[-1:].tolist()}: expected the ends of sequences in "
                f"ascending order, the last one the number of steps in the file, {last - first}"
            )
        found.append(values + first)
    return np.concatenate(found)
