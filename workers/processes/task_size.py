"""How many rows a task should have: a pure decision from the measured time per row.

A task costs about 0.1 ms of messages and book-keeping in all processes together. So rows that take microseconds go a
whole slot at a time, and slow decodes are cut small, so that the first batch is there soon and the loaders end it
together. This changes no byte: rows are made where they belong, whoever makes them.
"""

from __future__ import annotations

_TASK_S = 0.010
"""A task of this length makes its own cost about a hundredth."""

_MEMORY = 0.7
"""Weight of the past in the moving mean of the time per row: a dozen tasks make a change of speed known."""


class TaskSize:
    """Rows in a task, at most those of a slot, following the measured time per row."""

    def __init__(self, seconds_per_row: float, slot_rows: int) -> None:
        self._seconds_per_row = seconds_per_row
        self._slot_rows = slot_rows

    def observe(self, rows: int, seconds: float) -> None:
        """A task of `rows` rows took `seconds`."""
        if rows > 0:
            self._seconds_per_row = _MEMORY * self._seconds_per_row + (1 - _MEMORY) * seconds / rows

    @property
    def rows(self) -> int:
        return max(1, min(self._slot_rows, int(_TASK_S / max(1e-9, self._seconds_per_row))))
