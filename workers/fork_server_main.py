"""`python -m blobfeed.workers.fork_server_main LINK TRAINER MODULE…`: runs the fork server; LINK, TRAINER: descriptors.

Programs that a hook starts by multiprocessing import this module again. So it imports nothing slow, and stands outside
of the room: a room's __init__ imports the whole room.
"""

from __future__ import annotations

import gc
import signal
import sys


def main() -> None:
    """Become the fork server."""
    # A trainer that uses sigwait blocks signals, and its children would inherit that: these processes need them, and
    # those that end loaders or programs of the user's.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    # What is imported stays. To look for garbage in it again and again takes a fifteenth of the time until it is there.
    gc.disable()
    from .processes import run_assembler, run_fork_server

    run_fork_server(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:], run_assembler)


if __name__ == "__main__":
    main()
