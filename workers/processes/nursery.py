"""The nursery: a small single-threaded process from which loaders are forked.

The assembler forks it before it makes its ZeroMQ context. So forking a loader copies neither sockets nor threads, costs
a few milliseconds, and shares the pages of all imported modules. Modules for loaders are imported here and not in the
assembler, which must notice the trainer's death even during a slow import.
The nursery reaps the loaders and reports the end of each. It dies with its parent, and its loaders die with it.
It also watches the trainer itself: an assembler that was stopped by a signal cannot act on the trainer's death.

    assembler → nursery   SPAWN loader line       (one datagram of a sequenced-packet socket pair)
    nursery → assembler   STARTED loader + pidfd  (the handle travels as ancillary data)
    nursery → assembler   EXITED loader code
"""

from __future__ import annotations

import logging
import os
import select
import signal
import socket
from collections.abc import Callable, Iterator
from functools import partial

from ..base import LoaderDied
from ..transport import LoaderEnded, LoaderStarted, pidfd_open
from .forking import EXITED, RECORD, STARTED, Forking, import_ahead
from .loader_pool import Home
from .process import WHERE_TO_LOOK, close_all_but, die_with, exit_in_words, run_and_exit, send_signal, wait_for_exit

_END_S = 0.5
"""The time that each side allows the other to end. After it, a nursery that hangs, in an import or stopped by a signal,
is killed. An assembler that has not acted so long after the trainer's death counts as stopped."""

_log = logging.getLogger("blobfeed")

LoaderMain = Callable[[int, int], None]
"""The function called in a new loader with its number and its line on the status board."""


class NurseryDied(LoaderDied):
    """The nursery has ended, and all loaders with it."""


class Nursery(Home):
    """The assembler's side of the nursery."""

    def __init__(
        self,
        loader_main: LoaderMain,
        modules: tuple[str, ...],
        keep: tuple[int, ...],
        trainer: int | None = None,
        prepare: Callable[[], None] = lambda: None,
    ) -> None:
        """Fork the nursery. `modules`: imported, and `prepare` called, before the first loader. `keep`: descriptors
        that the loaders need. `trainer`: pidfd of the process whose death ends the nursery, too, one of `keep`.

        No ZeroMQ context may exist in this process yet.
        """
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:

            def nurse() -> None:
                die_with(parent)
                close_all_but((theirs.fileno(), *keep))
                _preload(modules, prepare)
                _Nurse(theirs, loader_main, trainer).run()

            run_and_exit(nurse)
        theirs.close()
        self.handles: dict[int, int] = {}
        """The pidfd of each loader: readable once the process has ended."""
        self._handle = pidfd_open(self.pid)
        self._how = ""
        self._has_had_loaders = False

    def fileno(self) -> int:
        return self._socket.fileno()

    def spawn(self, loader: int, line: int) -> None:
        try:
            self._socket.send(RECORD.pack(0, loader, line))
        except ConnectionError:
            raise self._death() from None

    def kill(self, loader: int) -> None:
        send_signal(self.handles[loader], signal.SIGKILL)

    def receive(self, now: float) -> Iterator[LoaderStarted | LoaderEnded]:
        try:
            data, handles, _, _ = socket.recv_fds(self._socket, RECORD.size, 1)
        except ConnectionError:  # it ended with a request unread
            raise self._death() from None
        if not data:
            raise self._death()
        kind, loader, value = RECORD.unpack(data)
        if kind == STARTED:
            self._has_had_loaders = True
            (self.handles[loader],) = handles
            yield LoaderStarted(loader)
        elif kind == EXITED:
            os.close(self.handles.pop(loader))
            yield LoaderEnded(loader, exit_in_words(value), crashed=value != -signal.SIGKILL)
        else:
            yield LoaderEnded(loader, f"could not be forked: {os.strerror(value)}", crashed=True)

    def close(self) -> None:
        """End the nursery and all its loaders, and wait until they are gone."""
        self._socket.close()
        # Before its first loader it still imports, which may take seconds, and has nothing to clean up.
        if not wait_for_exit(self._handle, _END_S if self._has_had_loaders else 0.0):
            send_signal(self._handle, signal.SIGKILL)
        if not self._how:
            os.waitpid(self.pid, 0)
        for loader in self.handles.values():
            # If the nursery was killed they die of that, a moment later; not one that is stopped as soon as it begins.
            send_signal(loader, signal.SIGKILL)
            wait_for_exit(loader, _END_S)
        for handle in (self._handle, *self.handles.values()):
            os.close(handle)

    def _death(self) -> NurseryDied:
        if not self._how:
            _, status = os.waitpid(self.pid, 0)
            self._how = exit_in_words(os.waitstatus_to_exitcode(status))
        return NurseryDied(
            f"the process from which loaders are forked, and without which they do not live, has ended: {self._how}; "
            f"its own last words, if any, are on standard error; {WHERE_TO_LOOK}",
            [self._how],
        )


class _Nurse(Forking):
    """The nursery's own side."""

    def __init__(self, link: socket.socket, loader_main: LoaderMain, trainer: int | None) -> None:
        super().__init__(link)
        self._trainer = trainer
        self._loader_main = loader_main
        self._pid = os.getpid()
        if trainer is not None:
            self._poller.register(trainer, select.POLLIN)

    def run(self) -> None:
        """Serve until the assembler closes its end, or fails to act on the trainer's death."""
        try:
            while self._serve():
                pass
        except ConnectionError:
            _log.debug("the assembler has closed its end while something was being reported to it")
        finally:
            self._end_all()

    def _serve(self) -> bool:
        for descriptor, _ in self._poller.poll():
            if descriptor == self._trainer:
                self._wait_for_assembler()
                return False
            if descriptor != self._link.fileno():
                self._reap(descriptor)
            elif request := self._link.recv(RECORD.size):
                _, loader, line = RECORD.unpack(request)
                self._fork(partial(self._become_loader, loader, line), self._link, loader)
            else:
                return False
        return True

    def _wait_for_assembler(self) -> None:
        """Leave the end to a running assembler: it adopts the programs that loaders have started, and gives them time
        to clean up.
        """
        hang_up = select.poll()
        hang_up.register(self._link, 0)
        hang_up.poll(_END_S * 1000)

    def _become_loader(self, loader: int, line: int) -> None:
        die_with(self._pid)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a user may end a loader, which is then replaced
        self._link.close()
        for handle in self._children:
            os.close(handle)
        self._loader_main(loader, line)

    def _end_all(self) -> None:
        for handle in self._children:
            send_signal(handle, signal.SIGKILL)
        for _, pid, _ in self._children.values():
            os.waitpid(pid, 0)


def _preload(modules: tuple[str, ...], prepare: Callable[[], None]) -> None:
    """Do once what all loaders need. A loader that needs what has failed meets it again, and reports the reason."""
    import_ahead(modules)
    try:
        prepare()
    except (Exception, SystemExit) as problem:
        _log.info("user code cannot be loaded ahead of the loaders: %s: %s", type(problem).__name__, problem)
