"""What a loader does with one batch of a stream: draw samples from the shard, make their rows, replace bad ones."""

from __future__ import annotations

import socket

import msgspec

from ..base.keys import derive_key
from ..base.specs import RaggedRows, Rows
from ..transport.board import Activity, Seat
from ..transport.error_channel import summary_of
from ..transport.messages import BadRow, FillFromStream, Postprocess
from .postprocessing import cut_rows, postprocess_rows
from .stream_recipe import Item, ShardReader, StreamRecipe
from .worker import ToLoader, WorkDone, WorkerSettings, failed_hook, place_of, with_cause


class StreamWorker:
    """`slots`: for each slot of the ring all its rows by top name."""

    def __init__(
        self,
        recipe: StreamRecipe,
        settings: WorkerSettings,
        slots: list[dict[str, Rows]],
        seat: Seat,
        channel: socket.socket,
    ) -> None:
        self._recipe = recipe
        self._settings = settings
        self._slots = slots
        self._seat = seat
        self._channel = channel
        self._readers: dict[int, ShardReader] = {}

    def announce(self, message: ToLoader) -> None:
        """A stream is read as it comes: there is nothing to be told ahead."""

    def work(self, message: ToLoader) -> WorkDone:
        if isinstance(message, FillFromStream):
            return self._fill(message)
        if isinstance(message, Postprocess):
            return WorkDone(self._postprocess(message))
        raise TypeError(f"a stream's loader got {message!r}")

    def _fill(self, task: FillFromStream) -> WorkDone:
        rows = self._slots[task.slot]
        bad: list[tuple[int, Item, Exception]] = []
        count = 0
        self._seat.write(Activity.READING, task.sequence * self._settings.batch_size)
        # A loader that dies while it runs a shard again, up to this batch, has not died of this batch.
        self._seat.begin_task(0)
        try:
            batch = self._reader(task.shard).batch(task.epoch, task.sequence)
            self._seat.begin_task(task.task)
            for item in batch:
                self._seat.write(Activity.DECODING, item.index)
                try:
                    self._recipe.rows.put(self._recipe.sample(item), rows, count)
                except Exception as error:
                    bad.append((count, item, error))
                count += 1
        except Exception as error:
            # The iterator itself has failed: what would have followed cannot be known, so nothing can replace it.
            return WorkDone([self._fatal(count, task, error)], count)
        return WorkDone(self._settle(task, rows, bad, count), count)

    def _reader(self, shard: int) -> ShardReader:
        if shard not in self._readers:
            settings = self._settings
            chained = settings.last_batch == "wrap"
            self._readers[shard] = ShardReader(self._recipe, shard, settings.batch_size, settings.epochs, chained)
        return self._readers[shard]

    def _settle(
        self, task: FillFromStream, rows: dict[str, Rows], bad: list[tuple[int, Item, Exception]], count: int
    ) -> list[BadRow]:
        """Replace bad rows by copies of good ones of the same batch: a stream cannot be asked for another sample."""
        good = sorted(set(range(count)) - {row for row, _, _ in bad})
        return [self._report(task, rows, good, *each) for each in bad]

    def _report(
        self, task: FillFromStream, rows: dict[str, Rows], good: list[int], row: int, item: Item, error: Exception
    ) -> BadRow:
        report = BadRow(row, item.epoch, item.index, -1, self._where(item.index, task), summary_of(error))
        if not (self._settings.replace and good):
            return with_cause(report, error, self._channel)
        chosen = good[derive_key(self._settings.seed, "replacement", item.epoch, item.index) % len(good)]
        _copy_row(rows, chosen, row)
        # The replacement has no number of its own: its row in the batch stands for it.
        return msgspec.structs.replace(report, replacement=chosen)

    def _fatal(self, row: int, task: FillFromStream, error: Exception) -> BadRow:
        index = task.sequence * self._settings.batch_size + row
        report = BadRow(row, task.epoch, index, -1, self._where(index, task), summary_of(error))
        return with_cause(report, error, self._channel)

    def _where(self, index: int, task: FillFromStream) -> str:
        return f"{place_of(self._recipe.source, index)}, shard {task.shard}"

    def _postprocess(self, task: Postprocess) -> list[BadRow]:
        hook = self._recipe.hooks.postprocess
        if hook is None or task.rows == 0:
            return []
        self._seat.write(Activity.POSTPROCESSING)
        try:
            postprocess_rows(hook, cut_rows(self._slots[task.slot], 0, task.rows))
        except Exception as error:
            return [failed_hook(0, error, self._channel)]
        return []


def _copy_row(rows: dict[str, Rows], source: int, target: int) -> None:
    for top in rows.values():
        if isinstance(top, RaggedRows):
            top.put(target, top.get(source))
        else:
            top[target] = top[source]
