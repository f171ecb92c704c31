"""DataLoader over datasets with indices: the batches, their order, states, deaths and errors."""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, get_origin

import numpy as np
import pytest
import torch
from blobfeed.readers.dataloader.packed_list import on_its_way
from blobfeed.workers.transport import pack
from torch.utils.data import (
    BatchSampler,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data import DataLoader as TorchDataLoader

from blobfeed import DataLoader, PackedList, ParameterError, PipelineClosed, SampleError, TooManyBadSamples
from tests.support.forked import exit_code, fork
from tests.support.interrupting import interrupts_in

SAMPLES = 40


class Pair(NamedTuple):
    number: int
    text: str


@dataclass
class Graph:
    nodes: Any
    edges: torch.Tensor


class Numbers(Dataset[Any]):
    """Item i is (tensor of i, random numbers, i). `kills`: it kills its loader, once if `once` names a file to note it
    in; `raises`: it raises KeyError.
    """

    def __init__(self, samples: int = SAMPLES, *, kills: int = -1, once: Path | None = None, raises: int = -1) -> None:
        self.samples, self.kills, self.once, self.raises = samples, kills, once, raises

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor, int]:
        if index == self.kills and self.once is None:
            os.kill(os.getpid(), signal.SIGSEGV)
        if index == self.kills and self.once is not None and not self.once.exists():
            self.once.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if index == self.raises:
            raise KeyError(f"no file {index}")
        return torch.full((3, 4), float(index)), torch.rand(2), index


def plain(batches: Any) -> list[Any]:
    return [[each.tolist() for each in batch] for batch in batches]


def numbers_in(batches: Any) -> list[int]:
    return [int(each) for batch in batches for each in batch[-1]]


def of_loader(dataset: Any, **given: Any) -> list[Any]:
    loader = DataLoader(dataset, **given)
    try:
        return plain(loader)
    finally:
        loader.close()


def test_bytes_do_not_depend_on_the_number_of_workers() -> None:
    dataset = Numbers()
    one, auto = (of_loader(dataset, batch_size=7, shuffle=True, seed=3, num_workers=workers) for workers in (0, "auto"))
    assert one == auto
    assert sorted(numbers_in([(torch.tensor(batch[-1]),) for batch in one])) == list(range(SAMPLES))


class Things(Dataset[Any]):
    """Items of every kind that a collate function returns."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {
            "pair": Pair(index, f"text {index}"),
            "array": np.full((2, 500), index, np.float32),
            "parts": [torch.full((4,), index, dtype=torch.bfloat16), (float(index), True)],
            "empty": torch.zeros(0),
            "bytes": b"b",
        }


def as_list(items: list[Any]) -> Any:
    """Collate nothing, and add what pickles in its own way."""
    sparse = torch.eye(300).to_sparse()
    last = torch.rand(2, 3, 40, 50).to(memory_format=torch.channels_last)
    graph = Graph(np.arange(1000)[::2], torch.arange(1000).view(2, 500).t())
    parameter = torch.nn.Parameter(torch.ones(100))
    return items, None, graph, sparse, last, parameter, np.array(["a", None], object), torch.ones(2, 2).t()


@pytest.mark.parametrize("collate_fn", [None, as_list])
def test_batches_are_what_torch_makes(collate_fn: Any) -> None:
    given = {"batch_size": 3, "collate_fn": collate_fn}
    expected = list(TorchDataLoader(Things(), **given))
    loader = DataLoader(Things(), num_workers=1, **given)
    for ours, theirs in zip(loader, expected, strict=True):
        assert_same(ours, theirs)
    loader.close()


def assert_same(ours: Any, theirs: Any) -> None:
    assert type(ours) is type(theirs)
    if isinstance(ours, torch.Tensor):
        about = [(each.dtype, each.layout, each.shape, each.requires_grad) for each in (ours, theirs)]
        assert about[0] == about[1]
        if ours.layout is torch.strided and ours.dim() != 4:
            assert torch.equal(ours, theirs)
        elif ours.layout is torch.strided:
            assert ours.is_contiguous(memory_format=torch.channels_last)
    elif isinstance(ours, np.ndarray):
        np.testing.assert_array_equal(ours, theirs)
        assert ours.dtype == theirs.dtype
    elif isinstance(ours, dict):
        assert ours.keys() == theirs.keys()
        for name in ours:
            assert_same(ours[name], theirs[name])
    elif isinstance(ours, tuple | list):
        for one, other in zip(ours, theirs, strict=True):
            assert_same(one, other)
    elif isinstance(ours, Graph):
        assert_same(vars(ours), vars(theirs))
    else:
        assert ours == theirs


def test_batches_that_are_kept_stay_and_grow() -> None:
    sizes = [10, 300_000, 5, 1_000_000, 20, 40_000, 7, 3_000_000]

    loader = DataLoader(Sized(sizes), batch_size=None, num_workers=2)
    for _ in range(2):
        kept = list(loader)
        assert [(len(each), int(each[0]), int(each[-1])) for each in kept] == [
            (size, place, place) for place, size in enumerate(sizes)
        ]
        kept[0] += 1  # it is writable
    loader.close()


def test_a_long_list_of_plain_items_travels_as_an_array() -> None:
    pairs = [(f"/data/photo_{number}.jpg", number) for number in range(100_000)]
    data, buffers, _ = pack(on_its_way(pairs))
    there = pickle.loads(data, buffers=buffers)
    assert len(data) < 1000
    assert (len(there), there[-1], there[3:5], list(there) == pairs) == (100_000, pairs[-1], pairs[3:5], True)
    with pytest.raises(IndexError):
        there[100_000]
    for others in ([*pairs, np.int64(1)], ["x" * 2000] * 100_000):
        assert pickle.loads(pickle.dumps(on_its_way(others))) == others
    assert type(there) is PackedList
    data, buffers, _ = pack([PackedList(iter(pairs))])  # in an object of the user's
    assert (len(data) < 1000, list(pickle.loads(data, buffers=buffers)[0]) == pairs) == (True, True)
    with pytest.raises(ParameterError, match="item 1 has an object of PosixPath"):
        PackedList([1, Path()])
    loader = DataLoader(pairs, 50_000, num_workers=1, collate_fn=with_kind_of_dataset)
    assert next(iter(loader)) == (pairs[:50_000], PackedList)
    loader.close()


def with_kind_of_dataset(items: list[Any]) -> Any:
    info: Any = torch.utils.data.get_worker_info()
    return items, type(info.dataset)


class Sized(Dataset[torch.Tensor]):
    def __init__(self, sizes: list[int]) -> None:
        self.sizes = sizes

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((self.sizes[index],), index)


def rest_of(
    parts: list[tuple[int, int, int]], shuffle: bool, sampler: Any = None
) -> Iterator[list[tuple[int, tuple[float, ...]]]]:
    """Yield what each part delivers: (workers, rank count, batch size), each goes on where the one before ended."""
    states: dict[str, Any] | None = None
    for workers, ranks, size in parts:
        got, after = [], None
        for rank in range(ranks):
            own = {} if sampler is None else {"sampler": sampler(rank, ranks)}
            if sampler is None:
                own = {"shuffle": shuffle, "rank": rank, "world_size": ranks, "seed": 5}
            loader = DataLoader(Numbers(48), batch_size=size, num_workers=workers, **own)
            if states is not None:
                loader.load_state_dict(states)
            loop = iter(loader)
            for _ in range(2):
                _, noise, numbers = next(loop)
                got += list(zip(numbers.tolist(), map(tuple, noise.tolist()), strict=True))
            after = loader.state_dict()
            loader.close()
        states = after
        yield got


@pytest.mark.parametrize("sampler", [None, "distributed"])
def test_state_goes_on_with_other_workers_ranks_and_batches(sampler: Any) -> None:
    if sampler == "distributed":
        sampler = lambda rank, ranks: DistributedSampler(Numbers(48), ranks, rank, seed=1)  # noqa: E731
    parts = list(
        rest_of([(0 if sampler else 2, 1, 4), (0, 2, 2), (0, 3, 2), (0, 1, 10)], shuffle=True, sampler=sampler)
    )
    assert [len(part) for part in parts] == [8, 8, 12, 20]
    got = [each for part in parts for each in part]
    assert sorted(number for number, _ in got) == list(range(48))
    if sampler is None:
        loader = DataLoader(Numbers(48), batch_size=48, shuffle=True, seed=5)
        _, noise, numbers = next(iter(loader))
        assert dict(got) == dict(zip(numbers.tolist(), map(tuple, noise.tolist()), strict=True))


def test_any_rank_s_state_serves_all_at_the_end_of_an_epoch() -> None:
    loaders = [DataLoader(Numbers(5), 3, rank=rank, world_size=2) for rank in range(2)]
    assert [numbers_in([next(iter(loader))]) for loader in loaders] == [[0, 2, 4], [1, 3]]
    assert [loader.state_dict()["samples"] for loader in loaders] == [5, 5]


SAMPLERS: dict[str, Callable[[], dict[str, Any]]] = {
    "weighted": lambda: {"sampler": WeightedRandomSampler([1.0] * 10 + [3.0] * 30, 40)},
    "generator": lambda: {"sampler": RandomSampler(range(40), generator=torch.Generator().manual_seed(4))},
    "batch": lambda: {"batch_sampler": BatchSampler(RandomSampler(range(40)), 4, drop_last=False), "batch_size": 1},
    "list": lambda: {"batch_sampler": [[1, 2], [3], [5, 6, 7], [8], [1]], "batch_size": 1},
    "shuffle": lambda: {"shuffle": True, "generator": torch.Generator().manual_seed(4)},
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_samplers_go_on_as_they_are(name: str) -> None:
    def made(workers: int) -> DataLoader:
        given = {"batch_size": 4, **SAMPLERS[name]()}
        return DataLoader(Numbers(), num_workers=workers, seed=6, **given)

    whole = made(0)
    epochs = [plain(whole), plain(whole)]
    assert epochs[0] != epochs[1] or name == "list"
    first, second = made(0), made(0)
    list(first)
    loop = iter(first)
    begun = plain(next(loop) for _ in range(2))
    second.load_state_dict(first.state_dict())
    assert begun + plain(second) == epochs[1]
    third, fourth = made(0), made(0)
    list(third)
    fourth.load_state_dict(third.state_dict())
    assert plain(fourth) == epochs[1]


class Counting(Dataset[int]):
    """Counts its items over epochs."""

    count = 0

    def __len__(self) -> int:
        return 4

    def __getitem__(self, _: int) -> int:
        self.count += 1
        return self.count

    def state_dict(self) -> dict[str, int]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.count = state["count"]


def test_what_a_dataset_knows_goes_on_behind_the_end_of_an_epoch() -> None:
    first, second = (DataLoader(Counting(), batch_size=2) for _ in range(2))
    assert numbers_in([[each] for each in first]) == [1, 2, 3, 4]
    second.load_state_dict(first.state_dict())
    assert numbers_in([[each] for each in second]) == [5, 6, 7, 8]


def test_a_loop_that_gave_nothing_spends_no_state() -> None:
    first, second = (DataLoader(Numbers(), batch_size=8) for _ in range(2))
    next(iter(first))
    second.load_state_dict(first.state_dict())
    iter(second)  # as a progress bar or a framework may, to see whether there is one
    assert numbers_in(second) == list(range(8, SAMPLES))
    second.load_state_dict(first.state_dict())
    iter(second)
    second.set_epoch(5)
    assert numbers_in(second) == list(range(SAMPLES))


def test_attributes_are_torch_s() -> None:
    loader = DataLoader(Numbers(), 4, drop_last=True, shuffle=True)
    assert isinstance(loader, TorchDataLoader)
    assert get_origin(DataLoader[int]) is DataLoader
    assert (loader.batch_size, loader.num_workers, loader.drop_last, len(loader)) == (4, 0, True, 10)
    orders = []
    for epoch in (0, 1, 0):
        loader.set_epoch(epoch)
        orders.append(numbers_in(loader))
    assert orders[0] == orders[2] != orders[1]
    # As frameworks do: a loop of which nothing is asked, one that is left at its last batch, the sampler's own epoch.
    loader.set_epoch(0)
    iter(loader)
    loops = [[int(next(loop)[-1][0]) for _ in range(10)] for loop in map(iter, (loader, loader))]
    assert loops == [order[::4] for order in orders[:2]]
    loader.sampler.set_epoch(0)  # type: ignore[attr-defined]
    assert numbers_in(loader) == orders[0]
    # A state that they save at the last batch: an empty loop would count as an epoch of theirs.
    loader.set_epoch(0)
    loop = iter(loader)
    for _ in range(10):
        next(loop)
    loader.load_state_dict(loader.state_dict())
    assert numbers_in(loader) == orders[1]


# ---- the decoded cache


class Fixed(Numbers):
    """Items without random numbers."""

    def __getitem__(self, index: int) -> Any:
        return torch.full((30, 40), float(index)), np.arange(index, index + 300), str(index)


def test_items_are_made_once_and_kept_for_later_runs(tmp_path: Path) -> None:
    cache = {"path": tmp_path / "items", "size_limit": 1 << 28}
    counts = []
    for workers, length in ((0, SAMPLES), (2, SAMPLES), (0, 5)):
        given: dict[str, Any] = {"batch_size": 4, "shuffle": True, "seed": 1}
        loader = DataLoader(Fixed(length), num_workers=workers, cache=cache, **given)
        for ours, theirs in zip(loader, DataLoader(Fixed(length), **given), strict=True):
            assert_same(ours, theirs)
        list(loader)
        loader.close()
        found = loader.statistics()
        counts.append((found.cache_hits, found.cache_misses))
    assert counts == [(SAMPLES, SAMPLES), (2 * SAMPLES, 0), (5, 5)]


class Told(Fixed):
    def set_epoch(self, epoch: int) -> None: ...


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        yield from range(3)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"dataset": Numbers()}, r"sample 0 draws random numbers \(torch\)"),
        ({"dataset": Told()}, r"Told has set_epoch\(\)"),
        ({"dataset": Stream()}, "Stream is no dataset with indices"),
        ({"dataset": {"a": 1}, "sampler": ["a"]}, "the key 'a'"),
        ({"dataset": [lambda: 0]}, "cannot be stored"),
        ({"cache": {"path": "x"}}, "'size_limit' is missing"),
    ],
)
def test_what_cannot_be_cached_is_refused(given: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match=words):
        list(DataLoader(**{"dataset": Fixed(), "cache": {"path": tmp_path / "items", "size_limit": 1 << 24}, **given}))


# ---- deaths and errors


def test_killed_loader_is_replaced_and_a_sample_that_kills_is_named(tmp_path: Path) -> None:
    expected = of_loader(Numbers(), batch_size=4, seed=1)
    dataset = Numbers(kills=17, once=tmp_path / "killed")
    loader = DataLoader(dataset, batch_size=4, num_workers=2, seed=1)
    assert plain(loader) == expected
    assert loader.statistics().loader_deaths == 1
    loader.close()
    loader = DataLoader(Numbers(kills=17), batch_size=4, num_workers=2, seed=1)
    with pytest.raises(SampleError, match="17") as caught:
        list(loader)
    assert caught.value.index == 17
    loader.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_error_is_the_user_s_own_and_the_run_goes_on(workers: int) -> None:
    loader = DataLoader(Numbers(raises=9), batch_size=4, num_workers=workers, seed=1)
    loop = iter(loader)
    assert numbers_in([next(loop), next(loop)]) == list(range(8))
    with pytest.raises(KeyError, match="no file 9") as caught:
        next(loop)
    assert not workers or "sample 9 of epoch 0" in caught.value.__notes__[0]
    assert numbers_in(loop) == list(range(12, SAMPLES))
    loader.close()


def test_tensors_that_torch_does_not_collate_are_refused_in_its_words() -> None:
    loader = DataLoader([torch.eye(2).to_sparse()] * 2, 2, num_workers=1)
    with pytest.raises(RuntimeError, match="sparse tensors are not currently supported"):
        next(iter(loader))
    loader.close()


def test_bad_sample_is_replaced() -> None:
    given: dict[str, Any] = {"batch_size": 4, "seed": 1, "on_error": "replace"}
    loader = DataLoader(Numbers(raises=9), **given)
    numbers = numbers_in(loader)
    assert [place for place, number in enumerate(numbers) if place != number] == [9]
    loader.close()
    assert numbers_in(DataLoader(Numbers(raises=9), sampler=np.arange(SAMPLES), **given)) == numbers
    loader = DataLoader(Numbers(raises=9), **given, max_bad_samples=0)
    with pytest.raises(TooManyBadSamples, match="no file 9"):
        list(loader)
    loader.close()


class Collating(Dataset[Any]):
    """Keeps the first three items, each collated, and gives them again and again. It has no way to give several."""

    __getitems__ = None

    def __init__(self) -> None:
        self.kept: list[torch.Tensor] = []

    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> torch.Tensor:
        if len(self.kept) < 3:
            self.kept.append(torch.utils.data.default_collate([torch.full((64,), index)] * 2))
        return self.kept[index % 3]


def test_what_a_dataset_has_collated_itself_stays_its_own() -> None:
    loader = DataLoader(Collating(), batch_size=4, num_workers=1)
    found = torch.cat(list(loader))[:, 0, 0]
    loader.close()
    assert found.tolist() == [index % 3 for index in range(60)]


def test_a_fork_leaves_the_workers_alone() -> None:
    loader = DataLoader(Numbers(), batch_size=8, num_workers=1)
    loop = iter(loader)
    numbers = numbers_in([next(loop)])

    def use() -> None:
        for step in (lambda: next(loop), lambda: iter(loader), lambda: loader.load_state_dict({})):
            with pytest.raises(PipelineClosed, match="fork"):
                step()
        loader.close()

    assert exit_code(fork(use)) == 0
    assert numbers + numbers_in(loop) == list(range(SAMPLES))
    assert loader.statistics().loader_deaths == 0
    loader.close()


def test_what_cannot_be_sent_is_named_in_the_constructor() -> None:
    dataset = Numbers()
    with Path(os.devnull).open() as dataset.handle, pytest.raises(ParameterError, match="dataset cannot be sent"):  # type: ignore[attr-defined]
        DataLoader(dataset, num_workers=1)


def test_worker_init_fn_and_worker_info() -> None:
    loader = DataLoader(Workers(), batch_size=1, num_workers=1, worker_init_fn=note_worker)
    loop = iter(loader)
    with pytest.raises(LookupError, match="in worker_init_fn"):
        next(loop)
    batches = [torch.cat(batch).tolist() for batch in loop]
    assert {tuple(batch[:3]) for batch in batches} == {(0, 0, 1)}
    assert len({batch[3] for batch in batches}) == len(batches)
    loader.close()


def note_worker(number: int) -> None:
    info: Any = torch.utils.data.get_worker_info()
    if info.dataset.number == -1:
        info.dataset.number = number
        assert info.seed == torch.initial_seed()
        raise LookupError("in worker_init_fn")


class Workers(Dataset[Any]):
    number = -1

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> tuple[int, ...]:
        info: Any = torch.utils.data.get_worker_info()
        return self.number, info.id, info.num_workers, torch.initial_seed()


@pytest.mark.parametrize(("workers", "stride"), [(0, 1), (1, 20)])
def test_ctrl_c_at_any_line_of_a_step_loses_no_batch(workers: int, stride: int) -> None:
    given: dict[str, Any] = {"batch_size": 2, "shuffle": True, "seed": 3, "num_workers": workers}
    with closing(DataLoader(range(300), **given)) as loader:
        epochs = [[batch.tolist() for batch in loader] for _ in range(3)]
    with closing(DataLoader(range(300), **given)) as loader:
        loop, got, interrupts = iter(loader), list[Any](), 0
        for step in range(1, 60, stride):
            interrupts += interrupts_in(step, lambda: got.append(next(loop).tolist()), "readers/dataloader")
            got.append(next(loop).tolist())
        assert [*got, *(batch.tolist() for batch in loop)] == epochs[0]
        assert interrupts > 20 / stride
        left = iter(loader)
        next(left)
        assert interrupts_in(20, lambda: next(left), "readers/dataloader")
        assert [batch.tolist() for batch in loader] == epochs[2]  # a loop that is left counts if it has begun
