"""`shuffle: chunk`: each storage chunk is read about once, and the samples are well mixed nevertheless.

The chunks of `chunk_samples` consecutive samples (the last may be short) stand in a random order; each `window_chunks`
of them that follow each other in that order form a window, whose samples are shuffled uniformly. A reader that keeps
the chunks of one window reads every chunk once per epoch. How well that mixes is measured in docs/order.md.

The arithmetic works in *slots*: what positions would be if the short chunk had its full length. Chunks and windows
start at multiples of their length there, and sample slots are all but the `gap` that the short chunk lacks, which lies
behind its last sample. In positions, everything behind its window comes `gap` earlier.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .epoch_order import BLOCK, EpochOrder
from .errors import ParameterError
from .keys import derive_key
from .permutation import SORTED_LIMIT, Permutation, keyed_permutation, numbered_keys, shuffled_rows
from .specs import IndexArray


@dataclass(frozen=True, slots=True)
class _Epoch:
    """What one epoch's order depends on. Ranks number the chunks in the epoch's random order."""

    number: int
    short_rank: int
    other_chunks: Permutation
    windows_key: int


class ChunkOrder(EpochOrder):
    """Chunks in random order, samples shuffled within windows of several chunks; another order in each epoch."""

    def __init__(self, samples: int, seed: int, chunk_samples: int, window_chunks: int) -> None:
        super().__init__(samples)
        for name, value in (("chunk_samples", chunk_samples), ("window_chunks", window_chunks)):
            if value < 1:
                raise ParameterError(f"{name} is {value}: expected at least 1")
        self._seed = seed
        self._chunk = min(chunk_samples, samples)
        self._chunks = -(-samples // self._chunk)
        self._slots = self._chunks * self._chunk
        self._gap = self._slots - samples
        self._window = min(window_chunks, self._chunks) * self._chunk
        self._epoch: _Epoch | None = None

    def __getstate__(self) -> dict[str, object]:
        return super().__getstate__() | {"_epoch": None}

    def _compute_block(self, position: int) -> tuple[int, IndexArray]:
        number, within = divmod(position, self.samples)
        epoch = self._of_epoch(number)
        compute = self._whole_windows if self._window <= SORTED_LIMIT else self._part_of_window
        first, slots = compute(epoch, within)
        return position - within + first, self._samples_at(epoch, slots)

    def _of_epoch(self, number: int) -> _Epoch:
        if self._epoch is None or self._epoch.number != number:
            # The short chunk's rank is drawn by itself, and the others are permuted around it: it is known without
            # inverting a permutation, and all orders of the chunks are still equally likely.
            short_rank = derive_key(self._seed, "short chunk", number) * self._chunks >> 64
            others = keyed_permutation(max(1, self._chunks - 1), derive_key(self._seed, "chunks", number))
            self._epoch = _Epoch(number, short_rank, others, derive_key(self._seed, "windows", number))
        return self._epoch

    def _whole_windows(self, epoch: _Epoch, within: int) -> tuple[int, IndexArray]:
        """As many whole windows as a block holds, the one at position `within` among them, all shuffled by one sort."""
        together = BLOCK // self._window
        first = self._window_at(epoch, within) // together * together
        windows = np.arange(first, min(first + together, -(-self._slots // self._window)), dtype=np.int64)
        sizes = self._starts(epoch, windows + 1) - self._starts(epoch, windows)
        shuffled = shuffled_rows(numbered_keys(epoch.windows_key, windows), sizes)
        shuffled += windows[:, np.newaxis] * self._window
        start = int(self._starts(epoch, windows[:1])[0])
        return start, shuffled[np.arange(shuffled.shape[1]) < sizes[:, np.newaxis]]

    def _part_of_window(self, epoch: _Epoch, within: int) -> tuple[int, IndexArray]:
        """A block of the window at position `within`, which is too long to be shuffled as a whole."""
        windows = np.array([self._window_at(epoch, within)], np.int64)
        start, end = int(self._starts(epoch, windows)[0]), int(self._starts(epoch, windows + 1)[0])
        first = (within - start) // BLOCK * BLOCK
        permutation = keyed_permutation(end - start, int(numbered_keys(epoch.windows_key, windows)[0]))
        shuffled = permutation(np.arange(first, min(first + BLOCK, end - start), dtype=np.int64))
        return start + first, shuffled + windows * self._window

    def _window_at(self, epoch: _Epoch, within: int) -> int:
        short_window_end = min((self._short_window(epoch) + 1) * self._window, self._slots) - self._gap
        return (within if within < short_window_end else within + self._gap) // self._window

    def _starts(self, epoch: _Epoch, windows: IndexArray) -> IndexArray:
        """The positions in the epoch where windows start; that of the window behind the last is the epoch's end."""
        starts = np.minimum(windows * self._window, self._slots)
        starts -= self._gap * (windows > self._short_window(epoch))
        return starts

    def _short_window(self, epoch: _Epoch) -> int:
        return epoch.short_rank * self._chunk // self._window

    def _samples_at(self, epoch: _Epoch, slots: IndexArray) -> IndexArray:
        """The samples at slots that count, within the short chunk's window, as if there were no gap."""
        gap_start = (epoch.short_rank + 1) * self._chunk - self._gap
        window_end = (self._short_window(epoch) + 1) * self._window
        slots += self._gap * ((slots >= gap_start) & (slots < window_end))
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
