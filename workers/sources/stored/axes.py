"""The order in which an array's axes are stored, and the order in which its samples are delivered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...base.specs import AnyArray


@dataclass(frozen=True, slots=True)
class Arrangement:
    """Which stored axis counts the samples, and which of the others (that one left out) each delivered axis is.

    `order` None: the others as they lie.
    """

    sample_axis: int = 0
    order: tuple[int, ...] | None = None

    def delivered(self, stored: Sequence[int]) -> tuple[int, ...]:
        """The shape of one delivered sample; `stored` is the whole array's shape."""
        sample = without(stored, self.sample_axis)
        return sample if self.order is None else tuple(sample[axis] for axis in self.order)

    def as_stored(self, rows: AnyArray) -> AnyArray:
        """A view of delivered rows, shape (rows, *delivered), with the sample's axes in their stored order."""
        if self.order is None:
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
