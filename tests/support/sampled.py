"""What must be delivered of epochs that a sampler draws, in a few lines of plain NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any


def expected_batches(
    lists: Sequence[Any],
    *,
    batch_size: int,
    epochs: int,
    last_batch: str = "wrap",
    rank: int = 0,
    world_size: int = 1,
    gives_batches: bool = False,
) -> list[list[int]] | str:
    """The batches of one rank. `lists`: what the sampler gives in each epoch; one more than `epochs`, for `wrap`.

    If an epoch cannot be dealt to all ranks: words of the complaint.
    """
    each, batches = 1 if gives_batches else batch_size, []
    runs = [list(chain.from_iterable(lists))] if last_batch == "wrap" else lists[:epochs]
    for run in runs:
        end = sum(map(len, lists[:epochs])) if last_batch == "wrap" else len(run)
        if last_batch == "drop" and end < each * world_size:
            return "has no full batch for every rank"
        for first in range(0, end, each * world_size):
            dealt = list(run[first : first + each * world_size])
            if last_batch == "drop" and len(dealt) < each * world_size:
                continue
            if not first and len(dealt) < world_size:
                return "than there are ranks"
            # Equal parts, the first ones longer by one.
            cuts = [part * (len(dealt) // world_size) + min(part, len(dealt) % world_size) for part in (rank, rank + 1)]
            if not (mine := dealt[slice(*cuts)]):
                continue
            batches.append([int(index) for batch in mine for index in batch] if gives_batches else list(map(int, mine)))
    return batches
