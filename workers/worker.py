"""What a loader's worker is: the part of a loader that knows its kind of source. The loader itself moves messages."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, Protocol

from .messages import BadRow, ToLoader

__all__ = ["ToLoader", "WorkDone", "Worker", "WorkerSettings", "summary_of"]

_SUMMARY_CHARACTERS = 500


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """The parameters that decide what a worker makes."""

    batch_size: int
    last_batch: Literal["wrap", "drop", "partial"]
    epochs: int | None
    seed: int
    replace: bool
    """`on_error: replace`"""


@dataclass(frozen=True, slots=True)
class WorkDone:
    """`stream_rows`: rows that a stream had for the batch; -1 for an indexed source, which always has all."""

    bad: list[BadRow] = field(default_factory=list)
    stream_rows: int = -1


class Worker(Protocol):
    """Makes rows in the slots, and says which could not be made."""

    def announce(self, message: ToLoader) -> None:
        """`message` will have to be worked on later."""

    def work(self, message: ToLoader) -> WorkDone:
        """Do what `message` asks for; a sample that raises is a bad row, not an exception."""


def summary_of(error: Exception) -> str:
    """One line, for a log: thousands of rows of one task may be bad, and their messages must fit a frame."""
    return f"{type(error).__name__}: {error}"[:_SUMMARY_CHARACTERS]
