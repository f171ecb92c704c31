"""`python -m blobfeed.workers.processes.assembler_main CONFIG`: begin the assembler; CONFIG is the Config's descriptor.

Programs that a hook starts by multiprocessing import this module again, so it imports nothing that takes time.
"""

from __future__ import annotations

import signal
import sys


def main() -> None:
    """Become the assembler."""
    # A trainer that takes its signals with sigwait blocks them, and its children would inherit that: this one and those
    # that end loaders or programs of the user's.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    from .assembler import run

    run(int(sys.argv[1]))


if __name__ == "__main__":
    main()
