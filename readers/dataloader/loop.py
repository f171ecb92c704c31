"""One loop over a DataLoader: what is asked for, what has come, and the state between two batches."""

from __future__ import annotations

import pickle
import warnings
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, Protocol, TypeVar

import torch

from ...workers.base import BlobfeedError, PipelineClosed, SampleError, shorten
from ...workers.order import globals_kept
from .feed import LoaderFeed
from .fetching import Answer, Failed, Fetcher, MapRequest, ShardState, StreamRequest
from .keys import Drawn, SeededSampler, Walk, epoch_of, generator_of, replicas_of

VERSION = 1
_NEVER = 1 << 40
_Value = TypeVar("_Value")


class Owner(Protocol):
    """A DataLoader, as its loops see it."""

    dataset: Any
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

    @property
    def length_said(self) -> int | None:
        """The length that `len()` of the loader has returned, of an iterable dataset."""

    def __len__(self) -> int: ...

    def check_open(self) -> None:
        """Raises PipelineClosed."""

    def say_epoch_of(self, state: dict[str, Any]) -> None:
        """Say to the sampler which epoch the state is in."""

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

    at: Any
    """The place behind the batches that were received, replaced as a whole by `after`."""

    def next(self) -> tuple[MapRequest | StreamRequest, int, _Given] | None:
        """Return the next request, the number of its rows and what to keep; None behind the last one."""
        raise NotImplementedError

    def after(self, given: _Given, answer: Answer) -> Any:
        """Return the place behind a batch that was received, too."""
        raise NotImplementedError

    def state(self, *, finished: bool = False) -> dict[str, Any]:
        """Return the state. `finished`: behind the last batch, where the next epoch begins."""
        raise NotImplementedError

    @property
    def is_at_end(self) -> bool:
        """True if it is known that no request is left."""
        return False


def _source_of(loader: Owner) -> Any:
    """Return what yields the keys: the batch sampler if it is the user's own, else the sampler."""
    return loader.batch_sampler if loader.batch_size is None and loader.batch_sampler is not None else loader.sampler


class _MapPlace(NamedTuple):
    """`had`, `taken`: the samples and the batches of this loop. The states: of the sampler, and of the dataset."""

    had: int
    taken: int
    batches: int
    sampler: Any
    dataset: Any


class _MapSide(_Side):
    """Keys from the sampler, in the trainer."""

    def __init__(self, loader: Owner, number: int, epoch: int, state: dict[str, Any]) -> None:
        self._loader, self._number, self._epoch = loader, number, epoch
        source = _source_of(loader)
        self._replicas, self._rank = replicas_of(source)
        self._begun = state.get("samples", 0)
        """The samples of the epoch that all ranks together had before; this rank's next one lies behind them."""
        before = max(0, -(-(self._begun - self._rank) // self._replicas))
        self._begins_with = state.get("dataset")
        self.at = _MapPlace(0, 0, state.get("batches", 0), state.get("sampler"), self._begins_with)
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
            skip=self.at.batches if source is not loader.sampler else before,
            state=self.at.sampler,
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

    def after(self, given: _Given, answer: Answer) -> _MapPlace:
        assert given.drawn is not None
        had, taken, batches, _, dataset = self.at
        dataset = dataset if answer.state is None else answer.state
        return _MapPlace(had + given.drawn.rows, taken + 1, batches + 1, given.drawn.state, dataset)

    def state(self, *, finished: bool = False) -> dict[str, Any]:
        generator = self._generator_state
        if finished and (drawn_from := generator_of(self._walk.source)) is not None:
            generator = drawn_from.get_state().tolist()
        own = {"sampler": self.at.sampler, "generator": generator, "dataset": self.at.dataset}
        own["sampler_epoch"] = self._sampler_epoch
        known = {name: state for name, state in own.items() if state is not None}
        # Over all ranks, so that another number of them goes on there.
        had, source = self.at.had * self._replicas, self._walk.source
        if isinstance(source, SeededSampler):
            had = source.of_all_ranks(self._begun, self.at.taken * (self._loader.batch_size or 1))
        return {"samples": self._begun + had, "batches": self.at.batches, **known}


class _StreamPlace(NamedTuple):
    """By shard: the last state, and the turn before which that was; the batches; false behind its end."""

    snapshots: tuple[tuple[ShardState, int], ...]
    taken: tuple[int, ...]
    is_live: tuple[bool, ...]
    batches: int
    turn: int


class _StreamSide(_Side):
    """Shards in turn, as torch's workers take turns; one that has ended is left out."""

    def __init__(self, loader: Owner, number: int, epoch: int, state: dict[str, Any], before: Any) -> None:
        self._loader, self._number, self._epoch = loader, number, epoch
        saved = state.get("shards")
        self._workers: int = state["workers"] if saved else loader.num_workers
        count = max(1, self._workers)
        shards = [ShardState(*each) for each in saved] if saved else [ShardState()] * count
        if not saved and before and len(before) == count and (loader.persistent_workers or loader.feed is None):
            own = _is_own_iterator(loader.dataset)
            shards = [ShardState(dataset=it if own else data) for data, it, *_ in before]  # what it knows goes on
        self._asked = [0] * count
        self._next_shard = turn = state.get("turn", 0) % count
        live = tuple(not shard.ended for shard in shards)
        snapshots = tuple((shard, 0) for shard in shards)
        self.at = _StreamPlace(snapshots, (0,) * count, live, state.get("batches", 0), turn)
        self._every = loader.snapshot_every_n_steps or _NEVER
        self._notes_first = not saved and self._every < _NEVER
        """A shard without any state would go on with whatever a worker that stays has left of the dataset."""
        if not saved and _is_own_iterator(loader.dataset):
            self._begin_shards()

    def _begin_shards(self) -> None:
        """Note where a dataset that is its own iterator begins: where it was left, by this loader or by anybody.

        Only its iterator says so. What another dataset says before its first item is of the iterator before.
        """
        shards = range(len(self._asked))
        begun = _answers(self._loader, [self._request(shard, 0, size=0, notes=True) for shard in shards])
        snapshots = tuple((ShardState(iterator=ShardState(*answer.state).iterator), 0) for answer in begun)
        self.at = self.at._replace(snapshots=snapshots)

    def _request(self, shard: int, turn: int, *, size: int | None, notes: bool) -> StreamRequest:
        loader, (start, start_turn) = self._loader, self.at.snapshots[shard]
        place = shard, self._workers, turn, size, start, start_turn
        return StreamRequest(self._number, loader.seed, self._epoch, *place, notes, loader.epoch_set)

    def next(self) -> tuple[MapRequest | StreamRequest, int, _Given] | None:
        count, live = len(self._asked), self.at.is_live
        turns = (turn % count for turn in range(self._next_shard, self._next_shard + count))
        if (shard := next((turn for turn in turns if live[turn]), None)) is None:
            return None
        size, turn = self._loader.batch_size, self._asked[shard]
        self._next_shard, self._asked[shard] = (shard + 1) % count, turn + 1
        notes = (turn + 1) % self._every == 0 or (turn == 0 and self._notes_first)
        return self._request(shard, turn, size=size, notes=notes), size or 1, _Given(None, shard)

    def after(self, given: _Given, answer: Answer) -> _StreamPlace:
        shard, (snapshots, taken, live, batches, turn) = given.shard, self.at
        taken = _with(taken, shard, taken[shard] + 1)
        if answer.ended:
            live = _with(live, shard, False)
        else:
            batches, turn = batches + 1, (shard + 1) % len(live)
        if answer.state is not None:
            snapshots = _with(snapshots, shard, (ShardState(*answer.state), taken[shard]))
        return _StreamPlace(snapshots, taken, live, batches, turn)

    def state(self, *, finished: bool = False) -> dict[str, Any]:
        size = self._loader.batch_size or 1
        shards = [
            [*shard[:-1], shard.skip + size * (taken - turn)]
            for (shard, turn), taken in zip(self.at.snapshots, self.at.taken, strict=True)
        ]
        return {"batches": self.at.batches, "turn": self.at.turn, "workers": self._workers, "shards": shards}


def _with(values: tuple[_Value, ...], place: int, value: _Value) -> tuple[_Value, ...]:
    return (*values[:place], value, *values[place + 1 :])


def _is_own_iterator(dataset: Any) -> bool:
    return hasattr(type(dataset), "__next__") and callable(getattr(dataset, "state_dict", None))


def _answers(loader: Owner, requests: list[StreamRequest]) -> list[Answer]:
    """Return the answers to requests before those of the loop. Raises what the user's code raises."""
    loader.check_open()
    if (feed := loader.feed) is None:
        with globals_kept():
            return [loader.fetcher.fetch(request) for request in requests]
    feed.abandon()
    try:
        for request in requests:
            feed.give(request, 1)
        answers = [feed.take() for _ in requests]
    except BlobfeedError:
        raise
    except BaseException:  # Ctrl-C, behind which an answer may be missing
        feed.restart()
        raise
    if failed := next((answer for answer in answers if isinstance(answer, Failed)), None):
        raise _error_of(failed)
    return [answer for answer in answers if isinstance(answer, Answer)]


def first_state(loader: Owner) -> dict[str, Any]:
    """Return the state before the first loop."""
    own: dict[str, Any] = {"turn": 0} if loader.is_iterable else {"samples": 0}
    if loader.is_iterable and _is_own_iterator(loader.dataset):
        loader.loops += 1
        own = _StreamSide(loader, loader.loops, loader.epoch, {}, None).state()
    if not loader.is_iterable and (generator := generator_of(_source_of(loader))) is not None:
        own["generator"] = generator.get_state().tolist()
    return {**_head(loader, loader.epoch, finished=False), "batches": 0, **own}


def _head(loader: Owner, epoch: int, *, finished: bool) -> dict[str, Any]:
    about = {"version": VERSION, "iterable": loader.is_iterable}
    return {**about, "seed": loader.seed, "epoch": epoch, "finished": finished}


class Loop(Iterator[Any]):
    """The iterator that a DataLoader gives."""

    def __init__(self, loader: Owner, epoch: int, state: dict[str, Any] | None) -> None:
        self._loader, self.epoch = loader, epoch
        self._loaded = state
        self._is_over = self._has_begun = self._has_ended = False
        self._is_asked = False
        """True while a step has not ended; one that begins so finds that Ctrl-C has broken off the last one."""
        if loader.feed is not None:
            loader.feed.abandon()
        self._begin(state)

    def _begin(self, state: dict[str, Any] | None) -> None:
        loader, epoch = self._loader, self.epoch
        loader.loops += 1
        self._pending: deque[_Given] = deque()
        self._is_drawn = self._is_counted = False
        given = state or {}
        if given.get("finished"):  # a new epoch, by what the last one has left
            given = {name: given[name] for name in ("generator", "dataset") if name in given}
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
            if self._is_asked:
                self._restart()
            self._is_asked = True
            while not self._is_over:
                if (received := self._receive()) is None:
                    self._count_epoch()
                    self._is_over = True
                    break
                answer, given = received
                if isinstance(answer, Failed):
                    self._side.at, self._is_asked = self._side.after(given, Answer()), False
                    raise _error_of(answer)
                after = self._side.after(given, answer)
                if answer.ended:
                    self._side.at = after
                    continue
                if answer.replaced:
                    loader.note_replaced(answer.replaced, self.epoch)
                self._compare_length(after.batches)
                batch = loader.delivered(answer.batch)
                self._count_epoch()
                # Last, with no call between or behind: Ctrl-C in one would lose the batch.
                self._side.at = after
                self._is_asked = False
                return batch
            self._is_asked = False
        except Exception as error:
            shorten(error)
            raise
        raise StopIteration

    def _compare_length(self, batches: int) -> None:
        """Warn, as torch does, if a dataset has more than it has said: each worker may be iterating over all of it."""
        said = self._loader.length_said
        if said is not None and batches > said:
            warnings.warn(
                f"Length of IterableDataset was reported to be {said} (when accessing len(dataloader)), but {batches} "
                "samples have been fetched. For multiprocessing data-loading, this happens if each worker iterates "
                "over the whole dataset: have __iter__ take its part by torch.utils.data.get_worker_info()",
                stacklevel=3,
            )

    def _restart(self) -> None:
        """Go on behind the batch that was returned last, as a loaded state does."""
        loader, state = self._loader, self.state()
        if loader.feed is not None:
            loader.feed.restart()
        loader.say_epoch_of(state)
        self._begin(state)

    def _receive(self) -> tuple[Answer | Failed, _Given] | None:
        """Return the next answer, and what was asked for; None behind the last one."""
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
                    return self._loader.fetcher.fetch(request), given
            except Exception:
                self._side.at, self._is_asked = self._side.after(given, Answer()), False
                raise
        if feed is None or not self._pending:
            return None
        try:
            return feed.take(), self._pending.popleft()
        except BlobfeedError:
            self._is_asked = False
            raise

    @property
    def unused(self) -> dict[str, Any] | None:
        """The state that the loop began with, unless it has given a batch or come to its end."""
        return None if self._has_begun else self._loaded

    def end(self) -> None:
        """End the loop: another one begins, of new loaders if Ctrl-C has broken off the last step of this one."""
        self._has_ended = not self._is_over
        if self._is_asked:
            if self._loader.feed is not None:
                self._loader.feed.restart()
            if self._has_begun:
                self._loader.end_epoch(self.epoch)
        self._is_asked = False

    def _count_epoch(self) -> None:
        """Let the next loop be the next epoch from the first batch on, for a loop may be left before its end.

        A loop of which nothing was asked does not count: frameworks begin one, and drop it.
        """
        if not self._is_counted:
            self._loader.end_epoch(self.epoch)
            self._has_begun = self._is_counted = True

    def state(self) -> dict[str, Any]:
        """Return the state behind the batch that was returned last.

        Behind the last batch the epoch is over, though nobody has asked for more: frameworks that know the length do
        not, and an empty loop would count as one of their epochs.
        """
        awaits_none = self._has_begun and not self._pending and not self._is_asked
        is_over = self._is_over or (awaits_none and self._side.is_at_end)
        state = {**_head(self._loader, self.epoch, finished=is_over), **self._side.state(finished=is_over)}
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
