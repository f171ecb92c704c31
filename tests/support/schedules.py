"""Batches for a ledger, without a plan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_NO_END = 1 << 40


class _Schedule:
    """The part of a Schedule that a ledger uses."""

    def __init__(
        self, rows: int, batches: int, affinity: Callable[[int, int], int | None], can_be_cut: bool, last_rows: int
    ) -> None:
        self.batch_size = rows
        self.can_be_cut = can_be_cut
        self.affinity = affinity
        self.opened = 0
        self._batches = batches
        self._last_rows = last_rows

    def open(self, most: int) -> int:
        count = min(most, self._batches - self.opened)
        self.opened += count
        return count

    def rows_of(self, batch: int) -> int:
        return self._last_rows if batch == self._batches - 1 else self.batch_size


def schedule_of(
    rows: int,
    *,
    batches: int = _NO_END,
    affinity: Callable[[int, int], int | None] = lambda _batch, _row: None,
    can_be_cut: bool = True,
    last_rows: int | None = None,
) -> Any:
    """`batches` batches of `rows` rows each, the last one of `last_rows`."""
    return _Schedule(rows, batches, affinity, can_be_cut, rows if last_rows is None else last_rows)
