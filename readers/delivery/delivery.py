"""From a slot of the ring into the trainer's memory: the order of the steps, and the way into memory that NumPy sees.

    look at the next batch ─► get memory ─► copy ─► take the batch, release its slot ─► received

A step that did not end, by Ctrl-C or an exception other than blobfeed's own, has left anything behind. So the next one
starts the pipeline anew at the position before it, as a state does that is loaded: the same batch comes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

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


_BlobT = TypeVar("_BlobT", bound=Blob)


class Delivery(ABC):
    """Takes batches of a pipeline and brings each into blobs. `tops`: one for each blob, in order."""

    def __init__(self, pipeline: Pipeline, tops: Sequence[Top]) -> None:
        self.pipeline = pipeline
        self.tops = tuple(tops)
        self._looked_at: Upcoming | None = None
        self.before: Position | None = None
        """The position before a step that has not ended. Who has called `fill` sets it to None, in the last statement
        before the batch is returned: Ctrl-C falls on calls and loops, not on an assignment."""

    def deliver(self, blobs: Sequence[Blob]) -> Batch:
        """Put the next batch into `blobs`, which have `next_shapes()`, and return it; its arrays may be gone."""
        batch, _ = self.fill(lambda _: blobs)
        self.before = None
        return batch

    def fill(self, blobs_for: Callable[[list[Shape]], Sequence[_BlobT]]) -> tuple[Batch, Sequence[_BlobT]]:
        """Put the next batch into blobs for its shapes, and return both.

        It is received when the caller sets `before` to None.
        """
        self._begin()
        try:
            upcoming = self._upcoming()
            blobs = blobs_for(upcoming.shapes)
            self._put(upcoming, blobs)
        except BlobfeedError as error:
            self._end_by(error)
            raise
        return upcoming.batch, blobs

    def next_shapes(self) -> list[Shape]:
        """Return the shapes of the next batch, (rows, ...); waits until it is known."""
        self._begin()
        try:
            shapes = self._upcoming().shapes
        except BlobfeedError as error:
            self._end_by(error)
            raise
        self.before = None
        return shapes

    def _begin(self) -> None:
        if self.before is not None:
            self.go_to(self.before)
        self.before = self.progress

    def _end_by(self, error: BlobfeedError) -> None:
        if isinstance(error, _WRONG):
            self._pass_over()
        self.before = None

    def go_to(self, position: Position) -> None:
        """Go on at `position`, of the pipeline's plan or one made of it; discard what was prefetched."""
        self.before = position  # first: if this is interrupted, the next step does it again
        self._forget()
        self.pipeline.go_to(position)
        self.before = None

    @property
    def progress(self) -> Position:
        """The position behind the batches that were received; those taken from the pipeline ahead do not count."""
        return self.pipeline.progress if self.before is None else self.before

    def _take_back(self) -> None:  # noqa: B027 - most lend nothing
        """Release the slots that the user has no array on any more."""

    def close(self) -> None:
        """Let go of all batches of the pipeline; before the pipeline itself is closed."""
        self._forget()

    def _forget(self) -> None:
        """Let go of all that a run of the pipeline has given."""
        self._looked_at = None  # its arrays would keep the ring's memory

    def _upcoming(self) -> Upcoming:
        """Return the pipeline's next batch; waits for it."""
        looked_at = self._looked_at
        if looked_at is not None and self.pipeline.is_next(looked_at.batch):
            return looked_at
        self._take_back()  # before the wait: the slot may be just what the loaders are waiting for
        batch = self.pipeline.peek()
        shapes = [top.shape(batch) for top in self.tops]
        self._looked_at = looked_at = Upcoming(batch, shapes, self.pipeline.progress)
        return looked_at

    @abstractmethod
    def _put(self, upcoming: Upcoming, blobs: Sequence[Blob]) -> None:
        """Bring the batch into `blobs`, and take it.

        Raises ValueError if a blob has another shape, and InexactValueError.
        """

    def _pass_over(self) -> None:
        """Take the next batch, in whose place an error stands that no retry can fix."""
        self.pipeline.release(self.pipeline.take())


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
        self._loans, self._most_loans = SlotLoans[Batch](loans), loans
        self._shown_as = shown_as
        self._gathered = pipeline.plan.gathered
        self._made_in_blobs = [
            (i, top)
            for i, top in enumerate(tops)
            if isinstance(top, EvenTop) and (is_as_stored(top) or top.name in self._gathered)
        ]
        is_even = all(isinstance(top, EvenTop) for top in tops)  # else the rows say which shape a batch has
        pipeline.deliver_into_host(calls_make=is_even and bool(self._made_in_blobs))

    def _forget(self) -> None:
        super()._forget()
        self._loans = SlotLoans(self._most_loans)

    def _take_back(self) -> None:
        for batch in self._loans.returned():
            if self.pipeline.holds(batch):
                self.pipeline.release(batch)

    def _put(self, upcoming: Upcoming, blobs: Sequence[Blob]) -> None:
        batch, copies = upcoming.batch, dict[int, Any]()
        lends = self._shown and batch.make is None and self._loans.are_left and hasattr(blobs[0], "adopt")
        copied = self._never_shown if lends else self._every
        for i, top in copied:
            copies[i] = blobs[i].data
            require_shape(top, upcoming.shapes[i], tuple(copies[i].shape))
        made = self._make_in(batch, copies)
        for i, top in copied:
            if top.name not in made:
                top.put(batch, as_numpy(copies[i]))
        if lends:
            arrays = self._loans.lend(batch, self._lendable(cast(SlotTops, batch.tops)))
            for (i, _), array in zip(self._shown, arrays, strict=True):
                cast(Any, blobs[i]).adopt(self._shown_as(array))
        self.pipeline.take()
        if not lends:
            self.pipeline.release(batch)
        self.pipeline.look_ahead()

    def _make_in(self, batch: Batch, copies: Mapping[int, Any]) -> Collection[str]:
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
