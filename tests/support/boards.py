"""The status boards of a process's pipelines, as `blobfeed monitor` finds and reads them."""

from __future__ import annotations

from blobfeed.watching.reading import Reading

from blobfeed.monitor import read_pipelines


def boards_of(pid: int) -> list[Reading]:
    return [reading for _, reading, pids in read_pipelines() if pid in pids]
