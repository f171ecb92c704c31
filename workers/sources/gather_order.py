"""The order in which an array's axes are stored, and the order in which its samples are delivered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..specs import AnyArray


@dataclass(frozen=True, slots=True)
class Arrangement:
    """Which stored axis counts the samples, and which of the others (that one left out) each delivered axis is."""

    sample_axis: int
    order: tuple[int, ...]

    def delivered(self, stored: Sequence[int]) -> tuple[int, ...]:
        """The shape of one delivered sample; `stored` is the whole array's shape."""
        sample = without(stored, self.sample_axis)
        return tuple(sample[axis] for axis in self.order)

    def as_stored(self, rows: AnyArray) -> AnyArray:
        """A view of delivered rows, shape (rows, *delivered), with the sample's axes in their stored order."""
        back = sorted(range(len(self.order)), key=self.order.__getitem__)
        return rows.transpose(0, *(axis + 1 for axis in back))


def without(shape: Sequence[int], axis: int) -> tuple[int, ...]:
    """`shape` with one axis left out."""
    return (*shape[:axis], *shape[axis + 1 :])


def plain(rank: int) -> Arrangement:
    """Samples counted by the first axis, the rest as it lies."""
    return Arrangement(0, tuple(range(rank - 1)))


def reversed_axes(rank: int) -> Arrangement:
    """For an array stored in Fortran order, seen as the C-ordered array of the reversed shape that it is in memory."""
    return Arrangement(rank - 1, tuple(reversed(range(rank - 1))))
