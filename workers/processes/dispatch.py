"""How large a task should be, and how many tiny batches share a slot: pure decisions from measured time and size.

A task costs about 0.1 ms of messages and book-keeping in all processes together. So rows that take microseconds go a
whole unit at a time, and heavy decodes are cut small, so that the first batch is there soon and the loaders end it
together. Neither choice changes any byte: rows are made where they belong, whoever makes them.
"""

from __future__ import annotations

_TASK_S = 0.010
"""A task of this length makes its own cost about a hundredth."""

_UNIT_BYTES = 4 << 20
_UNIT_S = 0.002
_MOST_BATCHES = 16
_MEMORY = 0.7
"""Weight of the past in the moving mean of the time per row: a dozen tasks make a change of speed known."""


def batches_per_unit(batch_bytes: int, batch_size: int, seconds_per_row: float) -> int:
    """How many batches share a slot: more than one only where they are small and quickly made."""
    by_size = _UNIT_BYTES // max(1, batch_bytes)
    by_time = int(_UNIT_S / max(1e-9, seconds_per_row * batch_size))
    return max(1, min(by_size, by_time, _MOST_BATCHES))


class TaskSize:
    """Rows to a task, following the measured time per row."""

    def __init__(self, seconds_per_row: float, unit_rows: int) -> None:
        self._seconds_per_row = seconds_per_row
        self._unit_rows = unit_rows

    def observe(self, rows: int, seconds: float) -> None:
        """A task of `rows` rows took `seconds`."""
        if rows > 0:
            self._seconds_per_row = _MEMORY * self._seconds_per_row + (1 - _MEMORY) * seconds / rows

    @property
    def rows(self) -> int:
        return max(1, min(self._unit_rows, int(_TASK_S / max(1e-9, self._seconds_per_row))))
