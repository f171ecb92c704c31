"""DataLoader over iterable datasets: shards in turn, their states, and a worker that dies."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset, get_worker_info

from blobfeed import DataLoader, ParameterError

LENGTHS = (5, 11)


class Shards(IterableDataset[Any]):
    """The items of each worker's own range, or of all of them; noise beside each. `kills`: the item, once."""

    def __init__(self, *, once: Path | None = None, kills: int = -1) -> None:
        self.once, self.kills = once, kills

    def __iter__(self) -> Iterator[tuple[int, torch.Tensor]]:
        info = get_worker_info()
        shards = [info.id] if info else range(len(LENGTHS))
        for shard in shards:
            for item in range(LENGTHS[shard]):
                if item == self.kills and self.once is not None and not self.once.exists():
                    self.once.touch()
                    os.kill(os.getpid(), signal.SIGKILL)
                yield 100 * shard + item, torch.rand(())


class Stateful(Shards):
    """Notes where it stands, and goes on there."""

    at = 0
    begun = 0

    def __iter__(self) -> Iterator[Any]:
        first, self.begun = self.begun, 0
        for self.at, item in enumerate(super().__iter__()):
            if self.at >= first:
                yield item
        self.at = -1

    def state_dict(self) -> dict[str, int]:
        return {"next": self.at + 1}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.begun = state["next"]


class Own(IterableDataset[int]):
    """Its own iterator, which goes on where it was left."""

    def __init__(self, at: int = 3) -> None:
        self.at = at

    def __next__(self) -> int:
        if self.at == 10:
            raise StopIteration
        self.at += 1
        return self.at

    def __iter__(self) -> Own:
        return self

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


def plain(batches: Any) -> list[Any]:
    return [[part.tolist() for part in batch] for batch in batches]


def test_shards_take_turns_and_go_on_with_any_number_of_workers(tmp_path: Path) -> None:
    whole = DataLoader(Shards(once=tmp_path / "killed", kills=6), batch_size=2, num_workers=2, seed=1)
    batches = plain(whole)
    assert whole.statistics().loader_deaths == 1
    numbers = [numbers for numbers, _ in batches]
    assert numbers == [[0, 1], [100, 101], [2, 3], [102, 103], [4], [104, 105], [106, 107], [108, 109], [110]]
    assert plain(whole) != batches, "another epoch has other random numbers"
    whole.set_epoch(0)
    loop = iter(whole)
    begun = [plain([next(loop)])[0] for _ in range(3)]
    state = whole.state_dict()
    whole.close()
    for dataset in (Shards(), Stateful()):
        alone = DataLoader(dataset, batch_size=2, num_workers=0)
        alone.load_state_dict(state)
        assert begun + plain(alone) == batches


def test_state_of_the_dataset_itself_is_kept() -> None:
    first, second = (DataLoader(Stateful(), batch_size=3, seed=4, snapshot_every_n_steps=2) for _ in range(2))
    batches = plain(DataLoader(Shards(), batch_size=3, seed=4))
    loop = iter(first)
    begun = plain([next(loop)])
    assert first.state_dict()["shards"][0][:3] == [{"next": 3}, None, 3], "the first batch's always"
    begun += plain(next(loop) for _ in range(2))
    state = first.state_dict()
    assert state["shards"][0][:3] == [{"next": 6}, None, 6]
    second.load_state_dict(state)
    assert begun + plain(second) == batches


def test_a_dataset_that_is_its_own_iterator_stays_where_it_was_behind_the_end() -> None:
    first, second = (DataLoader(Own(), batch_size=2) for _ in range(2))
    assert len(list(first)) == 4
    second.load_state_dict(first.state_dict())
    assert list(second) == list(first) == []


def test_bad_items_of_a_stream_are_not_replaced_and_that_is_said() -> None:
    with pytest.raises(ParameterError, match="on_error"):
        DataLoader(Shards(), on_error="replace")


@pytest.mark.parametrize(
    ("dataset", "other", "workers"), [(Own(), Own(10), 0), (Own(), Own(10), 2), (Stateful(), Stateful(), 0)]
)
def test_a_state_before_the_first_batch_is_where_the_loop_begins(dataset: Any, other: Any, workers: int) -> None:
    first, second = (DataLoader(each, batch_size=2, num_workers=workers) for each in (dataset, other))
    states = [first.state_dict()]
    taken = plain([next(iter(first))])
    loop = iter(first)  # the other one is left midway
    states.append(first.state_dict())
    for state, expected in zip(states, (taken, plain(loop)), strict=True):
        second.load_state_dict(state)
        assert plain(second)[: len(expected)] == expected
    first.close()
    second.close()


def test_a_dataset_that_has_more_than_it_said_is_warned_of() -> None:
    class Short(Shards):
        def __len__(self) -> int:
            return 15

    loader = DataLoader(Short())
    assert len(loader) == 15
    with pytest.warns(UserWarning, match="to be 15 .* but 16 samples have been fetched"):
        assert len(list(loader)) == 16
