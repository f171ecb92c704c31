"""Exceptions on their way from a loader to the trainer.

Nothing is ever unpickled from a ZeroMQ socket, which has a name and which others might reach. Exception objects travel
over a socket pair that only the pipeline's own processes inherit; the messages carry a number that names them, and
their text for those that cannot be pickled.
"""

from __future__ import annotations

import logging
import pickle
import secrets
import socket
import traceback

import cloudpickle

_MOST_CHARACTERS = 1 << 15
_SUMMARY_CHARACTERS = 300

_log = logging.getLogger("blobfeed")


def describe(error: BaseException) -> str:
    """The exception with its traceback, as Python would print it."""
    return sendable("".join(traceback.format_exception(error)))


def summary_of(error: BaseException) -> str:
    """The exception in a line: thousands of rows of one task may be bad, and their messages must fit a frame."""
    # Not str(error), which may raise itself.
    return sendable(" ".join("".join(traceback.format_exception_only(error)).split()), _SUMMARY_CHARACTERS)


def sendable(text: str, most: int = _MOST_CHARACTERS) -> str:
    """`text` as a message can hold it: what is no Unicode (a file's name may hold such bytes) escaped, not endless."""
    text = text.encode("utf-8", "backslashreplace").decode()
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]} … {len(text) - 2 * half} characters … {text[-half:]}"


def send_exception(channel: socket.socket, error: BaseException) -> int:
    """Send `error` to the trainer; the number that names it, or 0 if it cannot be pickled or the channel is full."""
    number = secrets.randbits(62) + 1
    try:
        data = cloudpickle.dumps((number, error))
        # An exception whose constructor takes other arguments than it stores pickles well and fails to unpickle.
        pickle.loads(data)
        channel.send(data, socket.MSG_DONTWAIT)
    except Exception as problem:
        _log.info("an exception travels as text only: %s: %s", type(problem).__name__, problem)
        return 0
    return number


class ErrorInbox:
    """The trainer's end of the channel."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel

    def take(self, number: int, text: str) -> BaseException:
        """The exception `number`, or one that holds `text` alone; the loader's traceback is noted on it."""
        error = self._find(number)
        if error is None:
            return RemoteError(text)
        error.add_note(f"raised in a loader:\n{text}")
        return error

    def _find(self, number: int) -> BaseException | None:
        while number:
            try:
                data = self._channel.recv(1 << 22, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return None
            if not data:
                return None
            try:
                found, error = pickle.loads(data)
            except Exception as problem:
                _log.info("an exception of a loader could not be unpickled: %s: %s", type(problem).__name__, problem)
                continue
            if found == number and isinstance(error, BaseException):
                return error
        return None


class RemoteError(Exception):
    """An exception of a loader of which only the text could be brought over."""
