"""The nursery: a small single-threaded process from which loaders are forked.

The assembler forks it after importing what loaders need and before it makes its ZeroMQ context, so that forking a
loader copies neither sockets nor threads, costs a few milliseconds, and shares the pages of all that was imported.
It reaps the loaders and says how each ended. It lives as long as its parent, and its loaders as long as it.

    assembler → nursery   SPAWN loader seat       (one datagram of a sequenced-packet socket pair)
    nursery → assembler   STARTED loader + pidfd  (the handle travels as ancillary data)
    nursery → assembler   EXITED loader code
"""

from __future__ import annotations

import array
import os
import select
import signal
import socket
import struct
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass

from .process import close_all_but, die_with, ignore_terminal_signals, send_signal

_RECORD = struct.Struct("=qqq")
_STARTED, _EXITED, _FORK_FAILED = 1, 2, 3

LoaderMain = Callable[[int, int], None]
"""Called in the new loader with its number and its seat."""


@dataclass(frozen=True, slots=True)
class LoaderStarted:
    loader: int
    handle: int
    """A pidfd: readable once the process has ended."""


@dataclass(frozen=True, slots=True)
class LoaderExited:
    loader: int
    returncode: int


@dataclass(frozen=True, slots=True)
class ForkFailed:
    loader: int
    error: int
    """errno of fork."""


class Nursery:
    """The assembler's side."""

    def __init__(self, loader_main: LoaderMain, keep: tuple[int, ...]) -> None:
        """Fork it now; `keep`: descriptors that the loaders need. No ZeroMQ context may exist in this process yet."""
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            _run_and_exit(lambda: _nurse(theirs, parent, loader_main, keep))
        theirs.close()

    def fileno(self) -> int:
        """Readable when there is something to `receive`."""
        return self._socket.fileno()

    def spawn(self, loader: int, seat: int) -> None:
        self._socket.send(_RECORD.pack(0, loader, seat))

    def receive(self) -> LoaderStarted | LoaderExited | ForkFailed:
        """The next event; raises EOFError when the nursery itself is gone."""
        data, handles, _, _ = socket.recv_fds(self._socket, _RECORD.size, 1)
        if not data:
            raise EOFError("the process from which loaders are forked has ended")
        kind, loader, value = _RECORD.unpack(data)
        if kind == _STARTED:
            return LoaderStarted(loader, handles[0])
        return LoaderExited(loader, value) if kind == _EXITED else ForkFailed(loader, value)

    def close(self) -> None:
        """End it and all its loaders, and wait until they are reaped."""
        self._socket.close()
        os.waitpid(self.pid, 0)


@dataclass(slots=True)
class _Child:
    loader: int
    pid: int


def _run_and_exit(main: Callable[[], None]) -> None:
    """Run `main` in a process just forked and end there, whatever happens: the caller's frames are not ours."""
    code = 1
    try:
        main()
        code = 0
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _nurse(link: socket.socket, parent: int, loader_main: LoaderMain, keep: tuple[int, ...]) -> None:
    die_with(parent)
    ignore_terminal_signals()
    close_all_but((link.fileno(), *keep))
    children: dict[int, _Child] = {}
    poller = select.poll()
    poller.register(link, select.POLLIN)
    while True:
        for descriptor, _ in poller.poll():
            if descriptor != link.fileno():
                poller.unregister(descriptor)
                _reap(link, descriptor, children.pop(descriptor))
            elif request := link.recv(_RECORD.size):
                _, loader, seat = _RECORD.unpack(request)
                _fork_loader(link, poller, children, loader_main, loader, seat)
            else:
                _end_all(children)
                return


def _fork_loader(
    link: socket.socket,
    poller: select.poll,
    children: dict[int, _Child],
    loader_main: LoaderMain,
    loader: int,
    seat: int,
) -> None:
    nursery = os.getpid()
    try:
        pid = os.fork()
    except OSError as error:
        link.send(_RECORD.pack(_FORK_FAILED, loader, error.errno or 0))
        return
    if pid == 0:
        _run_and_exit(lambda: _become_loader(link, children, nursery, loader_main, loader, seat))
    handle = os.pidfd_open(pid)
    children[handle] = _Child(loader, pid)
    poller.register(handle, select.POLLIN)
    rights = array.array("i", [handle])
    link.sendmsg([_RECORD.pack(_STARTED, loader, pid)], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])


def _become_loader(
    link: socket.socket, siblings: dict[int, _Child], nursery: int, loader_main: LoaderMain, loader: int, seat: int
) -> None:
    die_with(nursery)
    link.close()
    for handle in siblings:
        os.close(handle)
    loader_main(loader, seat)


def _reap(link: socket.socket, handle: int, child: _Child) -> None:
    _, status = os.waitpid(child.pid, 0)
    os.close(handle)
    link.send(_RECORD.pack(_EXITED, child.loader, os.waitstatus_to_exitcode(status)))


def _end_all(children: dict[int, _Child]) -> None:
    for handle in children:
        send_signal(handle, signal.SIGKILL)
    for child in children.values():
        os.waitpid(child.pid, 0)
