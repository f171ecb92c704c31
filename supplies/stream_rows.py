"""The rows of a stream: reads a shard's samples through its shuffle buffer and replaces bad ones."""

from __future__ import annotations

import itertools
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TypeVar

import msgspec
import numpy as np

from ..sources.stream import StreamSource, shuffled
from ..workers.api import Hooks, IndexArray, NamedRows, Parameters, Sample, loop_end
from ..workers.base import SourceError, derive_key
from ..workers.loading import BatchSamples, RowDecoder, Worker, Workplace, copy_row
from ..workers.order import Supply, part_of, replacements
from ..workers.transport import Activity, BadRow, Fill, Run, WorkDone, summary_of, trial_copy
from .stream import EMPTY_EPOCH, FIX_STREAM

_NONE_IS_GOOD = "fix it: a stream's bad sample is replaced by a good one of its batch, and this batch has none"

Note = Callable[[int], None]
_Noted = TypeVar("_Noted")

_log = logging.getLogger("blobfeed")


class Item(msgspec.Struct, frozen=True):
    """An unchecked value of the stream's iterator. `index` counts a shard's samples within one epoch.

    `number`: unique among the samples of the epoch, over all shards of all ranks.
    """

    index: int
    epoch: int
    value: object
    number: int


class StreamDecoder(RowDecoder):
    """The decoder of a stream's samples."""

    source: StreamSource

    def sample(self, item: Item) -> Sample:
        """Convert the item's components to arrays; raises ValueError if they differ from those of the first sample."""
        return _sample(self.source, item)

    @classmethod
    def read(cls, source: StreamSource, index: int, supply: Supply, given: Parameters, epoch: int = 0) -> Sample:
        """Return a sample of the first shard."""
        if index < 0:
            raise IndexError(f"sample {index} of a stream, whose samples are counted from 0")
        items = shard_items(source, supply.parts * given.ranks, 0, epoch, given.seed)
        item = next(itertools.islice(items, index, None), None)
        if item is None:
            raise IndexError(f"sample {index} of the stream's first shard, which has fewer in epoch {epoch}")
        return _sample(source, item)

    @classmethod
    def trial_copy(cls, source: StreamSource, hooks: Hooks) -> tuple[StreamSource, Hooks]:
        return trial_copy((source, hooks))

    def try_on(
        self, indices: Sequence[int] | IndexArray, epoch: int, out: NamedRows, supply: Supply, given: Parameters
    ) -> None:
        for row, index in enumerate(indices):
            self.rows.put(self.read(self.source, int(index), supply, given, epoch), out, row)

    def worker(self, supply: Supply, given: Parameters, place: Workplace) -> Worker:
        return StreamWorker(self, supply, given, place)


def _sample(source: StreamSource, item: Item) -> Sample:
    return Sample(source.components(item.value), item.index, item.epoch, item.number)


def shard_items(
    source: StreamSource, num_shards: int, shard: int, epoch: int, seed: int, note: Note | None = None
) -> Iterator[Item]:
    """Yield all samples of one shard in one epoch, shuffled by its buffer. Calls `note` while the buffer fills."""
    items: Iterator[object] = source.open(shard, num_shards, epoch)
    if source.capacity:
        first = itertools.islice(items, source.capacity)
        items = itertools.chain(_noted(first, note) if note else first, items)
        items = shuffled(map(source.copied, items), source.capacity, derive_key(seed, "stream", epoch, shard))
    for index, value in enumerate(items):
        yield Item(index, epoch, value, index * num_shards + shard)


def _noted(items: Iterable[_Noted], note: Note) -> Iterator[_Noted]:
    for number, item in enumerate(items):
        note(number)
        yield item


class ShardReader:
    """Reads one shard's batches. For any batch but the next one it runs the shard from its start and skips forward.

    It calls `note` for each skipped sample, so that the loader does not seem to hang.
    """

    def __init__(self, stream: StreamDecoder, shard: int, num_shards: int, parameters: Parameters, note: Note) -> None:
        """Read `shard` of `num_shards`, over all ranks together."""
        self._stream = stream
        self._num_shards = num_shards
        self._shard = shard
        self._parameters = parameters
        self._note = note
        self._next: tuple[int, int] | None = None
        self._items: Iterator[Item] = iter(())

    def batch(self, epoch: int, sequence: int) -> Iterator[Item]:
        """Return the samples of one batch; fewer than a full batch if the shard ends."""
        if self._next != (epoch, sequence):
            self._items = self._run(epoch)
            skipped = sequence * self._parameters.batch_size
            deque(_noted(itertools.islice(self._items, skipped), self._note), maxlen=0)
        self._next = (epoch, sequence + 1)
        return itertools.islice(self._items, self._parameters.batch_size)

    def is_behind(self, turn: tuple[int, int]) -> bool:
        """Return true if a batch before this one, (epoch, sequence), was not asked for."""
        return self._next is not None and self._next < turn

    def _run(self, epoch: int) -> Iterator[Item]:
        if self._parameters.last_batch != "wrap":
            yield from self._items_of(epoch)
            return
        end = loop_end(self._parameters.epochs, epoch)
        for number in itertools.count(epoch) if end is None else range(epoch, end):
            none = True
            for item in self._items_of(number):
                none = False
                yield item
            if none and number == epoch:
                return  # an empty shard, perhaps of fewer files than shards: the others continue
            if none:
                raise SourceError(EMPTY_EPOCH.format(number))

    def _items_of(self, epoch: int) -> Iterator[Item]:
        stream, seed = self._stream, self._parameters.seed
        return shard_items(stream.source, self._num_shards, self._shard, epoch, seed, self._note)


class StreamWorker(Worker):
    """Makes batches of a stream's shards."""

    def __init__(self, decoded: StreamDecoder, supply: Supply, parameters: Parameters, place: Workplace) -> None:
        super().__init__(decoded.source, supply, parameters, decoded.postprocessor, place)
        self._decoded = decoded
        self._readers: dict[int, ShardReader] = {}
        self._note_read = partial(self.status.write, Activity.READING)

    def fill(self, task: Fill, rows: NamedRows | None = None) -> WorkDone:
        """Make a whole batch, with fewer rows if its shard ends."""
        (wanted,), first = task.runs, task.slot * self.parameters.batch_size
        rows = {name: top[first : first + wanted.rows] for name, top in self.rows.items()} if rows is None else rows
        bad: list[tuple[int, Item, Exception]] = []
        count = 0
        self.status.write(Activity.READING, wanted.position)
        # A loader that dies while it skips to this batch has not died of this batch.
        self.status.blame(0)
        try:
            with self.guard():
                turn = wanted.epoch, wanted.position // self.parameters.batch_size
                batch = self._reader(wanted.shard, turn).batch(*turn)
                self.status.blame(task.task)
                for item in batch:
                    self.status.write(Activity.DECODING, item.index)
                    try:
                        with self.guard():
                            self._decoded.rows.put(self._decoded.sample(item), rows, count)
                    except Exception as error:
                        bad.append((count, item, error))
                    count += 1
                    if count < wanted.rows:
                        self.status.write(Activity.READING, item.index + 1)
        except Exception as error:
            # The iterator itself has failed, so no further sample is available as a replacement.
            return WorkDone((self._fatal(count, wanted, error),), count)
        return WorkDone(tuple(self._reports(wanted, rows, count, bad)) if bad else (), count)

    def _reports(
        self, wanted: Run, rows: NamedRows, count: int, bad: list[tuple[int, Item, Exception]]
    ) -> Iterator[BadRow]:
        """Replace each bad row by a copy of a good row of its batch, since a stream has no random access."""
        replaces, begin = self.parameters.on_error == "replace", wanted.position
        among, bad_rows = self.supply.among(part_of(wanted, 0, count)), {row for row, _, _ in bad}
        for row, item, error in bad:
            report = BadRow(row, item.epoch, item.index, -1, self._where(item.index, wanted.shard), summary_of(error))
            tried = replacements(self.parameters.seed, wanted.epoch, begin + row, among) if replaces else ()
            # Counted as in batch.indices: with `wrap` across epochs.
            chosen = next((position for position in tried if position - begin not in bad_rows), -1)
            if chosen >= 0:
                copy_row(rows, chosen - begin, rows, row)
                yield msgspec.structs.replace(report, replacement=chosen)
            else:
                advice = _NONE_IS_GOOD if replaces else ""
                yield self.with_cause(msgspec.structs.replace(report, advice=advice), error)

    def rows_made(self, task: Fill, done: WorkDone) -> int:
        least = task.rows if self.parameters.last_batch == "drop" else 1
        return done.stream_rows if done.stream_rows >= least else 0

    def samples_of(self, task: Fill, first: int, rows: int) -> BatchSamples:
        (run,) = task.runs
        indices = np.arange(run.position, run.position + rows, dtype=np.int64)
        return BatchSamples(indices, run.epoch, self.supply.batch_key(run, self.parameters.batch_size))

    def _reader(self, shard: int, turn: tuple[int, int]) -> ShardReader:
        # Shards take turns. One that was not asked for in an earlier turn is another loader's by now, or has ended.
        for other in [each for each, reader in self._readers.items() if each != shard and reader.is_behind(turn)]:
            del self._readers[other]
        if shard not in self._readers:
            self._readers[shard] = ShardReader(
                self._decoded, shard, self.supply.parts * self.parameters.ranks, self.parameters, self._note_read
            )
        return self._readers[shard]

    def _fatal(self, row: int, wanted: Run, error: Exception) -> BadRow:
        index = wanted.position + row
        where = self._where(index, wanted.shard)
        return self.with_cause(BadRow(row, wanted.epoch, index, -1, where, summary_of(error), advice=FIX_STREAM), error)

    def _where(self, index: int, shard: int) -> str:
        return f"{self.locate(index)}, shard {shard}"
