"""How many rows a task has: as many as take a set time, as measured. Pure."""

from __future__ import annotations

from .loader_speed import moving_mean

TASK_S = 0.010
"""A task of this length makes its own cost about a hundredth."""

REMOTE_TASK_S = 0.100
"""With remote loaders: what a task makes is an object of the cluster, and one of these costs 5 to 10 ms of processor
time on its way from node to node."""


class TaskSize:
    """Rows in a task of `task_s` seconds, at most those of a slot, following the measured time per row.

    A task costs about 0.1 ms of messages and book-keeping in all processes together. So rows that take microseconds go
    a whole slot at a time, and slow decodes are cut small, so that the first batch is there soon and the loaders end it
    together. This changes no byte: rows are made where they belong, whoever makes them.

    `least`: rows that a source fetches at the same time over a network. There a row takes less time the more of them
    are in a task; without this, measured times would make tasks ever smaller.
    """

    def __init__(self, seconds_per_row: float, slot_rows: int, least: int = 1, task_s: float = TASK_S) -> None:
        self._least = least
        self._task_s = task_s
        self._seconds_per_row = seconds_per_row
        self._slot_rows = slot_rows

    def observe(self, rows: int, seconds: float) -> None:
        """A task of `rows` rows took `seconds`."""
        if rows > 0:
            self._seconds_per_row = moving_mean(self._seconds_per_row, seconds / rows)

    @property
    def rows(self) -> int:
        return min(self._slot_rows, max(self._least, int(self._task_s / max(1e-9, self._seconds_per_row))))
