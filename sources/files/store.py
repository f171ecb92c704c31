"""The interface of a store of bytes: what a table opens, reads ahead, checks and closes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

from .identity import digest, of_stamps
from .remote import Stamp

Place = TypeVar("Place")
"""The address of one record in a store: a path, a key, or a file with an offset and a size."""


class Store(Generic[Place]):
    """The bytes behind the columns of a table: local files, objects, a folder of whole files, a database, memory.

    The trainer makes it, and pickles it to the loaders, without handles and maps (`__getstate__` drops them). `begin`
    opens it anew in a process that has not opened it, a forked one included. `read` and `will_need` serve columns made
    of records (columns.Records); a store whose column finds its own bytes needs neither.
    """

    modules: tuple[str, ...] = ()
    """Modules that reading imports; they are imported once, before the loaders are forked."""

    descriptors: tuple[int, ...] = ()
    """File descriptors that the loaders inherit under the same numbers."""

    stamps: tuple[Stamp, ...] = ()
    """The files and objects that hold the bytes, as they were examined, if they are few enough to be watched."""

    is_remote: bool = False
    """True if some bytes lie in object storage, so that records read together are to be fetched together."""

    def begin(self) -> None:
        """Prepare for a call of `read`: in a forked copy, drop what the parent has open."""

    def finish(self) -> None:
        """End a call of `read`; raises SourceError if what was read was changed since it was examined."""

    def read(self, place: Place) -> bytes:
        """Return the record at `place`; raises OSError, ValueError, SourceError."""
        raise NotImplementedError

    def will_need(self, places: Sequence[Place], *, now: bool = False) -> bool:
        """Start reading ahead, as Column.will_need does."""
        return True

    def content(self, *, every: bool) -> dict[str, str]:
        """Return short texts by name by which this data is known again.

        Without `every` it is for a saved state: at most 1000 files are looked at, and paths do not count, since a data
        set may be moved. With it, it is for a cache, whose rows would be wrong in silence: all files, and their paths.
        """
        if not self.stamps:
            return {}
        return {"files": digest(self.stamps)} if every else of_stamps(self.stamps)

    def close(self) -> None:
        """Release handles and maps; the next `begin` or `read` opens them again."""
