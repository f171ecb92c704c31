"""The order in which an array's axes are stored, and the order in which its samples are delivered: C, D, H, W."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...base.errors import ParameterError
from ...base.specs import RaggedRows, Rows

_DELIVERED = "cdhw"

Dims = tuple[str, ...] | dict[str, tuple[str, ...]] | None
"""The option `dims`: the stored order of the first top's dimensions, or a mapping from top to such an order."""


@dataclass(frozen=True, slots=True)
class Arrangement:
    """Which stored axis counts the samples, and which of the other axes each delivered axis is.

    `order` None: the others as they are stored.
    """

    sample_axis: int = 0
    order: tuple[int, ...] | None = None

    def delivered(self, stored: Sequence[int]) -> tuple[int, ...]:
        """The shape of one delivered sample; `stored` is the whole array's shape."""
        sample = without(stored, self.sample_axis)
        return sample if self.order is None else tuple(sample[axis] for axis in self.order)

    def as_stored(self, rows: Rows) -> Any:
        """A view of delivered rows, shape (rows, *delivered), with the sample's axes in their stored order."""
        if self.order is None or isinstance(rows, RaggedRows):
            return rows
        back = sorted(range(len(self.order)), key=self.order.__getitem__)
        return rows.transpose(0, *(axis + 1 for axis in back))


FIRST_AXIS = Arrangement()


def without(shape: Sequence[int], axis: int) -> tuple[int, ...]:
    """`shape` with one axis left out."""
    return (*shape[:axis], *shape[axis + 1 :])


def fortran(rank: int) -> Arrangement:
    """For an array in Fortran order, seen as the array of the reversed shape in C order that it is in memory."""
    return Arrangement(rank - 1, tuple(reversed(range(rank - 1))))


def from_names(names: Sequence[str], rank: int, what: str) -> Arrangement:
    """The arrangement of an array stored with dimensions `names`: 'n' and any of 'c', 'd', 'h', 'w'.

    Raises ParameterError if they are not that, or not as many as the array has.
    """
    if len(set(names)) != len(names) or "n" not in names or not set(names) <= set("n" + _DELIVERED):
        raise ParameterError(
            f"{what}: parameter 'dims' is {list(names)!r}: expected the stored order of the dimensions, 'n' (samples) "
            "once and each of 'c', 'd', 'h', 'w' at most once, such as [n, h, w, c]"
        )
    if len(names) != rank:
        raise ParameterError(
            f"{what}: parameter 'dims' names {len(names)} dimensions, {list(names)!r}, but the array has {rank}"
        )
    sample = [name for name in names if name != "n"]
    return Arrangement(list(names).index("n"), tuple(sample.index(name) for name in _DELIVERED if name in sample))


def dims_by_top(dims: Dims, tops: Sequence[str], what: str) -> Mapping[str, tuple[str, ...]]:
    """The option `dims` as a mapping from top to names; raises ParameterError for a name that is no top."""
    named = dims if isinstance(dims, dict) else {tops[0]: dims} if dims else {}
    for top in named:
        if top not in tops:
            raise ParameterError(f"{what}: parameter 'dims' names {top!r}, which is not a top: {', '.join(tops)}")
    return named
