"""The supply of a stream: its shards take turns. Pure.

An epoch's items are the batches of this rank's shards in turn: item k is batch `k // shards` of shard `k % shards`. A
shard's length becomes known by a batch that is not full. From then on the shard is skipped; what was requested of it
before comes back empty and is dropped. When all shards have ended, the epoch ends. So the moment at which an end
becomes known has no effect: the batches and their order depend on the number of shards alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import msgspec
import numpy as np

from ..workers.api import IndexArray, Parameters, loop_end
from ..workers.base import ParameterError, SourceError
from ..workers.order import At, Placed, Rounds, Supply
from ..workers.transport import Run

EMPTY_EPOCH = "the stream gave no sample in epoch {}: what makes it must return a fresh iterable each time it is called"

FIX_STREAM = "fix what makes it: a stream cannot be asked for another sample"
"""The advice where no sample can be replaced."""

_NO_FULL_BATCH = (
    "last_batch is 'drop', and epoch {} of the stream has no full batch: no shard gave batch_size={} samples; "
    "use a smaller batch_size, fewer shards, or last_batch 'wrap' or 'partial'"
)


@dataclass
class StreamSupply(Supply):
    """The `parts` of one rank are shards; each belongs to one loader at a time. `capacity`: of their shuffle buffers.

    `any_number`: the user declared no number of shards; it is that of the loaders, and may change at a restart.
    """

    parts: int
    capacity: int = 0
    any_number: bool = False

    name = "a stream"
    not_located = "a stream's samples have no indices, so its batches cannot be located"

    def __post_init__(self) -> None:
        always = ("seed", "batch_size", "last_batch", "epochs", "world_size", "capacity")
        self.fixed = always if self.any_number else (*always, "shards")

    def land(self, given: Parameters, state: Mapping[str, int | str] | None = None) -> tuple[Supply, At]:
        if state is None:
            return self, At(0, 0)
        if not (count := int(state["shards"])):
            raise ParameterError("the state's shards are 0: expected at least one")
        return replace(self, parts=count), At(int(state["epoch"]), int(state["position"]))

    def rounds(self, given: Parameters, at: At) -> Rounds:
        return ShardRounds(given, self.parts, *at)

    def samples_of(self, run: Run) -> tuple[IndexArray, IndexArray, IndexArray]:
        """Return the numbers of the samples in their shard, since there are no indices."""
        counted = np.arange(run.position, run.position + run.rows, dtype=np.int64)
        return counted, self.epochs_of(run), counted

    def identify(self, given: Parameters, at: At) -> dict[str, int | str]:
        return {
            "epoch": at.epoch,
            "position": at.item,
            "batch_size": given.batch_size,
            "shards": self.parts,
            "world_size": given.ranks,
            "capacity": self.capacity,
            "last_batch": given.last_batch,
            # With wrap the epochs of a loop join without a border, and so many do.
            "epochs": given.epochs or 0 if given.last_batch == "wrap" else 0,
        }

    def batch_key(self, run: Run, batch_size: int) -> tuple[int, ...]:
        return run.epoch, run.shard, run.position // batch_size

    @property
    def samples(self) -> int:
        raise SourceError("a stream does not know how many samples it has: read it until its end")


@dataclass
class ShardRounds(Rounds):
    """The batches of `shards` shards from `item` of `epoch` on.

    `ended` is set behind the loop of `epochs` epochs. With `last_batch: wrap` its epochs join without a border, so a
    shard ends once.
    """

    parameters: Parameters
    shards: int
    epoch: int
    item: int
    ended: bool = False
    failure: str = ""
    _under_way: set[tuple[int, int]] = field(default_factory=set)
    """The epoch and item of each batch that was placed and whose rows are not known."""
    _ends: dict[int, int] = field(default_factory=dict)
    """The first item of each shard in this epoch that is known not to be full."""
    _longest: int = field(init=False)
    """The number of rows of the longest batch in this epoch."""

    can_be_cut = False
    advice = FIX_STREAM

    def __post_init__(self) -> None:
        self._longest = self.parameters.batch_size if self.item else 0

    def place(self, row: int, most: int) -> Placed | None:
        """Return the next batch to request; None behind the last batch."""
        if self.ended or row:
            return None
        while self.item % self.shards in self._ends:
            self.item += 1
        size, (sequence, shard) = self.parameters.batch_size, divmod(self.item, self.shards)
        run = Run(row, size, self.epoch, sequence * size, shard=self._first_shard + shard)
        self._under_way.add((self.epoch, self.item))
        self.item += 1
        return Placed([run], 1, [At(self.epoch, self.item)])

    def note_rows(self, runs: list[Run], rows: int) -> list[Run]:
        (run,) = runs
        size, drops = self.parameters.batch_size, self.parameters.last_batch == "drop"
        item = run.position // size * self.shards + run.shard - self._first_shard
        self._under_way.discard((run.epoch, item))
        if run.epoch == self.epoch and not self.ended:
            self._longest = max(self._longest, rows)
            if rows < size:
                self._note_end(item)
        return [msgspec.structs.replace(run, rows=rows)] if rows >= (size if drops else 1) else []

    def affinity(self, run: Run, skipped: int) -> int:
        """Return the shard: the loader that runs it makes all of its batches."""
        return run.shard

    def sample_in(self, run: Run, skipped: int, seen: int) -> tuple[int, int, str]:
        """Return (epoch, index, location) of the sample, as far as known; `seen`: the loader's last sample."""
        return run.epoch, seen if seen >= 0 else run.position + skipped, f"the stream's shard {run.shard}"

    @property
    def _first_shard(self) -> int:
        """The number of the first shard among the shards of all ranks."""
        return self.parameters.own_rank * self.shards

    def _note_end(self, item: int) -> None:
        """Record that batch `item` of this epoch is not full."""
        shard = item % self.shards
        self._ends[shard] = min(item, self._ends.get(shard, item))
        if len(self._ends) < self.shards:
            return
        given = self.parameters
        least = given.batch_size if given.last_batch == "drop" else 1
        if self._longest < least and not self._may_get_more():
            complaint = _NO_FULL_BATCH if self._longest else EMPTY_EPOCH
            self.failure = complaint.format(self.epoch, given.batch_size)
        joins, end = given.last_batch == "wrap", loop_end(given.epochs, self.epoch)
        self.epoch = end if joins and end is not None else self.epoch + 1
        self.ended = joins or self.epoch == end or bool(self.failure)
        self.item = self._longest = 0
        self._ends.clear()

    def _may_get_more(self) -> bool:
        """Return true if a batch of this epoch before its shard's end is still being made.

        A loader that had the shard before may have it, while the next one has already met the end.
        """
        return any(epoch == self.epoch and item < self._ends[item % self.shards] for epoch, item in self._under_way)
