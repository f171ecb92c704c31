"""The fork server: one process for all pipelines of a program, from which their assemblers are forked.

It has what every pipeline needs: an interpreter, NumPy, ZeroMQ, and the libraries that pipelines have needed so far,
such as torch. So only the first one of a program waits for these. It never sees user code: that is opened in each
pipeline's own nursery.

A fork has the environment, limits, rights and standard error of the server, and they are to be the trainer's. So a
server whose circumstances are no longer the trainer's is left to the pipelines that it has started, and another one
begins. It ends when the last pipeline of the program is closed, or with the trainer. One that dies is replaced at the
next start: what it has forked lives on.

    trainer → server   Start(folder, descriptors, modules), and the descriptors as ancillary data
    server → trainer   STARTED, EXITED, FORK_FAILED   (over a socket pair of that assembler, see forking.py)
"""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import msgspec

from ..base import EXTRAS
from ..transport import links, pidfd_open
from .forking import Forking, import_ahead
from .interpreter import child_environment, find_interpreter
from .process import (
    close_all_but,
    exit_in_words,
    leave_signals_to_trainer,
    run_and_exit,
    too_few_threads,
    wait_for_exit,
)

_MODULE = "blobfeed.workers.fork_server_main"
_LIBRARIES = {"blobfeed", "google", "h5py", *EXTRAS}
"""Those that the server imports. A module of the user's may be edited, and has a state of its own in each pipeline."""

_MOST_DESCRIPTORS = 200
"""Those of a message; the kernel allows 253."""

_MOST_BYTES = 1 << 16
_LOOK_S = 0.2
_THREAD = Path("/proc/thread-self")
_INHERITED = ("Umask", "Uid", "Gid", "Groups", "Cap", "NoNewPrivs", "Seccomp:", "Cpus_allowed:", "Mems_allowed:")


class Start(msgspec.Struct):
    """A request for an assembler; the first descriptor is where to report it, the second holds its Config.

    `folder`: that of its sockets. `descriptors`: the numbers under which it wants those that are sent along.
    """

    folder: str
    descriptors: tuple[int, ...]
    modules: tuple[str, ...]


class ForkServer:
    """The trainer's side; the process ends with the last reference to this."""

    def __init__(self, modules: Sequence[str]) -> None:
        """Start it; it imports `modules` at once, of those that it may. Raises as `find_fork_server` does."""
        self._circumstances: object = _circumstances()
        self._link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            trainer = pidfd_open(os.getpid())
            try:
                # Its own session keeps away signals for the terminal's foreground job. Its output goes to standard
                # error, also what user code prints: with the trainer's standard output `caffe train | cat` would not
                # end with the trainer.
                self._process = subprocess.Popen(
                    [find_interpreter(), "-P", "-m", _MODULE, str(theirs.fileno()), str(trainer), *_shared(modules)],
                    stdin=subprocess.DEVNULL,
                    stdout=2,
                    pass_fds=(theirs.fileno(), trainer),
                    env=child_environment(),
                    start_new_session=True,
                )
            except BaseException as error:
                self._link.close()
                if isinstance(error, BlockingIOError):
                    raise too_few_threads(0) from error
                raise
            finally:
                os.close(trainer)
        # Not at the program's exit: readers that are open then are closed first, and else it dies with this process.
        weakref.finalize(self, _end, self._process, self._link, os.getpid()).atexit = False

    @property
    def pid(self) -> int:
        return self._process.pid

    def exit_in_words(self) -> str:
        """Return in words the way it ended; to be called only after its end."""
        with suppress(ChildProcessError):  # then Popen has asked before, or would say 0
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
            self._process.wait()
        if (code := self._process.returncode) is None:
            return "in what way is unknown, for this program ignores SIGCHLD or waits for all children"
        return exit_in_words(code)

    @property
    def is_fit(self) -> bool:
        """Return true if a fork of it is like a process that this thread starts now."""
        return self._process.poll() is None and self._circumstances == _circumstances()

    def start(self, folder: str, descriptors: Sequence[int], modules: Sequence[str]) -> None:
        """Request an assembler; see Start. Raises ConnectionError if the server has just died."""
        request = msgspec.msgpack.encode(Start(folder, tuple(descriptors), _shared(modules)))
        with _lock:
            try:
                for first in range(0, len(descriptors), _MOST_DESCRIPTORS):
                    part = descriptors[first : first + _MOST_DESCRIPTORS]
                    socket.send_fds(self._link, [b"more" if first else request], part)
            except ConnectionError:
                self._circumstances = None
                raise


def _shared(modules: Sequence[str]) -> tuple[str, ...]:
    return tuple(name for name in modules if name.partition(".")[0] in _LIBRARIES)


def _end(process: subprocess.Popen[bytes], link: socket.socket, owner: int) -> None:
    """End the process, unless this one is a fork of the trainer: it has no state, and what it has forked lives on."""
    if os.getpid() == owner:
        process.kill()
        process.wait()
    link.close()


def _circumstances() -> object:
    """Return what a child inherits of this thread, and a program may change."""
    status = (_THREAD / "status").read_text().splitlines()
    read = [(_THREAD / name).read_text() for name in ("limits", "cgroup", "oom_score_adj")]
    spaces = sorted(each.readlink() for each in (_THREAD / "ns").iterdir())
    folder, errors = Path().stat(), os.fstat(2)
    return (
        dict(os.environ),
        sys.executable,
        [line for line in status if line.startswith(_INHERITED)],
        (read, spaces, os.getpriority(os.PRIO_PROCESS, 0)),
        (folder.st_dev, folder.st_ino, errors.st_dev, errors.st_ino),
    )


_lock = threading.Lock()
_newest: Callable[[], ForkServer | None] = lambda: None  # noqa: E731 - as a weak reference to nothing


def _forget_in_fork() -> None:
    """Let a fork of the trainer start a server of its own: this one watches, and belongs to, the trainer."""
    global _lock, _newest
    _lock, _newest = threading.Lock(), lambda: None


os.register_at_fork(after_in_child=_forget_in_fork)


def find_fork_server(modules: Sequence[str]) -> ForkServer:
    """Return the program's fork server, or a new one if there is none that fits, for pipelines that need `modules`.

    Raises InterpreterError, and BlobfeedError if the system allows no process.
    """
    global _newest  # noqa: PLW0603 - there is one for the program
    with _lock:
        server = _newest()
        if server is None or not server.is_fit:
            server = ForkServer(modules)
            _newest = weakref.ref(server)
    return server


# ---- in the process


class _Server(Forking):
    """The server's own side; `main` becomes the assembler, with its Config's descriptor."""

    def __init__(self, link: socket.socket, trainer: int, main: Callable[[int], None]) -> None:
        super().__init__(link)
        self._trainer, self._main = trainer, main
        self._poller.register(trainer, select.POLLIN)

    def run(self, modules: Sequence[str]) -> None:
        """Serve until the trainer is gone; it kills a server that it does not need any more."""
        self._import(modules)
        while True:
            for descriptor, _ in self._poller.poll():
                if descriptor == self._link.fileno():
                    if not self._serve():
                        return
                elif descriptor == self._trainer:
                    self._leave_if_alone()
                else:
                    with suppress(ConnectionError):  # the pipeline is closed
                        self._reap(descriptor)

    def _serve(self) -> bool:
        """Take a request; returns False if the trainer has closed its end, as when it has called exec."""
        data, got = _receive(self._link)
        if not data:
            return False
        start = msgspec.msgpack.decode(data, type=Start)
        while len(got) < len(start.descriptors):
            more, rest = _receive(self._link)
            if not more:
                return False
            got += rest
        self._import(start.modules, start.folder)
        asker = socket.socket(fileno=got[0])
        with suppress(ConnectionError):
            self._fork(lambda: self._become_assembler(got, start), asker, 0)
        for descriptor in got[1:]:
            os.close(descriptor)
        return True

    def _import(self, modules: Sequence[str], *folders: str) -> None:
        """Import them, which may take long, and meanwhile look whether the trainer lives; see `_leave_if_alone`."""
        gc.disable()
        if not all(name in sys.modules for name in modules):
            signal.signal(signal.SIGALRM, lambda *_: self._leave_if_alone(*folders))
            signal.siginterrupt(signal.SIGALRM, False)
            signal.setitimer(signal.ITIMER_REAL, _LOOK_S, _LOOK_S)
            try:
                import_ahead(modules)
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
        gc.freeze()  # nor do the forks look for garbage there, and write into pages that they share
        gc.enable()

    def _leave_if_alone(self, *folders: str) -> None:
        """End this process if the trainer's has ended, and remove what it may have made for assemblers to come."""
        if not wait_for_exit(self._trainer, 0.0):
            return
        self._link.setblocking(False)
        with suppress(BlockingIOError, ConnectionError):
            while data := _receive(self._link)[0]:
                if data != b"more":
                    folders = (*folders, msgspec.msgpack.decode(data, type=Start).folder)
        for folder in folders:
            links.remove_socket_directory(Path(folder))
        os._exit(0)

    def _become_assembler(self, got: list[int], start: Start) -> None:
        os.setsid()
        wanted = start.descriptors[1:]
        _place(got[1:], wanted)
        close_all_but(wanted)
        self._main(wanted[0])


def _receive(link: socket.socket) -> tuple[bytes, list[int]]:
    data, got, _, _ = socket.recv_fds(link, _MOST_BYTES, _MOST_DESCRIPTORS)
    return data, list(got)


def _place(got: list[int], wanted: Sequence[int]) -> None:
    """Give descriptors the numbers that are wanted: what is sent with the Config names them."""
    got = list(got)
    for place, number in enumerate(wanted):
        if got[place] == number:
            continue
        if number in got[place + 1 :]:
            got[got.index(number, place + 1)] = os.dup(number)
        os.dup2(got[place], number, inheritable=False)


def run_fork_server(link: int, trainer: int, modules: Sequence[str], main: Callable[[int], None]) -> None:
    """Run the server; `link`, `trainer`: the descriptors of its socket and of the trainer's pidfd."""
    leave_signals_to_trainer()
    server = _Server(socket.socket(fileno=link), trainer, main)
    run_and_exit(partial(server.run, modules))
