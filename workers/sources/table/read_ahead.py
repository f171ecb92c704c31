"""The read-ahead of samples: which of them the kernel hears of before they are read."""

from __future__ import annotations

import resource
from collections import deque

from ...base.specs import IndexArray

_ENOUGH_ROWS = 64
_REMEMBERED = 4
_ROWS_A_WAIT = 32
_BLOCKS_A_PAGE = 8


class Announcements:
    """One for all files of a source in a process. Pure bookkeeping, but for the count of reads that went to the disk.

    Tasks are announced, and each row is looked at, until so many rows in a row were found in the page cache: a look
    costs 1 µs, and a row of 784 bytes is read in a fifth of that. A read that waits for the disk begins this anew. To
    look at a few rows of each task is not enough: of a file that is half in memory they may say that all of it is.
    """

    def __init__(self) -> None:
        self.warm = False
        self._found = 0
        self._announced: deque[tuple[int, int, int]] = deque(maxlen=_REMEMBERED)
        self._waits = _disk_waits()

    def are_due(self, indices: IndexArray) -> bool:
        """Return true if these samples are to be announced: a task that comes later, or the one that is read next."""
        if self.warm or not len(indices):
            return False
        name = len(indices), int(indices[0]), int(indices[-1])
        if name in self._announced:
            self._announced.remove(name)
            return False
        self._announced.append(name)
        return True

    def note_announced(self, rows: int, *, in_memory: bool) -> None:
        """`rows` were looked at; what the kernel reads of them is no wait of ours."""
        self._found = self._found + rows if in_memory else 0
        self.warm = self._found >= _ENOUGH_ROWS
        self._waits = _disk_waits()

    def note_read(self, rows: int) -> None:
        """`rows` were read: if more than a few of them waited for the disk, the next ones are announced again.

        A few pages are always missing, on a virtual machine whose host takes them away. To wait for one takes as long
        as to look at a hundred rows.
        """
        waits, self._waits = self._waits, _disk_waits()
        if (self._waits - waits) * _ROWS_A_WAIT > rows:
            self._found, self.warm = 0, False


def _disk_waits() -> int:
    """Page faults of this thread that went to the disk, and pages that its own calls had the disk read."""
    used = resource.getrusage(resource.RUSAGE_THREAD)
    return used.ru_majflt + used.ru_inblock // _BLOCKS_A_PAGE
