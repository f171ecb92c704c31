"""`python -m benchmarks.metadata`: what many (path, label) pairs cost before the first batch, and in memory.

    pairs      | unpickled | constructor | first batch | a loader's own memory | after 1,000 batches

`unpickled`: the processor time of pickle.loads alone. The constructor sends the pairs; `first batch` is the processor
time of all processes from there on, with the import of torch. `--in-class`: the pairs are an attribute of a Dataset, a
list or a PackedList.
"""

from __future__ import annotations

import argparse
import pickle
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]

from blobfeed import DataLoader, PackedList

from .report import table

_LATER = 1000
_IN_CLASS: Mapping[str, Any] = {"list": list, "packed": PackedList}


class Photos:
    """Pairs in an attribute."""

    def __init__(self, pairs: Sequence[tuple[str, int]]) -> None:
        self.pairs = pairs

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> tuple[str, int]:
        return self.pairs[index]


def own_bytes(pid: int) -> int:
    """The pages that the process alone has, without those of files and slots, which others map when they need them."""
    total = 0
    for mapping in re.split(r"^(?=[0-9a-f]+-)", Path(f"/proc/{pid}/smaps").read_text(), flags=re.MULTILINE):
        sizes = {name: int(kilobytes) for name, kilobytes in re.findall(r"^(\w+): +(\d+) kB", mapping, re.MULTILINE)}
        total += min(sizes.get("Private_Dirty", 0) + sizes.get("Private_Clean", 0), sizes.get("Anonymous", 0))
    return 1024 * total


def _spent() -> float:
    us = psutil.Process()
    return float(sum(sum(process.cpu_times()[:2]) for process in (us, *us.children(recursive=True))))


def _row(pairs: list[tuple[str, int]], dataset: Any) -> tuple[str, ...]:
    data = pickle.dumps(pairs, pickle.HIGHEST_PROTOCOL)
    begun = time.process_time()
    copy = pickle.loads(data)
    unpickled = time.process_time() - begun
    del copy, data
    begun = _spent()
    loader = DataLoader(dataset, 64, shuffle=True, num_workers=2, seed=1)
    made = _spent()
    batches = iter(loader)
    next(batches)
    came = _spent()
    assert loader.feed is not None
    memory = []
    for _ in range(2):
        own = [own_bytes(state.pid) for state in loader.feed.states() if state.pid]
        memory.append(" and ".join(f"{size / 1e6:.1f} MB" for size in own))
        for _ in range(_LATER):
            next(batches)
    loader.close()
    times = f"{unpickled:.1f} s", f"{made - begun:.1f} s", f"{came - made:.1f} s"
    return f"{len(pairs):,}", *times, *memory


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=10_000_000)
    parser.add_argument("--in-class", choices=_IN_CLASS)
    given = parser.parse_args()
    pairs = [
        (f"/data/train/class_{number % 1000:04d}/image_{number:08d}.jpg", number % 1000)
        for number in range(given.pairs)
    ]
    row = _row(pairs, Photos(_IN_CLASS[given.in_class](pairs)) if given.in_class else pairs)
    print(
        table(
            ("pairs", "unpickled", "constructor", "first batch", "a loader's own memory", f"after {_LATER:,} batches"),
            [row],
        )
    )


if __name__ == "__main__":
    main()
