"""Starts the assembler: a fresh interpreter, not a fork of the trainer, and no second run of its main script.

Nothing may remain if the trainer is killed at any moment. So the assembler is started first, with the name of the
sockets' directory before that exists: from then on there is a process that will remove it.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path

from ..plan import Plan
from ..transport import SharedFile, StatusBoard, links, pidfd_open, pidfd_send_signal
from .config import Config, Descriptors
from .interpreter import find_interpreter
from .process import exit_in_words, send_signal, too_few_threads, wait_for_exit
from .watch import Trace

_MODULE = "blobfeed.workers.assembler_main"


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
        """Close the descriptors for the children, which have inherited them by now."""
        self._childrens.close()

    def close(self) -> None:
        self._closing.close()


class AssemblerProcess:
    """The parent's side of the assembler; started by the constructor.

    Raises InterpreterError, BlobfeedError if the system allows no process, and what pickling raises.
    """

    def __init__(self, config: Config) -> None:
        # Its own session keeps away signals for the terminal's foreground job. Its output goes to standard error, also
        # what user code prints: with the trainer's standard output `caffe train | cat` would not end with the trainer.
        try:
            self._process = config.start(find_interpreter(), _MODULE, stdout=2, start_new_session=True)
        except BlockingIOError as error:
            raise too_few_threads(0) from error
        try:
            self.handle = pidfd_open(self._process.pid)
        except OSError:
            self._process.kill()
            self._process.wait()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def exit_in_words(self) -> str:
        """Return in words the way it ended; to be called only after its end."""
        try:
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        except ChildProcessError:  # Popen would say 0
            return "in what way is unknown, for this program ignores SIGCHLD or waits for all children"
        return exit_in_words(self._process.wait())

    def end(self) -> None:
        """Kill it unless it has ended, reap it, and close the handle."""
        if not wait_for_exit(self.handle, 0.0):
            send_signal(self.handle, signal.SIGKILL)
        self._process.wait()
        os.close(self.handle)


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
