"""`python -m blobfeed.workers.processes.assembler_main CONFIG ERRORS FOLDER`: the assembler, guarded while it imports.

The assembler watches the trainer as soon as it can. Until then it imports for a tenth of a second, and for some seconds
on a busy machine. If the trainer is killed meanwhile, its end of the error channel closes, and the kernel tells us with
a signal. So this module imports nothing that takes time. A thread that waits would do as well, but a process with
threads must not fork, and the nursery is forked from this one. PR_SET_PDEATHSIG would not do: it strikes when the
thread ends that started us, and that may be a short-lived one.

CONFIG, ERRORS: the descriptors of the Config and of our end of the error channel. FOLDER: that of the sockets.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import sys
from contextlib import suppress
from pathlib import Path


def guard(errors: int, folder: Path) -> None:
    """From now on this process ends when the trainer's end of the error channel is closed, and takes `folder` along."""

    def look(*_: object) -> None:
        poller = select.poll()
        poller.register(errors, 0)  # a hang-up is always told
        if poller.poll(0):
            _leave(folder)

    # A trainer that takes its signals with sigwait blocks them, and its children would inherit that: this one and those
    # that end loaders or programs of the user's.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    signal.signal(signal.SIGIO, look)
    fcntl.fcntl(errors, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(errors, fcntl.F_SETFL, fcntl.fcntl(errors, fcntl.F_GETFL) | os.O_ASYNC)
    look()


def unguard(errors: int) -> None:
    """This process sees for itself from here on."""
    fcntl.fcntl(errors, fcntl.F_SETFL, fcntl.fcntl(errors, fcntl.F_GETFL) & ~os.O_ASYNC)
    signal.signal(signal.SIGIO, signal.SIG_IGN)


def _leave(folder: Path) -> None:
    """Nothing has been started yet; the trainer may have made the folder and a socket in it."""
    with suppress(FileNotFoundError):
        for entry in folder.iterdir():
            entry.unlink()
        folder.rmdir()
    os._exit(1)


def main() -> None:
    config, errors, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    guard(errors, folder)
    from .assembler import run  # this is what takes time

    run(config, lambda: unguard(errors))


if __name__ == "__main__":
    main()
