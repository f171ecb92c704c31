"""Arithmetic on arrays of indices: which of them follow each other, belong together, or are out of range."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from ...base.specs import AnyArray, IndexArray


def require_in_range(indices: IndexArray, samples: int) -> None:
    """Raises IndexError if an index is below 0 or not below `samples`."""
    # Seen as unsigned a negative index is huge: one pass finds both.
    if len(indices) and int(np.maximum.reduce(indices.view(np.uint64))) >= samples:
        bad = indices[(indices < 0) | (indices >= samples)]
        raise IndexError(f"sample index {int(bad[0])} is not in 0 … {samples - 1}")


def copy_runs(samples: AnyArray, indices: IndexArray, positions: IndexArray, rows: AnyArray) -> None:
    """rows[positions[i]] = samples[indices[i]], a run of neighbours at a time, with no array in between."""
    for start, stop in stretches(indices, positions, 1):
        index, to = int(indices[start]), int(positions[start])
        rows[to : to + stop - start] = samples[index : index + stop - start]


def stretches(indices: IndexArray, positions: IndexArray, step: int) -> Iterator[tuple[int, int]]:
    """The stretches [start, stop) over which `indices` go up by `step` while `positions` go up by one."""
    if not len(indices):
        return
    breaks = np.flatnonzero((indices[1:] - indices[:-1] != step) | (positions[1:] - positions[:-1] != 1)) + 1
    yield from pairwise([0, *breaks.tolist(), len(indices)])


def merge_ranges(offsets: IndexArray, sizes: IndexArray | int) -> Iterator[tuple[int, int]]:
    """The byte ranges [offset, offset + size), sorted, those that touch or overlap made one, as (offset, size)."""
    order = np.argsort(offsets, kind="stable")
    starts, ends = offsets[order], np.maximum.accumulate((offsets + sizes)[order])
    breaks = np.flatnonzero(starts[1:] > ends[:-1]) + 1
    for start, stop in pairwise([0, *breaks.tolist(), len(starts)]):
        yield int(starts[start]), int(ends[stop - 1] - starts[start])


def by_group(groups: IndexArray) -> Iterator[tuple[int, IndexArray]]:
    """Each number that occurs in `groups`, in order, with the positions at which it stands (ascending)."""
    order = np.argsort(groups, kind="stable")
    ordered = groups[order]
    edges = [0, *(np.flatnonzero(ordered[1:] != ordered[:-1]) + 1).tolist(), len(order)]
    for group, (start, stop) in zip(ordered[edges[:-1]].tolist(), pairwise(edges), strict=True):
        yield group, order[start:stop]


def split_by_part(starts: IndexArray, indices: IndexArray) -> Iterator[tuple[int, IndexArray, IndexArray]]:
    """For parts put end to end, part k holding indices from starts[k] up to starts[k + 1]: which of them are wanted.

    For each: its number, the indices counted from its own start, and their positions in `indices` (ascending).
    """
    if not len(indices):
        return
    if len(starts) == 2:
        yield 0, indices, np.arange(len(indices))
        return
    for number, positions in by_group(np.searchsorted(starts, indices, side="right") - 1):
        yield number, indices[positions] - starts[number], positions


def locate_part(starts: IndexArray, index: int) -> tuple[int, int]:
    """The number of the part that holds `index`, and the index counted from that part's start."""
    number = int(np.searchsorted(starts, index, side="right")) - 1
    return number, index - int(starts[number])
