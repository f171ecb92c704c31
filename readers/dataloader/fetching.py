"""Answers to requests: items of the user's dataset, collated into the slot by a loader.

With `num_workers=0` the trainer does the same, so that both give the same bytes.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import cloudpickle
import numpy as np
import torch
import torch.utils.data
from torch.utils.data._utils import collate, worker

from ...supplies.growing_slots import GrowingSlot
from ...workers.api import CacheCounts
from ...workers.base import derive_key
from ...workers.order import SampleSeeds, Seed, replacements, seed_generators
from ...workers.transport import Activity, LoaderStatus, describe, summary_of
from .packing import SlotWriter

if TYPE_CHECKING:
    from .cached_items import CachedItems

_log = logging.getLogger("blobfeed")


class MapRequest(NamedTuple):
    """A batch of a dataset with indices: `keys`, or one key if batching is off.

    `first`, `step`: numbers of the samples in their epoch, for random numbers. `loop`: counts the trainer's loops.
    `state`: that of the dataset, when a loop begins with one. `set_epoch`: what the user has said, or None.
    """

    loop: int
    seed: int
    epoch: int
    keys: Any
    first: int = 0
    step: int = 0
    state: Any = None
    set_epoch: int | None = None


class ShardState(NamedTuple):
    """The place in a shard of an iterable dataset: the states of its objects after `items` items, and the items to skip
    from there.
    """

    dataset: Any = None
    iterator: Any = None
    items: int = 0
    ended: bool = False
    skip: int = 0


class StreamRequest(NamedTuple):
    """The shard's batch number `turn` in this loop; the shard stood at `start` before batch `start_turn`.

    `shards`: of how many workers this is one; 0 if the trainer iterates without any. `size`: 0 to begin, and answer
    with the state alone.
    """

    loop: int
    seed: int
    epoch: int
    shard: int
    shards: int
    turn: int
    size: int | None
    start: ShardState
    start_turn: int
    notes_state: bool
    set_epoch: int | None = None


class Answer(NamedTuple):
    """`batch`, unless `ended`; `state`: that of the dataset or the shard behind it; `replaced`: (bad, instead) keys."""

    batch: Any = None
    state: Any = None
    replaced: tuple[tuple[int, int, str], ...] = ()
    ended: bool = False


class Failed(NamedTuple):
    """The user's exception, pickled unless that is impossible; its text; the key of the sample, if there is one."""

    error: bytes
    text: str
    traceback: str
    where: str
    epoch: int


class Recipe(NamedTuple):
    """The arguments of the DataLoader that say what to do with requests."""

    dataset: Any
    collate_fn: Callable[[Any], Any]
    worker_init_fn: Callable[[int], object] | None
    is_iterable: bool
    is_batched: bool
    drop_last: bool
    persistent: bool
    replaces: bool
    """on_error is "replace"."""
    cached: CachedItems | None


def state_of(thing: object) -> Any:
    """Return what the object says of its state, copied; None if it says nothing."""
    if not callable(getattr(thing, "state_dict", None)):
        return None
    return pickle.loads(cloudpickle.dumps(thing.state_dict()))  # type: ignore[attr-defined]


def load_state(thing: Any, state: object) -> bool:
    """Give the object its state back; returns False if there is none, or it takes none."""
    if state is None or not callable(getattr(thing, "load_state_dict", None)):
        return False
    thing.load_state_dict(state)
    return True


class Fetcher:
    """Answers requests. `mark`: called with the sample that comes next; `copies`: each loop has a dataset anew."""

    def __init__(
        self, recipe: Recipe, mark: Callable[[int], object], collates: Callable[[], object], *, copies: bool
    ) -> None:
        self._recipe, self._mark, self._collates, self._copies = recipe, mark, collates, copies
        self._dataset = recipe.dataset
        self._items: Any = recipe.cached or recipe.dataset
        self._loop = -1
        self._shards: dict[int, _Shard] = {}
        self._seed, self._seeds = 0, SampleSeeds(0)
        self.at: object = None
        """The key of the sample that was last begun, for errors."""

    def fetch(self, request: MapRequest | StreamRequest) -> Answer:
        """Return the batch; raises what the user's code raises."""
        self.at = None
        if isinstance(request, MapRequest):
            return self._of_map(request)
        before = worker._worker_info
        try:
            return self._of_stream(request)
        finally:
            worker._worker_info = before

    # ---- datasets with indices

    def _of_map(self, request: MapRequest) -> Answer:
        dataset, items_of, recipe = self._dataset, self._items, self._recipe
        if request.loop != self._loop:
            self._loop = request.loop
            load_state(dataset, request.state)
            say_epoch(dataset, request.set_epoch)
        keys = request.keys if recipe.is_batched else [request.keys]
        epoch, first, step = request.epoch, request.first, request.step
        numbers = [
            (epoch, first + place * step, key if type(key) is int else _number(key)) for place, key in enumerate(keys)
        ]
        if self._seed != request.seed:
            self._seed, self._seeds = request.seed, SampleSeeds(request.seed)
        replaced: list[tuple[int, int, str]] = []

        def each(seed: Seed) -> list[Any]:
            replaced.clear()
            items = []
            for place, key in enumerate(keys):
                self._begin(key)
                seed(place)
                try:
                    items.append(items_of[key])
                except Exception as error:
                    items.append(self._instead(key, request, partial(seed, place), error, replaced))
            return items

        def together() -> Any:
            self._begin(keys[0] if len(keys) else -1)
            return items_of.__getitems__(keys)

        at_once = recipe.is_batched and not recipe.replaces and callable(getattr(items_of, "__getitems__", None))
        data = self._seeds.make(numbers, each, together if at_once else None)
        self._collates()
        batch = recipe.collate_fn(data if recipe.is_batched else data[0])
        return Answer(batch, state_of(dataset), tuple(replaced))

    def _begin(self, key: Any) -> None:
        self.at = key
        index = key if type(key) is int else _index_of(key)
        self._mark(-1 if index is None else index)

    def _instead(
        self,
        bad: Any,
        request: MapRequest,
        seed: Callable[[], None],
        error: Exception,
        replaced: list[tuple[int, int, str]],
    ) -> Any:
        """Return the item that takes the place of a bad one, if the user wants one; else raise its error."""
        if not self._recipe.replaces or (number := _index_of(bad)) is None:
            raise error
        text, keys = summary_of(error), range(len(self._dataset))
        for key in replacements(request.seed, request.epoch, number, keys):
            self._begin(key)
            seed()
            try:
                item = self._items[key]
            except Exception as another:
                _log.debug("sample %d, in the place of %d, is bad, too: %s", key, number, summary_of(another))
                continue
            replaced.append((number, key, text))
            return item
        raise error

    # ---- iterable datasets

    def _of_stream(self, request: StreamRequest) -> Answer:
        if request.loop != self._loop:
            self._loop = request.loop
            if not self._recipe.persistent:
                self._shards.clear()
        shard = self._shards.get(request.shard)
        if shard is not None and shard.loop == request.loop and shard.turn == request.turn:
            shard.inform(request)
        else:
            if shard is None or shard.loop == request.loop:  # behind another loader's death, or ahead of its return
                shard = self._shards[request.shard] = _Shard(self._recipe, self._new_dataset(request))
            shard.begin(request)
            for _ in range(request.turn - request.start_turn):
                shard.next_items(request, self._mark)
        if request.size == 0:
            return Answer(state=shard.state())
        data = shard.next_items(request, self._mark)
        self.at = None
        if shard.ended and not data:
            return Answer(state=shard.state(), ended=True)
        self._collates()
        batch = self._recipe.collate_fn(data if self._recipe.is_batched else data[0])
        return Answer(batch, shard.state() if request.notes_state else None)

    def _new_dataset(self, request: StreamRequest) -> Any:
        """Return a dataset that no other shard or loop has touched; in the trainer the user's own."""
        if not self._copies and not request.shards:
            return self._dataset
        if isinstance(self._dataset, bytes):
            return pickle.loads(self._dataset)
        self._dataset = cloudpickle.dumps(self._dataset)
        return pickle.loads(self._dataset)


class _Shard:
    """An iterator over an iterable dataset, as a worker of torch's has it."""

    def __init__(self, recipe: Recipe, dataset: Any) -> None:
        self._recipe, self._dataset = recipe, dataset
        self._is_new = True
        self._seed = 0
        self.loop = self.turn = -1
        self.ended = False
        self._items = 0
        self._iterator: Iterator[Any] = iter(())

    def begin(self, request: StreamRequest) -> None:
        """Go to where the request's shard stood before batch `start_turn`."""
        recipe, start = self._recipe, request.start
        self._seed = seed_generators(request.seed, request.epoch, request.shard, -2)
        self.inform(request)
        if request.shards and self._is_new and recipe.worker_init_fn is not None:
            recipe.worker_init_fn(request.shard)
        self._is_new = False
        self.loop, self.turn, self._items, self.ended = request.loop, -1, 0, False
        knows = load_state(self._dataset, start.dataset)
        say_epoch(self._dataset, request.set_epoch)
        seed_generators(request.seed, request.epoch, request.shard, -1)
        self._iterator = iter(self._dataset)
        knows = load_state(self._iterator, start.iterator) or knows
        self._items = start.items if knows else 0
        for _ in range(start.skip + (0 if knows else start.items)):
            seed_generators(request.seed, request.epoch, request.shard, self._items)
            if next(self._iterator, self) is self:
                break
            self._items += 1
        self.turn = request.start_turn  # only now: what has raised begins anew

    def inform(self, request: StreamRequest) -> None:
        """Have `get_worker_info` answer for this shard."""
        worker._worker_info = (
            worker.WorkerInfo(id=request.shard, num_workers=request.shards, seed=self._seed, dataset=self._dataset)
            if request.shards
            else None
        )

    def next_items(self, request: StreamRequest, mark: Callable[[int], object]) -> list[Any]:
        """Return the items of the next batch, fewer at the end of the shard."""
        self.turn += 1
        items: list[Any] = []
        size = request.size or 1
        while len(items) < size and not self.ended:
            mark(self._items)
            seed_generators(request.seed, request.epoch, request.shard, self._items)
            try:
                items.append(next(self._iterator))
            except StopIteration:
                self.ended = True
                break
            self._items += 1
        if self._recipe.drop_last and len(items) < size:
            return []
        return items

    def state(self) -> ShardState:
        iterator = state_of(self._iterator)
        dataset = None if self._iterator is self._dataset else state_of(self._dataset)
        return ShardState(dataset, iterator, self._items, self.ended)


def say_epoch(thing: Any, epoch: int | None) -> None:
    """Tell a dataset or a sampler the epoch, if there is one to tell and it wants to know."""
    if epoch is not None and callable(getattr(thing, "set_epoch", None)):
        thing.set_epoch(epoch)


def _index_of(key: object) -> int | None:
    """Return the number of a sample, None if its key is none."""
    return int(key) if isinstance(key, int | np.integer) else None


def _number(key: object) -> int:
    """Return a number for random numbers; what is no integer is known by its text."""
    index = _index_of(key)
    return derive_key(0, "key", *repr(key).encode()) if index is None else index


# ---- in a loader


class DatasetMaker:
    """Makes batches of a dataset in a loader; see Maker. `kind`: the name of the dataset's class at the user's."""

    def __init__(self, recipe: Recipe, seed: int, kind: str) -> None:
        self._recipe, self._seed, self._kind = recipe, seed, kind

    def begin(self, number: int, loaders: int, status: LoaderStatus) -> None:
        recipe = self._recipe
        torch.set_num_threads(1)
        self._number, self._writer, self._status = number, SlotWriter(), status
        worker._worker_info = worker.WorkerInfo(
            id=number, num_workers=loaders, seed=seed_generators(self._seed, number), dataset=recipe.dataset
        )
        status.locate = lambda sample: f"{self._kind}[{sample}]"
        self._fetcher = Fetcher(recipe, status.mark, self._collates, copies=True)
        self._is_new = not recipe.is_iterable
        self._counts = CacheCounts()
        # What torch's own does in a worker, which makes shared memory for each tensor; the slot is shared already.
        collate.default_collate_fn_map[torch.Tensor] = self._stacker = _Stacker()

    def make(self, request: bytes, slot: GrowingSlot) -> None:
        slot.reserve(0)
        self._writer.begin(slot)
        self._stacker.writer = None
        asked: MapRequest | StreamRequest = pickle.loads(request)
        try:
            self._call_init_fn()
            self._writer.write(tuple(self._fetcher.fetch(asked)))
        except Exception as error:
            self._writer.begin(slot)
            self._writer.write(tuple(self._failed(error, asked.epoch)))
        if (cached := self._recipe.cached) is not None:
            self._status.note_cache_counts(cached.counts, self._counts)
            self._counts = cached.counts

    def _collates(self) -> None:
        """The batch itself is made from here on; what a dataset has collated before may be kept by it."""
        self._status.write(Activity.POSTPROCESSING)
        if self._recipe.collate_fn is collate.default_collate:
            self._stacker.writer = self._writer

    def _call_init_fn(self) -> None:
        if self._is_new and self._recipe.worker_init_fn is not None:
            seed_generators(self._seed, self._number)
            self._recipe.worker_init_fn(self._number)
        self._is_new = False

    def _failed(self, error: Exception, epoch: int) -> Failed:
        at = self._fetcher.at
        where = "" if at is None else f"sample {at!r}"[:200]
        try:
            data = cloudpickle.dumps(error)
            pickle.loads(data)
        except Exception as problem:
            _log.info("an exception travels as text only: %s: %s", type(problem).__name__, problem)
            data = b""
        return Failed(data if len(data) < 1 << 15 else b"", summary_of(error), describe(error), where, epoch)


class _Stacker:
    """Stacks tensors of one shape, right in the slot of `writer` if it is set: one copy in all."""

    writer: SlotWriter | None = None

    def __call__(self, batch: Sequence[torch.Tensor], *, collate_fn_map: object = None) -> torch.Tensor:
        first = batch[0]
        if first.is_nested or first.layout is not torch.strided:
            refused: torch.Tensor = collate.collate_tensor_fn(batch)  # it says why it cannot
            return refused
        size = len(batch) * first.numel() * first.element_size()
        # Of several types torch makes a common one, and into memory of another it would cast.
        alike = {(type(each), each.dtype, each.requires_grad) for each in batch} == {(torch.Tensor, first.dtype, False)}
        if self.writer is None or first.device.type != "cpu" or not alike or not size:
            return torch.stack(list(batch), 0)
        out = self.writer.tensor(first.dtype, (len(batch), *first.shape), size)
        return torch.stack(list(batch), 0, out=out)
