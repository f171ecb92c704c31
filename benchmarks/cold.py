"""Files that are not in the page cache: the first two works again, against reading the same bytes plainly.

Before each run the file is dropped from the cache (POSIX_FADV_DONTNEED); a run ends with the first epoch at the latest,
since after it the file is in the cache again.
"""

from __future__ import annotations

import math
from dataclasses import replace

from .entrants import ENTRANTS
from .harness import Plan, Results, Say, run_all
from .report import rate, ratio, table, times
from .works import Work, find_work

_TAKING = ("blobfeed", "blobfeed, 2 loaders", "blobfeed, sequential", "torch", "torch, tuned")
_SEQUENTIAL, _RANDOM = "limit: sequential read", "limit: random read"


def study(plan: Plan, say: Say) -> str:
    works = [
        replace(find_work(name), limits=("sequential read", "random read"), targets=())
        for name in ("hdf5_224", "hdf5_28")
    ]
    entrants = [each for each in ENTRANTS if each.name in _TAKING or each.name in (_SEQUENTIAL, _RANDOM)]
    results = run_all(works, entrants, replace(plan, cold=True, seconds=20.0), say)
    return "\n\n".join(["## From the disk, the page cache empty", *(_table(work, results) for work in works)])


def _table(work: Work, results: Results) -> str:
    mine = {name: result for (work_name, name), result in results.items() if work_name == work.name}
    stored = math.prod(work.shape)
    plain = {name: mine[name].median("samples_per_s") for name in (_SEQUENTIAL, _RANDOM)}
    rows = []
    for name, result in mine.items():
        value = result.median("samples_per_s")
        if value is None:
            rows.append([name, result.reason, "", "", ""])
            continue
        ratios = [times(ratio(value, plain[limit])) for limit in (_SEQUENTIAL, _RANDOM)]
        rows.append([name, rate(value), f"{value * stored / 1e6:,.0f}", *ratios])
    head = ["entrant", "samples/s", "MB/s", "of a sequential read", "of a random read, row by row"]
    return f"### {work.title}\n\n{table(head, rows)}"
