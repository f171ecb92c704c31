"""`python -m blobfeed.workers.assembler_main CONFIG`: runs the assembler; CONFIG is the Config's descriptor.

Programs that a hook starts by multiprocessing import this module again. So it imports nothing slow, and stands outside
of the room: a room's __init__ imports the whole room.
"""

from __future__ import annotations

import signal
import sys


def main() -> None:
    """Become the assembler."""
    # A trainer that uses sigwait blocks signals, and its children would inherit that: this process needs them, and
    # those that end loaders or programs of the user's.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    from .processes import run_assembler

    run_assembler(int(sys.argv[1]))


if __name__ == "__main__":
    main()
