"""From a slot of the ring into the trainer's memory: the order of the steps, and the way into memory that NumPy sees.

    look at the next batch ─► get memory ─► copy ─► take the batch, release its slot ─► received

An exception or Ctrl-C before the last step, which is one assignment, leaves `state_dict` as it was, and the next call
gives the same batch: it is copied again, or, where the slot has been released, the copy that was made is kept.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

import msgspec
import numpy as np

from ...workers.api import AnyArray, ConvertedRows
from ...workers.base import BlobfeedError, InexactValueError, UnequalShapesError
from ...workers.pipeline import Pipeline
from ...workers.plan import Batch, Position, SlotTops
from .loans import Lendable, SlotLoans
from .tops import EvenTop, Shape, Top

if TYPE_CHECKING:
    import torch

    Memory = AnyArray | torch.Tensor


_WRONG = (InexactValueError, UnequalShapesError)
"""Errors that no retry can fix: raised once, then the batch is skipped."""


class Blob(Protocol):
    """The memory that a batch is delivered into: `data` is fetched anew each time, as Caffe's blobs need it."""

    @property
    def data(self) -> Memory: ...


class Upcoming(msgspec.Struct, frozen=True):
    """A batch that has not been received. `before`: the trainer's progress until then."""

    batch: Batch
    shapes: list[Shape]
    before: Position


class Filled(msgspec.Struct, frozen=True):
    """The upcoming batch, copied into `blobs`; or the error that stands in its place.

    `copies`: the data of the blobs that it was copied into, None for a blob that is shown the slot.
    """

    upcoming: Upcoming
    blobs: Sequence[Any] = ()
    copies: Sequence[Any] = ()
    error: BlobfeedError | None = None


class Delivery(ABC):
    """Takes batches of a pipeline and brings each into blobs. `tops`: one for each blob, in order."""

    def __init__(self, pipeline: Pipeline, tops: Sequence[Top]) -> None:
        self.pipeline = pipeline
        self.tops = tuple(tops)
        self._looked_at: Upcoming | None = None
        self.filled: Filled | None = None
        """Set while a batch lies in its blobs and has not been received. The caller of `fill` sets it to None, in the
        last statement before the batch is returned: Ctrl-C falls on calls and loops, not on an assignment."""

    def deliver(self, blobs: Sequence[Blob]) -> Batch:
        """Put the next batch into `blobs`, which have `next_shapes()`, and return it; its arrays may be gone."""
        batch = self.fill(blobs)
        self.filled = None
        return batch

    def fill(self, blobs: Sequence[Blob]) -> Batch:
        """Put the next batch into `blobs`: the same one again until `filled` is None."""
        if self.filled is None:
            upcoming = self._upcoming()
            try:
                self.filled = Filled(upcoming, blobs, self._copy(upcoming, blobs))
            except _WRONG as error:
                self.filled = Filled(upcoming, error=error)
        else:
            self._copy_again(self.filled, blobs)
        self._finish(self.filled, blobs)
        return self.filled.upcoming.batch

    def next_shapes(self) -> list[Shape]:
        """Return the shapes of the next batch, (rows, ...); waits until it is known."""
        return (self._upcoming() if self.filled is None else self.filled.upcoming).shapes

    @property
    def progress(self) -> Position:
        """The progress after the batches that were received; those taken from the pipeline ahead do not count."""
        return self.pipeline.progress if self.filled is None else self.filled.upcoming.before

    def _take_back(self) -> None:  # noqa: B027 - most lend nothing
        """Release the slots that the user has no array on any more."""

    def close(self) -> None:
        """Release all batches of the pipeline; before the pipeline itself is closed."""
        self._looked_at = None  # its arrays would keep the ring's memory

    def _upcoming(self) -> Upcoming:
        """Return the pipeline's next batch; waits for it."""
        looked_at = self._looked_at
        if looked_at is not None and self.pipeline.is_next(looked_at.batch):
            return looked_at
        self._take_back()  # before the wait: the slot may be just what the loaders are waiting for
        batch = self.pipeline.peek()
        try:
            shapes = [top.shape(batch) for top in self.tops]
        except _WRONG as error:
            self.filled = Filled(Upcoming(batch, [], self.pipeline.progress), error=error)
            self._finish(self.filled, ())
            raise
        self._looked_at = looked_at = Upcoming(batch, shapes, self.pipeline.progress)
        return looked_at

    def _copy_again(self, filled: Filled, blobs: Sequence[Blob]) -> None:
        """After an interrupt: blobs may have other memory by now, and the slot may have been released."""
        for blob, copy in zip(blobs, filled.copies, strict=False):
            if copy is not None and (data := cast(Any, blob.data)) is not copy:
                data[...] = copy

    def _finish(self, filled: Filled, blobs: Sequence[Blob]) -> None:
        self._take(filled.upcoming.batch, () if filled.error else blobs)
        if filled.error is not None:
            self.filled = None
            raise filled.error

    @abstractmethod
    def _copy(self, upcoming: Upcoming, blobs: Sequence[Blob]) -> Sequence[Any]:
        """Bring the batch into `blobs`, and return their data, None for one that is shown the slot later.

        Raises ValueError if a blob has another shape, and InexactValueError.
        """

    @abstractmethod
    def _take(self, batch: Batch, blobs: Sequence[Blob]) -> None:
        """Take the batch and release its slot, as far as that has not been done; it may be repeated.

        `blobs`: empty if the batch is skipped because of an error that no retry can fix.
        """


class HostDelivery(Delivery):
    """Into memory that NumPy can see: one copy, nothing allocated, and the slot is released at once.

    NumPy blobs (Caffe's own) and torch tensors on the CPU go the same way: a CPU tensor lends its memory to NumPy, so
    that torch starts no second thread against the loaders, and its number of threads stays what the user set.

    `loans`: the most batches that are handed over at a time: their blobs get the slot's own memory, and its slot is
    released when no array on it is left. While there are as many, the next ones are copied. `shows`: the tops that this
    holds for; what is converted or padded is copied all the same. `shown_as` makes of memory what the blob adopts.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        tops: Sequence[Top],
        *,
        loans: int = 0,
        shows: Sequence[bool] = (),
        shown_as: Callable[[AnyArray], Any] = np.asarray,
    ) -> None:
        super().__init__(pipeline, tops)
        self._every = list(enumerate(tops))
        self._shown = [(i, top) for i, top in self._every if loans and shows[i]]
        self._never_shown = [each for each in self._every if each not in self._shown]
        self._loans = SlotLoans[Batch](loans)
        self._lent: tuple[Batch, list[AnyArray]] | None = None
        """The batch that was handed over last, until the next one is asked for."""
        self._shown_as = shown_as
        self._gathered = pipeline.plan.gathered
        self._made_in_blobs = [
            (i, top)
            for i, top in enumerate(tops)
            if isinstance(top, EvenTop) and (is_as_stored(top) or top.name in self._gathered)
        ]
        is_even = all(isinstance(top, EvenTop) for top in tops)  # else the rows say which shape a batch has
        pipeline.deliver_into_host(calls_make=is_even and bool(self._made_in_blobs))

    def close(self) -> None:
        super().close()
        self._lent = None

    def _take_back(self) -> None:
        self._lent = None
        while (batch := self._loans.oldest_back()) is not None:
            if self.pipeline.holds(batch):
                self.pipeline.release(batch)
            self._loans.forget_oldest()

    def _copy(self, upcoming: Upcoming, blobs: Sequence[Blob]) -> Sequence[Any]:
        batch = upcoming.batch
        copies: list[Any] = [None] * len(self.tops)
        lends = self._shown and batch.make is None and self._loans.are_left and hasattr(blobs[0], "adopt")
        copied = self._never_shown if lends else self._every
        for i, top in copied:
            copies[i] = blobs[i].data
            require_shape(top, upcoming.shapes[i], tuple(copies[i].shape))
        made = self._make_in(batch, copies)
        for i, top in copied:
            if top.name not in made:
                top.put(batch, as_numpy(copies[i]))
        return copies

    def _copy_again(self, filled: Filled, blobs: Sequence[Blob]) -> None:
        super()._copy_again(filled, blobs)
        for top, blob, copy in zip(self.tops, blobs, filled.copies, strict=False):
            if copy is None and not hasattr(blob, "adopt"):  # a user's own array, behind an interrupt of another loop
                top.put(filled.upcoming.batch, as_numpy(blob.data))

    def _make_in(self, batch: Batch, copies: Sequence[Any]) -> Collection[str]:
        """Make a batch that is not made yet, right in the blobs where that is possible; returns the tops made there."""
        if batch.make is None:
            return ()
        rows = {top.name: self._rows_in(top, as_numpy(copies[i])) for i, top in self._made_in_blobs}
        into = {name: given for name, given in rows.items() if given is not None}
        batch.replaced = batch.make(into)
        return into

    def _rows_in(self, top: EvenTop, array: AnyArray) -> AnyArray | ConvertedRows | None:
        """Return the memory that the source can read into; None if the rows have to be in a slot first."""
        if not (array.flags.c_contiguous and array.flags.writeable):
            return None
        if array.dtype == top.dtype and not top.conversion.changes_values:
            return array
        gather = top.conversion.gather_into(array, top.spec.dtype) if top.name in self._gathered else None
        return None if gather is None else ConvertedRows(array, gather)

    def _take(self, batch: Batch, blobs: Sequence[Blob]) -> None:
        copies = () if self.filled is None else self.filled.copies
        shown = [blobs[i] for i, _ in self._shown if blobs and copies[i] is None]
        if shown:
            if self._lent is None or self._lent[0] is not batch:
                self._lent = batch, self._loans.lend(batch, self._lendable(cast(SlotTops, batch.tops)))
            for blob, array in zip(shown, self._lent[1], strict=True):
                if hasattr(blob, "adopt"):
                    blob.adopt(self._shown_as(array))
        if self.pipeline.is_next(batch):
            self.pipeline.take()
        if not shown and self.pipeline.holds(batch):
            self.pipeline.release(batch)
        self.pipeline.look_ahead()

    def _lendable(self, tops: SlotTops) -> Lendable:
        lendable: Lendable | None = tops.lendable
        if lendable is None:
            rows: list[Any] = [tops[top.name] for _, top in self._shown]
            tops.lendable = lendable = Lendable(rows)
        return lendable


def require_shape(top: Top, expected: Shape, given: Shape) -> None:
    """Raises ValueError; the batch stays the next one, so that it is still there after a reshape."""
    if given != expected:
        raise ValueError(
            f"top {top.name!r} has the shape {given} and the next batch {expected}: call reshape before each forward; "
            "a reshape of your own must not change the top's shape: change the samples' shape in decode or postprocess"
        )


def as_numpy(data: Memory) -> AnyArray:
    """`data` as NumPy sees it: the same memory."""
    return data if isinstance(data, np.ndarray) else data.detach().numpy()


def is_as_stored(top: Top) -> bool:
    """Return true if its rows are delivered as they lie in the slot."""
    return isinstance(top, EvenTop) and not top.conversion.changes_values
