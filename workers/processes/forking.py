"""A process that forks others on request, and reports how each ended: it has one thread, so that a fork of it is safe.

→ it        a request, in the form that its own module says
it → asker  STARTED number pid, and the pidfd as ancillary data
it → asker  EXITED number code
it → asker  FORK_FAILED number errno
"""

from __future__ import annotations

import array
import importlib
import logging
import os
import select
import signal
import socket
import struct
from collections.abc import Callable, Iterable

from ..transport import pidfd_open
from .process import run_and_exit

RECORD = struct.Struct("=qqq")
STARTED, EXITED, FORK_FAILED = 1, 2, 3

_log = logging.getLogger("blobfeed")


class Forking:
    """Its children, and the poller that waits for their ends and for requests on `link`."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._children: dict[int, tuple[int, int, socket.socket]] = {}
        """The child's number, its process id, and where its end is reported, by its pidfd."""
        self._poller = select.poll()
        self._poller.register(link, select.POLLIN)

    def _fork(self, main: Callable[[], None], asker: socket.socket, number: int) -> None:
        pid = 0
        try:
            pid = os.fork()
            if pid == 0:
                run_and_exit(main)
            handle = pidfd_open(pid)
        except OSError as error:
            if pid:  # without a descriptor the child could be neither watched nor killed
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            asker.send(RECORD.pack(FORK_FAILED, number, error.errno or 0))
            return
        self._children[handle] = number, pid, asker
        self._poller.register(handle, select.POLLIN)
        rights = array.array("i", [handle])
        asker.sendmsg([RECORD.pack(STARTED, number, pid)], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])

    def _reap(self, handle: int) -> None:
        self._poller.unregister(handle)
        number, pid, asker = self._children.pop(handle)
        _, status = os.waitpid(pid, 0)
        os.close(handle)
        asker.send(RECORD.pack(EXITED, number, os.waitstatus_to_exitcode(status)))


def import_ahead(modules: Iterable[str]) -> None:
    """Import what forks need; one that needs what has failed meets it again, and reports the reason."""
    for name in modules:
        try:
            importlib.import_module(name)
        except (Exception, SystemExit) as problem:
            _log.info("%s cannot be imported ahead of the loaders: %s: %s", name, type(problem).__name__, problem)
