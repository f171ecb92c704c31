"""The nursery: a small single-threaded process from which loaders are forked.

The assembler forks it before it makes its ZeroMQ context, so that forking a loader copies neither sockets nor threads,
costs a few milliseconds, and shares the pages of all that was imported. What only loaders need is imported here and not
in the assembler, which must see the trainer's death even while an import takes its time.
It reaps the loaders and says how each ended. It lives as long as its parent, and its loaders as long as it.
It also watches the trainer itself: an assembler that was stopped by a signal cannot act on the trainer's death.

    assembler → nursery   SPAWN loader line       (one datagram of a sequenced-packet socket pair)
    nursery → assembler   STARTED loader + pidfd  (the handle travels as ancillary data)
    nursery → assembler   EXITED loader code
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
from collections.abc import Callable, Iterator

from ..base.errors import LoaderDied
from ..transport.linux import pidfd_open
from ..transport.messages import LoaderEnded, LoaderStarted
from .process import WHERE_TO_LOOK, close_all_but, die_with, exit_in_words, run_and_exit, send_signal, wait_for_exit

_END_S = 0.5
"""The patience of each side with the other one's end. A nursery that hangs, in an import or stopped by a signal, is
killed after this time. An assembler that lets this time pass after the trainer's death is taken for stopped."""

_BACKGROUND_AFTER_MS = 300
"""Until then the first batches are being made, and background work would be in their way."""

_RECORD = struct.Struct("=qqq")
_STARTED, _EXITED, _FORK_FAILED = 1, 2, 3

_log = logging.getLogger("blobfeed")

LoaderMain = Callable[[int, int], None]
"""Called in the new loader with its number and the number of its line on the status board."""

Background = Callable[[], Iterator[object]]
"""Work for the nursery's idle time, in steps of some milliseconds."""


class NurseryDied(LoaderDied):
    """The nursery has ended, and all loaders with it."""


class Nursery:
    """The assembler's side."""

    def __init__(
        self,
        loader_main: LoaderMain,
        modules: tuple[str, ...],
        keep: tuple[int, ...],
        background: Background = lambda: iter(()),
        trainer: int | None = None,
    ) -> None:
        """Fork it now. `modules`: what it imports before the first loader; `keep`: descriptors that the loaders need.
        `trainer`: pidfd of the process whose death ends the nursery too, one of `keep`.

        No ZeroMQ context may exist in this process yet.
        """
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:

            def nurse() -> None:
                die_with(parent)
                close_all_but((theirs.fileno(), *keep))
                _preload(modules)
                _Nurse(theirs, loader_main, background(), trainer).run()

            run_and_exit(nurse)
        theirs.close()
        self.handles: dict[int, int] = {}
        """By loader, its pidfd: readable once the process has ended."""
        self._handle = pidfd_open(self.pid)
        self._how = ""
        self._has_had_loaders = False

    def fileno(self) -> int:
        """Readable when there is something to `receive`."""
        return self._socket.fileno()

    def spawn(self, loader: int, line: int) -> None:
        """Ask for a loader; raises NurseryDied."""
        try:
            self._socket.send(_RECORD.pack(0, loader, line))
        except ConnectionError:
            raise self._death() from None

    def kill(self, loader: int) -> None:
        """End a loader that has started; its exit is told as any other."""
        send_signal(self.handles[loader], signal.SIGKILL)

    def receive(self) -> LoaderStarted | LoaderEnded:
        """The next event; raises NurseryDied."""
        try:
            data, handles, _, _ = socket.recv_fds(self._socket, _RECORD.size, 1)
        except ConnectionError:  # it ended with a request unread
            raise self._death() from None
        if not data:
            raise self._death()
        kind, loader, value = _RECORD.unpack(data)
        if kind == _STARTED:
            self._has_had_loaders = True
            (self.handles[loader],) = handles
            return LoaderStarted(loader)
        if kind == _FORK_FAILED:
            return LoaderEnded(loader, f"could not be forked: {os.strerror(value)}", crashed=True)
        os.close(self.handles.pop(loader))
        return LoaderEnded(loader, exit_in_words(value), crashed=value != -signal.SIGKILL)

    def close(self) -> None:
        """End it and all its loaders, and wait until they are gone."""
        self._socket.close()
        # Before its first loader it is importing: that may take seconds, and there is nothing to be tidied up.
        if not wait_for_exit(self._handle, _END_S if self._has_had_loaders else 0.0):
            send_signal(self._handle, signal.SIGKILL)
        if not self._how:
            os.waitpid(self.pid, 0)
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


class _Nurse:
    """The nursery's own side."""

    def __init__(
        self, link: socket.socket, loader_main: LoaderMain, background: Iterator[object], trainer: int | None
    ) -> None:
        self._link = link
        self._trainer = trainer
        self._background = background
        self._pause_ms: int | None = _BACKGROUND_AFTER_MS
        self._loader_main = loader_main
        self._pid = os.getpid()
        self._children: dict[int, tuple[int, int]] = {}
        """By handle: the loader's number and its process id."""
        self._poller = select.poll()
        self._poller.register(link, select.POLLIN)
        if trainer is not None:
            self._poller.register(trainer, select.POLLIN)

    def run(self) -> None:
        """Until the assembler closes its end, or the trainer has died and the assembler does nothing about it."""
        try:
            while self._serve():
                pass
        except ConnectionError:
            _log.debug("the assembler has closed its end while something was being reported to it")
        finally:
            self._end_all()

    def _serve(self) -> bool:
        events = self._poller.poll(self._pause_ms)
        if not events:
            self._work_in_background()
        for descriptor, _ in events:
            if descriptor == self._trainer:
                self._wait_for_assembler()
                return False
            if descriptor != self._link.fileno():
                self._reap(descriptor)
            elif request := self._link.recv(_RECORD.size):
                _, loader, line = _RECORD.unpack(request)
                self._fork_loader(loader, line)
            else:
                return False
        return True

    def _wait_for_assembler(self) -> None:
        """Leave the end to the assembler, if it runs: it first adopts the programs that loaders have started, and they
        get their time to tidy up."""
        hang_up = select.poll()
        hang_up.register(self._link, 0)
        hang_up.poll(_END_S * 1000)

    def _work_in_background(self) -> None:
        try:
            self._pause_ms = None if next(self._background, None) is None else 0
        except Exception as problem:  # it is for speed; without it everything still works
            _log.info("background work was given up: %s: %s", type(problem).__name__, problem)
            self._pause_ms = None

    def _fork_loader(self, loader: int, line: int) -> None:
        pid = 0
        try:
            pid = os.fork()
            if pid == 0:
                run_and_exit(lambda: self._become_loader(loader, line))
            handle = pidfd_open(pid)
        except OSError as error:
            if pid:  # no descriptor is left: the loader could neither be watched nor killed
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            self._link.send(_RECORD.pack(_FORK_FAILED, loader, error.errno or 0))
            return
        self._children[handle] = loader, pid
        self._poller.register(handle, select.POLLIN)
        rights = array.array("i", [handle])
        self._link.sendmsg([_RECORD.pack(_STARTED, loader, pid)], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])

    def _become_loader(self, loader: int, line: int) -> None:
        die_with(self._pid)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a loader may be ended by hand: it is replaced
        self._link.close()
        for handle in self._children:
            os.close(handle)
        self._loader_main(loader, line)

    def _reap(self, handle: int) -> None:
        self._poller.unregister(handle)
        loader, pid = self._children.pop(handle)
        _, status = os.waitpid(pid, 0)
        os.close(handle)
        self._link.send(_RECORD.pack(_EXITED, loader, os.waitstatus_to_exitcode(status)))

    def _end_all(self) -> None:
        for handle in self._children:
            send_signal(handle, signal.SIGKILL)
        for _, pid in self._children.values():
            os.waitpid(pid, 0)


def _preload(modules: tuple[str, ...]) -> None:
    """Import once what every loader will need; what cannot be imported is the loaders' to report, with the reason."""
    for name in modules:
        try:
            importlib.import_module(name)
        except (Exception, SystemExit) as problem:
            _log.info("%s cannot be imported ahead of the loaders: %s: %s", name, type(problem).__name__, problem)
