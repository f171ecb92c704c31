"""What a loader does with a task over an indexed source: which samples its rows want, and what becomes of bad ones."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator, Sequence

import numpy as np

from ..base.parameters import Parameters
from ..base.specs import IndexArray, NamedRows
from ..order.epoch_order import EpochOrder
from ..order.groups import Groups, Segment
from ..order.sample_rng import replacement_index
from ..transport.error_channel import summary_of
from ..transport.messages import BadRow, Fill
from ..transport.status_board import Activity, LoaderStatus
from .decoded_source import DecodedSource
from .worker import WorkDone, Worker, cut_rows, location_of

_log = logging.getLogger("blobfeed")

_MOST_REPLACEMENTS = 100
_KILLED_ITS_LOADERS = "loaders died on this sample again and again"


class IndexedWorker(Worker):
    """Samples by index: which ones is a function of the order and the groups."""

    def __init__(
        self,
        decoded: DecodedSource,
        order: EpochOrder,
        groups: Groups,
        parameters: Parameters,
        slots: Sequence[NamedRows],
        status: LoaderStatus,
        channel: socket.socket,
    ) -> None:
        super().__init__(parameters, decoded.rows.hooks.postprocess, slots, status, channel)
        self._decoded = decoded
        self._order = order
        self._groups = groups

    def announce(self, task: Fill) -> None:
        """Tell the source of samples that a later task will want."""
        try:
            for segment in self._groups.segments(task.group, task.first_row, task.rows):
                self._decoded.source.will_need(self._order.indices(segment.position, segment.count))
        except Exception as error:  # reading will meet it again, and know which sample it was
            _log.info("samples could not be announced to their source: %s", summary_of(error))

    def fill(self, task: Fill) -> WorkDone:
        """Make the task's rows in their slot; reports the rows whose own sample could not be made."""
        bad: list[BadRow] = []
        for segment in self._groups.segments(task.group, task.first_row, task.rows):
            indices, epochs = self._samples(segment)
            out = cut_rows(self.slots[task.slot], segment.row, segment.count)
            if task.skip:
                bad.append(self._after_deaths(segment.row, indices, epochs, out, task.skip))
            else:
                bad.extend(self._make(segment.row, indices, epochs, out))
            if bad and bad[-1].replacement < 0:
                break  # the run ends with this one, so the rows behind it are not needed
        return WorkDone(bad)

    def _samples(self, segment: Segment) -> tuple[IndexArray, IndexArray]:
        positions = np.arange(segment.position, segment.position + segment.count, dtype=np.int64)
        return self._order.indices(segment.position, segment.count), positions // self._order.samples

    def _make(self, row: int, indices: IndexArray, epochs: IndexArray, out: NamedRows) -> Iterator[BadRow]:
        """All rows at once; if that raises, one by one, to learn which of them it was."""
        try:
            self._attempt(indices, epochs, out)
            return
        except Exception as error:
            if len(indices) == 1:
                yield self._bad(row, int(indices[0]), int(epochs[0]), out, error)
                return
        for offset in range(len(indices)):
            here = slice(offset, offset + 1)
            for bad in self._make(row + offset, indices[here], epochs[here], cut_rows(out, offset, 1)):
                yield bad
                if bad.replacement < 0:
                    return

    def _attempt(self, indices: IndexArray, epochs: IndexArray, out: NamedRows) -> None:
        self.status.write(Activity.READING, int(indices[0]))
        self._decoded.make(indices, epochs, out, self._decoding)

    def _decoding(self, index: int) -> None:
        self.status.write(Activity.DECODING, index)

    # ---- bad samples

    def _bad(self, row: int, index: int, epoch: int, out: NamedRows, error: Exception) -> BadRow:
        replaced = self.parameters.on_error == "replace"
        replacement = self._put_replacement(index, epoch, out, 0) if replaced else -1
        bad = BadRow(row, epoch, index, replacement, location_of(self._decoded.source, index), summary_of(error))
        return bad if replacement >= 0 else self.with_cause(bad, error)

    def _after_deaths(self, row: int, indices: IndexArray, epochs: IndexArray, out: NamedRows, skip: int) -> BadRow:
        """Loaders died on the sample itself and on its first `skip - 1` replacements: try the next one."""
        index, epoch = int(indices[0]), int(epochs[0])
        replacement = self._put_replacement(index, epoch, out, skip - 1)
        path = location_of(self._decoded.source, index)
        return BadRow(row, epoch, index, replacement, path, _KILLED_ITS_LOADERS)

    def _put_replacement(self, index: int, epoch: int, out: NamedRows, first_attempt: int) -> int:
        """The first candidate that can be made takes the row; -1 if none of the next hundred can."""
        for attempt in range(first_attempt, first_attempt + _MOST_REPLACEMENTS):
            candidate = replacement_index(self.parameters.seed, epoch, index, attempt, len(self._decoded.source))
            try:
                self._attempt(np.array([candidate]), np.array([epoch]), out)
            except Exception:
                # It is bad itself: it will be reported at its own position.
                continue
            return candidate
        return -1
