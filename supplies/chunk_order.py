"""`shuffle: chunk`: reads each storage chunk about once and still mixes the samples well.

A chunk is `chunk_samples` consecutive samples (the last chunk may be short). The chunks are put in a random order. Runs
of up to `window_chunks` chunks in that order form windows, and the samples of each window are shuffled uniformly. A
reader that keeps the chunks of one window reads every chunk once per epoch. docs/order.md measures how well that mixes.
The windows have sizes as equal as possible: otherwise the last one could be a single chunk, mixed with nothing.

The arithmetic works in *slots*: the positions if the short chunk had its full length. There chunks and windows start at
multiples of a chunk. The `gap` that the short chunk lacks lies behind its last sample. All other slots hold samples. In
positions, everything behind the short chunk's window comes `gap` earlier.
"""

from __future__ import annotations

from functools import partial

import msgspec
import numpy as np

from ..workers.api import IndexArray
from ..workers.base import ParameterError, derive_key
from ..workers.order import SORTED_LIMIT, Permutation, keyed_permutation, numbered_keys, shuffled_rows
from .computed import BLOCK, Block, EpochOrder


class _Epoch(msgspec.Struct, frozen=True):
    """The random choices of one epoch. A rank is a chunk's place in the epoch's random order."""

    number: int
    short_rank: int
    short_window: int
    other_chunks: Permutation
    windows_key: int


class ChunkOrder(EpochOrder):
    """Chunks in random order, samples shuffled within windows of several chunks; another order in each epoch."""

    def __init__(
        self, samples: int, seed: int, chunk_samples: int, window_chunks: int, *, has_affinity: bool = True
    ) -> None:
        """Prepare the order. `has_affinity`: one loader makes all samples of a window, and so reads each chunk once."""
        super().__init__(samples)
        self._key = partial(derive_key, seed)
        self._has_affinity = has_affinity
        for name, value in (("chunk_samples", chunk_samples), ("window_chunks", window_chunks)):
            if value < 1:
                raise ParameterError(f"{name} is {value}: expected at least 1")
        self._chunk = min(chunk_samples, samples)
        self._chunks = -(-samples // self._chunk)
        self._gap = self._chunks * self._chunk - samples
        self._windows = -(-self._chunks // window_chunks)
        self.declared = f"chunks of {self._chunk} samples in {self._windows} windows"
        # The first `longer` windows have one chunk more than the others.
        self._window_chunks, self._longer = divmod(self._chunks, self._windows)
        self._epoch: _Epoch | None = None

    def __getstate__(self) -> dict[str, object]:
        return super().__getstate__() | {"_epoch": None}

    def window_at(self, position: int) -> int | None:
        if not self._has_affinity:
            return None
        number, within = divmod(position, self._samples)
        return number * self._windows + self._window_at(self._of_epoch(number), within)

    def _compute_block(self, position: int) -> Block:
        number, within = divmod(position, self._samples)
        epoch = self._of_epoch(number)
        whole = (self._window_chunks + 1) * self._chunk <= SORTED_LIMIT
        first, slots = (self._whole_windows if whole else self._part_of_window)(epoch, within)
        return Block(position - within + first, self._samples_at(epoch, slots))

    def _of_epoch(self, number: int) -> _Epoch:
        epoch = self._epoch
        if epoch is None or epoch.number != number:
            # The short chunk's rank is drawn separately, and the other chunks are permuted around it. So the rank is
            # known without inverting a permutation, and all orders of the chunks are still equally likely.
            short_rank = self._key("short chunk", number) * self._chunks >> 64
            self._epoch = epoch = _Epoch(
                number,
                short_rank,
                self._window_of(short_rank),
                keyed_permutation(max(1, self._chunks - 1), self._key("chunks", number)),
                self._key("windows", number),
            )
        return epoch

    def _whole_windows(self, epoch: _Epoch, within: int) -> tuple[int, IndexArray]:
        """Return as many whole windows as fit a block, with the one at position `within`, all shuffled by one sort."""
        together = max(1, BLOCK // ((self._window_chunks + 1) * self._chunk))
        first = self._window_at(epoch, within) // together * together
        borders = np.arange(first, min(first + together, self._windows) + 1, dtype=np.int64)
        starts, windows = self._starts(epoch, borders), borders[:-1]
        sizes = np.diff(starts)
        shuffled = shuffled_rows(numbered_keys(epoch.windows_key, windows), sizes)
        shuffled += self._start_slots(windows)[:, np.newaxis]
        return int(starts[0]), shuffled[np.arange(shuffled.shape[1]) < sizes[:, np.newaxis]]

    def _part_of_window(self, epoch: _Epoch, within: int) -> tuple[int, IndexArray]:
        """Return a block of the window at position `within`, which is too long to be shuffled as a whole."""
        borders = self._window_at(epoch, within) + np.arange(2, dtype=np.int64)
        start, end = self._starts(epoch, borders).tolist()
        first = (within - start) // BLOCK * BLOCK
        permutation = keyed_permutation(end - start, int(numbered_keys(epoch.windows_key, borders)[0]))
        shuffled = permutation(np.arange(first, min(first + BLOCK, end - start), dtype=np.int64))
        return start + first, shuffled + self._start_slots(borders[:1])

    def _window_of(self, rank: int) -> int:
        in_longer = rank < self._longer * (self._window_chunks + 1)
        return rank // (self._window_chunks + 1) if in_longer else (rank - self._longer) // self._window_chunks

    def _window_at(self, epoch: _Epoch, within: int) -> int:
        slot = within if within < self._short_window_end(epoch) - self._gap else within + self._gap
        return self._window_of(slot // self._chunk)

    def _start_slots(self, windows: IndexArray) -> IndexArray:
        slots: IndexArray = (windows * self._window_chunks + np.minimum(windows, self._longer)) * self._chunk
        return slots

    def _starts(self, epoch: _Epoch, windows: IndexArray) -> IndexArray:
        """Return the positions in the epoch where windows start; the window behind the last one starts at its end."""
        return self._start_slots(windows) - self._gap * (windows > epoch.short_window)

    def _short_window_end(self, epoch: _Epoch) -> int:
        return int(self._start_slots(np.array([epoch.short_window + 1], np.int64))[0])

    def _samples_at(self, epoch: _Epoch, slots: IndexArray) -> IndexArray:
        """Return the samples at `slots`. Inside the short chunk's window, slots are counted without the gap."""
        gap_start = (epoch.short_rank + 1) * self._chunk - self._gap
        slots += self._gap * ((slots >= gap_start) & (slots < self._short_window_end(epoch)))
        ranks = slots // self._chunk
        slots -= ranks * self._chunk
        slots += self._chunks_at(epoch, ranks) * self._chunk
        return slots

    def _chunks_at(self, epoch: _Epoch, ranks: IndexArray) -> IndexArray:
        low, high = int(ranks.min()), int(ranks.max())
        if high - low + 1 < len(ranks):  # few chunks, many samples in each: look each chunk up once
            return self._chunks_at(epoch, np.arange(low, high + 1, dtype=np.int64))[ranks - low]
        short = ranks == epoch.short_rank
        others = ranks - (ranks > epoch.short_rank)
        others[short] = 0
        return np.where(short, self._chunks - 1, epoch.other_chunks(others))
