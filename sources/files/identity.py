"""Short texts by which a state tells whether files are the ones that it was saved over. Paths do not count."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime

import msgspec
import numpy as np

from ...workers.base import text_digest
from .remote import RemoteStamp, Stamp

_MOST_LOOKS = 1000
"""The number of files looked at, spread over all: 2 ms, and 1 s where each look goes over a network."""

_DIGITS = 12


def of_stamps(stamps: Iterable[Stamp]) -> dict[str, str]:
    """The sizes, and the times or versions, of these files or objects."""
    files = list({stamp.path: stamp for stamp in stamps}.values())
    times = [stamp.version if isinstance(stamp, RemoteStamp) else stamp.mtime_ns for stamp in files]
    return of_looks([stamp.size for stamp in files], times)


def of_looks(sizes: Sequence[int], times: Sequence[int | str]) -> dict[str, str]:
    """`sizes`: bytes. `times`: of the last change in ns since 1970, or an object's version."""
    newest = max((time for time in times if isinstance(time, int)), default=0)
    written = f"last at {datetime.fromtimestamp(newest // 10**9, UTC):%Y-%m-%d %H:%M:%S} UTC" if newest else "versions"
    files = "1 file" if len(sizes) == 1 else f"{len(sizes):,} files"
    return {
        "sizes": f"{files}, {sum(sizes):,} bytes ({digest(sizes)})",
        "written": f"{written} ({digest(times)})",
    }


def without_paths(options: msgspec.Struct) -> list[tuple[str, object]]:
    """The options of a source by name, without its paths."""
    named = msgspec.structs.asdict(options)
    return sorted((named | dict.fromkeys(named.keys() & {"path", "root_folder"}, "")).items())


def digest(value: object) -> str:
    """The first digits of the digest of the `repr`."""
    return text_digest(repr(value))[:_DIGITS]


def spread(count: int) -> Iterator[int]:
    """The numbers below `count`, or so many of them that looking at each is quick."""
    return iter(dict.fromkeys(np.linspace(0, count - 1, min(count, _MOST_LOOKS)).astype(np.int64).tolist()))
