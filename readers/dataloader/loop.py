"""One loop over a DataLoader: what is asked for, what has come, and the state between two batches."""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, Protocol

import torch

from ...workers.base import PipelineClosed, SampleError, shorten
from ...workers.order import globals_kept
from .feed import LoaderFeed
from .fetching import Answer, Failed, Fetcher, MapRequest, ShardState, StreamRequest
from .keys import Drawn, SeededSampler, Walk, epoch_of, generator_of, replicas_of

VERSION = 1
_NEVER = 1 << 40


class Owner(Protocol):
    """A DataLoader, as its loops see it."""

    batch_size: int | None
    batch_sampler: Any
    sampler: Any
    drop_last: bool
    num_workers: int
    persistent_workers: bool
    snapshot_every_n_steps: int | None
    is_iterable: bool
    seed: int
    epoch: int
    """The epoch of the next loop."""
    epoch_set: int | None
    loops: int
    """The loops that have begun."""
    feed: LoaderFeed | None
    fetcher: Fetcher

    def __len__(self) -> int: ...

    def check_open(self) -> None:
        """Raises PipelineClosed."""

    def end_epoch(self, epoch: int) -> None:
        """Let the next loop be the epoch behind `epoch`."""

    def note_replaced(self, replaced: Iterable[tuple[int, int, str]], epoch: int) -> None:
        """Log bad samples; raises TooManyBadSamples."""

    def delivered(self, batch: Any) -> Any:
        """Return the batch where the user wants it."""


class _Given(NamedTuple):
    """A request that is under way."""

    drawn: Drawn | None
    shard: int = 0


class _Side:
    """The requests of a loop, and how far it has come: of a dataset with indices, or of an iterable one."""

    def next(self) -> tuple[MapRequest | StreamRequest, int, _Given] | None:
        """Return the next request, the number of its rows and what to keep; None behind the last one."""
        raise NotImplementedError

    def count(self, given: _Given, answer: Answer) -> None:
        """Count a batch as received."""
        raise NotImplementedError

    def state(self) -> dict[str, Any]:
        raise NotImplementedError

    @property
    def is_at_end(self) -> bool:
        """True if it is known that no request is left."""
        return False


def _source_of(loader: Owner) -> Any:
    """Return what yields the keys: the batch sampler if it is the user's own, else the sampler."""
    return loader.batch_sampler if loader.batch_size is None and loader.batch_sampler is not None else loader.sampler


class _MapSide(_Side):
    """Keys from the sampler, in the trainer."""

    def __init__(self, loader: Owner, number: int, epoch: int, state: dict[str, Any]) -> None:
        self._loader, self._number, self._epoch = loader, number, epoch
        source = _source_of(loader)
        self._replicas, self._rank = replicas_of(source)
        self._begun = state.get("samples", 0)
        """The samples of the epoch that all ranks together had before; this rank's next one lies behind them."""
        before = max(0, -(-(self._begun - self._rank) // self._replicas))
        self._had = self._taken = 0
        """The samples and the batches of this loop."""
        self._batches = state.get("batches", 0)
        self._sampler_state = state.get("sampler")
        self._dataset_state = self._begins_with = state.get("dataset")
        self._generator_state = None
        if (generator := generator_of(source)) is not None:
            if state.get("generator") is not None:
                generator.set_state(torch.tensor(state["generator"], dtype=torch.uint8))
            self._generator_state = generator.get_state().tolist()
        if isinstance(source, SeededSampler):
            source.seed, source.epoch = loader.seed, epoch
        self._sampler_epoch = epoch_of(source)
        self._walk = Walk(
            source,
            by_batch=source is not loader.sampler,
            batch_size=loader.batch_size,
            drop_last=loader.drop_last,
            seed=loader.seed,
            epoch=epoch,
            skip=self._batches if source is not loader.sampler else before,
            state=self._sampler_state,
        )
        self._drawn = before
        self._coming: Drawn | None = None
        """The keys that were drawn to see whether there are more."""

    @property
    def is_at_end(self) -> bool:
        self._coming = self._coming or next(self._walk, None)
        return self._coming is None

    def next(self) -> tuple[MapRequest | StreamRequest, int, _Given] | None:
        drawn, self._coming = self._coming or next(self._walk, None), None
        if drawn is None:
            return None
        loader, first, step = self._loader, 0, 0
        if not isinstance(self._walk.source, SeededSampler):  # which has each sample once
            first, step = self._drawn * self._replicas + self._rank, self._replicas
        self._drawn += drawn.rows
        begins, said = self._begins_with, loader.epoch_set
        request = MapRequest(self._number, loader.seed, self._epoch, drawn.keys, first, step, begins, said)
        return request, max(1, drawn.rows), _Given(drawn)

    def count(self, given: _Given, answer: Answer) -> None:
        assert given.drawn is not None
        self._had += given.drawn.rows
        self._batches += 1
        self._taken += 1
        self._sampler_state = given.drawn.state
        if answer.state is not None:
            self._dataset_state = answer.state

    def state(self) -> dict[str, Any]:
        own = {"sampler": self._sampler_state, "generator": self._generator_state, "dataset": self._dataset_state}
        own["sampler_epoch"] = self._sampler_epoch
        known = {name: state for name, state in own.items() if state is not None}
        # Over all ranks, so that another number of them goes on there.
        had, source = self._had * self._replicas, self._walk.source
        if isinstance(source, SeededSampler):
            had = source.of_all_ranks(self._begun, self._taken * (self._loader.batch_size or 1))
        return {"samples": self._begun + had, "batches": self._batches, **known}


class _StreamSide(_Side):
    """Shards in turn, as torch's workers take turns; one that has ended is left out."""

    def __init__(self, loader: Owner, number: int, epoch: int, state: dict[str, Any], before: Any) -> None:
        self._loader, self._number, self._epoch = loader, number, epoch
        saved = state.get("shards")
        self._workers: int = state["workers"] if saved else loader.num_workers
        count = max(1, self._workers)
        shards = [ShardState(*each) for each in saved] if saved else [ShardState()] * count
        if not saved and before and len(before) == count and (loader.persistent_workers or loader.feed is None):
            shards = [ShardState(dataset=dataset) for dataset, *_ in before]  # what it knows of epochs goes on
        self._snapshots = [(shard, 0) for shard in shards]
        """The last state of each shard, and the turn before which that was."""
        self._taken, self._asked = [0] * count, [0] * count
        self._is_live = [not shard.ended for shard in shards]
        self._next_shard = self._shown_turn = state.get("turn", 0) % count
        self._batches = state.get("batches", 0)
        self._every = loader.snapshot_every_n_steps or _NEVER

    def next(self) -> tuple[MapRequest | StreamRequest, int, _Given] | None:
        count = len(self._is_live)
        turns = (turn % count for turn in range(self._next_shard, self._next_shard + count))
        if (shard := next((turn for turn in turns if self._is_live[turn]), None)) is None:
            return None
        loader, (start, start_turn), turn = self._loader, self._snapshots[shard], self._asked[shard]
        self._next_shard, self._asked[shard] = (shard + 1) % count, turn + 1
        notes = (turn + 1) % self._every == 0
        place = shard, self._workers, turn, loader.batch_size, start, start_turn
        request = StreamRequest(self._number, loader.seed, self._epoch, *place, notes, loader.epoch_set)
        return request, loader.batch_size or 1, _Given(None, shard)

    def count(self, given: _Given, answer: Answer) -> None:
        shard = given.shard
        self._taken[shard] += 1
        if answer.ended:
            self._is_live[shard] = False
        else:
            self._batches += 1
            self._shown_turn = (shard + 1) % len(self._is_live)
        if answer.state is not None:
            self._snapshots[shard] = ShardState(*answer.state), self._taken[shard]

    def state(self) -> dict[str, Any]:
        size = self._loader.batch_size or 1
        shards = [
            [*shard[:-1], shard.skip + size * (taken - turn)]
            for (shard, turn), taken in zip(self._snapshots, self._taken, strict=True)
        ]
        return {"batches": self._batches, "turn": self._shown_turn, "workers": self._workers, "shards": shards}


def first_state(loader: Owner) -> dict[str, Any]:
    """Return the state before the first loop."""
    own: dict[str, Any] = {"turn": 0} if loader.is_iterable else {"samples": 0}
    if not loader.is_iterable and (generator := generator_of(_source_of(loader))) is not None:
        own["generator"] = generator.get_state().tolist()
    return {**_head(loader, loader.epoch, finished=False), "batches": 0, **own}


def _head(loader: Owner, epoch: int, *, finished: bool) -> dict[str, Any]:
    about = {"version": VERSION, "iterable": loader.is_iterable}
    return {**about, "seed": loader.seed, "epoch": epoch, "finished": finished}


class Loop(Iterator[Any]):
    """The iterator that a DataLoader gives."""

    def __init__(self, loader: Owner, epoch: int, state: dict[str, Any] | None) -> None:
        self._loader, self._epoch = loader, epoch
        loader.loops += 1
        self._pending: deque[_Given] = deque()
        self._answer: Answer | Failed | None = None
        """The answer that was counted as received and has not been returned."""
        self._is_drawn = self._is_over = self._has_begun = self._has_ended = False
        if loader.feed is not None:
            loader.feed.abandon()
        given = state if state is not None and not state["finished"] else {}
        self._side: _Side
        if loader.is_iterable:
            before = state.get("shards") if state is not None else None
            self._side = _StreamSide(loader, loader.loops, epoch, given, before)
        else:
            self._side = _MapSide(loader, loader.loops, epoch, given)

    def __iter__(self) -> Loop:
        return self

    def __len__(self) -> int:
        return len(self._loader)

    def __next__(self) -> Any:
        __tracebackhide__ = True
        loader = self._loader
        loader.check_open()
        if self._has_ended:
            raise PipelineClosed(
                "this loop is over: another loop over the same DataLoader has begun, or a state was loaded; for two "
                "loops at a time use two loaders"
            )
        try:
            while not self._is_over:
                if self._answer is None and not self._receive():
                    self._count_epoch()
                    self._is_over = True
                    break
                answer = self._answer
                if isinstance(answer, Failed):
                    self._answer = None
                    raise _error_of(answer)
                if answer is None or answer.ended:
                    self._answer = None
                    continue
                if answer.replaced:
                    loader.note_replaced(answer.replaced, self._epoch)
                batch = loader.delivered(answer.batch)
                self._count_epoch()
                self._answer = None  # last, with no call behind it: Ctrl-C in one would lose the batch
                return batch
        except Exception as error:
            shorten(error)
            raise
        raise StopIteration

    def _receive(self) -> bool:
        """Have the next answer come; returns False behind the last one."""
        feed = self._loader.feed
        while not self._is_drawn and len(self._pending) < (1 if feed is None else feed.ahead):
            if (asked := self._side.next()) is None:
                self._is_drawn = not self._pending or not self._loader.is_iterable
                break
            request, rows, given = asked
            if feed is not None:
                feed.give(request, rows)
                self._pending.append(given)
                continue
            try:
                with globals_kept():
                    self._commit(self._loader.fetcher.fetch(request), given)
            except Exception:
                self._side.count(given, Answer())
                raise
            return True
        if feed is None or not self._pending:
            return False
        feed.take(self._take)
        return True

    def _take(self, answer: Answer | Failed) -> None:
        self._commit(answer, self._pending.popleft())

    def _commit(self, answer: Answer | Failed, given: _Given) -> None:
        self._side.count(given, answer if isinstance(answer, Answer) else Answer())
        self._answer = answer

    def end(self) -> None:
        """End the loop: another one begins."""
        self._has_ended = not self._is_over

    def _count_epoch(self) -> None:
        """Let the next loop be the next epoch from the first batch on, for a loop may be left before its end.

        A loop of which nothing was asked does not count: frameworks begin one, and drop it.
        """
        if not self._has_begun:
            self._has_begun = True
            self._loader.end_epoch(self._epoch)

    def state(self) -> dict[str, Any]:
        """Return the state behind the batch that was returned last.

        Behind the last batch the epoch is over, though nobody has asked for more: frameworks that know the length do
        not, and an empty loop would count as one of their epochs.
        """
        awaits_none = self._has_begun and not self._pending and self._answer is None
        is_over = self._is_over or (awaits_none and self._side.is_at_end)
        state = {**_head(self._loader, self._epoch, finished=is_over), **self._side.state()}
        copy: dict[str, Any] = pickle.loads(pickle.dumps(state))
        return copy


def _error_of(failed: Failed) -> Exception:
    """Return the user's own exception, with a note that says where it was raised."""
    where = f"{failed.where or 'a batch'} of epoch {failed.epoch}"
    if failed.error:
        error: Exception = pickle.loads(failed.error)
        if not isinstance(error, StopIteration):  # which would end the loop in silence
            error.add_note(f"raised in a loader, for {where}:\n{failed.traceback}")
            return error
    return SampleError(f"{where}: {failed.text}; raised in a loader:\n{failed.traceback}")
