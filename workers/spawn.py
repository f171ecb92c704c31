"""Starting the assembler: a fresh interpreter, not a fork of the trainer, and no second run of its main script."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from . import links
from .board import Board
from .config import Config, Descriptors
from .interpreter import child_environment, find_interpreter
from .process import passable
from .ring import Ring

_END_S = 5.0
_MODULE = f"{__package__}.assembler"


@dataclass(frozen=True, slots=True)
class Shared:
    """What trainer and children have in common; made by the trainer, closed by `close`."""

    ring: Ring
    board: Board
    folder: Path
    key: bytes
    errors: socket.socket
    """The trainer's end of the error channel."""
    descriptors: Descriptors
    """What the children inherit; the trainer's copies are closed once the child has them."""

    @classmethod
    def make(cls, ring: Ring, board: Board) -> Shared:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        descriptors = Descriptors(
            trainer=passable(os.pidfd_open(os.getpid())),
            ring=passable(os.dup(ring.descriptor)),
            board=passable(os.dup(board.descriptor)),
            errors=passable(theirs.detach()),
        )
        return cls(ring, board, links.make_socket_directory(), secrets.token_bytes(32), ours, descriptors)

    def close_passed(self) -> None:
        for descriptor in self.descriptors.all():
            os.close(descriptor)

    def close(self) -> None:
        self.errors.close()
        self.ring.close()
        self.board.close()
        links.remove_socket_directory(self.folder)


def spawn_assembler(config: Config) -> subprocess.Popen[bytes]:
    """Start it with its configuration on an inherited descriptor.

    It gets a session of its own, so that signals meant for the terminal's foreground job do not reach it, and never the
    trainer's standard output: `caffe train | cat` must end with the trainer. What user code prints in a loader goes to
    the trainer's standard error.
    """
    descriptor = config.write()
    try:
        return subprocess.Popen(
            [find_interpreter(), "-P", "-m", _MODULE, str(descriptor)],
            stdin=subprocess.DEVNULL,
            stdout=_standard_error(),
            pass_fds=(descriptor, *config.descriptors.all()),
            env=child_environment(),
            start_new_session=True,
        )
    finally:
        os.close(descriptor)


def _standard_error() -> int:
    try:
        os.fstat(2)
    except OSError:
        return subprocess.DEVNULL
    return 2


def end_assembler(process: subprocess.Popen[bytes]) -> int:
    """Wait for its end, and enforce it where it does not come; returns its exit code."""
    try:
        return process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def trainer_sys_path() -> tuple[str, ...]:
    """The trainer's module search path, with the working directory by its name."""
    return tuple(str(Path.cwd()) if entry == "" else entry for entry in sys.path)
