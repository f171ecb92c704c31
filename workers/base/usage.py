"""What the kernel says of a process of this machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

_PAGE = os.sysconf("SC_PAGE_SIZE")


class Usage(NamedTuple):
    """`cpu_ns`: it has had a core. `delay_ns`: it could have run and had none. `resident`: bytes of memory."""

    cpu_ns: int
    delay_ns: int
    resident: int


def usage_of(pid: int) -> Usage | None:
    """None if the process is gone, or if this kernel does not say."""
    process = Path(f"/proc/{pid}")
    try:
        cpu_ns, delay_ns, _ = map(int, (process / "schedstat").read_text().split())
        return Usage(cpu_ns, delay_ns, int((process / "statm").read_text().split()[1]) * _PAGE)
    except (OSError, ValueError, IndexError):
        return None
