"""Programs of Python on eight cores, in a control group that grants the time of one."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from .waiting import wait_until

_LIMITS = (("cpu", "cpu.cfs_quota_us"), ("", "cpu.max"))
"""The folder of groups, and the file with the microseconds out of 100,000, by the version of control groups."""


def printed_on_one_processor(program: str) -> str:
    """The output of `program`; skips the test if no control group can be made."""
    for folder, limit in _LIMITS:
        group = Path("/sys/fs/cgroup", folder, f"blobfeed-test-{os.getpid()}")
        if not os.access(group.parent, os.W_OK):
            continue
        group.mkdir()
        try:
            if (group / limit).exists():
                (group / limit).write_text("100000")
                join = f"open('{group}/cgroup.procs', 'w').write('0')\n"
                cores = "import os\nos.sched_getaffinity = lambda _: range(8)\n"
                command = [sys.executable, "-P", "-c", join + cores + program]
                return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        finally:
            wait_until(partial(_is_removed, group), "the group is empty")
    pytest.skip("no control group can be made here")


def _is_removed(group: Path) -> bool:
    with suppress(OSError):  # a process in it is ending
        group.rmdir()
    return not group.exists()
