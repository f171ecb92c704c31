"""The four ZeroMQ links: PUSH/PULL pairs over `ipc://` in a directory that only this user may enter.

    releases  trainer PUSH (binds)      → assembler PULL (connects)
    batches   assembler PUSH (connects) → trainer PULL (binds)
    tasks-N   assembler PUSH (connects) → loader N PULL (binds), one socket for each loader
    results   loaders PUSH (connect)    → assembler PULL (binds)

Whoever binds does so before the other side hears of it, so nobody waits out a reconnection. Of each pair that a death
can cut, the sender connects: a PUSH socket that bound and has lost its peer would block its process in send.
Names in the abstract socket namespace would need no directory, but anyone may connect there.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import zmq

from .errors import SocketPathError
from .messages import MAX_FRAME_BYTES

_MAX_PATH = 107
"""Characters: sun_path holds 108 with the closing zero (man 7 unix)."""

_LONGEST_NAME = "tasks-9999999"
_PREFIX = "blobfeed-"


def make_socket_directory() -> Path:
    """A fresh directory of mode 0700 whose sockets' paths fit; raises SocketPathError naming what was tried."""
    tried = []
    for base in dict.fromkeys((tempfile.gettempdir(), "/tmp")):
        # mkdtemp adds 8 random characters; the directory is made with mode 0700.
        length = len(os.fsencode(f"{base}/{_PREFIX}12345678/{_LONGEST_NAME}"))
        if length > _MAX_PATH:
            tried.append(f"{base} (a socket's path would have {length} characters, at most {_MAX_PATH} fit)")
            continue
        try:
            return Path(tempfile.mkdtemp(prefix=_PREFIX, dir=base))
        except OSError as error:
            tried.append(f"{base} ({error.strerror})")
    raise SocketPathError(
        f"no directory for the sockets: tried {'; '.join(tried)}; set TMPDIR to a writable directory with a short path"
    )


def remove_socket_directory(directory: Path) -> None:
    """Whoever ends last removes it; that another was faster is no error."""
    shutil.rmtree(directory, ignore_errors=True)


def address(directory: Path, name: str) -> str:
    return f"ipc://{directory}/{name}"


def open_socket(context: zmq.Context[zmq.Socket[bytes]], kind: int) -> zmq.Socket[bytes]:
    """A PUSH or PULL socket that never blocks its process at close and refuses oversized frames.

    No high-water mark: the protocol itself bounds what can be under way (slots, and two tasks a loader).
    """
    socket = context.socket(kind)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.setsockopt(zmq.RCVHWM, 0)
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
    socket.setsockopt(zmq.RECONNECT_IVL, 5)
    return socket


def receive(socket: zmq.Socket[bytes]) -> bytes | None:
    """The next frame, or None where none is waiting."""
    try:
        return socket.recv(zmq.NOBLOCK)
    except zmq.Again:
        return None
