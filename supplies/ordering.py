"""Makes the order that the parameter `shuffle` selects."""

from __future__ import annotations

from typing import Literal

from .chunk_order import ChunkOrder
from .computed import EpochOrder, SequentialOrder, ShuffledOrder

Shuffle = bool | Literal["chunk"]

DEFAULT_CHUNK_SAMPLES = 64
"""The size of a chunk for `shuffle: chunk` if the source has no chunks of its own."""


def make_order(
    samples: int,
    *,
    shuffle: Shuffle,
    seed: int,
    chunk_samples: int | None = None,
    window_chunks: int = 16,
    chunks_are_cheap: bool = False,
) -> EpochOrder:
    """Make the order that the parameter `shuffle` selects.

    `chunk_samples`: consecutive samples that together cost as much to read as one of them, or None without such chunks.
    `window_chunks`: chunks whose samples are shuffled together. `chunks_are_cheap`: several loaders may make samples of
    the same chunks. All three apply only to `shuffle: chunk`.
    Raises ParameterError.
    """
    if shuffle == "chunk":
        size = DEFAULT_CHUNK_SAMPLES if chunk_samples is None else chunk_samples
        has_affinity = chunk_samples is not None and not chunks_are_cheap
        return ChunkOrder(samples, seed, size, window_chunks, has_affinity=has_affinity)
    return ShuffledOrder(samples, seed) if shuffle else SequentialOrder(samples)
