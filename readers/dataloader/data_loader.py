"""torch's DataLoader by its own names, over the pipeline's processes."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.utils.data
from torch.utils._pytree import tree_map_only
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import IterableDataset
from torch.utils.data._utils import pin_memory as pinning
from typing_extensions import TypeVar  # of torch: before Python 3.13 `typing` knows no default

from ...workers.api import Parameters, Statistics
from ...workers.base import ParameterError, PipelineClosed, TooManyBadSamples, need
from ...workers.plan import usable_cores
from ..closing import close_when_forgotten
from .feed import LoaderFeed
from .fetching import DatasetMaker, Fetcher, Recipe, say_epoch
from .keys import SeededSampler, say_epoch_to_sampler
from .loop import VERSION, Loop, first_state
from .packed_list import on_its_way

if TYPE_CHECKING:
    from .cached_items import CachedItems

_TIMEOUT_S = 600.0
_MOST_BAD = 100
_ALL = 1 << 40

_log = logging.getLogger("blobfeed")
_Item_co = TypeVar("_Item_co", covariant=True, default=Any)


class DataLoader(TorchDataLoader[_Item_co]):
    """torch's DataLoader with its own names and meanings; docs/from_torch.md says what is different.

        from blobfeed import DataLoader

        loader = DataLoader(dataset, batch_size=64, shuffle=True, num_workers=4)
        for data, label in loader:
            train(data, label)

    The workers are loaders of a pipeline: one that dies is replaced and the run goes on with the same bytes. Batches
    lie in shared memory, which is the loader's again when the last tensor on it has gone; if many are kept, they are
    copies. The order and all random numbers come from `seed`. `state_dict()` and `load_state_dict()` go on in the
    middle of an epoch, with any number of workers, ranks and rows in a batch.

    `num_workers`: "auto" for as many as keep the trainer from waiting. `timeout`: 0 for 600 s.
    `multiprocessing_context`: accepted; loaders are forked from a process of their own, whatever it says.
    `persistent_workers`: false to give each loop over an iterable dataset a new copy of it; the processes stay anyway.
    `in_order`: accepted; batches come in order.
    `seed`: by default drawn from `generator`, or from torch's own. `rank`, `world_size`: the part of the samples of
    `shuffle` and of the plain order; a sampler of yours deals out by itself. `device`: where batches are moved to.
    `on_error`: "replace" a sample that raises by another one, at most `max_bad_samples`; the log names both.
    `cache`: {"path", "size_limit"} of a database that keeps the items of a dataset from the first epoch on.
    `snapshot_every_n_steps`: how often the state of an iterable dataset is asked for, beside the first batch's.
    `task_timeout_s`: seconds at one sample after which a worker counts as hung.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[Any] | None = None,
        num_workers: int | Literal["auto"] = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        snapshot_every_n_steps: int | None = 1,
        seed: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        device: str | torch.device | None = None,
        on_error: Literal["raise", "replace"] = "raise",
        max_bad_samples: int = _MOST_BAD,
        cache: Mapping[str, Any] | None = None,
        task_timeout_s: float = 120.0,
    ) -> None:
        workers = usable_cores() if num_workers == "auto" else num_workers
        self.is_iterable = isinstance(dataset, IterableDataset)
        if on_error not in ("raise", "replace"):
            raise ParameterError(f'on_error is {on_error!r}: expected "raise" or "replace"')
        if on_error == "replace" and self.is_iterable:
            raise ParameterError(
                'on_error is "replace", and an iterable dataset has no other sample by number: leave it out, and catch '
                "the error in the dataset's own iterator"
            )
        if seed is None:
            seed = int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())
        if not 0 <= seed < 1 << 64:
            raise ParameterError(f"seed is {seed}: expected a number from 0 on that fits 64 bits")
        self.seed = seed
        ranks, own = _part(rank, world_size, sampler, batch_sampler, self.is_iterable)
        if not self.is_iterable and sampler is None and batch_sampler is None:
            sampler = SeededSampler(
                dataset, shuffle=bool(shuffle), seed=seed, rank=own, world_size=ranks, drop_last=drop_last
            )
            shuffle = None
        super().__init__(
            dataset,
            batch_size=batch_size,
            shuffle=shuffle,
            sampler=sampler,
            batch_sampler=batch_sampler,
            num_workers=workers,
            collate_fn=collate_fn,
            pin_memory=pin_memory,
            drop_last=drop_last,
            timeout=timeout,
            worker_init_fn=worker_init_fn,
            multiprocessing_context=multiprocessing_context,
            generator=generator,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            pin_memory_device=pin_memory_device,
        )
        self.in_order, self.snapshot_every_n_steps = in_order, snapshot_every_n_steps
        self._device = None if device is None else torch.device(device)
        self._bad: dict[int, str] = {}
        self._most_bad = max_bad_samples
        self.epoch = self.loops = 0
        self.epoch_set: int | None = None
        self._loaded: dict[str, Any] | None = None
        self._newest: Loop | None = None
        self._closed = False
        self._finished: Statistics | None = None
        self._cached = _cached_items(dataset, cache)
        recipe = Recipe(
            self.dataset,
            self.collate_fn,
            worker_init_fn,
            self.is_iterable,
            self._auto_collation,
            self.drop_last,
            self.persistent_workers,
            on_error == "replace",
            self._cached,
        )
        self.feed: LoaderFeed | None = None
        self.fetcher = Fetcher(recipe, _nothing, _nothing, copies=False)
        if workers:
            parameters = Parameters(
                batch_size=_ALL,
                num_loaders=num_workers,
                task_timeout_s=task_timeout_s,
                timeout_s=timeout or _TIMEOUT_S,
                seed=seed,
            )
            parts = {"dataset": dataset, "collate_fn": collate_fn, "worker_init_fn": worker_init_fn}
            kind = type(dataset).__name__
            self.feed = LoaderFeed(
                DatasetMaker(recipe._replace(dataset=on_its_way(dataset)), seed, kind),
                {name: part for name, part in parts.items() if part is not None},
                parameters,
                kind=kind,
                ahead=workers * max(1, self.prefetch_factor or 1),
            )
        closes = self.feed or self._cached
        self._end: Callable[[], object] = _nothing if closes is None else close_when_forgotten(self, closes)

    # ---- loops

    def __iter__(self) -> Any:
        self.check_open()
        state, self._loaded = self._loaded, None
        if self._newest is not None:
            self._newest.end()
            if state is None and self._newest.epoch == self.epoch:
                state = self._newest.unused
        if state is not None:
            self.epoch = state["epoch"] + state["finished"]
        elif isinstance(self.sampler, SeededSampler):
            self.epoch = self.sampler.epoch  # others than this class may have set it
        self._newest = loop = Loop(self, self.epoch, state)
        return loop

    def end_epoch(self, epoch: int) -> None:
        """Let the next loop be the epoch behind `epoch`, unless somebody says another one."""
        self.epoch = epoch + 1
        if isinstance(self.sampler, SeededSampler):
            self.sampler.epoch = epoch + 1

    def set_epoch(self, epoch: int) -> None:
        """Make the next loop epoch number `epoch`, and say so to the sampler and the dataset, if they want to know.

        The rest of an epoch that a loaded state is in the middle of comes first.
        """
        loaded = self._loaded
        if loaded is not None and not loaded["finished"] and loaded["epoch"] != epoch:
            _log.warning(
                "set_epoch(%d): the state that was loaded is in the middle of epoch %d, whose rest comes first",
                epoch,
                loaded["epoch"],
            )
            return
        if loaded is not None and loaded["finished"]:
            loaded["epoch"], loaded["finished"] = epoch - 1, True
        self.epoch = self.epoch_set = epoch
        say_epoch_to_sampler(self.batch_sampler, epoch)
        say_epoch_to_sampler(self.sampler, epoch)
        if self.feed is None:
            say_epoch(self.dataset, epoch)

    @property
    def length_said(self) -> int | None:
        """The length that `len()` of this loader has returned, of an iterable dataset."""
        return self._IterableDataset_len_called

    # ---- states

    def state_dict(self) -> dict[str, Any]:
        """Return where the newest loop stands: behind the batch that it has given last."""
        if self._loaded is not None:
            return dict(pickle.loads(pickle.dumps(self._loaded)))
        return first_state(self) if self._newest is None else self._newest.state()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on behind the batch at which the state was saved: with the next loop. Raises ParameterError.

        The number of workers, of ranks and of rows in a batch may be others. The seed becomes that of the state.
        """
        self.check_open()
        state: dict[str, Any] = pickle.loads(pickle.dumps(dict(state_dict)))
        if self._newest is not None:
            self._newest.end()
        self._newest = None
        if not state:
            return
        if state.get("version") != VERSION or state.get("iterable") != self.is_iterable:
            raise ParameterError(
                f"load_state_dict: this is no state of a blobfeed.DataLoader over {type(self.dataset).__name__} "
                f"(version {state.get('version')!r}, expected {VERSION}; iterable {state.get('iterable')!r}, expected "
                f"{self.is_iterable}): give what state_dict() of such a loader has returned"
            )
        self._loaded, self.seed = state, state["seed"]
        self.say_epoch_of(state)

    def say_epoch_of(self, state: dict[str, Any]) -> None:
        """Say to the sampler which epoch the state is in, or goes on with."""
        say_epoch_to_sampler(
            self.sampler if self.batch_sampler is None else self.batch_sampler,
            state.get("sampler_epoch", state["epoch"] + state["finished"]),
        )

    # ---- counts, the end

    def statistics(self) -> Statistics:
        """Return the counts of the loaders: waits, deaths, replaced samples."""
        if self._finished is not None:
            return self._finished
        if self.feed is not None:
            return self.feed.statistics()
        return Statistics() if self._cached is None else Statistics().with_cache(self._cached.counts)

    def close(self) -> None:
        """End the loaders and release everything, as a loader does that is collected as garbage."""
        self._finished = self.statistics()
        self._closed = True
        self._end()

    def check_open(self) -> None:
        if self._closed:
            raise PipelineClosed("the DataLoader has been closed; make a new one")
        if self.feed is not None:
            self.feed.home.require()

    def note_replaced(self, replaced: Iterable[tuple[int, int, str]], epoch: int) -> None:
        for bad, key, text in replaced:
            if bad in self._bad:  # it comes again in every epoch
                continue
            self._bad[bad] = text
            _log.warning("bad sample %d of epoch %d replaced by sample %d: %s", bad, epoch, key, text)
        if len(self._bad) > self._most_bad:
            listed = "; ".join(f"{bad}: {text}" for bad, text in list(self._bad.items())[:10])
            raise TooManyBadSamples(
                f"{len(self._bad)} bad samples, more than max_bad_samples={self._most_bad}: {listed}", tuple(self._bad)
            )

    def delivered(self, batch: Any) -> Any:
        if self.pin_memory and torch.accelerator.is_available():
            batch = pinning.pin_memory(batch, self.pin_memory_device or None)  # type: ignore[no-untyped-call]
        if self._device is not None:
            batch = tree_map_only(torch.Tensor, lambda tensor: tensor.to(self._device, non_blocking=True), batch)
        return batch


def _cached_items(dataset: object, cache: Mapping[str, Any] | None) -> CachedItems | None:
    if cache is None:
        return None
    need("lmdb", "parameter 'cache'")
    from .cached_items import CachedItems  # few runs have one

    return CachedItems(dataset, cache)


def _nothing(*_: object) -> None:
    """Do nothing: nobody watches the trainer's own process, and nothing is to be closed."""


def _part(
    rank: int | None, world_size: int | None, sampler: object, batch_sampler: object, is_iterable: bool
) -> tuple[int, int]:
    """Return (world_size, rank); raises ParameterError if they contradict each other, or a sampler."""
    if (rank is None) != (world_size is None):
        raise ParameterError(f"rank is {rank} and world_size is {world_size}: give both, or none")
    if rank is None or world_size is None:
        return 1, 0
    if not 0 <= rank < world_size:
        raise ParameterError(f"rank is {rank} and world_size is {world_size}: expected 0 <= rank < world_size")
    if sampler is not None or batch_sampler is not None or is_iterable:
        raise ParameterError(
            f"rank is {rank}, and {'an iterable dataset' if is_iterable else 'a sampler of yours'} says itself what "
            "each process reads: leave out 'rank' and 'world_size', or give 'shuffle' instead of a sampler"
        )
    return world_size, rank
