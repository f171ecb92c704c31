"""The way of messages: over four ZeroMQ links, PUSH/PULL pairs by `ipc://` in a directory of this user alone.

    releases  trainer PUSH (connects)   → assembler PULL (binds)
    batches   assembler PUSH (connects) → trainer PULL (binds)
    tasks-N   assembler PUSH (connects) → loader N PULL (binds), one socket for each loader
    results   loaders PUSH (connect)    → assembler PULL (binds)

The receiver binds, the sender connects: a PUSH socket that bound would block its process in send while it has no peer,
before the other process has started and after it has died. One that connects keeps what it is given.
Names in the abstract socket namespace would need no directory, but anyone may connect there.

A frame is the number of bytes that follow, and a message in MessagePack. Only this user can send one, since the
directory has the mode 0700, and a process of this user could trace the trainer anyway. So frames are not sealed. One
that is no message of its link is dropped and counted.

The trainer and the assembler wait with a deadline, by a clock that stands still while the whole job is suspended. A
loader waits without one: it dies with its parent.
"""

from __future__ import annotations

import errno
import math
import os
import shutil
import signal
import socket
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec
import zmq

from ..base import SocketPathError, blake2b
from .messages import MAX_FRAME_BYTES, Message

_EVENTS, _POLLIN, _NOBLOCK = int(zmq.EVENTS), int(zmq.POLLIN), int(zmq.NOBLOCK)
"""Plain numbers: with members of an enum `&` takes a microsecond."""

_LENGTH_BYTES = 4
_MAX_PATH = 107
"""Characters: sun_path holds 108 with the closing zero (man 7 unix)."""

_LONGEST_NAME = "tasks-9999999"
MOST_AT_ONCE = 1000
"""Frames taken off a link before anything else is looked at: no flood may keep its reader from that."""
_PREFIX = "blobfeed-"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_YOUNG_S = 60.0

LONGEST_WAIT_S = 0.5
"""The longest wait between two looks at the clock. A wait of a second or more would count as a suspension."""

_LONGEST_STEP_S = 1.0
_ADVICE = "set TMPDIR to a writable directory with a short path"

_M = TypeVar("_M")


def choose_socket_directory() -> Path:
    """Return a free path for a directory whose sockets' paths fit; raises SocketPathError naming what was tried."""
    # A container whose root file system is read-only has /dev/shm, and often nothing else that can be written to.
    bases, tried = ["/tmp", "/dev/shm"], []
    with suppress(FileNotFoundError):  # none is usable
        bases.insert(0, tempfile.gettempdir())
    for base in dict.fromkeys(bases):
        directory = Path(base, _prefix() + os.urandom(4).hex())
        length = len(os.fsencode(directory / _LONGEST_NAME))
        if length > _MAX_PATH:
            tried.append(f"{base} (a socket's path would have {length} characters, at most {_MAX_PATH} fit)")
        elif not os.access(base, os.W_OK | os.X_OK):
            tried.append(f"{base} (not a directory that may be written to)")
        else:
            return directory
    raise SocketPathError(f"no directory for the sockets: tried {'; '.join(tried)}; {_ADVICE}")


def make_socket_directory(directory: Path) -> None:
    """Make it, for this user alone; raises SocketPathError. Those beside it that dead runs have left are removed."""
    _remove_dead(directory.parent)
    try:
        directory.mkdir(0o700)
    except OSError as error:
        raise SocketPathError(f"no directory for the sockets: {directory}: {error.strerror}; {_ADVICE}") from error


def remove_socket_directory(directory: Path) -> None:
    """Remove it, at the end of each process; it is no error that another one was faster."""
    shutil.rmtree(directory, ignore_errors=True)


def _prefix() -> str:
    """Return how directories of this host and boot begin: other hosts may share a network's TMPDIR."""
    try:
        started = _BOOT_ID.read_bytes()
    except OSError:  # the boot is unknown, so no directory counts as of this boot
        started = os.urandom(16)
    return f"{_PREFIX}{blake2b(started, digest_size=4).hexdigest()}"


def _remove_dead(base: Path) -> None:
    """Remove what runs have left whose processes were all killed at once, as a memory control group does."""
    prefix = _prefix()
    with suppress(OSError), os.scandir(base) as entries:
        for each in entries:
            if each.name.startswith(prefix):
                with suppress(OSError):  # another start, or its own run, was faster
                    _remove_if_dead(each)


def _remove_if_dead(directory: os.DirEntry[str]) -> None:
    status = directory.stat(follow_symlinks=False)
    is_own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
    # A young one may be about to bind its sockets.
    if not is_own or time.time() - status.st_mtime < _YOUNG_S:
        return
    inside = list(Path(directory).iterdir())
    if inside and all(each.is_socket() and _is_refused(each) for each in inside):
        remove_socket_directory(Path(directory))


def _is_refused(path: Path) -> bool:
    """Return true for a socket that no process listens on; a stopped process still listens."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        return probe.connect_ex(os.fsencode(path)) == errno.ECONNREFUSED


def address(directory: Path, name: str) -> Any:
    """In bytes, whatever pyzmq's annotations say: as UTF-8, it cannot write a TMPDIR that is in another encoding."""
    return b"ipc://" + os.fsencode(directory / name)


def open_socket(context: zmq.Context[zmq.Socket[bytes]], kind: int) -> zmq.Socket[bytes]:
    """A PUSH or PULL socket that never blocks its process at close and refuses oversized frames.

    No high-water mark: the protocol itself bounds what can be under way (slots, and four tasks a loader at most).
    """
    socket = context.socket(kind)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.setsockopt(zmq.RCVHWM, 0)
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
    socket.setsockopt(zmq.RECONNECT_IVL, 5)
    return socket


def end_context(context: zmq.Context[zmq.Socket[bytes]]) -> None:
    """Close all sockets of `context`, and end its thread.

    Signals wait meanwhile: pyzmq takes an end that a signal has interrupted for done, and the thread would stay.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # may raise what a handler raises
        context.destroy(linger=0)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def frames(socket: zmq.Socket[bytes]) -> Iterator[bytes]:
    """Yield the frames that have arrived, at most MOST_AT_ONCE."""
    for _ in range(MOST_AT_ONCE):
        # Asked before, since pyzmq takes 9 µs longer to raise Again, and each process comes to that at each message.
        if not int(socket.get(_EVENTS)) & _POLLIN:
            return
        yield socket.recv(_NOBLOCK)


_encode = msgspec.msgpack.Encoder().encode


def frame_of(message: Message) -> bytes:
    """Return the frame that carries `message`."""
    body = _encode(message)
    return len(body).to_bytes(_LENGTH_BYTES, "little") + body


class Decoder(Generic[_M]):
    """Decodes what arrives on one link, which carries messages of the type `expected`; counts what it drops."""

    def __init__(self, expected: Any) -> None:
        self._decode = msgspec.msgpack.Decoder(expected).decode
        self.dropped = 0

    def decode(self, frame: bytes | memoryview) -> _M | None:
        """Return the message, or None for a frame that does not hold what this link carries."""
        if len(frame) != _length_of(frame):
            self.dropped += 1
            return None
        try:
            message: _M = self._decode(frame[_LENGTH_BYTES:])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self.dropped += 1
            return None
        return message


def _length_of(frame: bytes | memoryview) -> int:
    """Return the length of a whole frame, as its first bytes have it."""
    return _LENGTH_BYTES + int.from_bytes(frame[:_LENGTH_BYTES], "little")


class AwakeClock:
    """A monotonic clock in seconds that does not count the time in which this process was suspended.

    It advances at most one second per look. A longer gap between two looks counts as a suspension and adds nothing: a
    task may have been about to end when it began. Between two looks the clock stands still. So a task that starts just
    before a suspension still has its full time.
    """

    def __init__(self) -> None:
        self._looked_at = time.monotonic()
        self._lost_s = 0.0
        self._woke_at = -math.inf

    @property
    def now(self) -> float:
        """The time of the last look."""
        return self._looked_at - self._lost_s

    def look(self) -> float:
        """Advance the clock and return `now`."""
        before, self._looked_at = self._looked_at, time.monotonic()
        if (gap_s := self._looked_at - before) > _LONGEST_STEP_S:
            self._lost_s += gap_s
            self._woke_at = self._looked_at
        return self.now

    def time_of(self, moment: float) -> float:
        """Convert a `moment` of time.monotonic; one before the last suspension becomes the end of that suspension."""
        return max(moment, self._woke_at) - self._lost_s
