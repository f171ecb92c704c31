"""The cost of files: cold ones, more than the memory holds, many, long lists and archives of many data sets.

`python -m benchmarks.files` measures all and prints a table; `python -m benchmarks.files many list` only these;
`--quick` takes small data and a moment each.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from .datasets import HDF5_28, HDF5_224, data_folder, made
from .harness import Program, RunFailed, run_program
from .page_cache import fill
from .photographs import crops
from .report import duration, megabytes, rate, table

_LIMIT_S = 180.0
_ROUNDS = 3
_FILES = 1000
_GROUPS = Path("/sys/fs/cgroup")

Row = list[str]


def _megabytes(size: float) -> str:
    return f"{size / 1e6:.1f} MB"


def _opened(found: dict[str, Any]) -> str:
    return f"{duration(found['opened_s'])} to open, {duration(found['cpu_s'])} of the processor"


def _run(run: str, **given: Any) -> dict[str, Any]:
    """The median of some runs, figure by figure."""
    rounds = [run_program(Program("benchmarks.files_run"), {"run": run, **given}, _LIMIT_S) for _ in range(_ROUNDS)]
    return {name: statistics.median(each[name] for each in rounds) for name in rounds[0]}


def cold(quick: bool) -> Iterator[Row]:
    """Rows that lie apart in a file that is not in the page cache."""
    rows = 50_000 if quick else 1_000_000

    def write(path: Path) -> None:
        data = np.lib.format.open_memmap(path, "w+", np.uint8, (rows, 784))
        data[:] = (np.arange(rows) % 251)[:, None]
        data.flush()

    path = made(data_folder() / f"rows-784-{rows}.npy", write)
    found = _run("cold_rows", source={"npy": {"data": str(path)}}, path=str(path))
    yield [
        f"64 shuffled rows of 784 bytes, of {rows:,}",
        duration(found["seconds"]),
        f"{_megabytes(found['disk_bytes'])} read",
    ]
    for num_loaders in (0, "auto"):
        found = _run("first_rows", source={"npy": {"data": str(path)}}, path=str(path), num_loaders=num_loaders)
        yield [
            f"first batch of 64 such rows, num_loaders: {num_loaders}",
            duration(found["seconds"]),
            f"{_megabytes(found['disk_bytes'])} read",
        ]
    samples = HDF5_224.size(quick)
    path = HDF5_224.ensure(samples)
    found = _run("first_batch", source={"hdf5": {"path": str(path)}}, path=str(path))
    yield [
        f"first batch, HDF5 of {samples:,} rows of 150 kB",
        duration(found["seconds"]),
        f"{_megabytes(found['disk_bytes'])} read",
    ]


@contextmanager
def _memory_group(size: int) -> Iterator[Path]:
    """A control group that may use `size` bytes; raises OSError where none can be made."""
    old = not (_GROUPS / "cgroup.controllers").exists()
    group = (_GROUPS / "memory" if old else _GROUPS) / f"blobfeed_bench.{os.getpid()}"
    group.mkdir()
    try:
        (group / ("memory.limit_in_bytes" if old else "memory.max")).write_text(str(size))
        yield group
    finally:
        group.rmdir()


def larger(quick: bool) -> Iterator[Row]:
    """Two epochs over a file that is larger than the memory."""
    samples = HDF5_224.size(quick)
    path = HDF5_224.ensure(samples)
    size = max(path.stat().st_size // 3, 200 << 20)
    title = f"two shuffled epochs over {megabytes(path.stat().st_size)}, memory for {megabytes(size)}"
    with ExitStack() as stack:
        try:
            group = stack.enter_context(_memory_group(size))
        except OSError as error:
            yield [title, "–", f"no memory control group can be made here: {error.strerror}"]
            return
        found = _run("epochs", source={"hdf5": {"path": str(path)}}, path=str(path), group=str(group))
    ratio = found["disk_bytes"] / found["wanted_bytes"]
    yield [title, f"{rate(found['samples_per_s'])}/s", f"{ratio:.2f} of the bytes delivered were read"]


def _many_files(samples: int) -> Path:
    """The 28×28 data set again, cut into a thousand files."""

    def write(folder: Path) -> None:
        folder.mkdir()
        for number in range(_FILES):
            HDF5_28.write(folder / f"{number:04d}.h5", samples // _FILES)

    return made(data_folder() / f"hdf5_28-{samples}-in-{_FILES}", write)


def many(quick: bool) -> Iterator[Row]:
    """The same rows in one file and in a thousand."""
    samples = HDF5_28.size(quick)
    folder, one = _many_files(samples), HDF5_28.ensure(samples)
    for title, given, path in (
        (f"{samples:,} rows of 28×28 in 1 file", str(one), one),
        (f"{samples:,} rows of 28×28 in 1,000 files", f"{folder}/*.h5", folder),
    ):
        fill(path)
        found = _run("rate", source={"hdf5": {"path": given}}, seconds=0.3 if quick else 2.0)
        yield [title, f"{rate(found['samples_per_s'])}/s", f"{found['cpu_s'] * 1e6:.2f} µs of all processes a row"]


def lists(quick: bool) -> Iterator[Row]:
    """An image list that is long; its images are a thousand links to one."""
    lines = 10_000 if quick else 1_000_000

    def write(folder: Path) -> None:
        import cv2

        folder.mkdir()
        cv2.imwrite(str(folder / "one.jpg"), next(iter(crops(64, 64, 1))))
        for number in range(1000):
            os.link(folder / "one.jpg", folder / f"{number:03d}.jpg")
        with (folder / "list.txt").open("w") as file:
            file.writelines(f"./././././././././{line % 1000:03d}.jpg {line % 1000}\n" for line in range(lines))

    folder = made(data_folder() / f"list-{lines}", write)
    options = {"path": str(folder / "list.txt"), "root_folder": str(folder), "new_height": 64, "new_width": 64}
    found = _run("first_batch", source={"image_list": options})
    yield [
        f"first batch, image list of {lines:,} lines",
        duration(found["seconds"]),
        f"{_opened(found)}; {megabytes(found['own_bytes'])}",
    ]


def samples(quick: bool) -> Iterator[Row]:
    """Archives with a data set for each sample."""

    def write(path: Path) -> None:
        import h5py  # type: ignore[import-untyped]

        with h5py.File(path, "w") as file:
            for number in range(members):
                file.create_dataset(f"sample_{number}", data=np.zeros((8, 8, 3), np.float32)).attrs["label"] = number

    for members in (400, 2000) if quick else (4000, 200_000):
        path = made(data_folder() / f"members-{members}.h5", write)
        fill(path)
        found = _run("first_batch", source={"hdf5_samples": {"path": str(path), "labels": ["label"]}})
        yield [
            f"first batch, hdf5_samples with {members:,} members",
            duration(found["seconds"]),
            _opened(found),
        ]


_PARTS = {"cold": cold, "larger": larger, "many": many, "list": lists, "samples": samples}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.files", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"only these of {', '.join(_PARTS)}")
    parser.add_argument("--quick", action="store_true", help="small data and a moment each: does everything run?")
    given = parser.parse_args()
    rows = []
    for part in given.parts or _PARTS:
        try:
            rows += list(_PARTS[part](given.quick))
        except (RunFailed, OSError) as failure:
            rows.append([part, "failed", str(failure)])
        print(f"files: {part} is done", file=sys.stderr, flush=True)
    print(table(["work", "figure", ""], rows))


if __name__ == "__main__":
    main()
