"""Work that is done in a fork of this process."""

from __future__ import annotations

import os
import signal
import traceback
import warnings
from collections.abc import Callable

from .waiting import DEADLINE_S


def fork(work: Callable[[], object]) -> int:
    """Run `work` in a fork, which ends with 1 if that fails; return its process number."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # libraries have threads, which are not in the fork
        child = os.fork()
    if not child:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(int(DEADLINE_S))
        try:
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return child


def exit_code(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
