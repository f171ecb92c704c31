"""What a loader does with one batch of a stream: draw samples from the shard, make their rows, replace bad ones."""

from __future__ import annotations

import socket
from collections.abc import Sequence

import msgspec

from ..base.keys import derive_key
from ..base.parameters import Parameters
from ..base.specs import NamedRows, RaggedRows
from ..transport.error_channel import summary_of
from ..transport.messages import BadRow, Fill, StreamBatch
from ..transport.status_board import Activity, LoaderStatus
from .decoded_stream import DecodedStream, Item, ShardReader
from .worker import WorkDone, Worker, location_of


class StreamWorker(Worker):
    """Runs the shards that it is asked for, each from its start."""

    def __init__(
        self,
        decoded: DecodedStream,
        parameters: Parameters,
        slots: Sequence[NamedRows],
        status: LoaderStatus,
        channel: socket.socket,
    ) -> None:
        super().__init__(parameters, decoded.rows.hooks.postprocess, slots, status, channel)
        self._decoded = decoded
        self._readers: dict[int, ShardReader] = {}

    def fill(self, task: Fill) -> WorkDone:
        wanted, rows = task.stream, self.slots[task.slot]
        if wanted is None:
            raise TypeError(f"a stream's loader got a task without a shard: {task!r}")
        bad: list[tuple[int, Item, Exception]] = []
        count = 0
        self.status.write(Activity.READING, wanted.sequence * self.parameters.batch_size)
        # A loader that dies while it runs a shard again, up to this batch, has not died of this batch.
        self.status.begin_task(0)
        try:
            batch = self._reader(wanted.shard).batch(wanted.epoch, wanted.sequence)
            self.status.begin_task(task.task)
            for item in batch:
                self.status.write(Activity.DECODING, item.index)
                try:
                    self._decoded.rows.put(self._decoded.sample(item), rows, count)
                except Exception as error:
                    bad.append((count, item, error))
                count += 1
        except Exception as error:
            # The iterator itself has failed: what would have followed cannot be known, so nothing can replace it.
            return WorkDone([self._fatal(count, wanted, error)], count)
        good = sorted(set(range(count)) - {row for row, _, _ in bad})
        return WorkDone([self._report(wanted.shard, rows, good, *each) for each in bad], count)

    def _reader(self, shard: int) -> ShardReader:
        if shard not in self._readers:
            self._readers[shard] = ShardReader(self._decoded, shard, self.parameters)
        return self._readers[shard]

    def _report(self, shard: int, rows: NamedRows, good: list[int], row: int, item: Item, error: Exception) -> BadRow:
        """Replace the bad row by a copy of a good one of its batch: a stream cannot be asked for another sample."""
        where = self._where(item.index, shard)
        report = BadRow(row, item.epoch, item.index, -1, where, summary_of(error))
        if not (self.parameters.on_error == "replace" and good):
            return self.with_cause(report, error)
        chosen = good[derive_key(self.parameters.seed, "replacement", item.epoch, item.index) % len(good)]
        _copy_row(rows, chosen, row)
        # The replacement has no number of its own: its row in the batch stands for it.
        return msgspec.structs.replace(report, replacement=chosen)

    def _fatal(self, row: int, wanted: StreamBatch, error: Exception) -> BadRow:
        index = wanted.sequence * self.parameters.batch_size + row
        where = self._where(index, wanted.shard)
        return self.with_cause(BadRow(row, wanted.epoch, index, -1, where, summary_of(error)), error)

    def _where(self, index: int, shard: int) -> str:
        return f"{location_of(self._decoded.source, index)}, shard {shard}"


def _copy_row(rows: NamedRows, source: int, target: int) -> None:
    for top in rows.values():
        if isinstance(top, RaggedRows):
            top.put(target, top.get(source))
        else:
            top[target] = top[source]
