"""DataLoaders whose workers are killed at random, and which go on from states with other workers, ranks and rows."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset

from blobfeed import DataLoader

from .figures import Figure
from .scale import Scale

_STUDY = "data loader"
_SAMPLES = 400
_GROUPS = ((1, 1, 7), (2, 2, 3), (3, 1, 16), (1, 3, 5))
"""Workers of each rank, ranks, rows of a batch."""

Item = tuple[int, int, bytes]


class Noisy(Dataset[Any]):
    """Items of varying size, with random numbers."""

    def __len__(self) -> int:
        return _SAMPLES

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor, torch.Tensor]:
        return index, torch.full((1 + index * 37 % 500,), float(index)), torch.rand(3)


def as_they_are(items: list[Any]) -> list[Any]:
    return items


def study(scale: Scale, folder: Path) -> Iterator[Figure]:
    """Each restart loads the state of the last one into the loaders of another group."""
    del folder
    random_numbers, restarts = random.Random(scale.seed), 2 * scale.kills
    groups = [[_loader(*group, rank) for rank in range(group[1])] for group in _GROUPS]
    got: list[Item] = []
    state: dict[str, Any] | None = None
    wrong = kills = epoch = 0
    for _ in range(restarts):
        loaders = random_numbers.choice(groups)
        most, over = random_numbers.randint(1, 6), False
        for loader in loaders:
            if state is not None:
                loader.load_state_dict(state)
            strikes = random_numbers.randrange(most)
            loop = iter(loader)
            for number in range(1 << 40 if over else most):
                if number == strikes:
                    kills += _kill_one(loader, random_numbers)
                if (batch := next(loop, None)) is None:
                    over = True
                    break
                got += [(epoch, index, _bytes(*parts)) for index, *parts in batch]
        after = loaders[-1].state_dict()
        if after["finished"]:
            for loader in loaders[:-1]:  # those that had not come to their end
                got += [(epoch, index, _bytes(*parts)) for batch in _rest(loader) for index, *parts in batch]
            wrong += _differences(got, epoch)
            got, epoch = [], epoch + 1
        state = after
    deaths = sum(loader.statistics().loader_deaths for loaders in groups for loader in loaders)
    for loaders in groups:
        for loader in loaders:
            loader.close()
    wrong += _differences(got, None)
    yield Figure(_STUDY, "restarts with other workers, ranks and rows", restarts)
    yield Figure(_STUDY, "workers killed at random moments", kills)
    yield Figure(_STUDY, "of these seen to die", deaths)
    yield Figure(_STUDY, "whole epochs", epoch)
    yield Figure(_STUDY, "samples lost, twice or with other bytes", wrong, 0)


def _loader(workers: int, ranks: int, rows: int, rank: int = 0) -> DataLoader:
    given: dict[str, Any] = {"shuffle": True, "seed": 3, "rank": rank, "world_size": ranks}
    return DataLoader(Noisy(), rows, num_workers=workers, collate_fn=as_they_are, **given)


def _rest(loader: DataLoader) -> Iterator[Any]:
    newest: Any = loader._newest
    yield from newest


def _kill_one(loader: DataLoader, random_numbers: random.Random) -> int:
    assert loader.feed is not None
    pids = [state.pid for state in loader.feed.states() if state.pid]
    if not pids:
        return 0
    try:
        os.kill(random_numbers.choice(pids), random_numbers.choice((signal.SIGKILL, signal.SIGSEGV)))
    except ProcessLookupError:
        return 0
    return 1


def _bytes(*tensors: torch.Tensor) -> bytes:
    return b"".join(tensor.numpy().tobytes() for tensor in tensors)


def _differences(got: list[Item], whole: int | None) -> int:
    """Count what is not as in an undisturbed loop: of a `whole` epoch, or of what came of the last one."""
    if not got:
        return 0
    undisturbed = _loader(0, 1, _SAMPLES)
    undisturbed.set_epoch(got[0][0])
    (batch,) = undisturbed
    expected = {index: _bytes(*parts) for index, *parts in batch}
    indices = [index for _, index, _ in got]
    wrong = sum(data != expected[index] for _, index, data in got) + len(indices) - len(set(indices))
    return wrong + (0 if whole is None else _SAMPLES - len(set(indices)))
