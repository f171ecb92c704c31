"""`python -m blobfeed.workers.processes.assembler_main CONFIG`: runs the assembler; CONFIG is the Config's descriptor.

Programs that a hook starts by multiprocessing import this module again, so it imports nothing slow.
"""

from __future__ import annotations

import signal
import sys


def main() -> None:
    """Become the assembler."""
    # A trainer that uses sigwait blocks signals, and its children would inherit that: this process needs them, and
    # those that end loaders or programs of the user's.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    from .assembler import run

    run(int(sys.argv[1]))


if __name__ == "__main__":
    main()
