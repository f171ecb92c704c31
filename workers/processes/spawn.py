"""Starts the assembler: a fork of the fork server, not of the trainer, and no second run of its main script.

Nothing may remain if the trainer is killed at any moment. So the assembler is requested first, with the name of the
sockets' directory before that exists: from then on there is a process that will remove it.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from pathlib import Path

from ..base import AssemblerDied
from ..plan import Plan
from ..transport import SharedFile, StatusBoard, links, pidfd_open, pidfd_send_signal
from .config import Config, Descriptors
from .fork_server import ForkServer, find_fork_server
from .forking import RECORD, STARTED
from .process import WHERE_TO_LOOK, exit_in_words, send_signal, wait_for_exit
from .watch import Trace

_REPORT_S = 1.0
"""The time that the server has to report an end that the kernel has shown already."""

_ATTEMPTS = 3


class Shared:
    """The resources shared by trainer and children; made by the trainer, closed by `close`.

    `errors` is the trainer's end of the error channel, `folder` the directory of the sockets, which is not made yet.
    `open_trace`: called last, so that no trace file is left after a failure.
    Raises RingAllocationError, SocketPathError, BlobfeedError if the kernel refuses a call, and the exceptions of
    `open_trace`.
    """

    def __init__(self, plan: Plan, open_trace: Callable[[], Trace | None]) -> None:
        with ExitStack() as stack:
            self.ring = stack.enter_context(closing(plan.new_ring()))
            self.board = stack.enter_context(closing(StatusBoard.create(plan.status_lines)))
            self.errors, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            stack.enter_context(self.errors)
            # MSG_DONTWAIT alone is not enough if gevent has patched sockets, or the program has set a default timeout.
            self.errors.setblocking(False)
            self._childrens = stack.enter_context(ExitStack())
            self._childrens.enter_context(theirs)
            trainer = pidfd_open(os.getpid())
            self._childrens.callback(os.close, trainer)
            pidfd_send_signal(trainer, 0)  # a kernel that refuses this fails here, before there is a process to kill
            drawn = stack.enter_context(closing(SharedFile.create("blobfeed-drawn")))
            self.folder = links.choose_socket_directory()
            stack.callback(links.remove_socket_directory, self.folder)
            if (trace := open_trace()) is not None:
                stack.enter_context(closing(trace))
            self.trace = trace
            self.descriptors = Descriptors(
                trainer,
                self.ring.descriptor,
                self.board.descriptor,
                theirs.fileno(),
                drawn.descriptor,
                source=plan.source.descriptors,
                sampler=plan.supply.descriptors,
                trace=-1 if trace is None else trace.descriptor,
            )
            self._closing = stack.pop_all()

    def close_childrens(self) -> None:
        """Close the descriptors for the children, which have been sent by now."""
        self._childrens.close()

    def close(self) -> None:
        self._closing.close()


class AssemblerProcess:
    """The trainer's side of the assembler; requested by the constructor, of `server`.

    `handle`: readable at news that `has_ended` takes in. Raises InterpreterError, BlobfeedError if the system allows no
    process, and what pickling raises.
    """

    def __init__(self, config: Config) -> None:
        self._pid = 0
        self._how = ""
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                self.server = _request(config, theirs.fileno())
            except BaseException:
                self._channel.close()
                raise
        self.handle = os.dup(self._channel.fileno())

    @property
    def pid(self) -> int:
        """The process id; until it is forked, that of the process which is to do so."""
        return self._pid or self.server.pid

    def has_ended(self) -> bool:
        """Take in what has been reported; returns true if it has ended, or will never be."""
        if not self._pid and not self._how and wait_for_exit(self.handle, 0.0):
            data, handles, _, _ = socket.recv_fds(self._channel, RECORD.size, 1)
            kind, _, value = RECORD.unpack(data) if data else (0, 0, 0)
            if kind == STARTED:
                self._pid = value
                os.dup2(handles[0], self.handle, inheritable=False)
                os.close(handles[0])
            else:
                self._how = f"could not be forked: {os.strerror(value)}" if data else self.server.exit_in_words()
        return bool(self._how) or (bool(self._pid) and wait_for_exit(self.handle, 0.0))

    def exit_in_words(self) -> str:
        """Return in words the way it ended; to be called only after its end."""
        if not self._how:
            self._how = "in what way is unknown, for the process that has forked it does not answer"
            if wait_for_exit(self._channel.fileno(), _REPORT_S):
                data = self._channel.recv(RECORD.size)
                self._how = exit_in_words(RECORD.unpack(data)[2]) if data else self.server.exit_in_words()
        return self._how

    def wait(self, patience_s: float) -> None:
        """Wait so long for its end, if it has been forked."""
        if not self.has_ended() and self._pid:
            wait_for_exit(self.handle, patience_s)

    def end(self) -> None:
        """Kill it unless it has ended, wait until it is reaped, and close the handle.

        One that has not been forked yet finds that the trainer has given up, and ends.
        """
        if self._pid:
            if not self.has_ended():
                send_signal(self.handle, signal.SIGKILL)
            self.exit_in_words()
        del self.server  # an exception may keep this object
        os.close(self.handle)
        self._channel.close()


def _request(config: Config, channel: int) -> ForkServer:
    """Request an assembler that is reported over `channel`; returns the server that forks it."""
    packed = config.pack()
    try:
        for _ in range(_ATTEMPTS):
            server = find_fork_server(config.plan.modules)
            descriptors = (channel, packed, *config.descriptors.of_loaders)
            with suppress(ConnectionError):  # it has just died
                server.start(config.sockets, descriptors, config.plan.modules)
                return server
    finally:
        os.close(packed)
    raise AssemblerDied(f"the process from which assemblers are forked has died {_ATTEMPTS} times; {WHERE_TO_LOOK}")


def _working_directory() -> tuple[str, ...]:
    try:
        return (str(Path.cwd()),)
    except FileNotFoundError:  # it was removed
        return ()


_BEGUN_IN = _working_directory()


def trainer_sys_path() -> tuple[str, ...]:
    """Return the trainer's module search path, with the working directory by its name.

    The initial working directory is added, since a hook's module may have been imported from there.
    """
    here = (*_working_directory(), *_BEGUN_IN)
    return tuple(path for entry in sys.path for path in ((entry,) if entry else here))
