"""What a loader's worker is: the part of a loader that knows its kind of source. The loader itself moves messages."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from typing import Literal, Protocol

import msgspec

from ..transport.error_channel import describe, send_exception, sendable, summary_of
from ..transport.messages import BadRow, ToLoader

__all__ = ["ToLoader", "WorkDone", "Worker", "WorkerSettings", "failed_hook", "place_of", "with_cause"]

_MOST_CHARACTERS = 300


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


class _Shelf(Protocol):
    """Any source."""

    def where(self, index: int) -> str: ...


def place_of(source: _Shelf, index: int) -> str:
    """Where sample `index` is stored; a source that fails to say so must not hide what was wrong with the sample."""
    try:
        return sendable(source.where(index), _MOST_CHARACTERS)
    except Exception as error:
        return f"at a place that its source cannot name: {summary_of(error)}"


def with_cause(bad: BadRow, error: Exception, channel: socket.socket) -> BadRow:
    """`bad` with all that can be told of `error`, because the run ends with it."""
    return msgspec.structs.replace(bad, cause=send_exception(channel, error), traceback=describe(error))


def failed_hook(row: int, error: Exception, channel: socket.socket) -> BadRow:
    """The report that the postprocess hook raised for the batch that begins with `row`."""
    text = f"postprocess of the batch that begins with it raised {summary_of(error)}"
    return with_cause(BadRow(row, -1, -1, -1, "", text), error, channel)
