"""Exceptions and log records on their way from the children to the trainer.

Nothing is ever unpickled from a ZeroMQ socket, which has a name and which others might reach. Exception objects travel
over a socket pair that only the pipeline's own processes inherit; the messages carry a number that names them, and
their text for those that cannot be pickled. Log records take the same way, so that the trainer's own levels, handlers
and formats apply to what its children log.
"""

from __future__ import annotations

import logging
import os
import pickle
import re
import socket
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, cast

import cloudpickle

from ..base import BlobfeedError, shorten

FRAME_BYTES = 1 << 22
_MOST_CHARACTERS = 1 << 15
_SUMMARY_CHARACTERS = 300

SendError = Callable[[BaseException], int]
"""Sends an exception to the trainer; the number that names it, or 0 if only its text can be sent."""

_log = logging.getLogger("blobfeed")


def describe(error: BaseException) -> str:
    """The exception with its traceback, as Python would print it, without this package's own frames."""
    shorten(error)
    return sendable("".join(traceback.format_exception(error)))


def summary_of(error: BaseException) -> str:
    """The exception in a line: thousands of rows of one task may be bad, and their messages must fit a frame."""
    if isinstance(error, BlobfeedError):  # its text says what happened without the name of its class
        return sendable(" ".join(str(error).split()), _SUMMARY_CHARACTERS)
    # Not str(error), which may raise itself.
    return sendable(" ".join("".join(traceback.format_exception_only(error)).split()), _SUMMARY_CHARACTERS)


def sendable(text: str, most: int = _MOST_CHARACTERS) -> str:
    """`text` as a message can hold it: what is no Unicode (a file's name may hold such bytes) escaped, not endless."""
    text = text.encode("utf-8", "backslashreplace").decode()
    if len(text) <= most:
        return text
    # Between words, where these are short.
    head = re.sub(r"\s\S{0,20}$", "", text[: most // 2]).rstrip()
    tail = re.sub(r"^\S{0,20}\s+", "", text[-(most // 2) :])
    return f"{head} … {len(text) - len(head) - len(tail)} characters … {tail}"


def send_exception(channel: socket.socket, error: BaseException) -> int:
    """Send `error` to the trainer; the number that names it, or 0 if it cannot be pickled or the channel is full."""
    number = int.from_bytes(os.urandom(8), "little") // 4 + 1
    try:
        data = cloudpickle.dumps((number, error))
        # An exception whose constructor takes other arguments than it stores pickles well and fails to unpickle.
        pickle.loads(data)
        channel.send(data, socket.MSG_DONTWAIT)
    except Exception as problem:
        _log.info("an exception travels as text only: %s: %s", type(problem).__name__, problem)
        return 0
    return number


def pass_on(channel: socket.socket, frames: Iterable[bytes]) -> None:
    """Send what processes of another host would have sent; a trainer that does not read gets the text alone."""
    for frame in frames:
        with suppress(BlockingIOError):
            channel.send(frame, socket.MSG_DONTWAIT)


Levels = Mapping[str, int]
"""Loggers by name, and the levels that are set on them."""


def levels_of_trainer() -> Levels:
    """Return the level of each logger, with which children log what the trainer would."""
    loggers = {"": logging.root, **logging.root.manager.loggerDict}
    return {name: each.level for name, each in loggers.items() if isinstance(each, logging.Logger) and each.level}


def log_to_trainer(channel: socket.socket, levels: Levels) -> None:
    """Send whatever this process and its forks log over `channel`; what does not fit goes to standard error."""
    from logging.handlers import QueueHandler  # not in the trainer: half a megabyte

    def put(record: logging.LogRecord) -> None:
        try:
            channel.send(pickle.dumps((0, record)), socket.MSG_DONTWAIT)
        except OSError:  # the trainer is busy, or gone
            print(f"blobfeed [process {record.process}] {record.levelname}: {record.getMessage()}", file=sys.stderr)

    # It prepares a record for another process, and puts it into what it takes for a queue.
    logging.root.handlers[:] = [QueueHandler(cast("Any", SimpleNamespace(put_nowait=put)))]
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


class ErrorInbox:
    """The trainer's end of the channel."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._exceptions: dict[int, BaseException] = {}

    def take(self, number: int, text: str) -> BaseException:
        """The exception `number`, or one that holds `text` alone; the loader's traceback is noted on it."""
        self.receive()
        error = self._exceptions.pop(number, None)
        if error is None:
            return RemoteError(text)
        if len(text.splitlines()) > 1:  # else it says no more than the exception itself
            error.add_note(f"raised in a loader:\n{text}")
        return error

    def receive(self) -> None:
        """Log what the children have logged, and keep the exceptions that have come until they are taken."""
        for data in waiting(self._channel):
            try:
                number, sent = pickle.loads(data)
            except Exception as problem:
                _log.info("an exception of a loader could not be unpickled: %s: %s", type(problem).__name__, problem)
                continue
            if isinstance(sent, logging.LogRecord):
                logger = logging.getLogger(sent.name)
                if logger.isEnabledFor(sent.levelno):
                    logger.handle(sent)
            elif isinstance(sent, BaseException):
                self._exceptions[number] = sent


def waiting(channel: socket.socket) -> Iterator[bytes]:
    """Yield the frames that have arrived over a socket pair."""
    with suppress(BlockingIOError):
        while frame := channel.recv(FRAME_BYTES, socket.MSG_DONTWAIT):
            yield frame


class RemoteError(Exception):
    """An exception of which only the text could be kept or brought over."""
