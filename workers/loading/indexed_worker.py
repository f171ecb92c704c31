"""What a loader does with one task: which samples its rows want, making them, and what becomes of bad ones."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator

import numpy as np

from ..base.specs import IndexArray, NamedRows, Rows
from ..order.sample_rng import replacement_index
from ..order.units import Segment, UnitPlan
from ..transport.board import Activity, Seat
from ..transport.error_channel import summary_of
from ..transport.messages import BadRow, Fill, Postprocess
from .postprocessing import cut_rows, postprocess_rows
from .recipe import Recipe
from .worker import ToLoader, WorkDone, WorkerSettings, failed_hook, place_of, with_cause

_log = logging.getLogger("blobfeed")

_MOST_REPLACEMENTS = 100
_KILLED_ITS_LOADERS = "loaders died on this sample again and again"


class IndexedWorker:
    """`slots`: for each slot of the ring all its rows by top name."""

    def __init__(
        self,
        recipe: Recipe,
        units: UnitPlan,
        settings: WorkerSettings,
        slots: list[dict[str, Rows]],
        seat: Seat,
        channel: socket.socket,
    ) -> None:
        self._recipe = recipe
        self._units = units
        self._seed = settings.seed
        self._replace = settings.replace
        self._slots = slots
        self._seat = seat
        self._channel = channel

    def announce(self, message: ToLoader) -> None:
        """Tell the source of samples that a later task will want."""
        if not isinstance(message, Fill):
            return
        try:
            for segment in self._units.segments(message.unit, message.first_row, message.rows):
                self._recipe.source.will_need(self._recipe.order.indices(segment.position, segment.count))
        except Exception as error:  # reading will meet it again, and know which sample it was
            _log.info("samples could not be announced to their source: %s", summary_of(error))

    def work(self, message: ToLoader) -> WorkDone:
        if isinstance(message, Fill):
            return WorkDone(self._fill(message))
        if isinstance(message, Postprocess):
            return WorkDone(self._postprocess(message))
        raise TypeError(f"the loader of an indexed source got {message!r}")

    def _fill(self, task: Fill) -> list[BadRow]:
        """Make the task's rows in their slot; returns the rows whose own sample could not be made."""
        bad: list[BadRow] = []
        for segment in self._units.segments(task.unit, task.first_row, task.rows):
            indices, epochs = self._samples(segment)
            out = cut_rows(self._slots[task.slot], segment.row, segment.count)
            if task.skip:
                bad.append(self._after_deaths(segment.row, indices, epochs, out, task.skip))
            else:
                bad.extend(self._make(segment.row, indices, epochs, out))
            if bad and bad[-1].replacement < 0:
                break  # the run ends with this one, so the rows behind it are not needed
        return bad

    def _samples(self, segment: Segment) -> tuple[IndexArray, IndexArray]:
        order = self._recipe.order
        indices = order.indices(segment.position, segment.count)
        positions = np.arange(segment.position, segment.position + segment.count, dtype=np.int64)
        return indices, positions // order.samples

    def _make(self, row: int, indices: IndexArray, epochs: IndexArray, out: NamedRows) -> Iterator[BadRow]:
        """All rows at once; where that raises, one by one, to learn which of them it was."""
        try:
            self._attempt(indices, epochs, out)
            return
        except Exception as error:
            if len(indices) == 1:
                yield self._bad(row, int(indices[0]), int(epochs[0]), out, error)
                return
        for place in range(len(indices)):
            here = slice(place, place + 1)
            for bad in self._make(row + place, indices[here], epochs[here], cut_rows(out, place, 1)):
                yield bad
                if bad.replacement < 0:
                    return

    def _attempt(self, indices: IndexArray, epochs: IndexArray, out: NamedRows) -> None:
        self._seat.write(Activity.READING, int(indices[0]))
        self._recipe.make(indices, epochs, out, self._decoding)

    def _decoding(self, index: int) -> None:
        self._seat.write(Activity.DECODING, index)

    # ---- bad samples

    def _bad(self, row: int, index: int, epoch: int, out: NamedRows, error: Exception) -> BadRow:
        replacement = self._put_replacement(index, epoch, out, 0) if self._replace else -1
        bad = BadRow(row, epoch, index, replacement, place_of(self._recipe.source, index), summary_of(error))
        return bad if replacement >= 0 else with_cause(bad, error, self._channel)

    def _after_deaths(self, row: int, indices: IndexArray, epochs: IndexArray, out: NamedRows, skip: int) -> BadRow:
        """Loaders died on the sample itself and on its first `skip - 1` replacements: try the next one."""
        index, epoch = int(indices[0]), int(epochs[0])
        replacement = self._put_replacement(index, epoch, out, skip - 1)
        return BadRow(row, epoch, index, replacement, place_of(self._recipe.source, index), _KILLED_ITS_LOADERS)

    def _put_replacement(self, index: int, epoch: int, out: NamedRows, first_attempt: int) -> int:
        """The first candidate that can be made takes the row; -1 where none of the next hundred can."""
        for attempt in range(first_attempt, first_attempt + _MOST_REPLACEMENTS):
            candidate = replacement_index(self._seed, epoch, index, attempt, len(self._recipe.source))
            try:
                self._attempt(np.array([candidate]), np.array([epoch]), out)
            except Exception:
                # It is bad itself: it will be reported where it stands in its own right.
                continue
            return candidate
        return -1

    # ---- whole batches

    def _postprocess(self, task: Postprocess) -> list[BadRow]:
        """Run the hook on each batch of the unit; what it raises counts against the unit's first row."""
        hook = self._recipe.hooks.postprocess
        if hook is None:
            raise RuntimeError(f"unit {task.unit} is to be postprocessed, but the recipe has no such hook")
        size = self._units.plan.batch_size
        for number, k in enumerate(self._units.batches(task.unit)):
            rows = self._units.plan.batch(k).rows
            if number * size + rows > task.rows:
                break
            self._seat.write(Activity.POSTPROCESSING)
            try:
                postprocess_rows(hook, cut_rows(self._slots[task.slot], number * size, rows))
            except Exception as error:
                return [failed_hook(number * size, error, self._channel)]
        return []
