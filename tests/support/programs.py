"""Programs that a test starts, reads and ends."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest


@contextmanager
def started(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """The command in a session of its own, with pipes for what it says; killed at the end if it still runs."""
    given = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "start_new_session": True, **options}
    with subprocess.Popen(command, **given) as process:
        try:
            yield process
        finally:
            process.kill()


def read_until(process: subprocess.Popen[str], text: str) -> str:
    """Return the next line of output with `text` in it; pytest-timeout ends a wait for one that does not come."""
    assert process.stdout is not None
    seen = []
    for line in process.stdout:
        seen.append(line)
        if text in line:
            return line
    pytest.fail(f"waited for {text!r}, and saw only: {''.join(seen)}{process.stderr.read() if process.stderr else ''}")
