"""Ctrl-C at a line that a test chooses."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from typing import Any


def interrupts_in(step: int, run: Callable[[], object], *files: str) -> bool:
    """Run with Ctrl-C at line `step` of what is in `files`, parts of their paths; whether it came to that."""
    count, handler = 0, signal.getsignal(signal.SIGINT)

    def trace(frame: Any, event: str, _: object) -> Any:
        nonlocal count
        if not any(part in frame.f_code.co_filename for part in files):
            return None
        if event == "line" and signal.getsignal(signal.SIGINT) is handler:  # where signals are deferred none would come
            count += 1
            if count == step:
                sys.settrace(None)
                signal.raise_signal(signal.SIGINT)
        return trace

    sys.settrace(trace)
    try:
        run()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
    return False
