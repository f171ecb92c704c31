"""The seam to what tells users of a run: a diagnosis, metrics and a trace. Nothing here waits for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from ..api import CacheCounts
from ..transport import About, StatusBoard

Event = dict[str, Any]


class Trace(Protocol):
    """One process's end of a file to which all append their spans."""

    @property
    def descriptor(self) -> int: ...

    def span(self, category: str, name: str, begun_ns: int, ended_ns: int, **args: object) -> Event:
        """Return a complete span of this process, by time.monotonic_ns()."""

    def write(self, *events: Event) -> None:
        """Append `events`."""

    def name(self, name: str, place: int, *events: Event) -> None:
        """Say what this process is called and at which place it is shown, and append `events`."""

    def note_death(self, loader: int, task: int, sample: int) -> None:
        """Record the death of a loader; `task`, `sample`: those it had begun with, 0 and -1 for none."""

    def finish(self, counts: CacheCounts) -> None:
        """End the file; all other processes have ended. `counts`: of the decoded cache."""

    def close(self) -> None:
        """Give the descriptor back."""


class Steps(Protocol):
    """The trainer's spans in the trace."""

    file: Any
    """The Trace; None until the processes have been started."""

    def asks(self) -> None:
        """Record that the trainer looks for the next batch, perhaps again."""

    def has(self) -> None:
        """Record that the next batch is there."""

    def takes(self, number: int, batches: int) -> None:
        """Record that batch `number` was taken; `batches` of those that came with it were left, it included."""

    def end(self) -> None:
        """Record that the pipeline is closed."""


class Watch:
    """The watch of a run, which tells users of it; this one tells nothing. Assembler and loaders get it, too."""

    def sentence(self, board: StatusBoard) -> str:
        """Return the diagnosis: what limits the speed, in one sentence."""
        return ""

    def begin_trace(self, about: About, batch_size: int) -> Trace | None:
        """Begin the file, in the trainer; None if no trace is wanted. Raises ParameterError."""
        return None

    def trace(self, descriptor: int) -> Trace:
        """Return the end of a process that has inherited the file."""
        raise TypeError("a run without a trace has no file for one")

    def steps(self) -> Steps | None:
        """Return what records the trainer's steps; None if no trace is wanted."""
        return None

    def metrics(self) -> Callable[[StatusBoard], None] | None:
        """Return what writes the metrics of a board; None if none are wanted."""
        return None
